"""Figures of annotated answers: the accumulation effect, and the agreement of two annotations.

Accumulation (ANAH §2.5, Eq. 1) compares P(H_t | some earlier sentence hallucinated) with P(H_t | none was), over
sentences t that have an earlier one. A poor model's answers differ so in any order, so what goes beyond the difference
under random order, computed in closed form, is the effect of order. The caller leaves out unjudged sentences.
Agreement compares label, reference and correction (ANAH's Table 3). Intervals draw whole answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from annotators.evaluation.metrics import Floats, Statistic, bootstrap, minus, share_of
from annotators.records import HALLUCINATED, LABELS, SentenceAnnotation

FIRST, AFTER_NONE, AFTER_SOME = 0, 1, 2
FIGURES = ("first", "after_none", "after_some", "difference", "difference_if_shuffled", "effect_of_order")


@dataclass(frozen=True)
class Figure:
    """A share or difference of shares in [−1, 1] (None without sentences), its 95 % interval, and sentences."""

    value: float | None
    interval: tuple[float, float] | None
    n: int


def counts_of(answer: Sequence[bool]) -> np.ndarray:
    """(3, 2) sentences and hallucinated ones among them: first, after none hallucinated, after some."""
    counts = np.zeros((3, 2))
    before = False
    for place, hallucinated in enumerate(answer):
        counts[FIRST if place == 0 else AFTER_SOME if before else AFTER_NONE] += (1, hallucinated)
        before = before or hallucinated
    return counts


def expected_counts(n: int, h: int) -> np.ndarray:
    """What ``counts_of`` gives on average when n sentences, h of them hallucinated, are put in random order.

    With j = n − k clean places, Σ_{k=1}^{n−1} C(n−k, h) / C(n, h) sentences from the second on have none before
    (hockey-stick sum: (n − h) / (h + 1), and n − 1 for h = 0); one of them, or the first, is the first hallucinated.
    """
    if n == 0:
        return np.zeros((3, 2))
    share = h / n
    none = (n - h) / (h + 1) if h else n - 1.0
    none_h = 1 - share if h else 0.0
    return np.array([[1.0, share], [none, none_h], [n - 1 - none, h - share - none_h]])


def accumulation(answers: Sequence[Sequence[bool]], *, n_resamples: int = 1000) -> dict[str, Figure]:
    """All ``FIGURES`` of answers, which say in order whether each judged sentence is hallucinated."""
    seen_A32 = np.array([counts_of(answer) for answer in answers]).reshape(-1, 3, 2)
    random_A32 = np.array([expected_counts(len(a), sum(a)) for a in answers]).reshape(-1, 3, 2)
    total_32 = seen_A32.sum(0)
    later = int(total_32[AFTER_NONE, 0] + total_32[AFTER_SOME, 0])
    sizes = [*(int(total_32[kind, 0]) for kind in (FIRST, AFTER_NONE, AFTER_SOME)), later, later, later]

    def share(table_A32: np.ndarray, kind: int) -> Statistic:
        def value(weights_A: Floats) -> float | None:
            n, h = weights_A @ table_A32[:, kind]
            return float(h / n) if n else None

        return value

    shares = [share(seen_A32, kind) for kind in (FIRST, AFTER_NONE, AFTER_SOME)]
    difference = minus(shares[AFTER_SOME], shares[AFTER_NONE])
    shuffled = minus(share(random_A32, AFTER_SOME), share(random_A32, AFTER_NONE))
    statistics = dict(zip(FIGURES, [*shares, difference, shuffled, minus(difference, shuffled)], strict=True))
    intervals = bootstrap(statistics, range(len(answers)), n_resamples)
    ones = np.ones(len(answers))
    return {
        name: Figure(statistic(ones), intervals[name], n)
        for (name, statistic), n in zip(statistics.items(), sizes, strict=True)
    }


@dataclass(frozen=True)
class Judged:
    """One sentence as one annotation has it."""

    label: str  # of LABELS, or "unsupported"
    places: frozenset[int] | None = None  # characters of the reference in its fragments; None: it gives no fragments
    corrected: str | None = None  # the sentence


def overlap(first: frozenset[int], second: frozenset[int]) -> float:
    """F1 of two sets of characters, in [0, 1]; 1 where both are empty (Dice 1945)."""
    if not first and not second:
        return 1.0
    return 2 * len(first & second) / (len(first) + len(second))


def kappa(first: Sequence[str], second: Sequence[str], weights: Floats) -> float | None:
    """Cohen's kappa in [−1, 1]; None without rows, or where chance alone gives full agreement (Cohen 1960)."""
    from sklearn.metrics import cohen_kappa_score

    a, b, w = (np.asarray(values)[weights > 0] for values in (first, second, weights))
    return None if len({*a, *b}) < 2 else float(cohen_kappa_score(a, b, sample_weight=w))


