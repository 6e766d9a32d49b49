"""Answers with their judged sentences, out of annotated records or out of labelled sentences.

Both say the same in other words; statistics read either. Rows of labelled sentences that name the same answer are put
together, in the order in which their sentences stand in it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from annotators.agreement import Judged
from annotators.metrics import UNSUPPORTED
from annotators.records import HALLUCINATED, LABELS
from mitigate.commands.fewl_files import tell_rejected
from mitigate.jsonl import Line, Problem, Record, check_text, read_lines, shown
from mitigate.labelled import check_labelled


@dataclass(frozen=True)
class JudgedSentence:
    """Its place in the answer (or −1), its text, and what was judged; label None: it was not."""

    start: int
    text: str
    label: str | None
    places: frozenset[int] | None = None
    corrected: str | None = None


@dataclass
class JudgedAnswer:
    """An answer with its sentences in order; ``ordered`` unless only single sentences without it are known."""

    key: Hashable
    source: str
    language: str
    answer: str
    ordered: bool
    sentences: list[JudgedSentence] = field(default_factory=list)

    @property
    def coverage(self) -> float:
        """Share of the answer's characters that are in judged sentences, white space aside, in [0, 1]."""
        held = bytearray(len(self.answer))
        for s in self.sentences:
            if s.label is not None:
                held[s.start : s.start + len(s.text)] = b"\1" * len(s.text)
        solid = [place for place, char in enumerate(self.answer) if not char.isspace()]
        return sum(held[place] for place in solid) / len(solid) if solid else 0.0


def is_hallucinated(label: str | None) -> bool:
    """Contradictory, unverifiable, or unsupported."""
    return label in HALLUCINATED or label == UNSUPPORTED


def check_either(record: Record) -> list[Problem]:
    """Problems of an annotated record (it has ``sentences``) or of a labelled sentence."""
    if "sentences" not in record:
        if "answer" in record and "sentence" not in record:
            return [Problem("sentences", None, "the list that `mitigate annotate` writes")]
        return check_labelled(record)
    problems = check_text(record, "answer", required=True) + check_text(
        record, "reference", required=True, empty=True
    )
    if problems:
        return problems
    sentences = record["sentences"]
    if not isinstance(sentences, list) or not all(_is_sentence(s, record) for s in sentences):
        expected = "a list of sentences as `mitigate annotate` writes them, with offsets into the answer"
        return [Problem("sentences", shown(sentences), expected)]
    return []


def _is_sentence(sentence: Any, record: Record) -> bool:
    try:
        placed = record["answer"][sentence["start"] : sentence["end"]] == sentence["text"]
        numbers = [
            x[name] for key in ("fragments", "correction") for x in sentence[key] for name in ("start", "end")
        ]
        targets = [edit["to"] for edit in sentence["correction"]]
        known = sentence["label"] in (*LABELS, None)
    except (KeyError, TypeError):
        return False
    return placed and known and all(type(n) is int for n in numbers) and all(type(t) is str for t in targets)


def read_answers(paths: Sequence[Path]) -> tuple[list[JudgedAnswer], int]:
    """The answers of all files, and the number of lines that could not be read (they are told).

    Raises:
        UsageError: A file can't be read.
    """
    answers: dict[Hashable, JudgedAnswer] = {}
    rejected = 0
    for path in paths:
        bad: list[Line] = []
        for line in read_lines(path, check_either):
            if line.record is None:
                bad.append(line)
            elif "sentences" in line.record:
                _add_record(answers, line.record, path)
            else:
                _add_row(answers, line.record, path, line.number)
        tell_rejected(path, bad[:10], len(bad), None)
        rejected += len(bad)
    for answer in answers.values():
        answer.sentences.sort(key=lambda s: s.start)
    return list(answers.values()), rejected


def _names(record: Record, path: Path) -> tuple[str, str]:
    source = record.get("source") or path.name.split(".")[0]
    return str(source), str(record.get("language") or record.get("lang") or "unknown")


def _add_record(answers: dict[Hashable, JudgedAnswer], record: Record, path: Path) -> None:
    from mitigate.dataset.export import corrected

    key = (record.get("question") or "", record["answer"])
    answer = JudgedAnswer(key, *_names(record, path), record["answer"], ordered=True)
    for s in record["sentences"]:
        places = frozenset(place for f in s["fragments"] for place in range(f["start"], f["end"]))
        text = corrected(s) if s["correction"] else None
        answer.sentences.append(JudgedSentence(s["start"], s["text"], s["label"], places, text))
    answers[(str(path), len(answers))] = answer


def _add_row(answers: dict[Hashable, JudgedAnswer], row: Record, path: Path, number: int) -> None:
    whole = row.get("answer")
    start = whole.find(row["sentence"]) if whole else -1
    source, language = _names(row, path)
    if start >= 0:
        key: Hashable = (row.get("question") or "", whole)
    else:
        key = (row.get("id") or number, row["sentence"])
    answer = answers.setdefault(
        (str(path), source, key),
        JudgedAnswer(key, source, language, whole or row["sentence"], ordered=start >= 0),
    )
    places = None
    if row.get("fragments") is not None:
        found = [(row["reference"].find(text), len(text)) for text in row["fragments"]]
        places = frozenset(place for at, length in found if at >= 0 for place in range(at, at + length))
    answer.sentences.append(
        JudgedSentence(max(start, 0), row["sentence"], row["label"], places, row.get("correction"))
    )


def paired(
    first: Sequence[JudgedAnswer], second: Sequence[JudgedAnswer]
) -> tuple[list[tuple[Judged, Judged]], list[Hashable], tuple[int, int]]:
    """The sentences that both have judged, the answer of each, and how many only one has."""
    sides = []
    for answers in (first, second):
        side: dict[Hashable, tuple[Judged, Hashable]] = {}
        for answer in answers:
            for s in answer.sentences:
                if s.label is not None:
                    side[answer.key, s.start, s.text] = Judged(s.label, s.places, s.corrected), answer.key
        sides.append(side)
    a, b = sides
    common = [name for name in a if name in b]
    return (
        [(a[n][0], b[n][0]) for n in common],
        [b[n][1] for n in common],
        (len(a) - len(common), len(b) - len(common)),
    )
