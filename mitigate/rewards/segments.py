"""What a reward says about a completion: one number for any trainer, with the segments behind it for ours.

A reward function returns `list[SentenceScore | None]`. To a stock trainer each entry is a float; a trainer that
credits tokens reads `segments`, one segmentation for each aspect of the reward, and `weights`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """One stretch [start, end) of the completion's text, in code points, and its reward."""

    start: int
    end: int
    label: str | None = None  # what the judge called it
    reward: float | None = None  # None where it was not judged

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"expected 0 <= start <= end, got start={self.start}, end={self.end}")


class SentenceScore(float):
    """A reward that carries its segments: `SentenceScore(0.5, segments={"factuality": (...)})`.

    It compares, hashes and computes as a float; arithmetic on it gives plain floats, without segments.

    Args:
        value: The scalar that trainers without token credit use.
        segments: Aspect name → its segments in order of `start`, which do not overlap (else ValueError).
        weights: Aspect name → weight of that aspect (1 where it is not named); ValueError for one without segments.
    """

    segments: dict[str, tuple[Segment, ...]]
    weights: dict[str, float]

    def __new__(
        cls,
        value: float,
        segments: Mapping[str, Sequence[Segment]] | None = None,
        weights: Mapping[str, float] | None = None,
    ) -> SentenceScore:
        score = super().__new__(cls, value)
        score.segments = {name: tuple(parts) for name, parts in (segments or {}).items()}
        score.weights = dict(weights or {})
        for name, parts in score.segments.items():
            for before, after in itertools.pairwise(parts):
                if after.start < before.end:
                    raise ValueError(f"aspect {name!r}: segment {after} starts before {before} ends")
        if unknown := sorted(score.weights.keys() - score.segments.keys()):
            raise ValueError(f"weights for aspects without segments: {unknown}")
        return score
