"""Questions with their references: from a JSON Lines file, a hub data set or the pocket world.

    {"question": "…", "reference": "…", "id"?, "prompt"?: [{"role", "content"}, …], "language"?, "points"?: ["…", …]}

One object a line, other keys pass through. Training and evaluation never share a reference. Bad lines go to the run
folder's rejected.jsonl and stop no other.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mitigate.errors import UsageError
from mitigate.jsonl import Problem, Record, check_text, dump_line, read_lines, rejected_row, shown
from mitigate.runs.options import POCKET, Base, Columns

TRAINED, APART = "trained on", "kept apart"
KEPT = ("id", "question", "reference", "prompt", "language", "points")


@dataclass(frozen=True)
class Questions:
    """What a run asks.

    Attributes:
        train: Rows {"prompt": chat, "question", "reference", …} that training asks, in order.
        evaluation: Set → rows asked before and after; "kept apart" shares no reference with ``train``.
        rejected: Input lines that could not be used.
    """

    train: list[Record]
    evaluation: dict[str, list[Record]]
    rejected: int = 0
    world: Any = field(default=None, compare=False)


def read_questions(options: Base, rejected_to: Path | None) -> Questions:
    """Read and divide the data of a run.

    Args:
        options: The recipe.
        rejected_to: Where bad lines go; None: nowhere.

    Raises:
        UsageError: There is nothing to read, or too little to keep a part away from training.
    """
    if options.data == POCKET:
        return pocket_questions(options)
    if Path(options.data).is_file():
        rows, rejected = read_file(Path(options.data), options.columns, rejected_to)
    else:
        rows, rejected = read_hub(options.data, options.split, options.columns, rejected_to)
    rows = rows[: options.max_questions]
    if not rows:
        raise UsageError(f"data: no usable question in {options.data}; {rejected} lines were rejected")
    train, apart = divide(rows, options.evaluation.questions, options.seed)
    if not train:
        raise UsageError(
            f"evaluation.questions: {options.evaluation.questions} leave nothing to train on of {len(rows)} questions "
            "(questions on one reference stay together): ask fewer, or give more data"
        )
    return Questions(
        [as_row(row, options.reference_in_prompt) for row in train],
        {APART: [as_row(row, options.reference_in_prompt) for row in apart]},
        rejected,
    )


def check_question(record: Record) -> list[Problem]:
    """Problems of one line of question data."""
    problems = check_text(record, "question", required="prompt" not in record)
    problems += check_text(record, "reference", required=True)
    problems += check_text(record, "language", required=False)
    for name, good in (("prompt", _is_chat), ("points", _is_texts)):
        if record.get(name) is not None and not good(record[name]):
            expected = (
                '[{"role": …, "content": …}, …], the last by the user'
                if name == "prompt"
                else "a list of texts"
            )
            problems.append(Problem(name, shown(record[name]), expected))
    return problems


def read_file(path: Path, columns: Columns, rejected_to: Path | None) -> tuple[list[Record], int]:
    """The good rows of a JSON Lines file, and how many lines were bad (written to ``rejected_to``)."""

    def check(record: Record) -> list[Problem]:
        return check_question(named(record, columns))

    rows, bad = [], []
    for line in read_lines(path, check):
        if line.record is None:
            bad.append(dump_line(rejected_row(path, line)))
        else:
            rows.append(named(line.record, columns))
    _write(rejected_to, bad)
    return rows, len(bad)


def read_hub(name: str, split: str, columns: Columns, rejected_to: Path | None) -> tuple[list[Record], int]:
    """The good rows of a hub data set; downloads it.

    Raises:
        UsageError: It can't be loaded.
    """
    from datasets import load_dataset

    try:
        found: Iterable[Any] = load_dataset(name, split=split)
    except Exception as error:  # the library raises many kinds
        raise UsageError(f"data: cannot load {name!r}, split {split!r}: {error}") from error
    rows, bad = [], []
    for number, record in enumerate(found):
        row = named(record, columns)
        problems = check_question(row)
        if problems:
            bad.append(dump_line({"row": number, "problems": [str(problem) for problem in problems]}))
        else:
            rows.append(row)
    _write(rejected_to, bad)
    return rows, len(bad)


def named(record: Mapping[str, Any], columns: Columns) -> Record:
    """A record under the names used here, without empty fields."""
    own = {"question": columns.question, "reference": columns.reference}
    return {k: v for k in KEPT if (v := record.get(own.get(k, k))) is not None}


def divide(rows: Sequence[Record], n: int, seed: int) -> tuple[list[Record], list[Record]]:
    """(train, kept apart): whole references are kept apart, at random, until there are ``n`` questions."""
    order = list(dict.fromkeys(row["reference"] for row in rows))
    random.Random(seed).shuffle(order)
    count = {reference: 0 for reference in order}
    for row in rows:
        count[row["reference"]] += 1
    apart: set[str] = set()
    for reference in order:
        if sum(count[r] for r in apart) >= n:
            break
        apart.add(reference)
    train = [row for row in rows if row["reference"] not in apart]
    return train, [row for row in rows if row["reference"] in apart][:n]


def as_row(row: Record, with_reference: bool) -> Record:
    """A row with its chat: the given one, or the question, with the reference before it where that is asked for."""
    question = row.get("question") or row["prompt"][-1]["content"]
    text = f"{row['reference']}\n\n{question}" if with_reference else question
    return {**row, "question": question, "prompt": row.get("prompt") or [{"role": "user", "content": text}]}


def pocket_questions(options: Base) -> Questions:
    """Questions about a pocket world; those of evaluation are in wordings that no training used."""
    from mitigate.pocket import build_world
    from mitigate.pocket.texts import Question, questions

    world = build_world(options.pocket.seed, options.pocket.per_kind)
    cut = 4 * options.pocket.trained_per_kind
    sides = {TRAINED: world.entities[:cut], APART: world.entities[cut:]}

    def row(asked: Question) -> Record:
        return as_row(
            {"question": asked.text, "reference": asked.entity.document.text, "id": asked.entity.name},
            options.reference_in_prompt,
        )

    def ask(entities: Sequence[Any], n: int, held_out: bool, seed: int) -> list[Record]:
        rounds = -(-n // len(entities))
        by_entity = questions(entities, rounds, held_out=held_out, seed=seed)
        return [row(by_entity[e * rounds + r]) for r in range(rounds) for e in range(len(entities))][:n]

    train = ask(sides[TRAINED], options.max_questions or len(sides[TRAINED]) * 8, False, 100 + options.seed)
    random.Random(options.seed).shuffle(train)
    asked = {name: ask(side, options.evaluation.questions, True, 1) for name, side in sides.items()}
    return Questions(train, asked, world=world)


def _is_chat(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in value
        )
        and value[-1]["role"] == "user"
    )


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(t, str) and t.strip() for t in value)


def _write(path: Path | None, lines: Sequence[bytes]) -> None:
    if path is None:
        return
    if lines:
        path.write_bytes(b"".join(lines))
    else:
        path.unlink(missing_ok=True)
