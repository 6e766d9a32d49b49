"""Annotated records for the tests of reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mitigate.report.totals import Totals
from tests.helpers.demo_parts import sentence
from tests.helpers.standin import ExactAnnotator

LETTERS = {"s": "supported", "c": "contradictory", "u": "unverifiable", "n": "no_fact"}


def record_of(kinds: str, **extra: Any) -> dict[str, Any]:
    """A record with one sentence "A." per letter: s, c, u, n as labels, - for not checked."""
    answer = " ".join("A." for _ in kinds)
    sentences = [
        sentence(answer, 3 * i, 3 * i + 2, status="checked" if k in LETTERS else "too_long", label=LETTERS.get(k))
        for i, k in enumerate(kinds)
    ]
    annotator = {"name": "exact", "fingerprint": "exact-1"}
    return {"reference": "r", "answer": answer, **extra, "sentences": sentences, "annotator": annotator}


def annotated(reference: str, answer: str, **extra: Any) -> dict[str, Any]:
    record = {"reference": reference, "answer": answer, **extra}
    return ExactAnnotator().annotate_batch([record])[0].to_dict()


def totals_of(records: Iterable[dict[str, Any]]) -> Totals:
    totals = Totals()
    for record in records:
        totals.add(record)
    return totals


REFERENCE = "The tower is 330 metres high. It stands in Paris."
ANSWER = "It stands in Paris. The tower is 300 metres high. It is grey. Thanks!"
