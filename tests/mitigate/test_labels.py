"""Rows to calibrate on, from labelled sentences and from annotated records with gold labels."""

from pathlib import Path

from mitigate.labels import read_answers, read_gold
from tests.helpers.jsonl import write_rows


def test_gold_rows_of_both_forms(tmp_path: Path) -> None:
    row = {"reference": "It is red.", "sentence": "It is blue.", "label": "contradictory", "lang": "en", "question": ""}
    sentences = [{"text": "它是红的。", "gold": "supported"}, {"text": "It is old.", "gold": None}]
    asked = {"reference": "R.", "answer": "它是红的。It is old.", "language": "zh", "question": "Q?"}
    record = {**asked, "sentences": sentences}
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


def test_answers_that_nobody_could_judge_are_passed_over(tmp_path: Path) -> None:
    asked = {"question": "Q?", "reference": "R."}
    rows = [{**asked, "answer": None, "sentences": []}, {**asked, "answer": None, "sentences": None}]
    said = {"text": "It is.", "start": 19, "end": 25, "label": "supported", "fragments": [], "correction": []}
    rows.append({**asked, "answer": "<think>So?</think> It is.", "sentences": [said]})
    found, bad = read_answers([Path(write_rows(tmp_path / "a.jsonl", rows))])
    assert ([(answer.answer, answer.coverage) for answer in found], bad) == ([(rows[2]["answer"], 1.0)], 1)


def test_a_stock_phrase_joins_no_documents(tmp_path: Path) -> None:
    rows = [
        {"reference": f"R{n}.", "sentence": text, "label": label}
        for n in range(3)
        for text, label in (("Here is a summary:", "no_fact"), (f"It is {n}.", "supported"), ("All are.", "supported"))
    ]
    _, groups, _ = read_gold([write_rows(tmp_path / "a.jsonl", rows)])
    assert len(set(groups)) == 1  # by a claim that they share
    _, groups, _ = read_gold([write_rows(tmp_path / "b.jsonl", [row for row in rows if row["sentence"] != "All are."])])
    assert [len(set(groups[i : i + 2])) for i in (0, 2, 4)] == [1, 1, 1]
    assert len(set(groups)) == 3
