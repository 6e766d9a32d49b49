"""HTML: the report of `mitigate annotate`, the page of a training run, and every part of them that the demo shows too.

The two pages are self-contained: everything from a record is escaped text inside an element that isolates its
direction, and a policy in the page forbids remote content and any style or script but the page's own. The text content
of an element equals the record's text, but for NUL and lone surrogates, which HTML cannot hold. ``style.css`` holds the
look of the parts, ``page.css`` that of the two pages; what the demo adds is in ``mitigate/demo``.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import html
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from mitigate.io import counted, whole_file
from mitigate.report.contrast import contrast, reason
from mitigate.report.totals import (
    HALLUCINATED,
    HIDDEN,
    KINDS,
    LABELS,
    MARKS,
    MEANING,
    NOT_CHECKED,
    STATES,
    UNSURE,
    WORDS,
    Record,
    Totals,
    interval_text,
    kind_of,
    likelihood,
    merge,
    one_line,
    percent,
    probability_of,
    reason_of,
    spans_of,
    verdict,
)

MAX_RECORDS = 200  # shown in one page
MAX_CHARACTERS = 12_000_000  # of HTML in one page, so that a browser still opens it
MAX_REFERENCE = 50_000  # characters; of a longer reference only the evidence and what stands around it is shown
AROUND = 1_000  # characters shown on either side of a fragment of a longer one
SHORT = 1_500  # characters below which a reference stands open beside two answers
MAX_WORDS = 400  # longer replacements are shown whole: comparing takes time in the product of the lengths
MAX_POINTS = 400  # of one curve; more are thinned out evenly
STYLE, PAGE_STYLE, SCRIPT = (Path(__file__).parent / name for name in ("style.css", "page.css", "page.js"))

Mark = tuple[int, int, str]  # start, end, opening tag; closed by its name
Piece = tuple[Literal["same", "gone", "new"], str]
Point = tuple[float, float]  # step, value


# --- text -----------------------------------------------------------------------------------------------------------


def escape(text: str) -> str:
    """Text as HTML whose text content is that text again, hidden characters shown by their code point."""
    escaped = html.escape(text)
    if text.isprintable():
        return escaped

    def hidden(found: re.Match[str]) -> str:
        char = found.group()
        inner = "\ufffd" if char == "\0" or "\ud800" <= char <= "\udfff" else char
        return f'<span class="hidden" data-name="U+{ord(char):04X}">{inner}</span>'

    return HIDDEN.sub(hidden, escaped).replace("\r", "&#13;")  # else it would be read as a line feed


def wrapped(opening: str, inner: str) -> str:
    """HTML between an opening tag and its closing tag."""
    return f"{opening}{inner}</{opening[1:].split(' ', 1)[0].rstrip('>')}>"


def marked(text: str, marks: Iterable[Mark]) -> str:
    """Escaped text with tags around pieces, which are in order, without overlap."""
    parts, cursor = [], 0
    for low, high, opening in marks:
        parts += [escape(text[cursor:low]), wrapped(opening, escape(text[low:high]))]
        cursor = high
    return "".join(parts) + escape(text[cursor:])


def sentence_text(sentence: Record) -> str:
    """A sentence with its unsupported words in bold."""
    return marked(sentence["text"], [(low, high, '<b class="span">') for low, high in spans_of(sentence)])


def answer_text(record: Record, opening: Callable[[int, Record], str]) -> str:
    """The answer, each sentence inside the tag that ``opening`` gives for its number (from 1)."""
    text, parts, cursor = record["answer"], [], 0
    for number, sentence in enumerate(record["sentences"], start=1):
        parts += [escape(text[cursor : sentence["start"]]), wrapped(opening(number, sentence), sentence_text(sentence))]
        cursor = sentence["end"]
    return "".join(parts) + escape(text[cursor:])


def reference_text(reference: str, sentences: Iterable[Record], name: str = "") -> str:
    """The reference; each piece that is evidence says of which sentences (from 1); ``name`` and its place are its id.

    Of a long one it shows the evidence and what stands around it, or its beginning where it has none.
    """
    fragments = [(f["start"], f["end"], i) for i, s in enumerate(sentences, start=1) for f in s["fragments"]]
    marks = []
    for low, high, numbers in flattened(fragments):
        owners = [str(number) for number in numbers]
        id_ = f' id="{name}e{low}"' if name else ""
        title = f"evidence of {', '.join(owners)}"
        marks.append((low, high, f'<mark{id_} data-e="{" ".join(owners)}" title="{title}">'))
    if len(reference) <= MAX_REFERENCE:
        return marked(reference, marks)
    around = [(max(a - AROUND, 0), min(b + AROUND, len(reference))) for a, b, _ in marks] or [(0, MAX_REFERENCE)]
    parts = [
        marked(reference[a:b], [(x - a, y - a, tag) for x, y, tag in marks if a <= x < b]) for a, b in merge(around)
    ]
    return " […] ".join(parts)


def flattened(spans: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Spans with an owner, which may overlap, as pieces that do not: (start, end, all owners), in order."""
    changes: dict[int, Counter[int]] = defaultdict(Counter)  # place → owner → how many more of its spans are open
    for start, end, owner in spans:
        if start < end:
            changes[start][owner] += 1
            changes[end][owner] -= 1
    pieces = []
    open_: Counter[int] = Counter()
    for place, following in pairwise(sorted(changes)):
        open_ += changes[place]  # drops the owners without an open span
        if open_:
            pieces.append((place, following, tuple(sorted(open_))))
    return pieces


