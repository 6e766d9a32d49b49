"""What a person says of annotated sentences: a corrected copy of 11_annotated.jsonl, or of some of its lines.

Taken over are ``label``, ``fragments`` ([{"text"}]) and ``correction`` ([{"from", "to"}]) of each sentence; ``start``
may say which of several places is meant. A line that can't be used leaves its record as it was.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from annotators.records import HALLUCINATED, LABELS
from mitigate.io import Problem, Record, read_whole, shown


def put_in(records: list[Record], checked: Path) -> int:
    """Put a person's judgements into annotated records; returns the number of lines that could not be used.

    A changed sentence gets ``annotated_by``: "human" where it had no label before, else "reviewed".
    """
    known = {record["id"]: record for record in records}

    def take(row: Record) -> list[Problem]:
        record, new = known.get(str(row.get("id"))), row.get("sentences")
        if record is None or not isinstance(new, list) or len(new) != len(record["sentences"]):
            return [Problem("id", shown(row.get("id")), "that of a record of this run, with all of its sentences")]
        judged: list[Record] = []
        problems = []
        for number, (old, said) in enumerate(zip(record["sentences"], new, strict=True)):
            try:
                judged.append(_judged(record, old, said))
            except ValueError as error:
                problems.append(Problem(f"sentences[{number}]", shown(said), str(error)))
            except (KeyError, TypeError, AttributeError):
                expected = "a label, fragments [{text}] and correction [{from, to}]"
                problems.append(Problem(f"sentences[{number}]", shown(said), expected))
        if not problems:
            record["sentences"] = judged
        return problems

    return read_whole(checked, take, checked)[1]


def _judged(record: Record, old: Record, said: Record) -> Record:
    """A sentence as a person judged it. Raises ValueError: what was expected."""
    if all(said[key] == old[key] for key in ("label", "fragments", "correction")):
        return old
    label = said["label"]
    if label not in LABELS:
        raise ValueError(f"one of the labels {', '.join(LABELS)}")
    fragments = [_placed(piece, "text", record["reference"], 0) for piece in said["fragments"]]
    edits = [_placed(edit, "from", record["answer"], old["start"], old["end"]) for edit in said["correction"]]
    edits.sort(key=lambda edit: edit["start"])
    if any(a["end"] > b["start"] for a, b in pairwise(edits)) or not all(isinstance(edit["to"], str) for edit in edits):
        raise ValueError("corrections to a text that do not overlap")
    return {
        **old,
        "status": "checked",
        "label": label,
        "fragments": fragments if label != "no_fact" else [],
        "correction": edits if label in HALLUCINATED else [],
        "annotated_by": "reviewed" if old["label"] else "human",
    }


def _placed(piece: Record, key: str, text: str, low: int, high: int | None = None) -> Record:
    """A piece with its place in ``text[low:high]``: where its ``start`` says, if it stands there, else the first."""
    words, start = piece[key], piece.get("start")
    if type(start) is not int or start < low or text.find(words, start, high) != start:
        start = text.find(words, low, high)
    if start < 0 or not words.strip():
        raise ValueError(f"words of the {'reference' if key == 'text' else 'sentence'}, copied, not {shown(words)}")
    return {**piece, "start": start, "end": start + len(words)}
