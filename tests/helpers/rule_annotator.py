"""An annotator by rule, for tests: a sentence is supported where it stands in the reference, word for word.

A line "A -> B" in the reference says that B stands where A would be false: sentences holding A are contradictory, and
the correction is B. A sentence without a digit or a capital inside is no fact. Counts its calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from annotators.base import Annotator, Sentence
from annotators.records import Edit, Fragment, Label, SentenceAnnotation

REFERENCE = "The tower has 12 floors.\nIt opened in May 1901.\n14 floors -> 12 floors\nPaul built -> Anna built\n"
RIGHT, WRONG, LOST = "The tower has 12 floors.", "The tower has 14 floors.", "It cost 30 Marks."
"""Sentences that are supported by REFERENCE, contradicted with a correction, and not mentioned."""


class RuleAnnotator(Annotator):
    name = "rule"
    fingerprint = "rule"
    reads = ("reference", "sentence")

    def __init__(self, scores: bool = False) -> None:
        self.calls = 0
        self.sentences = 0
        self.scores = scores

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        self.calls += 1
        self.sentences += len(sentences)
        return [self._judge(sentence) for sentence in sentences]

    def _judge(self, sentence: Sentence) -> SentenceAnnotation:
        reference, text, start = sentence.reference, sentence.text, sentence.start
        if not reference.strip():
            return sentence.judged("no_reference")
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
        return sentence.judged("checked", label, scores, fragments=fragments, correction=edits)