_WORDS = re.compile("\\s+|[\u3400-\u4dbf\u4e00-\u9fff]|\\w+|[^\\w\\s]")


def word_pieces(old: str, new: str) -> list[Piece]:
    """The difference of two texts in whole words (a Chinese character is one): what is not "new" joins to the old text,
    what is not "gone" to the new one.
    """
    a, b = _WORDS.findall(old), _WORDS.findall(new)
    long = max(len(a), len(b)) > MAX_WORDS
    whole = [("replace", 0, len(a), 0, len(b))]
    pieces: list[Piece] = []
    for kind, a0, a1, b0, b1 in whole if long else SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        gone, new = "".join(a[a0:a1]), "".join(b[b0:b1])
        pieces += [("same", gone)] if kind == "equal" else [("gone", gone), ("new", new)]
    return [piece for piece in pieces if piece[1]]


def difference(text: str, edits: Iterable[Record], start: int = 0) -> str:
    """A text, at offset ``start`` of the answer, with its edits: what goes is struck through, what comes is underlined.

    An edit that overlaps an earlier one or does not stand in the text is left out.
    """
    tags = {"same": "{}", "gone": "<del>{}</del>", "new": "<ins>{}</ins>"}
    pieces, place = list[Piece](), 0
    for edit in sorted(edits, key=lambda e: (e["start"], e["end"])):
        low, high = edit["start"] - start, edit["end"] - start
        if low < place or text[low:high] != edit["from"]:
            continue
        pieces += [("same", text[place:low]), *word_pieces(edit["from"], edit["to"])]
        place = high
    pieces.append(("same", text[place:]))
    return "".join(tags[kind].format(escape(piece)) for kind, piece in pieces)


# --- labels, totals, tables -----------------------------------------------------------------------------------------


def tag(kind: str) -> str:
    """A verdict's word in its colour."""
    return f'<span class="tag {kind}">{STATES[kind]}</span>'


def bar(shares: Sequence[tuple[str, float]], description: str = "") -> str:
    """A stacked bar of (label, share in [0, 1]), in SVG because the policy of a page forbids style attributes.

    A screen reader says the description; without one the bar is hidden from it.
    """
    parts, x = [], 0.0
    for kind, share in shares:
        if share > 0:
            parts.append(f'<rect class="{kind}" x="{1000 * x:.1f}" y="0" width="{1000 * share:.1f}" height="10"/>')
            x += share
    told = f'role="img" aria-label="{html.escape(description)}"' if description else 'aria-hidden="true"'
    return f'<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" {told}>{"".join(parts)}</svg>'


