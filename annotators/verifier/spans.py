"""Which words of a hallucinated sentence its evidence does not back: spans of the answer, word by word.

Reads what the judge already has: how well each passage matches each word and, where there is a pair encoder, its
probability that a token is unsupported. Names and numbers are judged whole; words without content follow their
neighbours. The constants were chosen on rows that docs/results/spans.md does not report.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from annotators.text.words import Words, units, words_of

VERSION = 1  # raised whenever a constant or rule changes, since records depend on it
UNBACKED = 0.3  # doubt from which a word is unsupported
NEAREST = 3  # passages that count: those that match most of the sentence. What stands elsewhere backs nothing
BRIDGE = 4  # most words without content between two unsupported ones that are taken along
ENCODER_SHARE = 0.5  # share of the pair encoder in the doubt about a word; the rest is the alignment's
Tokens = Sequence[tuple[int, int, float]]
"""(start, end, P(unsupported)) of the pair encoder's tokens, offsets into the sentence."""


def doubts(words: Words, matched: np.ndarray, tokens: Tokens = ()) -> np.ndarray:
    """(_W,) how little the evidence backs each word, in [0, 1]; NaN for words without content.

    ``matched`` (_W, _P) in [0, 1] says how well each passage matches each word; ``tokens`` may be ().
    """
    doubt = 1.0 - matched.max(1, initial=0.0)
    if tokens:
        encoder = np.zeros(len(words))
        for start, end, p in tokens:
            i = int(np.searchsorted(words.starts, start, side="right")) - 1
            if i >= 0 and end <= words.ends[i]:
                encoder[i] = max(encoder[i], p)
        doubt = (1 - ENCODER_SHARE) * doubt + ENCODER_SHARE * encoder
    return np.where(np.array(words.content, dtype=bool), doubt, np.nan)


def unsupported_spans(
    sentence: str, matched: np.ndarray, weight: np.ndarray, tokens: Tokens = ()
) -> list[tuple[int, int]]:
    """The unsupported stretches of a hallucinated sentence in code points, in order, from a word's start to a word's
    end.

    The arguments are those of its ``judging.Verdict``. The most doubtful word is always among them, unless there is no
    doubt about any: what is wrong then (an order, a negation) is no single word.
    """
    words = words_of(sentence)
    if not len(words):
        return []
    nearest = np.argsort(-(weight @ matched), kind="stable")[:NEAREST]
    doubt = np.nan_to_num(doubts(words, matched[:, nearest], tokens))
    flagged = doubt >= min(UNBACKED, max(doubt.max(), 1e-9))
    for unit in units(sentence):
        inside = [i for i in range(len(words)) if unit.start <= words.starts[i] < unit.end]
        if flagged[inside].any():
            flagged[inside] = True
    at = np.flatnonzero(flagged).tolist()
    for i, j in pairwise(at):
        between = range(i + 1, j)
        if len(between) <= BRIDGE and not any(words.content[k] for k in between):
            flagged[i:j] = True
    runs: list[tuple[int, int]] = []
    for i in np.flatnonzero(flagged).tolist():
        start = words.starts[i]
        if runs and flagged[i - 1] and sentence[words.ends[i - 1] : start].isspace():  # only spaces join two words
            start, _ = runs.pop()
        runs.append((start, words.ends[i]))
    return runs
