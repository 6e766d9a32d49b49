"""Several judges as one: each rule by hand, and what an ensemble reads and is called."""

from dataclasses import replace

import pytest

from annotators import load_annotator
from annotators.base import EnsembleAnnotator, joined, parts_of, verdict_of
from annotators.records import Edit, SentenceAnnotation, Span
from mitigate.rewards.reward import SentenceReward
from tests.helpers.standin import ExactAnnotator

LABELS = {"s": "supported", "c": "contradictory", "u": "unverifiable", "n": "no_fact"}


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
    assert parts_of("ensemble:vote:embedded + nli:a/b") == ["embedded", "nli:a/b"]
    for wrong in ("ensemble:embedded+a/b", "ensemble:min:embedded", "ensemble:min:embedded+cascade:a+b"):
        with pytest.raises(ValueError, match="expected ensemble:HOW:FIRST"):
            parts_of(wrong)
    with pytest.raises(ValueError, match="expected two annotators or more, joined by min, mean, vote, got 1 by 'min'"):
        EnsembleAnnotator([Kind()], "min")


def test_one_judge_is_no_ensemble():
    """Also where `embedded-fast` stands in for `embedded`."""
    with pytest.raises(ValueError, match=r"expected two annotators or more.*, got 'exact' twice.*models get smollm2"):
        EnsembleAnnotator([ExactAnnotator(), ExactAnnotator()], "min")
    with pytest.raises(ValueError, match="got embedded-fast twice"):
        load_annotator("ensemble:min:embedded-fast+a/b+embedded-fast")


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
