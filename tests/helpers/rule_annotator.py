"""An annotator by rule, for tests: a sentence is supported where it stands in the reference, word for word.

A line "A -> B" in the reference says that B stands where A would be false: sentences holding A are contradictory, and
the correction is B. A sentence without a digit or a capital inside is no fact. Counts its calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from annotators.records import Annotation, Edit, Fragment, Label, SentenceAnnotation
from annotators.text.sentences import split_sentences


REFERENCE = "The tower has 12 floors.\nIt opened in May 1901.\n14 floors -> 12 floors\nPaul built -> Anna built\n"
RIGHT, WRONG, LOST = "The tower has 12 floors.", "The tower has 14 floors.", "It cost 30 Marks."


class RuleAnnotator:
    name = "rule"
    fingerprint = "rule"
    reads = ("reference", "sentence")

    def __init__(self, scores: bool = False) -> None:
        self.calls = 0
        self.sentences = 0
        self.scores = scores

    def annotate(
        self, *, reference: str, answer: str, question: str | None = None, language: str | None = None
    ) -> Annotation:
        return self.annotate_batch([{"reference": reference, "answer": answer, "question": question}])[0]

    def annotate_batch(self, records: Iterable[Mapping[str, Any]]) -> list[Annotation]:
        self.calls += 1
        return [
            Annotation(
                dict(record),
                tuple(self._judge(record, start, end) for start, end in split_sentences(record["answer"])),
                {"name": self.name, "fingerprint": self.fingerprint},
            )
            for record in records
        ]

    def predict(self, rows: Iterable[Mapping[str, Any]]) -> list[SentenceAnnotation]:
        return [self._judge({**row, "answer": row["sentence"]}, 0, len(row["sentence"])) for row in rows]

    def _judge(self, record: Mapping[str, Any], start: int, end: int) -> SentenceAnnotation:
        self.sentences += 1
        reference, text = record["reference"], record["answer"][start:end]
        if not reference.strip():
            return SentenceAnnotation(text, start, end, "no_reference")
        swaps = dict(line.split(" -> ") for line in reference.splitlines() if " -> " in line)
        found = reference.find(text)
        label: Label = "unverifiable"
        fragments: tuple[Fragment, ...] = ()
        edits: tuple[Edit, ...] = ()
        if found >= 0:
            label, fragments = "supported", (Fragment(text, found, found + len(text)),)
        elif wrong := [a for a in swaps if a in text]:
            label = "contradictory"
            at = start + text.index(wrong[0])
            edits = (Edit(wrong[0], swaps[wrong[0]], at, at + len(wrong[0])),)
        elif not re.search(r"\d|(?<=\s)[A-Z]", text):
            label = "no_fact"
        names: tuple[Label, ...] = ("supported", "contradictory", "unverifiable", "no_fact")
        scores = {name: 0.7 if name == label else 0.1 for name in names} if self.scores else None
        return SentenceAnnotation(text, start, end, "checked", label, scores, fragments, edits)
