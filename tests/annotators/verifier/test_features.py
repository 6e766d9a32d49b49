"""Words, alignment and features: hand-derived values."""

from __future__ import annotations

import numpy as np
import pytest

from annotators.text.language import language_of, reads_as_english
from annotators.text.normalise import clean, original_span
from annotators.verifier.features import (
    ALIGNMENT_FEATURES,
    CONFLICT_FEATURES,
    FEATURES,
    LEXICAL_FEATURES,
    Idf,
    PassageVectors,
    alignment_features,
    conflict_features,
    counterparts,
    coverage,
    lexical_features,
    number_value,
    word_alignment,
    words_of,
)
from engines.embedding import TokenEmbeddings


def one(_: str) -> float:
    return 1.0


def lexical(sentence: str, passages: list[str], question: str = "") -> dict[str, float]:
    return dict(zip(LEXICAL_FEATURES, lexical_features(sentence, passages, one, question), strict=True))


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1,000", "1000"), ("3.50", "3.5"), ("007", "7"), ("0", "0"), ("12:30", "12:30"), ("0.5", "0.5"),
        ("half", "0.5"),
               ("-5", "-5"), ("0134", "0134"), ("0.0", "0"), ("seven", "7"), ("third", "3"), ("tower", None),
    ],
)  # fmt: skip
def test_number_value(word: str, value: str | None) -> None:
    assert number_value(word) == value


def test_words_have_offsets_stems_and_kinds() -> None:
    text = "In 1,048 Omar’s poems weren't read."
    words = words_of(text)
    assert [text[a:b] for a, b in zip(words.starts, words.ends, strict=True)] == [
        "In", "1,048", "Omar’s", "poems", "weren't", "read",
    ]  # fmt: skip
    assert words.stems[1:4] == ("#1048", "omar", "poem")
    assert words.content == (False, True, True, True, True, True)
    assert words.names == (False, False, True, False, False, False)


def test_coverage_counts_distinct_content_words() -> None:
    found, weight, at = coverage("The tower, the tower is tall", ["A tall tree", "Two towers"], one)
    # content words: tower (word 1), tall (word 5)
    assert at == [1, 5]
    assert found.tolist() == [[False, True], [True, False]]
    assert weight.tolist() == [1.0, 1.0]


def test_lexical_features_by_hand() -> None:
    got = lexical("Khayyam was born in 1050 in Nishapur.", ["Khayyam was born in Nishapur in 1048.", "He wrote poems."])
    # content words: khayyam, born, #1050, nishapur; all but 1050 stand in the first passage
    assert got["cover_any"] == got["cover_best"] == got["idf_best3"] == 0.75
    assert got["miss_count"] == 1
    assert got["numbers"] == 1
    assert got["number_any"] == 0
    assert got["number_conflict"] == 1  # the evidence has another number
    assert got["names"] == 1  # Nishapur; the first word is no name
    assert got["name_any"] == 1
    # khayyam was born in #1050 in nishapur: 6 bigrams; found: khayyam was, was born, born in, in nishapur
    assert got["bigram_any"] == pytest.approx(4 / 6)
    # content words in order: hit hit miss hit
    assert got["longest_hit"] == 2
    assert got["longest_miss"] == 1
    assert got["second_best"] == 0


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
    assert got["negated"] == 1
    assert got["negation_best"] == 0
    assert got["negation_differs"] == 1
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


def test_word_alignment_averages_a_words_tokens() -> None:
    words = words_of("ab cd")
    own = tokens([(0, 1), (1, 2), (3, 5)], [[1, 0], [0, 1], [0, 1]])
    passages = PassageVectors(
        [tokens([(0, 1)], [[1, 0]]), tokens([], []), tokens([(0, 1), (1, 2)], [[0, 1], [0.6, 0.8]])]
    )
    sims, has = word_alignment(words, own, passages)
    # "ab": tokens (1,0) and (0,1). Passage 0: cosines 1 and 0 → 0.5. Passage 2: best 0.6 and 1 → 0.8.
    # "cd": (0,1). Passage 0: 0. Passage 2: 1. Passage 1 has no token: −1.
    assert has.tolist() == [True, True]
    assert sims == pytest.approx(np.array([[0.5, -1.0, 0.8], [0.0, -1.0, 1.0]]), abs=1e-6)