def legend(kinds: Mapping[str, int] | None = None) -> str:
    """Every label with its meaning, and its number where there are numbers."""
    items = []
    for kind in KINDS:
        number = "" if kinds is None else f"<b>{kinds[kind]:,}</b>"
        found = "some" if kinds is None or kinds[kind] else "none"
        means = MEANING[kind]
        items.append(f'<li class="{found}" title="{means}"><div>{number}{tag(kind)}</div><small>{means}</small></li>')
    return f'<ul class="legend">{"".join(items)}</ul>\n'


def label_bar(kinds: Mapping[str, int]) -> str:
    """A bar of how many sentences have each label."""
    total = max(sum(kinds.values()), 1)
    return bar([(kind, kinds[kind] / total) for kind in KINDS], "sentences by label")


def counts(totals: Totals) -> str:
    """A bar and a legend: how many sentences have each label."""
    return label_bar(totals.kinds) + legend(totals.kinds)


def tile(value: str, name: str, detail: str = "", kind: str = "") -> str:
    """A figure, what it is, and how it was come by; all of it HTML."""
    return f'<div class="tile {kind}"><b>{value}</b><span>{name}</span><small>{detail}</small></div>\n'


def rate_tile(totals: Totals) -> str:
    """The hallucination rate, or where most is undecided what was flagged, and the numbers that it was made of."""
    value, name, more = percent(totals.rate), "hallucination rate", interval_text(totals, "<br>")
    detail = f"{totals.hallucinated:,} of {counted(totals.factual, 'judged factual sentence')}"
    if totals.undecided:
        value, name, more = f"{totals.hallucinated:,}", "flagged; most is undecided, so there is no rate", ""
    if totals.kinds[UNSURE]:
        detail += f"; {totals.kinds[UNSURE]:,} not sure"
    return tile(value, name, detail + more, "main")


def reasons(totals: Totals) -> str:
    """Why sentences were not checked, "" where all were."""
    found = sorted(totals.reasons.items())
    return "; ".join(f"{count:,} because {html.escape(reason_of(status))}" for status, count in found)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls where it is too wide; the cells are HTML."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>\n" for row in rows)
    return f'<div class="wide" tabindex="0"><table><thead><tr>{top}</tr></thead>\n<tbody>{body}</tbody></table></div>\n'


# --- one sentence ---------------------------------------------------------------------------------------------------


def findings(sentence: Record, reference_length: int, most: int | None = None, name: str = "") -> str:
    """What is known of a sentence: why the verdict, the claim above its evidence, its correction, its probabilities.

    Words that differ are marked on both sides. At most ``most`` characters of a fragment are shown; None shows all.
    With a ``name``, evidence links to its place in ``reference_text`` of that name.
    """
    kind, fragments = kind_of(sentence), sentence["fragments"]
    shown = [f["text"][:most] for f in fragments]
    found = contrast(sentence["text"], tuple(shown))
    body = [f'<p class="reason">{escape(reason(sentence, found))}</p>']
    if likely := likelihood(sentence):
        body.append(f'<p class="likely">{likely}</p>')
    if problems := sentence.get("problems"):
        body.append(f"<p><small>{escape('; '.join(map(str, problems))[:600])}</small></p>")
    quotes = []  # (HTML, where it is from, class)
    for f, text, spans in zip(fragments, shown, found.passages, strict=True):
        place = f"characters {f['start']:,}–{f['end']:,} of {reference_length:,}"
        more = " …" if text != f["text"] else ""
        source = f'<a href="#{name}e{f["start"]}">{place}</a>' if name else place
        quotes.append((_differing(text, spans) + more, source, "verbatim"))
    for text in sentence.get("not_verbatim") or ():
        quotes.append((escape(str(text)[:most]), "written by the annotator, not found in the reference", "foreign"))
    if quotes and kind != "no_fact":
        claim = _differing(sentence["text"], found.claim or spans_of(sentence))
        body.append(f'<h3>Answer</h3><p class="claim text" dir="auto">{claim}</p><h3>Source</h3>')
    for text, source, class_ in quotes:
        body.append(
            f'<blockquote class="{class_}"><div class="text" dir="auto">{text}</div><footer>{source}</footer>'
            "</blockquote>"
        )
    if edits := sentence["correction"]:
        changed = difference(sentence["text"], edits, sentence["start"])
        body.append(f'<h3>Correction</h3><p class="text" dir="auto">{changed}</p>')
    if scores := sentence["scores"]:
        rows = (
            f"<li><span>{STATES[k]}</span>{bar([(k, scores[k])])}<span>{percent(scores[k])}</span></li>" for k in LABELS
        )
        body.append(f'<ul class="scores">{"".join(rows)}</ul>')
    return "".join(body)


