"""`mitigate annotate` for one answer and as its users meet it first: reports, wrong usage, the examples."""

import json
from pathlib import Path

import pytest

from tests.helpers.annotate_program import ANSWERS, REFERENCE, mitigate, write_records


@pytest.fixture
def one(tmp_path: Path) -> list[str]:
    (tmp_path / "reference.txt").write_text(REFERENCE)
    (tmp_path / "answer.txt").write_text(ANSWERS[1])
    return ["--reference", f"{tmp_path}/reference.txt", "--answer", f"{tmp_path}/answer.txt"]


def test_one_answer_prints_the_report(one, tmp_path):
    done = mitigate("--question", "How many moons?", *one, "--html", tmp_path / "new" / "page.html")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "Question How many moons?" in text
    assert "✗ contradictory 100 % It has 3 moons. evidence “It has 2 moons.” (17–32 of 32)" in text
    assert "correction “3” → “2”" in text
    assert "\x1b" not in done.stdout + done.stderr
    page = (tmp_path / "new" / "page.html").read_text()
    assert "<del>3</del><ins>2</ins>" in page


def test_one_answer_as_json_from_standard_input(one, tmp_path):
    done = mitigate(*one[:2], "--answer", "-", "--json", stdin="\ufeffThe sky is blue.\r\n Ünïcode 中 \U0001f600.\n")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["answer"] == "The sky is blue.\r\n Ünïcode 中 \U0001f600.\n"  # exactly, but for the mark
    assert [s["label"] for s in record["sentences"]] == ["supported", "unverifiable"]
    assert record["hallucination_rate"] == 0.5
    assert record["annotator"] == {"name": "exact", "fingerprint": "exact-1"}
    assert "question" not in record


def test_a_terminal_without_unicode_gets_escapes_and_json_stays_json(one, tmp_path):
    (tmp_path / "answer.txt").write_text("Ünïcode 中 \U0001f600.")
    plain = mitigate(*one, env={"PYTHONIOENCODING": "ascii"})
    assert plain.returncode == 0, plain.stderr
    assert "\\xdcn\\xefcode \\u4e2d" in plain.stdout
    record = json.loads(mitigate(*one, "--json", env={"PYTHONIOENCODING": "ascii"}).stdout)
    assert record["answer"] == "Ünïcode 中 \U0001f600."


def test_colours_on_request_and_never_with_no_color(one):
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
def test_wrong_usage_is_told_before_a_model_loads(tmp_path, args, message):
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


def test_an_unknown_annotator_is_wrong_usage_and_costs_no_results(tmp_path):
    source, output = write_records(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    files: list[str | Path] = ["--input", source, "--output", output]
    assert mitigate(*files).returncode == 0
    before = output.read_bytes()
    done = mitigate(*files, "--annotator", "missing", "--overwrite")
    assert done.returncode == 2
    assert "--annotator missing: no such annotator; expected embedded, a path or a hub id" in done.stderr
    assert output.read_bytes() == before
