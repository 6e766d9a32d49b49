"""Questions of a run: read from a file under any column names, divided by reference, bad lines kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from mitigate.io import UsageError, read_rows
from mitigate.recipes import rlhf
from mitigate.recipes.config import check
from mitigate.recipes.data import as_row, check_question, divide, named, read_questions
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.options import Columns
from tests.helpers.jsonl import write_rows


def options_of(data: Path, **more: Any) -> rlhf.Options:
    base = {"task": "rlhf", "about": "a test", "hardware": "any", "model": "a/b", "data": str(data)}
    return check(rlhf.Options, base | more, "x")


def test_own_questions_are_read_and_divided(tmp_path):
    lines = [{"q": f"What is {i}?", "reference": f"Text {i // 2}."} for i in range(12)]
    text = "\n".join(json.dumps(line) for line in lines) + '\n{"q": "What?", "reference": " "}\nnot JSON\n'
    (tmp_path / "own.jsonl").write_text(text)
    more: dict[str, Any] = {"columns": {"question": "q"}, "evaluation": {"questions": 3}, "reference_in_prompt": True}
    options = options_of(tmp_path / "own.jsonl", **more)
    found = read_questions(options, RunFolder(tmp_path))
    assert found.rejected == 2
    assert [row["line"] for row in read_rows(tmp_path / "rejected.jsonl")] == [13, 14]
    (held_out,) = found.evaluation.values()
    assert len(held_out) == 3
    assert len(found.train) == 8  # two references of two questions each are held out
    assert not {row["reference"] for row in held_out} & {row["reference"] for row in found.train}
    row = found.train[0]
    assert row["prompt"] == [{"role": "user", "content": f"{row['reference']}\n\n{row['question']}"}]


def test_given_evaluation_files_are_asked_whole(tmp_path):
    row = {"question": "Q?", "reference": "R"}
    (tmp_path / "train.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    (tmp_path / "dev.jsonl").write_text(f"{json.dumps(row)}\n{{}}\n" * 3)
    given = {"data": {"dev": str(tmp_path / "dev.jsonl")}, "questions": 2}
    options = options_of(tmp_path / "train.jsonl", evaluation=given)
    found = read_questions(options, RunFolder(tmp_path))
    assert (len(found.train), found.rejected) == (3, 3)  # nothing is held out, though the references are the same
    assert {name: [r["question"] for r in rows] for name, rows in found.evaluation.items()} == {"dev": ["Q?", "Q?"]}
    assert [r["line"] for r in read_rows(tmp_path / "rejected.jsonl")] == [2, 4, 6]
    (tmp_path / "dev.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=r"no usable question in .*dev.jsonl; 1 lines were rejected"):
        read_questions(options, None)


def test_a_prompt_is_given_or_made():
    asked = {"question": "Who? {reference}", "reference": "R {question}"}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "R {question} | Who? {reference} {x}"},  # texts are data, not templates
    ]
    assert as_row(asked, "{reference} | {question} {x}", "Be brief.")["prompt"] == chat
    row = as_row({"prompt": chat, "reference": "R"}, "{question}", "Be long.")
    assert (row["prompt"], row["question"]) == (chat, chat[1]["content"])


@pytest.mark.parametrize(("columns", "record"), [
    # the shapes of HotpotQA, MS MARCO and SQuAD
    (
        {"reference": "context.sentences"},
        {"question": "Who?", "context": {"title": ["A", "B"], "sentences": [["One.", " Two."], ["Three."]]}},
    ),
    (
        {"question": "query", "reference": "passages.passage_text"},
        {"query": "Who?", "passages": {"is_selected": [0, 1], "passage_text": ["One. Two.", "Three."]}},
    ),
    ({"reference": "passages.text"}, {"question": "Who?", "passages": [{"text": "One. Two."}, {"text": "Three."}]}),
    ({"reference": "a.b"}, {"question": "Who?", "a.b": "One. Two.\n\nThree."}),
])  # fmt: skip
def test_nested_fields_are_found(columns, record):
    found = named(record, Columns(**columns))
    assert (found["question"], found["reference"]) == ("Who?", "One. Two.\n\nThree.")
    broken = named(
        {"question": "Who?", "context": {"sentences": [["One."], [2]]}}, Columns(reference="context.sentences")
    )
    assert "reference" in str(check_question(broken)[0])


def test_csv_is_read(tmp_path):
    text = 'question,context\n"Who, then?","A ""b""\nc."\nWhat?,\nWhen?,1945\n'
    (tmp_path / "own.csv").write_text(text, encoding="utf-8-sig")
    dev = {"data": {"dev": str(tmp_path / "own.csv")}}
    options = options_of(tmp_path / "own.csv", columns={"reference": "context"}, evaluation=dev)
    found = read_questions(options, RunFolder(tmp_path))
    assert [(r["question"], r["reference"]) for r in found.train] == [("Who, then?", 'A "b"\nc.'), ("When?", "1945")]
    assert [r["row"] for r in read_rows(tmp_path / "rejected.jsonl")] == [1, 1]
    # A spreadsheet's signs, an empty cell, and a truth value, which CSV has as a word.
    text = '"a\nb";question;context;language;answerable\n;Who?;A, b;;TRUE\n;What?;C;en;false\n;When?;D;;perhaps\n'
    (tmp_path / "own.csv").write_text(text)
    found = read_questions(options, RunFolder(tmp_path))
    assert [(r["reference"], r.get("language"), r["answerable"]) for r in found.train] == [
        ("A, b", None, True), ("C", "en", False),
    ]  # fmt: skip
    assert "answerable" in str(next(iter(read_rows(tmp_path / "rejected.jsonl")))["problems"])
    # The sign is that of the needed columns, else of most columns.
    (tmp_path / "own.csv").write_text("question;context;a, b, c, d\nWho?;A;\n")
    assert [r["reference"] for r in read_questions(options, RunFolder(tmp_path)).train] == ["A"]
    for text, line in (('question,context\nWhy?,C\nWho?,"A\nWhat?,B\n', 2), ('question,context\nWho?,"A" b\n', 1),
                       ('question,context\nWho?,"A", b\n', 1)):  # fmt: skip
        (tmp_path / "own.csv").write_text(text)
        with pytest.raises(UsageError, match=f"own.csv, after line {line}: not a CSV file: .*; a cell with a"):
            read_questions(options, RunFolder(tmp_path))
    for text, got in (("question;text;more\nWho?;A;B\n", "'text', 'more'"), ("question,text\nWho?,A\n", "'text'")):
        (tmp_path / "own.csv").write_text(text)
        with pytest.raises(UsageError, match=f"own.csv: expected columns named context, got 'question', {got}; no con"):
            read_questions(options, RunFolder(tmp_path))


def test_data_without_a_usable_question_says_why(tmp_path):
    write_rows(tmp_path / "own.jsonl", [{"query": "Who?", "context": "A"}] * 3)
    told = "3 lines were rejected, the first: question: expected .* got nothing; reference: expected .*columns: "
    with pytest.raises(UsageError, match=told):
        read_questions(options_of(tmp_path / "own.jsonl"), RunFolder(tmp_path))


def test_division_is_by_reference_and_seed():
    rows = [{"question": str(i), "reference": str(i % 5)} for i in range(10)]
    assert divide(rows, 2, seed=0) == divide(rows, 2, seed=0)
    assert {tuple(r["reference"] for r in divide(rows, 2, seed=s)[1]) for s in range(20)} > {("0", "0")}
