"""The report as one HTML page: self-contained, without scripts, and safe whatever the records hold.

Everything from a record is escaped text inside an element that isolates its direction; a policy in the page
forbids scripts, remote content and any style but its own. The text content of an element equals the
record's text; only NUL and lone surrogates, which HTML cannot hold, appear as the sign of a hidden
character. Hidden characters show their code point beside them. A page of many records shows those with the
most hallucinated sentences; the totals always count all.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import html
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from mitigate.io import whole_file
from mitigate.report.totals import (
    HALLUCINATED,
    HIDDEN,
    KINDS,
    LABELS,
    MARKS,
    MEANING,
    NOT_CHECKED,
    REASONS,
    WORDS,
    Record,
    Totals,
    kind_of,
    merge,
    name_of,
    one_line,
    percent,
    probability_of,
    reason_of,
)

MAX_RECORDS = 200  # shown in one page
MAX_CHARACTERS = 12_000_000  # of HTML in one page, so that a browser still opens it
MAX_REFERENCE = 50_000  # characters shown of a reference; its fragments are shown whole
MAX_CELLS = 60  # sentences in the strip of one record in the overview
Mark = tuple[int, int, str]  # start, end, opening tag; closed by its name


def escape(text: str) -> str:
    """Text as HTML whose text content is that text again, hidden characters shown by their code point."""
    escaped = html.escape(text)
    if text.isprintable():
        return escaped
    return HIDDEN.sub(_hidden, escaped).replace("\r", "&#13;")  # else it would be read as a line feed


def _hidden(found: re.Match[str]) -> str:
    char = found.group()
    inner = "\ufffd" if char == "\0" or "\ud800" <= char <= "\udfff" else char
    return f'<span class="hidden" data-name="{name_of(char)}">{inner}</span>'


def marked(text: str, marks: Sequence[Mark], start: int = 0) -> str:
    """Escaped text with tags around pieces; marks are in order, without overlap, counted from ``start``."""
    parts, cursor = [], 0
    for low, high, tag in marks:
        name = tag[1:].split(" ", 1)[0].rstrip(">")
        parts += [escape(text[cursor : low - start]), tag, escape(text[low - start : high - start]), f"</{name}>"]
        cursor = high - start
    return "".join(parts) + escape(text[cursor:])


def write_page(
    path: Path, records: Callable[[], Iterable[Record]], totals: Totals, *, rejected: int = 0, full_output: str = ""
) -> None:
    """Write the page whole, or leave an old one untouched.

    Args:
        path: The page; its folder exists.
        records: Gives the annotated records, called twice, so that they need not fit in memory.
        totals: Counts over all of them.
        rejected: Input lines that were rejected.
        full_output: Name of the file that holds all records, for the note when the page cannot.

    Raises:
        OSError: The page cannot be written.
    """
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(_page(records, totals, rejected, full_output))


def page_start(title: str, *, more_style: str = "", images: bool = False) -> str:
    """A page up to <body>, with a policy that allows its own style and nothing else.

    Args:
        title: Of the page.
        more_style: CSS after the report's own.
        images: Whether the page holds images as data.
    """
    style = (Path(__file__).parent / "report.css").read_text(encoding="utf-8") + more_style
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    allowed = "img-src data:; " if images else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"{allowed}style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
    )


def _page(records: Callable[[], Iterable[Record]], totals: Totals, rejected: int, full_output: str) -> Iterator[str]:
    chosen = _choose(records)
    cards: list[str] = []
    rows: list[str] = []
    size = 0
    for number, record in enumerate(records(), start=1):
        if number in chosen:
            card = _card(record, number)
            if not cards or size + len(card) <= MAX_CHARACTERS:
                cards.append(card)
                rows.append(_overview_row(record, number))
                size += len(card)
    yield page_start("Hallucination report")
    yield _header(totals, rejected)
    if len(cards) < totals.records:
        where = f" All are in <code>{escape(full_output)}</code>." if full_output else ""
        yield (
            f'<p class="note" id="left-out">This page shows {len(cards):,} of {totals.records:,} records: '
            f"those with the most hallucinated sentences, in input order. The totals count all.{where}</p>\n"
        )
    if len(cards) > 1:
        yield '<nav><h2>Records</h2>\n<ol class="overview">\n'
        yield from rows
        yield "</ol></nav>\n"
    yield "<main>\n"
    yield from cards
    yield "</main>\n</body>\n</html>\n"


def _choose(records: Callable[[], Iterable[Record]]) -> set[int]:
    """Numbers (from 1) of the records to show: all, or the worst."""

    def rank() -> Iterator[tuple[int, int]]:
        for number, record in enumerate(records(), start=1):
            yield sum(s["label"] in HALLUCINATED for s in record["sentences"]), -number

    return {-number for _, number in heapq.nlargest(MAX_RECORDS, rank())}


def bar(shares: Sequence[tuple[str, float]], description: str) -> str:
    """A stacked bar of (label, share); SVG attributes because the page's policy forbids style attributes."""
    parts, x = [], 0.0
    for kind, share in shares:
        if share > 0:
            parts.append(f'<rect class="{kind}" x="{1000 * x:.1f}" y="0" width="{1000 * share:.1f}" height="10"/>')
            x += share
    label = html.escape(description)
    return (
        f'<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg>"
    )


