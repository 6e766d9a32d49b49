"""report.html of a run: the table, the curves, and each question's answers before and after, marked by label.

Built like the page of `mitigate annotate` (``mitigate/report_html.py``): self-contained, no scripts, everything from
samples escaped. The first questions of each set are shown, not chosen ones.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mitigate.report import MARKS, MEANING, WORDS, kind_of, percent
from mitigate.report_html import bar, escape, marked, page_start, tag
from mitigate.runs.judging import AFTER, BEFORE
from mitigate.runs.table import HEADINGS, by_reward, cells, judges
from mitigate.whole_file import whole_file

Rows = Sequence[Mapping[str, Any]]


def write_page(path: Path, about: str, samples: Rows, table: Rows, curves: Path, pairs: int) -> None:
    """Write the page whole.

    Args:
        path: The page.
        about: The recipe's line.
        samples: Rows of samples.jsonl.
        table: Of ``judging.compare``.
        curves: The PNG, put into the page.
        pairs: Questions of all sets to show.
    """
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(_page(about, samples, table, curves, pairs))


def _page(about: str, samples: Rows, table: Rows, curves: Path, pairs: int) -> Iterator[str]:
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    yield page_start("Before and after", more_style=style, images=True)
    yield f'<header>\n<h1>Before and after</h1>\n<p class="by">{escape(about)}</p>\n'
    yield f'<p class="by">Judged by {escape("; ".join(judges(samples)))}</p>\n'
    yield from _tiles(table)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(row)) + "</tr>\n" for row in table
    )
    yield f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'
    yield '<p class="note">Hallucinated: contradictory or unverifiable, of the factual sentences. '
    yield f"{by_reward(table)}</p>\n"
    picture = base64.b64encode(curves.read_bytes()).decode()
    yield f'<figure><img alt="Curves of the training" src="data:image/png;base64,{picture}"></figure>\n'
    legend = "".join(f"<li>{tag(kind)} <small>{MEANING[kind]}</small></li>" for kind in WORDS)
    yield f'<ul class="legend">{legend}</ul>\n</header>\n<main>\n'
    shown = _shown(samples, pairs)
    yield f"<h2>The first {len(shown)} questions</h2>\n"
    for number, (before, after) in enumerate(shown, 1):
        yield _pair(number, before, after)
    yield "</main>\n</body>\n</html>\n"


def _tiles(table: Rows) -> Iterator[str]:
    """Before → after of each set."""
    yield '<div class="tiles">\n'
    for before, after in zip(table[::2], table[1::2], strict=True):
        ends = after["interval"]
        detail = f"{after['answers']:,} answers, {after['factual']:,} factual sentences"
        detail += f"<br>95 % interval: {percent(ends[0])} to {percent(ends[1])}" if ends else ""
        yield (
            f'<div class="tile main"><b>{percent(before["rate"])} → {percent(after["rate"])}</b>'
            f"<span>hallucinated, questions {html.escape(before['set'])}</span><small>{detail}</small></div>\n"
        )
    yield "</div>\n"


def _shown(samples: Rows, pairs: int) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(before, after) of the first questions, sets in turn."""
    key = lambda row: (row["set"], row["question"], row["reference"])  # noqa: E731
    after = {key(row): row for row in samples if row["when"] == AFTER}
    both = [(row, after[key(row)]) for row in samples if row["when"] == BEFORE and key(row) in after]
    by_set: dict[str, list[Any]] = {}
    for pair in both:
        by_set.setdefault(pair[0]["set"], []).append(pair)
    each = -(-pairs // max(len(by_set), 1))
    return [pair for rows in by_set.values() for pair in rows[:each]][:pairs]


def _pair(number: int, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    columns = "".join(_answer(name, row) for name, row in (("Before", before), ("After", after)))
    reference = escape(before["reference"])
    return (
        f'<article id="q{number}">\n<p class="meta"><span class="number">{number}</span>'
        f"<span>questions {html.escape(before['set'])}</span></p>\n"
        f'<h2 class="question" dir="auto">{escape(before["question"])}</h2>\n<div class="pair">{columns}</div>\n'
        f'<details class="reference"><summary>Reference, {len(before["reference"]):,} characters</summary>'
        f'<div class="text" dir="auto">{reference}</div></details>\n</article>\n'
    )


def _answer(name: str, row: Mapping[str, Any]) -> str:
    kinds = [kind_of(sentence) for sentence in row["sentences"]]
    marks = [
        (s["start"], s["end"], f'<span class="s {kind}" title="{WORDS[kind]}">')
        for s, kind in zip(row["sentences"], kinds, strict=True)
    ]
    shares = [(kind, kinds.count(kind) / len(kinds)) for kind in WORDS] if kinds else []
    strip = " ".join(f"{MARKS[kind]}{kinds.count(kind)}" for kind in WORDS if kind in kinds)
    text = marked(row["answer"], marks) if row["answer"] else "<small>(no answer)</small>"
    return (
        f"<section><h3>{name} <small>{strip}</small></h3>{bar(shares, 'sentences by label')}"
        f'<div class="answer" dir="auto">{text}</div></section>'
    )
