"""The stand-in with rules that the reference itself states, for tests of what corrects and chooses answers.

A line "A -> B" in the reference says that B stands where A would be false: sentences holding A are contradictory, and
the correction is B. A sentence without a digit or a capital inside is no fact.
"""

import re

from annotators.records import Edit, Label
from tests.helpers.standin import ExactAnnotator

REFERENCE = "The tower has 12 floors.\nIt opened in May 1901.\n14 floors -> 12 floors\nPaul built -> Anna built\n"
RIGHT, WRONG, LOST = "The tower has 12 floors.", "The tower has 14 floors.", "It cost 30 Marks."
"""Sentences that are supported by REFERENCE, contradicted with a correction, and not mentioned."""


class RuleAnnotator(ExactAnnotator):
    name = fingerprint = "rule"
    reads = ("reference", "sentence")

    def __init__(self, scores: bool = False) -> None:
        super().__init__()
        self.sure = 0.7 if scores else None

    def label(self, text: str, start: int, reference: str) -> tuple[Label, int, tuple[Edit, ...]]:
        if (at := reference.find(text)) >= 0:
            return "supported", at, ()
        for wrong, right in (line.split(" -> ") for line in reference.splitlines() if " -> " in line):
            if (place := text.find(wrong)) >= 0:
                place += start
                return "contradictory", -1, (Edit(wrong, right, place, place + len(wrong)),)
        return ("unverifiable" if re.search(r"\d|(?<=\s)[A-Z]", text) else "no_fact"), -1, ()