def tag(kind: str) -> str:
    """A label's word in its colour."""
    return f'<span class="tag {kind}">{WORDS[kind]}</span>'


def _header(totals: Totals, rejected: int) -> str:
    names = " ".join(
        f"Judged by <b>{escape(name)}</b> <code>{escape(fingerprint)}</code>"
        for fingerprint, name in totals.annotators.items()
    )
    rate = percent(totals.rate) if totals.rate is not None else "–"
    detail = (
        f"{totals.hallucinated:,} of {totals.factual:,} judged factual sentences"
        if totals.factual
        else "no factual sentence was judged"
    )
    if totals.interval is not None:
        low, high = totals.interval
        detail += f"<br>95 % interval over records: {percent(low)} to {percent(high)}"
    counts = "".join(
        f"<li><div><b>{totals.kinds[kind]:,}</b>{tag(kind)}</div><small>{MEANING[kind]}</small></li>" for kind in KINDS
    )
    reasons = "; ".join(
        f"{count:,} because {REASONS.get(status, html.escape(status))}"
        for status, count in sorted(totals.reasons.items())
    )
    sentences = max(totals.sentences, 1)
    return (
        f'<header>\n<h1>Hallucination report</h1>\n<p class="by">{names}</p>\n<div class="tiles">\n'
        f'<div class="tile main"><b>{rate}</b><span>hallucination rate</span><small>{detail}</small></div>\n'
        f'<div class="tile"><b>{totals.records:,}</b><span>records</span></div>\n'
        f'<div class="tile"><b>{totals.sentences:,}</b><span>sentences</span></div>\n'
        f'<div class="tile"><b>{totals.kinds[NOT_CHECKED]:,}</b><span>not checked</span></div>\n'
        + (f'<div class="tile bad"><b>{rejected:,}</b><span>input lines rejected</span></div>\n' if rejected else "")
        + "</div>\n"
        + bar([(kind, totals.kinds[kind] / sentences) for kind in KINDS], "sentences by label")
        + f'\n<ul class="legend">{counts}</ul>\n'
        + (f'<p class="note">Not checked: {reasons}.</p>\n' if reasons else "")
        + "</header>\n"
    )


def _overview_row(record: Record, number: int) -> str:
    sentences = record["sentences"]
    cells = "".join(f'<i class="{kind}">{MARKS[kind]}</i>' for kind in map(kind_of, sentences[:MAX_CELLS]))
    more = f"<small>and {len(sentences) - MAX_CELLS:,} more</small>" if len(sentences) > MAX_CELLS else ""
    title = escape(one_line(record.get("question") or f"Record {number}", 90))
    return (
        f'<li value="{number}"><a href="#r{number}"><bdi>{title}</bdi></a>'
        f'<span class="strip">{cells}{more}</span></li>\n'
    )


def _card(record: Record, number: int) -> str:
    sentences, answer, reference = record["sentences"], record["answer"], record["reference"]
    totals = Totals()
    totals.add(record)
    name = f' <code class="id"><bdi>{escape(str(record["id"]))}</bdi></code>' if record.get("id") is not None else ""
    verdict = (
        f"{totals.hallucinated} of {totals.factual} factual sentences hallucinated"
        if totals.factual
        else "no factual sentence was judged"
    )
    if unchecked := totals.kinds[NOT_CHECKED]:
        verdict += f", {unchecked} not checked"
    marks = [
        (s["start"], s["end"], f'<a class="s {kind_of(s)}" href="#r{number}s{i}" title="{i}: {WORDS[kind_of(s)]}">')
        for i, s in enumerate(sentences, start=1)
    ]
    question = f'<h2 class="question" dir="auto">{escape(record["question"])}</h2>\n' if record.get("question") else ""
    items = "".join(_sentence(s, number, i, len(reference)) for i, s in enumerate(sentences, start=1))
    return (
        f'<article id="r{number}">\n<p class="meta"><span class="number">{number}</span>{name}'
        f"<span>{verdict}</span></p>\n{question}"
        f'<div class="answer" dir="auto">{marked(answer, marks)}</div>\n'
        f'<div class="sentences">{items}</div>\n{_reference(record)}</article>\n'
    )


