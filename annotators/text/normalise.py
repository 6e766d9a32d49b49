"""Text as an annotator reads it: without invisible characters and mark-up, compatibility forms folded, nothing forged.

A zero-width space inside a year or a tag inside "not" must not change a verdict. Judgements are made on the clean text;
offsets always point into the text as it came.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from html import unescape

_DROP = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Me"})
_INVISIBLE = frozenset("\u034f\u115f\u1160\u3164\uffa0\u17b4\u17b5")
_APOSTROPHES = frozenset("\u2019\u02bc\u2018\u2032\u00b4\u0060\uff07\u02b9\u201b")
_INLINE_TAGS = "a|abbr|b|big|code|em|font|i|mark|s|small|span|strong|u|wbr"
_TAGS = (
    f"{_INLINE_TAGS}|article|aside|blockquote|body|br|caption|center|cite|dd|del|details|div|dl|dt|figcaption|figure"
    "|footer|h[1-6]|head|header|hr|html|iframe|img|ins|kbd|li|main|nav|ol|p|pre|q|script|section|style|sub|summary|sup"
    "|svg|table|tbody|td|tfoot|th|thead|tr|ul|var"
)
_BARE = (
    "async|checked|controls|defer|disabled|hidden|loop|multiple|muted|nowrap|open|readonly|required|reversed|selected"
)
# A tag of HTML (what else stands in angle brackets is text: <Enter>, a<b), an entity, or one character with the
# combining marks that follow it.
_PIECE = re.compile(
    rf"</?(?i:{_TAGS})"
    rf"(?:\s{{1,9}}(?i:{_BARE})(?=[\s/>])"
    r"|\s{1,9}[\w:-]{1,40}\s{0,9}=\s{0,9}(?:\"[^\"<>\n]{0,200}\"|'[^'<>\n]{0,200}'|[^\s<>\"']{1,200})){0,9}\s{0,9}/?>"
    r"|&(?:#\d{1,7}|#x[0-9A-Fa-f]{1,6}|[A-Za-z]{2,31});|.[\u0300-\u036f]*",
    re.DOTALL,
)
_INLINE = re.compile(rf"</?(?:{_INLINE_TAGS})\b", re.IGNORECASE)
# A tag that prose speaks of stands in quotes, or in a line before "tag" or punctuation, and is closed nowhere.
_NAMED = re.compile(
    rf"(?<=[`\"'“‘])</?(?i:{_TAGS})>(?=[`\"'”’])"
    rf"|(?<=[\w,:] )<(?!(?i:br|hr|img|wbr)>)((?i:{_TAGS}))>(?=[,.;:!?]|[ ](?:tags?|elements?|and|or)\b)"
)
_MIXED = re.compile(r"[^\W\d_]+")
_LOOKS_LATIN = str.maketrans(
    "\u0430\u0435\u043e\u0440\u0441\u0445\u0443\u0456\u0458\u0455\u04bb\u0501\u0432\u043a\u043c\u043d\u0442"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0406\u0408\u0405"
    "\u03bf\u03b1\u03b9\u03bd\u03c1\u03c5\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7",
    "aeopcxyijshdbkmhtABEKMHOPCTXIJSoaivpuABEZHIKMNOPTYX",
)
_VARIATION = re.compile("[\ufe00-\ufe0f\u180b-\u180f\U000e0100-\U000e01ef]")  # selectors of a glyph
_LATIN = re.compile("[A-Za-z]")


def clean(text: str) -> tuple[str, list[int]]:
    """The text without control, format and invisible characters and tags, compatibility forms folded (NFKC), and for
    each of its characters the offset in ``text`` that it came from.

    Inline tags vanish, others become a space, but not those that prose speaks of; entities are read; combining
    marks are composed or dropped; superscripts get a "^" and fractions a space, so that they do not join a number;
    look-alike letters in a word with Latin ones become Latin.
    """
    if text.isascii() and text.isprintable() and not {"<", "&", "`"} & set(text):
        return text, list(range(len(text)))
    kept: list[str] = []
    origin: list[int] = []
    closed = set(re.findall(r"</(\w+)\s*>", text.lower()))
    named = {m.start() for m in _NAMED.finditer(text) if m[1] is None or m[1].lower() not in closed}
    for match in _PIECE.finditer(text):
        folded = match.group() if match.start() in named else _fold(match.group())
        kept.append(folded)
        origin.extend([match.start()] * len(folded))
    return _MIXED.sub(_one_script, "".join(kept)), origin


@lru_cache(maxsize=2048)
def clean_text(text: str) -> str:
    """The clean text alone; remembered, since passages and references are asked for again and again."""
    return clean(text)[0]


def _fold(piece: str) -> str:
    """One piece as it is read; "" where nothing is."""
    if len(piece) > 1 and piece[0] == "<":
        return "" if _INLINE.match(piece) else " "
    if len(piece) > 2 and piece[0] == "&":
        return "".join(_fold(char) for char in unescape(piece)) if unescape(piece) != piece else piece
    char = piece[0]
    if char in "\t\n\r ":
        return char
    if char in _APOSTROPHES:
        return "'"
    if unicodedata.category(char) in _DROP or char in _INVISIBLE or _VARIATION.match(char):
        return ""
    composed = unicodedata.normalize("NFKC", piece)
    if unicodedata.decomposition(char).startswith(("<super>", "<sub>")):
        return "^" + composed
    if unicodedata.decomposition(char).startswith("<fraction>"):
        return " " + composed
    return "".join(c for c in composed if not unicodedata.combining(c) and c not in _INVISIBLE)


def _one_script(match: re.Match[str]) -> str:
    """A word with Latin letters, in Latin letters alone where the others look like them."""
    word = match.group()
    return word if word.isascii() or not _LATIN.search(word) else word.translate(_LOOKS_LATIN)


def original_span(text: str, origin: list[int], start: int, end: int) -> tuple[int, int]:
    """The span of ``text`` behind characters start to end (excluded, above start) of its clean text."""
    last = _PIECE.match(text, origin[end - 1])
    return origin[start], last.end() if last else origin[end - 1] + 1
