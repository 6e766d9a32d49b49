"""`mitigate annotate` as its users run it: a process of its own, here with the stand-in annotator unless said."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ANSWERS = ["The sky is blue.", "It has 3 moons. Thanks!", "Nobody knows. The sky is blue."]
REFERENCE = "The sky is blue. It has 2 moons."


def heed_ctrl_c() -> None:
    """Jobs that a shell starts in the background ignore Ctrl-C, and so would their children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*args: str | Path, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.standin", "annotate", *map(str, args)],
        cwd=ROOT,
        env={**environment, "COLUMNS": "200", **(env or {})},
        text=True,
        encoding="utf-8",
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": heed_ctrl_c, **options},
    )


def mitigate(
    *args: str | Path, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    process = start(*args, env=env, stdin=subprocess.PIPE)
    out, err = process.communicate(stdin, timeout=120)
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def write_records(path: Path, n: int) -> Path:
    rows = [{"id": i, "reference": REFERENCE, "answer": ANSWERS[i % 3], "note": [i]} for i in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def one(tmp_path: Path) -> list[str]:
    (tmp_path / "reference.txt").write_text(REFERENCE)
    (tmp_path / "answer.txt").write_text(ANSWERS[1])
    return ["--reference", f"{tmp_path}/reference.txt", "--answer", f"{tmp_path}/answer.txt"]


# --- one answer -----------------------------------------------------------------------------------------


def test_one_answer_prints_the_report(one: list[str], tmp_path: Path) -> None:
    done = mitigate("--question", "How many moons?", *one, "--html", tmp_path / "new" / "page.html")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "Question How many moons?" in text
    assert "✗ contradictory 100 % It has 3 moons. evidence “It has 2 moons.” (17–32 of 32)" in text
    assert "correction “3” → “2”" in text
    assert "\x1b" not in done.stdout + done.stderr
    page = (tmp_path / "new" / "page.html").read_text()
    assert "<del>3</del><ins>2</ins>" in page


def test_one_answer_as_json_from_standard_input(one: list[str], tmp_path: Path) -> None:
    done = mitigate(
        *one[:2], "--answer", "-", "--json", stdin="\ufeffThe sky is blue.\r\n Ünïcode 中 \U0001f600.\n"
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["answer"] == "The sky is blue.\r\n Ünïcode 中 \U0001f600.\n"  # exactly, but for the mark
    assert [s["label"] for s in record["sentences"]] == ["supported", "unverifiable"]
    assert record["hallucination_rate"] == 0.5
    assert record["annotator"] == {"name": "exact", "fingerprint": "exact-1"}
    assert "question" not in record


def test_a_terminal_without_unicode_gets_escapes_and_json_stays_json(one: list[str], tmp_path: Path) -> None:
    (tmp_path / "answer.txt").write_text("Ünïcode 中 \U0001f600.")
    plain = mitigate(*one, env={"PYTHONIOENCODING": "ascii"})
    assert plain.returncode == 0, plain.stderr
    assert "\\xdcn\\xefcode \\u4e2d" in plain.stdout
    record = json.loads(mitigate(*one, "--json", env={"PYTHONIOENCODING": "ascii"}).stdout)
    assert record["answer"] == "Ünïcode 中 \U0001f600."


def test_colours_on_request_and_never_with_no_color(one: list[str]) -> None:
    assert "\x1b[1;31m" in mitigate(*one, env={"FORCE_COLOR": "1", "TERM": "xterm"}).stdout
    assert "31m" not in mitigate(*one, env={"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"}).stdout


# --- wrong usage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--reference and --answer missing: give --reference FILE and --answer FILE"),
        (["--reference", "r.txt"], "--answer missing: give --reference FILE and --answer FILE"),
        (["--input", "in.jsonl"], "--input and --output go together; give both"),
        (["--output", "out.jsonl"], "--input and --output go together; give both"),
        (["--input", "in.jsonl", "--output", "o", "--question", "q"], "--question: for one answer only"),
        (["--input", "in.jsonl", "--output", "o", "--json"], "--json: for one answer only"),
        (
            ["--reference", "r.txt", "--answer", "a.txt", "--overwrite"],
            "--overwrite: for --input and --output only",
        ),
        (["--reference", "none.txt", "--answer", "a.txt"], "--reference: cannot read none.txt: No such file"),
        (["--reference", "r.txt", "--answer", "."], "--answer: cannot read .: Is a directory"),
        (["--reference", "r.txt", "--answer", "empty.txt"], "--answer: empty.txt holds no text"),
        (
            ["--reference", "latin.txt", "--answer", "a.txt"],
            "latin.txt is not UTF-8 (byte 4); convert it first",
        ),
        (
            ["--reference", "r.txt", "--answer", "a.txt", "--html", "r.txt"],
            "r.txt is also the file of --reference",
        ),
        (
            ["--reference", "r.txt", "--answer", "a.txt", "--html", "."],
            "cannot write .: it is a folder; name a file",
        ),
        (["--input", "none.jsonl", "--output", "o"], "cannot read none.jsonl: no such file"),
        (["--input", "in.jsonl", "--output", "in.jsonl"], "in.jsonl is the input and would be written over"),
        (["--input", "in.jsonl", "--output", "a.txt/o"], "cannot make the folder a.txt"),
        (["--input", "in.jsonl", "--output", "o", "--html", "o"], "o is also the file of --output"),
        (
            ["--input", "in.jsonl", "--output", "a.txt"],
            "cannot continue a.txt: its line 1 is not a result of line 1",
        ),
        (
            ["--input", "in.jsonl", "--output", "o", "--chunk-size", "0"],
            "--chunk-size: expected 1 or more, got 0",
        ),
        (["--input", "in.jsonl", "--output", "o", "--chunk-size", "x"], "invalid int value: 'x'"),
        (["--inptu", "in.jsonl"], "unrecognized arguments: --inptu"),
    ],
)
def test_wrong_usage_is_told_before_a_model_loads(tmp_path: Path, args: list[str], message: str) -> None:
    write_records(tmp_path / "in.jsonl", 2)
    (tmp_path / "r.txt").write_text(REFERENCE)
    (tmp_path / "a.txt").write_text("The sky is blue.\n")
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = mitigate(*args, env={"STANDIN_CWD": str(tmp_path)})
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "LOADED" not in done.stderr
    assert done.stdout == ""
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "o"}
    assert after == before


