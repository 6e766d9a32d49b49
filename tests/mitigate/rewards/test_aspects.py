"""The aspects of the reward: values by hand, and what must hold for any labels."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotators.records import LABELS
from mitigate.rewards.aspects import (
    ASPECTS,
    DEFAULT_WEIGHTS,
    Judged,
    aspect_values,
    check_aspects,
    check_label_rewards,
    completeness,
    factuality,
    length,
    relevance,
    sentence_reward,
    total,
)

REWARDS = check_label_rewards({})
GOOD = Judged("supported", 10)
WRONG = Judged("contradictory", 10)
OPEN = Judged("unverifiable", 10)
EMPTY = Judged("no_fact", 5)
COPY = Judged("supported", 10, copied=True)
AGAIN = Judged("supported", 10, repeat=True)
ASIDE = Judged("supported", 10, relevant=False)
UNKNOWN = Judged(None, 10)


def test_factuality_by_hand():
    assert factuality([GOOD, GOOD, WRONG], REWARDS) == pytest.approx(1 / 3)  # (1 + 1 − 1) / 3
    assert factuality([GOOD, EMPTY, COPY, AGAIN, ASIDE, UNKNOWN], REWARDS) == 1.0
    assert factuality([EMPTY, COPY], REWARDS) == -1.0  # judged, nothing counts: the floor
    assert factuality([], REWARDS) == -1.0  # nothing said
    assert factuality([UNKNOWN, UNKNOWN], REWARDS) is None
    soft = check_label_rewards({"unverifiable": -0.5, "no_fact": -0.2})
    assert factuality([GOOD, OPEN], soft) == 0.25  # (1 − 0.5) / 2
    assert factuality([GOOD, OPEN, EMPTY], soft) == pytest.approx(0.1)  # (1 − 0.5 − 0.2) / 3
    assert factuality([WRONG, EMPTY], soft) == -1.0  # −0.2 would lift it, so it is left out


def test_a_repeated_hallucination_counts_only_downwards():
    soft = check_label_rewards({"unverifiable": -0.5})
    again = replace(OPEN, repeat=True)
    assert factuality([WRONG, OPEN, again], soft) == -0.75  # (−1 − 0.5) / 2; with another −0.5 it would be −0.67
    assert factuality([GOOD, OPEN, again], soft) == pytest.approx(0.0)  # (1 − 0.5 − 0.5) / 3


def test_relevance_completeness_length_by_hand():
    assert relevance([GOOD, GOOD, AGAIN, COPY, EMPTY]) == pytest.approx(1 / 3)  # (2 − 1) / 3
    assert relevance([COPY, EMPTY]) == 0.0
    # Points: best credited cosines 0.8 and 0.55, the 1.0 belongs to a sentence without credit: (1 + 0.5) / 2
    similarity = np.array([[0.8, 0.1], [0.2, 0.55], [1.0, 1.0]])
    assert completeness(similarity, [True, True, False], 0.3, 0.8) == pytest.approx(0.75)
    assert completeness(similarity, [False, False, False], 0.3, 0.8) == 0.0
    assert length([GOOD, GOOD, COPY], 4, 40) == 0.5
    assert length([GOOD] * 5, 4, 40) == 0.75  # 4 / 4 − (50 − 40) / 40
    assert length([EMPTY] * 100, 4, 40) == -1.0
    assert length([GOOD, GOOD, AGAIN], 4, 40) == 0.25  # (2 − 1) / 4
    assert length([GOOD, *[AGAIN] * 9], 4, 1000) == -1.0  # (1 − 9) / 4 is below the end


def test_sentence_rewards_and_their_weighted_mean():
    assert [sentence_reward(s, REWARDS) for s in (GOOD, WRONG, OPEN, EMPTY, COPY, AGAIN, ASIDE, UNKNOWN)] == [
        1.0, -1.0, -1.0, None, None, None, None, None,
    ]  # fmt: skip
    values = {"factuality": 1.0, "relevance": -1.0, "completeness": 0.5, "length": 0.0}
    assert total(values, {"factuality": 1.0, "completeness": 0.5}) == pytest.approx(1.25 / 1.5)


flags_ = {name: st.booleans() for name in ("relevant", "repeat", "copied")}
sentences_ = st.builds(Judged, label=st.sampled_from([*LABELS, None]), words=st.integers(1, 30), **flags_)
answers_ = st.lists(sentences_, max_size=7)
weights_ = st.dictionaries(st.sampled_from(ASPECTS), st.floats(0.01, 5), min_size=1)
cosines_ = st.lists(st.floats(-1, 1), min_size=3, max_size=3)


@st.composite
def rewards_(draw):
    top = draw(st.floats(-1, 2))
    below = st.one_of(st.none(), st.floats(-2, 2).map(lambda x: min(x, top)))
    drawn = {"contradictory": min(draw(st.floats(-2, 2)), top), "unverifiable": draw(below), "no_fact": draw(below)}
    return check_label_rewards({"supported": top, **drawn})


def score(sentences, rewards, weights, rows, max_words=10_000):
    """The total of an answer; rows are the cosines of its sentences with three points."""
    similarity = np.array(rows, dtype=float).reshape(len(sentences), 3)
    values = aspect_values(sentences, rewards, similarity, target_sentences=4, max_words=max_words)
    return None if values is None else total(values, check_aspects(weights))


@st.composite
def cases_(draw):
    sentences = draw(answers_)
    rows = [draw(cosines_) for _ in sentences]
    place = draw(st.integers(0, len(sentences)))
    return sentences, rows, place, draw(cosines_), draw(rewards_()), draw(weights_)


def with_one_more(case, sentence):
    sentences, rows, place, row, rewards, weights = case
    more = [*sentences[:place], sentence, *sentences[place:]]
    return more, rewards, weights, [*rows[:place], row, *rows[place:]]


@given(cases_())
def test_a_credited_sentence_never_lowers_the_total(case):
    sentences, rows, _, _, rewards, weights = case
    before = score(sentences, rewards, weights, rows)
    after = score(*with_one_more(case, GOOD))
    assert after is not None
    assert before is None or after >= before - 1e-9


@given(cases_(), st.integers(1, 200))
def test_filler_repeats_and_copies_never_raise_the_total(case, max_words):
    sentences, rows, place, _, rewards, weights = case
    before = score(sentences, rewards, weights, rows, max_words)
    useless = [EMPTY, replace(EMPTY, relevant=False), COPY, AGAIN, ASIDE]
    useless += [replace(s, repeat=True) for s in sentences if s.label is not None]
    for sentence in useless:
        more, *rest = with_one_more(case, sentence)
        after = score(more, *rest, max_words)
        assert before is None or after <= before + 1e-9, (sentence, place)


@given(cases_(), st.sampled_from(["relevance", "length"]))
def test_a_repeat_always_costs(case, used):
    """Where relevance or length is in use, unless that aspect is at its lower end already."""
    sentences, rows, _, _, rewards, weights = case
    values = aspect_values(sentences, rewards, None, target_sentences=4, max_words=10_000)
    before = score(sentences, rewards, weights | {used: 1.0}, rows)
    more, rewards, weights, rows = with_one_more(case, AGAIN)
    after = score(more, rewards, weights | {used: 1.0}, rows)
    assert before is None or after < before or values[used] == -1.0


@given(cases_())
def test_the_total_is_finite_and_in_range(case):
    sentences, rows, _, _, rewards, weights = case
    value = score(sentences, rewards, weights, rows)
    ends = [r for r in rewards.values() if r is not None] + [-1.0, 1.0]
    assert value is None or (math.isfinite(value) and min(ends) - 1e-9 <= value <= max(ends) + 1e-9)


def test_no_useless_answer_beats_a_half_right_one():
    """Half right: F = 0, R = 1, C = 0, L = 0.25: (0 + 0.3 + 0 + 0.075) / 1.9; the others have F = −1 and no credit."""
    nothing = [[0.0] * 3]
    attempt = score([GOOD, WRONG], REWARDS, DEFAULT_WEIGHTS, nothing * 2)
    assert attempt == pytest.approx(0.375 / 1.9)
    for answer in ([], [EMPTY] * 4, [COPY] * 4, [ASIDE] * 4, [WRONG]):
        assert score(answer, REWARDS, DEFAULT_WEIGHTS, [[1.0] * 3] * len(answer)) < attempt


@pytest.mark.parametrize(("check", "given", "words"), [
    (check_label_rewards, {"suported": 1}, "unknown label 'suported'; did you mean 'supported'"),
    (check_label_rewards, {"no_fact": 2.0}, "'supported' to be worth the most"),
    (check_label_rewards, {"supported": None}, "'supported' to be worth the most"),
    (check_label_rewards, {"contradictory": math.nan}, "finite number or None for 'contradictory', got nan"),
    (check_label_rewards, {"contradictory": "bad"}, "finite number or None for 'contradictory', got 'bad'"),
    (check_label_rewards, {"contradictory": None, "unverifiable": None}, "both are None"),
    (check_aspects, {}, "at least one"),
    (check_aspects, {"style": 1}, "unknown aspect 'style'"),
    (check_aspects, {"length": 0}, "positive weight for 'length', got 0"),
])  # fmt: skip
def test_wrong_label_rewards_and_aspects_are_refused(check, given, words):
    with pytest.raises(ValueError, match=words):
        check(given)
