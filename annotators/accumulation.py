"""The accumulation effect: are sentences hallucinated more often once an earlier one of the answer was?

P(H_t | some earlier sentence hallucinated) against P(H_t | none was), over sentences t that have an earlier one; first
sentences are counted apart. A difference alone shows no snowball: in answers of a poor model every sentence is more
likely to be wrong. So the difference that would be there if the sentences of each answer stood in random order is
computed too, in closed form, and what goes beyond it is the effect of order.

Source: ANAH §2.5, Eq. 1. "no_fact" counts as not hallucinated; sentences that were not judged are left out before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from annotators.intervals import Floats, Statistic, bootstrap

Interval = tuple[float, float] | None
FIRST, AFTER_NONE, AFTER_SOME = 0, 1, 2
FIGURES = ("first", "after_none", "after_some", "difference", "difference_if_shuffled", "effect_of_order")


@dataclass(frozen=True)
class Figure:
    """A share or difference of shares in [−1, 1], with its 95 % interval and the sentences it is of.

    ``value`` is None where there are none.
    """

    value: float | None
    interval: Interval
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


def accumulation(
    answers: Sequence[Sequence[bool]], *, n_resamples: int = 1000, seed: int = 0
) -> dict[str, Figure]:
    """All figures of a set of answers, with intervals from drawing answers with replacement.

    Args:
        answers: Per answer, in order, whether each judged sentence is hallucinated.
        n_resamples: Draws of the bootstrap.
        seed: Equal seeds give equal intervals.

    Returns:
        ``FIGURES``: the three shares; after_some − after_none; the same for random order; and their difference.
    """
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

    def minus(first: Statistic, second: Statistic) -> Statistic:
        def value(weights_A: Floats) -> float | None:
            a, b = first(weights_A), second(weights_A)
            return None if a is None or b is None else a - b

        return value

    shares = [share(seen_A32, kind) for kind in (FIRST, AFTER_NONE, AFTER_SOME)]
    difference = minus(shares[AFTER_SOME], shares[AFTER_NONE])
    shuffled = minus(share(random_A32, AFTER_SOME), share(random_A32, AFTER_NONE))
    statistics = dict(zip(FIGURES, [*shares, difference, shuffled, minus(difference, shuffled)], strict=True))
    intervals = bootstrap(statistics, range(len(answers)), n_resamples, seed)
    ones = np.ones(len(answers))
    return {
        name: Figure(statistic(ones), intervals[name], n)
        for (name, statistic), n in zip(statistics.items(), sizes, strict=True)
    }
