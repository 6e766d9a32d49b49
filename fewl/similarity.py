"""Similarity of candidate and reference texts: cosine of embeddings, ROUGE-L, or any function handed in.

One shape for all: a similarity takes the distinct texts once (to embed them, or to cut them into words) and
gives a function of pairs. Higher is more alike. NaN means that a pair could not be compared; it is then
treated as a missing reference, and counted.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from annotators.text import words as rouge
from fewl.neighbours import check_finite, pair_cosine

Encode = Callable[[Sequence[str]], NDArray[np.float32]]
"""Texts to vectors of length 1, (n, D) float32; ``engines.embedding.Embedder.encode`` is one."""
OfPairs = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""pairs_P3 of text numbers (candidate, reference, question of the candidate) → similarity_P."""
Similarity = Callable[[Sequence[str]], OfPairs]
"""Distinct texts → the similarity of pairs of them."""
Judge = Callable[[list[str], list[str], list[str]], Iterable[float | None]]
"""Aligned candidates, references and questions → similarities."""
PRIOR = 6.0
"""Weight of the ½ that every answer starts from in :func:`new_words`; about one rare word."""


def cosine(encode: Encode) -> Similarity:
    """Cosine of sentence embeddings, in [−1, 1]; each text is encoded once; ValueError where a vector is not finite."""

    def prepare(texts: Sequence[str]) -> OfPairs:
        vectors = encode(texts) if texts else np.empty((0, 1), dtype=np.float32)
        check_finite(vectors)
        return lambda pairs_P3: pair_cosine(vectors, pairs_P3[:, 0], pairs_P3[:, 1], exact=False)

    return prepare


def rouge_l(texts: Sequence[str]) -> OfPairs:
    """ROUGE-L F1 of two texts, in [0, 1] (``annotators/text/words.py``); each text is cut into words once."""
    words = [rouge.rouge_words(text) for text in texts]
    against = cache(lambda candidate: rouge.rouge_l(words[candidate]))
    return lambda pairs_P3: np.array([against(c)(words[r]) for c, r, _ in pairs_P3.tolist()], dtype=np.float64)


def new_words(texts: Sequence[str]) -> OfPairs:
    """How much of what the candidate adds to the question stands in the reference, in [0, 1]; an extension.

    s(y, h | x) = (Σ idf(w) over words w of y that are in h but not in x + a/2) / (Σ idf(w) over words of y not
    in x + a), with a = 6: an answer that adds nothing has ½. Unlike a cosine it runs one way: what the reference
    says beyond the answer does no harm. The inverse document frequencies log((1 + n)/(1 + df)) are those of the
    n texts at hand. ``docs/results/fewl.md`` says what it is worth.
    """
    bags = [frozenset(rouge.rouge_words(text)) for text in texts]
    seen = Counter(word for bag in bags for word in bag)
    weight = {word: math.log((1 + len(texts)) / (1 + n)) for word, n in seen.items()}

    @cache
    def added(candidate: int, question: int) -> tuple[frozenset[str], float]:
        bag = bags[candidate] - bags[question]
        return bag, math.fsum(weight[word] for word in bag)

    def of_pairs(pairs_P3: NDArray[np.int64]) -> NDArray[np.float64]:
        values = np.empty(len(pairs_P3))
        for p, (candidate, reference, question) in enumerate(pairs_P3.tolist()):
            bag, total = added(candidate, question)
            found = math.fsum(weight[word] for word in bag & bags[reference])
            values[p] = (found + PRIOR / 2) / (total + PRIOR)
        return values

    return of_pairs


def by_question(fits: Callable[[str], bool], these: Similarity, others: Similarity) -> Similarity:
    """``these`` for the pairs whose question ``fits``, and ``others`` for the rest, such as one for each language."""

    def prepare(texts: Sequence[str]) -> OfPairs:
        fits_T = np.array([fits(text) for text in texts], dtype=bool)
        sides = ((True, these(texts)), (False, others(texts)))

        def of_pairs(pairs_P3: NDArray[np.int64]) -> NDArray[np.float64]:
            values_P = np.empty(len(pairs_P3))
            for side, function in sides:
                there_P = fits_T[pairs_P3[:, 2]] == side
                values_P[there_P] = function(pairs_P3[there_P])
            return values_P

        return of_pairs

    return prepare


