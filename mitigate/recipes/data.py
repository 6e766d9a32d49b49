"""What recipes read: questions with their references, and FEWL records with the answers that FEWL picks.

Questions are JSON Lines, a CSV file or a hub data set, other keys are dropped:

    {"question": "…", "reference": "…", "id"?, "prompt"?: [{"role", "content"}, …], "language"?, "points"?: ["…", …],
     "answerable"?: true}

Training and evaluation never share a reference, unless the recipe names files for evaluation (`evaluation.data`),
which are asked as they are. FEWL records are those of `mitigate fewl score`; in-context examples and label-free SFT
start from the picks of FEWL and of the paper's baseline, one reference LLM without penalty (§5). Bad lines go to the
run folder's rejected.jsonl and stop no other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from engines.types import check_chats
from fewl.core import Aggregation, Divergence
from fewl.ranking import pick_answers
from fewl.records import read_record
from fewl.score import FewlOptions, check_options, score_records
from fewl.similarity import Encode, Similarity
from mitigate.io import (
    TOLD,
    Check,
    Problem,
    Record,
    UsageError,
    check_record,
    check_texts,
    csv_rows,
    read_lines,
    rejected_row,
    shown,
    tell_rejected,
    usage,
)
from mitigate.models import ModelName, SimilarityName, load_encoder, load_similarity
from mitigate.recipes.config import Section
from mitigate.recipes.folder import REJECTED, RunFolder
from mitigate.recipes.options import Base, Columns

HELD_OUT = "held-out"
"""Name of the evaluation set that is divided off the data."""
KEPT = ("id", "question", "reference", "prompt", "language", "points", "answerable")


@dataclass(frozen=True)
class Questions:
    """What a run asks: rows {"prompt": chat, "question", "reference", …} of training and of each evaluation set."""

    train: list[Record]
    evaluation: dict[str, list[Record]]  # asked before and after; "held-out" shares no reference with training
    rejected: int = 0  # input lines that could not be used


def read_questions(options: Base, folder: RunFolder | None) -> Questions:
    """Read and divide the data of a run; bad lines go to the run folder, if one is given.

    Raises UsageError: there is nothing to read, or too little to hold a part out of training.
    """
    how = options.evaluation
    sources = {"": options.data, **(how.data or {})}
    bad: list[Record] = []
    read = {name: _read(options, path, bad) for name, path in sources.items()}
    if folder is not None:
        keep_rejected(folder, bad)
    for name, rows in read.items():
        if not rows:
            why = [str(Problem(**one) if isinstance(one, dict) else one) for row in bad[:1] for one in row["problems"]]
            first = f", the first: {'; '.join(why)} (columns: … says which fields are read)" if why else ""
            raise UsageError(f"data: no usable question in {sources[name]}; {len(bad)} lines were rejected{first}")
    train = read.pop("")[: options.max_questions]
    sets = {name: rows[: how.questions] for name, rows in read.items()}
    if not sets:
        n = len(train)
        train, sets[HELD_OUT] = divide(train, how.questions, options.seed)
        if not train:
            raise UsageError(
                f"evaluation.questions: {how.questions} leave nothing to train on of {n} questions (questions on one "
                "reference stay together): ask fewer, or give more data"
            )

    template = options.template or ("{reference}\n\n{question}" if options.reference_in_prompt else "{question}")

    def chats(rows: Iterable[Record]) -> list[Record]:
        return [as_row(row, template, options.system) for row in rows]

    return Questions(chats(train), {name: chats(rows) for name, rows in sets.items()}, len(bad))


def keep_rejected(folder: RunFolder, rows: Sequence[Record], name: str = REJECTED) -> None:
    """Write what is said of bad lines, in place of what an earlier start said."""
    if rows or (folder / name).exists():
        folder.write_rows(name, rows)


def _read(options: Base, name: str, bad: list[Record]) -> list[Record]:
    """The good rows of a JSON Lines or CSV file, or of a hub data set, which is downloaded; bad ones join ``bad``."""
    rows: list[Record] = []
    path = Path(name)
    local = path.is_file()
    if local and path.suffix.lower() != ".csv":
        for line in read_lines(path, lambda record: check_question(named(record, options.columns))):
            if line.record is None:
                bad.append(rejected_row(path, line))
            else:
                rows.append(named(line.record, options.columns))
        return rows
    what = "" if local else f", configuration {options.configuration!r}, split {options.split!r}"
    with usage(f"data: cannot load {name!r}{what}: ", Exception):  # the library raises many kinds
        if local:
            found: Iterable[Any] = list(csv_rows(path, [options.columns.reference]))
            for record in found:
                if (said := record.get("answerable", "").lower()) in ("true", "false"):
                    record["answerable"] = said == "true"
        else:
            from datasets import load_dataset

            found = load_dataset(name, options.configuration, split=options.split)
    for number, record in enumerate(found):
        row = named(record, options.columns)
        if problems := check_question(row):
            bad.append({"row": number, "problems": [str(problem) for problem in problems]})
        else:
            rows.append(row)
    return rows


def check_question(record: Record, *, needed: bool = False, reference: bool = True) -> list[Problem]:
    """Problems of one line of question data; a question may be ``needed`` even beside a prompt, a reference not."""
    asked = needed or "prompt" not in record
    problems = check_texts(record, question="text" if asked else "text?")
    problems += check_texts(record, reference="text" if reference else "text?", language="text?")
    for name, good, expected in (
        ("prompt", _is_chat, '[{"role": …, "content": …}, …], the last by the user'),
        ("points", _is_texts, "a list of texts"),
        ("answerable", lambda value: isinstance(value, bool), "true or false"),
    ):
        if record.get(name) is not None and not good(record[name]):
            problems.append(Problem(name, shown(record[name]), expected))
    return problems


def _is_chat(value: Any) -> bool:
    try:
        check_chats([value])
    except (ValueError, TypeError):
        return False
    return bool(value[-1]["role"] == "user")


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(t, str) and t.strip() for t in value)


def named(record: Mapping[str, Any], columns: Columns) -> Record:
    """A record under the names used here, without empty fields; passages of a reference become one text."""
    own = columns.model_dump()
    found = {k: v for k in KEPT if (v := _at(record, own.get(k, k))) is not None}
    passages = found.get("reference")
    if isinstance(passages, list):  # of texts, or of lists of sentences
        texts = [" ".join(s.strip() for s in p) if _is_texts(p) else p for p in passages]
        found["reference"] = "\n\n".join(texts) if _is_texts(texts) else passages
    return found


def _at(value: Any, path: str) -> Any:
    """The field of that name, or at that path (`passages.passage_text`), of each part of a list; None without one."""
    if isinstance(value, list):
        return [_at(part, path) for part in value]
    if not isinstance(value, Mapping) or path in value:
        return value[path] if isinstance(value, Mapping) else None
    head, _, rest = path.partition(".")
    return _at(value.get(head), rest) if rest else None


def divide(rows: Sequence[Record], n: int, seed: int) -> tuple[list[Record], list[Record]]:
    """(train, held-out): whole references are held out, at random, until there are ``n`` questions."""
    order = list(dict.fromkeys(row["reference"] for row in rows))
    random.Random(seed).shuffle(order)
    out: set[str] = set()
    for reference in order:
        if sum(row["reference"] in out for row in rows) >= n:
            break
        out.add(reference)
    train = [row for row in rows if row["reference"] not in out]
    return train, [row for row in rows if row["reference"] in out][:n]


def as_row(row: Record, template: str, system: str | None) -> Record:
    """A row with its chat: the given one, or the template with the row's texts in it, after the system's message."""
    row = {**row, "question": row.get("question") or row["prompt"][-1]["content"]}
    text = re.sub(r"\{(question|reference)\}", lambda found: row[found[1]], template)  # once: texts are data
    chat = [{"role": "system", "content": system}] * (system is not None) + [{"role": "user", "content": text}]
    return {**row, "prompt": row.get("prompt") or chat}


By = Literal["fewl", "baseline", "labels"]


class Scoring(Section):
    """How FEWL scores; the fields of `fewl.score.FewlOptions` that a recipe sets."""

    similarity: SimilarityName = Field(default="cosine", description="cosine, rouge-l, new-words or annotator:NAME")
    embedding: ModelName = Field(default="auto", description="auto, tfidf, or a folder, hub id or packaged:NAME")
    aggregation: Aggregation = FewlOptions.aggregation
    divergence: Divergence = FewlOptions.divergence
    expertise: Literal["similarity", "discovered", "uniform"] = "uniform"
    neighbours: int | None = Field(default=None, ge=1)
    penalty: bool | None = Field(default=None, description="of laziness; null: with paper, or with neighbours")

    def options(self) -> FewlOptions:
        return FewlOptions(**self.model_dump(exclude={"similarity", "embedding"}))

    def load(self, questions: Sequence[str]) -> tuple[str, Encode, Similarity]:
        """The embedding's name, the encoder, and the similarity of answers."""
        named, encode = load_encoder(self.embedding, questions)
        return named, encode, load_similarity(self.similarity, encode)[1]


