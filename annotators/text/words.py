"""The words of a text: English ones with stems, values and names, Chinese ones by jieba, and lists of English words.

``words_of`` is the one cutter for comparing English texts word by word. ROUGE-L, BM25 and the rewards cut otherwise on
purpose, as published or stored figures depend on it. ``rouge_l`` equals ``rouge-score`` with its stemmer (Lin 2004),
whose table in Python is too slow for millions of pairs.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import yaml
from numpy.typing import ArrayLike


def tables(file: str) -> dict[str, Any]:
    """The lists of words, or wordings, in the YAML file beside a module and of its name."""
    found: dict[str, Any] = yaml.safe_load(Path(file).with_suffix(".yaml").read_text(encoding="utf-8"))
    return found


_LISTS = {name: words.split() for name, words in tables(__file__).items()}
MONTHS, NEGATIONS, FUNCTION_WORDS = (frozenset(_LISTS[n]) for n in ("months", "negations", "function_words"))
NUMBER_WORDS, OPPOSITES = (dict(pair.split("=") for pair in _LISTS[n]) for n in ("number_words", "opposites"))

_IMPORTING = Lock()
# A signed or grouped number, a word with its apostrophe ("weren't"), or a sign that changes what a number means.
_WORD = re.compile(r"(?:(?<![\w.,)])[-−](?=\d))?\d+(?:[.,:]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)?|[%$€£¥]")


@dataclass(frozen=True)
class Words:
    """The words of one text, in order; all tuples have one entry per word (_W)."""

    lower: tuple[str, ...]
    stems: tuple[str, ...]  # by which words are compared
    starts: tuple[int, ...]  # code points
    ends: tuple[int, ...]
    numbers: tuple[str | None, ...]  # the value as text
    content: tuple[bool, ...]  # no function word
    names: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.lower)


def holding(starts: ArrayLike, ends: ArrayLike, places: np.ndarray) -> np.ndarray:
    """(n,) position of the word, of those from starts to ends, that each of n code points lies in, −1 outside words."""
    owner = np.searchsorted(starts, places, side="right") - 1
    return np.where(places < np.append(ends, 0)[owner], owner, -1)  # before the first word: −1, the 0


@lru_cache(maxsize=1)
def _stemmer() -> Callable[[str], str]:
    """The stemmer of nltk without the rest of nltk, which imports scikit-learn, pandas, scipy: a second or two."""
    with _IMPORTING:
        bare = [] if "nltk" in sys.modules else ["nltk", "nltk.stem"]
        for name in bare:
            if spec := find_spec(name):  # in order: the second is found by the path of the first
                sys.modules[name] = module_from_spec(spec)
        try:
            from nltk.stem.porter import PorterStemmer  # comes with rouge-score, needs no data
        finally:  # whoever imports nltk later gets all of it
            for name in [name for name in sys.modules if bare and name.partition(".")[0] == "nltk"]:
                del sys.modules[name]
    return lru_cache(maxsize=65_536)(PorterStemmer().stem)


def number_value(word: str) -> str | None:
    """The value of a number in digits or as one English word, as text ("3.50" is "3.5", "007" is "7", but longer digit
    strings keep their leading zeros); None for other words.
    """
    if word[0] in "-−":
        value = number_value(word[1:])
        return value if value in {None, "0"} else f"-{value}"
    if not word[0].isdigit():
        return NUMBER_WORDS.get(word)
    if not word.isascii():
        return word
    plain = word.replace(",", "")
    if plain.count(".") == 1 and ":" not in plain:
        plain = plain.rstrip("0").rstrip(".").lstrip("0")
        return f"0{plain}" if not plain or plain[0] == "." else plain
    return plain if plain[0] != "0" or len(plain) > 3 else plain.lstrip("0") or "0"


@lru_cache(maxsize=4096)
def words_of(text: str) -> Words:
    """Cut a text into words; every capitalised word but a function word or a number counts as a name."""
    stem = _stemmer()
    rows: list[tuple[Any, ...]] = []
    for match in _WORD.finditer(text):
        raw = match.group()
        word = raw.lower().replace("’", "'")
        value = number_value(word)
        content = word not in FUNCTION_WORDS or (raw == "May" and bool(rows))  # the month, where it opens no sentence
        key = stem(word.removesuffix("'s")) if value is None else f"#{value}"
        name = raw[0].isupper() and content and value is None
        rows.append((word, key, match.start(), match.end(), value, content, name))
    return Words(*(tuple(column) for column in zip(*rows, strict=True))) if rows else Words(*[()] * 7)


@lru_cache(maxsize=4096)
def stem_set(text: str) -> frozenset[str]:
    """The distinct stems of a text."""
    return frozenset(words_of(text).stems)


@dataclass(frozen=True)
class Unit:
    """A number, year, month or run of name words, with its stems."""

    kind: str
    key: tuple[str, ...]
    start: int
    end: int


def _kind(words: Words, i: int) -> str | None:
    value = words.numbers[i]
    if words.lower[i] in MONTHS and words.names[i]:
        return "month"
    if value is not None:
        return "year" if re.fullmatch(r"1\d{3}|20\d\d", value) and words.lower[i].isdigit() else "number"
    return "name" if words.names[i] else None


@lru_cache(maxsize=4096)
def units(text: str) -> tuple[Unit, ...]:
    """Numbers, years, months and names of a text; a capital that only opens the text makes no name."""
    words = words_of(text)
    found: list[Unit] = []
    i = 0
    while i < len(words):
        j, kind = i + 1, _kind(words, i)
        if kind is None or (kind == "name" and i == 0 and len(words) > 1 and not words.names[1]):
            i = j
            continue
        if kind == "name":
            while j < len(words) and _kind(words, j) == "name" and text[words.ends[j - 1] : words.starts[j]] == " ":
                j += 1
        found.append(Unit(kind, words.stems[i:j], words.starts[i], words.ends[j - 1]))
        i = j
    return tuple(found)


@lru_cache(maxsize=1)
def _jieba() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in its sources, and pkg_resources
        import jieba

    # The dictionary is read from the package: no log lines, and no cache file in a shared folder used or trusted.
    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer


def chinese_words(text: str) -> list[str]:
    """The words of a text by jieba, in order, punctuation among them; together they are the text."""
    return list(_jieba().lcut(text))


def rouge_words(text: str) -> list[str]:
    """The words that ROUGE-L compares, without punctuation: jieba's of a Chinese text, else stemmed lower-case ones."""
    if is_chinese(text):
        return [word for word in chinese_words(text) if any(ch.isalnum() for ch in word)]
    return list(_rouge_tokenizer().tokenize(text))


def is_chinese(text: str) -> bool:
    """Whether Han characters are at least a fifth of the letters and digits."""
    letters = [ch for ch in text if ch.isalnum()]
    return bool(letters) and 5 * sum("\u4e00" <= ch <= "\u9fff" for ch in letters) >= len(letters)


def common_subsequence(words: Sequence[str]) -> Callable[[Sequence[str]], int]:
    """The length of the longest common subsequence with the words of another text, as a function of these."""
    from rapidfuzz.distance import LCSseq

    return partial(LCSseq.similarity, words)


def rouge_l(words: Sequence[str]) -> Callable[[Sequence[str]], float]:
    """The ROUGE-L F1, in [0, 1], of a text given as words, as a function of the words of another text."""
    common_with = common_subsequence(words)

    def against(other: Sequence[str]) -> float:
        common = common_with(other)
        return 2 * common / (len(words) + len(other)) if common else 0.0  # F1 of common/n and common/len(other)

    return against


@lru_cache(maxsize=1)
def _rouge_tokenizer() -> Any:
    from rouge_score.tokenizers import DefaultTokenizer

    return DefaultTokenizer(use_stemmer=True)
