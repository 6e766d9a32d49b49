"""What the pair encoder reads: question, sentence and the passages of the window that bear on it, as tokens.

Beside its id each token carries a kind: the part it stands in, and whether its word (by stem; numbers by value)
occurs on the other side. A small encoder can't see that by itself, and it decides most verdicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from annotators.lexical import Words, words_of

EXCERPT_TOKENS = 88
LEAST_GAIN = 0.08
"""Share of a sentence's word weight that a further passage has to add to be read."""
QUESTION_TOKENS = 28
SENTENCE_TOKENS = 160
N_STATES = 7
"""Of a token: in no content word; content word, number or name that is found on the other side, or is not."""
N_KINDS = 3 * N_STATES
QUESTION, SENTENCE, EVIDENCE = range(3)
Tokenize = Callable[[Sequence[str]], list[tuple[np.ndarray, np.ndarray]]]


@dataclass(frozen=True)
class Pair:
    """One input: ``ids`` (T,), ``kinds`` (T,) below N_KINDS, and where the sentence stands.

    The sentence is ``ids[first : first + len(offsets)]``; ``offsets`` (_S, 2) are code points into its text.
    """

    ids: np.ndarray
    kinds: np.ndarray
    first: int
    offsets: np.ndarray


def excerpt(
    met: np.ndarray, weight: np.ndarray, tokens: Sequence[int], budget: int, least: float = 0.0
) -> list[int]:
    """Passages to read beside a sentence: greedily those that add most of its word weight, within a budget.

    What a passage adds is the weight that it meets better than those before it, and a quarter of what it meets at all.

    Args:
        met: (_W, _P) how well each passage meets each word, in [0, 1].
        weight: (_W,) ≥ 0.
        tokens: (_P,) length of each passage.
        budget: Tokens in all; the best passage is taken whatever its length.
        least: Share of the weight that a further passage has to add.

    Returns:
        Places of the passages in document order.
    """
    chosen: list[int] = []
    left = float(budget)
    covered = np.zeros(len(weight))
    alone = weight @ met
    open_ = np.ones(len(tokens), bool)
    lengths = np.array(tokens)
    while open_.any():
        gain = weight @ np.maximum(met - covered[:, None], 0.0) + 0.25 * alone
        best = int(np.where(open_, gain, -1.0).argmax())
        if chosen and gain[best] < least * weight.sum():
            break
        open_[best] = False
        chosen.append(best)
        left -= lengths[best]
        covered = np.maximum(covered, met[:, best])
        open_ &= lengths <= left
    return sorted(chosen)


def states(words: Words, others: frozenset[str]) -> np.ndarray:
    """(_W,) the state of each word of a text whose other side has the stems ``others``."""
    found = np.array([stem in others for stem in words.stems], dtype=bool)
    number = np.array([value is not None for value in words.numbers], dtype=bool)
    name = np.array(words.names, dtype=bool)
    state = np.where(number, 3, np.where(name, 5, 1)) + ~found
    return np.where(np.array(words.content, dtype=bool) | number, state, 0)


def _token_states(words: Words, offsets: np.ndarray, others: frozenset[str]) -> np.ndarray:
    """(_T,) the state of each token: that of the word it begins in, 0 outside words."""
    if not len(words) or not len(offsets):
        return np.zeros(len(offsets), np.int64)
    owner = np.searchsorted(np.array(words.starts), offsets[:, 0], side="right") - 1
    inside = (owner >= 0) & (offsets[:, 0] < np.array(words.ends)[np.maximum(owner, 0)])
    return np.where(inside, states(words, others)[np.maximum(owner, 0)], 0)


def build_pairs(
    texts: Sequence[tuple[str, str, Sequence[str]]],
    tokenize: Tokenize,
    specials: tuple[int, int],
    limit: int = 512,
) -> list[Pair]:
    """Inputs of the encoder.

    Args:
        texts: (question or "", sentence, passages) of each input, clean.
        tokenize: Texts to ids and code-point offsets, without special tokens.
        specials: Ids that stand before the whole and after each part.
        limit: Tokens that the encoder reads at most.
    """
    distinct = list(dict.fromkeys(t for q, s, passages in texts for t in (q, s, *passages)))
    known = dict(zip(distinct, tokenize(distinct), strict=True))
    start, end = specials
    pairs = []
    for question, sentence, passages in texts:
        own = words_of(sentence)
        there = [words_of(p) for p in passages]
        evidence_stems = frozenset(stem for words in there for stem in words.stems)
        own_stems = frozenset(own.stems)
        ids, kinds = [np.array([start])], [np.array([0])]
        if question:
            tokens, offsets = known[question]
            tokens, offsets = tokens[-QUESTION_TOKENS:], offsets[-QUESTION_TOKENS:]
            ids += [tokens, np.array([end])]
            kinds += [
                QUESTION * N_STATES + _token_states(words_of(question), offsets, own_stems),
                np.array([0]),
            ]
        first = sum(map(len, ids))
        tokens, offsets = known[sentence]
        tokens, offsets = tokens[:SENTENCE_TOKENS], offsets[:SENTENCE_TOKENS]
        ids += [tokens, np.array([end])]
        kinds += [SENTENCE * N_STATES + _token_states(own, offsets, evidence_stems), np.array([0])]
        for passage, words in zip(passages, there, strict=True):
            p_ids, p_offsets = known[passage]
            ids.append(p_ids)
            kinds.append(EVIDENCE * N_STATES + _token_states(words, p_offsets, own_stems))
        ids = [np.concatenate(ids)[: limit - 1], np.array([end])]
        kinds = [np.concatenate(kinds)[: limit - 1], np.array([0])]
        pairs.append(Pair(np.concatenate(ids), np.concatenate(kinds), first, offsets))
    return pairs
