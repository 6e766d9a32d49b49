"""What of a reference bears on a sentence: passages, BM25 and the window, within a budget of the annotator's tokens.

A passage is a sentence of the reference; one over 128 tokens is cut at word boundaries. A reference within the budget
is its own window, and is not embedded. Otherwise each passage gets a reciprocal rank from BM25 and from an embedder
that reads the reference's language; their sum, with a share of a neighbour's, orders the passages. Ranks rather
than scores, so that unrelated text put around the evidence changes little. The second pass reads six times as much, in
several windows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from annotators.text.language import HAN, language_of
from annotators.text.sentences import split_sentences, trimmed
from annotators.text.words import FUNCTION_WORDS, chinese_words

if TYPE_CHECKING:
    from engines.embedding import Embedder

PASSAGE_TOKENS = 128
# Chosen on fold 1, see docs/results/evidence.md.
RANK_OFFSET = 5
LINE_SHARE, LINE_TOKENS = 0.75, 128
_CELLS = 4_000_000  # scores of one matrix, at most: queries are taken in groups of this many / passages
_BREAKS = frozenset(" \t\n\r\u3000,;，；、")
_WORD = re.compile(rf"(?P<han>[{HAN}]+)|\d+(?:[.,]\d+)*|[^\W{HAN}]+(?:['’][^\W{HAN}]+)?")
_SUFFIXES = ("ing", "edly", "ed", "es", "s", "ly")

Tokenize = Callable[[Sequence[str]], list[tuple[np.ndarray, np.ndarray]]]
"""Token ids (T,) and code-point offsets (T, 2) of each text, no special tokens (``Embedder.tokenize``)."""


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


_FUNCTION_WORDS = frozenset(words(" ".join(FUNCTION_WORDS)))


class BM25:
    """BM25 (k1 = 1.5, b = 0.75) over P ≥ 1 passages of one reference, given as lists of words; many queries at once.

    The scores are those of ``rank_bm25.BM25Plus``: its idf is positive for every word, while Okapi's is negative or
    flattened for a word that more than half of the passages have, which in a reference of a few sentences is the topic
    itself. What BM25Plus adds to every passage alike is left out, so that 0 means: no word in common. Scoring goes
    through postings, since ``get_scores`` looks every word up in every passage.
    """

    def __init__(self, passages: Sequence[Sequence[str]]) -> None:
        from rank_bm25 import BM25Plus

        counts = BM25Plus(passages)
        self._k1, self._b = counts.k1, counts.b
        self._length_P = np.asarray(counts.doc_len, dtype=np.float32)
        rows: dict[str, list[tuple[int, int]]] = {}
        for place, frequencies in enumerate(counts.doc_freqs):
            for word, frequency in frequencies.items():
                rows.setdefault(word, []).append((place, frequency))
        self._postings = {word: tuple(np.asarray(row, dtype=np.int64).T) for word, row in rows.items()}

    def scores(self, queries: Sequence[Sequence[str]], near: float = 0.0) -> np.ndarray:
        """(Q, P) float32, higher is better, 0 = no word in common; a repeated word counts repeatedly.

        With ``near`` in (0, 1] only the passages count, and are counted, that share at least so many of the query's
        content words, as a share of the most that one shares; others get 0. Unrelated passages then change neither how
        rare a word is, nor the mean length: the words of the topic stay common, however much else the reference holds.
        """
        scores_QP = np.zeros((len(queries), len(self._length_P)), np.float32)
        for row, query in zip(scores_QP, queries, strict=True):
            found = [self._postings[word] for word in query if word in self._postings]
            kept_P = np.ones(len(row), bool)
            if near:
                shared_P = np.zeros(len(row), np.int64)
                for word in (set(query) - _FUNCTION_WORDS) & self._postings.keys():
                    shared_P[self._postings[word][0]] += 1
                kept_P = shared_P >= near * shared_P.max()
            length_P = self._length_P / (self._length_P[kept_P].mean() or 1.0)
            norm_P = self._k1 * (1 - self._b + self._b * length_P)
            for place, tf in found:
                # idf · tf (k1 + 1) / (tf + k1 (1 − b + b |d| / avgdl)); Robertson & Zaragoza 2009, Eq. 3.15
                idf = np.log((kept_P.sum() + 1) / max(1, kept_P[place].sum()))
                row[place] += idf * tf * (self._k1 + 1) / (tf + norm_P[place])
            row[~kept_P] = 0
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
    """One reference, cut and ready to be searched; made by `index_references`.

    Where it does not fit, BM25 is that among the passages near the query by the share ``relevant`` in [0, 1]; those
    with less than this share of the best one's score, both with their neighbours', are not read, though there be room.
    """

    reference: str
    passages: tuple[Passage, ...]
    budget: int  # tokens of a window
    encoder: Embedder | None = None  # one that reads its language
    vectors: np.ndarray | None = field(default=None, repr=False)  # (P, D); None where the whole reference fits
    relevant: float = 0.0

    @cached_property
    def fits(self) -> bool:
        """Whether the whole reference is within the budget."""
        return sum(passage.tokens for passage in self.passages) <= self.budget

    @property
    def all(self) -> Window:
        """The whole reference as a window."""
        return Window(self, tuple(range(len(self.passages))))

    @cached_property
    def bm25(self) -> BM25:
        return BM25([words(passage.text) for passage in self.passages])

    @cached_property
    def lines(self) -> np.ndarray:
        """(P,) number of the line of each passage, from 0."""
        breaks = ["\n" in self.reference[a.end : b.start] for a, b in pairwise(self.passages)]
        return np.cumsum([False, *breaks])


@dataclass(frozen=True)
class Window:
    """Passages of one reference, by their numbers in document order."""

    index: ReferenceIndex
    places: tuple[int, ...]

    @property
    def passages(self) -> list[Passage]:
        return [self.index.passages[place] for place in self.places]

    @property
    def whole(self) -> bool:
        """Whether it is the whole reference."""
        return len(self.places) == len(self.index.passages)

    @property
    def text(self) -> str:
        """The passages, one a line."""
        return "\n".join(passage.text for passage in self.passages)

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Spans [start, end) of the reference: neighbouring passages with the text between them."""
        spans: list[tuple[int, int]] = []
        for before, place, passage in zip((-2, *self.places), self.places, self.passages, strict=False):
            start = spans.pop()[0] if place == before + 1 else passage.start
            spans.append((start, passage.end))
        return tuple(spans)

    def joined(self, gap: str) -> str:
        """The text of the runs, with ``gap`` for what is left out between them."""
        return gap.join(self.index.reference[start:end] for start, end in self.runs)


