"""Refused records and names; a cascade and ensembles of judges that are half sure, sure or fail."""

import json
import math
from dataclasses import replace

import pytest

from annotators import load_annotator
from annotators.base import CascadeAnnotator, EnsembleAnnotator, engine_in, engines_in, joined, parts_of, verdict_of
from annotators.operating import Calibration, OperatingPoint
from annotators.records import Annotation, Edit, Fragment, SentenceAnnotation, Span
from mitigate.rewards.reward import SentenceReward
from tests.helpers.standin import ExactAnnotator

RECORD = {"reference": "The bridge opened in 1931. It is grey.", "answer": "The bridge opened in 1931. It is blue. Oh!"}
LABELS = {"s": "supported", "c": "contradictory", "u": "unverifiable", "n": "no_fact"}
ASKED = "openai:m@http://127.0.0.1:1/v1"


class Doubtful(ExactAnnotator):
    """P(supported) is 0.8 where the words are there, else 0.4: sure of the first at a point of 0.7, never of others."""

    name = "doubtful"

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


@pytest.mark.parametrize(("record", "message"), [
    (3, "record 0: expected a mapping"),
    ({"answer": "x"}, "record 0: expected 'reference' to be a string, got NoneType"),
    ({"reference": "x", "answer": 3}, "expected 'answer' to be a string, got int"),
    ({"reference": "x", "answer": "y", "question": 3}, "expected 'question' to be a string or absent, got int"),
])  # fmt: skip
def test_wrong_records_are_explained(record, message):
    with pytest.raises(ValueError, match=message):
        ExactAnnotator().annotate_batch([record])


@pytest.mark.parametrize("head", ["<think>\nIt is blue? It is red.\n</think>\n\n", "It is red.</think> "])
def test_thinking_before_an_answer_is_not_judged(head):
    class Sees(ExactAnnotator):
        def judge(self, sentences):
            assert {s.answer for s in sentences} == {" " * len(head) + RECORD["answer"]}
            return super().judge(sentences)

    plain = ExactAnnotator().annotate(**RECORD)
    found = Sees().annotate(**RECORD | {"answer": head + RECORD["answer"]})
    assert [replace(s, start=s.start - len(head), end=s.end - len(head)) for s in found.sentences] == [*plain.sentences]
    assert all(found.record["answer"][s.start : s.end] == s.text for s in found.sentences)
    assert ExactAnnotator().annotate(**RECORD | {"answer": "<think>It is blue."}).sentences == ()


def test_list_markers_are_left_to_those_that_read_them():
    class Read(ExactAnnotator):
        list_marks = True

        def judge(self, sentences):
            self.seen = [s.text for s in sentences]
            return super().judge(sentences)

    class Bare(Read):
        list_marks = False
        name = fingerprint = "bare"

    answer = "1. It is grey.\n**2.** It is blue.\n- 40 of it.\n(a) Oh it is!"
    for make in (lambda a: a, lambda a: EnsembleAnnotator([a, doubtful()], "min")):
        for one, seen in ((Read(), ["1. It is grey.", "**2.** It is blue.", "- 40 of it.", "(a) Oh it is!"]),
                          (Bare(), ["It is grey.", "It is blue.", "- 40 of it.", "Oh it is!"])):  # fmt: skip
            found = make(one).annotate(reference=RECORD["reference"], answer=answer)
            assert one.seen == seen
            assert [answer[s.start : s.end] for s in found.sentences] == [s.text for s in found.sentences]
            assert found.sentences[0].text == "1. It is grey."


def test_only_unsure_sentences_go_on():
    second = ExactAnnotator()
    both = CascadeAnnotator(doubtful(), second)
    annotation = both.annotate(**RECORD)
    assert [s.label for s in annotation.sentences] == ["supported", "unverifiable", "no_fact"]
    assert second.sentences == 1  # the second of three
    assert annotation.sentences[0].scores["supported"] == pytest.approx(0.8)  # the first judge's own
    assert annotation.sentences[1].scores["unverifiable"] == 1.0
    assert annotation.annotator["name"] == "cascade:doubtful+exact"
    point = annotation.to_dict()["operating_point"]
    assert (point["name"], point["second"]) == ("test", None)
    twice = CascadeAnnotator(doubtful(), doubtful("3", support_at=0.3)).annotate(**RECORD)
    assert twice.operating_point["second"]["support_at"] == 0.3
    assert twice.sentences[1].label == "supported"  # by that
    assert math.isclose(annotation.hallucination_rate, 0.5)
    others = CascadeAnnotator(doubtful(), doubtful("2")), CascadeAnnotator(doubtful("2"), ExactAnnotator())
    assert len({one.fingerprint for one in (both, *others)}) == 3


