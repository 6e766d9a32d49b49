"""The demo page without a browser: text kept whole, limits, steps, run folders, files."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotators.records import LABELS
from mitigate.cli import main
from mitigate.demo.batch import run_batch
from mitigate.demo.curves import figure, label_of, short, sorted_curves
from mitigate.demo.difference import edit_pieces, joined, word_pieces
from mitigate.demo.limits import Limits, Refusal
from mitigate.demo.markup import answer_html, flattened, reference_html
from mitigate.demo.scoring import fewl_record
from mitigate.demo.service import Service
from mitigate.demo.shelf import Shelf
from mitigate.demo.stream import annotate_stepwise
from mitigate.demo.training import open_folder, read_run, run_folders
from mitigate.demo.training_view import run_view, whole_record
from mitigate.demo.view import annotated_view
from tests.rule_annotator import RuleAnnotator

REFERENCE = "The mill was built in 1804. It has red roofs.\nbaker -> miller"
ANSWER = "The mill was built in 1804. Its owner was a baker. It stood near Ostrand. how nice."


class SpanRule(RuleAnnotator):
    """As the rule annotator, and able to judge some sentences of an answer."""

    def annotate_spans(self, record: Any, spans: Any) -> list[Any]:
        self.calls += 1
        return [self._judge(record, start, end) for start, end in spans]


class _Reader(HTMLParser):
    """Text inside the element of a class, and every tag and attribute met."""

    def __init__(self, wanted: str) -> None:
        super().__init__(convert_charrefs=True)
        self.wanted, self.depth, self.text = wanted, 0, ""
        self.tags: set[str] = set()
        self.values: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.values += [value or "" for _, value in attrs]
        if self.depth or self.wanted in (dict(attrs).get("class") or "").split():
            self.depth += 1

    def handle_endtag(self, tag: str) -> None:
        self.depth -= self.depth > 0

    def handle_data(self, data: str) -> None:
        self.text += data if self.depth else ""


def read(page: str, wanted: str) -> _Reader:
    reader = _Reader(wanted)
    reader.feed(page)
    reader.close()
    return reader


def sentence(text: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    plain = {"text": text[start:end], "start": start, "end": end, "status": "checked", "label": "supported"}
    return {**plain, "scores": None, "fragments": [], "correction": [], **more}


# --- text is kept whole ----------------------------------------------------------------------------------


def test_overlapping_spans_are_cut_where_they_begin_and_end() -> None:
    # 0: [0, 5), 1: [3, 8) twice, 2: [8, 9); the empty span of 3 owns nothing
    spans = [(0, 5, 0), (3, 8, 1), (3, 8, 1), (8, 9, 2), (4, 4, 3)]
    assert flattened(spans) == [(0, 3, (0,)), (3, 5, (0, 1)), (5, 8, (1,)), (8, 9, (2,))]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 3)), max_size=8))
def test_flattened_pieces_own_what_the_spans_own(spans: list[tuple[int, int, int]]) -> None:
    def owners(place: int) -> tuple[int, ...]:
        return tuple(sorted({owner for start, end, owner in spans if start <= place < end}))

    pieces = flattened(spans)
    assert all(a[1] <= b[0] for a, b in pairwise(pieces))
    found = {place: who for start, end, who in pieces for place in range(start, end)}
    assert found == {place: owners(place) for place in range(12) if owners(place)}


HOSTILE = st.text(
    alphabet=st.sampled_from("ab <>&\"'`${}\n\r\t\u202e\u2066\u200f文。.\ufeff\u2028=/"),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(HOSTILE, st.data())
def test_the_page_holds_the_answer_and_the_reference_and_nothing_of_them_as_markup(
    text: str, data: Any
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pairs = [(a, b) for a, b in zip(cuts[::2], cuts[1::2], strict=False) if a < b]
    fragments = [
        {"start": a, "end": b, "text": text[a:b]}
        for a, b in data.draw(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=4))
        if a < b <= len(text)
    ]
    sentences = [sentence(text, a, b, fragments=fragments, spans=[{"start": a, "end": b}]) for a, b in pairs]
    record = {"answer": text, "reference": text, "sentences": sentences}
    answer = read(answer_html(record), "answer")
    assert answer.text == text
    assert answer.tags <= {"div", "span", "b"}
    reference = read(reference_html(text, sentences), "reference")
    assert reference.text == text
    assert reference.tags <= {"div", "mark", "span"}
    page = read(annotated_view({**record, "hallucination_rate": 0.0}, run="x"), "answer")
    assert not page.tags & {"script", "img", "a", "iframe", "style", "input"}
    assert not [value for value in page.values if "javascript" in value or "<" in value]


def test_waiting_sentences_are_there_and_stopped_ones_are_not_checked() -> None:
    first = sentence(ANSWER, 0, 27)
    record = {"answer": ANSWER, "reference": "", "sentences": [first], "hallucination_rate": 0.0}
    waiting = [(28, 50), (51, 74)]
    assert read(answer_html(record, waiting), "answer").text == ANSWER
    page = annotated_view(record, waiting, run="r")
    assert page.count('class="s waiting"') == 2
    assert "1 of 3 judged so far" in page
    page = annotated_view(record, waiting, run="r", stopped=True)
    assert page.count('class="s not_checked"') == 2
    assert "2 sentences were not checked:</b> 2 because it was stopped" in page


def test_word_differences() -> None:
    assert word_pieces("built in 1840", "built in 1804") == [
        ("same", "built in "),
        ("gone", "1840"),
        ("new", "1804"),
    ]
    assert word_pieces("用丝绸换马", "用茶叶换马") == [
        ("same", "用"),
        ("gone", "丝绸"),
        ("new", "茶叶"),
        ("same", "换马"),
    ]
    edits = [
        {"start": 5, "end": 7, "from": "in", "to": "at"},
        {"start": 6, "end": 9, "from": "n B", "to": "x"},  # overlaps: left out
        {"start": 8, "end": 9, "from": "C", "to": "D"},  # does not stand there: left out
    ]
    pieces = edit_pieces("Live in Bern", edits)
    assert pieces == [("same", "Live "), ("gone", "in"), ("new", "at"), ("same", " Bern")]
    assert edit_pieces("Bern", [{"start": 8, "end": 12, "from": "Bern", "to": ""}], start=8) == [
        ("gone", "Bern")
    ]


@given(st.text(alphabet="ab 文.", max_size=12), st.text(alphabet="ab 文.", max_size=12))
def test_a_word_difference_joins_to_both_texts(old: str, new: str) -> None:
    pieces = word_pieces(old, new)
    assert joined(pieces, "new") == old
    assert joined(pieces, "gone") == new


# --- limits, models, steps -------------------------------------------------------------------------------


def test_long_and_broken_texts_are_refused_with_what_to_do() -> None:
    limits = Limits(characters=10)
    limits.check(answer="x" * 10, question=None)
    with pytest.raises(Refusal, match=r"The answer has 11 characters; this page takes 10\. Shorten it"):
        limits.check(answer="x" * 11)
    with pytest.raises(Refusal, match=r"reference answer holds half a character .* at place 3"):
        limits.check(reference_answer="ab\ud800")
    problems = limits.check_record({"reference": "x" * 11, "answer": "a"})
    assert [str(p) for p in problems] == ["reference: expected at most 10 characters, got 11 characters"]
    with pytest.raises(Refusal, match="The answer is empty"):
        Service(Shelf(), limits).annotate(None, "x", " \n", None)


def test_only_offered_annotators_are_loaded_unless_any_may_be() -> None:
    asked = []

    def load(name: str) -> Any:
        asked.append(name)
        if name == "broken":
            raise OSError("no such\n folder")
        return RuleAnnotator()

    shelf = Shelf(["one", "two", "three"], load=load)
    assert shelf.annotator(None) is shelf.annotator(" one ")
    with pytest.raises(
        Refusal, match="'openai:x@http://elsewhere' is not offered here, only one, two, three"
    ):
        shelf.annotator("openai:x@http://elsewhere")
    assert asked == ["one"]
    shelf.annotator("two")
    shelf.annotator("three")  # the third pushes the first out
    shelf.annotator("one")
    assert asked == ["one", "two", "three", "one"]
    with pytest.raises(Refusal, match=r"'broken' can't be loaded: no such folder$"):
        Shelf(["one"], open_choice=True, load=load).annotator("broken")


@pytest.mark.parametrize(("kind", "steps"), [(SpanRule, [4, 3, 0]), (RuleAnnotator, [4, 0])])
def test_an_answer_is_judged_in_steps_that_add_up_to_the_whole(
    kind: type[RuleAnnotator], steps: list[int]
) -> None:
    annotator = kind(scores=True)
    record = {"reference": REFERENCE, "answer": ANSWER}
    found = list(annotate_stepwise(Shelf(["rule"], load=lambda _: annotator), "rule", record))
    assert [len(part.waiting) for part in found] == steps
    whole = kind(scores=True).annotate(**record).to_dict()
    assert found[-1].record["sentences"] == whole["sentences"]
    assert found[-1].record["hallucination_rate"] == whole["hallucination_rate"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "answer",
    [
        "The canal was opened in 1822. It is 14 km long. It closed in 1950. Boats use it. I hope this helps.",
        "Le canal a été ouvert en 1822. Il mesure 14 km. Bateaux. Merci beaucoup pour votre question.",
    ],
)
def test_steps_of_the_embedded_annotator_give_what_one_call_gives(answer: str, embedded: Any) -> None:
    reference = "A canal was dug beside the mill. It was opened in 1822 and is 14 km long. It closed in 1911."
    *_, last = annotate_stepwise(
        Shelf(load=lambda _: embedded), None, {"reference": reference, "answer": answer}
    )
    whole = embedded.annotate(reference=reference, answer=answer).to_dict()
    for ours, theirs in zip(last.record["sentences"], whole["sentences"], strict=True):
        scores, expected = ours.pop("scores"), theirs.pop("scores")
        assert ours == theirs
        assert scores == (pytest.approx(expected, abs=1e-3) if expected else None)


@pytest.fixture(scope="module")
def embedded() -> Any:
    from annotators import load_annotator

    return load_annotator()


def test_a_generative_annotator_streams_chinese_as_it_judges_it_whole() -> None:
    from annotators.generative import GenerativeAnnotator
    from engines.openai_engine import OpenAIEngine
    from tests.annotator_server import annotating, correct

    record = {
        "reference": "水坝建于1959年。它高120米。",
        "answer": "你好！水坝建于1969年。它高120米。它很有名。",
    }
    with annotating(correct) as server:
        engine = OpenAIEngine("m", server.url, max_retries=0, timeout=30.0)
        annotator = GenerativeAnnotator(engine)
        found = list(annotate_stepwise(Shelf(load=lambda _: annotator), None, record))
        whole = annotator.annotate(**record).to_dict()
        annotator.close()
    assert len(found) > 2
    assert found[-1].record == whole
    assert [s["label"] for s in whole["sentences"]] == [
        "no_fact",
        "contradictory",
        "supported",
        "unverifiable",
    ]


def test_a_failing_annotator_is_a_refusal() -> None:
    class Failing(RuleAnnotator):
        def annotate_batch(self, records: Any) -> Any:
            raise RuntimeError("the server\nwent away")

    with pytest.raises(Refusal, match="'rule' failed: the server went away"):
        list(annotate_stepwise(Shelf(load=lambda _: Failing()), None, {"reference": "a", "answer": "b"}))


# --- files -----------------------------------------------------------------------------------------------


def test_a_file_is_annotated_into_files(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"id": i, "reference": REFERENCE, "answer": ANSWER, "sentences": "old"} for i in range(5)]
    lines = [json.dumps(row) for row in rows]
    lines[2:2] = ["{not json <b>", json.dumps({"reference": "x" * 2001, "answer": "a"})]
    source.write_text("\n".join(lines))
    shelf = Shelf(load=lambda _: RuleAnnotator())
    done = [batch.done for batch in run_batch(shelf, Limits(characters=2000), source, None)]
    *_, batch = run_batch(shelf, Limits(characters=2000), source, None)
    assert done[0] == 0
    assert done[-1] == 5
    written = [json.loads(line) for line in batch.output.read_text().splitlines()]
    assert [row["id"] for row in written] == [0, 1, 2, 3, 4]
    assert [s["label"] for s in written[0]["sentences"]] == [
        "supported",
        "contradictory",
        "unverifiable",
        "no_fact",
    ]
    assert batch.rejected[0].startswith("line 3: expected one JSON object a line")
    assert batch.rejected[1] == "line 4: reference: expected at most 2,000 characters, got 2,001 characters"
    assert batch.rejected_file is not None
    assert [json.loads(line)["line"] for line in batch.rejected_file.read_text().splitlines()] == [3, 4]
    assert "2 of 3 factual sentences hallucinated" in batch.report().read_text()
    with pytest.raises(Refusal, match="more than 3 records"):
        list(run_batch(shelf, Limits(records=3), source, None))
    source.write_text("nothing\n")
    with pytest.raises(Refusal, match=r"The file has no good record\. The first bad line: line 1"):
        list(run_batch(shelf, Limits(), source, None))


# --- FEWL ------------------------------------------------------------------------------------------------


def test_fewl_of_one_question_is_that_of_the_library() -> None:
    from fewl import FewlOptions, cosine, score_records

    record = {
        "question": "Do camels store water in their humps?",
        "answers": [
            {"text": "No, they store fat.", "model": "a"},
            {"text": "Yes, water.", "model": "b"},
            {"text": ""},
        ],
        "reference_answers": {"one": "Their humps hold fat.", "two": ["No.", "Humps are fat."]},
        "iw": ["They hold water."],
        "co": ["They hold fat."],
    }
    other = {
        "question": "Are bats blind?",
        "answers": [],
        "reference_answers": {"one": "No.", "two": "They see."},
    }
    shelf = Shelf()
    found = fewl_record(shelf, Limits(), record, neighbours=[other])
    options = FewlOptions(aggregation="eq6", expertise="similarity")
    encode = shelf.embedder.encode
    scored, _ = score_records([record, other], similarity=cosine(encode), encode=encode, options=options)
    for ours, theirs in zip(found["answers"], scored[0]["answers"], strict=True):
        for name in ("score", "truthfulness", "laziness"):
            assert ours[name] == (None if theirs[name] is None else pytest.approx(theirs[name], abs=1e-4))
    a, b = encode([record["answers"][0]["text"], "Their humps hold fat."])
    assert found["answers"][0]["similarity"]["one"] == pytest.approx(float(a @ b), abs=1e-4)
    assert found["answers"][2]["similarity"] == {"one": None, "two": None}
    assert fewl_record(shelf, Limits(), record)["answers"][0]["laziness"] is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": " "}, "question: expected a string with text in it"),
        ({"answers": [{"text": ""}]}, "There is no answer to score"),
        ({"reference_answers": {}}, "There is no reference answer"),
        ({"answers": [{"text": "x" * 60_000}]}, "The answer has 60,000 characters"),
        ({"reference_answers": {"llm": ["x"] * 201}}, "201 reference, wrong and corrected answers"),
    ],
)
def test_fewl_refuses_with_the_reason(change: dict[str, Any], message: str) -> None:
    record = {"question": "q", "answers": [{"text": "a"}], "reference_answers": {"llm": "b"}, **change}
    with pytest.raises(Refusal, match=message):
        fewl_record(Shelf(), Limits(), record)
    with pytest.raises(Refusal, match="Expected an aggregation of eq6"):
        fewl_record(Shelf(), Limits(), record, aggregation="x")


# --- run folders -----------------------------------------------------------------------------------------


def write_run(folder: Path) -> Path:
    """A run folder with a curve, a half-written line and one question before and after."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("kind: rlhf\nabout: <b>bold</b>\n")
    rows = [
        {"step": i, "reward": i / 2, "factuality/hallucination_rate": None if i == 1 else 0.5}
        for i in range(3)
    ]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "rew'
    )
    annotator = RuleAnnotator()
    before = annotator.annotate(question="q?", reference=REFERENCE, answer="Its owner was a baker.").to_dict()
    after = {"question": "q?", "answer": "The mill was <i>built</i> in 1804."}
    samples = [
        {"when": "before", "set": "a", **before},
        {"when": "after", "set": "a", **after},
        {"when": "later"},
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
    return folder


def test_a_run_folder_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "runs" / "grpo" / "one"))
    assert run.curves == {
        "reward": [(0, 0), (1, 0.5), (2, 1)],
        "factuality/hallucination_rate": [(0, 0.5), (2, 0.5)],
    }
    assert [(b is not None, a is not None) for b, a in run.pairs] == [(True, True)]
    assert run.notes == ["The run is not complete: it is still going, or was interrupted."]
    page = run_view(run)
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "<i>built" not in page
    assert "This answer was not annotated." in page
    assert page.count("<figure>") == 2
    assert run_folders(tmp_path / "runs") == ["grpo/one"]