def check_files(*paths: Path | None, key: str = "") -> None:
    for path in paths:
        if path is not None and not path.is_file():
            raise UsageError(f"{key}cannot read {path}: no such file")


def read_good(
    path: Path, check: Check, folder: RunFolder, expected: str, rejected: str = REJECTED
) -> tuple[list[Record], int]:
    """The good records of a file, by place where they have no id, and the number of bad lines.

    Bad lines are reported and go to the file ``rejected`` of the run folder. ``expected`` says what a file should hold.
    Raises UsageError: the file can't be read or has no good record.
    """
    lines = list(read_lines(path, check))
    good = [{"id": str(place), **line.record} for place, line in enumerate(lines) if line.record is not None]
    bad = [line for line in lines if line.record is None]
    tell_rejected([(path, line) for line in bad[:TOLD]], len(bad), folder / rejected)
    keep_rejected(folder, [rejected_row(path, line) for line in bad], rejected)
    if not good:
        raise UsageError(f"{path}: expected {expected}, found no good line")
    return good, len(bad)


def read_records(path: Path, baseline: str, scoring: Scoring, folder: RunFolder) -> tuple[list[Record], int]:
    """FEWL records, see :func:`read_good`, that can be scored so, with the baseline among the reference LLMs."""
    records, bad = read_good(path, check_record, folder, "FEWL records (question, answers, reference_answers)")
    read = [read_record(record) for record in records]
    with usage("scoring: "):
        check_options(read, scoring.options())
    names = sorted({llm for record in read for llm in record.references})
    if baseline not in names:
        raise UsageError(f"baseline: expected one of the reference LLMs {', '.join(names)}, got {baseline!r}")
    return records, bad


def picks(
    records: Sequence[Mapping[str, Any]],
    by: By,
    *,
    scoring: Scoring,
    baseline: str,
    similarity: Similarity,
    encode: Encode,
) -> list[int | None]:
    """The number of the answer that each record's question gets; the first of equals, None where there is none.

    FEWL picks, or the ``baseline``, which is that single reference LLM without penalty, or ``labels``: the first answer
    labelled correct, which is the ceiling.
    """
    if by == "labels":
        return [next((i for i, a in enumerate(r["answers"]) if a.get("label")), None) for r in records]
    options = scoring.options()
    if by == "baseline":
        options = FewlOptions(divergence=scoring.divergence, references=f"single:{baseline}", penalty=False)
    scored, _ = score_records(records, similarity=similarity, encode=encode, options=options)
    return [row["index"] for row in pick_answers(scored)]