def test_a_failed_second_annotator_is_reported_a_doubtful_one_is_not():
    found = CascadeAnnotator(doubtful(), Failing()).annotate(**RECORD).sentences[1]
    assert (found.status, found.label, found.problems) == ("failed", None, ("no reply",))
    found = CascadeAnnotator(doubtful(), doubtful("doubtful-2")).annotate(**RECORD).sentences[1]
    assert (found.status, found.label) == ("unsure", None)
    assert found.scores["supported"] == pytest.approx(0.4)


def found(one):
    """A letter is a label, a number a doubt, "?" no judgement, "!" a failure."""
    if isinstance(one, float):
        scores = {"supported": one, "contradictory": 0.0, "unverifiable": 1 - one, "no_fact": 0.0}
        return SentenceAnnotation("x", 0, 1, "unsure", None, scores)
    status = {"?": "too_long", "!": "failed"}.get(one, "checked")
    return SentenceAnnotation("x", 0, 1, status, LABELS.get(one))


@pytest.mark.parametrize(("judges", "lowest", "voted", "mean"), [
    ("ssc", "c", "s", 2 / 3),
    (["s", 0.4, "s"], 0.4, "s", 0.8),  # (1 + 0.4 + 1) / 3
    ("scn", "c", "c", 0.5),  # one each: the lowest; the mean is over those that find a fact
    ("uc", "u", "u", "u"),
    ("s?", "s", "s", "s"),  # what one can't judge is left to the other
    ("nns", "n", "n", "n"),
    ("sn", "n", "n", "s"),  # no majority finds none
    ("cn", "c", "c", "c"),
    ([0.2, 0.6], 0.2, 0.2, 0.4),
    ("s!", None, None, None),
    ("??", None, None, None),
])  # fmt: skip
def test_rules_by_hand(judges, lowest, voted, mean):
    for how, want in (("min", lowest), ("vote", voted), ("mean", mean)):
        got = verdict_of(joined([found(one) for one in judges], how))
        assert got == (pytest.approx(want) if isinstance(want, float) else LABELS.get(want))


def test_unsure_mean_keeps_nothing_of_one_judge():
    """Marks, correction and problems belong to a sentence that is flagged."""
    flagged = replace(found("c"), spans=(Span(0, 1),), correction=(Edit("a", "b", 0, 1),), problems=("x",))
    one = joined([found("s"), flagged], "mean")
    assert (one.status, one.spans, one.correction, one.problems) == ("unsure", None, (), ())
    assert joined([found("n"), flagged], "mean") == flagged


def test_ensemble_is_an_annotator():
    class Kind(ExactAnnotator):
        fingerprint = "kind-1"

        def label(self, *_):
            return "supported", -1, ()

    both = EnsembleAnnotator([Kind(), ExactAnnotator()], "min")
    score = {}
    for judge in (Kind(), both):
        reward = SentenceReward(judge, aspects={"factuality": 1}, copy_share=None)
        score[judge.name] = float(reward(completions=["It opened in 1955."], reference=["It opened in 1931."])[0])
    assert score == {"exact": pytest.approx(-0.6), "ensemble:min:exact+exact": -1.0}
    assert both.fingerprint != EnsembleAnnotator(both.asks, "vote").fingerprint


def test_one_judge_is_not_several():
    """Also where `embedded-fast` stands in for `embedded`, or the first has thresholds of its own."""
    for second in (doubtful(), doubtful(support_at=0.75)):
        with pytest.raises(ValueError, match=r"expected two annotators, got 'doubtful' twice.*models get smollm2"):
            CascadeAnnotator(doubtful(), second)
    with pytest.raises(ValueError, match=r"expected two annotators or more.*, got 'exact' twice.*models get smollm2"):
        EnsembleAnnotator([ExactAnnotator(), ExactAnnotator()], "min")
    with pytest.raises(ValueError, match="expected two annotators or more, joined by min, mean, vote, got 1 by 'min'"):
        EnsembleAnnotator([ExactAnnotator()], "min")
    with pytest.raises(ValueError, match="expected a first annotator with an operating point"):
        CascadeAnnotator(ExactAnnotator(), ExactAnnotator())