def budget_of(reference: str) -> int:
    """Tokens of a window where none are given: the paper's 400, and 540 for a Chinese reference."""
    return 540 if language_of(reference) == "zh" else 400


def index_references(
    references: Sequence[str], tokenize: Tokenize, encoder: Embedder | None = None, budget: int | None = None,
    relevant: float = 0.0,
) -> list[ReferenceIndex]:  # fmt: skip
    """Cut references into passages and embed these, each distinct reference once; one index each, in order.

    ``budget``, above 0, is in tokens of ``tokenize`` (None: see ``budget_of``); without ``encoder`` BM25 ranks alone.
    """
    if budget is not None and budget <= 0:
        raise ValueError(f"budget: expected a number of tokens above 0, got {budget}")
    distinct = list(dict.fromkeys(references))
    budgets = [budget or budget_of(text) for text in distinct]
    cut = _split(distinct, tokenize, [min(PASSAGE_TOKENS, tokens) for tokens in budgets])
    indexes: dict[str, ReferenceIndex] = {}
    for text, passages, tokens in zip(distinct, cut, budgets, strict=True):
        reader = encoder if encoder is not None and (encoder.reads_chinese or language_of(text) != "zh") else None
        indexes[text] = ReferenceIndex(text, tuple(passages), tokens, reader, relevant=relevant)
    long = [index for index in indexes.values() if not index.fits and index.encoder is not None]
    if encoder is not None and long:
        vectors_of_all = encoder.encode([passage.text for index in long for passage in index.passages])
        ends = np.cumsum([len(index.passages) for index in long])
        for index, end in zip(long, ends, strict=True):
            own_PD = vectors_of_all[end - len(index.passages) : end]
            indexes[index.reference] = replace(index, vectors=own_PD)
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


# --- the window ------------------------------------------------------------------------------------------------------


def select(pairs: Sequence[tuple[ReferenceIndex, str]]) -> list[Window]:
    """The window of each (reference, sentence to judge) pair, in order; pairs of one reference are ranked together."""
    windows = [index.all for index, _ in pairs]
    for n, index, order in _orders(pairs):
        windows[n] = Window(index, tuple(sorted(take(index, order, index.budget))))
    return windows


def second_pass(pairs: Sequence[tuple[ReferenceIndex, str]], factor: int = 6) -> list[list[Window]]:
    """More windows for sentences that the first one left unverifiable; none where that was the whole reference.

    The best passages up to ``factor`` times the budget, now beside their neighbours, in at most ``factor`` windows.
    """
    windows: list[list[Window]] = [[] for _ in pairs]
    for n, index, order in _orders(pairs):
        packed = pack(index, take(index, order, index.budget * factor), factor)
        windows[n] = [Window(index, tuple(part)) for part in packed]
    return windows


