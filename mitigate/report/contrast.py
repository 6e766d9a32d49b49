"""A claim against its evidence: which words differ on either side, and one sentence that says why the verdict fell so.

The words are compared, never the meaning: what is marked is where a reader should look. Nothing here judges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any

from annotators.text.sentences import without_mark
from annotators.text.words import FUNCTION_WORDS, NEGATIONS, OPPOSITES, Words, is_chinese, number_value, words_of
from mitigate.report.totals import NOT_CHECKED, UNSURE, kind_of, merge, one_line, reason_of

Pairs = list[tuple[int, int]]
NEAR = 4  # words; a longer stretch that differs is another statement, whose words stand for nothing of this one
_CHINESE = re.compile(r"\d+(?:[.,:]\d+)*|[A-Za-z]+|[^\W_]")
MAX_WORDS = 600  # of both texts: aligning takes time in the product of the lengths


@dataclass(frozen=True)
class Contrast:
    """What differs: offsets into the claim and into each passage, and (claim's words, passage's words).

    Passage's words are "" where no passage has those of the claim, claim's words where only a passage has a negation.
    """

    claim: Pairs
    passages: tuple[Pairs, ...]
    words: list[tuple[str, str]]


@lru_cache(maxsize=2048)
def contrast(claim: str, passages: tuple[str, ...]) -> Contrast:
    """Align a claim with its passages. A word that they lack is marked; its counterpart is its opposite, the number
    beside the same word, or a word of its kind at its place in the alignment.
    """
    text = "\n".join(passages)
    mark = without_mark(claim)  # whose number is none of the claim
    a, b = _words(" " * mark + claim[mark:]), _words(text)
    known, said = set(b.stems), set(a.stems)
    ours = [i for i in range(len(a)) if a.content[i] and a.stems[i] not in known]
    theirs = {j for j in range(len(b)) if b.content[j] and b.stems[j] not in said}
    place, inside = _aligned(a, b)
    partner: dict[int, int] = {}
    for i in ours:
        free = sorted(theirs - set(partner.values()))
        opposite = [j for j in free if b.lower[j] == OPPOSITES.get(a.lower[i])]
        number = [j for j in free if a.numbers[i] and b.numbers[j] and _beside(a, i) & _beside(b, j)]
        near = [j for j in free if j in place.get(i, ()) and _kind(a, i) == _kind(b, j)]
        if found := opposite or number or near:
            partner[i] = found[0]
    denied = [j for j in sorted(theirs) if b.lower[j] in NEGATIONS and j in inside and j not in partner.values()]
    marks = _joined(text, [(b.starts[j], b.ends[j]) for j in {*partner.values(), *denied}])
    starts = [sum(len(p) + 1 for p in passages[:n]) for n in range(len(passages))]
    split = tuple(
        [(x - at, y - at) for x, y in marks if at <= x and y <= at + len(p)]
        for p, at in zip(passages, starts, strict=True)
    )
    runs: Pairs = []  # of the claim's words, (first, last), whose partners stand together too
    for i in partner:
        together = runs and runs[-1][1] == i - 1 and partner[i] == partner[i - 1] + 1
        runs.append((runs.pop()[0] if together else i, i))
    words = [(claim[a.starts[i] : a.ends[k]], text[b.starts[partner[i]] : b.ends[partner[k]]]) for i, k in runs]
    words += [("", b.lower[j]) for j in denied]
    words += [(claim[x:y], "") for x, y in _joined(claim, [(a.starts[i], a.ends[i]) for i in ours if i not in partner])]
    return Contrast(_joined(claim, [(a.starts[i], a.ends[i]) for i in ours]), split, words)


def _words(text: str) -> Words:
    """English words; of a Chinese text its numbers, Latin words and other characters, which stand for themselves."""
    if not is_chinese(text):
        return words_of(text)
    found = [(m.group(), m.start(), m.end()) for m in _CHINESE.finditer(text)]
    chars, starts, ends = (tuple(column) for column in zip(*found, strict=True))
    numbers = tuple(number_value(char) if char[0].isdigit() else None for char in chars)
    content = tuple(char not in "的了是在" for char in chars)
    return Words(chars, chars, starts, ends, numbers, content, (False,) * len(chars))


def _aligned(a: Words, b: Words) -> tuple[dict[int, range], set[int]]:
    """Where each word of ``a`` that has no equal stands in ``b``, and which words of ``b`` lie between equal ones."""
    place, inside = dict[int, range](), set[int]()
    if len(a) + len(b) <= MAX_WORDS:
        matcher = SequenceMatcher(None, a.stems, b.stems, autojunk=False)
        for kind, i0, i1, j0, j1 in matcher.get_opcodes():
            if kind == "replace" and i1 - i0 <= NEAR and abs((i1 - i0) - (j1 - j0)) < 2:
                place.update(dict.fromkeys(range(i0, i1), range(j0, j1)))
            if i0 > 0 and i1 < len(a) and j1 - j0 <= NEAR:
                inside.update(range(j0, j1))
    return place, inside


def _beside(words: Words, i: int) -> set[str]:
    """The content words next to a word."""
    return {words.stems[j] for j in (i - 1, i + 1) if 0 <= j < len(words) and words.lower[j] not in FUNCTION_WORDS}


def _kind(words: Words, i: int) -> str:
    return "number" if words.numbers[i] else "name" if words.names[i] else "word"


def _joined(text: str, spans: Sequence[tuple[int, int]]) -> Pairs:
    """Spans in order; those with only spaces between are one."""
    out: Pairs = []
    for start, end in merge(spans):
        if out and not text[out[-1][1] : start].strip():
            start = out.pop()[0]
        out.append((start, end))
    return out


def reason(sentence: Mapping[str, Any], found: Contrast) -> str:
    """Why a sentence got its verdict, in one sentence made of what differs."""
    kind = kind_of(sentence)
    if kind == NOT_CHECKED:
        return f"Not checked: {reason_of(sentence['status'])}."
    if kind == "no_fact":
        return "It states nothing that a source could confirm or deny."
    if not sentence["fragments"] and kind in ("supported", "contradictory"):
        return "The annotator names no passage of the source for it."
    if not sentence["fragments"]:
        return f"{'Not sure: n' if kind == UNSURE else 'N'}o passage of the source was found that speaks of it."
    words = [(one_line(ours, 60), one_line(theirs, 60)) for ours, theirs in found.words]
    differs = [
        f"the answer says “{x}”, the source “{y}”" if x else f"the source says “{y}” here, the answer does not"
        for x, y in words if y
    ]  # fmt: skip
    missing = ", ".join(f"“{x}”" for x, _ in words[:3])
    told = "; ".join(differs[:3]) or (missing and f"the source does not have {missing}")
    if kind == "supported":
        return f"Judged supported, although {told}." if told else "The source has all of its words."
    if kind == UNSURE:
        return f"Not sure: {told or 'the words are those of the source, put together otherwise'}. Compare the two."
    if told:
        return f"{told[0].upper()}{told[1:]}."
    says = "says something else with them" if kind == "contradictory" else "does not make this statement"
    return f"The words stand in the source, but it {says}."