def test_what_is_missing_or_broken_is_said(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('[1]\nx\n{"step": 1}\n')
    (tmp_path / "config.yaml").write_text("a: [")
    (tmp_path / "done.json").write_text("{")
    notes = " ".join(read_run(tmp_path).notes)
    for part in ("2 lines of metrics.jsonl are no JSON objects", "metrics.jsonl has no figures yet",
                 "config.yaml can't be read", "samples.jsonl is not there yet", "done.json can't be read"):  # fmt: skip
        assert part in notes
    assert "kind not known" in run_view(read_run(tmp_path))


def test_folders_elsewhere_are_refused_unless_any_may_be_named(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "runs", write_run(tmp_path / "private")
    write_run(root / "one")
    assert open_folder(root, "one", False) == root / "one"
    for name in ("../private", str(elsewhere)):
        with pytest.raises(Refusal, match="is not in the folder of runs"):
            open_folder(root, name, False)
    assert open_folder(root, str(elsewhere), True) == elsewhere
    with pytest.raises(Refusal, match="There is no folder nothing"):
        open_folder(root, "nothing", True)
    with pytest.raises(Refusal, match="is no run folder"):
        open_folder(root, str(tmp_path), True)


def test_sentences_that_are_not_those_of_the_answer_are_not_shown() -> None:
    good = {
        "answer": "It is so.",
        "reference": "So.",
        "sentences": [{**sentence("It is so.", 0, 9), "scores": {"x": 1}}],
    }
    whole = whole_record(good)
    assert whole is not None
    assert whole["sentences"][0]["scores"] is None
    for broken in (
        {"start": 1}, {"text": "else"}, {"label": 3}, {"end": "x"},
    ):  # fmt: skip
        assert whole_record({**good, "sentences": [{**good["sentences"][0], **broken}]}) is None
    bad = {"start": 0, "end": 2, "text": "No"}
    found = whole_record({**good, "sentences": [{**sentence("It is so.", 0, 9), "fragments": [bad, 3]}]})
    assert found is not None
    assert found["sentences"][0]["fragments"] == []


def test_curves() -> None:
    names = ["loss", "reward_std", "x/hallucination_rate", "factuality/supported", "reward", "no_fact_rate"]
    assert sorted_curves(names) == (
        ["reward", "x/hallucination_rate", "factuality/supported", "no_fact_rate"],
        ["loss", "reward_std"],
    )
    assert [label_of(name) for name in names] == [None, None, None, "supported", None, "no_fact"]
    assert all(label_of(f"a/{label}") == label for label in LABELS)
    assert [short(v) for v in (1200.0, 0.35812, 1e-5, -2.0)] == ["1,200", "0.358", "1e-05", "-2"]
    # x from 46 to 310 over steps 0..10, y from 128 (lowest, 1) to 12 (highest, 3)
    drawn = figure("a<b", [(0, 1.0), (5, 3.0), (10, 2.0)])
    assert 'd="M46.0 128.0 L178.0 12.0 L310.0 70.0"' in drawn
    assert "a&lt;b" in drawn
    assert "a<b" not in drawn
    assert 'd="M46.0 70.0"' in figure("one", [(4, 2.0)])


# --- the command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--auth", "nobody"], "--auth: expected NAME:PASSWORD"),
        (["--port", "70000"], "--port: expected 1 to 65535, got 70000"),
        (["--max-characters", "0"], "--max-characters: expected 1 or more, got 0"),
    ],
)
def test_wrong_options_are_told_before_anything_loads(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *args]) == 2
    assert message in capsys.readouterr().err