def both_ways(similarity: Similarity) -> Similarity:
    """The mean of s(y, h) and s(h, y), for one that runs one way: whether one text supports the other."""

    def prepare(texts: Sequence[str]) -> OfPairs:
        of_pairs = similarity(texts)
        return lambda pairs_P3: (checked(of_pairs, pairs_P3) + checked(of_pairs, pairs_P3[:, [1, 0, 2]])) / 2

    return prepare


def from_function(function: Judge) -> Similarity:
    """Make a similarity of a function of aligned candidates, references and questions, such as a judge.

    Each distinct triple is handed on once, also where texts are prepared anew. None or NaN marks a missing judgement.
    """
    known: dict[tuple[str, ...], float] = {}

    def prepare(texts: Sequence[str]) -> OfPairs:
        def of_pairs(pairs_P3: NDArray[np.int64]) -> NDArray[np.float64]:
            pairs = [tuple(texts[number] for number in pair) for pair in pairs_P3.tolist()]
            new = [pair for pair in dict.fromkeys(pairs) if pair not in known]
            columns = [[pair[place] for pair in new] for place in range(3)]
            values = list(function(*columns)) if new else []
            if len(values) != len(new):
                raise ValueError(f"similarity: expected {len(new)} values, one per pair, got {len(values)}")
            known.update((p, np.nan if v is None else float(v)) for p, v in zip(new, values, strict=True))
            return np.array([known[pair] for pair in pairs], dtype=np.float64)

        return of_pairs

    return prepare


def compare(
    similarity: Similarity, candidates: Sequence[str], references: Sequence[str], questions: Sequence[str]
) -> NDArray[np.float64]:
    """Similarity of aligned candidates and references, each distinct text handed on once; ValueError where it gives
    another number of values than pairs, or an infinite one."""
    number: dict[str, int] = {}
    pairs = [
        [number.setdefault(text, len(number)) for text in row]
        for row in zip(candidates, references, questions, strict=True)
    ]
    return checked(similarity(list(number)), np.array(pairs, dtype=np.int64).reshape(-1, 3))


def checked(of_pairs: OfPairs, pairs_P3: NDArray[np.int64]) -> NDArray[np.float64]:
    """The similarity of numbered pairs, refused as by :func:`compare`."""
    values_P = np.asarray(of_pairs(pairs_P3), dtype=np.float64)
    if values_P.shape != (len(pairs_P3),):
        raise ValueError(f"similarity: expected {len(pairs_P3)} values, one per pair, got {values_P.shape}")
    if np.isinf(values_P).any():
        raise ValueError("similarity: expected finite values (NaN where there is none), got infinity")
    return values_P


def each_once(encode: Encode) -> Encode:
    """An encoder that remembers: a text is encoded once, however often it is asked for."""
    place: dict[str, int] = {}
    blocks: list[NDArray[np.float32]] = []

    def remembered(texts: Sequence[str]) -> NDArray[np.float32]:
        new = [text for text in dict.fromkeys(texts) if text not in place]
        if new:
            blocks.append(encode(new))
            place.update((text, i) for i, text in enumerate(new, start=len(place)))
            blocks[:] = [np.concatenate(blocks)]
        return blocks[0][[place[text] for text in texts]] if texts else np.empty((0, 1), dtype=np.float32)

    return remembered


def char_tfidf(dimension: int = 4096) -> Encode:
    """An encoder for languages the embedding model cannot read: TF-IDF of character 1-2-grams, hashed.

    The inverse document frequencies are those of the texts of one call, so call it once with all of them.
    Hashing with signs keeps products right on average, with a standard deviation of about 1/√D per pair.
    """

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        letters = ["".join(ch.lower() for ch in text if ch.isalnum()) for text in texts]
        grams = [Counter([*some, *map("".join, pairwise(some))]) for some in letters]
        seen = Counter(gram for counts in grams for gram in counts)
        vectors = np.zeros((len(texts), dimension), dtype=np.float32)
        for row, counts in zip(vectors, grams, strict=True):
            for gram, n in counts.items():
                code = zlib.crc32(gram.encode("utf-8", "surrogatepass"))  # lowest bit: sign, others: place
                weight = (1 + np.log(n)) * (np.log((1 + len(texts)) / (1 + seen[gram])) + 1)
                row[(code >> 1) % dimension] += (1 - 2 * (code & 1)) * weight
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        norms[norms == 0] = 1
        return np.asarray(vectors / norms, dtype=np.float32)

    return encode
