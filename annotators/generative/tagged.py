"""Tagged annotations, read strictly: what an annotating model wrote, or the name of what is wrong with it.

    <Reference> copied text<SEP>more of it <Hallucination> Contradictory <Correction> "1935" to "1931"
    <参考>原文<SEP>原文 <幻觉>矛盾 <改正>将“1935”改为“1931”            <No Fact>  <无事实>
    <Facts Present>  <No Facts>         a point<SEP>another  <No Reference Information>         <No Hallucination>

The last line is of the later protocol of three turns. Tags come in any order and in either language, with other case,
blanks and the misspellings of public data. A reply that can be read in two ways is a failure, never a guess. Text shown
to a model has no ASCII angle brackets (``neutral``), so text that it copies can't pass for a tag. Fragments are then
looked up in what the model was shown, and corrections in the sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rapidfuzz import fuzz
from rapidfuzz.distance import OSA, Indel

from annotators.records import HALLUCINATED, Fragment, Label
from annotators.text.sentences import end_of
from annotators.text.words import NEGATIONS, chinese_words, words_of
from engines.types import TAGS, THINKING

T = TypeVar("T")
FAILURES = {
    "empty": "the reply holds no text",
    "truncated": "the reply was cut off at its limit of tokens",
    "too_long": "the reply is longer than any annotation",
    "no_tags": "none of the tags is in the reply",
    "no_type": "there are tags, but neither a type nor 'no fact'",
    "unknown_type": "what follows the type tag is not exactly one of the three types",
    "within_words": "the deciding tag stands in the middle of other words",
    "repeated_type": "more than one type, or a type and 'no fact'",
    "contradicts_itself": "a sentence without hallucination has a correction, or words that speak of one",
    "bad_correction": "a correction is not of the form \"from\" to \"to\"",
    "points_and_none": "reference points, and the tag that says there are none",
    "forged_tag": "a tag with the words around it stands in the text that was to be judged",
    "correction_not_in_sentence": "the words that a correction replaces are not in the sentence",
    "overlapping_correction": "a correction replaces words that another one has replaced",
    "no_evidence": "supported, but nothing that was written as evidence stands in the reference",
    "no_object": "the reply is not JSON of the schema that was asked for",
    "engine_error": "the engine gave no reply, see the log",
}  # fmt: skip
"""Names of what can be wrong with a reply."""

MAX_REPLY = 20_000  # characters behind the thoughts
TYPES: dict[str, Label] = {
    "none": "supported", "nohallucination": "supported", "无": "supported", "无幻觉": "supported",
    "contradictory": "contradictory", "contradiction": "contradictory", "矛盾": "contradictory",
    "unverifiable": "unverifiable", "无法验证": "unverifiable",
    "nofact": "no_fact", "nofacts": "no_fact", "无事实": "no_fact",
}  # fmt: skip
NO_FACT = frozenset({"nofact", "nofacts", "无事实"})
_NO_POINTS = frozenset({"noreferenceinformation", "无参考信息"})
NOTHING = frozenset({"", "none", "无", "n/a", "na", "nil", "null", "nothing", "没有", "无需改正"})
# Possessive (*+): white space is given back to nobody, or a "<" before a hundred blanks takes seconds.
TAG = re.compile(r"<\s*+(/?+)\s*+([^<>\n]{1,40}?)\s*+/?+\s*+>")
_SEP = re.compile(r"<\s*+/?+\s*+sep\s*+/?+\s*+>", re.IGNORECASE)
EDGES = " \t\r\n\u3000*_`~#:：.。;；,，、!！\"“”'‘’|<>()（）[]"
_QUOTE = '["“”„‟＂「」『』]'
_CHANGE = re.compile(
    rf"(?:change\s*|replace\s*|将|把)?{_QUOTE}(?P<old>.+?){_QUOTE}\s*"
    rf"(?:to|with|->|=>|→|(?:修改|更|替换?|换)?(?:改为|改成|换成|换为|正为))\s*{_QUOTE}(?P<new>.*?){_QUOTE}"
    rf"(?=\s*[.。,，;；、]?\s*(?:$|\n|<|`)|(?:\s*[.。,，;；、]\s*|\s+)(?:and\s*|change\s*|replace\s*|[-*•]\s*|\d+[.)、]\s*)*"
    rf"(?:以及|并且?)?[将把]?{_QUOTE}|(?:以及|并且?|将|把)+{_QUOTE})",
    re.DOTALL | re.IGNORECASE,
)
_DOUBT = re.compile(
    r"contradict|unverifi|not (?:supported|verif|mention|found)|矛盾|无法验证|不一致|没有提到|未提及", re.IGNORECASE
)
"""Words with which a model takes back that a sentence is supported."""
_DENIED = re.compile(
    r"(?:\b(?:no|not|nothing|none|never|neither|without)|n['’]t)(?:\s+(?:a|any|direct(?:ly)?|real|signs?|of|in|is|to|it|"
    r"that|which|this|the|text|document|reference|source|passage)){0,4}\s+contradict\w*"
    r"|(?:没有?|不|无|未)(?:任何|明显|存在|发现|相)*(?:矛盾|不一致)",
    re.IGNORECASE,
)
"""Words that look like such doubt and say the opposite."""
_ARROW = re.compile(rf"{_QUOTE}\s*(?:to|with|->|=>|→|改为|改成)\s*{_QUOTE}", re.IGNORECASE)
_BETWEEN = re.compile(r"(?:[\s.。,，;；、`*•-]|\d{1,2}[.)、]\s|<\s*/?\s*sep\s*>|and\b|以及|并且?)+", re.IGNORECASE)
_NUMBERED = re.compile(
    r"(?:^|\n)[^\S\n]*+(?:[-*•][^\S\n]*+)?"
    r"(?:(?:Reference|参考)(?:\s*(?:point|document|文档|要点|片段))?\s*\[?\d{1,3}\]?\s*[:：]|Reference\s*[:：])",
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
    """A tag of a reply."""

    kind: str
    before: int  # where the tag before it ended
    inside: bool  # whether the text before it is that tag's value
    tag: tuple[int, int]
    value: tuple[int, int]  # what follows it up to the next tag


def neutral(text: str) -> str:
    """A text as a model is shown it: no invisible characters, ``<`` and ``>`` as ‹ and ›, lone surrogates as U+FFFD."""
    if text.isascii() and text.isprintable() and "<" not in text and ">" not in text:
        return text
    shown = (
        char if char in "\n\t\r" or char.isprintable()
        else " " if char.isspace()
        else "\ufffd" if unicodedata.category(char) == "Cs"
        else ""
        for char in text
    )  # fmt: skip
    return "".join(shown).replace("<", "‹").replace(">", "›")


def opening(reply: str) -> int:
    """Where the answer begins: behind the thoughts."""
    thought = THINKING.match(reply)
    start = thought.end() if thought else 0
    if len(reply) - start > MAX_REPLY:
        raise ParseFailure("too_long")
    if start and not reply[:start].lower().endswith(tuple(closed for _, closed in TAGS)):
        raise ParseFailure("truncated")
    if not reply[start:].strip():
        raise ParseFailure("empty")
    return start


def plain(text: str) -> str:
    """Without case, blanks and the punctuation around it."""
    return re.sub(r"[\s_\-]+", "", text.strip(EDGES)).casefold()


def parts_of(reply: str, start: int, kind_of: Callable[[str], str | None]) -> list[Part]:
    """The tags of a reply with what follows each; a closing tag ends a value, text in other brackets is text."""
    found = [("", (start, start))]
    for match in TAG.finditer(reply, start):
        if (kind := kind_of(plain(match.group(2)))) is not None:
            found.append(("closing" if match.group(1) else kind, match.span()))
    found.append(("", (len(reply), len(reply))))
    return [
        Part(kind, behind, last not in ("", "closing", "type", "nofact"), span, (span[1], end))
        for (last, (_, behind)), (kind, span), (_, (end, _)) in zip(found, found[1:], found[2:], strict=False)
        if kind != "closing"
    ]


def not_copied(reply: str, part: Part, sources: Sequence[str]) -> None:
    """A tag whose text before and behind it stands like that in a source was copied, not meant."""
    line = reply[part.before : part.tag[0]].rstrip()[-24:].rsplit("\n", 1)[-1].lstrip()
    if len(line) < 4:
        return
    wanted, *shown = (
        "".join(text.split()).casefold()
        for text in (line + reply[slice(*part.tag)], *(source for source in sources if "<" in source))
    )
    if any(wanted in text for text in shown):
        raise ParseFailure("forged_tag")


def stands_alone(reply: str, part: Part, *, behind: bool) -> None:
    """No other words may stand on the tag's line before it, unless they belong to another tag, nor ``behind`` it."""
    start, end = part.tag
    words = "" if part.inside else reply[max(part.before, reply.rfind("\n", 0, start) + 1) : start]
    if behind:
        words += reply[end : part.value[1]].split("\n", 1)[0]
    if plain(words):
        raise ParseFailure("within_words")


