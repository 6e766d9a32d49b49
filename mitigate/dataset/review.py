"""Human review: a file for any spreadsheet program out, the corrections read back.

`references.csv` (after matching) and `annotations.csv` (after annotation) are written into `review/`, what needs a
decision first: topics without a document, sentences still unverifiable. Fill in the `new_…` columns (an empty cell
keeps what is there) and save the file as `….checked.csv` beside it; the run then goes on with the corrections.

Cells are text: one that a spreadsheet would take for a formula gets an apostrophe before it, which is taken off again
when the file is read. Read are commas, semicolons or tabs between cells, in UTF-8.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from annotators.records import LABELS, coverage, hallucination_rate
from annotators.retrieval import BM25, words
from annotators.text.sentences import split_sentences
from mitigate.dataset.export import corrected
from mitigate.dataset.stage import extended, read_rows
from mitigate.io import Line, Problem, Record, UsageError, set_aside, shown, write_bytes, write_lines

REFERENCE_COLUMNS = ("topic", "language", "category", "domain", "description", "document", "title", "verdicts",
                     "beginning", "candidates", "new_document")  # fmt: skip
SENTENCE_COLUMNS = ("record", "sentence", "label", "question", "text", "fragments", "corrected", "evidence",
                    "new_label", "new_fragments", "new_sentence")  # fmt: skip
NO_DOCUMENT = "none"
SEPARATOR = "<SEP>"
SHOWN = 6
"""Sentences of the reference beside a sentence to judge."""
MAX_CELL = 30_000
"""Characters; spreadsheets cut cells at 32,767."""
_FORMULA = tuple("=+-@＝＋－＠\t\r\n'")
_URGENCY = ("unverifiable", None, "contradictory", "no_fact", "supported")
"""Labels in the order in which a person should look at their sentences."""


def best_sentences(reference: str, sentence: str, n: int = SHOWN) -> list[str]:
    """The n sentences of a reference that have most in common with a sentence (BM25), in the order of the text."""
    found = [reference[start:end] for start, end in split_sentences(reference)]
    if len(found) > n:
        scores = BM25([words(text) for text in found]).scores([words(sentence)])[0]
        found = [found[place] for place in sorted(np.argsort(-scores, kind="stable")[:n].tolist())]
    return found


def single_edit(old: str, new: str) -> dict[str, Any] | None:
    """The smallest single replacement that turns one text into another, at word boundaries where it can be.

    Returns {"from", "to", "start", "end"} with ``old[start:end] == from``; None where the texts are equal.
    """
    if old == new:
        return None
    limit = min(len(old), len(new))
    start = next((i for i in range(limit) if old[i] != new[i]), limit)
    tail = next((i for i in range(limit - start) if old[-1 - i] != new[-1 - i]), limit - start)
    while start and _inside(old, start):
        start -= 1
    while tail and _inside(old, len(old) - tail):
        tail -= 1
    end = len(old) - tail
    return {"from": old[start:end], "to": new[start : len(new) - tail], "start": start, "end": end}


def _inside(text: str, place: int) -> bool:
    """Whether a place is inside a word of letters or digits that are not Chinese."""
    return 0 < place < len(text) and all(c.isalnum() and ord(c) < 0x2E80 for c in text[place - 1 : place + 1])


def cell(value: object) -> str:
    """A value as a cell that no spreadsheet computes; :func:`uncell` is its inverse for texts that are short enough."""
    text = "" if value is None else str(value)[:MAX_CELL]
    return "'" + text if text.startswith(_FORMULA) else text


def uncell(text: str) -> str:
    """A cell as the text it stands for."""
    return text[1:] if text.startswith("'") and text[1:].startswith(_FORMULA) else text


def write_references(source: Path, output: Path) -> None:
    """Write the topics and their documents, those without one first."""
    rows = [
        {
            **row,
            "verdicts": ", ".join(f"{v['document']}: {v['verdict']}" for v in row["judged"]),
            "beginning": (row["reference"] or "")[:400],
            "candidates": ", ".join(f"{c['document']} ({c['title']})" for c in row["candidates"]),
        }
        for row in sorted(read_rows(source), key=lambda row: row["document"] is not None)
    ]
    _write(output, REFERENCE_COLUMNS, rows)


def apply_references(source: Path, checked: Path, output: Path, documents: Path) -> tuple[int, int]:
    """Put the reviewer's documents in; returns the numbers of corrections and of rows that could not be used."""
    texts = {row["document"]: row for row in read_rows(documents)}
    rows = {row["topic"]: row for row in read_rows(source)}

    def correct(row: Mapping[str, str]) -> list[Problem]:
        topic = rows.get(row["topic"])
        if topic is None:
            return [Problem("topic", shown(row["topic"]), "a topic of this run")]
        name = row["new_document"].strip()
        if name != NO_DOCUMENT and name not in texts:
            return [Problem("new_document", shown(name), f"the name of a document of this run, or {NO_DOCUMENT!r}")]
        found = texts.get(name, {"document": None, "title": None, "text": None})
        rows[row["topic"]] = extended(topic, document=found["document"], title=found["title"], reference=found["text"])
        return []

    used, bad = _corrections(checked, REFERENCE_COLUMNS, correct)
    write_lines(output, list(rows.values()))
    return used, bad


