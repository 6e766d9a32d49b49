# ruff: noqa: E501  (tables)
"""Probabilities of labels from the tokens that decide them."""

import math
from typing import Any

import pytest

from annotators.generative.prompts import PROTOCOLS
from annotators.generative.protocols import decision, label_scores, probability
from engines import Sample, Token
from tests.helpers.annotator_server import annotating, correct
from tests.helpers.engines_server import Reply, completion
from tests.helpers.generative_cases import LABELS, RECORDS, annotator, labels_of


def tokens(*pairs: tuple[str, float]) -> tuple[Token, ...]:
    return tuple(Token(text, math.log(p)) for text, p in pairs)


WORDS: dict[str, Any] = {"none": "supported", "contradictory": "contradictory", "unverifiable": "unverifiable",
                         "无": "supported", "矛盾": "contradictory", "无法验证": "unverifiable", "无幻觉": "supported"}  # fmt: skip


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


def test_alternatives_are_read_as_far_as_they_are_clear() -> None:
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


def test_a_word_that_others_begin_with_is_decided_by_the_next_token() -> None:
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


def test_scores_come_from_the_server() -> None:
    def sure(body: dict[str, Any]) -> Reply:
        text = correct(body)
        content = [{"token": char, "logprob": -0.01, "bytes": None, "top_logprobs": []} for char in text]
        return completion(text, logprobs={"content": content})

    for protocol in PROTOCOLS:
        with annotating(sure) as server:
            found = annotator(server, protocol=protocol).annotate_batch(RECORDS[:2])
        assert labels_of(found) == LABELS[:2]
        for sentence in (s for one in found for s in one.sentences):
            assert sentence.scores is not None
            assert sum(sentence.scores.values()) == pytest.approx(1)
            assert max(sentence.scores, key=lambda label: sentence.scores[label]) == sentence.label
    # Three turns, a token a character: <Facts Present> 15, <Contradictory> 15.
    scores = found[0].sentences[2].scores
    assert scores["contradictory"] == pytest.approx(math.exp(-0.30))
    # What the first turn leaves is "no fact", and a third of what the last one leaves.
    assert scores["no_fact"] == pytest.approx(1 - math.exp(-0.15) + math.exp(-0.15) * (1 - math.exp(-0.15)) / 3)