def agreement(
    pairs: Sequence[tuple[Judged, Judged]], groups: Sequence[Hashable], *, n_resamples: int = 1000
) -> dict[str, Figure]:
    """Figures of (n,) pairs of judgements of the same sentence, the second one counting as right; groups are answers.

    ``type`` is the share with equal labels, ``type:LABEL`` of the second's LABEL the share that the first calls so, and
    ``kappa``; over sentences that both call factual and give fragments for: ``reference`` (share with an overlap of at
    least a half) and ``reference_overlap`` (mean); over sentences that both call hallucinated and one corrects:
    ``correction`` (share with the same corrected sentence).
    """
    first, second = [a.label for a, _ in pairs], [b.label for _, b in pairs]

    def where(holds: Callable[[Judged, Judged], bool]) -> np.ndarray:
        return np.array([holds(a, b) for a, b in pairs], dtype=bool)

    everything, equal = where(lambda a, b: True), where(lambda a, b: a.label == b.label)
    factual = where(lambda a, b: None not in (a.places, b.places) and "no_fact" not in (a.label, b.label))
    wrong = where(lambda a, b: {a.label, b.label} <= HALLUCINATED and (a.corrected, b.corrected) != (None, None))
    same = where(
        lambda a, b: None not in (a.corrected, b.corrected) and str(a.corrected).split() == str(b.corrected).split()
    )
    overlaps = np.array([overlap(a.places or frozenset(), b.places or frozenset()) for a, b in pairs])
    labels = [label for label in (*LABELS, "unsupported") if label in second]
    shares = {
        "type": (equal, everything),
        **{f"type:{label}": (equal, np.array([label == b for b in second])) for label in labels},
        "kappa": (equal, everything),
        "reference": (overlaps >= 0.5, factual),
        "reference_overlap": (overlaps, factual),
        "correction": (same, wrong),
    }
    parts = {name: (share_of(right, among), among) for name, (right, among) in shares.items()}
    parts["kappa"] = (lambda weights: kappa(first, second, weights), everything)
    intervals = bootstrap({name: part for name, (part, _) in parts.items()}, groups, n_resamples)
    return {
        name: Figure(part(np.ones(len(pairs))), intervals[name], int(among.sum()))
        for name, (part, among) in parts.items()
    }


def consistent(samples: Sequence[SentenceAnnotation], least: float) -> SentenceAnnotation | None:
    """Of samples of which a share of ``least``, in (0.5, 1], has one label, the one whose evidence has the largest mean
    overlap with the others' of this label, the first of equals; None where too few agree (ANAH-v2).
    """
    votes = Counter(one.label for one in samples if one.label is not None)
    label, n = votes.most_common(1)[0] if votes else (None, 0)
    if label is None or n / len(samples) < least:
        return None
    alike = [one for one in samples if one.label == label]
    places = [frozenset(place for f in one.fragments for place in range(f.start, f.end)) for one in alike]
    return alike[int(np.argmax([sum(overlap(own, other) for other in places) for own in places]))]