def fragments_in(value: str) -> list[str]:
    """The fragments in a value, without fences, list marks, opening phrases and quotes that models put around them."""
    found = []
    for piece in (piece for part in _SEP.split(value) for piece in _NUMBERED.split(part)):
        text = piece.strip().strip("`").strip()
        text = text[end_of(_OPENING, text, 0) :].rstrip(";；").strip()
        if len(text) > 1 and re.fullmatch(_QUOTE, text[0]) and re.fullmatch(_QUOTE, text[-1]):
            text = text[1:-1].strip()
        if plain(text) not in NOTHING:
            found.append(text)
    return found


def corrections_in(value: str) -> list[tuple[str, str]]:
    """The changes that follow a correction tag; none where it says so."""
    if plain(value) in NOTHING:
        return []
    found: list[tuple[str, str]] = []
    at = end_of(_BETWEEN, value, 0)
    while at < len(value):
        match = _CHANGE.match(value, at)
        if match is None or len(_ARROW.findall(match.group())) > 1:
            raise ParseFailure("bad_correction")
        found.append((match["old"], match["new"]))
        at = end_of(_BETWEEN, value, match.end())
    return found


# --- the single turn ------------------------------------------------------------------------------------

WRITTEN: dict[Label, tuple[str, str]] = {
    "supported": ("None", "无"),
    "contradictory": ("Contradictory", "矛盾"),
    "unverifiable": ("Unverifiable", "无法验证"),
}
"""What stands behind the type tag, in English and Chinese."""


