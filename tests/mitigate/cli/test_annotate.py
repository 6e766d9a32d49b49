"""`mitigate annotate`: one answer, files of records, generative annotators, and runs that are stopped on the way."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import annotators
from mitigate.cli.main import main
from tests.helpers.annotator_server import annotating, correct
from tests.helpers.engines_server import Reply, completion
from tests.helpers.jsonl import read_rows as read
from tests.helpers.jsonl import write_rows
from tests.helpers.standin import ANSWERS, REFERENCE, ExactAnnotator, mitigate, start, wait_until, write_records


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> ExactAnnotator:
    """What `--annotator` names is the stand-in, in this process, unless it is "missing"."""
    annotator = ExactAnnotator()
    monkeypatch.setenv("COLUMNS", "200")

    def load(name: str, **_: Any) -> ExactAnnotator:
        if name == "missing":
            raise ValueError("no such annotator; expected embedded, a path or a hub id")
        return annotator

    monkeypatch.setattr(annotators, "load_annotator", load)
    return annotator


def run(*args: object) -> int:
    return main(["annotate", *map(str, args)])


@pytest.fixture
def one(tmp_path: Path) -> list[str]:
    (tmp_path / "reference.txt").write_text(REFERENCE)
    (tmp_path / "answer.txt").write_text(ANSWERS[1])
    return ["--reference", f"{tmp_path}/reference.txt", "--answer", f"{tmp_path}/answer.txt"]


def test_one_answer_prints_the_report(one: list[str], tmp_path: Path, exact: ExactAnnotator, capsys) -> None:
    assert run("--question", "How many moons?", *one, "--html", tmp_path / "new" / "page.html") == 0
    out, err = capsys.readouterr()
    text = " ".join(out.split())
    assert "Question How many moons?" in text
    why = "why: The answer says “3”, the source “2”. (or unverifiable 0 %)"
    evidence = "evidence “It has 2 moons.” (17–32 of 32) correction “3” → “2”"
    assert f"✗ contradictory 100 % It has 3 moons. {why} {evidence}" in text
    assert "\x1b" not in out + err
    assert "<del>3</del><ins>2</ins>" in (tmp_path / "new" / "page.html").read_text()


def test_standard_input_is_read_exactly(one, exact, capsys, monkeypatch):
    typed = "\ufeffThe sky is blue.\r\n Ünïcode 中 \U0001f600.\n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
    assert run(*one[:2], "--answer", "-", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["answer"] == "The sky is blue.\r\n Ünïcode 中 \U0001f600.\n"  # exactly, but for the mark
    assert [s["label"] for s in record["sentences"]] == ["supported", "unverifiable"]
    assert record["hallucination_rate"] == 0.5
    assert record["annotator"] == {"name": "exact", "fingerprint": "exact-1"}
    assert "question" not in record


def test_terminals_without_unicode_or_colour(one: list[str], tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("It has 3 moons. Ünïcode 中 \U0001f600.")
    plain = mitigate(*one, env={"PYTHONIOENCODING": "ascii"})
    assert plain.returncode == 0, plain.stderr
    assert "\\xdcn\\xefcode \\u4e2d" in plain.stdout
    record = json.loads(mitigate(*one, "--json", env={"PYTHONIOENCODING": "ascii"}).stdout)
    assert record["answer"] == "It has 3 moons. Ünïcode 中 \U0001f600."
    assert "\x1b[1;31m" in mitigate(*one, env={"FORCE_COLOR": "1", "TERM": "xterm"}).stdout
    assert "31m" not in mitigate(*one, env={"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"}).stdout


def test_another_annotator_does_not_continue(tmp_path: Path, exact: ExactAnnotator, capsys) -> None:
    source, output = write_records(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    files = ["--input", source, "--output", output]
    assert run(*files, "--annotator", "missing") == 2
    assert not output.exists()  # nothing was judged
    assert run(*files) == 0
    before = output.read_bytes()
    assert run(*files, "--annotator", "missing", "--overwrite") == 2
    assert "--annotator missing: no such annotator; expected embedded, a path or a hub id" in capsys.readouterr().err
    exact.fingerprint = "exact-2"
    assert run(*files) == 2
    assert "fingerprint exact-1, and embedded has exact-2; choose another --output" in capsys.readouterr().err
    assert output.read_bytes() == before
    assert run(*files, "--overwrite") == 0
    assert {row["annotator"]["fingerprint"] for row in read(output)} == {"exact-2"}
    again = tmp_path / "again.jsonl"  # an annotated file can be annotated anew
    exact.fingerprint = "exact-3"
    assert run("--input", output, "--output", again) == 0
    who = {"name": "exact", "fingerprint": "exact-3"}
    assert read(again) == [{**row, "annotator": who} for row in read(output)]


def test_a_file_is_annotated_and_reported(tmp_path: Path, exact: ExactAnnotator, capsys) -> None:
    source, output = write_records(tmp_path / "in.jsonl", 51), tmp_path / "out" / "o.jsonl"
    source.write_text('{"reference": "r", "answer": 5}\n' * 12 + source.read_text())
    page = output.with_name("page.html")
    files = ["--input", source, "--output", output, "--html", page]
    assert run(*files) == 3
    out, err = capsys.readouterr()
    assert f"{source}:1: answer: expected a string with text in it, got 5 (line rejected)" in err
    assert err.count("(line rejected)") == 10
    assert "mitigate: 2 more lines rejected, see" in err
    assert [row["line"] for row in read(tmp_path / "out" / "o.jsonl.rejected.jsonl")] == list(range(1, 13))
    assert "<b>12</b><span>input lines rejected</span>" in page.read_text()
    assert [(row["id"], row["note"]) for row in read(output)] == [(i, [i]) for i in range(51)]  # extra keys stay
    assert re.search(r"51 records, 85 sentences in [\d.]+ s \([\d,.]+ sentences/s\)", err)
    # labels of three records: s | c n | u s; (1 c + 1 u) / (2 s + 1 c + 1 u) = 2/4
    said = " ".join(out.split())
    assert "rejected lines 12" in said
    assert "hallucination rate 50 % of 68 judged factual sentences (95 % interval over records: " in said
    assert "evidence" not in out  # of a long file, totals only
    assert "\x1b" not in out + err
    assert "annotating" not in err  # no progress bar where nobody looks
    before = page.read_bytes()
    assert run(*files) == 3  # complete
    second = capsys.readouterr()
    assert second.out == out
    assert "51 of them already in" in second.err
    assert "sentences/s" not in second.err
    assert page.read_bytes() == before
    assert sorted(path.name for path in output.parent.iterdir()) == ["o.jsonl", "o.jsonl.rejected.jsonl", "page.html"]


@pytest.mark.parametrize(("content", "code"), [("", 0), ("\n\n", 0), ("bad\n", 3)])
def test_without_records_no_model_loads(tmp_path: Path, content: str, code: int, capsys) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(content)
    assert run("--input", source, "--output", output, "--annotator", "/none") == code
    assert "not known: no factual sentence was judged" in capsys.readouterr().out
    assert output.read_bytes() == b""


def test_a_terminal_sees_a_progress_bar(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    files = ["--input", write_records(tmp_path / "in.jsonl", 6), "--output", tmp_path / "o.jsonl", "--chunk-size", "2"]
    process = start(*files, env={"STANDIN_DELAY": "0.4", "TERM": "xterm"}, stderr=terminal)
    os.close(terminal)
    seen = b""
    try:  # read all along: a terminal takes some kilobytes, then who writes waits
        while data := os.read(master, 65536):
            seen += data
    except OSError:  # the other end is closed
        pass
    os.close(master)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert re.search(rb"annotating.*[24]/6.*[\d.]+ sentences/s", seen, re.S)
    assert "\x1b" not in out  # standard output is no terminal here


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, exact: ExactAnnotator, capsys) -> None:
    source, output = write_records(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"
    files = ["--input", source, "--output", output, "--chunk-size", "2"]
    process = start(*files, env={"STANDIN_HOLD": "6"})
    wait_until(lambda: output.exists() and output.read_bytes().count(b"\n") >= 4, process)
    assert run(*files) == 2
    assert "is being written by another run: wait for it, or choose another --output" in capsys.readouterr().err
    assert exact.calls == 0
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted; run the same command again to continue" in err
    assert "Traceback" not in err
    assert 4 <= len(read(output)) <= 6
    assert run(*files) == 0
    assert [row["id"] for row in read(output)] == list(range(40))


@pytest.fixture
def bridges(tmp_path: Path) -> Path:
    text = "Bridge {0} opened in 190{0}. It is {0}{1} metres long."
    texts = [(text.format(n, 0), f"Hello! {text.format(n, 1)} It is pretty.") for n in range(1, 7)]
    return write_rows(tmp_path / "in.jsonl", [{"id": i, "reference": r, "answer": a} for i, (r, a) in enumerate(texts)])


def by_llm(source: Path, url: str, *more: str) -> list[str]:
    files = ["annotate", "--input", str(source), "--output", str(source.with_name("out.jsonl"))]
    return [*files, "--annotator", f"generative:openai:m@{url}", "--concurrency", "1", *more]


def rows_of(source: Path) -> list[dict[str, Any]]:
    return read(source.with_name("out.jsonl"))


def test_a_killed_generative_run_asks_nothing_twice(bridges: Path) -> None:
    running: list[subprocess.Popen[bytes]] = []
    asked: list[str] = []

    def script(body: dict[str, Any]) -> Reply | str:
        asked.append(json.dumps(body["messages"]))
        if len(asked) == 22:
            os.kill(running[0].pid, signal.SIGKILL)
            running[0].wait()
        return correct(body)

    with annotating(script) as server:
        args = by_llm(bridges, server.url, "--protocol", "three-turn", "--chunk-size", "2")
        running.append(subprocess.Popen([sys.executable, "-m", "mitigate.cli", *args], stderr=subprocess.DEVNULL))
        assert running[0].wait() == -signal.SIGKILL
        assert len(rows_of(bridges)) == 2  # 18 requests a chunk of two records: the second chunk was under way
        assert main(args) == 0
        counts = Counter(asked)
        assert {text: n for text, n in counts.items() if n > 1} == {asked[21]: 2}  # it was never answered
        assert len(counts) == 6 * 9
        assert main(args) == 0  # complete: nothing is asked, nothing changes
        assert len(asked) == 6 * 9 + 1
        rows = rows_of(bridges)
        loaded = annotators.load_annotator(f"generative:openai:m@{server.url}", protocol="three-turn")
        assert rows == [one.to_dict() for one in loaded.annotate_batch(read(bridges))]
    expected = ["no_fact", "supported", "contradictory", "unverifiable"]
    assert [[s["label"] for s in row["sentences"]] for row in rows] == [expected] * 6


def test_failed_sentences_stay_in_their_record(bridges: Path, capsys) -> None:
    def script(body: dict[str, Any]) -> Reply | str:
        return completion("no idea") if "pretty" in body["messages"][0]["content"] else correct(body)

    with annotating(script) as server:
        args = by_llm(bridges, server.url, "--max-retries", "0", "--html", str(bridges.with_name("p.html")))
        assert main([*args, "--max-failed", "0.25"]) == 0  # one of four sentences of each record
        assert main(args) == 1  # more than a tenth, unless another share is given
    told = capsys.readouterr().err
    assert "mitigate: problems with replies, by sentence: no_tags 6" in told
    assert "the judgement of 25% of the sentences failed, more than --max-failed 0.1" in told
    last = [row["sentences"][-1] for row in rows_of(bridges)]
    assert {(s["status"], s["label"], s["problems"][0]) for s in last} == {("failed", None, "no_tags")}
    assert "It is pretty" in bridges.with_name("p.html").read_text()