def test_an_unknown_annotator_is_wrong_usage_and_costs_no_results(tmp_path: Path) -> None:
    source, output = write_records(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    files: list[str | Path] = ["--input", source, "--output", output]
    assert mitigate(*files).returncode == 0
    before = output.read_bytes()
    done = mitigate(*files, "--annotator", "missing", "--overwrite")
    assert done.returncode == 2
    assert "--annotator missing: no such annotator; expected embedded, a path or a hub id" in done.stderr
    assert output.read_bytes() == before


def test_another_annotator_does_not_continue_the_file_of_the_first(tmp_path: Path) -> None:
    source, output = write_records(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    files: list[str | Path] = ["--input", source, "--output", output]
    assert mitigate(*files).returncode == 0
    before = output.read_bytes()
    done = mitigate(*files, env={"STANDIN_FINGERPRINT": "exact-2"})
    assert done.returncode == 2
    assert "fingerprint exact-1, and embedded has exact-2; choose another --output" in done.stderr
    assert output.read_bytes() == before
    assert mitigate(*files, "--overwrite", env={"STANDIN_FINGERPRINT": "exact-2"}).returncode == 0
    assert {row["annotator"]["fingerprint"] for row in read(output)} == {"exact-2"}


# --- a file ---------------------------------------------------------------------------------------------


def test_a_file_is_annotated_reported_and_found_complete(tmp_path: Path) -> None:
    source, output = write_records(tmp_path / "in.jsonl", 6), tmp_path / "out" / "o.jsonl"
    files: list[str | Path] = [
        "--input",
        source,
        "--output",
        output,
        "--html",
        tmp_path / "out" / "page.html",
    ]
    first = mitigate(*files)
    assert first.returncode == 0, first.stderr
    rows = read(output)
    assert [row["id"] for row in rows] == list(range(6))
    assert [row["note"] for row in rows] == [[i] for i in range(6)]  # extra keys pass through
    assert [s["label"] for s in rows[1]["sentences"]] == ["contradictory", "no_fact"]
    assert re.search(r"6 records, 10 sentences in [\d.]+ s \([\d,.]+ sentences/s\)", first.stderr)
    text = " ".join(first.stdout.split())
    # labels of three records: s | c n | u s, twice; (2 c + 2 u) / (2·2 s + 2 c + 2 u) = 4/8
    assert (
        "records 6 sentences 10 ✓ supported 4 (40 %) ✗ contradictory 2 (20 %) ? unverifiable 2 (20 %)" in text
    )
    assert "hallucination rate 50 % of 8 judged factual sentences (95 % interval over records: " in text
    assert "\x1b" not in first.stdout + first.stderr
    assert "annotating" not in first.stderr  # no progress bar where nobody looks
    page = (tmp_path / "out" / "page.html").read_bytes()
    second = mitigate(*files)
    assert (second.returncode, second.stdout) == (0, first.stdout)
    assert "6 of them already in" in second.stderr
    assert "sentences/s" not in second.stderr
    assert (tmp_path / "out" / "page.html").read_bytes() == page
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["o.jsonl", "page.html"]


def test_a_terminal_sees_a_progress_bar_with_the_speed(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    files = [
        "--input",
        write_records(tmp_path / "in.jsonl", 6),
        "--output",
        tmp_path / "o.jsonl",
        "--chunk-size",
        "2",
    ]
    process = start(*files, env={"STANDIN_DELAY": "0.3", "TERM": "xterm"}, stderr=terminal)
    out, _ = process.communicate(timeout=120)
    os.close(terminal)
    seen = b""
    try:
        while data := os.read(master, 65536):
            seen += data
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert process.returncode == 0
    assert re.search(rb"annotating.*2/6.*[\d.]+ sentences/s.*4/6", seen, re.S)
    assert "\x1b" not in out  # standard output is no terminal here


def test_a_file_of_many_records_prints_totals_only(tmp_path: Path) -> None:
    done = mitigate("--input", write_records(tmp_path / "in.jsonl", 51), "--output", tmp_path / "o.jsonl")
    assert done.returncode == 0
    assert "hallucination rate" in done.stdout
    assert "evidence" not in done.stdout


def test_rejected_lines_stop_no_other_and_exit_3(tmp_path: Path) -> None:
    source, output = write_records(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    lines = source.read_text().splitlines()
    lines[1:1] = ["{broken", '{"reference": "r", "answer": 5}'] + ["[]"] * 10
    source.write_text("\n".join(lines))
    for _ in range(2):  # and again when all is done
        done = mitigate("--input", source, "--output", output, "--html", tmp_path / "page.html")
        assert done.returncode == 3
        assert f"{source}:2: expected one JSON object a line" in done.stderr
        assert f"{source}:3: answer: expected a string with text in it, got 5 (line rejected)" in done.stderr
        assert "2 more lines rejected, see" in done.stderr
        assert "rejected lines" in done.stdout
        assert [row["id"] for row in read(output)] == [0, 1, 2]
        rejected = read(tmp_path / "out.jsonl.rejected.jsonl")
        assert [row["line"] for row in rejected] == list(range(2, 14))
        assert rejected[1]["problems"] == [
            {"field": "answer", "value": "5", "expected": "a string with text in it"}
        ]
        assert "<b>12</b><span>input lines rejected</span>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("content", "code"), [("", 0), ("\n\n", 0), ("bad\n", 3)])
def test_a_file_without_records_loads_no_model(tmp_path: Path, content: str, code: int) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(content)
    done = mitigate("--input", source, "--output", output)
    assert done.returncode == code, done.stderr
    assert "LOADED" not in done.stderr
    assert "not known: no factual sentence was judged" in done.stdout
    assert output.read_bytes() == b""


def test_an_annotated_file_can_be_annotated_again(tmp_path: Path) -> None:
    source, first, second = (
        write_records(tmp_path / "in.jsonl", 3),
        tmp_path / "a.jsonl",
        tmp_path / "b.jsonl",
    )
    assert mitigate("--input", source, "--output", first, env={"STANDIN_FINGERPRINT": "old"}).returncode == 0
    assert mitigate("--input", first, "--output", second).returncode == 0
    for old, new in zip(read(first), read(second), strict=True):
        assert old["annotator"]["fingerprint"] == "old"
        assert new == {**old, "annotator": {"name": "exact", "fingerprint": "exact-1"}}


def test_hostile_records_come_out_as_they_went_in(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [
        {"reference": "\ud800 lone", "answer": "A \udfff lone surrogate. \x00 and \x1b[31m."},
        {"reference": "<Reference> x <SEP>", "answer": "</script><b>\u202ebold\u2028</b>.", "id": "\ud800"},
        {"reference": "", "answer": "word " * 10_000},
        {"reference": "r", "answer": "long" * 5_000 + "."},
        {"reference": "r", "answer": "...\r\n\r\n!!", "question": "[red]\x07"},
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = mitigate("--input", source, "--output", output, "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    for row, written in zip(rows, read(output), strict=True):
        assert {key: written[key] for key in row} == row
        for sentence in written["sentences"]:
            assert row["answer"][sentence["start"] : sentence["end"]] == sentence["text"]
    (tmp_path / "page.html").read_bytes().decode("utf-8")


# --- interruptions --------------------------------------------------------------------------------------


def wait_for_lines(path: Path, n: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < n:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_kill_9_and_start_again_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    source, output = write_records(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"
    source.write_text(source.read_text() + "bad\n")
    whole = tmp_path / "whole.jsonl"
    assert mitigate("--input", source, "--output", whole).returncode == 3
    files: list[str | Path] = ["--input", source, "--output", output, "--chunk-size", "2"]
    for lines in (4, 16, 30):
        process = start(*files, env={"STANDIN_DELAY": "0.05"})
        wait_for_lines(output, lines, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=120) == -signal.SIGKILL
        process.communicate()
        assert whole.read_bytes().startswith(output.read_bytes())
        assert output.read_bytes().count(b"\n") < 40
        with output.open("ab") as file:  # what a kill in the middle of a write leaves
            file.write(b'{"id": 39, "refer')
    done = mitigate(*files)
    assert done.returncode == 3, done.stderr
    assert output.read_bytes() == whole.read_bytes()
    assert read(tmp_path / "out.jsonl.rejected.jsonl") == read(tmp_path / "whole.jsonl.rejected.jsonl")
    assert not list(tmp_path.glob("*.part"))


def test_ctrl_c_exits_130_says_how_to_continue_and_keeps_what_is_done(tmp_path: Path) -> None:
    source, output = write_records(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"
    files: list[str | Path] = ["--input", source, "--output", output, "--chunk-size", "2"]
    process = start(*files, env={"STANDIN_DELAY": "1"})
    wait_for_lines(output, 4, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted; run the same command again to continue" in err
    assert "Traceback" not in err
    rows = read(output)
    assert 4 <= len(rows) < 40
    assert mitigate(*files).returncode == 0
    assert [row["id"] for row in read(output)] == list(range(40))


def test_a_second_run_on_the_same_output_is_refused(tmp_path: Path) -> None:
    source, output = write_records(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"
    files: list[str | Path] = ["--input", source, "--output", output, "--chunk-size", "1"]
    process = start(*files, env={"STANDIN_DELAY": "0.2"})
    try:
        wait_for_lines(output, 1, process)
        done = mitigate(*files)
        assert done.returncode == 2
        assert "is being written by another run: wait for it, or choose another --output" in done.stderr
        assert "LOADED" not in done.stderr
    finally:
        process.kill()
        process.communicate()


def test_a_disk_that_is_full_fails_with_1_and_one_line(tmp_path: Path) -> None:
    source, output = write_records(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"

    def small_files() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, 3_000))

    process = start("--input", source, "--output", output, "--chunk-size", "1", preexec_fn=small_files)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert re.search(
        r"mitigate: error: cannot write .*out\.jsonl: File too large; its \d+ records are kept", err
    )
    assert "Traceback" not in err
    assert mitigate("--input", source, "--output", output).returncode == 0
    assert [row["id"] for row in read(output)] == list(range(20))


# --- the embedded annotator -----------------------------------------------------------------------------

embedded = pytest.mark.skipif(
    not (ROOT / "annotators" / "embedded" / "annotator.json").exists(),
    reason="skipped: no embedded annotator yet",
)


def real(*args: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mitigate.cli", "annotate", *map(str, args)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False, timeout=200
    )


@embedded
def test_the_examples_with_the_embedded_annotator(tmp_path: Path) -> None:
    source, output = ROOT / "examples" / "records.jsonl", tmp_path / "out.jsonl"
    files: list[str | Path] = ["--input", source, "--output", output, "--chunk-size", "4"]
    done = real(*files, "--html", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    rows = read(output)
    for record, row in zip(read(source), rows, strict=True):
        assert {key: row[key] for key in record} == record
        assert len(row["sentences"]) == len(record["expected"])
        for s in row["sentences"]:
            assert record["answer"][s["start"] : s["end"]] == s["text"]
            assert all(record["reference"][f["start"] : f["end"]] == f["text"] for f in s["fragments"])
            assert all(record["answer"][c["start"] : c["end"]] == c["from"] for c in s["correction"])
            assert (s["label"] is None) == (s["status"] != "checked")
            if s["scores"] is not None:
                assert sum(s["scores"].values()) == pytest.approx(1, abs=1e-6)
    status = {row["id"]: {s["status"] for s in row["sentences"]} for row in rows}
    assert status["libai"] == status["gugong"] == {"checked", "language_unsupported"}
    chinese = {s["label"] for row in rows for s in row["sentences"] if row["id"] in ("libai", "gugong")}
    assert chinese == {"supported", None}
    assert status["no_reference"] == {"no_reference"}
    assert all(
        found == {"checked"}
        for name, found in status.items()
        if name not in ("libai", "gugong", "no_reference")
    )
    whole = output.read_bytes()
    lines = whole.splitlines(keepends=True)
    output.write_bytes(
        b"".join(lines[:8]) + lines[8][:100]
    )  # as a kill -9 in the middle of a write leaves it
    again = real(*files)
    assert again.returncode == 0, again.stderr
    assert output.read_bytes() == whole


@embedded
def test_an_annotator_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    done = real(
        "--input",
        ROOT / "examples" / "records.jsonl",
        "--output",
        tmp_path / "o.jsonl",
        "--annotator",
        tmp_path / "no",
    )
    assert done.returncode == 2
    assert f"--annotator {tmp_path}/no: " in done.stderr
    assert "Traceback" not in done.stderr
