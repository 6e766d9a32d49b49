"""The figures by which annotators are compared: two-way, four-way, calibration and bootstrap intervals.

Pure numpy. Labels come in as words; None as a prediction means the row was not checked (or failed). A figure
that cannot be computed (no rows, only one class) is None, never 0 or NaN. Higher is better but for ``ece``.

- Two-way figures (``auc``, ``balanced_accuracy``): supported against hallucinated, on rows whose gold is
  ``supported``, or one of ``contradictory``, ``unverifiable``, ``unsupported``; gold ``no_fact`` is left out.
  In ``balanced_accuracy`` a predicted ``no_fact`` counts as not hallucinated, an unchecked row as wrong.
  ``auc`` needs a score, so rows without one are left out of it: read it beside ``n_auc`` and ``coverage``.
- Four-way figures (``accuracy``, ``macro_f1``, ``balanced_accuracy_4way``): rows whose gold is one of the
  four labels. The ``supported`` rows of a supported/unsupported source are kept out by ``two_way_only``.
  An unchecked row counts as wrong; the figures ending in ``_checked`` leave it out.
- ``ece`` is two-way: P(supported) / (1 − P(no_fact)) against the share supported. ``ece_4way`` is the top
  label's: the highest of the four probabilities against how often that label is right. Both in 15 bins of
  equal width.
- Intervals (``annotators/evaluation/metrics.py``): percentile bootstrap over groups of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annotators.records import HALLUCINATED, LABELS

# ----------------------------------------------------------------------------------------------------
# Bootstrap intervals of any figure, by drawing whole groups of rows with replacement.
#
# Rows of one document or claim are not independent, so groups (``annotators/splits.group_rows``) are drawn, not
# rows. A figure is a function of row weights (how often each row was drawn) that is None where it cannot be
# computed; nothing here knows which figure it is.

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], float | None]


def resample(groups: Sequence[Hashable], n_resamples: int, seed: int) -> Iterator[Floats]:
    """Yield (n,) weights: how often each row occurs when the groups are drawn with replacement."""
    names = {name: i for i, name in enumerate(dict.fromkeys(groups))}
    member = np.array([names[name] for name in groups], dtype=np.int64)
    rng = np.random.default_rng(seed)
    for _ in range(n_resamples if names else 0):
        draw = np.bincount(rng.integers(0, len(names), len(names)), minlength=len(names))
        yield draw[member].astype(np.float64)


def percentiles(values: Sequence[float | None], level: float = 0.95) -> tuple[float, float] | None:
    """The middle ``level`` of bootstrap values; None where more than one in ten could not be computed."""
    known = [value for value in values if value is not None]
    if not known or len(known) < 0.9 * len(values):
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap(
    statistics: Mapping[str, Statistic],
    groups: Sequence[Hashable],
    n_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, tuple[float, float] | None]:
    """Percentile intervals of several figures, all from the same draws.

    Args:
        statistics: Name → function of (n,) row weights.
        groups: (n,) group of each row; all different means drawing rows.
        n_resamples: Number of draws; 0 gives no interval.
        seed: Equal seeds give equal intervals.
        level: Share of the draws inside.

    Returns:
        Name → (low, high); None with fewer than two groups.

    Source: Efron & Tibshirani 1993, chapter 13; drawing clusters, Davison & Hinkley 1997, §3.8.
    """
    if len(set(groups)) < 2:
        return dict.fromkeys(statistics)
    values: dict[str, list[float | None]] = {name: [] for name in statistics}
    for weights in resample(groups, n_resamples, seed):
        for name, statistic in statistics.items():
            values[name].append(statistic(weights))
    return {name: percentiles(drawn, level) for name, drawn in values.items()}


def paired_difference(
    first: Statistic, second: Statistic, groups: Sequence[Hashable], n_resamples: int = 1000, seed: int = 0
) -> dict[str, float | None]:
    """first − second with its 95 % interval, both computed on the same draws of groups.

    Returns:
        ``difference``, ``low``, ``high`` and ``share_above_0`` (the share of draws where first is higher),
        each None where it cannot be computed.
    """

    def difference(weights: Floats) -> float | None:
        a, b = first(weights), second(weights)
        return None if a is None or b is None else a - b

    result: dict[str, float | None] = dict.fromkeys(("low", "high", "share_above_0"))
    result = {"difference": difference(np.ones(len(groups))), **result}
    if result["difference"] is None or len(set(groups)) < 2:
        return result
    drawn = [difference(weights) for weights in resample(groups, n_resamples, seed)]
    if limits := percentiles(drawn):
        result["low"], result["high"] = limits
        result["share_above_0"] = float(np.mean([d > 0 for d in drawn if d is not None]))
    return result


def mean_of(parts: Sequence[tuple[NDArray[np.int64], Statistic]]) -> Statistic:
    """The plain mean of figures of parts of the rows (a mean over sources), leaving out those that are None.

    Args:
        parts: (row numbers, figure of the weights of just those rows) of each part.
    """

    def mean(weights: Floats) -> float | None:
        known = [value for rows, part in parts if (value := part(weights[rows])) is not None]
        return float(np.mean(known)) if known else None

    return mean


Ints = NDArray[np.int64]

UNSUPPORTED = "unsupported"
GOLD_LABELS = (*LABELS, UNSUPPORTED)
UNCHECKED = -1
N_BINS = 15


def two_way_gold(gold: Sequence[str]) -> Floats:
    """1 where a gold label is supported, 0 where hallucinated, NaN for no_fact (left out of two-way)."""
    values = {"supported": 1.0, UNSUPPORTED: 0.0, **dict.fromkeys(HALLUCINATED, 0.0)}
    return np.array([values.get(label, np.nan) for label in gold], dtype=np.float64)


def two_way_predicted(predicted: Sequence[str | None]) -> Ints:
    """1 where a prediction is not hallucinated (supported, no_fact), 0 where hallucinated, -1 unchecked."""
    return np.array(
        [UNCHECKED if p is None else int(p not in HALLUCINATED and p != UNSUPPORTED) for p in predicted], dtype=np.int64
    )


def label_codes(labels: Sequence[str | None]) -> Ints:
    """Index of each label in ``LABELS``; -1 for None and for labels that are not one of the four."""
    index: dict[str | None, int] = {label: i for i, label in enumerate(LABELS)}
    return np.array([index.get(label, UNCHECKED) for label in labels], dtype=np.int64)


def supported_score(scores: Sequence[Mapping[Any, float] | None]) -> Floats:
    """P(supported) / (1 − P(no_fact)) in [0, 1]; NaN where a row has no scores, 0.5 where P(no_fact) is 1."""
    values = np.full(len(scores), np.nan)
    for i, row in enumerate(scores):
        if row is not None:
            factual = 1.0 - row["no_fact"]
            values[i] = min(row["supported"] / factual, 1.0) if factual > 1e-12 else 0.5
    return values


def auc(positive: ArrayLike, score: ArrayLike, weights: ArrayLike | None = None) -> float | None:
    """Area under the ROC curve: P(score of a positive > score of a negative), ties count one half.

    Args:
        positive: (n,) true where the row is of the positive class.
        score: (n,) higher means more positive; rows with NaN are left out.
        weights: (n,) how often each row counts; once by default.

    Returns:
        A value in [0, 1], 0.5 is chance; None where a class is missing.

    Source: Mann–Whitney U / (n⁺ n⁻) (Hanley & McNeil 1982).
    """
    positive_n, score_n = np.asarray(positive, dtype=bool), np.asarray(score, dtype=np.float64)
    weights_n = np.ones(len(score_n)) if weights is None else np.asarray(weights, dtype=np.float64)
    kept = ~np.isnan(score_n)
    _, rank = np.unique(score_n[kept], return_inverse=True)
    return _auc_of_ranks(positive_n[kept], rank, weights_n[kept])


def _auc_of_ranks(positive: NDArray[np.bool_], rank: Ints, weights: Floats) -> float | None:
    size = int(rank.max()) + 1 if len(rank) else 0
    up = np.bincount(rank[positive], weights[positive], minlength=size)
    down = np.bincount(rank[~positive], weights[~positive], minlength=size)
    pairs = up.sum() * down.sum()
    if pairs == 0:
        return None
    below = np.cumsum(down) - down
    return float((up * (below + down / 2)).sum() / pairs)


def confusion(gold: Ints, predicted: Ints, n_classes: int, weights: Floats | None = None) -> Floats:
    """Counts (C, C + 1): row = gold class, column = predicted class, the last column = unchecked (-1).

    Args:
        gold: (n,) classes 0 … C − 1.
        predicted: (n,) classes, or -1 for unchecked.
        n_classes: C.
        weights: (n,) how often each row counts; once by default.
    """
    column = np.where(predicted == UNCHECKED, n_classes, predicted)
    flat = np.bincount(gold * (n_classes + 1) + column, weights, minlength=n_classes * (n_classes + 1))
    return flat.astype(np.float64).reshape(n_classes, n_classes + 1)


def accuracy(counts: Floats) -> float | None:
    """Share of correct rows in a confusion matrix, unchecked ones being wrong."""
    total = counts.sum()
    return float(np.trace(counts) / total) if total else None


def balanced_accuracy(counts: Floats) -> float | None:
    """Mean recall over the classes in gold, unchecked rows being wrong; None with fewer than two classes."""
    present = counts.sum(axis=1) > 0
    if present.sum() < 2:
        return None
    return float((np.diagonal(counts)[present] / counts.sum(axis=1)[present]).mean())


def class_scores(counts: Floats) -> list[dict[str, float | None]]:
    """Precision, recall, F1, n (gold rows) and n_predicted of each class of a confusion matrix.

    Recall is None without gold rows, precision without predicted ones, F1 without either.
    """
    rows: list[dict[str, float | None]] = []
    for c in range(len(counts)):
        hits, gold, predicted = float(counts[c, c]), float(counts[c].sum()), float(counts[:, c].sum())
        rows.append(
            {
                "precision": hits / predicted if predicted else None,
                "recall": hits / gold if gold else None,
                "f1": 2 * hits / (gold + predicted) if gold + predicted else None,
                "n": int(gold),
                "n_predicted": int(predicted),
            }
        )
    return rows


def macro_f1(counts: Floats) -> float | None:
    """Mean F1 over the classes in gold (a class that was only predicted lowers the others, adds no zero)."""
    values = [row["f1"] for row in class_scores(counts) if row["n"] and row["f1"] is not None]
    return float(np.mean(values)) if values else None


def ece(probability: ArrayLike, outcome: ArrayLike, n_bins: int = N_BINS) -> float | None:
    """Expected calibration error over equal-width bins, lower is better.

    Σ_b n_b / n · |mean probability of b − share of outcomes in b|, bins [0, 1/B), …, [(B−1)/B, 1].

    Args:
        probability: (n,) stated probabilities in [0, 1]; rows with NaN are left out.
        outcome: (n,) true where what was stated came true.
        n_bins: B.

    Source: Naeini et al. 2015; Guo et al. 2017, equation 3.
    """
    p, y = np.asarray(probability, dtype=np.float64), np.asarray(outcome, dtype=np.float64)
    kept = ~np.isnan(p)
    if not kept.any():
        return None
    p, y = p[kept], y[kept]
    bins = np.minimum((p * n_bins).astype(np.int64), n_bins - 1)
    return float(np.abs(np.bincount(bins, p - y, minlength=n_bins)).sum() / len(p))


def best_threshold(positive: ArrayLike, score: ArrayLike, weights: ArrayLike | None = None) -> float | None:
    """The threshold t with the best balanced accuracy of "positive iff score ≥ t" (lowest t of equals).

    It lies half-way between two neighbouring scores, or at the lowest score. None where a class is missing.

    Args:
        positive: (n,) true where the row is of the positive class.
        score: (n,) rows with NaN are left out.
        weights: (n,) how much each row counts; once by default.
    """
    positive_n, score_n = np.asarray(positive, dtype=bool), np.asarray(score, dtype=np.float64)
    weights_n = np.ones(len(score_n)) if weights is None else np.asarray(weights, dtype=np.float64)
    kept = ~np.isnan(score_n)
    positive_n, weights_n = positive_n[kept], weights_n[kept]
    values, rank = np.unique(score_n[kept], return_inverse=True)
    up = np.bincount(rank[positive_n], weights_n[positive_n], minlength=len(values))
    down = np.bincount(rank[~positive_n], weights_n[~positive_n], minlength=len(values))
    if up.sum() == 0 or down.sum() == 0:
        return None
    below_up, below_down = np.cumsum(up) - up, np.cumsum(down) - down
    # Rounded, so that equal thresholds stay equal whatever the order of the sums.
    best = int(np.argmax(np.round(below_down / down.sum() - below_up / up.sum(), 12)))
    return float(values[best] if best == 0 else (values[best - 1] + values[best]) / 2)


def two_way_statistics(
    gold: Sequence[str],
    predicted: Sequence[str | None],
    scores: Sequence[Mapping[Any, float] | None] | None = None,
    support: ArrayLike | None = None,
) -> dict[str, Statistic]:
    """``balanced_accuracy`` and ``auc`` as functions of row weights, for ``annotators/evaluation/metrics.py``.

    Args:
        gold: (n,) gold labels, of any kind.
        predicted: (n,) predicted labels, None where unchecked.
        scores: (n,) probabilities of the labels, or None where there are none.
        support: (n,) instead of ``scores``: any score that is higher for supported rows, NaN where missing.
    """
    truth = two_way_gold(gold)
    rows = ~np.isnan(truth)
    guess = two_way_predicted(predicted)
    value = supported_score(scores or [None] * len(gold)) if support is None else np.asarray(support, float)
    ranked = rows & ~np.isnan(value)
    _, rank = np.unique(value[ranked], return_inverse=True)
    positive = truth[ranked] == 1

    def balanced(weights: Floats) -> float | None:
        return balanced_accuracy(confusion(truth[rows].astype(np.int64), guess[rows], 2, weights[rows]))

    return {"balanced_accuracy": balanced, "auc": lambda weights: _auc_of_ranks(positive, rank, weights[ranked])}


def statistics(
    gold: Sequence[str],
    predicted: Sequence[str | None],
    scores: Sequence[Mapping[Any, float] | None],
    two_way_only: Sequence[bool],
) -> dict[str, Statistic]:
    """The figures that get intervals, as functions of row weights: two-way ones and ``accuracy``."""
    codes, choices = label_codes(gold), label_codes(predicted)
    four = (codes != UNCHECKED) & ~np.array(two_way_only, dtype=bool)

    def four_way(weights: Floats) -> float | None:
        return accuracy(confusion(codes[four], choices[four], len(LABELS), weights[four]))

    return {**two_way_statistics(gold, predicted, scores), "accuracy": four_way}


def summarise(
    gold: Sequence[str],
    predicted: Sequence[str | None],
    scores: Sequence[Mapping[Any, float] | None] | None = None,
    *,
    two_way_only: Sequence[bool] | None = None,
    groups: Sequence[Hashable] | None = None,
    n_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """All figures of one set of rows.

    Args:
        gold: (n,) ``LABELS`` or "unsupported".
        predicted: (n,) ``LABELS``, None where unchecked or failed.
        scores: (n,) {label: probability} or None.
        two_way_only: (n,) true for rows of supported/unsupported sources: their "supported" enters no
            four-way figure. By default only the "unsupported" rows themselves are two-way.
        groups: (n,) group names for the intervals; by default each row is its own group.
        n_resamples: Draws of the bootstrap; 0 for no intervals.
        seed: Of the bootstrap.

    Returns:
        n, n_two_way, n_auc, n_four_way, n_groups, coverage, auc, balanced_accuracy,
        balanced_accuracy_checked, ece, accuracy, accuracy_checked, macro_f1, balanced_accuracy_4way,
        ece_4way, classes, confusion, confusion_two_way and intervals ({figure: [low, high]} at 95 %).

    Raises:
        ValueError: The sequences differ in length, a gold label is unknown or a score no probability.
    """
    n = len(gold)
    scores = list(scores) if scores is not None else [None] * n
    two_way_only = list(two_way_only) if two_way_only is not None else [False] * n
    groups = list(groups) if groups is not None else list(range(n))
    lengths = {len(predicted), len(scores), len(two_way_only), len(groups)}
    if lengths != {n}:
        raise ValueError(
            f"expected {n} predictions, scores, flags and groups, one per gold label; got {sorted(lengths)}"
        )
    if unknown := sorted({str(label) for label in gold} - set(GOLD_LABELS)):
        raise ValueError(f"unknown gold labels {unknown}; expected {', '.join(GOLD_LABELS)}")

    scores = [row if label is not None else None for row, label in zip(scores, predicted, strict=True)]
    if any(not 0 <= row[label] <= 1 for row in scores if row is not None for label in LABELS):
        raise ValueError("expected scores between 0 and 1; got others (NaN?) for a checked row")
    checked = np.array([label is not None for label in predicted], dtype=bool)
    truth, guess, value = two_way_gold(gold), two_way_predicted(predicted), supported_score(scores)
    two = ~np.isnan(truth)
    pairs = confusion(truth[two].astype(np.int64), guess[two], 2)
    codes, choices = label_codes(gold), label_codes(predicted)
    four = (codes != UNCHECKED) & ~np.array(two_way_only, dtype=bool)
    table = confusion(codes[four], choices[four], len(LABELS))
    seen = table.copy()
    seen[:, -1] = 0
    pairs_seen = pairs.copy()
    pairs_seen[:, -1] = 0

    scored = four & np.array([row is not None for row in scores], dtype=bool)
    chances = np.array([[row[k] for k in LABELS] for row, s in zip(scores, scored, strict=True) if s and row]).reshape(
        -1, 4
    )
    top = chances.argmax(axis=1)

    figures = statistics(gold, predicted, scores, two_way_only)
    limits = bootstrap(figures, groups, n_resamples, seed)
    intervals = {name: list(pair) if pair else None for name, pair in limits.items()}

    return {
        "n": n,
        "n_two_way": int(two.sum()),
        "n_auc": int((two & ~np.isnan(value)).sum()),
        "n_four_way": int(four.sum()),
        "n_groups": len(set(groups)),
        "coverage": float(checked.mean()) if n else None,
        "auc": figures["auc"](np.ones(n)),
        "balanced_accuracy": balanced_accuracy(pairs),
        "balanced_accuracy_checked": balanced_accuracy(pairs_seen),
        "ece": ece(value[two], truth[two]),
        "accuracy": accuracy(table),
        "accuracy_checked": accuracy(seen),
        "macro_f1": macro_f1(table),
        "balanced_accuracy_4way": balanced_accuracy(table),
        "ece_4way": ece(chances.max(axis=1), top == codes[scored]),
        "classes": dict(zip(LABELS, class_scores(table), strict=True)),
        "confusion": _named(table, LABELS, LABELS),
        "confusion_two_way": _named(pairs, ("hallucinated", "supported"), ("hallucinated", "not_hallucinated")),
        "intervals": intervals,
    }


def _named(counts: Floats, rows: Sequence[str], columns: Sequence[str]) -> dict[str, dict[str, int]]:
    names = (*columns, "unchecked")
    return {r: dict(zip(names, map(int, line), strict=True)) for r, line in zip(rows, counts, strict=True)}
