"""The examples are what their README says: enough records, gold labels that fit the sentences, real variety."""

import re
from pathlib import Path
from typing import Any

from annotators import LABELS
from annotators.text.sentences import split_sentences
from mitigate.io import check_annotation_input, read_lines

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
