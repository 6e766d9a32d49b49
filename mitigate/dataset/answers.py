"""Stages 8 and 9: answers of any number of models, with and without the reference, and their annotation.

Each model is one pass over all topics, so that local models are in memory one at a time. Then every answer becomes one
annotation record. The annotator chooses windows and takes a second look at what it can't verify by itself.
Source: ANAH §2.3 and §2.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from annotators.base import Annotator
from engines.types import Engine
from mitigate.dataset import prompts
from mitigate.dataset.stage import Asked, Process, ask, cut_off, extended, head_of, read_rows, text_of, write_lines
from mitigate.io import Line, Problem, Record, dump_line, rejected_path, rejected_row

SOURCES = {True: "with reference", False: "without reference"}


def answering(engine: Engine, asked: Asked, *, key: str, with_reference: bool, characters: int) -> Process:
    """Answer the selected questions of each topic; adds a list under ``key``.

    Each entry is {"question", "answer", "model", "with_reference", "cut_off", "error"}; ``answer`` is null where the
    model gave none, with the reason in ``error``.
    """

    def process(topics: list[Record]) -> list[Record]:
        places = [(n, question) for n, topic in enumerate(topics) for question in topic["selected"]]
        heads = [head_of(topic["reference"], characters) if with_reference else None for topic in topics]
        chats = [prompts.answer_question(topics[n]["language"], question, heads[n]) for n, question in places]
        answers: list[list[Record]] = [[] for _ in topics]
        for (n, question), result in zip(places, ask(engine, chats, asked), strict=True):
            text = text_of(result)
            answers[n].append(
                {
                    "question": question,
                    "answer": text or None,
                    "model": engine.name,
                    "with_reference": with_reference,
                    "cut_off": cut_off(result),
                    "error": result.error or (None if text else "an empty reply"),
                }
            )
        return [extended(topic, **{key: found}) for topic, found in zip(topics, answers, strict=True)]

    return process


def write_records(source: Path, output: Path, keys: Sequence[str]) -> tuple[int, int]:
    """Write one annotation record per answer; missing answers go to the rejected file.

    Returns:
        Numbers of records and of missing answers.
    """
    records, missing = [], []
    for number, row in enumerate(read_rows(source), start=1):
        for place, key in enumerate(keys, start=1):
            for count, answer in enumerate(row[key], start=1):
                if answer["answer"] is None:
                    expected = f"an answer of {answer['model']} to {answer['question']!r} ({answer['error']})"
                    line = Line(number, dump_line(answer).strip(), None, (Problem(key, None, expected),))
                    missing.append(rejected_row(source, line))
                    continue
                records.append(
                    {
                        "id": f"{row['topic']}/{count}/{place}",
                        "question": answer["question"],
                        "answer": answer["answer"],
                        **{name: row[name] for name in ("language", "topic", "category", "domain", "document")},
                        "model": answer["model"],
                        "source": SOURCES[answer["with_reference"]],
                        "cut_off": answer["cut_off"],
                        "reference": row["reference"],
                    }
                )
    write_lines(output, records)
    if missing:
        write_lines(rejected_path(output), missing)
    else:
        rejected_path(output).unlink(missing_ok=True)
    return len(records), len(missing)


def annotating(annotator: Annotator) -> Process:
    """Judge every sentence of the answers."""

    def process(records: list[Record]) -> list[Record]:
        return [annotation.to_dict() for annotation in annotator.annotate_batch(records)]

    return process
