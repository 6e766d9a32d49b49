"""Annotated text as HTML: the answer with a sentence to click at every judgement, the reference with its evidence.

The text content of `.answer` is the answer and that of `.reference` the reference, whatever they hold: everything from
a record is escaped, pieces that overlap are cut where they begin and end, and hidden characters (bidi controls and the
like) are named beside them by the style sheet. No attribute holds text of a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mitigate.demo.difference import Piece
from mitigate.report import WORDS, kind_of, merge
from mitigate.report_html import escape, marked

Span = tuple[int, int]
WAITING = "waiting"


def answer_html(
    record: Mapping[str, Any], waiting: Sequence[Span] = (), *, stopped: bool = False, label: str = "Answer"
) -> str:
    """The answer; each judged sentence is a button that says its number and label.

    Args:
        record: Annotated record; its sentences may be the first few only.
        waiting: Offsets of sentences without a judgement.
        stopped: Whether they will never get one.
        label: What a screen reader calls the group.
    """
    text, parts, cursor = record["answer"], [], 0
    for index, sentence in enumerate(record["sentences"]):
        start, end, kind = sentence["start"], sentence["end"], kind_of(sentence)
        spans = merge([(max(s["start"], start), min(s["end"], end)) for s in sentence.get("spans") or []])
        inner = marked(text[start:end], [(a, b, "<b>") for a, b in spans if a < b], start)
        parts += [
            escape(text[cursor:start]),
            f'<span class="s {kind}" role="button" tabindex="{-1 if index else 0}" aria-pressed="false" '
            f'data-s="{index}" title="{index + 1}: {WORDS[kind]}">{inner}</span>',
        ]
        cursor = end
    kind, title = ("not_checked", "not checked: stopped") if stopped else (WAITING, "not judged yet")
    for start, end in waiting:
        parts += [
            escape(text[cursor:start]),
            f'<span class="s {kind}" title="{title}">{escape(text[start:end])}</span>',
        ]
        cursor = end
    return (
        f'<div class="answer text" dir="auto" role="group" aria-label="{label}; arrow keys go from sentence to '
        f'sentence">{"".join(parts)}{escape(text[cursor:])}</div>'
    )


def reference_html(reference: str, sentences: Sequence[Mapping[str, Any]]) -> str:
    """The reference; every piece that is evidence says of which sentences (``data-e``)."""
    fragments = [
        (f["start"], min(f["end"], len(reference)), index)
        for index, sentence in enumerate(sentences)
        for f in sentence["fragments"]
    ]
    parts, cursor = [], 0
    for start, end, owners in flattened(fragments):
        numbers = " ".join(map(str, owners))
        parts += [
            escape(reference[cursor:start]),
            f'<mark class="e" data-e="{numbers}">{escape(reference[start:end])}</mark>',
        ]
        cursor = end
    return (
        f'<div class="reference text" dir="auto" tabindex="0" role="region" aria-label="Reference">'
        f"{''.join(parts)}{escape(reference[cursor:])}</div>"
    )


def flattened(spans: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Spans with an owner, which may overlap, as pieces that do not: (start, end, owners), in order.

    The pieces cover what the spans cover, each character once, with all that own it.
    """
    begins: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for start, end, owner in spans:
        if start < end:
            begins.setdefault(start, []).append(owner)
            ends.setdefault(end, []).append(owner)
    pieces: list[tuple[int, int, tuple[int, ...]]] = []
    open_: dict[int, int] = {}  # owner → how many of its spans are open
    last = 0
    for place in sorted(begins.keys() | ends.keys()):
        if open_:
            pieces.append((last, place, tuple(sorted(open_))))
        for owner in ends.get(place, ()):
            open_[owner] -= 1
            if not open_[owner]:
                del open_[owner]
        for owner in begins.get(place, ()):
            open_[owner] = open_.get(owner, 0) + 1
        last = place
    return pieces


def difference_html(pieces: Iterable[Piece]) -> str:
    """A word difference: what goes is struck through, what comes is underlined."""
    tags = {"same": "{}", "gone": "<del>{}</del>", "new": "<ins>{}</ins>"}
    return "".join(tags[kind].format(escape(text)) for kind, text in pieces)
