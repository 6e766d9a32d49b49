"""Probabilities of labels from the tokens that decide them."""

import math
from typing import Any

import pytest

from annotators.generative.protocols import decision, label_scores, probability
from engines import Sample, Token


def tokens(*pairs: tuple[str, float]) -> tuple[Token, ...]:
    return tuple(Token(text, math.log(p)) for text, p in pairs)


WORDS: dict[str, Any] = {
    **{"none": "supported", "contradictory": "contradictory", "unverifiable": "unverifiable"},
    **{"无": "supported", "矛盾": "contradictory", "无法验证": "unverifiable", "无幻觉": "supported"},
}


def with_top(text: str, p: float, **top: float) -> Token:
    return Token(text, math.log(p), tuple((name, math.log(q)) for name, q in {text: p, **top}.items()))


def test_probability_of_the_deciding_words() -> None:
    words = "<Hallucination> Contradictory"
    made = tokens(("<Hall", 0.5), ("ucination>", 1), (" Contra", 0.6), ("dictory", 0.5), ("<|end|>", 0.9))
    assert decision(Sample(words, "stop", made), (16, 29), WORDS) == pytest.approx({"contradictory": 0.3})
    assert probability(Sample(words, "stop", made), (16, 29)) == pytest.approx(0.3)
    assert decision(Sample(words, "stop", None), (16, 29), WORDS) is None
    assert decision(Sample(words, "stop", made[:2]), (16, 29), WORDS) is None
    assert decision(Sample(words, "stop", made), (16, 22), WORDS) is None


def test_clear_alternatives_count_towards_their_label() -> None:
    text = "<Hallucination> Contradictory"
    made = (
        *tokens(("<Hallucination>", 1)),
        with_top(" Con", 0.5, **{" None": 0.25, " Un": 0.125, " The": 0.0625}),
        with_top("tradictory", 0.5, sistent=0.5),  # "consistent" is no label
    )
    found = decision(Sample(text, "stop", made), (16, 29), WORDS)
    assert found == pytest.approx({"contradictory": 0.25, "supported": 0.25, "unverifiable": 0.125})
    # 0.375 is known of no label: a third to each other one
    assert label_scores("contradictory", found) == pytest.approx(
        {"supported": 0.375, "contradictory": 0.25, "unverifiable": 0.25, "no_fact": 0.125}
    )


def test_ambiguous_word_is_decided_by_the_next_token() -> None:
    text = "<幻觉>无\n<参考>无"
    start = text.index("无")
    made = (
        *tokens(("<", 1), ("幻", 1), ("觉", 1)),
        with_top(">无", 0.9, **{">矛盾": 0.1}),
        with_top("\n", 0.5, 法=0.25, 幻觉=0.125, **{"。": 0.0625}),
        *tokens(("<参考>", 1), ("无", 0.1)),
    )
    # 无: 0.9 · (0.5 + 0.125 + 0.0625); 无法…: 0.9 · 0.25
    assert decision(Sample(text, "stop", made), (start, start + 1), WORDS) == pytest.approx(
        {"supported": 0.9 * 0.6875, "contradictory": 0.1, "unverifiable": 0.225}
    )
