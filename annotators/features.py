"""The feature vector of one sentence against one window: lexical and embedded alignment, side by side.

``Idf`` weighs words by how rare they are in the training documents; ``Evidence`` holds what all sentences judged
against one window share.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from annotators.alignment import ALIGNMENT_FEATURES, PassageVectors, alignment_features
from annotators.conflicts import CONFLICT_FEATURES, conflict_features
from annotators.lexical import LEXICAL_FEATURES, lexical_features, stem_set, words_of
from engines.embedding import TokenEmbeddings

FEATURES = (*LEXICAL_FEATURES, *ALIGNMENT_FEATURES, *CONFLICT_FEATURES)
FORM = frozenset(
    """numbers names negated hedged extreme length content_share question_cover cos_question cos_question_best
    passage_share passage_entropy length_ratio_best""".split()
)
"""Features of a sentence's form, not of how it is met: they tell sources apart rather than labels, so the combiner does
not read them (docs/LOG.md). Question mark and personal words stay, for "no fact"."""
VERSION = 3
"""Raised whenever a feature changes its meaning, or judging what it does with features and votes, since stored
combiners depend on both."""
N_BUCKETS = 1 << 16


class Idf:
    """Inverse document frequency of stems, hashed into a table of N_BUCKETS."""

    def __init__(self, table: np.ndarray) -> None:
        if table.shape != (N_BUCKETS,):
            raise ValueError(f"idf table: expected shape ({N_BUCKETS},), got {table.shape}")
        self.table = table.astype(np.float32)

    def __call__(self, stem: str) -> float:
        return float(self.table[zlib.crc32(stem.encode("utf-8", "replace")) % N_BUCKETS])

    @classmethod
    def fit(cls, passages: Iterable[str]) -> Idf:
        """idf(w) = log((n + 1) / (df(w) + 1)) over n passages."""
        frequency = np.zeros(N_BUCKETS)
        n = 0
        for passage in passages:
            n += 1
            for bucket in {
                zlib.crc32(stem.encode("utf-8", "replace")) % N_BUCKETS for stem in stem_set(passage)
            }:
                frequency[bucket] += 1
        return cls(np.log((n + 1) / (frequency + 1)))


class Evidence:
    """The passages of one window with their vectors.

    Args:
        texts: The passages' texts, clean, in document order.
        embeddings: Their token embeddings.
    """

    def __init__(self, texts: Sequence[str], embeddings: Sequence[TokenEmbeddings]) -> None:
        self.texts = tuple(texts)
        self.vectors = PassageVectors(embeddings)
        self.stems = frozenset().union(*(stem_set(text) for text in texts))

    def found(self, sentence: str) -> np.ndarray:
        """(_W,) bool: which words of the sentence stand in the window."""
        return np.array([stem in self.stems for stem in words_of(sentence).stems], dtype=bool)


def feature_vector(
    sentence: str,
    own: TokenEmbeddings,
    evidence: Evidence,
    idf: Idf,
    question: str,
    asked: TokenEmbeddings | None,
) -> np.ndarray:
    """All features of a sentence, (len(FEATURES),) float64, in the order of FEATURES.

    Args:
        sentence: The sentence, clean.
        own: Its token embeddings.
        evidence: Its window.
        idf: Word weights.
        question: The question, or "".
        asked: Its embeddings, or None without a question.
    """
    words = words_of(sentence)
    weight = np.array([idf(stem) for stem in words.stems])
    lexical = lexical_features(sentence, evidence.texts, idf, question)
    pooled = None if asked is None else asked.pooled
    alignment, mass = alignment_features(
        words, own, evidence.vectors, evidence.found(sentence), weight, pooled
    )
    best = sorted(range(len(mass)), key=lambda i: -mass[i])[:2]
    return np.concatenate(
        [lexical, alignment, conflict_features(sentence, [evidence.texts[i] for i in best])]
    )
