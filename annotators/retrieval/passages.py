"""A reference cut into passages and made ready to be searched, once for all sentences to judge; BM25 over passages.

A passage is a sentence of the reference; one over 128 tokens is cut at word boundaries. Passages are embedded only
where the reference does not fit into one window. Chinese references are left to BM25 alone unless the embedder reads
Chinese. The search itself is in ``window.py``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np

from annotators.text.language import language_of
from annotators.text.sentences import split_sentences, trimmed
from annotators.text.words import chinese_words

PASSAGE_TOKENS = 128
_BREAKS = frozenset(" \t\n\r\u3000,;，；、")
_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_WORD = re.compile(rf"(?P<han>[{_HAN}]+)|\d+(?:[.,]\d+)*|[^\W{_HAN}]+(?:['’][^\W{_HAN}]+)?")
_SUFFIXES = ("ing", "edly", "ed", "es", "s", "ly")

Tokenize = Callable[[Sequence[str]], list[tuple[np.ndarray, np.ndarray]]]
"""Token ids (T,) and code-point offsets (T, 2) of each text, no special tokens (``Embedder.tokenize``)."""


class Encoder(Protocol):
    """What ranks by meaning; ``engines.embedding.Embedder`` is one."""

    @property
    def reads_chinese(self) -> bool: ...

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(n, D) float32, each of length 1."""
        ...


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
    """BM25 (k1 = 1.5, b = 0.75) over P ≥ 1 passages of one reference, given as lists of words; many queries at once.

    Counts and inverse document frequencies are those of ``rank_bm25.BM25Plus``: its idf is positive for every word,
    while Okapi's is negative or flattened for a word that more than half of the passages have, which in a reference of
    a few sentences is the topic itself. What BM25Plus adds to every passage alike is left out, so that 0 means: no word
    in common. Scoring goes through postings, since ``get_scores`` looks every word up in every passage.
    """

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


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of the reference, ``reference[start:end] == text`` (code points), of ``tokens`` tokens."""

    text: str
    start: int
    end: int
    tokens: int


@dataclass(frozen=True, eq=False)
class ReferenceIndex:
    """One reference, cut and ready to be searched: P passages, a budget in tokens of a window, and one (P, D) array of
    vectors per encoder, none where the whole reference fits; made by :func:`index_references`.
    """

    reference: str
    passages: tuple[Passage, ...]
    budget: int
    encoders: tuple[Encoder, ...] = ()
    vectors: tuple[np.ndarray, ...] = field(default=(), repr=False)

    @cached_property
    def fits(self) -> bool:
        """Whether the whole reference is within the budget."""
        return sum(passage.tokens for passage in self.passages) <= self.budget

    @cached_property
    def bm25(self) -> BM25:
        return BM25([words(passage.text) for passage in self.passages])

    @cached_property
    def lines(self) -> np.ndarray:
        """(P,) number of the line of each passage, from 0."""
        breaks = ["\n" in self.reference[a.end : b.start] for a, b in pairwise(self.passages)]
        return np.cumsum([False, *breaks])


def budget_of(reference: str) -> int:
    """Tokens of a window where none are given: the paper's 400, and 540 for a Chinese reference."""
    return 540 if language_of(reference) == "zh" else 400


def index_references(
    references: Sequence[str], tokenize: Tokenize, encoders: Sequence[Encoder] = (), budget: int | None = None
) -> list[ReferenceIndex]:
    """Cut references into passages and embed these, each distinct reference and passage once; one index each, in order.

    ``budget``, above 0, is in tokens of ``tokenize`` (None: see ``budget_of``); without ``encoders`` BM25 ranks alone.
    """
    if budget is not None and budget <= 0:
        raise ValueError(f"budget: expected a number of tokens above 0, got {budget}")
    distinct = list(dict.fromkeys(references))
    budgets = [budget or budget_of(text) for text in distinct]
    cut = _split(distinct, tokenize, [min(PASSAGE_TOKENS, tokens) for tokens in budgets])
    indexes: dict[str, ReferenceIndex] = {}
    for text, passages, tokens in zip(distinct, cut, budgets, strict=True):
        chinese = language_of(text) == "zh"
        readers = tuple(encoder for encoder in encoders if encoder.reads_chinese or not chinese)
        indexes[text] = ReferenceIndex(text, tuple(passages), tokens, readers)
    vectors: dict[str, list[np.ndarray]] = defaultdict(list)
    for encoder in encoders:
        long = [index for index in indexes.values() if not index.fits and encoder in index.encoders]
        vectors_of_all = encoder.encode([passage.text for index in long for passage in index.passages])
        ends = np.cumsum([len(index.passages) for index in long])
        for index, end in zip(long, ends, strict=True):
            vectors[index.reference].append(vectors_of_all[end - len(index.passages) : end])
    for text, arrays in vectors.items():
        indexes[text] = replace(indexes[text], vectors=tuple(arrays))
    return [indexes[text] for text in references]


def _split(references: Sequence[str], tokenize: Tokenize, limits: Sequence[int]) -> list[list[Passage]]:
    """The sentences of each reference, those over its limit of tokens cut at word boundaries if possible."""
    pieces = [(n, start, end) for n, text in enumerate(references) for start, end in split_sentences(text)]
    texts = [references[n][start:end] for n, start, end in pieces]
    found: list[list[Passage]] = [[] for _ in references]
    parts: list[tuple[int, int, int, int | None]] = []  # reference, start, end, tokens if known
    for (n, start, end), text, (_, offsets) in zip(pieces, texts, tokenize(texts), strict=True):
        if len(offsets) <= limits[n]:
            parts.append((n, start, end, len(offsets)))
        else:
            parts += [(n, start + a, start + b, None) for a, b in _cut(text, offsets[:, 0], limits[n])]
    counts = iter(tokenize([references[n][a:b] for n, a, b, tokens in parts if tokens is None]))
    for n, start, end, tokens in parts:
        count = len(next(counts)[0]) if tokens is None else tokens
        found[n].append(Passage(references[n][start:end], start, end, count))
    return found


def _cut(text: str, starts_T: np.ndarray, limit: int) -> list[tuple[int, int]]:
    """Cut a text into pieces of at most ``limit`` tokens, after white space or a comma where possible."""
    cuts, token = [0], 0
    while len(starts_T) - token > limit:
        last = token + limit
        words_begin = (k for k in range(last, token + limit // 2, -1) if text[starts_T[k] - 1] in _BREAKS)
        cut = next(words_begin, last)
        cuts.append(int(starts_T[cut]))
        token = max(token + 1, int(np.searchsorted(starts_T, starts_T[cut])))  # tokens may share a character
    return trimmed(text, [*cuts, len(text)])
