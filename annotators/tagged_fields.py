"""What the readers of tagged replies have in common: failures by name, tags, fragments and corrections.

Tags are written in ASCII angle brackets; text shown to a model has none (``neutral``), so text that it copies can't
pass for a tag.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from annotators.records import Label

FAILURES = {
    "empty": "the reply holds no text",
    "truncated": "the reply was cut off at its limit of tokens",
    "too_long": "the reply is longer than any annotation",
    "no_tags": "none of the tags is in the reply",
    "no_type": "there are tags, but neither a type nor 'no fact'",
    "unknown_type": "what follows the type tag is not exactly one of the three types",
    "within_words": "the deciding tag stands in the middle of other words",
    "repeated_type": "more than one type, or a type and 'no fact'",
    "contradicts_itself": "a sentence without hallucination has a correction",
    "bad_correction": "a correction is not of the form \"from\" to \"to\"",
    "points_and_none": "reference points, and the tag that says there are none",
    "forged_tag": "a tag with the words around it stands in the text that was to be judged",
    "correction_not_in_sentence": "the words that a correction replaces are not in the sentence",
    "engine_error": "the engine gave no reply, see the log",
}  # fmt: skip
"""Names of what can be wrong with a reply."""

MAX_REPLY = 20_000
"""Characters."""
TYPES: dict[str, Label] = {
    "none": "supported", "nohallucination": "supported", "无": "supported", "无幻觉": "supported",
    "contradictory": "contradictory", "contradiction": "contradictory", "矛盾": "contradictory",
    "unverifiable": "unverifiable", "无法验证": "unverifiable",
    "nofact": "no_fact", "nofacts": "no_fact", "无事实": "no_fact",
}  # fmt: skip
NO_FACT = frozenset({"nofact", "nofacts", "无事实"})
NOTHING = frozenset({"", "none", "无", "n/a", "na", "nil", "null", "nothing", "没有", "无需改正"})
# Possessive (*+): white space is given back to nobody, or a "<" before a hundred blanks takes seconds.
TAG = re.compile(r"<\s*+(/?+)\s*+([^<>\n]{1,40}?)\s*+/?+\s*+>")
_SEP = re.compile(r"<\s*+/?+\s*+sep\s*+/?+\s*+>", re.IGNORECASE)
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>", re.DOTALL | re.IGNORECASE)
EDGES = " \t\r\n\u3000*_`~#:：.。;；,，、!！\"“”'‘’|<>()（）[]"
_QUOTE = '["“”„‟＂「」『』]'
_CHANGE = re.compile(
    rf"(?:change\s*|replace\s*|将|把)?{_QUOTE}(?P<old>.+?){_QUOTE}\s*"
    rf"(?:to|with|->|=>|→|(?:修改|更|替换?|换)?(?:改为|改成|换成|换为|正为))\s*{_QUOTE}(?P<new>.*?){_QUOTE}"
    rf"(?=\s*[.。,，;；、]?\s*(?:$|\n|<|`)|(?:\s*[.。,，;；、]\s*|\s+)(?:and\s*|change\s*|replace\s*|[-*•]\s*|\d+[.)、]\s*)*"
    rf"(?:以及|并且?)?[将把]?{_QUOTE}|(?:以及|并且?|将|把)+{_QUOTE})",
    re.DOTALL | re.IGNORECASE,
)
_ARROW = re.compile(rf"{_QUOTE}\s*(?:to|with|->|=>|→|改为|改成)\s*{_QUOTE}", re.IGNORECASE)
_BETWEEN = re.compile(
    r"(?:[\s.。,，;；、`*•-]|\d{1,2}[.)、]\s|<\s*/?\s*sep\s*>|and\b|以及|并且?)+", re.IGNORECASE
)
_NUMBERED = re.compile(
    r"(?:^|\n)\s*[-*•]?\s*(?:(?:Reference|参考)(?:\s*(?:point|document|文档|要点|片段))?\s*\[?\d{1,3}\]?\s*[:：]|Reference\s*[:：])",
    re.IGNORECASE,
)
_OPENING = re.compile(r"(?:参考文档中的|参考\s*[:：]|[-*•]\s+|\d{1,2}[.)]\s+)+")


class ParseFailure(ValueError):
    """A reply that is no annotation; ``name`` is a key of ``FAILURES``."""

    def __init__(self, name: str) -> None:
        super().__init__(FAILURES[name])
        self.name = name


@dataclass(frozen=True)
class Part:
    """A tag: its kind, where the tag before it ended and whether text behind that one is its value, its own span, the
    span of what follows it up to the next tag."""

    kind: str
    before: int
    inside: bool
    tag: tuple[int, int]
    value: tuple[int, int]


def neutral(text: str) -> str:
    """A text as it is shown to a model: no ASCII angle brackets, no invisible or control characters.

    ``<`` and ``>`` become ‹ and ›, which no Unicode normalisation turns back; lone surrogates become U+FFFD.
    """
    if text.isascii() and text.isprintable() and "<" not in text and ">" not in text:
        return text
    return "".join(_neutral(char) for char in text)


def _neutral(char: str) -> str:
    if char in "<>":
        return "‹" if char == "<" else "›"
    if char in "\n\t\r" or char.isprintable():
        return char
    return " " if char.isspace() else "\ufffd" if unicodedata.category(char) == "Cs" else ""


def opening(reply: str) -> int:
    """Where the answer begins: behind a block of thoughts."""
    if len(reply) > MAX_REPLY:
        raise ParseFailure("too_long")
    thought = _THOUGHT.match(reply)
    if thought is None and reply.lstrip().lower().startswith("<think>"):
        raise ParseFailure("truncated")
    start = thought.end() if thought else 0
    if not reply[start:].strip():
        raise ParseFailure("empty")
    return start


def plain(text: str) -> str:
    """Without case, blanks and the punctuation around it."""
    return re.sub(r"[\s_\-]+", "", text.strip(EDGES)).casefold()


def parts_of(reply: str, start: int, kind_of: Callable[[str], str | None]) -> list[Part]:
    """The tags of a reply with what follows each; a closing tag ends a value, text in other brackets is text."""
    found: list[tuple[str, tuple[int, int]]] = []
    for match in TAG.finditer(reply, start):
        kind = kind_of(plain(match.group(2)))
        if kind is not None:
            found.append(("closing" if match.group(1) else kind, match.span()))
    before = [start, *(span[1] for _, span in found)]
    kinds = ["", *(kind for kind, _ in found)]
    after = [*(span[0] for _, span in found[1:]), len(reply)]
    parts = [
        Part(kind, behind, last not in ("", "closing", "type", "nofact"), span, (span[1], end))
        for (kind, span), behind, last, end in zip(found, before, kinds, after, strict=False)
    ]
    return [part for part in parts if part.kind != "closing"]


def not_copied(reply: str, part: Part, sources: Sequence[str]) -> None:
    """A tag whose text before and behind it stands like that in a source was copied, not meant."""
    line = reply[part.before : part.tag[0]].rstrip()[-24:].rsplit("\n", 1)[-1].lstrip()
    if len(line) < 4 or not any("<" in source for source in sources):
        return
    wanted = _folded(line + reply[part.tag[0] : part.tag[1]])
    if any(wanted in _folded(source) for source in sources if "<" in source):
        raise ParseFailure("forged_tag")


def stands_alone(reply: str, part: Part, *, behind: bool) -> None:
    """No other words may stand on the tag's line before it, unless they belong to another tag, nor ``behind`` it."""
    start, end = part.tag
    words = "" if part.inside else reply[max(part.before, reply.rfind("\n", 0, start) + 1) : start]
    if behind:
        words += reply[end : part.value[1]].split("\n", 1)[0]
    if plain(words):
        raise ParseFailure("within_words")


