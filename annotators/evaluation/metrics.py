"""The figures by which annotators are compared: two-way, four-way and calibration, with bootstrap intervals.

A prediction is None where the row was not checked, or the annotator was unsure. A figure that cannot be computed (no
rows, only one class) is None, never 0 or NaN. Higher is better, except for ``ece``.

- Two-way figures (``auc``, ``balanced_accuracy``): supported against hallucinated; gold ``no_fact`` is left out. In
  ``balanced_accuracy`` a predicted ``no_fact`` counts as not hallucinated, an unchecked row as wrong. ``auc`` ranks
  unsure rows too and leaves out rows without a score: read it beside ``n_auc`` and ``coverage``.
- Four-way figures (``accuracy``, ``macro_f1``, ``balanced_accuracy_4way``): rows whose gold is one of the four labels,
  without ``two_way_only`` rows. An unchecked row counts as wrong; figures that end in ``_checked`` leave it out.
- ``ece`` is two-way: P(supported) / (1 − P(no_fact)) against the share supported. ``ece_4way`` is the top label's.

All are numpy: a bootstrap computes them a thousand times per part, and scikit-learn takes 1.5 ms for one AUC. Tests
compare AUC, shares and F1 with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from annotators.records import HALLUCINATED, LABELS

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Statistic = Callable[[Floats], float | None]
"""A figure as a function of row weights (n,), how often each row counts; None where it can't be computed."""


def resample(groups: Sequence[Hashable], n_resamples: int, seed: int) -> Iterator[Floats]:
    """Yield (n,) weights: how often each row occurs when the groups are drawn with replacement."""
    names = {name: i for i, name in enumerate(dict.fromkeys(groups))}
    member = np.array([names[name] for name in groups], dtype=np.int64)
    rng = np.random.default_rng(seed)
    for _ in range(n_resamples if names else 0):
        draw = np.bincount(rng.integers(0, len(names), len(names)), minlength=len(names))
        yield draw[member].astype(np.float64)


def percentiles(values: Sequence[float | None]) -> tuple[float, float] | None:
    """The middle 95 % of bootstrap values; None where more than one in ten could not be computed."""
    known = [value for value in values if value is not None]
    if not known or len(known) < 0.9 * len(values):
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def bootstrap(
    statistics: Mapping[str, Statistic], groups: Sequence[Hashable], n_resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float] | None]:
    """95 % percentile intervals of figures of (n,) row weights, from the same draws of the (n,) groups; None with fewer
    than two groups or without resamples. Equal seeds give equal ones. Source: Efron & Tibshirani 1993, chapter 13;
    drawing clusters, Davison & Hinkley 1997, §3.8.
    """
    if len(set(groups)) < 2:
        return dict.fromkeys(statistics)
    values: dict[str, list[float | None]] = {name: [] for name in statistics}
    for weights in resample(groups, n_resamples, seed):
        for name, statistic in statistics.items():
            values[name].append(statistic(weights))
    return {name: percentiles(drawn) for name, drawn in values.items()}


def minus(first: Statistic, second: Statistic) -> Statistic:
    """The difference of two figures, None where one of them is."""

    def difference(weights: Floats) -> float | None:
        a, b = first(weights), second(weights)
        return None if a is None or b is None else a - b

    return difference


def paired_difference(
    first: Statistic, second: Statistic, groups: Sequence[Hashable], n_resamples: int = 1000, seed: int = 0
) -> dict[str, float | None]:
    """first − second on the same draws of groups: ``difference``, its 95 % interval ``low`` and ``high``, and
    ``share_above_0`` (the share of draws where first is higher), each None where it cannot be computed.
    """
    difference = minus(first, second)
    value = difference(np.ones(len(groups)))
    possible = value is not None and len(set(groups)) > 1
    drawn = [difference(weights) for weights in resample(groups, n_resamples, seed)] if possible else []
    low, high = percentiles(drawn) or (None, None)
    above = None if low is None else float(np.mean([d > 0 for d in drawn if d is not None]))
    return {"difference": value, "low": low, "high": high, "share_above_0": above}


def mean_of(parts: Sequence[tuple[NDArray[np.int64], Statistic]]) -> Statistic:
    """The mean of figures over parts (row numbers, figure of those rows' weights) where they are not None."""

    def mean(weights: Floats) -> float | None:
        known = [value for rows, part in parts if (value := part(weights[rows])) is not None]
        return float(np.mean(known)) if known else None

    return mean


