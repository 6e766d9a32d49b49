"""The aspects of the reward: values by hand, and what must hold for any labels."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotators.records import LABELS
from mitigate.rewards.aspects import (
    ASPECTS,
    DEFAULT_WEIGHTS,
    Judged,
    aspect_values,
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
VAGUE = Judged("supported", 10, value=0.25)


def test_factuality_by_hand():
    assert factuality([GOOD, GOOD, WRONG], REWARDS) == pytest.approx(1 / 3)  # (1 + 1 − 1) / 3
    assert factuality([GOOD, EMPTY, COPY, AGAIN, ASIDE, UNKNOWN], REWARDS) == 1.0
    assert factuality([EMPTY, COPY], REWARDS) == -1.0  # judged, nothing counts: the floor
    assert factuality([], REWARDS) == -1.0  # nothing said
    assert factuality([UNKNOWN, UNKNOWN], REWARDS) is None
    assert factuality([VAGUE], REWARDS) == -0.5  # a quarter of a sentence at 1, three quarters lacking at −1
    assert factuality([VAGUE, VAGUE], REWARDS) == 0.0  # (2 · 0.25 − 0.5) / 1
    assert factuality([VAGUE, WRONG], REWARDS) == pytest.approx(-0.6)  # (0.25 − 1) / 1.25, nothing lacks
    assert factuality([GOOD, VAGUE], REWARDS) == 1.0
    unsure = Judged(None, 10, support=0.75)  # three quarters of a supported sentence, one of an unverifiable one
    assert factuality([unsure], REWARDS) == sentence_reward(unsure, REWARDS) == 0.5
    assert factuality([unsure, WRONG], REWARDS) == pytest.approx(-0.25)  # (0.75 − 0.25 − 1) / 2
    assert factuality([replace(unsure, copied=True)], REWARDS) == -1.0  # (−0.25 − 0.75) / 1: the rest lacks
    soft = check_label_rewards({"unverifiable": -0.5, "no_fact": -0.2})
    assert sentence_reward(replace(unsure, value=0.5), soft) == 0.125  # 0.75 · 0.5 − 0.25 · 1, the worse kind
    lenient = check_label_rewards({"unverifiable": None})
    assert factuality([replace(unsure, support=0.01)] * 9, lenient) < -0.9  # doubt is not free
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
    assert relevance([VAGUE, VAGUE, ASIDE]) == pytest.approx(-1 / 3)  # (0.5 − 1) / 1.5
    assert relevance([VAGUE]) == 0.25  # a little credit is not all that there can be
    assert relevance([]) == 0.0
    # (2 · 1 + 1 · 0.5) / 4 of the first point, nothing of the second; a point without specifics is no point
    points = [{"#1931": 2.0, "open": 1.0, "bridg": 1.0}, {"finch": 2.0}, {}]
    assert completeness({"#1931": 1.0, "open": 0.5, "#7": 1.0}, points) == pytest.approx(0.3125)
    assert completeness({}, points) == completeness({"a": 1.0}, [{}]) == 0.0
    assert length([GOOD, GOOD, COPY], 4, 40) == 0.5
    assert length([VAGUE] * 4, 4, 40) == 0.25
    assert length([GOOD] * 5, 4, 40) == 0.75  # 4 / 4 − (50 − 40) / 40
    assert length([EMPTY] * 100, 4, 40) == -1.0
    assert length([GOOD, GOOD, AGAIN], 4, 40) == 0.25  # (2 − 1) / 4
    assert length([GOOD, *[AGAIN] * 9], 4, 1000) == -1.0  # (1 − 9) / 4 is below the end


def test_sentence_rewards_and_their_weighted_mean():
    assert [sentence_reward(s, REWARDS) for s in (GOOD, VAGUE, WRONG, OPEN)] == [1.0, 0.25, -1.0, -1.0]
    nothing = (EMPTY, COPY, AGAIN, ASIDE, UNKNOWN, replace(GOOD, value=0.0))
    assert {sentence_reward(s, REWARDS) for s in nothing} == {None}
    values = {"factuality": 1.0, "relevance": -1.0, "completeness": 0.5, "length": 0.0}
    assert total(values, {"factuality": 1.0, "completeness": 0.5}) == pytest.approx(1.25 / 1.5)


flags_ = {name: st.booleans() for name in ("relevant", "repeat", "copied")}
sentences_ = st.builds(
    Judged, label=st.sampled_from([*LABELS, None]), words=st.integers(1, 30), value=st.floats(0, 1), **flags_
)
answers_ = st.lists(sentences_, max_size=7)
weights_ = st.dictionaries(st.sampled_from(ASPECTS), st.floats(0.01, 5), min_size=1)
stated_ = st.frozensets(st.sampled_from("abc"))


@st.composite
def rewards_(draw):
    top = draw(st.floats(-1, 2))
    below = st.one_of(st.none(), st.floats(-2, 2).map(lambda x: min(x, top)))
    drawn = {"contradictory": min(draw(st.floats(-2, 2)), top), "unverifiable": draw(below), "no_fact": draw(below)}
    return check_label_rewards({"supported": top, **drawn})


def score(sentences, rewards, weights, rows, max_words=10_000):
    """The total of an answer; rows are the specifics that its sentences state."""
    stated = {one: 1.0 for s, row in zip(sentences, rows, strict=True) if s.credited for one in row}
    complete = completeness(stated, [{"a": 1.0, "b": 2.0}, {"c": 1.0}])
    values = aspect_values(sentences, rewards, complete, target_sentences=4, max_words=max_words)
    return None if values is None else total(values, weights)


@st.composite
def cases_(draw):
    sentences = draw(answers_)
    rows = [draw(stated_) for _ in sentences]
    place = draw(st.integers(0, len(sentences)))
    return sentences, rows, place, draw(stated_), draw(rewards_()), draw(weights_)


def with_one_more(case, sentence):
    sentences, rows, place, row, rewards, weights = case
    more = [*sentences[:place], sentence, *sentences[place:]]
    return more, rewards, weights, [*rows[:place], row, *rows[place:]]


@given(cases_(), st.floats(0.01, 1))
def test_a_credited_sentence_never_lowers_the_total(case, value):
    sentences, rows, _, _, rewards, weights = case
    before = score(sentences, rewards, weights, rows)
    after = score(*with_one_more(case, replace(GOOD, value=value)))
    assert after is not None
    assert before is None or after >= before - 1e-9


@given(cases_(), st.integers(1, 200))
def test_filler_repeats_and_copies_never_raise_the_total(case, max_words):
    sentences, rows, place, _, rewards, weights = case
    before = score(sentences, rewards, weights, rows, max_words)
    useless = [EMPTY, replace(EMPTY, relevant=False), COPY, AGAIN, ASIDE, replace(GOOD, value=0.0)]
    useless += [replace(s, repeat=True) for s in sentences if s.label is not None]
    for sentence in useless:
        more, *rest = with_one_more(case, sentence)
        after = score(more, *rest, max_words)
        assert before is None or after <= before + 1e-9, (sentence, place)


@given(cases_(), st.sampled_from(["relevance", "length"]))
def test_a_repeat_always_costs(case, used):
    """Where relevance or length is in use, unless that aspect is at its lower end already."""
    sentences, rows, _, _, rewards, weights = case
    values = aspect_values(sentences, rewards, 0.0, target_sentences=4, max_words=10_000)
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
    attempt = score([GOOD, WRONG], REWARDS, DEFAULT_WEIGHTS, [(), ()])
    assert attempt == pytest.approx(0.375 / 1.9)
    for answer in ([], [EMPTY] * 4, [COPY] * 4, [ASIDE] * 4, [WRONG], [VAGUE]):
        assert score(answer, REWARDS, DEFAULT_WEIGHTS, ["a"] * len(answer)) < attempt
