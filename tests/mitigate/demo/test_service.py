"""The demo without a browser: limits, judging in steps, files, mending, comparing."""

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

from annotators import load_annotator
from annotators.verifier.annotator import SHIPPED
from engines import parse_engine
from engines.packaged import NotHereError
from mitigate.cli.main import main
from mitigate.demo.limits import Limits, Refusal, private_folder, read_document
from mitigate.demo.mend import BEST, PRESETS, READ, REWRITE, SENTENCES, answered, better, passages, with_edits
from mitigate.demo.page import compare_view, run_batch
from mitigate.demo.parts import examples
from mitigate.demo.service import STEP_SECONDS, Service, Shelf, Step, at_thresholds
from tests.helpers.demo_parts import ANSWER, REFERENCE, Stub
from tests.helpers.jsonl import read_rows, write_rows
from tests.helpers.rule_annotator import RuleAnnotator


def service_of(annotator: Any, limits: Limits = Limits(), model: Any = None) -> Service:  # noqa: B008
    shelf = Shelf(load=lambda _: annotator)
    if model is not None:
        shelf.engine = lambda name: model  # type: ignore[method-assign]
    return Service(shelf, limits)


def steps(annotator: Any, reference: str, answer: str) -> list[Step]:
    return [step for step in service_of(annotator).annotate_stepwise(None, reference, answer, None) if step]


def test_long_and_broken_texts_are_refused() -> None:
    limits = Limits(characters=10, reference=10)
    limits.check(answer="x" * 10, question=None)
    with pytest.raises(Refusal, match=r"11 characters; .* at most 10 characters\. Shorten it.* --max-char"):
        limits.check(answer="x" * 11)
    with pytest.raises(Refusal, match=r"question has half a character .* at place 3"):
        limits.check(question="ab\ud800")
    problems = limits.check_record({"reference": "x" * 11, "answer": "a"})
    assert [str(p) for p in problems] == ["reference: expected at most 10 characters, got 11 characters"]
    with pytest.raises(Refusal, match="only thinking, which is not judged: it has no end"):
        Service(Shelf(), Limits()).annotate(None, "x", "<think>It is red.", None)
    with pytest.raises(Refusal, match="The answer is empty"):
        Service(Shelf(), limits).annotate(None, "x", " \n", None)


def test_only_offered_annotators_are_loaded() -> None:
    asked = []

    def load(name: str) -> Any:
        asked.append(name)
        if name == "broken":
            raise OSError("no such\n folder")
        return RuleAnnotator()

    shelf = Shelf(["one", "two", "three"], load=load)
    assert shelf.annotator(None) is shelf.annotator(" one ")
    with pytest.raises(Refusal, match="'openai:x@http://elsewhere' is not offered here, only one, two, three"):
        shelf.annotator("openai:x@http://elsewhere")
    assert asked == ["one"]
    shelf.annotator("two")
    shelf.annotator("three")  # the third pushes the first out
    shelf.annotator("one")
    assert asked == ["one", "two", "three", "one"]
    with pytest.raises(Refusal, match=r"'broken' can't be loaded: no such folder$"):
        Shelf(["one"], open_choice=True, load=load).annotator("broken")


def test_steps_add_up_to_the_whole_answer() -> None:
    record = {"reference": REFERENCE, "answer": ANSWER}
    found = steps(RuleAnnotator(scores=True), **record)
    assert [len(waiting) for _, waiting in found] == [4, 3, 0]
    whole = RuleAnnotator(scores=True).annotate(**record).to_dict()
    assert found[-1][0]["sentences"] == whole["sentences"]
    assert found[-1][0]["hallucination_rate"] == whole["hallucination_rate"] == pytest.approx(2 / 3)

    class Failing(RuleAnnotator):
        def judge(self, sentences: Any) -> Any:
            raise RuntimeError("the server\nwent away")

    with pytest.raises(Refusal, match="'rule' failed: the server went away"):
        steps(Failing(), "a", "b")


