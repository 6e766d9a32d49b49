"""What sentence judgements are worth: the aspects of a reward as pure functions of given labels.

Aspects follow Wu et al. 2023, "Fine-Grained Human Feedback Gives Better Rewards for Language Model Training" (§4):
relevance with repetition, factuality, completeness; length is ours. Their figures (±0.5, ±0.3) became weights.

Guard against reward hacking: one set, the *credited* sentences (supported, relevant, new, in the answer's own words),
is all that ever raises a total. Every other sentence leaves each aspect as it was or lowers it. Two consequences hold
for any labels (tests/mitigate/rewards/test_aspects.py):

- a further credited sentence inside the length budget never lowers the total;
- filler, repeats and sentences copied from the reference never raise it.

Needs no model. Dimension suffixes: _S sentences of one answer, _P points of its reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from annotators.records import HALLUCINATED, LABELS, Label
from mitigate.recipes.config import nearest

Aspect = Literal["factuality", "relevance", "completeness", "length"]
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
DEFAULT_WEIGHTS: dict[str, float] = {"factuality": 1.0, "relevance": 0.3, "completeness": 0.3, "length": 0.3}
DEFAULT_LABEL_REWARDS: dict[Label, float | None] = {
    "supported": 1.0, "contradictory": -1.0, "unverifiable": -1.0, "no_fact": None,
}  # fmt: skip
COVERS_NOTHING, COVERS_WHOLLY = 0.3, 0.8
"""Cosines of a sentence with a point (MiniLM) between which coverage rises from 0 to 1."""


@dataclass(frozen=True)
class Judged:
    """One sentence of an answer with what was found out about it."""

    label: Label | None  # None where it was not judged
    words: int
    relevant: bool = True  # it bears on the question; also where relevance is not looked at
    repeat: bool = False  # it says again what an earlier sentence said
    copied: bool = False  # it stands in the reference word for word

    @property
    def credited(self) -> bool:
        """Whether it may raise the reward: supported, relevant, new and in the answer's own words."""
        return self.label == "supported" and self.relevant and not self.repeat and not self.copied


def check_label_rewards(rewards: Mapping[str, float | None]) -> dict[Label, float | None]:
    """The rewards of all four labels; those left out are the defaults.

    Raises:
        ValueError: An unknown label, a value that is no finite number, or a label worth more than "supported".
    """
    if unknown := sorted(set(rewards) - set(LABELS)):
        raise ValueError(f"label_rewards: unknown label {unknown[0]!r}{nearest(unknown[0], LABELS)}")
    full: dict[Label, float | None] = {label: rewards.get(label, DEFAULT_LABEL_REWARDS[label]) for label in LABELS}
    for label, value in full.items():
        if value is not None and (not isinstance(value, int | float) or not math.isfinite(value)):
            raise ValueError(f"label_rewards: expected a finite number or None for {label!r}, got {value!r}")
    top = full["supported"]
    if top is None or any(value is not None and value > top for value in full.values()):
        raise ValueError(
            f"label_rewards: expected 'supported' to be worth the most, got {full}; otherwise a model learns to "
            "write something else"
        )
    if all(full[label] is None for label in LABELS if label in HALLUCINATED):
        raise ValueError("label_rewards: expected a reward for 'contradictory' or 'unverifiable', both are None")
    return full


def check_aspects(aspects: Mapping[str, float]) -> dict[Aspect, float]:
    """The weights of the aspects in use.

    Raises:
        ValueError: None is named, one is unknown, or a weight is not a positive finite number.
    """
    if unknown := sorted(set(aspects) - set(ASPECTS)):
        raise ValueError(f"aspects: unknown aspect {unknown[0]!r}{nearest(unknown[0], ASPECTS)}")
    for name, weight in aspects.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise ValueError(
                f"aspects: expected a positive weight for {name!r}, got {weight!r}; leave out what is not wanted"
            )
    if not aspects:
        raise ValueError(f"aspects: expected at least one of {list(ASPECTS)}, got none")
    return {name: float(aspects[name]) for name in ASPECTS if name in aspects}


def sentence_reward(sentence: Judged, rewards: Mapping[Label, float | None]) -> float | None:
    """Factuality of one sentence: the reward of its label; None where it is not judged or earns nothing.

    A supported sentence that is not credited (a repeat, a copy, off the question) gets None, as a sentence without a
    fact does by default: no reason to write it, and none against it beyond the other aspects.
    """
    if sentence.label is None or (sentence.label == "supported" and not sentence.credited):
        return None
    return rewards[sentence.label]


