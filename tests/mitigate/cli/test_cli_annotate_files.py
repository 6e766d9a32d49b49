"""`mitigate annotate` for files of records: totals, progress, rejected and hostile lines."""

import json
import os
import re
from pathlib import Path

import pytest

from tests.helpers.annotate_program import mitigate, read, start, write_records


def test_a_file_is_annotated_reported_and_found_complete(tmp_path):
    source, output = write_records(tmp_path / "in.jsonl", 6), tmp_path / "out" / "o.jsonl"
    files: list[str | Path] = ["--input", source, "--output", output, "--html", tmp_path / "out" / "page.html"]
    first = mitigate(*files)
    assert first.returncode == 0, first.stderr
    rows = read(output)
    assert [row["id"] for row in rows] == list(range(6))
    assert [row["note"] for row in rows] == [[i] for i in range(6)]  # extra keys pass through
    assert [s["label"] for s in rows[1]["sentences"]] == ["contradictory", "no_fact"]
    assert re.search(r"6 records, 10 sentences in [\d.]+ s \([\d,.]+ sentences/s\)", first.stderr)
    text = " ".join(first.stdout.split())
    # labels of three records: s | c n | u s, twice; (2 c + 2 u) / (2·2 s + 2 c + 2 u) = 4/8
    assert "records 6 sentences 10 ✓ supported 4 (40 %) ✗ contradictory 2 (20 %) ? unverifiable 2 (20 %)" in text
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


def test_a_terminal_sees_a_progress_bar_with_the_speed(tmp_path):
    master, terminal = os.openpty()
    files = ["--input", write_records(tmp_path / "in.jsonl", 6), "--output", tmp_path / "o.jsonl", "--chunk-size", "2"]
    process = start(*files, env={"STANDIN_DELAY": "1", "TERM": "xterm"}, stderr=terminal)
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


def test_a_file_of_many_records_prints_totals_only(tmp_path):
    done = mitigate("--input", write_records(tmp_path / "in.jsonl", 51), "--output", tmp_path / "o.jsonl")
    assert done.returncode == 0
    assert "hallucination rate" in done.stdout
    assert "evidence" not in done.stdout


def test_rejected_lines_stop_no_other_and_exit_3(tmp_path):
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
        assert rejected[1]["problems"] == [{"field": "answer", "value": "5", "expected": "a string with text in it"}]
        assert "<b>12</b><span>input lines rejected</span>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(("content", "code"), [("", 0), ("\n\n", 0), ("bad\n", 3)])
def test_a_file_without_records_loads_no_model(tmp_path, content, code):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(content)
    done = mitigate("--input", source, "--output", output)
    assert done.returncode == code, done.stderr
    assert "LOADED" not in done.stderr
    assert "not known: no factual sentence was judged" in done.stdout
    assert output.read_bytes() == b""


def test_an_annotated_file_can_be_annotated_again(tmp_path):
    source, first, second = (write_records(tmp_path / "in.jsonl", 3), tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert mitigate("--input", source, "--output", first, env={"STANDIN_FINGERPRINT": "old"}).returncode == 0
    assert mitigate("--input", first, "--output", second).returncode == 0
    for old, new in zip(read(first), read(second), strict=True):
        assert old["annotator"]["fingerprint"] == "old"
        assert new == {**old, "annotator": {"name": "exact", "fingerprint": "exact-1"}}


def test_hostile_records_come_out_as_they_went_in(tmp_path):
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
