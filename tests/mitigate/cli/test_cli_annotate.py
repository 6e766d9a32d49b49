"""`mitigate annotate` for one answer and as its users meet it first: reports, wrong usage, the examples."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.annotate_program import ANSWERS, REFERENCE, ROOT, mitigate, read, write_records


@pytest.fixture
def one(tmp_path: Path) -> list[str]:
    (tmp_path / "reference.txt").write_text(REFERENCE)
    (tmp_path / "answer.txt").write_text(ANSWERS[1])
    return ["--reference", f"{tmp_path}/reference.txt", "--answer", f"{tmp_path}/answer.txt"]


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
    done = mitigate(*one[:2], "--answer", "-", "--json", stdin="\ufeffThe sky is blue.\r\n Ünïcode 中 \U0001f600.\n")
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


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "--reference and --answer missing: give --reference FILE and --answer FILE"),
        (["--reference", "r.txt"], "--answer missing: give --reference FILE and --answer FILE"),
        (["--input", "in.jsonl"], "--input and --output go together; give both"),
        (["--output", "out.jsonl"], "--input and --output go together; give both"),
        (["--input", "in.jsonl", "--output", "o", "--question", "q"], "--question: for one answer only"),
        (["--reference", "r.txt", "--answer", "a.txt", "--overwrite"], "--overwrite: for --input and --output only"),
        (["--reference", "none.txt", "--answer", "a.txt"], "--reference: cannot read none.txt: No such file"),
        (["--reference", "r.txt", "--answer", "."], "--answer: cannot read .: Is a directory"),
        (["--reference", "r.txt", "--answer", "empty.txt"], "--answer: empty.txt holds no text"),
        (["--reference", "latin.txt", "--answer", "a.txt"], "latin.txt is not UTF-8 (byte 4); convert it first"),
        (["--reference", "r.txt", "--answer", "a.txt", "--html", "r.txt"], "r.txt is also the file of --reference"),
        (["--reference", "r.txt", "--answer", "a.txt", "--html", "."], "cannot write .: it is a folder; name a file"),
        (["--input", "none.jsonl", "--output", "o"], "cannot read none.jsonl: no such file"),
        (["--input", "in.jsonl", "--output", "in.jsonl"], "in.jsonl is the input and would be written over"),
        (["--input", "in.jsonl", "--output", "a.txt/o"], "cannot make the folder a.txt"),
        (["--input", "in.jsonl", "--output", "o", "--html", "o"], "o is also the file of --output"),
        (["--input", "in.jsonl", "--output", "a.txt"], "cannot continue a.txt: its line 1 is not a result of line 1"),
        (["--input", "in.jsonl", "--output", "o", "--chunk-size", "0"], "--chunk-size: expected 1 or more, got 0"),
        (["--input", "in.jsonl", "--output", "o", "--chunk-size", "x"], "--chunk-size: expected 1 or more, got x"),
        (
            ["--input", "in.jsonl", "--output", "o", "--calibration", "none.json"],
            "--calibration: expected a file of `mitigate calibrate`; none.json: No such file",
        ),
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


embedded = pytest.mark.skipif(
    not (ROOT / "annotators" / "embedded" / "annotator.json").exists(), reason="skipped: no embedded annotator yet"
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
    assert "Loading weights" not in done.stderr  # a bar where nobody looks
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
        found == {"checked"} for name, found in status.items() if name not in ("libai", "gugong", "no_reference")
    )
    whole = output.read_bytes()
    lines = whole.splitlines(keepends=True)
    output.write_bytes(b"".join(lines[:8]) + lines[8][:100])  # as a kill -9 in the middle of a write leaves it
    again = real(*files)
    assert again.returncode == 0, again.stderr
    assert output.read_bytes() == whole


@embedded
def test_an_annotator_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    done = real(
        "--input", ROOT / "examples" / "records.jsonl", "--output", tmp_path / "o.jsonl", "--annotator", tmp_path / "no"
    )
    assert done.returncode == 2
    assert f"--annotator {tmp_path}/no: " in done.stderr
    assert "Traceback" not in done.stderr
