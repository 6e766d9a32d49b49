"""Candidate corrections of a hallucinated sentence: its fragments' words in place of its own, or a clause deleted.

Only proposes; the annotator judges each edited sentence again and keeps an edit when the verdict improves.
Proposals never touch text outside the sentence and are ordered from the least change to the largest.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise

from annotators.lexical import Words, words_of
from annotators.wordlists import MONTHS, NEGATIONS

VERSION = 1
"""Raised whenever a constant or rule changes, since records depend on it."""
MAX_CANDIDATES = 6
LONGEST = (3, 4)
"""Words of a sentence, and of a fragment, that are exchanged at most between equal neighbours."""
NEIGHBOURS = 3
"""Words on either side of them that count: two, one of them of content, must be the same."""
UNSUPPORTED_SHARE = 0.5
"""Of the content words of a clause that is deleted: so many are unsupported, so that little else is lost with them."""
_CLAUSE = re.compile(
    r"\s*[,;:–—]\s*|\s+(?=(?:and|but|which|who|where|while|because|although|whereas|making|with)\s)|\s*\(|\)\s*"
)
_STOP = re.compile(r"[.!?;。！？；]\s")
_ADJUNCT = re.compile(
    r"\s+(?:in|on|by|since|until|from|at|with|for|of|to|near|after|before|during)\s+$", re.IGNORECASE
)


@dataclass(frozen=True)
class Candidate:
    """One way to mend a sentence: ``sentence[start:end]`` becomes ``target``, for each edit, in order of offset."""

    edits: tuple[tuple[int, int, str], ...]

    def apply(self, sentence: str) -> str:
        """The edited sentence."""
        out = sentence
        for start, end, target in reversed(self.edits):
            out = out[:start] + target + out[end:]
        return out


@dataclass(frozen=True)
class Unit:
    """A number, month or run of name words: what can be exchanged for its like."""

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


def _counterpart(unit: Unit, others: Sequence[tuple[Unit, str]]) -> tuple[str, bool] | None:
    """The text of the same kind that alone could stand in the unit's place; None where there is none or several.

    Of several, the one with the same neighbouring word before or after decides, if only one has it.

    Returns:
        (text, whether a neighbouring word is the same).
    """
    texts = {text for other, text in others if other.kind == unit.kind}
    near = {
        text
        for other, text in others
        if other.kind == unit.kind
        and ((other.after and other.after == unit.after) or (other.before and other.before == unit.before))
    }
    if len(near) == 1:
        return near.pop(), True
    return (texts.pop(), False) if len(texts) == 1 and not near else None


def counterparts(sentence: str, fragments: Sequence[str]) -> list[tuple[Unit, str, bool]]:
    """Each number, year, month or name that the fragments lack, with its unambiguous counterpart there.

    Returns:
        (unit of the sentence, text of the counterpart, whether a neighbouring word is the same).
    """
    own = units(sentence)
    known = {stem for fragment in fragments for stem in words_of(fragment).stems}
    own_stems = {stem for unit in own for stem in unit.key}
    others = [
        (unit, fragment[unit.start : unit.end])
        for fragment in fragments
        for unit in units(fragment)
        if not set(unit.key) <= own_stems
    ]
    found = [
        (unit, *match)
        for unit in own
        if not set(unit.key) <= known and (match := _counterpart(unit, others)) is not None
    ]
    kept = []
    for unit, target, near in found:
        rivals = [rival for other, text, rival in found if other is not unit and text == target]
        if not rivals or (near and not any(rivals)):  # one text, one place
            kept.append((unit, target, near))
    return kept


def replacements(sentence: str, fragments: Sequence[str]) -> list[Candidate]:
    """Exchange each unit that the fragments lack for its counterpart: singly, then all together."""
    edits = [(unit.start, unit.end, target) for unit, target, _ in counterparts(sentence, fragments)]
    single = [Candidate((edit,)) for edit in edits]
    return [*single, Candidate(tuple(edits))] if len(edits) > 1 else single


def exchanges(sentence: str, fragments: Sequence[str], missing: Sequence[bool]) -> list[Candidate]:
    """A fragment's words, or none, in place of a few that stand between the same words there; the fewest first.

    Among the words that go is one that is unsupported, that the fragments lack, or that denies.

    Args:
        sentence: The sentence.
        fragments: Its evidence.
        missing: For each word of ``words_of(sentence)`` whether it is unsupported.
    """
    own = words_of(sentence)
    known = {stem for fragment in fragments for stem in words_of(fragment).stems}
    wrong = [
        lost or (own.content[i] and own.stems[i] not in known) or own.lower[i] in NEGATIONS
        for i, lost in enumerate(missing)
    ]
    found: list[tuple[int, Candidate]] = []
    for fragment in fragments:
        other = words_of(fragment)
        blocks = SequenceMatcher(None, own.stems, other.stems, autojunk=False).get_opcodes()
        for n, (tag, a, b, c, d) in enumerate(blocks):
            if tag not in ("replace", "delete") or b - a > LONGEST[0] or d - c > LONGEST[1] or not n:
                continue
            after = blocks[n + 1][2] if n + 1 < len(blocks) else b
            before = blocks[n - 1][1]
            around = [*range(max(before, a - NEIGHBOURS), a), *range(b, min(after, b + NEIGHBOURS))]
            if len(around) < 2 or not any(own.content[i] for i in around) or not any(wrong[a:b]):
                continue
            if tag == "delete":
                edit = (own.ends[a - 1], own.ends[b - 1], "")
            elif _STOP.search(fragment, other.starts[c], other.ends[d - 1]):
                continue  # it would become two sentences
            else:
                edit = (own.starts[a], own.ends[b - 1], fragment[other.starts[c] : other.ends[d - 1]])
            found.append((b - a + d - c, Candidate((edit,))))
    found.sort(key=lambda each: each[0])
    return [candidate for _, candidate in found]


def deletions(sentence: str, missing: Sequence[bool]) -> list[Candidate]:
    """Deletion of single clauses and adjuncts of mostly unsupported words, the smallest first.

    Args:
        sentence: The sentence.
        missing: For each word of ``words_of(sentence)`` whether it is unsupported.
    """
    words = words_of(sentence)
    core_end = len(sentence.rstrip(" .!?\"'”’"))
    cuts = [(m.start(), m.end()) for m in _CLAUSE.finditer(sentence, 0, core_end)]
    edges = [(0, 0), *cuts, (core_end, core_end)]
    spans: set[tuple[int, int]] = set()
    for (left, after), (right, beyond) in pairwise(edges):
        if left == 0 and after == 0:
            continue  # never the opening clause
        opening, closing = sentence[left:after].strip(), sentence[right:beyond].strip()
        if closing == ")" or (opening == "," and closing == ","):
            right = sentence.index(closing, right) + 1
        spans.add((left, right))
    for i, lost in enumerate(missing):
        if not lost:
            continue
        before = _ADJUNCT.search(sentence, 0, words.starts[i])
        if before:
            whole = [unit.end for unit in units(sentence) if unit.start <= words.starts[i] < unit.end]
            start, end = before.start(), max([words.ends[i], *whole])
            # Where more is unsupported, taking the adjunct away leaves another false sentence.
            if all(start <= words.starts[j] < end for j, other in enumerate(missing) if other):
                spans.add((start, end))
    kept = []
    for start, end in sorted(spans, key=lambda span: (span[1] - span[0], span)):
        inside = [i for i in range(len(words)) if start <= words.starts[i] < end]
        content = [missing[i] for i in inside if words.content[i]]
        if len(inside) > 0.7 * len(words) or sum(content) < max(1, UNSUPPORTED_SHARE * len(content)):
            continue
        kept.append(Candidate(((start, end, ""),)))
    return kept


def torn(text: str) -> bool:
    """Whether a text has half of a pair of brackets or quotation marks, or two commas where one was."""
    pairs = (("(", ")"), ("[", "]"), ("“", "”"), ("«", "»"))
    return (
        any(text.count(a) != text.count(b) for a, b in pairs)
        or text.count('"') % 2 == 1
        or re.search(r"[,;:]\s*[,;:]", text) is not None
    )


def candidates(sentence: str, fragments: Sequence[str], missing: Sequence[bool]) -> list[Candidate]:
    """Proposals for a sentence, at most MAX_CANDIDATES: exchanges between equal words, counterparts, deletions."""
    found = [
        *exchanges(sentence, fragments, missing),
        *replacements(sentence, fragments),
        *deletions(sentence, missing),
    ]
    if not torn(sentence):
        found = [candidate for candidate in found if not torn(candidate.apply(sentence))]
    return list(dict.fromkeys(found))[:MAX_CANDIDATES]
