"""Rows to calibrate on, from labelled sentences and from annotated records with gold labels."""

from pathlib import Path

from mitigate.labels import read_gold
from tests.helpers.jsonl import write_rows


def test_gold_rows_of_both_forms(tmp_path: Path) -> None:
    row = {"reference": "It is red.", "sentence": "It is blue.", "label": "contradictory", "lang": "en", "question": ""}
    sentences = [{"text": "它是红的。", "gold": "supported"}, {"text": "It is old.", "gold": None}]
    record = {
        "reference": "R.",
        "answer": "它是红的。It is old.",
        "sentences": sentences,
        "language": "zh",
        "question": "Q?",
    }
    bad = {**record, "sentences": [{"text": "", "gold": "wrong"}]}
    paths = write_rows(tmp_path / "a.jsonl", [row, record, bad]), write_rows(tmp_path / "b.jsonl", [row])
    rows, groups, rejected = read_gold([Path(path) for path in paths])
    assert rows == [
        {"reference": "It is red.", "sentence": "It is blue.", "label": "contradictory", "language": "en"},
        {"reference": "R.", "sentence": "它是红的。", "label": "supported", "question": "Q?",
         "answer": record["answer"], "language": "zh"},
    ]  # fmt: skip
    assert len(set(groups)) == 2
    assert [(path.name, line.number) for path, line in rejected] == [("a.jsonl", 3)]
