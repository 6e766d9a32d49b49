"""The feature vector of one sentence against one window: what the combiner reads.

Lexical features say which words stand in the passages (by Porter stem; numbers by value), alignment features how
closely each word is matched by meaning (greedy matching of token vectors, as in the recall of BERTScore, Zhang et al.
2020), conflict features what the evidence has in the place of a missing word: a missing number may just be unmentioned,
but one whose place holds another number is a contradiction. Nothing is learned here but ``Idf``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import groupby

import numpy as np

from annotators.text.words import (
    EXTREMES,
    HEDGES,
    NEGATIONS,
    OPPOSITES,
    PERSONAL,
    Unit,
    Words,
    stem_set,
    units,
    words_of,
)
from engines.embedding import TokenEmbeddings

LEXICAL_FEATURES = (
    "cover_any", "cover_best", "cover_best3", "idf_any", "idf_best", "idf_best3",
    "bigram_any", "trigram_any", "fourgram_any", "bigram_best", "trigram_best", "longest_miss", "longest_hit",
    "miss_count", "miss_idf", "miss_idf_max",
    "numbers", "number_any", "number_best3", "number_conflict", "names", "name_any", "name_best3", "miss_name_idf",
    "negated", "negation_best", "negation_differs", "hedged", "hedge_differs", "extreme", "extreme_missed",
    "length", "content_share", "question_mark", "personal", "second_best", "question_cover", "new_over_question",
)  # fmt: skip
ALIGNMENT_FEATURES = (
    "cos_best", "cos_second", "cos_mean", "cos_question", "cos_question_best",
    "align_mean", "align_best_mean", "align_min", "align_low", "align_q25", "align_miss_mean", "align_miss_min",
    "align_hit_mean", "align_hit_min", "align_number_min", "align_name_min", "align_weak_idf",
    "align_other_mean", "passage_share", "passage_entropy", "length_ratio_best", "negation_align",
)  # fmt: skip
CONFLICT_FEATURES = (
    "swap_number", "swap_number_near", "swap_name", "swap_name_near", "opposite", "disorder", "name_disorder",
    "negation_parity", "unit_differs",
)  # fmt: skip
FEATURES = (*LEXICAL_FEATURES, *ALIGNMENT_FEATURES, *CONFLICT_FEATURES)
FORM = frozenset(
    """numbers names negated hedged extreme length content_share question_cover cos_question cos_question_best
    passage_share passage_entropy length_ratio_best""".split()
)
"""Features of a sentence's form tell sources apart, not labels, so the combiner does not read them (docs/LOG.md)."""
VERSION = 3
"""Raised whenever a feature or what judging does with it changes its meaning, since stored combiners depend on both."""
N_BUCKETS = 1 << 16


class Idf:
    """Inverse document frequency of stems, hashed into a table of N_BUCKETS."""

    def __init__(self, table: np.ndarray) -> None:
        if table.shape != (N_BUCKETS,):
            raise ValueError(f"idf table: expected shape ({N_BUCKETS},), got {table.shape}")
        self.table = table.astype(np.float32)

    def __call__(self, stem: str) -> float:
        return float(self.table[_bucket(stem)])

    @classmethod
    def fit(cls, passages: Iterable[str]) -> Idf:
        """idf(w) = log((n + 1) / (df(w) + 1)) over n passages."""
        frequency = np.zeros(N_BUCKETS)
        n = 0
        for passage in passages:
            n += 1
            frequency[list({_bucket(stem) for stem in stem_set(passage)})] += 1
        return cls(np.log((n + 1) / (frequency + 1)))


def _bucket(stem: str) -> int:
    return zlib.crc32(stem.encode("utf-8", "replace")) % N_BUCKETS


class Evidence:
    """The clean passages (_P) of one window in document order, stacked once for all sentences judged against it.

    ``vectors`` (ΣT, D) of their tokens, ``lengths`` (_P,) tokens per passage, ``pooled`` (_P, D).
    """

    def __init__(self, texts: Sequence[str], embeddings: Sequence[TokenEmbeddings]) -> None:
        self.texts = tuple(texts)
        self.stems = frozenset[str]().union(*map(stem_set, texts))
        self.lengths = np.array([len(p.ids) for p in embeddings], dtype=np.int64)
        self.filled = np.flatnonzero(self.lengths)  # reduceat can't take empty stretches
        self.edges = np.cumsum(self.lengths[self.filled]) - self.lengths[self.filled]
        self.vectors = np.concatenate([p.vectors for p in embeddings if len(p.ids)] or [np.zeros((0, 1), np.float32)])
        self.pooled = np.stack([p.pooled for p in embeddings]) if embeddings else np.zeros((0, 1), np.float32)


