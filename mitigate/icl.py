"""FEWL-guided in-context examples: questions that FEWL and the baseline answer differently, shown before a new one.

The pool is made of those questions, since there the choice of the score matters (FEWL, §5.1); a test question gets the
nearest of them as demonstrations, the most similar last, next to the question. A question is never its own
demonstration, nor is one of nearly the same words. The prompt is this toolkit's own.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engines.types import Chat
from fewl.similarity import Encode

SAME = 0.95
"""Cosine from which two questions count as one: a demonstration of it would give the answer away."""
RULES = (
    "Answer the question truthfully and briefly, for any reader. If you don't know the answer, say so instead of "
    "guessing."
)
EXAMPLES = "Here are similar questions with good answers; they show form and care, not the answer to yours."


@dataclass(frozen=True)
class Example:
    """A question of the pool: what FEWL picked, and what the baseline picked instead."""

    id: str
    question: str
    fewl: str
    baseline: str


@dataclass(frozen=True)
class Neighbour:
    """An example with its similarity to the question that it is for, in [−1, 1]."""

    example: Example
    similarity: float


def candidate_pool(
    records: Sequence[Mapping[str, Any]], fewl: Sequence[int | None], baseline: Sequence[int | None]
) -> list[Example]:
    """The questions of FEWL records for which the two picks (`mitigate.recipes.data.picks`) are different texts."""
    pool = []
    for record, first, second in zip(records, fewl, baseline, strict=True):
        if first is not None and second is not None:
            texts = [record["answers"][i]["text"] for i in (first, second)]
            if normalised(texts[0]) != normalised(texts[1]):
                pool.append(Example(str(record["id"]), record["question"], *texts))
    return pool


def normalised(text: str) -> str:
    """Letters and digits of a text without case, width or presentation forms; equal for equal wordings."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def one_line(text: str) -> str:
    """A text on one line, so that none can look like another question and answer."""
    return " ".join(text.split())


def demonstrations(questions: Sequence[str], pool: Sequence[Example], encode: Encode, k: int) -> list[list[Neighbour]]:
    """For each question at most k nearest examples by cosine, the most similar last.

    Examples with the question's own words, or a cosine of SAME and more, are left out; ``encode`` gives unit vectors.
    """
    if not pool or not questions:
        return [[] for _ in questions]
    texts = [example.question for example in pool]
    vectors = encode([*questions, *texts])  # in one call, since what words weigh depends on all texts
    similarity_QP = vectors[: len(questions)] @ vectors[len(questions) :].T
    own_P = [normalised(text) for text in texts]
    found = []
    for question, row_P in zip(questions, similarity_QP, strict=True):
        own = normalised(question)
        order = [int(p) for p in np.argsort(-row_P, kind="stable") if row_P[p] < SAME and own_P[p] != own]
        found.append([Neighbour(pool[p], float(row_P[p])) for p in reversed(order[:k])])
    return found


def chat(
    question: str, shown: Sequence[tuple[str, str]], *, budget: int | None = None, count: Callable[[str], int] = len
) -> tuple[Chat, int]:
    """The chat that asks a question after demonstrations, and how many of them are in it.

    ``shown`` are (question, answer), the most similar last. Where ``count`` of the prompt exceeds ``budget`` tokens
    (None: no limit), the first are dropped; the question itself always stays.
    """
    kept = list(shown)
    while True:
        parts = [RULES, *([EXAMPLES] if kept else [])]
        parts += [f"Question: {one_line(q)}\nAnswer: {one_line(a)}" for q, a in kept]
        text = "\n\n".join([*parts, f"Question: {one_line(question)}\nAnswer:"])
        if budget is None or count(text) <= budget or not kept:
            return [{"role": "user", "content": text}], len(kept)
        del kept[0]
