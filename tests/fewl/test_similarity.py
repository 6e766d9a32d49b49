"""Similarities: cosine, hashed TF-IDF against an exact one, functions."""

import itertools
import math

import numpy as np
import pytest

from fewl import both_ways, char_tfidf, cosine, each_once, from_function, new_words
from fewl.similarity import by_question, compare


def test_cosine_encodes_each_text_once():
    seen = []

    def encode(texts):
        seen.extend(texts)
        return np.array([[1.0, 0.0] if "a" in t else [0.6, 0.8] for t in texts], dtype=np.float32)

    values = compare(cosine(encode), ["a", "a", "b", "a"], ["b", "b", "b", "a"], ["b"] * 4)
    np.testing.assert_allclose(values, [0.6, 0.6, 1.0, 1.0], atol=1e-6)
    assert sorted(seen) == ["a", "b"]
    seen.clear()
    remembered = each_once(encode)
    found = [remembered(texts) for texts in (["a", "b", "a"], ["ac", "b"])]
    assert seen == ["a", "b", "ac"]  # over several calls, too
    np.testing.assert_allclose(np.concatenate(found), encode(["a", "b", "a", "ac", "b"]))


def test_the_question_chooses_the_similarity():
    sides = [from_function(lambda c, r, q, value=value: [value] * len(c)) for value in (1.0, 2.0)]
    chosen = by_question(lambda text: text == "x", *sides)
    assert compare(chosen, ["a", "x", "a"], ["b", "b", "x"], ["x", "q", "x"]).tolist() == [1, 2, 1]


def test_function_is_asked_once_per_triple():
    asked = []

    def judge(candidates, references, questions):
        asked.extend(zip(candidates, references, questions, strict=True))
        return [None if c == "?" else len(c) - len(r) for c, r in zip(candidates, references, strict=True)]

    similarity = from_function(judge)
    of_pairs = similarity(["aaa", "?", "a", "q"])
    np.testing.assert_array_equal(of_pairs(np.array([[0, 2, 3], [0, 2, 3], [1, 2, 3]])), [2, 2, np.nan])
    np.testing.assert_array_equal(of_pairs(np.array([[1, 2, 3], [2, 2, 3]])), [np.nan, 0])  # a later block
    np.testing.assert_array_equal(
        compare(similarity, ["aaa", "?"], ["a", "a"], ["q", "q"]), [2, np.nan]
    )  # prepared anew
    assert asked == [("aaa", "a", "q"), ("?", "a", "q"), ("a", "a", "q")]


def test_both_ways_is_the_mean_of_two():
    longer = from_function(
        lambda c, r, q: [None if "?" in (a, b) else len(a) / len(b) for a, b in zip(c, r, strict=True)]
    )
    # (4/2 + 2/4)/2 for "aaaa" and "aa"; nothing where one way is not known
    values = compare(both_ways(longer), ["aaaa", "aa", "?"], ["aa", "aaaa", "aa"], ["q"] * 3)
    np.testing.assert_array_equal(values, [1.25, 1.25, np.nan])


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


def exact_tfidf(texts):
    """Independent: a dense vocabulary instead of hashing."""
    bags = []
    for text in texts:
        letters = [ch.lower() for ch in text if ch.isalnum()]
        bags.append(letters + [a + b for a, b in itertools.pairwise(letters)])
    vocabulary = sorted({g for bag in bags for g in bag})
    frequency = {g: sum(g in bag for bag in bags) for g in vocabulary}
    inverse = {g: math.log((1 + len(texts)) / (1 + n)) + 1 for g, n in frequency.items()}
    rows = [[(1 + math.log(bag.count(g))) * inverse[g] if g in bag else 0 for g in vocabulary] for bag in bags]
    return np.array([np.array(r) / (np.linalg.norm(r) or 1) for r in rows])


def test_char_tfidf_is_close_to_the_exact_one():
    texts = ["北京是中国的首都。", "中国首都是北京", "上海是一座城市，位于长江口。", "水在一百度沸腾", "……"]
    exact = exact_tfidf(texts)
    hashed = char_tfidf(1 << 16)(texts)
    np.testing.assert_allclose(hashed @ hashed.T, exact @ exact.T, atol=0.02)
    assert not hashed[4].any()  # punctuation only: a zero vector, similar to nothing
