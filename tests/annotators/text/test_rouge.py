"""ROUGE-L against rouge-score, in English and by hand in Chinese."""

import numpy as np
import pytest
from rouge_score import rouge_scorer

from annotators.text.words import is_chinese, rouge_l, rouge_words

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
