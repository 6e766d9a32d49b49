"""Accumulation against brute force, agreement against scikit-learn."""

import itertools

import numpy as np
import pytest

from annotators.evaluation import agreement as ag
from annotators.evaluation.agreement import Judged, accumulation, consistent, counts_of
from annotators.records import Fragment, SentenceAnnotation


def test_counts_of_one_answer() -> None:
    # F | T F T : the first, one after none (T), two after some (F, T)
    assert counts_of([False, True, False, True]).tolist() == [[1, 0], [1, 1], [2, 1]]
    assert counts_of([]).tolist() == [[0, 0]] * 3


@pytest.mark.parametrize(("n", "h"), [(n, h) for n in range(1, 7) for h in range(n + 1)])
def test_expected_counts_are_means_over_all_orders(n: int, h: int) -> None:
    orders = set(itertools.permutations([True] * h + [False] * (n - h)))
    mean = np.mean([counts_of(order) for order in orders], axis=0)  # all distinct orders are equally likely
    np.testing.assert_allclose(ag.expected_counts(n, h), mean, atol=1e-12)


def test_snowballing_differs_from_bad_answers() -> None:
    """Answers that are all wrong or all right: a difference of 1, and no effect of order."""
    found = accumulation([[True] * 3] * 20 + [[False] * 3] * 20, n_resamples=200)
    assert found["after_some"].value == 1.0
    assert found["after_none"].value == 0.0
    assert found["difference"].value == found["difference_if_shuffled"].value == 1.0
    # 20 of 40 first sentences: 0.5 ± 1.96 · sqrt(0.25 / 40) = 0.5 ± 0.155
    assert found["first"].interval == pytest.approx((0.345, 0.655), abs=0.06)
    assert found["effect_of_order"].value == 0.0
    # Answers whose wrong sentences all stand at the end: the order does it.
    # seen: after none 1/2 (F, T of F F T T), after some 1/1; shuffled, n=4, h=2: none (4−2)/3 = 2/3 with 1/2 wrong
    # → 3/4; some 3 − 2/3 = 7/3 with 2 − 1/2 − 1/2 = 1 wrong → 3/7
    ends = accumulation([[False, False, True, True]] * 10, n_resamples=100)
    assert ends["difference"].value == pytest.approx(1 - 1 / 2)
    assert ends["difference_if_shuffled"].value == pytest.approx(3 / 7 - 3 / 4)
    assert ends["effect_of_order"].value == pytest.approx(1 / 2 - 3 / 7 + 3 / 4)
    assert ends["after_none"].n == 20
    none = accumulation([[False, False]] * 3, n_resamples=50)
    assert none["after_some"].value is None
    assert none["difference"].value is None


def test_agreement_per_type_reference_and_correction() -> None:
    half = frozenset(range(10)), frozenset(range(5, 15))  # 5 of 10 and 10: F1 = 2·5/20 = 0.5
    assert ag.overlap(*half) == 0.5
    assert ag.overlap(frozenset(), frozenset()) == 1.0
    pairs = [
        (Judged("supported", half[0]), Judged("supported", half[1])),
        (Judged("supported", half[0]), Judged("contradictory", frozenset(), "x")),
        (Judged("contradictory", half[0], "a  b"), Judged("contradictory", half[0], "a b")),
        (Judged("unverifiable", None, "a"), Judged("contradictory", None, None)),
        (Judged("no_fact"), Judged("no_fact")),
    ]
    found = ag.agreement(pairs, ["1", "1", "2", "2", "3"], n_resamples=50)
    assert {name: (f.value, f.n) for name, f in found.items() if name != "kappa"} == {
        "type": (3 / 5, 5), "type:supported": (1.0, 1), "type:contradictory": (1 / 3, 3), "type:no_fact": (1.0, 1),
        "reference": (2 / 3, 3), "reference_overlap": (0.5, 3), "correction": (0.5, 2),  # overlaps 0.5, 0, 1
    }  # fmt: skip
    only = Judged("contradictory", frozenset(), ""), Judged("contradictory", frozenset(), None)  # one deletes it
    for pair in (only, only[::-1]):
        one = ag.agreement([pair], ["1"], n_resamples=2)["correction"]
        assert (one.value, one.n) == (0.0, 1)
    # labels agree 3/5; chance: supported 2·1, contradictory 1·3, no_fact 1·1 of 25 → 6/25
    assert found["kappa"].value == pytest.approx((3 / 5 - 6 / 25) / (1 - 6 / 25))
    assert ag.kappa(["a"], ["a"], np.ones(1)) is None
    assert ag.kappa(["a", "b", "a"], ["a", "b", "b"], np.array([1.0, 2.0, 0.0])) == 1


def test_samples_that_agree_by_hand():
    """Evidence at 0–10, 5–15 and 8–18: overlaps of half, a fifth, and 7 in 10, so the middle one is nearest to both."""

    def said(label, *places):
        fragments = tuple(Fragment("x" * (b - a), a, b) for a, b in places)
        return SentenceAnnotation("S.", 0, 2, "checked" if label else "failed", label, fragments=fragments)

    alike = [said("supported", place) for place in ((0, 10), (5, 15), (8, 18))]
    assert consistent([*alike, said("unverifiable")], 0.75) is alike[1]
    assert consistent([*alike, said("unverifiable")], 0.8) is None
    assert consistent([*alike, said(None)], 0.75) is alike[1]
    assert consistent([*alike, said(None)], 1.0) is None
    assert consistent([said(None)] * 2, 0.6) is None
    assert consistent(alike[:1] * 2, 1.0) is alike[0]
    assert consistent([*alike[:1] * 14, *[said("unverifiable")] * 11], 0.56) is alike[0]  # 0.56 · 25 > 14 in floats