def factuality(sentences: Sequence[Judged], rewards: Mapping[Label, float | None]) -> float | None:
    """Mean reward of the sentences that state facts, in [floor, supported].

        F = (1/|E|) Σ_{s ∈ E} r(label_s),  E = credited ∪ hallucinated, where r is a number

    The other sentences that have a reward (repeats of hallucinations, sentences without a fact) are then counted in as
    long as they lower F, lowest first: they can never lift a bad answer.

    Returns:
        F, higher is better. None where no sentence could be judged. The floor, which is the lowest label reward, where
        nothing was said or nothing that was judged counts.

    Source: ours; the mean over sentences is the non-hallucination rate of ANAH (Ji et al. 2024) stretched to [-1, 1].
    """
    if sentences and all(s.label is None for s in sentences):
        return None
    main: list[float] = []
    rest: list[float] = []
    for s in sentences:
        value = sentence_reward(s, rewards)
        if value is not None:
            first = s.credited or (s.label in HALLUCINATED and not s.repeat)
            (main if first else rest).append(value)
    if not main:
        return min(value for value in rewards.values() if value is not None)
    total, n = sum(main), len(main)
    for value in sorted(rest):
        if value * n >= total:
            break
        total, n = total + value, n + 1
    return total / n


def relevance_reward(sentence: Judged) -> float | None:
    """+1 for a credited sentence, −1 for one off the question or a repeat, else None (Wu et al. §4.1, R_φ1)."""
    if not sentence.relevant or sentence.repeat:
        return -1.0
    return 1.0 if sentence.credited else None


def relevance(sentences: Sequence[Judged]) -> float:
    """R = (c − o) / (c + o) in [−1, 1], of c credited sentences and o off the question or repeated; 0 without any."""
    values = [value for s in sentences if (value := relevance_reward(s)) is not None]
    return sum(values) / len(values) if values else 0.0


def completeness(similarity_SP: np.ndarray, credited_S: Sequence[bool], low: float, high: float) -> float:
    """Share of the points that the credited sentences cover, in [0, 1]; higher is better.

        C = (1/_P) Σ_p min(1, max(0, (max_{s credited} sim(s, p) − low) / (high − low)))

    Args:
        similarity_SP: (_S, _P) cosine of each sentence with each point, in [−1, 1].
        credited_S: (_S,) which sentences may cover a point; 0 is returned where none is.
        low: Cosine that covers nothing.
        high: Cosine that covers a point wholly; above ``low``.

    Source: BERTScore's recall (Zhang et al. 2020, R_BERT), per point instead of per token; Wu et al. train a model.
    """
    if similarity_SP.shape[1] == 0:
        raise ValueError("completeness: expected at least one point, got none")
    best_P = similarity_SP[np.asarray(credited_S, dtype=bool)].max(axis=0, initial=-1.0)
    return float(np.clip((best_P - low) / (high - low), 0.0, 1.0).mean())


def length(sentences: Sequence[Judged], target_sentences: int, max_words: int) -> float:
    """How near an answer comes to its length, in [−1, 1]; higher is better.

        L = max(−1, (min(c, target) − d) / target − min(1, max(0, w − max_words) / max_words))

    c counts credited sentences only, d repeated ones, w the words (characters of Chinese) of all sentences; target
    credited sentences are enough. A repeat takes away what a credited sentence brings; without that it would be free
    where relevance is not in use.
    """
    credited, repeated = sum(s.credited for s in sentences), sum(s.repeat for s in sentences)
    excess = max(0, sum(s.words for s in sentences) - max_words) / max_words
    earned = (min(credited, target_sentences) - repeated) / target_sentences
    return max(-1.0, earned - min(1.0, excess))


def aspect_values(
    sentences: Sequence[Judged],
    rewards: Mapping[Label, float | None],
    similarity_SP: np.ndarray | None,
    *,
    target_sentences: int,
    max_words: int,
) -> dict[Aspect, float] | None:
    """All four aspects of one answer, higher is better; None where no sentence could be judged.

    Without ``similarity_SP``, (_S, _P) cosines with the points, completeness is 0.
    """
    fact = factuality(sentences, rewards)
    if fact is None:
        return None
    complete = 0.0
    if similarity_SP is not None:
        credited = [s.credited for s in sentences]
        complete = completeness(similarity_SP, credited, COVERS_NOTHING, COVERS_WHOLLY)
    return {
        "factuality": fact,
        "relevance": relevance(sentences),
        "completeness": complete,
        "length": length(sentences, target_sentences, max_words),
    }


def total(values: Mapping[Aspect, float], weights: Mapping[Aspect, float]) -> float:
    """Weighted mean of the aspects that have a weight: Σ_a w_a v_a / Σ_a w_a."""
    return sum(weight * values[name] for name, weight in weights.items()) / sum(weights.values())
