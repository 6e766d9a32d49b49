"""ANAH's published figures, by hand."""

import pytest

from annotators.evaluation.official import document_of, fragments_of, ngram_precision, scores, type_of
from annotators.text.words import chinese_words
from tests.helpers.evaluation_cases import OFFICIAL


def longest(a: list[str], b: list[str]) -> int:
    if not a or not b:
        return 0
    return longest(a[1:], b[1:]) + 1 if a[0] == b[0] else max(longest(a[1:], b), longest(a, b[1:]))


def test_published_figures_by_hand() -> None:
    found = scores(OFFICIAL)
    assert found["accuracy"] == {"all": 33.33, "en": 50.0, "zh": 0.0}
    # Gold: supported, no fact, unverifiable. F1 is 1 for supported and 0 for the others, each weighs a third.
    assert found["f1"] == pytest.approx(1 / 3)
    assert (found["n"], found["n_unread"], found["n_fragments"], found["n_without_document"]) == (3, 1, 2, 0)
    # "the bridge opened in 1931 <hallucination> none": 2 of 4 four-grams and 3 of 5 three-grams are in the document.
    assert (found["precision_4"]["en"], found["precision_3"]["en"]) == (50.0, 60.0)
    # "大桥建于1931年 <幻觉>矛盾": 16 characters, 13 four-grams; the first 9 characters are in the document: 6 of them.
    assert found["precision_4"]["zh"] == 46.15  # 6 / 13
    a, b = (" ".join(chinese_words(OFFICIAL[2][key])).split() for key in ("reply", "golden"))
    assert found["rouge_l"]["zh"] == round(200 * longest(a, b) / (len(a) + len(b)), 2)
    assert found["rouge_l"]["en"] == 50.0  # 1 and 0
    assert found["bert_score"]["all"] is None


def test_published_quirks_are_kept() -> None:
    # "abc" 3 times, "bca" and "cab" twice, all in the document: 7 by 3 different ones.
    assert ngram_precision(["a b c a b", "c a b c"], "a b c a b c a b c", 3, "en") == pytest.approx(7 / 3)
    assert ngram_precision(["a b"], "a b", 3, "en") == 0
    for text, label in (
        ("<Hallucination> None of it is so", "supported"), ("<幻觉>无法验证", "unverifiable"),
        ("<幻觉>无", "supported"), ("<Hallucination> Contradictory <Hallucination> None", "supported"),
        ("<Hallucination>Contradictory\n<No Fact>", "no_fact"), ("<Hallucination> maybe", None),
        ("<hallucination> contradictory\n<Hallucination> None", "contradictory"),
    ):  # fmt: skip
        assert type_of(text) == label
    assert fragments_of('<Reference> "A b."<SEP>None\n<Correction> "a" to "b"') == ["A b"]
    assert fragments_of("<Hallucination> None") == []
    assert document_of(OFFICIAL[0]["prompt"], "en") == "The bridge opened in 1931 and is red."
    assert document_of("x\n<document>\nours\n</document>", "en") == "ours"
    assert document_of("x", "en") is None