UNSUPPORTED = "unsupported"
GOLD_LABELS = (*LABELS, UNSUPPORTED)
UNCHECKED = -1
N_BINS = 15


def two_way_gold(gold: Sequence[str]) -> Floats:
    """1 where a gold label is supported, 0 where hallucinated, NaN for no_fact (left out of two-way)."""
    values = {"supported": 1.0, UNSUPPORTED: 0.0, **dict.fromkeys(HALLUCINATED, 0.0)}
    return np.array([values.get(label, np.nan) for label in gold], dtype=np.float64)


def _two_way_predicted(predicted: Sequence[str | None]) -> Ints:
    """1 where a prediction is not hallucinated (supported, no_fact), 0 where hallucinated, -1 unchecked."""
    codes = [UNCHECKED if p is None else int(p not in (*HALLUCINATED, UNSUPPORTED)) for p in predicted]
    return np.array(codes, dtype=np.int64)


def _label_codes(labels: Sequence[str | None]) -> Ints:
    """Index of each label in ``LABELS``; -1 for None and for labels that are not one of the four."""
    index: dict[str | None, int] = {label: i for i, label in enumerate(LABELS)}
    return np.array([index.get(label, UNCHECKED) for label in labels], dtype=np.int64)


def supported_score(scores: Sequence[Mapping[Any, float] | None]) -> Floats:
    """P(supported) / (1 − P(no_fact)) in [0, 1]; NaN where a row has no scores, 0.5 where P(no_fact) is 1."""

    def share(supported: float, factual: float) -> float:
        return min(supported / factual, 1.0) if factual > 1e-12 else 0.5

    return np.array([np.nan if row is None else share(row["supported"], 1.0 - row["no_fact"]) for row in scores], float)


def ece(probability: ArrayLike, outcome: ArrayLike) -> float | None:
    """Expected calibration error of (n,) rows, lower is better; those with NaN are left out.

    Σ_b n_b / n · |mean probability of b − share of outcomes in b|, b of the B = ``N_BINS`` bins [0, 1/B), …,
    [(B−1)/B, 1]. Source: Naeini et al. 2015; Guo et al. 2017, equation 3.
    """
    p, y = np.asarray(probability, dtype=np.float64), np.asarray(outcome, dtype=np.float64)
    kept = ~np.isnan(p)
    if not kept.any():
        return None
    p, y = p[kept], y[kept]
    bins = np.minimum((p * N_BINS).astype(np.int64), N_BINS - 1)
    return float(np.abs(np.bincount(bins, p - y, minlength=N_BINS)).sum() / len(p))


def four_way(gold: Ints, predicted: Ints) -> dict[str, Any]:
    """Figures of label codes: index in ``LABELS``, predicted -1 where a row was not checked (it counts as wrong).

    ``macro_f1`` is over the classes in gold (a class that was only predicted lowers the others and adds no zero);
    ``balanced_accuracy_4way`` is the mean recall of the classes in gold, None with fewer than two.
    """
    table = _table(gold, predicted, len(LABELS))

    def share(part: float, whole: float) -> float | None:
        return float(part / whole) if whole else None

    classes: dict[str, dict[str, float | int | None]] = {
        label: {"precision": share(hits, said), "recall": share(hits, n), "f1": share(2 * hits, n + said), "n": int(n),
                "n_predicted": int(said)}
        for label, hits, n, said in zip(LABELS, table.diagonal(), table.sum(1), table[:, :-1].sum(0), strict=True)
    }  # fmt: skip
    present = [row for row in classes.values() if row["n"]]
    return {
        "accuracy": float((gold == predicted).mean()) if len(gold) else None,
        "macro_f1": float(np.mean([row["f1"] for row in present])) if present else None,
        "balanced_accuracy_4way": float(np.mean([row["recall"] for row in present])) if len(present) > 1 else None,
        "classes": classes,
    }


def _table(gold: Ints, predicted: Ints, n: int) -> Ints:
    """(n, n + 1) rows of each gold class by the class that was predicted; the last column are unchecked ones, -1."""
    return np.bincount(gold * (n + 1) + predicted % (n + 1), minlength=n * (n + 1)).reshape(n, n + 1)