def _folded(text: str) -> str:
    return re.sub(r"\s+", "", text).casefold()


def fragments_in(value: str) -> list[str]:
    """The fragments in what follows a reference tag or stands between <SEP>s."""
    pieces = [piece for part in _SEP.split(value) for piece in _NUMBERED.split(part)]
    return [text for piece in pieces if plain(text := _bare(piece)) not in NOTHING]


def _bare(piece: str) -> str:
    """A fragment without code fences, list marks, opening phrases and a pair of quotes around it."""
    text = piece.strip().strip("`").strip()
    if opening := _OPENING.match(text):
        text = text[opening.end() :]
    text = text.rstrip(";；").strip()
    if len(text) > 1 and re.fullmatch(_QUOTE, text[0]) and re.fullmatch(_QUOTE, text[-1]):
        text = text[1:-1].strip()
    return text


def corrections_in(value: str) -> list[tuple[str, str]]:
    """The changes that follow a correction tag; none where it says so."""
    if plain(value) in NOTHING:
        return []
    found: list[tuple[str, str]] = []
    at = _skip(value, 0)
    while at < len(value):
        match = _CHANGE.match(value, at)
        if match is None or len(_ARROW.findall(match.group())) > 1:
            raise ParseFailure("bad_correction")
        found.append((match["old"], match["new"]))
        at = _skip(value, match.end())
    return found


def _skip(value: str, at: int) -> int:
    match = _BETWEEN.match(value, at)
    return match.end() if match else at
