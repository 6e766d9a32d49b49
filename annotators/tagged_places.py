"""Where the words of a tagged annotation stand: fragments in the reference, corrections in the sentence.

A fragment is looked for in the parts of the reference that the model was shown: as it is, then without regard to
blanks, case, kinds of quotes and compatibility forms, then the most similar piece. What is less than ``LEAST``
similar is not in the reference. A correction must be in the sentence, exactly but for the same small differences.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache

from rapidfuzz import fuzz
from rapidfuzz.distance import Indel

from annotators.records import Fragment
from annotators.tagged import neutral

LEAST = 0.8
"""Indel similarity (rapidfuzz ``ratio`` / 100) from which on a piece of the reference counts as what was copied."""
FEWEST = 8
"""Characters of a fragment that may be looked for by similarity; shorter ones are similar to anything."""
BLOCK = 3
"""Characters in a row that must be shared to belong to a loose copy."""
_QUOTES = {**dict.fromkeys("“”„‟〝〞＂「」『』«»", '"'), **dict.fromkeys("‘’‚‛`´＇′", "'")}
_DASHES = frozenset("‐‑‒–—―−－")
_BRACKETS = {"‹": "<", "›": ">"}

Run = tuple[int, int]


def locate_fragment(fragment: str, reference: str, runs: Sequence[Run]) -> Fragment | None:
    """The piece of the reference that a model copied, or None where there is none.

    Args:
        fragment: As the model wrote it.
        reference: The whole text, as it came.
        runs: Spans of the reference that the model was shown.

    Returns:
        The piece, ``match`` 1 where it was copied and else its similarity, at least ``LEAST``.
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
    for start, end in runs:
        if len(wanted) < FEWEST:
            break
        text, origin = folded(reference[start:end])
        found = fuzz.partial_ratio_alignment(wanted, text, score_cutoff=100 * LEAST)
        if found is None or found.dest_start >= found.dest_end:
            continue
        for a, b in _near(wanted, text, found.dest_start, found.dest_end):
            match = fuzz.ratio(wanted, text[a:b]) / 100
            if match >= LEAST and (best is None or match > best.match):
                best = _piece(reference, start, origin, a, b, match)
    return best


def _near(wanted: str, text: str, start: int, end: int) -> list[Run]:
    """An alignment, which is never longer than what is looked for, and its extension to all that the two share."""
    pad = len(wanted) // 4 + len(wanted) - (end - start)
    low = max(0, start - pad)
    blocks = Indel.editops(wanted, text[low : end + pad]).as_matching_blocks()
    shared = [(low + block.b, low + block.b + block.size) for block in blocks if block.size >= BLOCK]
    spans = [(start, end), *([(shared[0][0], shared[-1][1])] if shared else [])]
    return [_whole_words(text, a, b) for a, b in spans]


def locate_fragments(
    written: Sequence[str], reference: str, runs: Sequence[Run]
) -> tuple[list[Fragment], list[str]]:
    """The pieces of the reference that a model copied, and what it wrote that is not in the reference.

    What is not found as a whole is looked for line by line: models put opening words on a line of their own.
    """
    found: list[Fragment] = []
    missing: list[str] = []
    for text in written:
        whole = locate_fragment(text, reference, runs)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        pieces = (
            [whole] if whole or len(lines) < 2 else [locate_fragment(line, reference, runs) for line in lines]
        )
        found += [piece for piece in pieces if piece is not None]
        if not any(pieces):
            missing.append(restored(text, reference))
        else:
            missing += [
                restored(line, reference) for line, p in zip(lines, pieces, strict=False) if p is None
            ]
    return list(dict.fromkeys(found)), list(dict.fromkeys(missing))


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

    Runs of blanks are one blank (none at the ends), letters small, compatibility forms folded (NFKC), quotes and
    dashes of one kind, invisible characters gone.
    """
    kept: list[str] = []
    origin: list[int] = []
    for place, char in enumerate(text):
        if char.isspace():
            piece = " " if kept and kept[-1] != " " else ""
        elif char.isascii():
            piece = "'" if char == "`" else char.lower() if char.isprintable() else ""
        else:
            piece = _folded(char)
        kept.extend(piece)
        origin.extend([place] * len(piece))
    if kept and kept[-1] == " ":
        kept.pop()
        origin.pop()
    return "".join(kept), tuple(origin)


def _folded(char: str) -> str:
    if char in _QUOTES or char in _BRACKETS:
        return _QUOTES.get(char) or _BRACKETS[char]
    if char in _DASHES:
        return "-"
    shown = neutral(char).strip()
    return "".join(c for c in unicodedata.normalize("NFKC", shown).casefold() if not c.isspace())


def _piece(reference: str, offset: int, origin: Sequence[int], a: int, b: int, match: float) -> Fragment:
    start, end = offset + origin[a], offset + origin[b - 1] + 1
    return Fragment(reference[start:end], start, end, match)


def _whole_words(text: str, a: int, b: int) -> Run:
    """The span with the words that it cuts, without blanks around it; Chinese characters are words of their own."""
    while a > 0 and _joins(text[a - 1]) and _joins(text[a]):
        a -= 1
    while b < len(text) and _joins(text[b - 1]) and _joins(text[b]):
        b += 1
    while a < b - 1 and text[a] == " ":
        a += 1
    while b - 1 > a and text[b - 1] == " ":
        b -= 1
    return a, b


def _joins(char: str) -> bool:
    return char.isalnum() and char < "\u2e80"