def share_of(right: NDArray[Any], rows: NDArray[np.bool_]) -> Statistic:
    """The weighted share of ``right`` among ``rows``, or the weighted mean where ``right`` are numbers."""

    def share(weights: Floats) -> float | None:
        total = weights[rows].sum()
        return float((weights * right)[rows].sum() / total) if total else None

    return share


def two_way_statistics(
    gold: Sequence[str], predicted: Sequence[str | None], support: ArrayLike
) -> dict[str, Statistic]:
    """``balanced_accuracy`` and ``auc`` as functions of row weights; ``support`` is any score that is higher for true
    sentences, NaN where there is none.
    """
    truth, guess = two_way_gold(gold), _two_way_predicted(predicted)
    recalls = [share_of(guess == truth, truth == side) for side in (0, 1)]
    value = np.asarray(support, float)
    ranked = ~np.isnan(truth) & ~np.isnan(value)
    levels, rank = np.unique(value[ranked], return_inverse=True)
    positive = truth[ranked] == 1

    def balanced(weights: Floats) -> float | None:
        known = [share for recall in recalls if (share := recall(weights)) is not None]
        return float(np.mean(known)) if len(known) == 2 else None

    def area(weights: Floats) -> float | None:
        """Mann–Whitney U / (n⁺ n⁻) with weighted counts (Hanley & McNeil 1982)."""
        up, down = (
            np.bincount(rank[side], weights[ranked][side], minlength=len(levels)) for side in (positive, ~positive)
        )
        pairs = up.sum() * down.sum()
        return float((up * (np.cumsum(down) - down / 2)).sum() / pairs) if pairs else None

    return {"balanced_accuracy": balanced, "auc": area}


WITH_INTERVALS = ("balanced_accuracy", "auc", "accuracy")


def statistics(
    gold: Sequence[str],
    predicted: Sequence[str | None],
    scores: Sequence[Mapping[Any, float] | None],
    two_way_only: Sequence[bool],
) -> dict[str, Statistic]:
    """The figures as functions of row weights: those ``WITH_INTERVALS``, and ``macro_f1`` of :func:`four_way`."""
    codes, choices = _label_codes(gold), _label_codes(predicted)
    four = (codes != UNCHECKED) & ~np.array(two_way_only, dtype=bool)

    def macro(weights: Floats) -> float | None:
        def counts(labels: Ints, rows: NDArray[np.bool_]) -> Floats:
            return np.bincount(labels[rows], weights[rows], minlength=len(LABELS)).astype(np.float64)

        own, hits = counts(codes, four), counts(codes, four & (codes == choices))
        both = own + counts(choices, four & (choices != UNCHECKED))
        return float((2 * hits[own > 0] / both[own > 0]).mean()) if own.any() else None

    of_four = {"accuracy": share_of(codes == choices, four), "macro_f1": macro}
    return {**two_way_statistics(gold, predicted, supported_score(scores)), **of_four}


