"""Words: hand-derived offsets, stems, values and units; ROUGE-L against rouge-score, and by hand in Chinese."""

import subprocess
import sys

import numpy as np
import pytest
from rouge_score import rouge_scorer

from annotators.text.words import holding, is_chinese, number_value, rouge_l, rouge_words, units, words_of


@pytest.mark.parametrize(("word", "value"), [
    ("1,000", "1000"), ("3.50", "3.5"), ("007", "7"), ("0", "0"), ("12:30", "12:30"), ("0.5", "0.5"),
    ("half", "0.5"), ("-5", "-5"), ("0134", "0134"), ("0.0", "0"), ("seven", "7"), ("third", "3"), ("tower", None),
])  # fmt: skip
def test_number_value(word: str, value: str | None) -> None:
    assert number_value(word) == value


def test_words_have_offsets_stems_kinds_and_places() -> None:
    text = "In 1,048 Omar’s poems weren't read."
    words = words_of(text)
    assert [text[a:b] for a, b in zip(words.starts, words.ends, strict=True)] == [
        "In", "1,048", "Omar’s", "poems", "weren't", "read",
    ]  # fmt: skip
    assert words.stems[1:4] == ("#1048", "omar", "poem")
    assert words.content == (False, True, True, True, True, True)
    assert words.names == (False, False, True, False, False, False)
    places = np.arange(-1, 8)  # "ab" holds 1 and 2, "cd" 4 and 5
    assert holding((1, 4), (3, 6), places).tolist() == [-1, -1, 0, 0, -1, 1, 1, -1, -1]
    assert holding((), (), places[1:3]).tolist() == [-1, -1]


def test_stemmer_comes_without_the_rest_of_nltk() -> None:
    program = (
        "import sys; from annotators.text.words import words_of; stems = words_of('dying flies').stems\n"
        "assert not {'sklearn', 'pandas', 'scipy', 'nltk'} & set(sys.modules), set(sys.modules)\n"
        "import nltk; from nltk.stem.porter import PorterStemmer\n"
        "assert stems == tuple(map(PorterStemmer().stem, ['dying', 'flies'])) == ('die', 'fli'), stems\n"
        "assert nltk.PorterStemmer is PorterStemmer"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_units_are_numbers_years_months_and_names() -> None:
    found = units("The Alder Bridge opened in May 1902 with 12 lamps.")
    names = [("name", ("alder", "bridg")), ("month", ("may",))]
    assert [(u.kind, u.key) for u in found] == [*names, ("year", ("#1902",)), ("number", ("#12",))]


SENTENCES = [
    "Water boils at 100 degrees Celsius at sea level.", "At sea level, water boils at one hundred degrees.",
    "Camels store fat, not water, in their humps", "The humps of camels store water!", "", "the the the water water",
]  # fmt: skip
LETTERS = [" ".join(np.random.default_rng(n).choice(list("abcdef"), size=n)) for n in (70, 150, 200)]


@pytest.mark.parametrize("texts", [SENTENCES, LETTERS], ids=["sentences", "long"])
def test_rouge_l_equals_rouge_score(texts):
    scorer = rouge_scorer.RougeScorer(["rougeL"], use_stemmer=True)
    want = [scorer.score(b, a)["rougeL"].fmeasure for a in texts for b in texts]
    got = [rouge_l(rouge_words(a))(rouge_words(b)) for a in texts for b in texts]
    np.testing.assert_allclose(got, want, atol=1e-12)
    assert len({round(v, 6) for v in want}) > len(texts)


def test_chinese_is_found_and_cut_into_words():
    # 北京 | 是 | 中国 | 的 | 首都 and 上海 | 是 | 中国 | 的 | 城市: 3 in common, F1 = 2·3/(5+5) = 0.6
    assert rouge_l(rouge_words("北京是中国的首都。"))(rouge_words("上海是中国的城市")) == pytest.approx(0.6)
    found = [is_chinese(text) for text in ("北京是首都", "GPT-4是什么模型", "Paris", "!", "")]
    assert found == [True, True, False, False, False]
