"""Alignment and features: hand-derived values."""

from __future__ import annotations

import numpy as np
import pytest

from annotators.text.words import words_of
from annotators.verifier.features import (
    ALIGNMENT_FEATURES,
    CONFLICT_FEATURES,
    LEXICAL_FEATURES,
    Evidence,
    Idf,
    alignment_features,
    conflict_features,
    counterparts,
    coverage,
    lexical_features,
    word_alignment,
)
from engines.embedding import TokenEmbeddings


def one(_: str) -> float:
    return 1.0


def lexical(sentence: str, passages: list[str], question: str = "") -> dict[str, float]:
    return dict(zip(LEXICAL_FEATURES, lexical_features(sentence, passages, one, question), strict=True))


def test_coverage_counts_distinct_content_words() -> None:
    found, weight, at = coverage("The tower, the tower is tall", ["A tall tree", "Two towers"], one)
    # content words: tower (word 1), tall (word 5)
    assert at == [1, 5]
    assert found.tolist() == [[False, True], [True, False]]
    assert weight.tolist() == [1.0, 1.0]


def test_lexical_features_by_hand() -> None:
    got = lexical("Khayyam was born in 1050 in Nishapur.", ["Khayyam was born in Nishapur in 1048.", "He wrote poems."])
    expected = {
        # content words: khayyam, born, #1050, nishapur; all but 1050 stand in the first passage
        "cover_any": 0.75, "cover_best": 0.75, "idf_best3": 0.75, "miss_count": 1, "second_best": 0,
        "longest_hit": 2, "longest_miss": 1,  # in order: hit hit miss hit
        "numbers": 1, "number_any": 0, "number_conflict": 1,  # the evidence has another number
        "names": 1, "name_any": 1,  # Nishapur; the first word is no name
        # khayyam was born in #1050 in nishapur: 6 bigrams; found: khayyam was, was born, born in, in nishapur
        "bigram_any": 4 / 6,
    }  # fmt: skip
    assert {name: got[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("sentence", "fragments", "expected"),
    [
        ("He was born in 1050.", ["Omar was born in 1048."], [("1050", "1048", True)]),
        # two years stand in the fragment; only one of them stands after "in"
        ("He was born in 1050.", ["Omar was born in 1048 and moved around 1070."], [("1050", "1048", True)]),
        # both stand after "in": ambiguous
        ("He lived in 1050.", ["Omar was there in 1048 and in 1070."], []),
        ("The tower is 320 metres tall.", ["The tower is 330 metres tall and weighs 10100 tonnes."],
         [("320", "330", True)]),
        ("It opened in March.", ["It opened in May."], [("March", "May", True)]),
        ("She was born in Lyon.", ["Her home was Paris."], [("Lyon", "Paris", False)]),
        ("It was built in 1899 and stands in Lyon.", ["It was built in 1889 and stands in Paris."],
         [("1899", "1889", True), ("Lyon", "Paris", True)]),
        # what the fragment has has no counterpart
        ("It opened in 1889.", ["It opened in 1889 after two years, in 1887 it was begun."], []),
        # a year is no counterpart of a plain number
        ("It has 12 floors.", ["It was built in 1999."], []),
    ],
)  # fmt: skip
def test_counterparts(sentence: str, fragments: list[str], expected: list[tuple[str, str, bool]]) -> None:
    found = [(sentence[u.start : u.end], target, near) for u, target, near in counterparts(sentence, fragments)]
    assert found == expected


def test_conflict_features_by_hand() -> None:
    def conflicts(sentence: str, *evidence: str) -> dict[str, float]:
        return dict(zip(CONFLICT_FEATURES, conflict_features(sentence, evidence), strict=True))

    got = conflicts("Khayyam was born in 1050.", "Khayyam was born in 1048.")
    assert (got["swap_number"], got["swap_number_near"], got["swap_name"]) == (1, 1, 0)
    got = conflicts("It was less accurate.", "It was more accurate.")
    assert got["opposite"] == 1
    got = conflicts("He was not a poet.", "He was a poet.")
    assert got["negation_parity"] == 1
    got = conflicts("It is 134 feet high.", "It is 134 metres high.")
    assert (got["unit_differs"], got["swap_number"]) == (1, 0)
    got = conflicts("Aldrin stayed in orbit while Collins walked.", "Collins left the orbit while Aldrin walked.")
    # common: aldrin, orbit, collins, walk; places 2, 1, 0, 3 → 3 of 6 pairs
    assert got["disorder"] == pytest.approx(3 / 6)
    assert got["name_disorder"] == 1.0
    assert not conflict_features("x", []).any()


def test_negation_and_question_features() -> None:
    got = lexical("He did not write poems.", ["He did write poems."], question="Did he write poems?")
    assert (got["negated"], got["negation_best"], got["negation_differs"]) == (1, 0, 1)
    assert got["question_cover"] == pytest.approx(2 / 3)  # not, write, poem; the last two are asked about
    assert lexical("Who wrote it?", ["x"])["question_mark"] == 1


def test_no_passages_and_no_words() -> None:
    assert np.isfinite(lexical_features("Anything at all.", [], one)).all()
    assert np.isfinite(lexical_features("…", ["text"], one)).all()


def tokens(text_offsets: list[tuple[int, int]], vectors: list[list[float]]) -> TokenEmbeddings:
    array = np.array(vectors, dtype=np.float32).reshape(-1, 2)
    pooled = array.mean(0) if len(array) else np.array([1.0, 0.0], np.float32)
    return TokenEmbeddings(
        np.arange(len(array)), np.array(text_offsets, dtype=np.int64).reshape(-1, 2), array,
        pooled / np.linalg.norm(pooled),
    )  # fmt: skip


def test_word_alignment_averages_tokens_of_a_word() -> None:
    words = words_of("ab cd")
    own = tokens([(0, 1), (1, 2), (3, 5)], [[1, 0], [0, 1], [0, 1]])
    passages = [tokens([(0, 1)], [[1, 0]]), tokens([], []), tokens([(0, 1), (1, 2)], [[0, 1], [0.6, 0.8]])]
    sims, has = word_alignment(words, own, Evidence(["", "", ""], passages))
    # "ab": tokens (1,0) and (0,1). Passage 0: cosines 1 and 0 → 0.5. Passage 2: best 0.6 and 1 → 0.8.
    # "cd": (0,1). Passage 0: 0. Passage 2: 1. Passage 1 has no token: −1.
    assert has.tolist() == [True, True]
    assert sims == pytest.approx(np.array([[0.5, -1.0, 0.8], [0.0, -1.0, 1.0]]), abs=1e-6)


def test_alignment_features_by_hand() -> None:
    words = words_of("ab cd")
    own = tokens([(0, 2), (3, 5)], [[1, 0], [0, 1]])
    evidence = Evidence(["", ""], [tokens([(0, 2)], [[1, 0]]), tokens([(0, 2)], [[0.6, 0.8]])])
    values, mass = alignment_features(words, own, evidence, np.array([True, False]), np.array([1.0, 3.0]))
    got = dict(zip(ALIGNMENT_FEATURES, values, strict=True))
    # sims: ab → [1, .6], cd → [0, .8]; weights 1, 3: passage 0 has 1, passage 1 has .6 + 2.4 = 3 → passage 1 is best
    expected = {
        "align_mean": (1 * 1 + 3 * 0.8) / 4, "align_best_mean": (1 * 0.6 + 3 * 0.8) / 4, "align_min": 0.8,
        "align_miss_mean": 0.8,  # cd is not found literally
        "align_hit_mean": 0.6,  # ab is, and matches 0.6 in the best passage
        "passage_share": 0.75,  # cd's weight goes to passage 1
        "cos_question": 0.0,
    }  # fmt: skip
    assert {name: got[name] for name in expected} == pytest.approx(expected)
    assert mass == pytest.approx([1.0, 3.0])


def test_idf_is_larger_for_rare_words() -> None:
    idf = Idf.fit(["the cat sat", "the dog sat", "the cow"])
    # n = 3: log(4 / (3 + 1)) = 0, log(4 / (2 + 1)), log(4 / (1 + 1)), unseen log 4
    assert [idf(w) for w in ("the", "sat", "cat", "zebra")] == pytest.approx(
        [0.0, np.log(4 / 3), np.log(2), np.log(4)], abs=1e-6
    )
    with pytest.raises(ValueError, match="expected shape"):
        Idf(np.zeros(3))