def test_slow_reader_does_not_shrink_the_steps(tmp_path: Path) -> None:
    going = service_of(RuleAnnotator()).annotate_stepwise(None, REFERENCE, "It is 1. " * 150, None)
    sizes = []
    for record, _ in filter(None, going):
        sizes.append(len(record["sentences"]) - sum(sizes))
        time.sleep(2 * STEP_SECONDS if len(sizes) in (2, 3) else 0)
    assert sizes[:5] == [0, 1, 4, 16, 18]  # at most an eighth of 150 at a time
    rows = write_rows(tmp_path / "in.jsonl", [{"reference": REFERENCE, "answer": ANSWER}] * 7)
    done = []
    for batch in filter(None, run_batch(service_of(RuleAnnotator()), rows, None)):
        done.append(batch.done)
        time.sleep(2 * STEP_SECONDS if len(done) == 2 else 0)
    assert done == [0, 1, 3, 7]


def test_file_is_annotated_into_files(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    rows = [{"id": i, "reference": REFERENCE, "answer": ANSWER, "sentences": "old"} for i in range(5)]
    lines = [json.dumps(row) for row in rows]
    lines[2:2] = ["{not json <b>", json.dumps({"reference": "x" * 2001, "answer": "a"})]
    source.write_text("\n".join(lines))
    service = service_of(RuleAnnotator(), Limits(characters=2000, reference=2000))
    *_, batch = run_batch(service, source, None)
    written = read_rows(batch.output)
    assert [row["id"] for row in written] == [0, 1, 2, 3, 4]
    assert [s["label"] for s in written[0]["sentences"]] == ["supported", "contradictory", "unverifiable", "no_fact"]
    assert batch.rejected[0].startswith("line 3: expected one JSON object a line")
    assert batch.rejected[1] == "line 4: reference: expected at most 2,000 characters, got 2,001 characters"
    assert [row["line"] for row in read_rows(batch.rejected_file)] == [3, 4]
    assert "1 sentence contradicts the source, 1 is not in it, 1 is supported." in batch.files()[1].read_text()
    table = tmp_path / "in.csv"
    for text, found in (
        (f'id,question,reference,answer\n7,,"{REFERENCE}","It is red. 5 > 4."\n', ("7", "It is red. 5 > 4.")),
        (f'answer;reference\n"It is 1; 2.";"{REFERENCE}"\n', (None, "It is 1; 2.")),
        (f'"answer","reference","note; with; many; signs"\nIt is 1.,"{REFERENCE}",\n', (None, "It is 1.")),
        (f'answer,reference,a;b;c;d;e\nIt is 1.,"{REFERENCE}",\n', (None, "It is 1.")),
    ):
        table.write_text(text)
        *_, batch = run_batch(service, table, None)
        assert [(row.get("id"), row["answer"]) for row in read_rows(batch.output)] == [found]
    table.write_text(f'answer,reference\n"It is\n1.","{REFERENCE}"\n,"{REFERENCE}"\n')
    *_, batch = run_batch(service, table, None)
    assert batch.rejected[0].startswith("line 3: answer: expected")  # as a spreadsheet counts
    table.write_text("Frage;answer\n1;2\n")
    told = "in.csv: expected columns named reference and answer, got 'Frage', 'answer'; no ref"
    with pytest.raises(Refusal, match=told):
        list(run_batch(service, table, None))
    table.write_bytes("reference,answer\nCafé,Café\n".encode("latin-1"))
    with pytest.raises(Refusal, match=r"in.csv is not UTF-8: save it as UTF-8"):
        list(run_batch(service, table, None))
    with pytest.raises(Refusal, match="more records than the 3 of this page"):
        list(run_batch(service_of(RuleAnnotator(), Limits(records=3)), source, None))
    source.write_text("nothing\n")
    with pytest.raises(Refusal, match=r"The file has no good record\. The first bad line: line 1"):
        list(run_batch(service, source, None))


def test_stop_is_heard_and_servers_work_at_once() -> None:
    class Server(RuleAnnotator):
        engine, together = SimpleNamespace(name="openai:x"), threading.Barrier(3)

        def judge(self, sentences: Any) -> Any:
            self.together.wait(60)  # until three are asked at the same time
            return super().judge(sentences)

    assert len(steps(Server(), REFERENCE, "It is 1. It is 2. It is 3.")[-1][0]["sentences"]) == 3

    class Stuck(RuleAnnotator):
        free = threading.Event()

        def judge(self, sentences: Any) -> Any:
            self.free.wait(60)
            return super().judge(sentences)

    going = service_of(Stuck()).annotate_stepwise(None, REFERENCE, ANSWER, None)
    assert next(filter(None, going))[1]  # the answer, not judged
    assert next(going) is None  # control comes back while the judge works
    going.close()
    Stuck.free.set()


def test_thresholds_decide_anew() -> None:
    record = RuleAnnotator(scores=True).annotate(reference=REFERENCE, answer=ANSWER).to_dict()  # 0.7, others 0.1
    assert at_thresholds(record, None) is record
    found = at_thresholds(record, (0.9, 0.8))  # P(supported | factual) = 7/9, 1/9, 1/9
    assert [s["label"] for s in found["sentences"]] == [None, None, None, "no_fact"]
    assert (found["hallucination_rate"], found["coverage"]) == (None, 0)
    found = at_thresholds(record, (0.5, 0.5))
    assert [s["label"] for s in found["sentences"]] == ["supported", "contradictory", "unverifiable", "no_fact"]
    assert found["hallucination_rate"] == pytest.approx(2 / 3)
    failed = [{**s, "status": "failed", "label": None, "scores": None} for s in record["sentences"][1:]]
    found = at_thresholds({**record, "sentences": [record["sentences"][0], *failed]}, (0.5, 0.5))
    assert found["hallucination_rate"] is None  # one sentence of four says nothing of the answer


def test_documents_become_text(tmp_path: Path) -> None:
    docx = pytest.importorskip("docx")
    limits, path = Limits(reference=100), tmp_path.joinpath
    path("a.html").write_text("<head><title>no</title><p>One <b>two</b>.<script>no()</script><p>Three")
    assert read_document(path("a.html"), limits) == "One two.\nThree"
    page = "<!--" * 9 + "--><?x?>One<a " * 30_000 + ">two</a><template>no</template><br>three &amp; 4 <!-- no -->5"
    path("a.html").write_text(page)  # with html.parser of Python 3.11 this takes minutes
    assert read_document(path("a.html"), Limits()).endswith("two\nthree & 4 5")
    path("a.html").write_text(f"<html><p>One{'<div>' * 2500}two{'</div>' * 2500}</html>three<p>four")
    assert read_document(path("a.html"), Limits()) == "One\ntwo\nthree\nfour"
    for text, page, charset in (  # what is written as the first two is rarely what they are
        ("桥很旧，朱镕基", "<meta charset=gb2312><p>", "gbk"), ("It’s a café", "<meta charset=ISO-8859-1>", "cp1252"),
        ("桥很旧。", "", "utf-16"),
    ):  # fmt: skip
        path("g.html").write_bytes((page + text).encode(charset))
        assert read_document(path("g.html"), limits) == text
    path("g.html").write_bytes(b"<meta charset=utf-16><p>A caf\xe9.")  # what names itself in ASCII is none
    assert read_document(path("g.html"), limits) == "A caf\ufffd."
    written = docx.Document()
    written.add_paragraph("One.")
    written.add_table(1, 2).rows[0].cells[1].text = "5"
    written.save(str(path("a.docx")))
    assert read_document(path("a.docx"), limits) == "One.\n | 5"
    figure = Figure()
    figure.text(0.1, 0.5, "It opened in 1901.")
    figure.savefig(path("a.pdf"))
    assert read_document(path("a.pdf"), limits) == "It opened in 1901."
    for name, text, message in (
        ("a.exe", "x", "expected a document of .pdf, .docx"), ("b.docx", "x", "b.docx can't be read"),
        ("b.pdf", "x", "b.pdf can't be read"), ("a.txt", " ", "a.txt holds no text"),
        ("b.txt", "x" * 101, "The reference has 101 characters"),
    ):  # fmt: skip
        path(name).write_text(text)
        with pytest.raises(Refusal, match=message):
            read_document(path(name), limits)


def test_answer_is_mended_by_its_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, model, judges = RuleAnnotator(), Stub(), list[str]()
    service = service_of(judge, model=model)
    *_, (before, waiting) = filter(None, answered(service, "Who?", REFERENCE, "", ""))
    assert (before["answer"], waiting) == ("The mill was built in 1804. Its owner was a baker.", [])
    assert [s["label"] for s in before["sentences"]] == ["supported", "contradictory"]
    monkeypatch.setattr(service.shelf, "annotator", lambda name: judges.append(name) or judge)
    *_, found = better(service, before, "", "chosen", [BEST, REWRITE])
    assert (found.answers, found.chosen) == (5, 0)  # all are alike
    assert found.mended.answer == "The mill was built in 1804. Its owner was a miller."
    assert with_edits(service, found, [])["answer"] == before["answer"]
    assert judges == ["chosen", "chosen"]  # before and after by one
    list(better(service, before, "", "", [BEST]))
    model.name = "openai:m"
    list(better(service, before, "", "", [BEST]))
    assert {sampling.max_tokens for _, sampling in model.asked if sampling} >= {150, 600}  # a server's may be longer
    with pytest.raises(Refusal, match="There is no document to judge by"):
        list(better(service, {**before, "reference": " "}, "", "", []))


def test_right_answer_is_not_drawn_again() -> None:
    asked = []

    class Right(Stub):
        def write(self, text: str, call: int) -> str:
            asked.append(text)
            return "The mill was built in 1804. It has red roofs. " + "Nothing more. " * 9

    service = service_of(RuleAnnotator(), model=Right())
    *_, (written, _) = filter(None, answered(service, "Who?", REFERENCE, "", ""))
    assert len(written["sentences"]) == SENTENCES  # of eleven
    right = RuleAnnotator().annotate(question="Who?", reference=REFERENCE, answer="It has red roofs.").to_dict()
    *_, found = better(service, right, "", "", [BEST, REWRITE])
    assert (found.answers, found.mended.answer, len(asked)) == (1, "It has red roofs.", 1)
    old = {**right, "annotator": {"name": "other", "fingerprint": "other"}, "sentences": []}
    *_, found = better(service, old, "", "", [BEST])  # judged by another: again, by this one
    assert (found.answers, found.before["sentences"]) == (1, right["sentences"])


def test_presets_are_engines_and_read_what_bears_on_the_question() -> None:
    assert {parse_engine(text).kind for text in PRESETS.values()} == {"transformers", "openai"}
    assert next(iter(PRESETS.values())) == Shelf().engines[0]
    service = service_of(RuleAnnotator())
    filler = "".join(f"Ship number {i} was painted in the harbour of Ostrand. " for i in range(300))
    long = f"{filler}The mill was built in 1804. {filler}"
    read = passages(service, "When was the mill built?", long)
    assert "The mill was built in 1804." in read
    assert len(service.shelf.tokenize([read])[0][0]) <= READ + 20  # and the signs of what is left out
    assert passages(service, "When was the mill built?", REFERENCE) == REFERENCE


@pytest.mark.parametrize("failing", [False, True])
def test_answer_that_breaks_off_is_refused(failing: bool) -> None:
    closed = threading.Event()

    class Streaming(Stub):
        def stream(self, chat: Any, sampling: Any) -> Iterator[str]:
            try:
                yield "The mill was built in 1804. Its"
                if failing:
                    raise RuntimeError("out of memory")
                yield " owner was a miller."
                while True:
                    yield " So"
            finally:
                closed.set()

    going = answered(service_of(RuleAnnotator(), model=Streaming()), "Who?", REFERENCE, "", "")
    if failing:
        with pytest.raises(Refusal, match="'stub:one' failed: out of memory"):
            list(going)
    else:
        next(step for step in going if step and step[0]["sentences"])  # judged while it is written
        going.close()
    assert closed.wait(60)  # also where the visitor stopped it


def test_thinking_is_no_answer() -> None:
    def ask(*pieces: str) -> list[Step | None]:
        model = type("Thinking", (Stub,), {"stream": lambda *_: iter(pieces)})()
        return list(answered(service_of(RuleAnnotator(), model=model), "Who?", REFERENCE, "", ""))

    for pieces in (("No.\n", "</think>", "\n\n", "Yes. It is."), (" <th", "ink>No.", "</think>", " Yes. It is.")):
        last = ask(*pieces)[-1]
        assert last is not None
        assert [s["text"] for s in last[0]["sentences"]] == ["Yes.", "It is."]
    for thoughts in (("<think>No. Or",), ("<think>", *(f"{i}. It may be. " for i in range(9)))):
        with pytest.raises(Refusal, match=r"stub:one only thought, for \d+ tokens"):
            ask(*thoughts)
    for blank in ((), (" \n",)):
        with pytest.raises(Refusal, match=r"stub:one wrote nothing"):
            ask(*blank)


@pytest.mark.parametrize("name", [pytest.param("embedded", marks=pytest.mark.slow), "embedded-fast"])
def test_shown_verdicts_of_examples_are_right(name: str) -> None:
    fast = SHIPPED["embedded-fast"]
    folder = fast if name == "embedded-fast" else fast.with_name(name)  # "embedded" is the other one in tests
    try:
        judge = load_annotator(str(folder))
    except NotHereError:
        pytest.skip("skipped: SmolLM2 is not in the cache (mitigate models get smollm2)")
    shipped = [
        *examples("annotate"),
        *(
            {**e, "answer": a, "gold": gold}
            for e in examples("compare")
            for (_, a), gold in zip(e["answers"], e["gold"], strict=True)
        ),
    ]
    assert len(shipped) == 5
    for e in shipped:
        sentences = judge.annotate(**{key: e[key] for key in ("question", "reference", "answer")})
        shown = [(s.text, s.label, gold) for s, gold in zip(sentences.sentences, e["gold"], strict=True) if s.label]
        assert [one for one in shown if one[1] != one[2]] == []
        assert len(shown) >= len(e["gold"]) / 2


def test_compared_answers_stand_best_first() -> None:
    judge = RuleAnnotator()
    texts = {"wrong": "Its owner was a baker.", "none": "", "silent": "how nice.", "right": "It has red roofs."}
    answers = [*texts.items()]
    found = [judge.annotate(reference=REFERENCE, answer=text).to_dict() for _, text in answers]
    first = {**found[0], "sentences": []}
    steps: dict[int, Step] = {0: (found[0], ()), 2: (found[2], ()), 3: (found[3], ())}
    for shown, order, verdict in (
        (steps, ["right", "silent", "wrong", "none"], "1 sentence contradicts"),  # rates 0, 0.75, 1; not judged
        ({**steps, 0: (first, [(0, 22)])}, ["right", "silent", "wrong", "none"], "not judged yet"),
        ({0: (first, [(0, 22)])}, ["wrong", "none", "silent", "right"], "not judged yet"),
    ):
        page = compare_view(answers, shown, "run", below="HOW FAR")
        table = page[: page.index("</table>")]
        assert re.findall(r"<bdi>(\w+)</bdi>", table) == order
        (row,) = (row for row in table.split("<tr>") if "wrong" in row)
        assert verdict in row
        assert page.count("HOW FAR") == (3 in shown)
    assert "not judged yet" not in compare_view(answers, {0: (first, [(0, 22)])}, "run", stopped=True)


@pytest.mark.parametrize(("options", "open_choice"), [
    ([], True), (["--auth", "me:secret"], False), (["--host", "0.0.0.0"], False),
])  # fmt: skip
def test_only_a_page_for_oneself_takes_other_names(options, open_choice, monkeypatch):
    """With a password it may stand behind a proxy, where others reach it, too."""
    seen: list[Any] = []
    monkeypatch.setattr("mitigate.demo.page.build", lambda service: seen.append(service))
    monkeypatch.setattr("mitigate.demo.page.launch", lambda *_, **__: None)
    monkeypatch.setattr("mitigate.demo.service.Shelf.warm", lambda _: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert main(["demo", *options]) == 0
    assert (seen[0].shelf.open_choice, seen[0].fetch) == (open_choice, open_choice)


def test_a_demo_that_is_ended_deletes_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    at_end: list[tuple[Any, ...]] = []
    handlers: dict[Any, Any] = {}
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    monkeypatch.setattr("mitigate.demo.page.build", lambda _: None)
    monkeypatch.setattr("mitigate.demo.page.launch", lambda *_, **__: handlers[signal.SIGTERM](signal.SIGTERM, None))
    monkeypatch.setattr("mitigate.demo.service.Shelf.warm", lambda _: None)
    monkeypatch.setattr("signal.signal", handlers.__setitem__)
    monkeypatch.setattr("atexit.register", lambda *given, **_: at_end.append(given))
    folder = private_folder.__wrapped__()
    with pytest.raises(SystemExit, match="143"):  # at which Python does what is registered, unlike at the signal
        main(["demo"])
    for remove, *given in at_end:
        assert folder in given
        remove(*given)
    assert not folder.exists()