@dataclass(frozen=True)
class Tagged:
    """What a reply of the single turn says, in the model's own words."""

    label: Label
    fragments: tuple[str, ...] = ()
    corrections: tuple[tuple[str, str], ...] = ()  # (from, to); "" as the second deletes
    type_span: tuple[int, int] = (0, 0)  # where the words that decide the label stand in the reply
    problems: tuple[str, ...] = ()  # "bad_correction": what was written as a correction is none, the label stands
    points: tuple[str, ...] = ()  # the sentence as the annotation itself names it, in public data


def parse_tagged(reply: str, sources: Sequence[str] = ()) -> Tagged:
    """Read a reply of the single-turn protocol; ParseFailure says why it can't be read. ``sources`` are what the model
    was shown: a tag copied out of one of them is no tag.
    """
    start = opening(reply)
    parts = parts_of(reply, start, _single_kind)
    decided = [part for part in parts if part.kind in ("type", "nofact")]
    for part in decided:
        not_copied(reply, part, sources)
    if len(decided) != 1:
        raise ParseFailure("repeated_type" if decided else "no_type" if parts else "no_tags")
    stands_alone(reply, decided[0], behind=decided[0].kind == "nofact")
    label, span = _label(reply, decided[0])
    fragments: list[str] = []
    corrections: list[tuple[str, str]] = []
    problems: list[str] = []
    points: list[str] = []
    for part in parts:
        value = reply[slice(*part.value)]
        try:
            if part.kind == "reference" and label != "no_fact":
                fragments += fragments_in(value)
            elif part.kind == "correction":
                corrections += corrections_in(value)
            elif part.kind == "point":
                points.append(value.strip())
        except ParseFailure as failure:
            problems.append(failure.name)
    if label in ("supported", "no_fact") and (corrections or problems):
        raise ParseFailure("contradicts_itself")
    if label == "supported" and _DOUBT.search(_DENIED.sub("", _beside(reply, start, parts))):
        raise ParseFailure("contradicts_itself")
    return Tagged(label, tuple(fragments), tuple(corrections), span, tuple(problems), tuple(points))


def _beside(reply: str, start: int, parts: Sequence[Part]) -> str:
    """What a reply says outside fragments, corrections and the deciding words: the model's own explanations."""
    pieces = []
    for part in parts:
        pieces.append("" if part.inside else reply[start : part.tag[0]])
        start = part.value[1]
        if part.kind in ("type", "nofact"):
            pieces.append(reply[slice(*part.value)])
    return "\n".join([*pieces, reply[start:]])


_KINDS = {
    "参考": "reference", "幻觉": "type", "改正": "correction", "要点": "point", "point": "point",
    **dict.fromkeys(NO_FACT, "nofact"),
}  # fmt: skip
_SLIPS = (("hallucination", "type", 2), ("reference", "reference", 1), ("correction", "correction", 1))
"""What tags are by their names, and names of which public data have so many letters wrong."""


