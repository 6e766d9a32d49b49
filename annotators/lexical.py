"""Words of a text and how the words of a sentence are found again in passages: the lexical half of the alignment.

Pure Python and numpy, no model. Words are compared by Porter stem, numbers by value ("1,000" = "1000" =
"one thousand" word by word), names by their capital letters. Leaves paraphrase to ``annotators/alignment.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from annotators.wordlists import EXTREMES, FUNCTION_WORDS, HEDGES, MONTHS, NEGATIONS, NUMBER_WORDS, PERSONAL

_WORD = re.compile(r"(?:(?<![\w.,)])[-−](?=\d))?\d+(?:[.,:]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)?|[%$€£¥]")


@lru_cache(maxsize=1)
def _stemmer() -> Callable[[str], str]:
    from nltk.stem.porter import PorterStemmer  # comes with rouge-score, needs no data

    return lru_cache(maxsize=65_536)(PorterStemmer().stem)


@dataclass(frozen=True)
class Words:
    """The words of one text, in order; all tuples have one entry per word (_W).

    ``stems`` are compared, ``starts``/``ends`` are code-point offsets, ``numbers`` is the value as text or None.
    """

    lower: tuple[str, ...]
    stems: tuple[str, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    numbers: tuple[str | None, ...]
    content: tuple[bool, ...]
    names: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.lower)


def number_value(word: str) -> str | None:
    """The value of a number in digits or as one English word, as canonical text; None for other words.

    "1,000" is "1000", "3.50" is "3.5", "007" is "7"; longer digit strings keep their leading zeros.
    """
    if word[0] in "-−":
        value = number_value(word[1:])
        return value if value in {None, "0"} else f"-{value}"
    if word[0].isdigit():
        if not word.isascii():
            return word
        plain = word.replace(",", "")
        if plain.count(".") == 1 and ":" not in plain:
            plain = plain.rstrip("0").rstrip(".").lstrip("0")
            return f"0{plain}" if not plain or plain[0] == "." else plain
        return plain if plain[0] != "0" or len(plain) > 3 else plain.lstrip("0") or "0"
    return NUMBER_WORDS.get(word)


@lru_cache(maxsize=4096)
def words_of(text: str) -> Words:
    """Cut a text into words; a capitalised word counts as a name unless it opens the text and is a function word."""
    stem = _stemmer()
    lower: list[str] = []
    stems: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    numbers: list[str | None] = []
    content: list[bool] = []
    names: list[bool] = []
    for match in _WORD.finditer(text):
        raw = match.group()
        word = raw.lower().replace("’", "'")
        value = number_value(word)
        is_function = word in FUNCTION_WORDS and not (raw == "May" and lower)  # the month
        bare = word[:-2] if word.endswith("'s") else word
        lower.append(word)
        numbers.append(value)
        stems.append(f"#{value}" if value is not None else stem(bare))
        starts.append(match.start())
        ends.append(match.end())
        content.append(not is_function)
        names.append(raw[0].isupper() and not is_function and value is None)
    return Words(
        tuple(lower), tuple(stems), tuple(starts), tuple(ends), tuple(numbers), tuple(content), tuple(names)
    )


@lru_cache(maxsize=12_288)
def _ngrams(text: str, n: int) -> frozenset[tuple[str, ...]]:
    stems = words_of(text).stems
    return frozenset(zip(*(stems[i:] for i in range(n)), strict=False))


@lru_cache(maxsize=4096)
def stem_set(text: str) -> frozenset[str]:
    """The distinct stems of a text."""
    return frozenset(words_of(text).stems)


@dataclass(frozen=True)
class Unit:
    """A number, month or run of name words: what another text may have its like of."""

    kind: str
    key: tuple[str, ...]
    start: int
    end: int
    before: str
    after: str


def _kind(words: Words, i: int) -> str | None:
    value = words.numbers[i]
    if words.lower[i] in MONTHS and words.names[i]:
        return "month"
    if value is not None:
        if re.fullmatch(r"1\d{3}|20\d\d", value) and words.lower[i].isdigit():
            return "year"
        return "number"
    return "name" if words.names[i] else None


@lru_cache(maxsize=4096)
def units(text: str) -> tuple[Unit, ...]:
    """Numbers, years, months and names of a text with their neighbouring words (stems, "" at the edges)."""
    words = words_of(text)
    found: list[Unit] = []
    i = 0
    while i < len(words):
        kind = _kind(words, i)
        if kind is None or (kind == "name" and i == 0 and len(words) > 1 and not words.names[1]):
            i += 1
            continue
        j = i + 1
        while (
            kind == "name"
            and j < len(words)
            and _kind(words, j) == "name"
            and text[words.ends[j - 1] : words.starts[j]] == " "
        ):
            j += 1
        found.append(
            Unit(
                kind, words.stems[i:j], words.starts[i], words.ends[j - 1],
                words.stems[i - 1] if i else "", words.stems[j] if j < len(words) else "",
            )
        )  # fmt: skip
        i = j
    return tuple(found)


LEXICAL_FEATURES = (
    "cover_any", "cover_best", "cover_best3", "idf_any", "idf_best", "idf_best3",
    "bigram_any", "trigram_any", "fourgram_any", "bigram_best", "trigram_best", "longest_miss", "longest_hit",
    "miss_count", "miss_idf", "miss_idf_max",
    "numbers", "number_any", "number_best3", "number_conflict", "names", "name_any", "name_best3", "miss_name_idf",
    "negated", "negation_best", "negation_differs", "hedged", "hedge_differs", "extreme", "extreme_missed",
    "length", "content_share", "question_mark", "personal", "second_best", "question_cover", "new_over_question",
)  # fmt: skip


def coverage(
    sentence: str, passages: Sequence[str], idf: Callable[[str], float]
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Which distinct content words of a sentence stand in which passage.

    Returns:
        (found (_W, _P) bool, idf weight (_W,), position of each distinct content word in ``words_of(sentence)``).
    """
    words = words_of(sentence)
    position: dict[str, int] = {}
    for i, stem in enumerate(words.stems):
        if words.content[i]:
            position.setdefault(stem, i)
    sets = [stem_set(p) for p in passages]
    found = np.array([[stem in s for s in sets] for stem in position], dtype=bool).reshape(
        len(position), len(sets)
    )
    return found, np.array([idf(stem) for stem in position]), list(position.values())


