"""Word differences: what a correction takes out of an answer and what it puts in.

Pieces are ("same" | "gone" | "new", text). Those that are not "new" join to the answer, those that are not "gone" to
the corrected answer, whatever the texts hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any, Literal

Piece = tuple[Literal["same", "gone", "new"], str]
MAX_WORDS = 400
"""Longer replacements are shown whole: comparing takes time in the product of the lengths."""
_WORDS = re.compile("\\s+|[\u3400-\u4dbf\u4e00-\u9fff]|\\w+|[^\\w\\s]")


def word_pieces(old: str, new: str) -> list[Piece]:
    """The difference of two texts in whole words; Chinese characters count as words."""
    a, b = _WORDS.findall(old), _WORDS.findall(new)
    if len(a) > MAX_WORDS or len(b) > MAX_WORDS:
        return [piece for piece in (("gone", old), ("new", new)) if piece[1]]
    pieces: list[Piece] = []
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            pieces.append(("same", "".join(a[a0:a1])))
            continue
        if a1 > a0:
            pieces.append(("gone", "".join(a[a0:a1])))
        if b1 > b0:
            pieces.append(("new", "".join(b[b0:b1])))
    return pieces


def edit_pieces(text: str, edits: Iterable[Mapping[str, Any]], start: int = 0) -> list[Piece]:
    """The difference that edits make to a text.

    Args:
        text: The answer, or a part of it.
        edits: {"from", "to", "start", "end"} as in a record; one that overlaps an earlier one or does not stand in the
            text is left out.
        start: Offset of ``text`` in the answer that the edits count from.
    """
    pieces: list[Piece] = []
    place = 0
    for edit in sorted(edits, key=lambda e: (e["start"], e["end"])):
        low, high = edit["start"] - start, edit["end"] - start
        if low < place or text[low:high] != edit["from"]:
            continue
        pieces += [("same", text[place:low]), *word_pieces(edit["from"], edit["to"])]
        place = high
    return [piece for piece in (*pieces, ("same", text[place:])) if piece[1]]
