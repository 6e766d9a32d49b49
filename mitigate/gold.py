"""Rows with people's labels, as users have them: labelled sentences, or annotated records with a gold label.

A labelled sentence is a line of ``mitigate/labelled.py``. An annotated record is a line that `mitigate annotate` wrote,
with ``"gold"`` added to some of its sentences: one of the four labels, or "unsupported"; sentences without it are
passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from annotators.metrics import GOLD_LABELS
from annotators.splits import group_rows
from mitigate.jsonl import Line, Problem, Record, check_text, read_lines, shown
from mitigate.labelled import check_labelled


@dataclass(frozen=True)
class GoldRows:
    """Rows to judge ("reference", "sentence", "label", maybe "question", "answer", "language"), groups, bad lines."""

    rows: list[dict[str, Any]]
    groups: list[str]
    rejected: list[tuple[Path, Line]]


def read_gold(paths: Sequence[Path]) -> GoldRows:
    """Read files of either form, lines of both may stand in one file; equal rows count once.

    Raises:
        UsageError: A file cannot be read.
    """
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    rejected: list[tuple[Path, Line]] = []
    for path in paths:
        for line in read_lines(path, check_gold):
            if line.record is None:
                rejected.append((path, line))
                continue
            for row in _rows_of(line.record):
                rows[row["reference"], row["sentence"], row.get("question") or ""] = row
    kept = list(rows.values())
    texts = [
        {
            name: row[name].encode("utf-8", "replace").decode()
            for name in ("reference", "answer", "sentence")
            if row.get(name)
        }
        for row in kept
    ]
    return GoldRows(kept, group_rows(texts), rejected)


def check_gold(record: Record) -> list[Problem]:
    """Problems of a line of either form; a line with "sentences" is an annotated record."""
    if "sentences" not in record:
        return check_labelled(record)
    problems = check_text(record, "reference", required=True, empty=True)
    problems += check_text(record, "answer", required=True)
    problems += check_text(record, "question", required=False, empty=True)
    problems += check_text(record, "language", required=False)
    sentences = record["sentences"]
    if not (isinstance(sentences, list) and all(isinstance(s, dict) for s in sentences)):
        return [*problems, Problem("sentences", shown(sentences), "a list of objects")]
    for number, sentence in enumerate(sentences):
        gold = sentence.get("gold")
        if gold is not None and (not isinstance(gold, str) or gold not in GOLD_LABELS):
            problems.append(
                Problem(f"sentences[{number}].gold", shown(gold), f"one of {', '.join(GOLD_LABELS)}, or null")
            )
        text = sentence.get("text")
        if gold is not None and not (isinstance(text, str) and text.strip()):
            problems.append(Problem(f"sentences[{number}].text", shown(text), "a string with text in it"))
    return problems


def _rows_of(record: Record) -> Iterator[dict[str, Any]]:
    if "sentences" not in record:
        language = record.get("language") or record.get("lang")
        pieces = [(record["sentence"], record["label"])]
    else:
        language = record.get("language")
        pieces = [(s["text"], s["gold"]) for s in record["sentences"] if s.get("gold") is not None]
    shared = {name: record[name] for name in ("question", "answer") if record.get(name)}
    for sentence, label in pieces:
        row = {"reference": record["reference"], "sentence": sentence, "label": label, **shared}
        yield {**row, "language": language} if language else row
