"""BM25 over the passages of one reference, for English and Chinese, many queries at once.

Counts and inverse document frequencies are those of ``rank_bm25.BM25Plus``: its idf is positive for every word, while
Okapi's is negative or flattened for a word that more than half of the passages have, which in a reference of a few
sentences is the topic itself. What BM25Plus adds to every passage alike is left out, so that 0 means: no word in
common. Scoring goes through postings, since ``get_scores`` looks every word up in every passage.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from annotators.text.words import chinese_words

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_WORD = re.compile(rf"(?P<han>[{_HAN}]+)|\d+(?:[.,]\d+)*|[^\W{_HAN}]+(?:['’][^\W{_HAN}]+)?")
_SUFFIXES = ("ing", "edly", "ed", "es", "s", "ly")


def words(text: str) -> list[str]:
    """The words to compare: Chinese by jieba, others in lower case without suffixes, "1,000" as "1000"."""
    found = []
    for match in _WORD.finditer(text):
        word = match.group()
        if match["han"]:
            found += chinese_words(word)
        elif word[0].isdigit():
            found.append(word.replace(",", "").lower())
        else:
            word = word.lower().removesuffix("'s").removesuffix("’s")
            # "release", "released" and "releases" become one; what is left need be no word
            suffix = next((s for s in _SUFFIXES if word.endswith(s) and len(word) - len(s) >= 3), "")
            word = word.removesuffix(suffix)
            found.append(word.removesuffix("e") if len(word) > 4 else word)
    return found


class BM25:
    """BM25 (k1 = 1.5, b = 0.75) over P ≥ 1 passages, given as lists of words."""

    def __init__(self, passages: Sequence[Sequence[str]]) -> None:
        from rank_bm25 import BM25Plus

        counts = BM25Plus(passages)
        length_P = np.asarray(counts.doc_len, dtype=np.float32) / (counts.avgdl or 1.0)
        norm_P = counts.k1 * (1 - counts.b + counts.b * length_P)
        rows: dict[str, list[tuple[int, int]]] = {}
        for place, frequencies in enumerate(counts.doc_freqs):
            for word, frequency in frequencies.items():
                rows.setdefault(word, []).append((place, frequency))
        self._size = len(passages)
        self._postings: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for word, row in rows.items():
            place, tf = np.asarray(row, dtype=np.int64).T
            # idf · tf (k1 + 1) / (tf + k1 (1 − b + b |d| / avgdl)); Robertson & Zaragoza 2009, Eq. 3.15
            self._postings[word] = place, counts.idf[word] * tf * (counts.k1 + 1) / (tf + norm_P[place])

    def scores(self, queries: Sequence[Sequence[str]]) -> np.ndarray:
        """(Q, P) float32, higher is better, 0 = no word in common; a repeated word counts repeatedly."""
        scores_QP = np.zeros((len(queries), self._size), np.float32)
        for row, query in zip(scores_QP, queries, strict=True):
            for word in query:
                if word in self._postings:
                    place, weight = self._postings[word]
                    row[place] += weight
        return scores_QP
