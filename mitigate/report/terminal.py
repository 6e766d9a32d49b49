"""The report in a terminal: coloured sentences, each with its evidence and correction, a table of totals, any table.

Colour is never the only cue: every label has a mark and a word. Rich leaves colour out where the output is no terminal
or NO_COLOR is set. Text of records is printed as text: no markup, no escape sequence of theirs survives.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from mitigate.report.contrast import contrast, reason
from mitigate.report.totals import (
    KINDS,
    MARKS,
    MEANING,
    NOT_CHECKED,
    UNSURE,
    WORDS,
    Record,
    Totals,
    interval_text,
    kind_of,
    one_line,
    percent,
    printable,
    probability_of,
    reason_of,
    rival_of,
    spans_of,
)

# Cyan, red and yellow are told apart with every common colour blindness, on dark and on light backgrounds.
STYLES = {
    "supported": "cyan",
    "contradictory": "bold red",
    "unverifiable": "yellow",
    "no_fact": "dim",
    UNSURE: "dim italic",
    NOT_CHECKED: "reverse dim",
}
UNDERLINED = {"contradictory": " underline", "unverifiable": " italic"}
MAX_EVIDENCE = 240  # characters shown of a fragment


def console(width: int) -> Console:
    """A console as wide as the terminal; ``width`` columns where the output is no terminal."""
    return Console(width=None if sys.stdout.isatty() else width, highlight=False)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False, **settings: Any) -> Table:
    """A table with these headings and rows; with ``right`` all columns but the first stand right and do not wrap."""
    shown = Table(**settings)
    for place, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if right and place else "left", no_wrap=right)
    for row in rows:
        shown.add_row(*row)
    return shown


def plain(text: object) -> str:
    """Text of a file, made safe to print: no terminal codes, no markup."""
    return escape("".join(c if c.isprintable() else "\ufffd" for c in str(text)))


def figure(value: float | None, digits: int = 3) -> str:
    """A number with so many digits; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def _sentence(sentence: Record, reference_length: int) -> RenderableType:
    kind = kind_of(sentence)
    probability = probability_of(sentence)
    head = f"{MARKS[kind]} {WORDS[kind]}{'' if probability is None else f' {percent(probability)}'}"
    body: list[RenderableType] = [_text(sentence, STYLES[kind].replace("reverse ", ""), UNDERLINED.get(kind, ""))]
    if kind == NOT_CHECKED:
        body.append(Text.assemble(("because ", "dim"), reason_of(sentence["status"])))
    found = contrast(sentence["text"], tuple(fragment["text"] for fragment in sentence["fragments"]))
    if kind not in ("supported", "no_fact", NOT_CHECKED):
        other = f" (or {rival})" if (rival := rival_of(sentence)) else ""
        body.append(Text.assemble(("why: ", "dim"), reason(sentence, found), (other, "dim")))
    for fragment, differing in zip(sentence["fragments"], found.passages, strict=True):
        text, place = fragment["text"], f" ({fragment['start']}–{fragment['end']} of {reference_length})"
        quote = Text(one_line(text, MAX_EVIDENCE))
        for low, high in differing:  # one_line folds white space
            start, end = (len(" ".join(printable(part).split())) for part in (text[:low] + "x", text[:high]))
            quote.stylize("bold", start - 1, end)
        body.append(Text.assemble(("evidence ", "dim"), "“", quote, "”", (place, "dim")))
    for edit in sentence["correction"]:
        line = Text.assemble(("correction ", "dim"), (f"“{one_line(edit['from'], 120)}”", "strike"), " → ")
        line.append(f"“{one_line(edit['to'], 120)}”" if edit["to"] else "(delete)", style="bold green")
        body.append(line)
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_column(width=22, no_wrap=True)
    row.add_column(ratio=1, overflow="fold")
    row.add_row(Text(head, style=STYLES[kind]), Group(*body))
    return Padding(row, (0, 0, 0, 1))


def _text(sentence: Record, style: str, marking: str) -> Text:
    """The sentence; its unsupported words are marked where they are known, else the whole of it."""
    text, spans = sentence["text"], spans_of(sentence)
    out, cursor = Text(style=style if spans else style + marking), 0
    for low, high in spans:
        out.append(printable(text[cursor:low]))
        out.append(printable(text[low:high]), style="bold" + marking)
        cursor = high
    return out.append(printable(text[cursor:]))


def summary(totals: Totals, rejected: int, paths: list[tuple[str, Path]]) -> Table:
    """The table at the end: records, sentences by label and status, rate with interval, output paths."""
    shown = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for fingerprint, name in totals.annotators.items():
        shown.add_row("annotator", Text(f"{printable(name)} ({printable(fingerprint)})"))
    for point in sorted(totals.points):
        shown.add_row("operating point", Text(printable(point)))
    shown.add_row("records", f"{totals.records:,}")
    if rejected:
        shown.add_row("rejected lines", Text(f"{rejected:,}", style="bold red"))
    shown.add_row("sentences", f"{totals.sentences:,}")
    for kind in KINDS:
        if totals.kinds[kind]:
            share = percent(totals.kinds[kind] / totals.sentences)
            label = Text(f"  {MARKS[kind]} {WORDS[kind]}", style=STYLES[kind].replace("reverse ", ""))
            shown.add_row(label, f"{totals.kinds[kind]:,}  ({share})")
    for status, count in sorted(totals.reasons.items()):
        shown.add_row(f"    {status}", Text(f"{count:,}  ({reason_of(status)})"))
    shown.add_row("hallucination rate", Text(rate_line(totals), style="bold"))
    if totals.coverage is not None:
        shown.add_row("coverage", Text(f"{percent(totals.coverage)} of the sentences that state something"))
    for word, path in paths:
        shown.add_row(word, Text(str(path)))
    return shown


def rate_line(totals: Totals) -> str:
    """The rate with its n and interval, in words."""
    if totals.rate is None:
        few = f"the judgement of {percent(totals.failed)} of the sentences failed"
        return f"not known: {few if totals.factual else 'no factual sentence was judged'}"
    if totals.undecided and totals.factual:
        return f"{totals.hallucinated:,} of {totals.factual:,} decided sentences are flagged; most are undecided"
    interval = f" ({interval_text(totals)})" if totals.interval else ""
    return f"{percent(totals.rate)} of {totals.factual:,} judged factual sentences{interval}"


def print_records(console: Console, records: list[Record]) -> None:
    """Each label with its meaning; then of every record the question and the sentences with what was found."""
    legend = Table.grid(padding=(0, 2))
    for kind in KINDS:
        legend.add_row(Text(f"{MARKS[kind]} {WORDS[kind]}", style=STYLES[kind]), Text(MEANING[kind], style="dim"))
    console.print(legend)
    console.print()
    for number, record in enumerate(records, start=1):
        title = f"{number}  {record['id']}" if record.get("id") is not None else str(number)
        console.print(Rule(Text(one_line(title, 60), style="bold"), align="left", style="dim"))
        if record.get("question"):
            console.print(Text.assemble(("Question  ", "dim"), (printable(record["question"]), "bold")))
        if not record["sentences"]:
            console.print(Text("The answer holds no sentence, so nothing was judged.", style="dim"))
        for sentence in record["sentences"]:
            console.print(_sentence(sentence, len(record["reference"])))
        console.print()
