"""Which language a text is in, as far as an annotator must know: English, Chinese, another one, or none.

The script decides first, but that of names in brackets or quotes: Latin letters beside Chinese function words are names
in a Chinese text. For other Latin texts the share of English function words and, where these are few, py3langid decide.
Short Latin texts and names count as English, since no method can tell.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from annotators.text.words import FUNCTION_WORDS

_LETTERS = re.compile(r"[^\W\d_]+")
HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"  # inside character classes
_HAN = re.compile(f"[{HAN}]")
_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fa\u31f0-\u31ff\uff66-\uff9d]")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f\u1e00-\u1eff]")
_SYMBOL = re.compile("[\u0391-\u03c9]")  # a Greek letter alone, as in formulas, is of no language
# What names or glosses something, "Kyoto (京都)", says nothing of the language around it.
_ASIDE = re.compile(
    r"[(（\[【《〈][^()（）\[\]【】《》〈〉\n]{1,40}[)）\]】》〉]|[“「『‘][^“”「」『』‘’\n]{1,12}[”」』’]"
)
_PARTICLE = "[的了是在被把也都不这那就由从对将着]"
# Beside another character, as in "发布了"; a lone one is what a text in another language may speak of.
_CHINESE = re.compile(rf"{_PARTICLE}{_HAN.pattern}|{_HAN.pattern}{_PARTICLE}")
_SCRIPTS = {"CYRILLIC": "cyrillic", "ARABIC": "ar", "HANGUL": "ko", "GREEK": "el", "HEBREW": "he"}
_HEAD = 4000
MIN_WORDS = 4  # Latin texts of fewer words than this are taken for English
MARGIN = 12.0  # nats by which another language must beat English, per text
OTHERS = frozenset(
    "fr de es it pt nl sv da no nb nn fi pl cs sk ro hu tr id ms vi ca gl hr sl bs lt lv et sq af sw".split()
)
TOLD = OTHERS | {"en", "zh", "ja", "ar", "ko", "el", "he"}  # codes that ``language_of`` finds
_ENGLISH = FUNCTION_WORDS - frozenset("a an me was in on i no so as do s t is for over".split())


def language_of(text: str) -> str:
    """The language of a text's first 4,000 characters: "en", "zh", another code ("ja", "fr", "other"), or "none"."""
    return _language_of(text[:_HEAD])


@lru_cache(maxsize=4096)  # which keeps the texts
def _language_of(text: str) -> str:
    told = _ASIDE.sub(" ", text)
    if _weight(text) > 3 * _weight(told):  # what stands aside is most of it
        told = text
    words = _words(told)
    letters = "".join(words)
    if not letters:
        return "none"
    han, kana, latin = (len(p.findall(letters)) for p in (_HAN, _KANA, _LATIN))
    if kana and kana * 10 > han:
        return "ja" if (kana + han) * 2 > latin else _latin_language(text)
    chinese = _CHINESE.search(letters) and _ENGLISH.isdisjoint(word.lower() for word in words)
    chinese = chinese and _latin_language(_HAN.sub(" ", told)) == "en"  # names and code, no prose in another language
    if chinese or han * 3 > latin:  # a Chinese character says about as much as three or four letters
        return "zh" if han * 2 > len(letters) - latin else "other"
    if latin * 2 < len(letters):
        name = unicodedata.name(next(c for c in letters if not _LATIN.match(c)), "").split(" ")[0]
        return _SCRIPTS.get(name, "other")
    return _latin_language(text)


def _words(text: str) -> list[str]:
    return [word for word in _LETTERS.findall(text) if not _SYMBOL.fullmatch(word)]


def _weight(text: str) -> int:
    letters = "".join(_words(text))
    return len(letters) + 2 * len(_HAN.findall(letters))


def only_names(text: str) -> bool:
    """Whether a text in Latin letters has so few words, or so few in lower case, that it may be names alone."""
    words = _LETTERS.findall(text)
    return len(words) < MIN_WORDS or sum(word.islower() for word in words) < 2


def _latin_language(text: str) -> str:
    if only_names(text):  # which are no evidence
        return "en"
    words = [word.lower() for word in _LETTERS.findall(text)]
    if sum(word in _ENGLISH for word in words) >= max(1, 0.12 * len(words)):
        return "en"
    import py3langid

    score = {code: float(value) for code, value in py3langid.rank(text)}
    top = max(OTHERS & score.keys(), key=lambda code: score[code])
    return top if score[top] - score["en"] > MARGIN else "en"


def declared_or_found(declared: str | None, text: str) -> str:
    """The code of a declared language without its region ("zh-CN" is "zh"); the text's own where none is declared."""
    return stated({"language": declared}) or language_of(text)


_NAMED = {"english": "en", "eng": "en", "chinese": "zh", "chi": "zh", "zho": "zh", "cn": "zh"}


def stated(row: Mapping[str, Any]) -> str | None:
    """The code of the language that a row declares as ``language`` or ``lang``, without region; None for none."""
    declared = str(row.get("language") or row.get("lang") or "").strip().lower().replace("_", "-").split("-")[0]
    return _NAMED.get(declared, declared) or None


def language_of_row(row: Mapping[str, Any]) -> str:
    """ "zh" or "en": in which of the two a labelled row is, by what it declares."""
    return "zh" if stated(row) == "zh" else "en"