def _differing(text: str, spans: Iterable[tuple[int, int]]) -> str:
    return marked(text, [(low, high, '<b class="differs">') for low, high in spans])


def corrected(record: Record) -> str:
    """The answer with its corrections put in, and how many marked sentences have none; "" where there are none."""
    edits = [edit for s in record["sentences"] for edit in s["correction"]]
    if not edits:
        return ""
    open_ = sum(s["label"] in HALLUCINATED and not s["correction"] for s in record["sentences"])
    left = f" {counted(open_, 'marked sentence has', 'marked sentences have')} no correction." if open_ else ""
    return (
        f'<div class="corrected"><h3>Corrected answer <small>struck through: taken out; underlined: put in.{left}'
        f'</small></h3><p class="fixed text" dir="auto">{difference(record["answer"], edits)}</p></div>'
    )


# --- curves ---------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 320, 150
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 22  # margins; the left one holds the numbers of the value axis
FIRST = ("reward", "hallucinat", *LABELS)  # what the names of the curves to show first have in them


def curves_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Point]]:
    """The curve of every number that rows of metrics.jsonl hold, in order of steps, of MAX_POINTS points at most."""
    curves: dict[str, list[Point]] = defaultdict(list)
    for row in rows:
        numbers = {k: float(v) for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        numbers = {name: value for name, value in numbers.items() if math.isfinite(value)}
        if (step := numbers.pop("step", None)) is not None:
            for name, value in numbers.items():
                curves[name].append((step, value))
    for name, points in curves.items():
        last, kept = len(points) - 1, min(len(points), MAX_POINTS)
        points.sort()
        curves[name] = [points[round(i * last / max(kept - 1, 1))] for i in range(kept)]  # the first and the last stay
    return curves


def figures(curves: Mapping[str, Sequence[Point]]) -> str:
    """All curves: rewards, hallucination rates and shares of labels first, the others folded away."""
    first = sorted((name for name in curves if rank(name) < len(FIRST)), key=rank)
    others = [name for name in curves if name not in first]
    drawn = [f'<div class="curves">{"".join(figure(n, curves[n]) for n in names)}</div>' for names in (first, others)]
    if not others:
        return drawn[0] if first else ""
    folded = f"<summary>Other curves, {len(others)}</summary>{drawn[1]}</details>"
    return f"{drawn[0]}<details>{folded}" if first else f"<details open>{folded}"


def rank(name: str) -> int:
    """The place in FIRST of what a curve is about; behind all where it is about none, or a deviation."""
    name = name.lower()
    return next((i for i, part in enumerate(FIRST) if part in name and "std" not in name), len(FIRST))


def figure(name: str, points: Sequence[Point]) -> str:
    """One curve as a small SVG, from the lowest to the highest value; at least one point, in order of steps."""
    (first, start), (last, end) = points[0], points[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    floor, ceiling = (low, high) if high > low else (low - 0.5, high + 0.5)  # a flat curve lies in the middle
    across, down, ground = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM, HEIGHT - BOTTOM
    places = [
        (LEFT + across * (x - first) / max(last - first, 1e-9), TOP + down * (ceiling - y) / (ceiling - floor))
        for x, y in points
    ]
    path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    lines = "".join(f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>' for y in (TOP, ground))
    label = next((label for label in LABELS if label in name.lower()), "")
    told = f"from {short(start)} at step {short(first)} to {short(end)} at step {short(last)}"
    return (
        f"<figure><figcaption>{escape(name)}<span>{short(end)}</span></figcaption>"
        f'<svg class="curve {label}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{html.escape(name)}: {told}">{lines}'
        f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{short(ceiling)}</text>'
        f'<text x="{LEFT - 6}" y="{ground + 4}" text-anchor="end">{short(floor)}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{short(first)}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">step {short(last)}</text>'
        f'<path d="{path}"/><circle cx="{places[-1][0]:.1f}" cy="{places[-1][1]:.1f}" r="3"/></svg></figure>'
    )


def short(value: float) -> str:
    """A number in few characters: 1,200 · 0.358 · 1e-05."""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e6 else f"{value:.3g}"


# --- pages ----------------------------------------------------------------------------------------------------------


def write_page(
    path: Path, records: Callable[[], Iterable[Record]], totals: Totals, *, rejected: int = 0, full_output: str = ""
) -> None:
    """Write the report of annotated records whole, or leave an old one untouched; OutputError where it can't be.

    Of many records it shows those with the most hallucinated sentences; ``totals`` count all, and ``full_output`` names
    the file that holds all. ``records`` is called twice, so that they need not fit in memory. ``rejected`` input lines
    are told of.
    """
    _write(path, "Hallucination report", _report(records, totals, rejected, full_output))


def _write(path: Path, title: str, body: Iterable[str]) -> None:
    """Write a page whose policy allows its own style and its own script, and nothing else."""
    layout, look, script = (file.read_text(encoding="utf-8") for file in (PAGE_STYLE, STYLE, SCRIPT))
    style = look + layout
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    allowed = "style-src 'sha256-{}'; script-src 'sha256-{}'".format(*hashes)
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        file.write(
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
            f"{allowed}; base-uri 'none'; form-action 'none'\">\n"
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n"
            f'<body class="mt">\n<header>\n<h1>{html.escape(title)}</h1>\n'
        )
        file.writelines(body)
        file.write(f"</main>\n<script>{script}</script>\n</body>\n</html>\n")


FILTER = (
    '<div class="filter" hidden><input type="search" placeholder="Search" aria-label="Search the records"/>'
    '<select aria-label="Show"><option value="">All records</option>'
    '<option value="contradictory">Contradicted</option><option value="unverifiable">Not found</option>'
    '<option value="unsure">Not sure</option><option value="not_checked">Not checked</option></select>'
    '<select aria-label="Order"><option value="">In input order</option><option value="flagged">Most flagged first'
    '</option><option value="unsure">Most unsure first</option></select><output></output></div>\n'
)


def _report(records: Callable[[], Iterable[Record]], totals: Totals, rejected: int, full_output: str) -> Iterator[str]:
    ranks = (
        (sum(s["label"] in HALLUCINATED for s in record["sentences"]), -number)
        for number, record in enumerate(records(), start=1)
    )
    chosen = {-number for _, number in heapq.nlargest(MAX_RECORDS, ranks)}
    cards, rows, size = list[str](), list[str](), 0
    for number, record in enumerate(records(), start=1):
        if number in chosen:
            card = _card(record, number)
            if not cards or size + len(card) <= MAX_CHARACTERS:
                cards.append(card)
                title = escape(one_line(record.get("question") or f"Record {number}", 90))
                labels = label_bar(Counter(map(kind_of, record["sentences"])))
                rows.append(f'<li><a href="#r{number}"><bdi>{title}</bdi></a>{labels}</li>\n')
                size += len(card)
    for fingerprint, name in totals.annotators.items():
        yield f'<p class="by">Judged by <b>{escape(name)}</b> <code>{escape(fingerprint)}</code></p>\n'
    for point in sorted(totals.points):
        yield f'<p class="by">Operating point {escape(point)}</p>\n'
    yield f'<p class="verdict">{verdict(totals)}</p>\n'
    yield f'<div class="tiles">\n{rate_tile(totals)}'
    yield tile(f"{totals.records:,}", "records") + tile(f"{totals.sentences:,}", "sentences")
    yield tile(percent(totals.coverage), "coverage", "checked of all that state something")
    yield (tile(f"{rejected:,}", "input lines rejected", kind="bad") if rejected else "") + "</div>\n" + counts(totals)
    if told := reasons(totals):
        yield f'<p class="note">Not checked: {told}.</p>\n'
    yield "</header>\n"
    if len(cards) < totals.records:
        where = f" All are in <code>{escape(full_output)}</code>." if full_output else ""
        yield (
            f'<p class="note" id="left-out">This page shows {len(cards):,} of {totals.records:,} records: '
            f"those with the most hallucinated sentences, in input order. The totals count all.{where}</p>\n"
        )
    if len(cards) > 1:
        yield f'<nav>{FILTER}<h2>Records</h2>\n<ol class="overview">\n'
        yield from rows
        yield "</ol></nav>\n"
    yield "<main>\n"
    yield from cards


def _card(record: Record, number: int) -> str:
    totals = Totals.of([record])
    name = f' <code class="id"><bdi>{escape(str(record["id"]))}</bdi></code>' if record.get("id") is not None else ""

    def opening(i: int, sentence: Record) -> str:
        kind = kind_of(sentence)
        return f'<a class="s {kind}" href="#r{number}s{i}" title="{i}: {WORDS[kind]}">'

    items = "".join(
        _sentence(sentence, i, f"r{number}s{i}", len(record["reference"]))
        for i, sentence in enumerate(record["sentences"], start=1)
    )
    n_of = {**{kind: totals.kinds[kind] for kind in KINDS}, "flagged": totals.hallucinated}
    data = " ".join(f'data-{kind}="{n}"' for kind, n in n_of.items())
    return (
        f'<article id="r{number}" {data}>\n<p class="meta"><span class="number">{number}</span>{name}'
        f"<span>{verdict(totals)}</span></p>\n{_question(record)}"
        f'<div class="answer" dir="auto">{answer_text(record, opening)}</div>\n{corrected(record)}'
        f'<div class="sentences">{items}</div>\n{_reference(record["reference"], record["sentences"], f"r{number}")}'
        "</article>\n"
    )


def _question(record: Record) -> str:
    return f'<h2 class="question" dir="auto">{escape(record["question"])}</h2>\n' if record.get("question") else ""


def _sentence(sentence: Record, index: int, name: str, reference_length: int) -> str:
    kind, probability = kind_of(sentence), probability_of(sentence)
    open_ = " open" if kind in HALLUCINATED or kind == NOT_CHECKED else ""
    told = findings(sentence, reference_length, name=name.partition("s")[0])
    value = f"<small>{percent(probability) if probability is not None else ''}</small>"
    return (
        f'<details class="{kind}"{open_}><summary><span class="index">{index}</span>{tag(kind)}{value}'
        f'<span class="text" dir="auto">{sentence_text(sentence)}</span></summary>'
        f'<div class="body" id="{name}">{told}</div></details>\n'
    )


def _reference(reference: str, sentences: Iterable[Record], name: str, open_below: int = 0) -> str:
    if not reference.strip():
        return '<p class="note">This record has no reference text.</p>'
    open_ = " open" if len(reference) < open_below else ""
    return (
        f'<details class="reference"{open_}><summary>Reference, {len(reference):,} characters</summary>'
        f'<div class="text" dir="auto">{reference_text(reference, sentences, name)}</div></details>\n'
    )


def write_run_page(
    path: Path,
    *,
    about: Sequence[str],
    comparison: Sequence[Record],
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    note: str,
    metrics: Iterable[Record],
    samples: Sequence[Record],
    pairs: int,
) -> None:
    """Write the page of a training run whole: figures before and after, curves, answers side by side.

    ``about`` are lines below the title. ``comparison`` has {"set", "rate", "interval", "answers", "factual"} of each
    set, before and after in turn; with "hallucinated", "unsure" and "not_checked" too, numbers stand in the place of
    rates where most sentences have no verdict. ``head`` and ``rows`` are a table, with ``note`` below it. ``metrics``
    are the rows of metrics.jsonl, drawn as curves. Of ``samples``, the rows of samples.jsonl, the first ``pairs``
    questions are shown, over all sets; a row with "done" says that in the place of its set.
    """
    tiles = []
    for before, after in zip(comparison[::2], comparison[1::2], strict=True):
        ends = after["interval"]
        detail = f"{after['answers']:,} answers, {after['factual']:,} factual sentences"
        detail += f"<br>95 % interval: {percent(ends[0])} to {percent(ends[1])}" if ends else ""
        change, what = f"{percent(before['rate'])} → {percent(after['rate'])}", "hallucinated"
        kinds = [kind for kind in (UNSURE, NOT_CHECKED) if before.get(kind) or after.get(kind)]
        if any(sum(one[kind] for kind in kinds) > one["factual"] for one in (before, after)):  # a share of few
            change = f"{before['hallucinated']:,} → {after['hallucinated']:,}"
            what = "sentences flagged"
            detail = "<br>".join([*(f"{WORDS[kind]}: {before[kind]:,} → {after[kind]:,}" for kind in kinds), detail])
        tiles.append(tile(change, f"{what}, questions {escape(before['set'])}", detail, "main"))
    by_set: dict[str, list[tuple[Record, Record]]] = defaultdict(list)
    for first, second in _pairs(samples):
        by_set[first["set"]].append((first, second))
    each = -(-pairs // max(len(by_set), 1))  # of one set, rounded up
    shown = [pair for found in by_set.values() for pair in found[:each]][:pairs]
    body = (
        *(f'<p class="by">{escape(line)}</p>\n' for line in about),
        f'<div class="tiles">\n{"".join(tiles)}</div>\n',
        table([*map(escape, head)], ([*map(escape, row)] for row in rows)),
        f'<p class="note">{escape(note)}</p>\n{figures(curves_of(metrics))}\n{legend()}</header>\n<main>\n',
        f"<h2>The first {len(shown)} questions</h2>\n",
        *(_pair(number, before, after) for number, (before, after) in enumerate(shown, start=1)),
    )
    _write(path, "Before and after", body)


def _pairs(samples: Iterable[Record]) -> list[tuple[Record, Record]]:
    """Answers before and after of the same question, in the order of samples.jsonl."""
    sides: dict[str, dict[str, list[Record]]] = defaultdict(lambda: {"before": [], "after": []})
    for row in samples:
        if isinstance(row.get("answer"), str) and row.get("when") in ("before", "after"):
            key = str([row.get(name) for name in ("set", "id", "question", "reference")])
            sides[key][row["when"]].append(row)
    return [pair for both in sides.values() for pair in zip(both["before"], both["after"], strict=False)]


def _pair(number: int, before: Record, after: Record) -> str:
    columns = ""
    for name, row in (("Before", before), ("After", after)):
        kinds = Counter(map(kind_of, row["sentences"]))
        numbers = " ".join(f"{MARKS[kind]}{kinds[kind]}" for kind in KINDS if kinds[kind])
        text = answer_text(row, lambda _, s: f'<span class="s {kind_of(s)}" title="{WORDS[kind_of(s)]}">')
        columns += (
            f"<section><h3>{name} <small>{numbers}</small></h3>{label_bar(kinds)}"
            f'<div class="answer" dir="auto">{text or "<small>(no answer)</small>"}</div></section>'
        )
    return (
        f'<article id="q{number}">\n<p class="meta"><span class="number">{number}</span>'
        f"<span>{escape(after.get('done') or 'questions ' + before['set'])}</span></p>\n{_question(before)}"
        f'<div class="pair">{columns}</div>\n{_reference(before["reference"], (), "", SHORT)}</article>\n'
    )
