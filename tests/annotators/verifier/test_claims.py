"""Sentences that state nothing: told by rule, facts never among them, whatever they begin with."""

from __future__ import annotations

import pytest

from annotators import Annotator, load_annotator
from annotators.records import HALLUCINATED
from annotators.text.normalise import clean
from annotators.verifier.claims import claims_nothing
from tests.helpers.small_talk import FACTS, QUESTION, REFERENCE, read_suite

SUITE = read_suite()
ENGLISH = [row for row in SUITE if row["lang"] == "en"]


@pytest.fixture(scope="module")
def annotator() -> Annotator:
    return load_annotator("embedded")


def test_the_suite_is_large_enough_and_no_sentence_is_there_twice() -> None:
    talk = [row for row in ENGLISH if row["kind"] not in FACTS]
    assert len(talk) >= 120
    assert len(ENGLISH) - len(talk) >= 60
    assert len({row["sentence"] for row in SUITE}) == len(SUITE)


def test_no_fact_is_swallowed() -> None:
    facts = [row["sentence"] for row in SUITE if row["kind"] in FACTS]
    assert [s for s in facts if claims_nothing(clean(s)[0])] == []


def test_nearly_all_small_talk_is_told_by_rule() -> None:
    talk = [row["sentence"] for row in SUITE if row["kind"] not in FACTS and row["part"] != "later"]
    missed = [s for s in talk if not claims_nothing(clean(s)[0])]
    assert len(missed) <= 3, missed


@pytest.mark.parametrize(
    "sentence",
    [
        "no",  # the answer to a question
        "Yes, he is.",
        "It is.",
        "He could not answer the question.",
        "**Ulm**",
        "We will never know what happened to the crew of the Mary Celeste.",
        "This list contains 12 buildings.",
        "What did you think of the score of 92/100?",
        "Can vitamin C protect against the flu?",
        "The answer is 42.",
        "I have three children.",
        "Step 3 takes 20 minutes.",
        "It is not clear whether coffee causes cancer.",
    ],
)
def test_left_to_the_annotator(sentence: str) -> None:
    assert not claims_nothing(sentence)


def test_the_annotator_calls_no_small_talk_hallucinated_and_judges_every_fact(annotator: Annotator) -> None:
    rows = [row for row in ENGLISH if row["part"] != "later"]
    judged = annotator.predict(
        [{"sentence": row["sentence"], "reference": REFERENCE["en"], "question": QUESTION["en"]} for row in rows]
    )
    for row, sentence in zip(rows, judged, strict=True):
        if row["kind"] in FACTS:
            assert sentence.label != "no_fact", row["sentence"]
        else:
            assert sentence.label not in HALLUCINATED, row["sentence"]


def test_a_long_text_takes_no_long_time() -> None:
    for text in ("I cannot " * 3000, "a, " * 3000, "the text " * 3000, "我不知道" * 3000, "(" * 9000):
        claims_nothing(text + "Einstein was born in 1902.")
