"""`mitigate correct` and `mitigate best-of`: files in, files out, continued after a kill."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from annotators.records import SentenceAnnotation
from mitigate.cli import annotate as command
from mitigate.cli.main import main
from mitigate.inference.correct import ABSTENTION
from mitigate.models import open_engine
from tests.helpers.engines_server import Reply, completion, error, serving
from tests.helpers.jsonl import read_rows as read
from tests.helpers.jsonl import write_rows
from tests.helpers.rule_annotator import LOST, REFERENCE, RIGHT, WRONG, RuleAnnotator


@pytest.fixture
def annotator(monkeypatch: pytest.MonkeyPatch) -> RuleAnnotator:
    rule = RuleAnnotator()
    monkeypatch.setattr(command, "open_annotator", lambda name, options: rule)
    return rule


def run(*args: object) -> int:
    return main([str(arg) for arg in args])


def answers(folder: Path, *texts: str) -> Path:
    rows = ({"id": i, "reference": REFERENCE, "answer": text} for i, text in enumerate(texts))
    return write_rows(folder / "in.jsonl", rows)


def test_correct_continues_what_was_asked_alike(tmp_path, annotator, capsys):
    source, out = answers(tmp_path, WRONG, LOST, RIGHT), tmp_path / "out.jsonl"
    args = "correct", "--input", source, "--output", out, "--abstain-above", 0.9
    assert run(*args[:-2]) == 2
    assert "embedded gives no corrections, so without them nothing would change" in capsys.readouterr().err
    assert run(*args, "--chunk-size", 1) == 0
    whole = out.read_bytes()
    out.write_bytes(whole[: len(whole) // 2])  # killed while it wrote
    calls = annotator.calls
    assert run(*args, "--chunk-size", 1) == 0
    assert out.read_bytes() == whole
    assert annotator.calls > calls
    calls = annotator.calls
    assert run(*args) == 0
    assert annotator.calls == calls  # complete: nothing is judged again
    assert run(*args, "--delete") == 2  # its rows were made without
    assert "it was corrected with {'engine': None, 'delete': False" in capsys.readouterr().err
    annotator.fingerprint, own = "another", annotator.fingerprint
    assert run(*args) == 2
    assert "fingerprint rule, and embedded has another" in capsys.readouterr().err
    annotator.fingerprint = own
    answers(tmp_path, WRONG, RIGHT, RIGHT)
    assert run(*args) == 2
    assert "in.jsonl: 'original_answer' differs" in capsys.readouterr().err
    assert out.read_bytes() == whole


def test_failed_requests_are_reported_and_asked_again(tmp_path, annotator, capsys, monkeypatch):
    once = partial(open_engine, max_retries=0)
    monkeypatch.setattr("mitigate.cli.correct.open_engine", once)
    source, out = answers(tmp_path, "It weighs 9 Tons.", LOST, WRONG), tmp_path / "out.jsonl"
    down = [True]

    def script(body: dict[str, Any]) -> Reply:
        failing = down and "30 Marks" in body["messages"][0]["content"]
        return error(500, "too long") if failing else completion(RIGHT)

    with serving(script) as server:
        args = ["correct", "--input", source, "--output", out, "--engine", f"openai:m@{server.url}"]
        args += ["--chunk-size", 1]
        assert run(*args) == 1
        said = capsys.readouterr().err
        assert re.search("1 of 3 answers have a request without a reply, the last: .*too long.*same command ag", said)
        rows = read(out)
        found = [(row["answer"], "too long" in row.get("correction_error", "")) for row in rows]
        assert found == [(RIGHT, False), (LOST, True), (RIGHT, False)]
        whole = out.read_bytes()
        assert run(*args) == 1  # still failing: the same again
        assert out.read_bytes() == whole
        out.write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 9])  # killed while it wrote the last
        down.clear()
        del server.requests[:]
        calls = annotator.calls
        assert run(*args) == 0
        assert len(server.requests) == 1
        assert annotator.calls - calls == 2 * 3  # three a chunk; the first chunk is as it was
        fresh = tmp_path / "fresh.jsonl"
        assert run(*args[:4], fresh, *args[5:]) == 0
    assert [row["answer"] for row in read(out)] == [RIGHT, RIGHT, RIGHT]
    assert out.read_bytes() == fresh.read_bytes()
    assert not list(tmp_path.glob("*.part"))


def test_refused_requests_are_told_and_not_asked_again(tmp_path, annotator, capsys):
    source, out = answers(tmp_path, LOST, "It weighs 9 Tons."), tmp_path / "out.jsonl"
    asked: list[Any] = []

    def script(body: dict[str, Any]) -> Reply:
        asked.append(body)
        return error(400, "filtered") if "30 Marks" in body["messages"][0]["content"] else completion(RIGHT)

    with serving(script) as server:
        args = ["correct", "--input", source, "--output", out, "--engine", f"openai:m@{server.url}"]
        for most, code in ((0.1, 1), (0.5, 0)):
            assert run(*args, "--max-failed", most) == code
            said = capsys.readouterr().err
            assert re.search("1 of 2 answers have a request that was refused, the last: .*filtered", said)
    assert len(asked) == 2
    assert [(row["answer"], "correction_refused" in row) for row in read(out)] == [(LOST, True), (RIGHT, False)]


def test_correct_with_an_engine_and_abstention(tmp_path, annotator):
    source, out = answers(tmp_path, LOST, "It weighs 9 Tons."), tmp_path / "a.jsonl"
    with serving(lambda body: completion(RIGHT if "30 Marks" in str(body["messages"]) else "No 1!\nNo 2!")) as server:
        engine = f"openai:m@{server.url}"
        assert run("correct", "--input", source, "--output", out, "--engine", engine, "--abstain-above", 0.5) == 0
    first, second = read(out)
    assert (first["answer"], first["changes"][0]["by"]) == (RIGHT, "engine")
    assert (second["answer"], second["action"]) == (ABSTENTION["en"], "abstained")


def test_best_of_chooses_and_says_why(tmp_path, annotator, capsys):
    several = [{"text": LOST, "model": "a"}, {"text": RIGHT, "model": "b"}]
    given = (REFERENCE, several), ("", several[1:]), (REFERENCE, []), (REFERENCE, ["text"])
    own = {"model": "mine", "index": 7, "rates": [], "statuses": "x", "correction_error": "x", "best_of": "old"}
    rows = [{"question": "q", "reference": reference, "answers": texts, **own} for reference, texts in given]
    source, out = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "best.jsonl"
    assert run("best-of", "--input", source, "--output", out) == 3
    first, second = read(out)
    found = {"index": 1, "model": "b", "rates": [1.0, 0.0], "statuses": {"checked": 2}}
    assert (first["answer"], first["answers"], first["best_of"]) == (RIGHT, several, found)
    assert (second["answer"], second["best_of"]["index"], second["best_of"]["rates"]) == (None, None, [None])
    del own["best_of"]
    assert own.items() <= first.items()  # a record's other keys stay
    assert "2 questions, 1 of them without an answer that could be judged" in capsys.readouterr().out
    assert run("best-of", "--input", source, "--output", out) == 3
    assert read(out) == [first, second]
    write_rows(out, [{**first, "best_of": "old"}, second])  # as `mitigate annotate` would leave it
    assert run("best-of", "--input", source, "--output", out) == 2
    assert "it has no 'best_of' of this command" in capsys.readouterr().err


def test_best_of_counts_failures_of_all_answers(tmp_path, annotator, capsys):
    def judge(sentences: Any) -> list[SentenceAnnotation]:
        return [s.judged("failed") if "fails" in s.text else s.scored((1, 0, 0, 0)) for s in sentences]

    annotator.judge = judge
    several = [{"text": "It fails. It fails again."}, {"text": RIGHT}]
    source = write_rows(tmp_path / "in.jsonl", [{"reference": REFERENCE, "answers": several}])
    for _ in range(2):  # from the file, too
        assert run("best-of", "--input", source, "--output", tmp_path / "best.jsonl") == 1
        assert "67% of the sentences failed, more than --max-failed 0.1" in capsys.readouterr().err
    (row,) = read(tmp_path / "best.jsonl")
    assert (row["best_of"]["index"], row["best_of"]["statuses"]) == (1, {"failed": 2, "checked": 1})
    more = "--output", tmp_path / "c.jsonl", "--delete"
    assert run("correct", "--input", tmp_path / "best.jsonl", *more) == 0  # its own only
