"""Label scores out of the log-probabilities of the words that decide a label.

The label given gets the probability of its deciding words. What else could have been written there is read off the
likeliest alternatives to their tokens, as far as an engine tells them and as a beginning belongs to one label only
("Con" to contradictory; 无 to 无 and 无法验证 alike, so that the next token is looked at, too). What remains is shared
equally by the other labels. These are no calibrated probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from annotators.records import LABELS, Label
from engines.types import Sample

CONTEXT = 12
"""Characters before the deciding words by which they are found among the tokens."""
TOP = 8
"""Alternatives to ask an engine for."""


def decision(sample: Sample, span: tuple[int, int], words: Mapping[str, Label]) -> dict[Label, float] | None:
    """How likely each label was where a reply decides, in [0, 1]; the sum is at most 1.

    Args:
        sample: With a log-probability a token, or without (then None).
        span: Where the deciding words stand in ``sample.text``, code points.
        words: What could stand there, in small letters and without blanks, and the label that it means.

    Returns:
        Probability by label, or None where the words can't be found among the tokens (blanks do not count) or are
        none of ``words``.
    """
    found, given = _tokens(sample, span), words.get(_plain(sample.text[slice(*span)]))
    if found is None or given is None or sample.logprobs is None:
        return None
    first, last, lead = found
    mass: dict[Label, float] = {}
    path, written = 1.0, ""
    for place, token in enumerate(sample.logprobs[first:], first):
        ended = place > last
        if ended and not any(word.startswith(written) and word != written for word in words):
            break  # no other words begin like these
        before = lead if place == first else ""
        for text, logprob in token.top:
            other = _plain(text)
            if text == token.text or not other.startswith(before):
                continue
            labels = _labels(written + other[len(before) :], words, ended)
            if len(labels) == 1:
                label = labels.pop()
                mass[label] = mass.get(label, 0.0) + path * math.exp(min(0.0, logprob))
        path *= math.exp(min(0.0, token.logprob))
        if ended:
            break
        written += _plain(token.text)[len(before) :]
    mass[given] = mass.get(given, 0.0) + path
    return mass


def probability(sample: Sample, span: tuple[int, int]) -> float | None:
    """How likely the words at ``sample.text[span]`` were, in [0, 1], or None as in ``decision``."""
    found = decision(sample, span, {_plain(sample.text[slice(*span)]): "supported"})
    return None if found is None else found["supported"]


def label_scores(label: Label, known: Mapping[Label, float]) -> Mapping[Label, float]:
    """Scores that sum to 1.

    Args:
        label: What was decided.
        known: Probability by label as far as it is known; what is missing to 1 is shared by the labels not given.
    """
    total = max(1.0, sum(known.values()))
    shares = {name: known.get(name, 0.0) / total for name in LABELS}
    rest = max(0.0, 1.0 - sum(shares.values())) / (len(LABELS) - 1)
    return {name: share if name == label else share + rest for name, share in shares.items()}


def _labels(text: str, words: Mapping[str, Label], ended: bool) -> set[Label]:
    """The labels that a text may come to mean; ``ended``: words that it equals are over."""
    if ended and text in words:
        return {words[text]}
    if still := {label for word, label in words.items() if word.startswith(text)}:
        return still
    begun = [word for word in words if text.startswith(word)]
    return {words[max(begun, key=len)]} if begun else set()


def _tokens(sample: Sample, span: tuple[int, int]) -> tuple[int, int, str] | None:
    """First and last token of the words, and what of the first one stands before them."""
    if not sample.logprobs or span[0] >= span[1]:
        return None
    owner = [n for n, token in enumerate(sample.logprobs) for _ in _plain(token.text)]
    joined = "".join(_plain(token.text) for token in sample.logprobs)
    before = _plain(sample.text[: span[0]])[-CONTEXT:]
    words = _plain(sample.text[slice(*span)])
    if not words or joined.count(before + words) != 1:
        return None
    start = joined.index(before + words) + len(before)
    first = owner[start]
    return first, owner[start + len(words) - 1], joined[owner.index(first) : start]


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()