def coverage(
    sentence: str, passages: Sequence[str], idf: Callable[[str], float]
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Which distinct content words (_W) of a sentence stand in which passage (_P): found (_W, _P) bool, idf weight
    (_W,), and the position of each in ``words_of(sentence)``.
    """
    words = words_of(sentence)
    position: dict[str, int] = {}
    for i, stem in enumerate(words.stems):
        if words.content[i]:
            position.setdefault(stem, i)
    sets = [stem_set(p) for p in passages]
    found = np.array([[stem in s for s in sets] for stem in position], dtype=bool).reshape(len(position), len(sets))
    return found, np.array([idf(stem) for stem in position]), list(position.values())


def _share(mask: np.ndarray, weight: np.ndarray | None = None) -> float:
    if not len(mask):
        return 1.0
    return float(mask.mean()) if weight is None else float(mask @ weight / max(weight.sum(), 1e-9))


def _runs(hit: Sequence[bool]) -> tuple[int, int]:
    """Longest run of misses and of hits."""
    best = {True: 0, False: 0}
    for value, run in groupby(hit):
        best[value] = max(best[value], len(list(run)))
    return best[False], best[True]


@lru_cache(maxsize=12_288)
def _ngrams(text: str, n: int) -> frozenset[tuple[str, ...]]:
    stems = words_of(text).stems
    return frozenset(zip(*(stems[i:] for i in range(n)), strict=False))


def lexical_features(
    sentence: str, passages: Sequence[str], idf: Callable[[str], float], question: str = ""
) -> np.ndarray:
    """(len(LEXICAL_FEATURES),) float64: how a sentence's words are found in its window's passages, in document order.

    ``idf`` gives the weight ≥ 0 of a stem. Shares are in [0, 1], 1 where there is nothing to find.
    """
    words, passages = words_of(sentence), passages or [""]
    found, weight, at = coverage(sentence, passages, idf)
    n_passages, any_ = len(passages), np.asarray(found.any(1))
    mass = (found * weight[:, None]).sum(0)
    best = int(mass.argmax())
    second = float(np.partition(mass, -2)[-2] / max(weight.sum(), 1e-9)) if n_passages > 1 else 0.0
    in_best = found[:, best]
    # The best three neighbouring passages: what a sentence sums up seldom stands in one.
    padded = np.pad(found, ((0, 0), (0, 2)))
    triple = padded[:, :n_passages] | padded[:, 1 : n_passages + 1] | padded[:, 2 : n_passages + 2]
    best3 = int((triple * weight[:, None]).sum(0).argmax())
    in_best3 = triple[:, best3]
    near = passages[best3 : best3 + 3]
    grams, grams_best = [], []
    for n in (2, 3, 4):
        own = _ngrams(sentence, n)
        hit = frozenset[tuple[str, ...]]().union(*(_ngrams(p, n) & own for p in passages))
        grams.append(len(hit) / len(own) if own else _share(any_))
        grams_best.append(len(own & _ngrams(passages[best], n)) / len(own) if own else _share(in_best))
    known = {words.stems[i] for i, hit in zip(at, any_, strict=True) if hit}
    miss_run, hit_run = _runs([stem in known for stem, use in zip(words.stems, words.content, strict=True) if use])
    number = np.array([words.numbers[i] is not None for i in at], dtype=bool)
    name = np.array([words.names[i] and i > 0 for i in at], dtype=bool)
    near_numbers = {s for p in near for s in stem_set(p) if s[0] == "#"}
    miss = ~any_
    miss_idf = weight[miss]
    best_words = set(words_of(passages[best]).lower)
    near_words = {w for p in near for w in words_of(p).lower}
    lower = set(words.lower)
    negated, best_negated = bool(lower & NEGATIONS), bool(best_words & NEGATIONS)
    asked = stem_set(question)
    in_question = np.array([words.stems[i] in asked for i in at], dtype=bool)
    values = (
        _share(any_), _share(in_best), _share(in_best3),
        _share(any_, weight), _share(in_best, weight), _share(in_best3, weight),
        *grams, *grams_best[:2], miss_run, hit_run,
        miss.sum(), miss_idf.sum(), miss_idf.max(initial=0.0),
        number.sum(), _share(any_[number]), _share(in_best3[number]),
        float((~in_best3[number]).any() and bool(near_numbers)),
        name.sum(), _share(any_[name]), _share(in_best3[name]), weight[miss & name].sum(),
        negated, best_negated, negated != best_negated,
        bool(lower & HEDGES), bool(lower & HEDGES) != bool(best_words & HEDGES),
        bool(lower & EXTREMES), bool((lower & EXTREMES) - near_words),
        np.log1p(len(words)), float(np.mean(words.content)) if len(words) else 0.0,
        sentence.rstrip().endswith(("?", "？")), bool(lower & PERSONAL), second,
        _share(in_question, weight) if len(at) else 0.0, _share(any_[~in_question], weight[~in_question]),
    )  # fmt: skip
    return np.array(values, dtype=np.float64)


def word_alignment(words: Words, own: TokenEmbeddings, evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """Best similarity (_W, _P) of each word of a sentence to each passage, and (_W,) bool: the word has a token.

    A word's similarity is the mean over its tokens, with vectors ``own``, of the best cosine in that passage.
    """
    total = np.zeros((len(words), len(evidence.lengths)), dtype=np.float32)
    mask = np.zeros(len(words), bool)
    if not len(words) or not len(evidence.vectors) or not len(own.ids):
        return total, mask
    best = np.full((len(own.ids), len(evidence.lengths)), -1.0, dtype=np.float32)
    best[:, evidence.filled] = np.maximum.reduceat(own.vectors @ evidence.vectors.T, evidence.edges, axis=1)
    owner = words.holding(own.offsets[:, 0])
    has, first, count = np.unique(owner[owner >= 0], return_index=True, return_counts=True)
    if len(has):
        total[has] = np.add.reduceat(best[owner >= 0], first, axis=0) / count[:, None]
    mask[has] = True
    return total, mask


def _mean(values: np.ndarray, weight: np.ndarray) -> float:
    mass = weight.sum()
    return float(values @ weight / mass) if mass > 0 else 1.0


def alignment_features(
    words: Words, own: TokenEmbeddings, evidence: Evidence, found: np.ndarray, weight: np.ndarray,
    question: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """How a sentence is matched by meaning: (len(ALIGNMENT_FEATURES),) float64, cosines in [-1, 1], 1 where there is
    nothing to match; and (_P,) how much of the sentence's weight each passage matches.

    ``found`` (_W,) says whether each word stands literally in the window, ``weight`` (_W,) ≥ 0 is the idf of each, and
    ``question`` (D,) the pooled vector of the question, or None.
    """
    if not len(evidence.lengths):
        return np.zeros(len(ALIGNMENT_FEATURES)), np.zeros(0)
    similarity = evidence.pooled @ own.pooled
    cosine = np.sort(similarity)[::-1]
    sims, has_token = word_alignment(words, own, evidence)
    is_content = np.array(words.content, dtype=bool)
    content = is_content & has_token
    weight = weight * content
    top = sims.max(1) if len(words) else np.zeros(0)
    mass = weight @ sims
    best = int(mass.argmax())
    in_best = sims[:, best]
    key = np.sort(top[content]) if content.any() else np.ones(1)
    miss, hit = content & ~found, content & found
    number = content & np.array([n is not None for n in words.numbers], dtype=bool)
    name = content & np.array([n and i > 0 for i, n in enumerate(words.names)], dtype=bool)
    negation = np.array([w in NEGATIONS for w in words.lower], dtype=bool) & has_token
    share: np.ndarray = np.zeros(1)
    if content.any():
        share = np.bincount(sims[content].argmax(1), weights=weight[content], minlength=len(evidence.lengths))
        share = share[share > 0] / max(share.sum(), 1e-9)
    values = (
        cosine[0], cosine[1] if len(cosine) > 1 else 0.0, cosine[:3].mean(),
        float(question @ own.pooled) if question is not None else 0.0,
        float(question @ evidence.pooled[int(similarity.argmax())]) if question is not None else 0.0,
        _mean(top, weight), _mean(in_best, weight),
        key[0], key[min(1, len(key) - 1)], key[(len(key) - 1) // 4],
        _mean(top, weight * miss), top[miss].min(initial=1.0),
        _mean(in_best, weight * hit), in_best[hit].min(initial=1.0),
        in_best[number].min(initial=1.0), in_best[name].min(initial=1.0),
        float((weight / (1.0 + np.exp((top - 0.55) / 0.04))).sum()),
        _mean(in_best, (~is_content & has_token).astype(float)),
        float(share.max(initial=0.0)), float(-(share * np.log(np.maximum(share, 1e-12))).sum()),
        float(np.log1p(len(own.ids)) - np.log1p(evidence.lengths[best])),
        in_best[negation].min(initial=1.0),
    )  # fmt: skip
    return np.array(values, dtype=np.float64), mass


def conflict_features(sentence: str, evidence: Sequence[str]) -> np.ndarray:
    """(len(CONFLICT_FEATURES),) float64: signs that a sentence says something else than its best passages, the best
    first.

    Numbers and names whose place in the evidence another one holds, opposites, the share of word pairs in another order
    than in the best passage, negation on one side alone, and numbers before another unit.
    """
    if not evidence:
        return np.zeros(len(CONFLICT_FEATURES))
    found = counterparts(sentence, evidence)
    number = [near for unit, _, near in found if unit.kind != "name"]
    name = [near for unit, _, near in found if unit.kind == "name"]
    own, best = words_of(sentence), words_of(evidence[0])
    lower, there = set(own.lower), set(best.lower)
    opposite = sum(
        word in OPPOSITES and word not in there and OPPOSITES[word] in there and OPPOSITES[word] not in lower
        for word in lower
    )
    entity = [n or value is not None for n, value in zip(own.names, own.numbers, strict=True)]
    values = (
        len(number), sum(number), len(name), sum(name), opposite,
        disorder(own, best, own.content), disorder(own, best, entity),
        bool(lower & NEGATIONS) != bool(there & NEGATIONS), unit_differs(own, best),
    )  # fmt: skip
    return np.array(values, dtype=np.float64)


def _counterpart(unit: Unit, others: Sequence[tuple[Unit, str]]) -> tuple[str, bool] | None:
    """The only text of the same kind, or the only one beside the same word, and whether it is beside the same word."""
    alike = [(other, text) for other, text in others if other.kind == unit.kind]
    texts = {text for _, text in alike}
    near = {text for other, text in alike if unit.after == other.after != "" or unit.before == other.before != ""}
    if len(near) == 1:
        return near.pop(), True
    return (texts.pop(), False) if len(texts) == 1 and not near else None


def counterparts(sentence: str, fragments: Sequence[str]) -> list[tuple[Unit, str, bool]]:
    """Each number, year, month or name that the fragments lack, its unambiguous counterpart there, and whether a
    neighbouring word is the same.
    """
    own = units(sentence)
    known = {stem for fragment in fragments for stem in words_of(fragment).stems}
    own_stems = {stem for unit in own for stem in unit.key}
    others = [
        (unit, fragment[unit.start : unit.end])
        for fragment in fragments
        for unit in units(fragment)
        if not set(unit.key) <= own_stems
    ]
    found = [
        (unit, *match)
        for unit in own
        if not set(unit.key) <= known and (match := _counterpart(unit, others)) is not None
    ]
    kept = []
    for unit, target, near in found:
        rivals = [rival for other, text, rival in found if other is not unit and text == target]
        if not rivals or (near and not any(rivals)):  # one text, one place
            kept.append((unit, target, near))
    return kept


def unit_differs(own: Words, other: Words) -> int:
    """How many numbers stand on both sides, each time before another content word that the other side lacks."""
    count = 0
    for i, value in enumerate(own.numbers[:-1]):
        if value is None or not own.content[i + 1] or own.stems[i + 1] in other.stems:
            continue
        behind = {other.stems[j + 1] for j in range(len(other) - 1) if other.stems[j] == own.stems[i]}
        count += bool(behind) and not behind & set(own.stems)
    return count


def disorder(own: Words, other: Words, use: Sequence[bool]) -> float:
    """Share in [0, 1] of pairs of common words that stand in the other order: (1 − Kendall's τ) / 2.

    Only words that occur once on both sides count; 0 with fewer than two of them.
    """
    once = [stem for stem, used in zip(own.stems, use, strict=True) if used and own.stems.count(stem) == 1]
    places = np.array([other.stems.index(stem) for stem in once if other.stems.count(stem) == 1])
    n = len(places)
    if n < 2:
        return 0.0
    return float(np.triu(places[:, None] > places[None, :], 1).sum() / (n * (n - 1) / 2))


def feature_vector(
    sentence: str, own: TokenEmbeddings, evidence: Evidence, idf: Idf, question: str, asked: TokenEmbeddings | None
) -> np.ndarray:
    """(len(FEATURES),) float64: all features of a clean sentence with embeddings ``own``, in the order of FEATURES.

    ``question`` is "" and its embeddings ``asked`` are None where nothing was asked.
    """
    words = words_of(sentence)
    weight = np.array([idf(stem) for stem in words.stems])
    found = np.array([stem in evidence.stems for stem in words.stems], dtype=bool)
    lexical = lexical_features(sentence, evidence.texts, idf, question)
    pooled = None if asked is None else asked.pooled
    alignment, mass = alignment_features(words, own, evidence, found, weight, pooled)
    best = sorted(range(len(mass)), key=lambda i: -mass[i])[:2]  # more passages would find rivals everywhere
    return np.concatenate([lexical, alignment, conflict_features(sentence, [evidence.texts[i] for i in best])])
