"""How far two annotations of the same sentences agree: label, reference, correction (ANAH's Table 3), Cohen's kappa.

The second annotation is the one compared with: "of its contradictory sentences, how many does the first call so".
Intervals draw whole answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from annotators.accumulation import Figure
from annotators.intervals import Floats, Statistic, bootstrap
from annotators.records import HALLUCINATED, LABELS


@dataclass(frozen=True)
class Judged:
    """One sentence as one annotation has it.

    Args:
        label: One of LABELS (or "unsupported").
        places: Characters of the reference that its fragments hold; None where it gives no fragments at all.
        corrected: The corrected sentence; None without correction.
    """

    label: str
    places: frozenset[int] | None = None
    corrected: str | None = None


def overlap(first: frozenset[int], second: frozenset[int]) -> float:
    """F1 of two sets of characters, in [0, 1]; 1 where both are empty (Dice 1945)."""
    if not first and not second:
        return 1.0
    return 2 * len(first & second) / (len(first) + len(second))


def kappa(first: Sequence[str], second: Sequence[str], weights: Floats | None = None) -> float | None:
    """Cohen's kappa in [−1, 1]: (p_o − p_e) / (1 − p_e); None where chance alone gives full agreement.

    Source: Cohen 1960.
    """
    weights = np.ones(len(first)) if weights is None else weights
    names = sorted({*first, *second})
    a, b = (np.array([[label == name for name in names] for label in labels]) for labels in (first, second))
    total = weights.sum()
    if not total:
        return None
    expected = float((weights @ a) @ (weights @ b)) / total**2
    observed = float(weights @ (a & b).any(1)) / total
    return None if expected >= 1 else (observed - expected) / (1 - expected)


def agreement(
    pairs: Sequence[tuple[Judged, Judged]],
    groups: Sequence[Hashable],
    *,
    n_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Figure]:
    """Figures of the agreement of paired judgements.

    Args:
        pairs: (n,) the same sentence by the first and by the second annotation.
        groups: (n,) the answer of each.
        n_resamples: Draws of the bootstrap.
        seed: Equal seeds give equal intervals.

    Returns:
        ``type`` (share with equal labels), ``type:LABEL`` (of the second's LABEL, share that the first calls so),
        ``kappa``; over sentences that both call factual and give fragments for: ``reference`` (share with an overlap
        of at least a half), ``reference_overlap`` (mean overlap); over sentences both call hallucinated and at least
        one corrects: ``correction`` (share with the same corrected sentence).
    """
    first, second = [a.label for a, _ in pairs], [b.label for _, b in pairs]
    equal = np.array([a == b for a, b in zip(first, second, strict=True)], dtype=float)
    labels = [label for label in (*LABELS, "unsupported") if label in second]
    of = {label: np.array([label == b for b in second], dtype=float) for label in labels}
    factual = np.array(
        [
            a.places is not None and b.places is not None and "no_fact" not in (a.label, b.label)
            for a, b in pairs
        ],
        dtype=float,
    )
    overlaps = np.array([overlap(a.places or frozenset(), b.places or frozenset()) for a, b in pairs])
    corrects = np.array(
        [
            a.label in HALLUCINATED and b.label in HALLUCINATED and (a.corrected or b.corrected) is not None
            for a, b in pairs
        ],
        dtype=float,
    )
    same = np.array([a.corrected is not None and _fold(a.corrected) == _fold(b.corrected) for a, b in pairs])

    def mean(values: np.ndarray, among: np.ndarray) -> Statistic:
        def value(weights: Floats) -> float | None:
            total = float(weights @ among)
            return float(weights @ (values * among)) / total if total else None

        return value

    everything = np.ones(len(pairs))
    parts: dict[str, tuple[Statistic, np.ndarray]] = {
        "type": (mean(equal, everything), everything),
        **{f"type:{label}": (mean(equal, among), among) for label, among in of.items()},
        "kappa": (lambda weights: kappa(first, second, weights), everything),
        "reference": (mean((overlaps >= 0.5).astype(float), factual), factual),
        "reference_overlap": (mean(overlaps, factual), factual),
        "correction": (mean(same.astype(float), corrects), corrects),
    }
    intervals = bootstrap({name: part for name, (part, _) in parts.items()}, groups, n_resamples, seed)
    return {
        name: Figure(part(everything), intervals[name], int(among.sum()))
        for name, (part, among) in parts.items()
    }


def _fold(text: str | None) -> str | None:
    return None if text is None else " ".join(text.split())
