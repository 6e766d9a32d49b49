"""Label scores out of the log-probabilities of the words that decide a label.

The engines tell how likely the written tokens were, not what else could have been written. So the label given gets the
probability of its deciding words, multiplied over the turns of a protocol, and the rest is shared equally by the other
labels. These are no calibrated probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from annotators.records import LABELS, Label
from engines.types import Sample

CONTEXT = 12
"""Characters before the deciding words by which they are found among the tokens."""


def span_probability(sample: Sample, span: tuple[int, int]) -> float | None:
    """How likely the model was to write the words at ``sample.text[span]``, in [0, 1].

    Args:
        sample: With a log-probability a token, or without (then None).
        span: Start and end of the words, code points.

    Returns:
        The product over the tokens that hold a character of the words; where 无 could go on to 无法验证 also the
        next token. None where the words can't be found among the tokens (blanks do not count).
    """
    if not sample.logprobs or span[0] >= span[1]:
        return None
    owner = [n for n, token in enumerate(sample.logprobs) for char in token.text if not char.isspace()]
    joined = "".join("".join(token.text.split()) for token in sample.logprobs)
    before = "".join(sample.text[: span[0]].split())[-CONTEXT:]
    words = "".join(sample.text[slice(*span)].split())
    if not words or joined.count(before + words) != 1:
        return None
    start = joined.index(before + words) + len(before)
    tokens = set(owner[start : start + len(words)])
    if words == "无" and max(tokens) + 1 < len(sample.logprobs):
        tokens.add(max(tokens) + 1)
    return math.exp(min(0.0, sum(sample.logprobs[n].logprob for n in tokens)))


def label_scores(label: Label, turns: Sequence[float | None]) -> Mapping[Label, float] | None:
    """Scores that sum to 1, or None where a turn has no probability.

    Args:
        label: What was decided.
        turns: Probability of the deciding words of each turn.
    """
    known = [p for p in turns if p is not None]
    if not turns or len(known) < len(turns):
        return None
    given = math.prod(known)
    return {name: given if name == label else (1 - given) / (len(LABELS) - 1) for name in LABELS}