def _single_kind(name: str) -> str | None:
    """What a tag of the single-turn protocol is; None for any other text in angle brackets."""
    near = (kind for word, kind, slips in _SLIPS if OSA.distance(name, word, score_cutoff=slips) <= slips)
    return _KINDS.get(name) or next(near, None)


def _label(reply: str, part: Part) -> tuple[Label, tuple[int, int]]:
    """The label of a type or no-fact tag, and where its words stand."""
    if part.kind == "nofact":
        return "no_fact", part.tag
    start, end = part.value
    value = reply[start:end]
    first = value.strip().split("\n", 1)[0]  # an explanation may follow on lines of its own
    for text in (value, first):
        if (label := TYPES.get(plain(text))) is not None:
            begin = start + value.index(text) + len(text) - len(text.lstrip(EDGES))
            return label, (begin, begin + len(text.strip(EDGES)))
    raise ParseFailure("unknown_type")


def write_tagged(
    label: Label, fragments: Sequence[str] = (), corrections: Sequence[tuple[str, str]] = (), language: str = "en"
) -> str:
    """An annotation as the single-turn protocol writes it, in Chinese tags for "zh"; ``parse_tagged`` reads it back."""
    chinese = language == "zh"
    if label == "no_fact":
        return "<无事实>" if chinese else "<No Fact>"
    lines = []
    if fragments:
        lines.append(("<参考>" if chinese else "<Reference> ") + "<SEP>".join(neutral(f) for f in fragments))
    lines.append(f"<幻觉>{WRITTEN[label][1]}" if chinese else f"<Hallucination> {WRITTEN[label][0]}")
    if corrections:
        form = "“{}”改为“{}”" if chinese else '"{}" to "{}"'
        changes = [form.format(neutral(old), neutral(new)) for old, new in corrections]
        lines.append(("<改正>" if chinese else "<Correction> ") + "\n".join(changes))
    return "\n".join(lines)


# --- several sentences as an object ------------------------------------------------------------------------


