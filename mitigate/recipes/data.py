"""Which answer of each question FEWL picks, which a baseline, which the labels: the start of ICL and label-free SFT.

The baseline of the paper is one reference LLM without penalty (§5). Records are those of `mitigate fewl score`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fewl.core import Aggregation, Divergence
from fewl.score import FewlOptions, score_records
from fewl.similarity import Encode, Similarity
from mitigate.io import (
    Line,
    Problem,
    Record,
    UsageError,
    check_record,
    check_text,
    dump_line,
    read_lines,
    rejected_row,
    shown,
)
from mitigate.recipes.config import Section
from mitigate.recipes.options import Base, Columns

# ----------------------------------------------------------------------------------------------------
# Questions with their references: from a JSON Lines file or a hub data set.
#
# {"question": "…", "reference": "…", "id"?, "prompt"?: [{"role", "content"}, …], "language"?, "points"?: ["…", …]}
#
# One object a line, other keys pass through. Training and evaluation never share a reference, unless the recipe names
# files for evaluation (`evaluation.data`), which are asked as they are. Bad lines go to the run folder's rejected.jsonl
# and stop no other.

APART = "kept apart"
KEPT = ("id", "question", "reference", "prompt", "language", "points")


@dataclass(frozen=True)
class Questions:
    """What a run asks.

    Attributes:
        train: Rows {"prompt": chat, "question", "reference", …} that training asks, in order.
        evaluation: Set → rows asked before and after; "kept apart", the part that was divided off, shares no reference
            with ``train``.
        rejected: Input lines that could not be used.
    """

    train: list[Record]
    evaluation: dict[str, list[Record]]
    rejected: int = 0


def read_questions(options: Base, rejected_to: Path | None) -> Questions:
    """Read and divide the data of a run.

    Args:
        options: The recipe.
        rejected_to: Where bad lines go; None: nowhere.

    Raises:
        UsageError: There is nothing to read, or too little to keep a part away from training.
    """
    how = options.evaluation
    if Path(options.data).is_file():
        train, bad = read_file(options.data, options.columns)
    else:
        train, bad = read_hub(options.data, options.split, options.columns)
    train = train[: options.max_questions]
    read = {options.data: train}
    sets = {}
    for name, path in (how.data or {}).items():
        read[path], more = read_file(path, options.columns)
        sets[name] = read[path][: how.questions]
        bad += more
    _write(rejected_to, bad)
    for path, rows in read.items():
        if not rows:
            raise UsageError(f"data: no usable question in {path}; {len(bad)} lines were rejected")
    if not sets:
        n = len(train)
        train, sets[APART] = divide(train, how.questions, options.seed)
        if not train:
            raise UsageError(
                f"evaluation.questions: {how.questions} leave nothing to train on of {n} questions (questions on one "
                "reference stay together): ask fewer, or give more data"
            )

    def chats(rows: Iterable[Record]) -> list[Record]:
        return [as_row(row, options.reference_in_prompt) for row in rows]

    return Questions(chats(train), {name: chats(rows) for name, rows in sets.items()}, len(bad))


def check_question(record: Record) -> list[Problem]:
    """Problems of one line of question data."""
    problems = check_text(record, "question", required="prompt" not in record)
    problems += check_text(record, "reference", required=True)
    problems += check_text(record, "language", required=False)
    for name, good in (("prompt", _is_chat), ("points", _is_texts)):
        if record.get(name) is not None and not good(record[name]):
            expected = '[{"role": …, "content": …}, …], the last by the user' if name == "prompt" else "a list of texts"
            problems.append(Problem(name, shown(record[name]), expected))
    return problems


def read_file(path: str, columns: Columns) -> tuple[list[Record], list[bytes]]:
    """The good rows of a JSON Lines file, and what to write of its bad lines."""

    def check(record: Record) -> list[Problem]:
        return check_question(named(record, columns))

    rows, bad = [], []
    for line in read_lines(Path(path), check):
        if line.record is None:
            bad.append(dump_line(rejected_row(Path(path), line)))
        else:
            rows.append(named(line.record, columns))
    return rows, bad


def read_hub(name: str, split: str, columns: Columns) -> tuple[list[Record], list[bytes]]:
    """The good rows of a hub data set, and what to write of its bad ones; downloads it.

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
    return rows, bad


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


def _is_chat(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in value
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


By = Literal["fewl", "baseline", "labels"]
# Numbers of the picked answers, one per record; None where there is none.
Picks = list["int | None"]


class Scoring(Section):
    """How FEWL scores; the fields of `fewl.score.FewlOptions` that a recipe sets."""

    similarity: str = Field(default="cosine", description="cosine, rouge-l, new-words or annotator:NAME")
    embedding: str = Field(default="auto", description="auto, tfidf, or a folder or hub id")
    aggregation: Aggregation = "paper"
    divergence: Divergence = "tv"
    expertise: Literal["similarity", "uniform"] = "uniform"
    neighbours: int | None = Field(default=None, ge=1)
    penalty: bool = True
    weak: tuple[str, ...] = ()

    def options(self) -> FewlOptions:
        """As FEWL takes them."""
        return FewlOptions(**self.model_dump(exclude={"similarity", "embedding"}))


def read_records(path: Path) -> tuple[list[Record], list[Line]]:
    """The good records of a file of FEWL records, and its bad lines.

    Raises:
        UsageError: The file can't be read or has no good record.
    """
    if not path.is_file():
        raise UsageError(f"cannot read {path}: no such file; expected FEWL records, JSON Lines")
    lines = list(read_lines(path, check_record))
    good = [line.record for line in lines if line.record is not None]
    if not good:
        raise UsageError(f"{path}: expected FEWL records (question, answers, reference_answers), found no good line")
    return good, [line for line in lines if line.record is None]


def check_baseline(records: Sequence[Record], name: str) -> None:
    """Refuse a baseline that no record has an answer of.

    Raises:
        UsageError: Names the reference LLMs that there are.
    """
    names = sorted({llm for record in records for llm in record["reference_answers"]})
    if name not in names:
        raise UsageError(f"baseline: expected one of the reference LLMs {', '.join(names)}, got {name!r}")


def picks(
    records: Sequence[Mapping[str, Any]],
    by: By,
    *,
    scoring: Scoring,
    baseline: str,
    similarity: Similarity,
    encode: Encode,
) -> Picks:
    """The answer that each record's question gets.

    Args:
        records: FEWL records.
        by: `fewl`; `baseline`: the single reference LLM `baseline`, no penalty; `labels`: the first answer labelled
            correct, the ceiling.
        scoring: How FEWL scores.
        baseline: Name of a reference LLM.
        similarity: Of answers and reference answers.
        encode: Embeddings of questions.

    Returns:
        Numbers of answers, one per record; the first of equals; None where no answer has a score or a right label.
    """
    if by == "labels":
        return [next((i for i, a in enumerate(r["answers"]) if a.get("label")), None) for r in records]
    options = scoring.options()
    if by == "baseline":
        options = FewlOptions(divergence=scoring.divergence, references=f"single:{baseline}", penalty=False)
    scored, _ = score_records(records, similarity=similarity, encode=encode, options=options)
    return [best_scored(record["answers"]) for record in scored]


def best_scored(answers: Sequence[Mapping[str, Any]]) -> int | None:
    """The first answer with the highest score, None where none has one."""
    scores = [(-answer["score"], i) for i, answer in enumerate(answers) if answer["score"] is not None]
    return min(scores)[1] if scores else None
