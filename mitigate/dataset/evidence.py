"""What a reviewer is shown and writes: the sentences of a reference that bear on one, and an edit out of a new text."""

from __future__ import annotations

from typing import Any

import numpy as np

from annotators.bm25 import BM25, words
from annotators.sentences import split_sentences

SHOWN = 6
"""Sentences of the reference beside a sentence to judge."""


def best_sentences(reference: str, sentence: str, n: int = SHOWN) -> list[str]:
    """The n sentences of a reference that have most in common with a sentence (BM25), in the order of the text."""
    found = [reference[start:end] for start, end in split_sentences(reference)]
    if len(found) > n:
        scores = BM25([words(text) for text in found]).scores([words(sentence)])[0]
        found = [found[place] for place in sorted(np.argsort(-scores, kind="stable")[:n].tolist())]
    return found


def single_edit(old: str, new: str) -> dict[str, Any] | None:
    """The smallest single replacement that turns one text into another, at word boundaries where it can be.

    Returns:
        {"from", "to", "start", "end"} with ``old[start:end] == from``; None where the texts are equal.
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
