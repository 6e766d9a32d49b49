"""Records as arrays of text numbers: who answered what, with −1 where nobody did.

Suffixes as in ``fewl/core.py``; here ``_Q`` counts records, and ``distinct_Q`` maps each to its question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewl.records import FewlRecord

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Texts once each, and arrays that point at them.

    Args:
        texts: Distinct texts of answers, references and pairs.
        slots: The LLM behind each place n; an LLM with several samples has several places.
        weak_N: Whether place n is a weak LLM's, which is no reference.
        questions: Distinct question texts.
        distinct_Q: The question of each record, a place in ``questions``.
        asked_Q: The question of each record, a place in ``texts``.
        answer_A: Text of each answer; −1 for an empty one.
        question_A: The record of each answer.
        own_AN: Whether place n is the model that gave the answer.
        reference_QN: Text of each reference answer.
        pool_PN: The same for each distinct question: the first that any of its records has.
        pairs: (co_QK, iw_QK) of the records.
        ideal: The same made of answers labelled true and false.
    """

    texts: list[str]
    slots: list[str]
    weak_N: NDArray[np.bool_]
    questions: list[str]
    distinct_Q: Ints
    asked_Q: Ints
    answer_A: Ints
    question_A: Ints
    own_AN: NDArray[np.bool_]
    reference_QN: Ints
    pool_PN: Ints
    pairs: tuple[Ints, Ints]
    ideal: tuple[Ints, Ints]

    def reference_of(self, neighbours_QK: Ints) -> Ints:
        """Reference answers to neighbour questions, reference_QNK."""
        reference_QKN = self.pool_PN[neighbours_QK]
        reference_QKN[neighbours_QK < 0] = -1
        return np.moveaxis(reference_QKN, -1, -2)


def lay_out(records: Sequence[FewlRecord], names: Sequence[str], weak: Sequence[str] = ()) -> Layout:
    """Number the texts of the records; only the reference LLMs named and the weak ones are laid out."""
    number: dict[str, int] = {}

    def numbers(texts: Iterable[str]) -> list[int]:
        return [number.setdefault(text, len(number)) if text.strip() else -1 for text in texts]

    slots = [
        name
        for name in (*names, *weak)
        for _ in range(max((len(r.references.get(name, ())) for r in records), default=0))
    ]
    first = {name: slots.index(name) for name in slots}
    reference_QN = np.full((len(records), len(slots)), -1, dtype=np.int64)
    for q, record in enumerate(records):
        for name in first:
            found = numbers(record.references.get(name, ()))
            reference_QN[q, first[name] : first[name] + len(found)] = found

    question_number: dict[str, int] = {}
    distinct_Q = np.array(
        [question_number.setdefault(r.question, len(question_number)) for r in records], dtype=np.int64
    )
    pool_PN = np.full((len(question_number), len(slots)), -1, dtype=np.int64)
    for q in reversed(range(len(records))):  # backwards, so that the first record of a question has the word
        there_N = reference_QN[q] >= 0
        pool_PN[distinct_Q[q], there_N] = reference_QN[q, there_N]
    weak_N = np.array([slot in weak for slot in slots], dtype=bool)
    pool_PN[:, weak_N] = -1  # they have no part in the penalty

    answers = [(q, answer) for q, record in enumerate(records) for answer in record.answers]
    answer_A = np.array(numbers(answer.text for _, answer in answers), dtype=np.int64)
    own = [[answer.model == name for name in slots] for _, answer in answers]
    asked_Q = np.array(numbers(r.question for r in records), dtype=np.int64)
    pairs = (_ragged([numbers(r.co) for r in records]), _ragged([numbers(r.iw) for r in records]))
    ideal = (
        _ragged([numbers(a.text for a in r.answers if a.label is True) for r in records]),
        _ragged([numbers(a.text for a in r.answers if a.label is False) for r in records]),
    )
    return Layout(
        texts=list(number),
        slots=slots,
        weak_N=weak_N,
        questions=list(question_number),
        distinct_Q=distinct_Q,
        asked_Q=asked_Q,
        answer_A=answer_A,
        question_A=np.array([q for q, _ in answers], dtype=np.int64),
        own_AN=np.array(own, dtype=bool).reshape(len(answers), len(slots)),
        reference_QN=reference_QN,
        pool_PN=pool_PN,
        pairs=pairs,
        ideal=ideal,
    )


def _ragged(rows: Sequence[Sequence[int]]) -> Ints:
    """Lists of unequal length as one array, padded with −1."""
    padded = np.full((len(rows), max((len(row) for row in rows), default=0)), -1, dtype=np.int64)
    for row, values in zip(padded, rows, strict=True):
        row[: len(values)] = values
    return padded
