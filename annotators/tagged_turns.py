"""Replies of the three-turn protocol: is there a fact, which reference points bear on it, which type.

    <Facts Present>                 <No Facts>
    a point<SEP>another             <No Reference Information>
    <No Hallucination>              <Contradictory>                 <Unverifiable>

Read as strictly as ``annotators/tagged.py`` reads the single turn, in English and Chinese. A turn's words count without
brackets only if they are the whole reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from annotators.records import Label
from annotators.tagged_fields import (
    EDGES,
    NO_FACT,
    NOTHING,
    TAG,
    TYPES,
    ParseFailure,
    fragments_in,
    not_copied,
    opening,
    parts_of,
    plain,
    stands_alone,
)

T = TypeVar("T")
_FACTS = {**dict.fromkeys(NO_FACT, False), "factspresent": True, "factpresent": True, "有事实": True}
_NO_POINTS = frozenset({"noreferenceinformation", "无参考信息"})


def parse_facts(reply: str, sources: Sequence[str] = ()) -> tuple[bool, tuple[int, int]]:
    """Read the first of three turns: whether the sentence states a fact, and where the reply says so."""
    return _one_of(reply, _FACTS, sources)


def parse_points(reply: str) -> tuple[str, ...]:
    """Read the second of three turns: the reference points, none where the reply says that there are none."""
    start = opening(reply)
    marks = [match.span() for match in TAG.finditer(reply, start) if plain(match.group(2)) in _NO_POINTS]
    text = reply[start:]
    for begin, end in reversed(marks):
        text = text[: begin - start] + text[end - start :]
    fragments = fragments_in(text)
    if marks and fragments:
        raise ParseFailure("points_and_none")
    if not marks and (not fragments or plain(text) in _NO_POINTS):
        if plain(text) not in _NO_POINTS | NOTHING - {""}:
            raise ParseFailure("empty")
        return ()
    return tuple(fragments)


def parse_type(reply: str, sources: Sequence[str] = ()) -> tuple[Label, tuple[int, int]]:
    """Read the last of three turns: the label, and where the reply says so."""
    names = {
        name: label for name, label in TYPES.items() if label != "no_fact" and name not in ("none", "无")
    }
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
