"""The examples are what their README says: gold labels that fit the sentences, questions that a real model answers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from annotators import LABELS
from annotators.text.sentences import split_sentences
from engines.packaged import on_disk
from mitigate.cli.main import main
from mitigate.io import check_annotation_input, read_lines
from mitigate.recipes.data import check_question
from tests.helpers.jsonl import read_rows

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES = list(read_lines(EXAMPLES / "records.jsonl", check_annotation_input))
RECORDS: list[dict[str, Any]] = [line.record for line in LINES if line.record is not None]


def test_every_sentence_has_a_gold_label():
    assert len(RECORDS) == len(LINES)
    for record in RECORDS:
        assert len(split_sentences(record["answer"])) == len(record["expected"]), record["id"]
        if record["reference"]:
            assert set(record["expected"]) <= set(LABELS)
        else:
            assert set(record["expected"]) == {None}


def test_readme_lists_every_unsupported_sentence():
    """By number in the answer and first letter of the label, as in "- `reef` 4 c (numbers exchanged), 6 u"."""
    lines = (EXAMPLES / "README.md").read_text(encoding="utf-8").splitlines()
    items = [match for line in lines if (match := re.match(r"- `(\w+)` (.+)", line))]
    listed = {(m[1], int(number), label) for m in items for number, label in re.findall(r"(\d+) ([cu])\b", m[2])}
    gold = {(r["id"], number, str(label)[0]) for r in RECORDS for number, label in enumerate(r["expected"], 1)}
    assert listed == {(name, number, letter) for name, number, letter in gold if letter in "cu"}


def test_questions_are_complete():
    lines = list(read_lines(EXAMPLES / "questions.jsonl", lambda row: check_question(row, needed=True)))
    rows = [line.record for line in lines if line.record is not None]
    assert len(rows) == len(lines) == len({row["id"] for row in rows}) == 12
    assert [row["id"] for row in rows if not row["answerable"]] == ["halley", "railway", "kilimanjaro"]


@pytest.mark.slow
@pytest.mark.skipif(on_disk("smollm2") is None, reason="skipped: run `mitigate models get smollm2` once")
def test_smollm2_answers_and_is_mended(tmp_path, capsys):
    """The recipe of `make run` on two questions with short answers, real weights throughout."""
    lines = (EXAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    data, out = tmp_path / "questions.jsonl", tmp_path / "run"
    data.write_text("".join(lines[4:6]), encoding="utf-8")
    command = ["run", "inference/example", f"data={data}", "answers=3", "answer_tokens=48", "--output", str(out)]
    assert main(command) == 0
    rows, done = read_rows(out / "results.jsonl"), json.loads((out / "done.json").read_text())
    assert [row["id"] for row in rows] == ["lovelace", "halley"]
    for row in rows:
        assert len(set(row["candidates"])) == 3
        assert sum(len(text.split()) for text in row["candidates"]) > 20  # it does say something
        assert row["stages"]["first"]["answer"] == row["candidates"][0]
    assert done["given"]["hallucinated"] <= done["chosen"]["hallucinated"]
    assert 0 < done["first"]["in_document"] <= 1
    assert (out / "report.html").read_text().count("<article") == 2
    assert "words in document" in capsys.readouterr().out