def summarise(
    gold: Sequence[str], predicted: Sequence[str | None], scores: Sequence[Mapping[Any, float] | None],
    two_way_only: Sequence[bool], groups: Sequence[Hashable], n_resamples: int, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """All figures of (n,) rows, with their counts, classes, confusions and 95 % intervals; see the return statement.

    ``gold`` are ``LABELS`` or "unsupported", ``predicted`` is None where unchecked. ``two_way_only`` marks rows of
    supported/unsupported sources, whose "supported" enters no four-way figure. ``groups`` are drawn for the intervals.
    ValueError where a gold label is unknown or a score no probability.
    """
    if unknown := sorted({str(label) for label in gold} - set(GOLD_LABELS)):
        raise ValueError(f"unknown gold labels {unknown}; expected {', '.join(GOLD_LABELS)}")
    if any(not 0 <= row[label] <= 1 for row in scores if row is not None for label in LABELS):
        raise ValueError("expected scores between 0 and 1; got others (NaN?) for a judged row")

    checked = np.array([label is not None for label in predicted], dtype=bool)
    truth, guess, value = two_way_gold(gold), _two_way_predicted(predicted), supported_score(scores)
    two = ~np.isnan(truth)
    codes, choices = _label_codes(gold), _label_codes(predicted)
    four = (codes != UNCHECKED) & ~np.array(two_way_only, dtype=bool)
    scored = [i for i in np.flatnonzero(four).tolist() if scores[i] is not None]
    chances = np.array([[scores[i][k] for k in LABELS] for i in scored]).reshape(-1, len(LABELS))  # type: ignore[index]
    of_weights = statistics(gold, predicted, scores, two_way_only)
    limits = bootstrap({name: of_weights[name] for name in WITH_INTERVALS}, groups, n_resamples, seed)
    return {
        "n": len(gold),
        "n_two_way": int(two.sum()),
        "n_auc": int((two & ~np.isnan(value)).sum()),
        "n_four_way": int(four.sum()),
        "n_groups": len(set(groups)),
        "coverage": float(checked.mean()) if len(gold) else None,
        "auc": of_weights["auc"](np.ones(len(gold))),
        "balanced_accuracy": of_weights["balanced_accuracy"](np.ones(len(gold))),
        "balanced_accuracy_checked": of_weights["balanced_accuracy"](checked.astype(np.float64)),
        "ece": ece(value[two], truth[two]),
        "accuracy_checked": of_weights["accuracy"](checked.astype(np.float64)),
        **four_way(codes[four], choices[four]),
        "ece_4way": ece(chances.max(axis=1), chances.argmax(axis=1) == codes[scored]),
        "confusion": _confusion(codes[four], choices[four], LABELS, LABELS),
        "confusion_two_way": _confusion(
            truth[two].astype(np.int64), guess[two], ("hallucinated", "supported"), ("hallucinated", "not_hallucinated")
        ),
        "intervals": {name: list(pair) if pair else None for name, pair in limits.items()},
    }


def _confusion(gold: Ints, predicted: Ints, rows: Sequence[str], columns: Sequence[str]) -> dict[str, dict[str, int]]:
    """Counts by name: gold class → predicted class or "unchecked"."""
    names, table = (*columns, "unchecked"), _table(gold, predicted, len(rows))
    return {row: dict(zip(names, line, strict=True)) for row, line in zip(rows, table.tolist(), strict=True)}


# --- whole answers --------------------------------------------------------------------------------------------------


def fact_score(answers: Sequence[Sequence[bool | None]], *, gamma: float = 10) -> float | None:
    """FActScore in [0, 1]: the mean over answers of supported / judged facts, times exp(1 − γ / n) where n < γ.

    An answer is its n facts: whether each is supported, None where it was not judged. Answers without a judged fact,
    which abstain, are left out; None where all are. γ = 0 gives the mean without the length penalty. Source: Min et al.
    2023, "FActScore", §3; the penalty is that of its program.
    """
    judged = ((len(facts), [fact for fact in facts if fact is not None]) for facts in answers)
    scores = [np.mean(known) * min(1.0, np.exp(1 - gamma / n)) for n, known in judged if known]
    return float(np.mean(scores)) if scores else None


def detection(
    made_up: Sequence[bool], called: Sequence[bool | None], support: Sequence[float], lengths: Sequence[int]
) -> dict[str, float | None]:
    """How well (n,) answers that are made up or not are told apart, beside what their lengths alone can do.

    ``called`` is None where there was no verdict, which counts as wrong; F1 is of the made-up ones. ``support`` is any
    score that is higher for true answers, NaN where there is none. Lengths get the threshold and the direction that are
    best on these answers, so theirs is the most that length can explain.
    """
    gold, said, sizes = np.array(made_up, bool), np.array([bool(c) for c in called]), np.array(lengths)
    labels, ones = [UNSUPPORTED if one else "supported" for one in made_up], np.ones(len(gold))
    area, by_length = (two_way_statistics(labels, labels, support=x)["auc"](ones) for x in (support, lengths))
    shares = [float(((sizes >= least) == gold).mean()) for least in {*lengths}]
    right, positive = [c is not None and c == g for c, g in zip(called, made_up, strict=True)], gold.sum() + said.sum()
    return {
        "answer_accuracy": float(np.mean(right)), "answer_auc": area,
        "answer_f1": float(2 * (gold & said).sum() / positive) if positive else None,
        "length_accuracy": max(max(share, 1 - share) for share in shares),
        "length_auc": None if by_length is None else max(by_length, 1 - by_length),
    }  # fmt: skip