def _share(mask: np.ndarray, weight: np.ndarray | None = None) -> float:
    if not len(mask):
        return 1.0
    return float(mask.mean()) if weight is None else float(mask @ weight / max(weight.sum(), 1e-9))


def _runs(hit: Sequence[bool]) -> tuple[int, int]:
    """Longest run of misses and of hits."""
    best = {True: 0, False: 0}
    run = 0
    for i, value in enumerate(hit):
        run = run + 1 if i and hit[i - 1] == value else 1
        best[value] = max(best[value], run)
    return best[False], best[True]


def lexical_features(
    sentence: str, passages: Sequence[str], idf: Callable[[str], float], question: str = ""
) -> np.ndarray:
    """Features of how a sentence's words are found in the passages of its window.

    Args:
        sentence: The judged sentence.
        passages: The window's passages in document order; may be empty.
        idf: Weight ≥ 0 of a stem, large for rare ones.
        question: The question, or "".

    Returns:
        (len(LEXICAL_FEATURES),) float64; shares in [0, 1], 1 where there is nothing to find.
    """
    words = words_of(sentence)
    found, weight, at = coverage(sentence, passages, idf)
    n_passages = len(passages)
    any_ = np.asarray(found.any(1)) if n_passages else np.zeros(len(at), bool)
    mass = (found * weight[:, None]).sum(0) if n_passages else np.zeros(1)
    best = int(mass.argmax())
    second = float(np.partition(mass, -2)[-2] / max(weight.sum(), 1e-9)) if n_passages > 1 else 0.0
    in_best = found[:, best] if n_passages else any_
    if n_passages:
        padded = np.pad(found, ((0, 0), (0, 2)))
        triple = padded[:, :n_passages] | padded[:, 1 : n_passages + 1] | padded[:, 2 : n_passages + 2]
        best3 = int((triple * weight[:, None]).sum(0).argmax())
        in_best3 = triple[:, best3]
        near = range(best3, min(best3 + 3, n_passages))
    else:
        best3, in_best3, near = 0, any_, range(0)
    grams = []
    for n in (2, 3, 4):
        own = _ngrams(sentence, n)
        hit = own & frozenset().union(*(_ngrams(p, n) & own for p in passages)) if own else own
        grams.append(len(hit) / len(own) if own else _share(any_))
    grams_best = []
    for n in (2, 3):
        own = _ngrams(sentence, n)
        grams_best.append(
            len(own & _ngrams(passages[best], n)) / len(own) if own and n_passages else _share(in_best)
        )
    known = {words.stems[i] for i, hit in zip(at, any_, strict=True) if hit}
    miss_run, hit_run = _runs([words.stems[i] in known for i in range(len(words)) if words.content[i]])
    number = np.array([words.numbers[i] is not None for i in at], dtype=bool)
    name = np.array([words.names[i] and i > 0 for i in at], dtype=bool)
    near_numbers = {s for p in near for s in stem_set(passages[p]) if s[0] == "#"}
    miss = ~any_
    miss_idf = weight[miss]
    best_words = set(words_of(passages[best]).lower) if n_passages else set()
    near_words = {w for p in near for w in words_of(passages[p]).lower}
    lower = set(words.lower)
    negated, best_negated = bool(lower & NEGATIONS), bool(best_words & NEGATIONS)
    asked = stem_set(question)
    in_question = np.array([words.stems[i] in asked for i in at], dtype=bool)
    values = (
        _share(any_), _share(in_best), _share(in_best3),
        _share(any_, weight), _share(in_best, weight), _share(in_best3, weight),
        *grams, *grams_best, miss_run, hit_run,
        miss.sum(), miss_idf.sum(), miss_idf.max(initial=0.0),
        number.sum(), _share(any_[number]), _share(in_best3[number]),
        float((~in_best3[number]).any() and bool(near_numbers)),
        name.sum(), _share(any_[name]), _share(in_best3[name]), weight[miss & name].sum(),
        negated, best_negated, negated != best_negated,
        bool(lower & HEDGES), bool(lower & HEDGES) != bool(best_words & HEDGES),
        bool(lower & EXTREMES), bool((lower & EXTREMES) - near_words),
        np.log1p(len(words)), float(np.mean(words.content)) if len(words) else 0.0,
        sentence.rstrip().endswith(("?", "？")), bool(lower & PERSONAL), second,
        _share(in_question, weight) if len(at) else 0.0, _share(any_[~in_question], weight[~in_question]),
    )  # fmt: skip
    return np.array(values, dtype=np.float64)