class _Object(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Change(_Object):
    old: str = Field(alias="from")
    to: str


class _Judged(_Object):
    number: int
    evidence: list[str]
    type: Literal["supported", "contradictory", "unverifiable", "no_fact"]
    corrections: list[_Change]


class _Reply(_Object):
    sentences: list[_Judged]


SCHEMA: dict[str, Any] = _Reply.model_json_schema()
"""JSON schema of a reply about several sentences."""


def parse_object(reply: str) -> dict[int, Tagged]:
    """What a JSON reply says of each sentence, by its number, those left out about which it contradicts itself;
    ParseFailure where it is not of ``SCHEMA``, or has a number twice.
    """
    try:
        rows = _Reply.model_validate_json(reply[opening(reply) :]).sentences
    except ValidationError:
        raise ParseFailure("no_object") from None
    found = {}
    for row in rows:
        changes = tuple((change.old, change.to) for change in row.corrections)
        evidence = tuple(text for text in row.evidence if plain(text) not in NOTHING)
        if not changes or row.type in HALLUCINATED:
            found[row.number] = Tagged(row.type, () if row.type == "no_fact" else evidence, changes)
    if len({row.number for row in rows}) < len(rows):
        raise ParseFailure("no_object")
    return found


# --- the three turns; words without brackets count only if they are the whole reply ---------------------------


def parse_facts(reply: str, sources: Sequence[str] = ()) -> tuple[bool, tuple[int, int]]:
    """Read the first of three turns: whether the sentence states a fact, and where the reply says so."""
    facts = {**dict.fromkeys(NO_FACT, False), "factspresent": True, "factpresent": True, "有事实": True}
    return _one_of(reply, facts, sources)


def parse_points(reply: str) -> tuple[str, ...]:
    """Read the second of three turns: the reference points, none where the reply says that there are none."""
    whole = reply[opening(reply) :]
    text = TAG.sub(lambda match: "" if plain(match[2]) in _NO_POINTS else match[0], whole)
    none, fragments = text != whole or plain(text) in _NO_POINTS, fragments_in(text)
    if text != whole and fragments:
        raise ParseFailure("points_and_none")
    if not (none or fragments or plain(text) in NOTHING - {""}):
        raise ParseFailure("empty")
    return () if none else tuple(fragments)


def parse_type(reply: str, sources: Sequence[str] = ()) -> tuple[Label, tuple[int, int]]:
    """Read the last of three turns: the label, and where the reply says so."""
    names = {name: label for name, label in TYPES.items() if label != "no_fact" and name not in ("none", "无")}
    return _one_of(reply, names, sources)


def _one_of(reply: str, names: Mapping[str, T], sources: Sequence[str]) -> tuple[T, tuple[int, int]]:
    """The one answer that a turn gives: a tag of ``names``, or such a name as the whole reply."""
    start = opening(reply)
    parts = parts_of(reply, start, lambda name: name if name in names else None)
    for part in parts:
        not_copied(reply, part, sources)
    if len({names[part.kind] for part in parts}) > 1:
        raise ParseFailure("repeated_type")
    for part in parts:
        stands_alone(reply, part, behind=True)
    if parts:
        return names[parts[0].kind], parts[0].tag
    body = reply[start:]
    if plain(body) not in names:
        raise ParseFailure("no_tags")
    begin = start + len(body) - len(body.lstrip(EDGES))
    return names[plain(body)], (begin, begin + len(body.strip(EDGES)))


# --- where fragments and corrections stand ---------------------------------------------------------------------

LEAST = 0.8
"""Indel similarity (rapidfuzz ``ratio`` / 100) from which on a piece of the reference counts as what was copied."""
FEWEST = 8  # characters of a fragment that may be looked for by similarity; shorter ones are similar to anything
BLOCK = 3  # characters in a row that must be shared to belong to a loose copy
_QUOTES = {**dict.fromkeys("“”„‟〝〞＂「」『』«»", '"'), **dict.fromkeys("‘’‚‛`´＇′", "'")}
_DASHES = frozenset("‐‑‒–—―−－")
_BRACKETS = {"‹": "<", "›": ">"}

ALIKE = 0.8  # share of common content words from which on two texts claim the same, or the opposite
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_HAN = re.compile("[\u3400-\u9fff]+")
_NOT = re.compile(
    "(?!不[断仅但久]|(?<!通)不过|非洲|(?<![并绝])非常(?![任规])|无锡|未来(?!过)|没收(?!到))[不没未无非]|(?<![是能可])否"
)

Run = tuple[int, int]


def locate_fragment(fragment: str, reference: str, runs: Sequence[Run]) -> Fragment | None:
    """The piece of the reference that a model copied from the ``runs`` it was shown, or with a ``match`` of at least
    ``LEAST`` to what it wrote; None where there is none.
    """
    for start, end in runs:
        if fragment and (at := reference.find(fragment, start, end)) >= 0:
            return Fragment(fragment, at, at + len(fragment))
    wanted, _ = folded(fragment)
    if not wanted:
        return None
    for start, end in runs:
        text, origin = folded(reference[start:end])
        if (at := text.find(wanted)) >= 0:
            return _piece(reference, start, origin, at, at + len(wanted), 1.0)
    best: Fragment | None = None
    for start, end in runs if len(wanted) >= FEWEST else ():
        text, origin = folded(reference[start:end])
        found = fuzz.partial_ratio_alignment(wanted, text, score_cutoff=100 * LEAST)
        if found is None or found.dest_start >= found.dest_end:
            continue
        a, b = found.dest_start, found.dest_end
        # An alignment is never longer than what is looked for: all that the two share around it is tried as well.
        pad = len(wanted) // 4 + len(wanted) - (b - a)
        low = max(0, a - pad)
        blocks = Indel.editops(wanted, text[low : b + pad]).as_matching_blocks()
        shared = [(low + block.b, low + block.b + block.size) for block in blocks if block.size >= BLOCK]
        spans = [(a, b), (shared[0][0], shared[-1][1])] if shared else [(a, b)]
        for a, b in (_whole_words(text, *span) for span in spans):
            match = fuzz.ratio(wanted, text[a:b]) / 100
            if match >= LEAST and (best is None or match > best.match):
                best = _piece(reference, start, origin, a, b, match)
    return best


def locate_fragments(written: Sequence[str], reference: str, runs: Sequence[Run]) -> tuple[list[Fragment], list[str]]:
    """What a model copied, whole or line by line (opening words stand on lines of their own), and what it did not."""
    found: list[Fragment] = []
    missing: list[str] = []
    for text in written:
        whole = locate_fragment(text, reference, runs)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        pieces = [whole] if whole or len(lines) < 2 else [locate_fragment(line, reference, runs) for line in lines]
        for own, piece in zip(lines if len(pieces) > 1 and any(pieces) else [text], pieces, strict=False):
            own = restored(own, reference)
            if piece is None:
                missing.append(own)
            else:
                found.append(replace(piece, written="" if own == piece.text else own))
    return list(dict.fromkeys(found)), list(dict.fromkeys(missing))


def stands(fragment: Fragment, sentence: str, question: str = "") -> bool:
    """Whether a located fragment can be evidence that a sentence, the answer to a question, is true.

    The piece of the reference must have the numbers and as many negations as the model wrote, and a content word of
    sentence or question where all are in one script. It must not be the sentence with a negation more or less: the same
    words (``ALIKE`` of each side's) and another number of negations.
    """
    text, written = folded(fragment.text)[0], folded(fragment.written or fragment.text)[0]
    if _NUMBER.findall(written) != _NUMBER.findall(text) or _negations(written) != _negations(text):
        return False
    words, of_sentence = _content(fragment.text), _content(sentence)
    claimed = of_sentence | _content(question)
    if claimed and not words & claimed and bool(_HAN.search(text)) == bool(_HAN.search(sentence)):
        return False
    same = len(words & of_sentence) >= ALIKE * max(len(words), len(of_sentence))
    return not same or _negations(text) == _negations(folded(sentence)[0])


def _negations(text: str) -> int:
    words = words_of(text).lower
    only = sum(pair == ("not", "only") for pair in pairwise(words))  # which takes nothing back
    return sum(word in NEGATIONS for word in words) - only + len(_NOT.findall(text))


def _content(text: str) -> frozenset[str]:
    """The words of a text that say something: stems of English ones, Chinese ones of two characters or more."""
    words = words_of(text)
    kept = (
        stem for stem, word, content in zip(words.stems, words.lower, words.content, strict=True)
        if content and word not in NEGATIONS and not _HAN.search(word)
    )  # fmt: skip
    return frozenset(kept) | {
        word for run in _HAN.findall(_NOT.sub(" ", text)) for word in chinese_words(run) if len(word) > 1
    }


def locate_words(words: str, sentence: str) -> Run | None:
    """Where a correction's words stand in the sentence: the first place, or None."""
    if not words.strip():
        return None
    if (at := sentence.find(words)) >= 0:
        return at, at + len(words)
    wanted, (text, origin) = folded(words)[0], folded(sentence)
    at = text.find(wanted) if wanted else -1
    return None if at < 0 else (origin[at], origin[at + len(wanted) - 1] + 1)


def restored(text: str, *sources: str) -> str:
    """A model's words with the angle brackets that ``neutral`` took out of the sources."""
    for char, sign in _BRACKETS.items():
        if char in text and not any(char in source for source in sources) and any(sign in s for s in sources):
            text = text.replace(char, sign)
    return text


@lru_cache(maxsize=256)
def folded(text: str) -> tuple[str, tuple[int, ...]]:
    """A text without what a copy may change, and for each of its characters the offset that it came from.

    Runs of blanks are one (none at the ends), letters small, compatibility forms folded (NFKC), quotes and dashes
    alike.
    """
    kept: list[str] = []
    origin: list[int] = []
    for place, char in enumerate(text):
        if char.isspace():
            piece = " " if kept and kept[-1] != " " else ""
        elif char.isascii():
            piece = "'" if char == "`" else char.lower() if char.isprintable() else ""
        else:
            shown = _QUOTES.get(char) or _BRACKETS.get(char) or ("-" if char in _DASHES else neutral(char).strip())
            piece = "".join(c for c in unicodedata.normalize("NFKC", shown).casefold() if not c.isspace())
        kept.extend(piece)
        origin.extend([place] * len(piece))
    if kept and kept[-1] == " ":
        kept.pop()
        origin.pop()
    return "".join(kept), tuple(origin)


def _piece(reference: str, offset: int, origin: Sequence[int], a: int, b: int, match: float) -> Fragment:
    start, end = offset + origin[a], offset + origin[b - 1] + 1
    return Fragment(reference[start:end], start, end, match)


def _whole_words(text: str, a: int, b: int) -> Run:
    """The span with the words that it cuts, without blanks around it; Chinese characters are words of their own."""
    while a > 0 and _joins(text[a - 1]) and _joins(text[a]):
        a -= 1
    while b < len(text) and _joins(text[b - 1]) and _joins(text[b]):
        b += 1
    piece = text[a:b].rstrip()
    return a + len(piece) - len(piece.lstrip()), a + len(piece)


def _joins(char: str) -> bool:
    return char.isalnum() and char < "\u2e80"