@pytest.mark.parametrize(("name", "message"), [
    *((f"cascade:{rest}", r"expected cascade:FIRST\+SECOND") for rest in ("", "embedded", "+embedded", "embedded+")),
    *((f"ensemble:{rest}", "expected ensemble:HOW:FIRST.*no cascade or ensemble in it") for rest in (
        "embedded+a/b", "min:embedded", "min:embedded+cascade:a+b", "min:a/b+ensemble:mean:c/d+e/f")),
    ("ensemble:min:embedded-fast+a/b+embedded-fast", "got embedded-fast twice"),
])  # fmt: skip
def test_names_hold_two_annotators(name, message):
    with pytest.raises(ValueError, match=message):
        load_annotator(name)


def test_parts_and_engines_of_a_name() -> None:
    assert (
        parts_of("cascade:embedded+nli:a/b") == parts_of("ensemble:vote:embedded + nli:a/b") == ["embedded", "nli:a/b"]
    )
    assert engine_in(f"generative:{ASKED}") == engine_in(f"cascade:embedded+generative:{ASKED}") == ASKED
    assert engine_in(f"ensemble:min:embedded+generative:{ASKED}+nli:a/b") == ASKED
    assert engines_in(f"ensemble:min:generative:vllm:a+generative:{ASKED}") == ["vllm:a", ASKED]
    assert engine_in("embedded") is engine_in("cascade:embedded+nli:a/b") is engine_in("ensemble:min:a/b+c/d") is None


@pytest.mark.parametrize("option", [{"preset": "anah-v1", "templates": "mine.yaml"}, {"units": True}])
def test_a_cascade_cuts_no_units(option):
    with pytest.raises(ValueError, match="expected no preset and no units"):
        load_annotator(f"cascade:no such thing+generative:{ASKED}", **option)


def test_names_of_ensembles_load_everywhere(monkeypatch):
    asked = []

    def load(name="embedded", **options):
        asked.append((name, {key: value for key, value in options.items() if value is not None}))
        one = ExactAnnotator()
        one.fingerprint = name
        return one

    real = load_annotator.__wrapped__
    monkeypatch.setitem(real.__globals__, "load_annotator", load)
    judge = real("ensemble:mean:a/b+generative:openai:m", expected_rate=0.2, schema=3, dtype="float32")
    assert isinstance(judge, EnsembleAnnotator)
    assert asked == [
        ("a/b", {"dtype": "float32", "expected_rate": 0.2}),
        ("generative:openai:m", {"dtype": "float32", "schema": 3}),
    ]


@pytest.mark.parametrize("spans", [None, (), (Span(2, 5), Span(7, 9))])
def test_a_judgement_is_read_back_as_it_was_written(spans):
    scores = dict(zip(LABELS.values(), (0.1, 0.6, 0.2, 0.1), strict=True))
    whole = SentenceAnnotation(
        "It is blue.", 28, 39, "checked", "contradictory", scores,
        (Fragment("It is grey.", 27, 38), Fragment("opened in 1931", 11, 25, 0.8, "opened 1931")),
        (Edit("blue", "grey", 34, 38), Edit("It", "", 28, 30)), spans, ("It is red.",), ("no type", "two types"),
    )  # fmt: skip
    bare = SentenceAnnotation("Oh!", 40, 43, "failed", spans=spans)
    for one in (whole, bare):
        assert SentenceAnnotation.from_dict(json.loads(json.dumps(one.to_dict()))) == one


def test_few_judged_sentences_are_no_rate():
    failed, good = SentenceAnnotation("a", 0, 1, "failed"), SentenceAnnotation("b", 1, 2, "checked", "supported")
    for sentences, rate, checked in (((failed, good), 0.0, 1 / 2), ((failed, failed, good), None, 1 / 3)):
        found = Annotation({}, sentences)
        assert (found.hallucination_rate, found.coverage) == (rate, checked)
