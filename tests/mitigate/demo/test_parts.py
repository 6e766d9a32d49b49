"""The view of an annotated answer without a browser: texts are kept whole and are never markup."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from annotators.operating import FILE, Calibration, OperatingPoint
from annotators.verifier.annotator import SHIPPED
from mitigate.demo.parts import annotated_view, measured
from tests.helpers.demo_parts import ANSWER
from tests.helpers.report_cases import Page, record_of, sentence
from tests.helpers.rule_annotator import RuleAnnotator

MARKS = st.sampled_from("ab <>&\"'`${}\n\r\t\u202e\u2066\u200f文。.\ufeff\u2028=/")
HOSTILE = st.text(alphabet=MARKS, min_size=1, max_size=40)


@given(HOSTILE, st.data())
def test_texts_are_shown_whole_and_never_as_markup(text: str, data: Any) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pairs = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False) if a < b]
    drawn = data.draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4))
    fragments = [{"start": a, "end": b, "text": text[a:b]} for a, b in drawn if a < b <= len(text)]
    sentences = [sentence(text, a, b, fragments=fragments, spans=[{"start": a, "end": b}]) for a, b in pairs]
    page = Page(annotated_view({"answer": text, "reference": text, "sentences": sentences, "annotator": {}}, run="x"))
    assert (page.texts("answer"), page.texts("reference")) == ([text], [text] if text.strip() else [])
    assert page.texts("s") == [text[a:b] for a, b in pairs]
    assert not page.tags & {"script", "img", "a", "iframe", "style", "input"}
    assert not [value for _, value in page.attributes if "javascript" in (value or "") or "<" in (value or "")]


def test_waiting_sentences_are_shown_and_stopped_ones_unchecked() -> None:
    record = {"answer": ANSWER, "reference": "", "sentences": [sentence(ANSWER, 0, 27)], "annotator": {}}
    page = annotated_view(record, [(28, 50), (51, 74)], run="r")
    assert (Page(page).texts("answer"), page.count('class="s waiting"')) == ([ANSWER], 2)
    assert "1 of 3 judged so far" in page
    page = annotated_view(record, [(28, 50), (51, 74)], run="r", stopped=True)
    assert page.count('class="s not_checked"') == 2
    assert "2 sentences were not checked:</b> 2 because it was stopped" in page


def test_measured_reliability_is_said_where_it_holds() -> None:
    shipped = Calibration.load(SHIPPED["embedded"] / FILE)
    table = {"precision_at_0.15": 0.46, "false_flagged": 0.5, "false_supported": 0.1, "true_supported": 0.44}
    report = {"n": 60, "table": {name: {"value": value} for name, value in table.items()}}
    point = OperatingPoint("default", 0.25, 0.93, 0.15)  # the name of what `mitigate calibrate` writes to default.json
    judge = RuleAnnotator().calibrated(Calibration(RuleAnnotator().fingerprint, 1.0, 0.0, point, report))
    judge.name = "embedded"
    told = measured(judge)
    assert "5 of 10 sentences marked" in told
    assert "5 of 10 were marked and 1 of 10 were called supported, of the right ones 4 of 10" in told
    assert "wrong in the tests of its calibration" in told
    assert "href" not in told
    judge.calibrated(replace(shipped, annotator=RuleAnnotator().fingerprint))
    assert "wrong in our tests" in measured(judge)
    assert 'href="measured/embedded"' in measured(judge)
    judge.name = "./mine"
    assert "wrong in the tests of its calibration" in measured(judge)
    assert "href" not in measured(judge)
    assert measured(RuleAnnotator()) == ""
    assert told in annotated_view(record_of("sc~"), below=told)
    for kinds in ("s~~", "nn", "--", "s--"):  # most, or all, is undecided
        assert told not in annotated_view(record_of(kinds), below=told)
    assert told not in annotated_view(record_of("sc"), [(0, 1)], below=told)