def _sentence(sentence: Record, number: int, index: int, reference_length: int) -> str:
    kind, probability = kind_of(sentence), probability_of(sentence)
    spans = [
        (low, high, '<b class="span">')
        for low, high in merge([(s["start"], s["end"]) for s in sentence.get("spans") or []])
    ]
    body = []
    if kind == NOT_CHECKED:
        body.append(f"<p>Not checked: {html.escape(reason_of(sentence))}.</p>")
    if edits := sentence["correction"]:
        diff = _diff(sentence, edits)
        body.append(f'<h3>Correction</h3><p class="text" dir="auto">{diff}</p>')
    if fragments := sentence["fragments"]:
        body.append("<h3>Evidence in the reference</h3>" + "".join(_fragment(f, reference_length) for f in fragments))
    elif kind not in (NOT_CHECKED, "no_fact"):
        body.append("<p>No passage of the reference was given as evidence.</p>")
    if scores := sentence["scores"]:
        listed = ", ".join(f"{WORDS[label]} {percent(scores[label])}" for label in LABELS)
        drawn = bar([(label, scores[label]) for label in LABELS], "probabilities")
        body.append(f'<div class="scores">{drawn}<span>{listed}</span></div>')
    open_ = " open" if kind in HALLUCINATED or kind == NOT_CHECKED else ""
    value = f"<small>{percent(probability) if probability is not None else ''}</small>"
    return (
        f'<details class="{kind}"{open_}><summary><span class="index">{index}</span>{tag(kind)}{value}'
        f'<span class="text" dir="auto">{marked(sentence["text"], spans, sentence["start"])}</span></summary>'
        f'<div class="body" id="r{number}s{index}">{"".join(body)}</div></details>\n'
    )


def _diff(sentence: Record, edits: Sequence[Record]) -> str:
    """The sentence with each edit in place: what goes, then what comes."""
    text, start, parts, cursor = sentence["text"], sentence["start"], [], 0
    for edit in sorted(edits, key=lambda e: e["start"]):
        parts.append(escape(text[cursor : edit["start"] - start]))
        parts.append(f"<del>{escape(edit['from'])}</del>")
        parts.append(f"<ins>{escape(edit['to'])}</ins>" if edit["to"] else "")
        cursor = edit["end"] - start
    return "".join(parts) + escape(text[cursor:])


def _fragment(fragment: Record, reference_length: int) -> str:
    start, end = fragment["start"], fragment["end"]
    scale = 1000 / max(reference_length, 1)
    width = max(scale * (end - start), 8)  # visible however long the reference is
    place = (
        '<svg class="place" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect x="{min(scale * start, 1000 - width):.1f}" y="0" width="{width:.1f}" height="10"/></svg>'
    )
    return (
        f'<blockquote><div class="text" dir="auto">{escape(fragment["text"])}</div>'
        f"<footer>{place}characters {start:,}–{end:,} of {reference_length:,}</footer></blockquote>"
    )


def _reference(record: Record) -> str:
    reference = record["reference"]
    if not reference.strip():
        return '<p class="note">This record has no reference text.</p>'
    text = reference[:MAX_REFERENCE]
    used = merge([(f["start"], f["end"]) for s in record["sentences"] for f in s["fragments"]])
    marks = [(low, min(high, len(text)), "<mark>") for low, high in used if low < len(text)]
    cut = (
        f'<p class="note">The first {MAX_REFERENCE:,} of {len(reference):,} characters.</p>'
        if len(reference) > MAX_REFERENCE
        else ""
    )
    return (
        f'<details class="reference"><summary>Reference, {len(reference):,} characters</summary>'
        f'<div class="text" dir="auto">{marked(text, marks)}</div>{cut}</details>\n'
    )
