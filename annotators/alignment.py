"""How the words of a sentence are met by meaning in the passages of its window: the embedded half of the alignment.

Every word of the sentence is compared, by the contextual vectors of its tokens, with every token of the window
(greedy matching as in the recall of BERTScore, Zhang et al. 2020), so a paraphrase counts where the letters
differ. Works on vectors that were computed once per passage; costs one small matrix product per sentence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from annotators.lexical import Words
from annotators.wordlists import NEGATIONS
from engines.embedding import TokenEmbeddings

ALIGNMENT_FEATURES = (
    "cos_best", "cos_second", "cos_mean", "cos_question", "cos_question_best",
    "align_mean", "align_best_mean", "align_min", "align_low", "align_q25", "align_miss_mean", "align_miss_min",
    "align_hit_mean", "align_hit_min", "align_number_min", "align_name_min", "align_weak_idf",
    "align_other_mean", "passage_share", "passage_entropy", "length_ratio_best", "negation_align",
)  # fmt: skip


class PassageVectors:
    """Token and sentence vectors of a window's passages, stacked once for all its sentences.

    ``vectors`` (ΣT, D), ``lengths`` (_P,) tokens per passage, ``pooled`` (_P, D).
    """

    def __init__(self, passages: Sequence[TokenEmbeddings]) -> None:
        self.lengths = np.array([len(p.ids) for p in passages], dtype=np.int64)
        self.filled = np.flatnonzero(self.lengths)
        self.vectors = np.concatenate(
            [p.vectors for p in passages if len(p.ids)] or [np.zeros((0, 1), np.float32)]
        )
        self.edges = np.cumsum(self.lengths[self.filled]) - self.lengths[self.filled]
        self.pooled = np.stack([p.pooled for p in passages]) if passages else np.zeros((0, 1), np.float32)

    def __len__(self) -> int:
        return len(self.lengths)


def word_alignment(
    words: Words, own: TokenEmbeddings, passages: PassageVectors
) -> tuple[np.ndarray, np.ndarray]:
    """Best similarity of each word of a sentence to each passage.

    Args:
        words: The words of the sentence, _W of them.
        own: Its token vectors (_T, D).
        passages: The window's _P passages.

    Returns:
        ((_W, _P) mean over the word's tokens of the best cosine in that passage, (_W,) bool: the word has a token).
    """
    n_words = len(words)
    total = np.zeros((n_words, len(passages)), dtype=np.float32)
    if not n_words or not len(passages.vectors) or not len(own.ids):
        return total, np.zeros(n_words, bool)
    best = np.full((len(own.ids), len(passages)), -1.0, dtype=np.float32)
    best[:, passages.filled] = np.maximum.reduceat(own.vectors @ passages.vectors.T, passages.edges, axis=1)
    starts = own.offsets[:, 0]
    owner = np.searchsorted(np.array(words.starts), starts, side="right") - 1
    inside = (owner >= 0) & (starts < np.array(words.ends)[np.maximum(owner, 0)])
    has, first, count = np.unique(owner[inside], return_index=True, return_counts=True)
    if len(has):
        total[has] = np.add.reduceat(best[inside], first, axis=0) / count[:, None]
    mask = np.zeros(n_words, bool)
    mask[has] = True
    return total, mask


def _mean(values: np.ndarray, weight: np.ndarray) -> float:
    mass = weight.sum()
    return float(values @ weight / mass) if mass > 0 else 1.0


def alignment_features(
    words: Words,
    own: TokenEmbeddings,
    passages: PassageVectors,
    found: np.ndarray,
    weight: np.ndarray,
    question: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Features of how a sentence is met by meaning in the passages of its window.

    Args:
        words: The words of the judged sentence, _W of them.
        own: Its token vectors and pooled vector.
        passages: Those of the window's _P passages.
        found: (_W,) bool, whether each word stands literally in the window.
        weight: (_W,) ≥ 0, the idf of each word.
        question: Pooled vector (D,) of the question, or None.

    Returns:
        (len(ALIGNMENT_FEATURES),) float64, cosines in [-1, 1], 1 where there is nothing to meet; and (_P,) how much
        of the sentence's weight each passage meets.
    """
    if not len(passages):
        return np.zeros(len(ALIGNMENT_FEATURES)), np.zeros(0)
    similarity = passages.pooled @ own.pooled
    cosine = np.sort(similarity)[::-1]
    sims, has_token = word_alignment(words, own, passages)
    content = np.array(words.content, dtype=bool) & has_token
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
        share = np.bincount(sims[content].argmax(1), weights=weight[content], minlength=len(passages))
        share = share[share > 0] / max(share.sum(), 1e-9)
    values = (
        cosine[0], cosine[1] if len(cosine) > 1 else 0.0, cosine[:3].mean(),
        float(question @ own.pooled) if question is not None else 0.0,
        float(question @ passages.pooled[int(similarity.argmax())]) if question is not None else 0.0,
        _mean(top, weight), _mean(in_best, weight),
        key[0], key[min(1, len(key) - 1)], key[(len(key) - 1) // 4],
        _mean(top, weight * miss), top[miss].min(initial=1.0),
        _mean(in_best, weight * hit), in_best[hit].min(initial=1.0),
        in_best[number].min(initial=1.0), in_best[name].min(initial=1.0),
        float((weight / (1.0 + np.exp((top - 0.55) / 0.04))).sum()),
        _mean(in_best, (~np.array(words.content, dtype=bool) & has_token).astype(float)),
        float(share.max(initial=0.0)), float(-(share * np.log(np.maximum(share, 1e-12))).sum()),
        float(np.log1p(len(own.ids)) - np.log1p(passages.lengths[best])),
        in_best[negation].min(initial=1.0),
    )  # fmt: skip
    return np.array(values, dtype=np.float64), mass
