"""Refused records; the cascade, with one judge that is half sure, and one that is sure, fails or lacks the language."""

import math

import pytest

from annotators import load_annotator
from annotators.base import CascadeAnnotator, engine_in, engines_in, parts_of
from annotators.operating import Calibration, OperatingPoint
from annotators.records import SentenceAnnotation
from tests.helpers.standin import ExactAnnotator

RECORD = {"reference": "The bridge opened in 1931. It is grey.", "answer": "The bridge opened in 1931. It is blue. Oh!"}


class Doubtful(ExactAnnotator):
    """P(supported) is 0.8 where the words are there, else 0.4: sure of the first at a point of 0.7, never of others."""

    name, fingerprint = "doubtful", "doubtful-1"

    def _judge(self, sentence):
        found = super()._judge(sentence)
        if found.label in (None, "no_fact"):
            return found
        p = 0.8 if found.label == "supported" else 0.4
        scores = {"supported": p, "contradictory": (1 - p) / 2, "unverifiable": (1 - p) / 2, "no_fact": 0.0}
        return sentence.judged("checked", found.label, scores)


class Failing(ExactAnnotator):
    def _judge(self, sentence) -> SentenceAnnotation:
        return sentence.judged("failed", problems=("no reply",))


def doubtful(fingerprint: str = "doubtful-1", support_at: float = 0.7):
    point = OperatingPoint("test", flag_at=0.9, support_at=support_at, expected_rate=0.5, fitted_rate=0.5)
    made = Doubtful()
    made.fingerprint = fingerprint
    return made.calibrated(Calibration(fingerprint, 1.0, 0.0, point))


def test_only_unsure_sentences_go_on():
    second = ExactAnnotator()
    both = CascadeAnnotator(doubtful(), second)
    annotation = both.annotate(**RECORD)
    assert [s.label for s in annotation.sentences] == ["supported", "unverifiable", "no_fact"]
    assert second.sentences == 1  # the second of three
    assert annotation.sentences[0].scores["supported"] == pytest.approx(0.8)  # the first judge's own
    assert annotation.sentences[1].scores["unverifiable"] == 1.0
    assert annotation.annotator["name"] == "cascade:doubtful+exact"
    assert annotation.to_dict()["operating_point"]["name"] == "test"
    assert math.isclose(annotation.hallucination_rate, 0.5)


def test_a_failed_second_annotator_is_reported():
    found = CascadeAnnotator(doubtful(), Failing()).annotate(**RECORD).sentences[1]
    assert (found.status, found.label, found.problems) == ("failed", None, ("no reply",))


def test_the_first_doubt_stands_beside_a_second() -> None:
    found = CascadeAnnotator(doubtful(), doubtful("doubtful-2")).annotate(**RECORD).sentences[1]
    assert (found.status, found.label) == ("unsure", None)
    assert found.scores["supported"] == pytest.approx(0.4)


def test_fingerprints_cover_both_judges():
    prints = {CascadeAnnotator(doubtful(), second).fingerprint for second in (ExactAnnotator(), doubtful("2"))}
    assert len(prints) == 2


@pytest.mark.parametrize(("record", "message"), [
    (3, "record 0: expected a mapping"),
    ({"answer": "x"}, "record 0: expected 'reference' to be a string, got NoneType"),
    ({"reference": "x", "answer": 3}, "expected 'answer' to be a string, got int"),
    ({"reference": "x", "answer": "y", "question": 3}, "expected 'question' to be a string or absent, got int"),
])  # fmt: skip
def test_wrong_records_are_explained(record, message):
    with pytest.raises(ValueError, match=message):
        ExactAnnotator().annotate_batch([record])


@pytest.mark.parametrize("name", ["cascade:", "cascade:embedded", "cascade:+embedded", "cascade:embedded+"])
def test_names_hold_two_annotators(name):
    with pytest.raises(ValueError, match=r"expected cascade:FIRST\+SECOND"):
        load_annotator(name)
    assert parts_of("cascade:embedded+nli:a/b") == ["embedded", "nli:a/b"]
    with pytest.raises(ValueError, match="no cascade or ensemble in it"):
        parts_of("ensemble:min:a/b+ensemble:mean:c/d+e/f")


def test_the_engine_of_a_name() -> None:
    asked = "openai:m@http://127.0.0.1:1/v1"
    assert engine_in(f"generative:{asked}") == engine_in(f"cascade:embedded+generative:{asked}") == asked
    assert engine_in(f"ensemble:min:embedded+generative:{asked}+nli:a/b") == asked
    assert engines_in(f"ensemble:min:generative:vllm:a+generative:{asked}") == ["vllm:a", asked]
    assert engine_in("embedded") is engine_in("cascade:embedded+nli:a/b") is engine_in("ensemble:min:a/b+c/d") is None


def test_one_judge_is_no_cascade():
    """Also where `embedded-fast` stands in for `embedded`, or the first has thresholds of its own."""
    for second in (doubtful(), doubtful(support_at=0.75)):
        with pytest.raises(ValueError, match=r"expected two annotators, got 'doubtful' twice.*models get smollm2"):
            CascadeAnnotator(doubtful(), second)


@pytest.mark.parametrize("option", [{"preset": "anah-v1", "templates": "mine.yaml"}, {"units": True}])
def test_a_cascade_cuts_no_units(option):
    with pytest.raises(ValueError, match="expected no preset and no units"):
        load_annotator("cascade:no such thing+generative:openai:m@http://127.0.0.1:1/v1", **option)


def test_a_first_judge_without_point_is_refused():
    with pytest.raises(ValueError, match="expected a first annotator with an operating point"):
        CascadeAnnotator(ExactAnnotator(), ExactAnnotator())
