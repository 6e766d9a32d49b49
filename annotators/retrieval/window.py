"""The window: the passages of a reference that bear on a sentence, within a budget of the annotator's tokens.

A reference within the budget is its own window. Otherwise each passage gets a reciprocal rank from BM25 and from each
embedder; the sum of these, with a share of a neighbour's, orders the passages. Ranks rather than scores, so that
unrelated text put around the evidence changes little. The second pass reads six times as much, in several windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from annotators.retrieval.passages import Passage, ReferenceIndex, words

# Chosen on fold 1, see docs/results/evidence.md.
RANK_OFFSET = 5
LINE_SHARE, LINE_TOKENS = 0.75, 128
_CELLS = 4_000_000  # scores of one matrix, at most: queries are taken in groups of this many / passages


@dataclass(frozen=True)
class Window:
    """Passages of one reference in document order, their numbers, and whether they are the whole reference."""

    passages: tuple[Passage, ...]
    places: tuple[int, ...]
    whole: bool

    @property
    def tokens(self) -> int:
        return sum(passage.tokens for passage in self.passages)

    @property
    def text(self) -> str:
        """The passages, one a line."""
        return "\n".join(passage.text for passage in self.passages)


def select(pairs: Sequence[tuple[ReferenceIndex, str]]) -> list[Window]:
    """The window of each (reference, sentence to judge) pair, in order; pairs of one reference are ranked together."""
    windows = {n: _window(index, take(index, order, index.budget)) for n, index, order in _orders(pairs)}
    for n, (index, _) in enumerate(pairs):
        if index.fits:
            windows[n] = Window(index.passages, tuple(range(len(index.passages))), whole=True)
    return [windows[n] for n in range(len(pairs))]


def second_pass(pairs: Sequence[tuple[ReferenceIndex, str]], factor: int = 6) -> list[list[Window]]:
    """More windows for sentences that the first one left unverifiable; none where that was the whole reference.

    The best passages up to ``factor`` times the budget, now beside their neighbours, in at most ``factor`` windows.
    """
    windows: list[list[Window]] = [[] for _ in pairs]
    for n, index, order in _orders(pairs):
        places = take(index, order, index.budget * factor)
        windows[n] = [_window(index, part) for part in pack(index, places, factor)]
    return windows


def _orders(pairs: Sequence[tuple[ReferenceIndex, str]]) -> Iterator[tuple[int, ReferenceIndex, np.ndarray]]:
    """For each pair whose reference does not fit: its number, index and (P,) places, best first."""
    numbers_of: dict[int, list[int]] = defaultdict(list)
    for n, (index, _) in enumerate(pairs):
        if not index.fits:
            numbers_of[id(index)].append(n)
    todo = [n for numbers in numbers_of.values() for n in numbers]
    vectors: dict[tuple[int, str], np.ndarray] = {}
    for encoder in {id(encoder): encoder for n in todo for encoder in pairs[n][0].encoders}.values():
        queries = list(dict.fromkeys(pairs[n][1] for n in todo if encoder in pairs[n][0].encoders))
        vectors |= {(id(encoder), query): v for query, v in zip(queries, encoder.encode(queries), strict=True)}
    for numbers in numbers_of.values():
        index = pairs[numbers[0]][0]
        size = max(1, _CELLS // len(index.passages))
        for group in (numbers[i : i + size] for i in range(0, len(numbers), size)):
            queries = [pairs[n][1] for n in group]
            scores = [index.bm25.scores([words(query) for query in queries])]
            for encoder, vectors_PD in zip(index.encoders, index.vectors, strict=True):
                scores.append(np.stack([vectors[id(encoder), query] for query in queries]) @ vectors_PD.T)
            support_QP = with_neighbours(fuse(scores), index)
            orders_QP = np.argsort(-support_QP, axis=1, kind="stable")
            yield from ((n, index, order) for n, order in zip(group, orders_QP, strict=True))


def fuse(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Reciprocal-rank fusion of rankings, (Q, P) each, higher is better; equal scores have equal ranks.

    Source: Cormack, Clarke & Büttcher 2009: Σ 1 / (k + rank), rank from 1; here k = ``RANK_OFFSET``.
    """
    from scipy.stats import rankdata

    total_QP = np.zeros(scores[0].shape, np.float32)
    for scores_QP in scores:
        total_QP += 1 / (RANK_OFFSET + rankdata(-scores_QP, method="min", axis=1))
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


def _window(index: ReferenceIndex, places: Sequence[int]) -> Window:
    ordered = tuple(sorted(places))
    return Window(tuple(index.passages[place] for place in ordered), ordered, whole=False)
