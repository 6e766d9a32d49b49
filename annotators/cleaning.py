"""Text as an annotator reads it: without invisible characters, compatibility forms folded, nothing forged.

A zero-width space inside a year, a full-width digit or a control character must not change a verdict. Judgements
are made on the clean text; offsets always point into the text as it came.
"""

from __future__ import annotations

import unicodedata

_KEEP = frozenset("\t\n\r ")
_DROP = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


def clean(text: str) -> tuple[str, list[int]]:
    """Drop control, format and surrogate characters and fold compatibility forms (NFKC), character by character.

    Returns:
        The clean text and, for each of its characters, the offset of the one in ``text`` that it came from.
    """
    if text.isascii() and text.isprintable():
        return text, list(range(len(text)))
    kept: list[str] = []
    origin: list[int] = []
    for i, char in enumerate(text):
        if char in _KEEP or (char < "\x7f" and char >= " "):
            folded = char
        elif unicodedata.category(char) in _DROP:
            continue
        else:
            folded = unicodedata.normalize("NFKC", char)
        kept.append(folded)
        origin.extend([i] * len(folded))
    return "".join(kept), origin


def original_span(origin: list[int], start: int, end: int) -> tuple[int, int]:
    """The span of the text as it came that holds characters start to end of the clean text (end excluded)."""
    if start >= end:
        raise ValueError(f"span: expected start < end, got {start} and {end}")
    return origin[start], origin[end - 1] + 1