def _orders(pairs: Sequence[tuple[ReferenceIndex, str]]) -> Iterator[tuple[int, ReferenceIndex, np.ndarray]]:
    """For each pair whose reference does not fit: its number, index and the places to read, best first."""
    numbers_of: dict[int, list[int]] = defaultdict(list)
    for n, (index, _) in enumerate(pairs):
        if not index.fits:
            numbers_of[id(index)].append(n)
    embedded = [pairs[n] for numbers in numbers_of.values() for n in numbers if pairs[n][0].vectors is not None]
    vectors: dict[str, np.ndarray] = {}
    if embedded and (encoder := embedded[0][0].encoder):
        queries = list(dict.fromkeys(query for _, query in embedded))
        vectors = dict(zip(queries, encoder.encode(queries), strict=True))
    for numbers in numbers_of.values():
        index = pairs[numbers[0]][0]
        size = max(1, _CELLS // len(index.passages))
        for group in (numbers[i : i + size] for i in range(0, len(numbers), size)):
            queries = [pairs[n][1] for n in group]
            scores = [index.bm25.scores([words(query) for query in queries], index.relevant)]
            strength_QP = with_neighbours(scores[0], index)
            read_QP = strength_QP >= index.relevant * strength_QP.max(1, keepdims=True)
            if index.vectors is not None:
                scores.append(np.stack([vectors[query] for query in queries]) @ index.vectors.T)
            support_QP = with_neighbours(fuse(scores), index)
            orders_QP = np.argsort(-support_QP, axis=1, kind="stable")
            for n, order_P, read_P in zip(group, orders_QP, read_QP, strict=True):
                yield n, index, order_P[read_P[order_P]]


def fuse(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Reciprocal-rank fusion of rankings, (Q, P) each, higher is better; equal scores have equal ranks.

    Source: Cormack, Clarke & Büttcher 2009: Σ 1 / (k + rank), rank from 1; here k = ``RANK_OFFSET``.
    """
    total_QP = np.zeros(scores[0].shape, np.float32)
    for scores_QP in scores:  # scipy's rankdata does it too, and takes a quarter of a second to import
        above_QP = np.stack([np.searchsorted(np.sort(row_P), row_P) for row_P in -scores_QP])
        total_QP += 1 / (RANK_OFFSET + 1 + above_QP)
    return total_QP


def with_neighbours(support_QP: np.ndarray, index: ReferenceIndex) -> np.ndarray:
    """Add to each passage's support, (Q, P), ``LINE_SHARE`` of its best neighbour's.

    Neighbours are passages of the same line with at most ``LINE_TOKENS`` tokens between: sentences around the evidence
    say what "he" or "the album" is. Lines do not help each other, since many references are lists of snippets.
    """
    line_P = index.lines
    ends_P = np.cumsum([passage.tokens for passage in index.passages])
    best_QP = np.zeros_like(support_QP)
    for step in range(1, len(line_P)):
        between = ends_P[step - 1 : -1] - ends_P[:-step]
        near = (line_P[step:] == line_P[:-step]) & (between <= LINE_TOKENS)
        if not near.any():
            break
        share = np.where(near, np.float32(LINE_SHARE), np.float32(0))
        best_QP[:, step:] = np.maximum(best_QP[:, step:], support_QP[:, :-step] * share)
        best_QP[:, :-step] = np.maximum(best_QP[:, :-step], support_QP[:, step:] * share)
    return support_QP + best_QP


def take(index: ReferenceIndex, order_P: np.ndarray, budget: int) -> list[int]:
    """Places to read, best first; one that no longer fits is passed over, the best is taken, equal passages once."""
    smallest = min(passage.tokens for passage in index.passages)
    taken: list[int] = []
    seen: set[str] = set()
    left = budget
    for place in order_P.tolist():
        passage = index.passages[place]
        if (passage.tokens <= left or not taken) and passage.text not in seen:
            taken.append(place)
            seen.add(passage.text)
            left -= passage.tokens
            if left < max(1, smallest):
                break
    return taken


def pack(index: ReferenceIndex, places: Sequence[int], factor: int) -> list[list[int]]:
    """Cut places (best first) into at most ``factor`` windows within the budget, in document order.

    Windows are not filled to the last token; where that makes one too many, the worst passages are left out.
    """
    for kept in range(len(places), 0, -1):
        packed: list[list[int]] = [[]]
        left = index.budget
        for place in sorted(places[:kept]):
            tokens = index.passages[place].tokens
            if tokens > left and packed[-1]:
                packed.append([])
                left = index.budget
            packed[-1].append(place)
            left -= tokens
        if len(packed) <= factor:
            return packed
    return []
