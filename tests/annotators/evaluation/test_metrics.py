"""The figures, by hand on a few rows and against scikit-learn on many."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from annotators.evaluation import metrics as m
from annotators.evaluation.metrics import bootstrap, mean_of, paired_difference, percentiles, resample
from annotators.records import LABELS


def drawn_auc(positive: Any, score: Any, weights: Any) -> float | None:
    """The AUC that a bootstrap draw computes."""
    gold = ["supported" if p else "contradictory" for p in positive]
    return m.two_way_statistics(gold, gold, support=score)["auc"](np.asarray(weights, dtype=float))


def test_auc_needs_scores_of_both_classes() -> None:
    assert drawn_auc([True, False, False], [0.4, 0.6, math.nan], np.ones(3)) == 0.0
    for positive, score in (([True, True], [0.4, 0.6]), ([True, False], [math.nan, 0.6]), ([], [])):
        assert drawn_auc(positive, score, np.ones(len(score))) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(1, 3)), min_size=2, max_size=40))
@settings(deadline=None)
def test_drawn_auc_equals_sklearn(rows: list[tuple[bool, int, int]]) -> None:
    positive, score, weight = zip(*rows, strict=True)
    if len(set(positive)) < 2:
        assert drawn_auc(positive, score, weight) is None
        return
    expected = sk.roc_auc_score(positive, score, sample_weight=weight)
    assert drawn_auc(positive, score, weight) == pytest.approx(expected)


def test_drawn_shares_and_f1_equal_sklearn() -> None:
    rng = np.random.default_rng(2)
    gold, named = ([str(x) for x in rng.choice(LABELS, 300)] for _ in range(2))
    predicted = [None if unchecked else name for name, unchecked in zip(named, rng.random(300) < 0.2, strict=True)]
    weights = rng.integers(0, 4, 300).astype(float)
    figures = m.statistics(gold, predicted, [None] * 300, [False] * 300)
    predicted = [name or "unchecked" for name in predicted]  # a class that is nobody's
    assert figures["accuracy"](weights) == pytest.approx(sk.accuracy_score(gold, predicted, sample_weight=weights))
    expected = sk.f1_score(gold, predicted, labels=LABELS, average="macro", sample_weight=weights)
    assert figures["macro_f1"](weights) == pytest.approx(expected)
    factual = [i for i in range(300) if gold[i] != "no_fact"]
    truth = [gold[i] == "supported" for i in factual]
    called = [
        predicted[i] in ("supported", "no_fact") if predicted[i] in LABELS else not t
        for i, t in zip(factual, truth, strict=True)
    ]
    expected = sk.balanced_accuracy_score(truth, called, sample_weight=weights[factual])
    assert figures["balanced_accuracy"](weights) == pytest.approx(expected)


def test_supported_score() -> None:
    scores = [
        {"supported": 0.3, "contradictory": 0.1, "unverifiable": 0.1, "no_fact": 0.5},  # 0.3 / 0.5
        {"supported": 0.0, "contradictory": 0.0, "unverifiable": 0.0, "no_fact": 1.0},  # says nothing: 0.5
        None,
    ]
    value = m.supported_score(scores)
    assert value[:2] == pytest.approx([0.6, 0.5])
    assert math.isnan(value[2])


def summary(gold: Any, predicted: Any, scores: Any = None, two_way: Any = None) -> dict[str, Any]:
    n = len(gold)
    return m.summarise(gold, predicted, scores or [None] * n, two_way or [False] * n, range(n), n_resamples=0)


def _scores(*values: float) -> dict[str, float]:
    return dict(zip(LABELS, values, strict=True))


# gold, predicted, (supported, contradictory, unverifiable, no_fact), two-way source?
HAND: list[tuple[str, str | None, dict[str, float] | None, bool]] = [
    ("supported", "supported", _scores(0.8, 0.1, 0.1, 0.0), False),  # s = 0.8
    ("supported", "no_fact", _scores(0.2, 0.1, 0.1, 0.6), False),  # s = 0.5
    ("contradictory", "unverifiable", _scores(0.1, 0.2, 0.7, 0.0), False),  # s = 0.1
    ("contradictory", None, None, False),
    ("unverifiable", "supported", _scores(0.6, 0.2, 0.2, 0.0), False),  # s = 0.6
    ("no_fact", "no_fact", _scores(0.1, 0.0, 0.0, 0.9), False),
    ("unsupported", "contradictory", _scores(0.3, 0.6, 0.1, 0.0), True),  # s = 0.3
    ("supported", "supported", _scores(0.9, 0.1, 0.0, 0.0), True),  # s = 0.9
]


def test_summary_by_hand() -> None:
    gold, predicted, scores, two_way = zip(*HAND, strict=True)
    figures = summary(gold, predicted, scores, two_way)
    assert summary(gold, predicted, scores)["n_four_way"] == 7  # without two-way flags
    assert (figures["n"], figures["n_two_way"], figures["n_auc"], figures["n_four_way"]) == (8, 7, 6, 6)
    assert figures["coverage"] == pytest.approx(7 / 8)
    # Not hallucinated: 3 of 3 right (a predicted no_fact is right). Hallucinated: 2 of 4 (one unchecked).
    assert figures["balanced_accuracy"] == pytest.approx((1 + 2 / 4) / 2)
    assert figures["balanced_accuracy_checked"] == pytest.approx((1 + 2 / 3) / 2)
    # positives 0.8, 0.5, 0.9 against negatives 0.1, 0.6, 0.3: 3 + 2 + 3 of 9.
    assert figures["auc"] == pytest.approx(8 / 9)
    # Four-way rows: the first six; right are the first and the sixth, one is unchecked.
    assert figures["accuracy"] == pytest.approx(2 / 6)
    assert figures["accuracy_checked"] == pytest.approx(2 / 5)
    # Recalls: supported 1/2, contradictory 0/2, unverifiable 0/1, no_fact 1/1.
    assert figures["balanced_accuracy_4way"] == pytest.approx(1.5 / 4)
    # F1: supported 2·1/(2+2), contradictory 0/(2+0), unverifiable 0/(1+1), no_fact 2·1/(1+2).
    assert figures["macro_f1"] == pytest.approx((1 / 2 + 0 + 0 + 2 / 3) / 4)
    assert figures["classes"]["supported"] == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "n": 2, "n_predicted": 2}
    assert figures["classes"]["contradictory"]["precision"] is None  # never predicted
    assert figures["confusion"]["contradictory"] == {
        "supported": 0, "contradictory": 0, "unverifiable": 1, "no_fact": 0, "unchecked": 1,
    }  # fmt: skip
    assert figures["confusion_two_way"] == {
        "hallucinated": {"hallucinated": 2, "not_hallucinated": 1, "unchecked": 1},
        "supported": {"hallucinated": 0, "not_hallucinated": 3, "unchecked": 0},
    }
    # Each of the six values has a bin of its own, so the mean of |s − supported|:
    # 0.2, 0.5, 0.1, 0.6, 0.3, 0.1.
    assert figures["ece"] == pytest.approx(1.8 / 6)
    # Top label: 0.8 right, 0.6 (no_fact) wrong and 0.6 (supported) wrong in one bin, 0.7 wrong, 0.9 right:
    # |0.8 − 1| + 2 · |0.6 − 0| + 0.7 + |0.9 − 1| over 5.
    assert figures["ece_4way"] == pytest.approx((0.2 + 1.2 + 0.7 + 0.1) / 5)


def test_nothing_is_none_never_zero() -> None:
    figures = summary([], [], [])
    for name in ("coverage", "auc", "balanced_accuracy", "ece", "accuracy", "macro_f1", "ece_4way"):
        assert figures[name] is None, name
    only_supported = summary(["supported"] * 3, ["supported", None, "no_fact"])
    for name in ("auc", "balanced_accuracy", "balanced_accuracy_4way", "ece"):  # no scores and one class
        assert only_supported[name] is None, name
    assert only_supported["accuracy"] == pytest.approx(1 / 3)
    nothing_checked = summary(["supported", "contradictory"], [None, None])
    assert nothing_checked["accuracy"] == 0.0
    assert nothing_checked["accuracy_checked"] is None
    assert nothing_checked["balanced_accuracy_checked"] is None
    two_way = summary(["unsupported", "supported"], ["supported"] * 2, two_way=[True, True])
    assert two_way["accuracy"] is None
    assert two_way["balanced_accuracy"] == 0.5


def test_unsure_rows_are_ranked_and_unchecked() -> None:
    scores = [_scores(0.9, 0.1, 0.0, 0.0), _scores(0.1, 0.9, 0.0, 0.0)]
    figures = summary(["supported", "contradictory"], [None, "contradictory"], scores)
    assert (figures["n_auc"], figures["auc"]) == (2, 1.0)
    assert (figures["coverage"], figures["balanced_accuracy"]) == (0.5, 0.5)


def test_summary_refuses_what_it_cannot_judge() -> None:
    with pytest.raises(ValueError, match="unknown gold labels \\['entailed'\\]; expected supported"):
        summary(["entailed"], ["supported"])
    with pytest.raises(ValueError, match="between 0 and 1"):
        summary(["supported"], ["supported"], [_scores(math.nan, 0, 0, 0)])


def test_macro_f1_is_over_gold_classes() -> None:
    gold, predicted = ["supported", "supported", "contradictory"], ["supported", "no_fact", "contradictory"]
    # supported 2·1/(2+1) = 2/3, contradictory 1; no_fact was only predicted and adds no zero.
    assert summary(gold, predicted)["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)


def test_ece_by_hand() -> None:
    # Fifteen bins. [3/15, 4/15): 0.2, 0.24 with outcomes 0, 1: |0.22 − 0.5| · 2/4.
    # [14/15, 1]: 0.96, 1.0 with outcomes 1, 0: |0.98 − 0.5| · 2/4.
    assert m.ece([0.2, 0.24, 0.96, 1.0], [0, 1, 1, 0]) == pytest.approx(0.14 + 0.24)
    assert m.ece([math.nan, 1.0], [0, 1]) == 0.0
    assert m.ece([], []) is None


def test_resampling_draws_whole_groups() -> None:
    groups = ["a", "a", "b", "c", "c", "c"]
    draws = list(resample(groups, 200, seed=0))
    for weights in draws:
        assert weights[0] == weights[1]
        assert weights[3] == weights[4] == weights[5]
        assert weights[0] + weights[2] + weights[3] == 3  # three groups drawn
    assert np.mean([w[2] for w in draws]) == pytest.approx(1, abs=0.2)
    assert all((a == b).all() for a, b in zip(draws, resample(groups, 200, seed=0), strict=True))
    assert not all((a == b).all() for a, b in zip(draws, resample(groups, 200, seed=1), strict=True))


def test_interval_is_as_wide_as_theory_says() -> None:
    # A share of 0.3 over 1,000 independent rows: 0.3 ± 1.96 · sqrt(0.3 · 0.7 / 1000) = 0.3 ± 0.0284.
    outcome = np.array([1.0] * 300 + [0.0] * 700)

    def share(weights: np.ndarray) -> float:
        return float((outcome * weights).sum() / weights.sum())

    limits = bootstrap({"share": share}, list(range(1000)), seed=0)["share"]
    assert limits is not None
    assert limits == pytest.approx((0.3 - 0.0284, 0.3 + 0.0284), abs=0.005)
    # The same rows in 100 groups of ten equal ones: sqrt(10) times as wide.
    wide = bootstrap({"share": share}, [i // 10 for i in range(1000)], seed=0)["share"]
    assert wide is not None
    assert (wide[1] - wide[0]) / (limits[1] - limits[0]) == pytest.approx(math.sqrt(10), rel=0.15)
    assert bootstrap({"share": share}, ["one"] * 1000)["share"] is None


def test_percentiles_need_nine_values_in_ten() -> None:
    assert percentiles([1.0] * 9 + [None]) == (1.0, 1.0)
    assert percentiles([1.0] * 8 + [None] * 2) is None
    assert percentiles([]) is None


def test_paired_difference_sees_what_two_intervals_hide() -> None:
    # b is right wherever a is, and on 2 rows in 100 more: every draw has difference ≤ 0, mean −0.02.
    a = np.array(([1.0] * 50 + [0.0] * 50) * 10)
    b = np.array(([1.0] * 52 + [0.0] * 48) * 10)

    def mean(values: np.ndarray) -> Any:
        return lambda weights: float((values * weights).sum() / weights.sum())

    result = paired_difference(mean(a), mean(b), list(range(1000)), seed=0)
    assert result["difference"] == pytest.approx(-0.02)
    # Standard error of the share of 2 %: sqrt(0.02 · 0.98 / 1000) = 0.0044.
    assert result["low"] == pytest.approx(-0.02 - 1.96 * 0.0044, abs=0.003)
    assert result["high"] == pytest.approx(-0.02 + 1.96 * 0.0044, abs=0.003)
    assert result["share_above_0"] == 0.0
    assert paired_difference(mean(a), mean(a), list(range(1000)))["share_above_0"] == 0  # equal is not above
    assert paired_difference(mean(a), mean(b), ["one"] * 1000)["low"] is None
    nothing = paired_difference(lambda _: None, mean(b), list(range(1000)))
    assert nothing == {"difference": None, "low": None, "high": None, "share_above_0": None}


def test_mean_of_parts_leaves_out_missing_ones() -> None:
    parts = [
        (np.array([0, 1]), lambda w: float(w.sum())),
        (np.array([2]), lambda w: float(w.sum())),
        (np.array([0]), lambda _: None),
    ]
    assert mean_of(parts)(np.array([1.0, 2.0, 5.0])) == pytest.approx((3 + 5) / 2)
    assert mean_of([(np.array([0]), lambda _: None)])(np.ones(1)) is None


def test_fact_score_by_hand() -> None:
    # 1 of 2 judged of 3 facts: ½ exp(1 − 10/3); 3 of 12: ¼, as no answer of ten facts or more is short.
    answers = [[True, None, False], [], [None], [True] * 3 + [False] * 9]
    assert m.fact_score(answers) == pytest.approx((math.exp(-7 / 3) / 2 + 0.25) / 2)
    assert m.fact_score(answers, gamma=0) == pytest.approx(0.375)
    assert m.fact_score([[], [None]]) is None


def test_detection_by_hand() -> None:
    """One of the three made-up answers is missed, one true one has no verdict; made-up ones are the shorter here."""
    gold, called = [True, False, True, False, True], [True, False, False, None, True]
    support, lengths = [0.1, 0.9, 0.5, 0.5, math.nan], [3, 7, 4, 6, 6]
    found = m.detection(gold, called, support, lengths)
    # Supports: 0.9 beats 0.1 and 0.5, 0.5 beats 0.1 and ties: 3.5 of 4. Lengths: 7 beats 3, 4, 6; 6 beats 3, 4, ties.
    assert found == pytest.approx(
        {"answer_accuracy": 3 / 5, "answer_f1": 4 / 5, "answer_auc": 3.5 / 4, "length_accuracy": 4 / 5,
         "length_auc": 5.5 / 6}
    )  # fmt: skip
    assert m.detection([False], [False], [1.0], [2])["answer_f1"] is None