def test_alignment_features_by_hand() -> None:
    words = words_of("ab cd")
    own = tokens([(0, 2), (3, 5)], [[1, 0], [0, 1]])
    passages = PassageVectors([tokens([(0, 2)], [[1, 0]]), tokens([(0, 2)], [[0.6, 0.8]])])
    values, mass = alignment_features(words, own, passages, np.array([True, False]), np.array([1.0, 3.0]))
    got = dict(zip(ALIGNMENT_FEATURES, values, strict=True))
    # sims: ab → [1, .6], cd → [0, .8]; weights 1, 3: passage 0 has 1, passage 1 has .6 + 2.4 = 3 → passage 1 is best
    assert got["align_mean"] == pytest.approx((1 * 1 + 3 * 0.8) / 4)
    assert got["align_best_mean"] == pytest.approx((1 * 0.6 + 3 * 0.8) / 4)
    assert got["align_min"] == pytest.approx(0.8)
    assert got["align_miss_mean"] == pytest.approx(0.8)  # cd is not found literally
    assert got["align_hit_mean"] == pytest.approx(0.6)  # ab is, and meets 0.6 in the best passage
    assert got["passage_share"] == pytest.approx(0.75)  # cd's weight goes to passage 1
    assert got["cos_question"] == 0.0
    assert mass == pytest.approx([1.0, 3.0])


def test_features_are_named_once() -> None:
    assert len(set(FEATURES)) == len(FEATURES)


def test_idf_is_larger_for_rare_words() -> None:
    idf = Idf.fit(["the cat sat", "the dog sat", "the cow"])
    # n = 3: log(4 / (3 + 1)) = 0, log(4 / (2 + 1)), log(4 / (1 + 1)), unseen log 4
    assert [idf(w) for w in ("the", "sat", "cat", "zebra")] == pytest.approx(
        [0.0, np.log(4 / 3), np.log(2), np.log(4)], abs=1e-6
    )
    with pytest.raises(ValueError, match="expected shape"):
        Idf(np.zeros(3))


def test_clean_drops_what_is_invisible_and_keeps_offsets() -> None:
    text = "In 19\u200b99 ２０ \x00b\u202ead ﬁn"
    cleaned, origin = clean(text)
    assert cleaned == "In 1999 20 bad fin"
    assert [text[i] for i in origin[:7]] == list("In 1999")
    start = cleaned.index("1999")
    assert text[slice(*original_span(text, origin, start, start + 4))] == "19\u200b99"
    with pytest.raises(ValueError, match="start < end"):
        original_span(text, origin, 3, 3)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("n\u034fot", "not"),
        ("n\ufe0fot", "not"),
        ("n\u043et", "not"),  # a Cyrillic letter
        ("isn\u02bct isn`t isn\u2032t isn\u2019t", "isn't isn't isn't isn't"),
        ("<b>n</b>ot <p>one</p>two", "not  one two"),
        ("AT&amp;T is&nbsp;not", "AT&T is not"),
        ("13\u2074 metres", "13^4 metres"),
        ("Cafe\u0301 Zu\u0308rich", "Café Zürich"),
        ("s\u0336i\u0336x", "six"),
        ("a\u3164b", "ab"),
        ("5 < 6 and 7 > 6", "5 < 6 and 7 > 6"),
        ("Москва", "Москва"),
    ],
)
def test_clean(text: str, cleaned: str) -> None:
    assert clean(text)[0] == cleaned
    assert len(clean(text)[1]) == len(cleaned)


def test_original_span_keeps_combining_marks() -> None:
    text = "the Cafe\u0301 there"
    cleaned, origin = clean(text)
    start = cleaned.index("Café")
    assert text[slice(*original_span(text, origin, start, start + 4))] == "Cafe\u0301"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Omar Khayyam was born in Nishapur.", "en"),
        ("奥马尔·海亚姆生于内沙布尔。", "zh"),
        ("奥马尔·海亚姆（Omar Khayyam）生于内沙布尔。", "zh"),
        ("Beijing (北京) is the capital of China.", "en"),
        ("東京は日本の首都です", "ja"),
        ("서울은 한국의 수도이다", "ko"),
        ("Омар Хайям родился в Нишапуре", "cyrillic"),
        ("Omar Jayam nació en Nishapur en 1048 y fue matemático.", "es"),
        ("Omar Khayyam est né à Nichapour en 1048.", "fr"),
        ("Gilbert du Motier, Marquis Lafayette", "en"),
        ("Sure!", "en"),
        ("1048", "none"),
        ("", "none"),
    ],
)
def test_language(text: str, language: str) -> None:
    assert language_of(text) == language
    assert reads_as_english(text) == (language in {"en", "none"})