def write_annotations(source: Path, output: Path) -> None:
    """Write one row per sentence: unverifiable first, then not checked, contradictory, no fact, supported."""
    found = [(record, *pair) for record in read_rows(source) for pair in enumerate(record["sentences"])]
    rows = [
        {
            "record": record["id"],
            "sentence": number,
            "label": sentence["label"] or f"not checked ({sentence['status']})",
            "question": record["question"],
            "text": sentence["text"],
            "fragments": SEPARATOR.join(f["text"] for f in sentence["fragments"]),
            "corrected": corrected(sentence) if sentence["correction"] else None,
            "evidence": "\n".join(best_sentences(record["reference"], sentence["text"])),
        }
        for record, number, sentence in sorted(found, key=lambda row: _URGENCY.index(row[2]["label"]))
    ]
    _write(output, SENTENCE_COLUMNS, rows)


def apply_annotations(source: Path, checked: Path, output: Path) -> tuple[int, int]:
    """Put the reviewer's judgements in; returns the numbers of corrections and of rows that could not be used.

    A sentence that a person judged gets ``annotated_by``: "human" where it had no label before, else "reviewed".
    """
    records = {row["id"]: row for row in read_rows(source)}

    def correct(row: Mapping[str, str]) -> list[Problem]:
        record = records.get(row["record"])
        number = row["sentence"].strip()
        if record is None or not number.isdecimal() or int(number) >= len(record["sentences"]):
            return [Problem("record, sentence", shown(f"{row['record']}, {number}"), "a sentence of this run")]
        sentence, problems = _judged(record, record["sentences"][int(number)], row)
        if not problems:
            record["sentences"][int(number)] = sentence
            labels = [s["label"] for s in record["sentences"]]
            record |= {"hallucination_rate": hallucination_rate(labels), "coverage": coverage(labels)}
        return problems

    used, bad = _corrections(checked, SENTENCE_COLUMNS, correct)
    write_lines(output, list(records.values()))
    return used, bad


def _judged(record: Record, sentence: Record, row: Mapping[str, str]) -> tuple[Record, list[Problem]]:
    """A sentence with the reviewer's label, fragments and correction."""
    problems = []
    label = row["new_label"].strip().lower().replace(" ", "_") or sentence["label"]
    if label not in LABELS:
        problems.append(Problem("new_label", shown(row["new_label"]), f"one of {', '.join(LABELS)}"))
    fragments = sentence["fragments"]
    if row["new_fragments"].strip():
        fragments = []
        for piece in filter(None, (part.strip() for part in row["new_fragments"].split(SEPARATOR))):
            start = record["reference"].find(piece)
            if start < 0:
                expected = f"text copied from the reference, pieces separated by {SEPARATOR}"
                problems.append(Problem("new_fragments", shown(piece), expected))
            fragments.append({"text": piece, "start": start, "end": start + len(piece)})
    correction = sentence["correction"]
    if new := row["new_sentence"].strip():
        edit = single_edit(sentence["text"], new)
        correction = [{**edit, **{k: edit[k] + sentence["start"] for k in ("start", "end")}}] if edit else []
    if label in ("supported", "no_fact"):
        correction = []
    if label == "no_fact":
        fragments = []
    by = "reviewed" if sentence["label"] else "human"
    judged = {**sentence, "status": "checked", "label": label, "annotated_by": by}
    judged |= {"fragments": fragments, "correction": correction}
    if row["new_label"].strip():
        judged["scores"] = None  # they were the annotator's
    return judged, problems


def _write(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO(newline="")
    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([columns, *cells])
    write_bytes(path, text.getvalue().encode("utf-8-sig", "replace"))  # the mark tells spreadsheets that it is UTF-8


def _corrections(
    path: Path, columns: Sequence[str], correct: Callable[[Mapping[str, str]], list[Problem]]
) -> tuple[int, int]:
    """Apply every row that has something in a ``new_…`` column; unusable ones are reported and kept."""
    used = 0
    bad: list[tuple[Path, Line]] = []
    for number, row in enumerate(read_csv(path, columns), start=2):
        if not any(row[column].strip() for column in columns if column.startswith("new_")):
            continue
        if problems := correct(row):
            raw = ",".join(row[column] for column in columns).encode("utf-8", "replace")
            bad.append((path, Line(number, raw, None, tuple(problems))))
        else:
            used += 1
    set_aside(bad, path)
    return used, len(bad)


def read_csv(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """The rows of a reviewed file."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f'{path} is not UTF-8 (byte {error.start + 1}); save it as "CSV UTF-8"') from error
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=head.count)
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:
        raise UsageError(f"{path}: expected a CSV file, got one that can't be read ({error})") from error
    held = list(rows[0]) if rows else [name.strip().strip('"') for name in head.strip().split(delimiter)]
    if missing := [column for column in columns if column not in held]:
        raise UsageError(f"{path}: the columns {', '.join(missing)} are missing; keep the first row as it was written")
    return [{column: uncell(row[column] or "") for column in columns} for row in rows]
