"""ROUGE-L for English and Chinese: words as ``rouge-score`` cuts and stems them, jieba's where the text is Chinese.

Source: Lin 2004. Equal to ``rouge-score`` with its stemmer, whose table in Python is too slow for millions of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from annotators.text.words import chinese_words

if TYPE_CHECKING:
    from rouge_score.tokenizers import Tokenizer


def rouge_words(text: str) -> list[str]:
    """The words that ROUGE-L compares, without punctuation: jieba's of a Chinese text, else stemmed lower-case ones."""
    if is_chinese(text):
        return [word for word in chinese_words(text) if any(ch.isalnum() for ch in word)]
    return list(_english().tokenize(text))


def is_chinese(text: str) -> bool:
    """Whether Han characters are at least a fifth of the letters and digits."""
    letters = [ch for ch in text if ch.isalnum()]
    return bool(letters) and 5 * sum("\u4e00" <= ch <= "\u9fff" for ch in letters) >= len(letters)


def rouge_l(words: Sequence[str]) -> Callable[[Sequence[str]], float]:
    """The ROUGE-L F1, in [0, 1], of a text given as words, as a function of the words of another text.

    The longest common subsequence is counted bit by bit (Hyyrö 2004): one addition per word, not one table row.
    """
    n, full = len(words), (1 << len(words)) - 1
    places: dict[str, int] = {}  # word → the places where it stands, as bits
    for place, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << place

    def against(other: Sequence[str]) -> float:
        row = full  # a 0 bit marks a place where the common subsequence grows
        for word in other:
            match = row & places.get(word, 0)
            row = ((row + match) | (row - match)) & full
        common = n - row.bit_count()
        return 2 * common / (n + len(other)) if common else 0.0  # F1 of common/n and common/len(other)

    return against


@lru_cache(maxsize=1)
def _english() -> Tokenizer:
    from rouge_score.tokenizers import DefaultTokenizer

    return DefaultTokenizer(use_stemmer=True)
