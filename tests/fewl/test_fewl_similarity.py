"""Similarities: cosine, ROUGE-L against rouge-score, hashed TF-IDF against an exact one, functions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from rouge_score import rouge_scorer

from fewl.similarity import char_tfidf, compare, cosine, each_once, from_function, is_chinese, new_words, rouge_l

SENTENCES = [
    "Water boils at 100 degrees Celsius at sea level.",
    "At sea level, water boils at one hundred degrees.",
    "Camels store fat, not water, in their humps",
    "The humps of camels store water!",
    "",
    "the the the water water",
]


def test_rouge_l_equals_rouge_score_on_every_pair():
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)
    pairs = [(c, r) for c in SENTENCES for r in SENTENCES]
    want = [scorer.score(target, prediction)["rougeL"].fmeasure for prediction, target in pairs]
    got = compare(rouge_l, [c for c, _ in pairs], [r for _, r in pairs], ["q"] * len(pairs))
    np.testing.assert_allclose(got, want, atol=1e-12)
    assert len({round(v, 6) for v in want}) > 8


def test_rouge_l_on_long_texts_equals_rouge_score():
    generator = np.random.default_rng(0)
    long = [" ".join(generator.choice(list("abcdef"), size=n)) for n in (70, 150, 200)]
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)
    for a in long:
        for b in long:
            want = scorer.score(a, b)["rougeL"].fmeasure
            assert compare(rouge_l, [a], [b], ["q"])[0] == pytest.approx(want, abs=1e-12)


def test_rouge_l_cuts_chinese_into_words():
    # 北京 | 是 | 中国 | 的 | 首都 and 上海 | 是 | 中国 | 的 | 城市: 3 in common, F1 = 2·3/(5+5) = 0.6
    assert compare(rouge_l, ["北京是中国的首都。"], ["上海是中国的城市"], ["?"])[0] == pytest.approx(0.6)


def test_cosine_encodes_each_distinct_text_once():
    seen = []

    def encode(texts):
        seen.extend(texts)
        return np.array([[1.0, 0.0] if "a" in t else [0.6, 0.8] for t in texts], dtype=np.float32)

    values = compare(cosine(encode), ["a", "a", "b", "a"], ["b", "b", "b", "a"], ["b"] * 4)
    np.testing.assert_allclose(values, [0.6, 0.6, 1.0, 1.0], atol=1e-6)
    assert sorted(seen) == ["a", "b"]


def test_a_function_is_asked_once_per_distinct_pair_and_may_decline():
    asked = []

    def judge(candidates, references, questions):
        asked.extend(zip(candidates, references, questions, strict=True))
        return [None if c == "?" else len(c) - len(r) for c, r, _ in asked[-len(candidates) :]]

    values = compare(from_function(judge), ["aaa", "aaa", "?"], ["a", "a", "a"], ["q", "q", "q"])
    np.testing.assert_array_equal(values, [2, 2, np.nan])
    assert asked == [("aaa", "a", "q"), ("?", "a", "q")]


def test_a_function_is_not_asked_again_in_a_later_block():
    asked = []

    def judge(candidates, references, questions):
        asked.extend(candidates)
        return [1.0] * len(candidates)

    pairs_of = from_function(judge)(["a", "b", "r", "q"])
    pairs_of(np.array([[0, 2, 3], [1, 2, 3]]))
    np.testing.assert_array_equal(pairs_of(np.array([[1, 2, 3], [2, 2, 3]])), [1, 1])
    assert asked == ["a", "b", "r"]


def test_wrong_similarities_are_named():
    with pytest.raises(ValueError, match=r"expected 2 values, one per pair, got \(1,\)"):
        compare(lambda texts: lambda pairs: np.zeros(1), ["a", "b"], ["c", "c"], ["q", "q"])
    with pytest.raises(ValueError, match="got infinity"):
        compare(from_function(lambda c, r, q: [math.inf] * len(c)), ["a"], ["b"], ["q"])
    with pytest.raises(ValueError, match="check the embedding model"):
        compare(cosine(lambda texts: np.full((len(texts), 2), np.nan, dtype=np.float32)), ["a"], ["b"], ["q"])


def test_new_words_by_hand():
    # five texts; words of y beyond the question: red, blue. red is in y and h (df 2), blue in y (df 1):
    # idf red = log(6/3) = 0.693147, idf blue = log(6/2) = 1.098612
    # s = (0.693147 + 3) / (0.693147 + 1.098612 + 6) = 3.693147 / 7.791759 = 0.473981
    y, h, x = "sky red blue", "red green", "what sky"
    texts = [y, h, x, "sky", "sky what"]
    pairs = np.array([[0, 1, 2], [3, 1, 2]])
    np.testing.assert_allclose(new_words(texts)(pairs), [0.473981, 0.5], atol=1e-6)  # "sky" adds nothing


def test_each_text_is_encoded_once():
    asked = []

    def encode(texts):
        asked.extend(texts)
        return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)

    remembered = each_once(encode)
    np.testing.assert_array_equal(remembered(["a", "bb", "a"]), [[1, 1], [2, 1], [1, 1]])
    np.testing.assert_array_equal(remembered(["ccc", "bb"]), [[3, 1], [2, 1]])
    assert asked == ["a", "bb", "ccc"]


def exact_tfidf(texts):
    """Independent: a dense vocabulary instead of hashing."""
    bags = []
    for text in texts:
        letters = [ch.lower() for ch in text if ch.isalnum()]
        bags.append(letters + [a + b for a, b in itertools.pairwise(letters)])
    vocabulary = sorted({g for bag in bags for g in bag})
    frequency = {g: sum(g in bag for bag in bags) for g in vocabulary}
    rows = [
        [
            (1 + math.log(bag.count(g))) * (math.log((1 + len(texts)) / (1 + frequency[g])) + 1) if g in bag else 0
            for g in vocabulary
        ]
        for bag in bags
    ]
    return np.array([np.array(r) / (np.linalg.norm(r) or 1) for r in rows])


def test_char_tfidf_is_close_to_the_exact_one():
    texts = ["北京是中国的首都。", "中国首都是北京", "上海是一座城市，位于长江口。", "水在一百度沸腾", "……"]
    exact = exact_tfidf(texts)
    hashed = char_tfidf(1 << 16)(texts)
    np.testing.assert_allclose(hashed @ hashed.T, exact @ exact.T, atol=0.02)
    assert not hashed[4].any()  # punctuation only: a zero vector, similar to nothing


@pytest.mark.parametrize(
    ("text", "chinese"), [("北京是首都", True), ("Paris", False), ("GPT-4是什么模型", True), ("!", False), ("", False)]
)
def test_language_by_han_characters(text, chinese):
    assert is_chinese(text) is chinese
