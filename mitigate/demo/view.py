"""What the Training tab shows of a run folder."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal

from annotators.records import LABELS as LABEL_ORDER
from annotators.records import hallucination_rate
from mitigate.demo.training import Run
from mitigate.report.html import escape, marked
from mitigate.report.totals import (
    HALLUCINATED,
    KINDS,
    LABELS,
    MEANING,
    NOT_CHECKED,
    REASONS,
    WORDS,
    kind_of,
    merge,
    percent,
    reason_of,
)

# ----------------------------------------------------------------------------------------------------
# Word differences: what a correction takes out of an answer and what it puts in.
#
# Pieces are ("same" | "gone" | "new", text). Those that are not "new" join to the answer, those that are not "gone" to
# the corrected answer, whatever the texts hold.

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


# ----------------------------------------------------------------------------------------------------
# Annotated text as HTML: the answer with a sentence to click at every judgement, the reference with its evidence.
#
# The text content of `.answer` is the answer and that of `.reference` the reference, whatever they hold: everything from
# a record is escaped, pieces that overlap are cut where they begin and end, and hidden characters (bidi controls and the
# like) are named beside them by the style sheet. No attribute holds text of a record.

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


# ----------------------------------------------------------------------------------------------------
# What the page shows of annotated answers: totals, the answer, a card per sentence, the reference, the correction.
#
# A view is one `.mt-view` element; `page.js` shows the card and the evidence of the sentence that is chosen in it.

Record = Mapping[str, Any]
MANY = 150  # sentences from which cards come only when all are judged: sending them at every step takes its time
SHOWN_FRAGMENT = 1_200  # characters of a fragment in a card; the reference beside it shows it whole
STEPS = (
    '<nav class="steps"><button type="button" data-step="-1" aria-label="Sentence before">‹</button>'
    '<button type="button" data-step="1" aria-label="Next sentence">›</button></nav>'
)
NO_ANSWER = (
    '<div class="empty"><p><b>The judged answer appears here.</b></p><p>Pick an example above or paste a '
    "reference and an answer, then press Annotate.</p></div>"
)


def notice(message: str) -> str:
    """A polite refusal."""
    return f'<div class="notice" role="alert"><p>{escape(message)}</p></div>'


def tag(kind: str) -> str:
    """A label as a coloured word."""
    return f'<span class="tag {kind}">{WORDS[kind]}</span>'


def annotated_view(
    record: Record, waiting: Sequence[Span] = (), *, run: str = "", stopped: bool = False, with_reference: bool = True
) -> str:
    """Everything about one annotated answer.

    Args:
        record: Annotated record, maybe of its first sentences only.
        waiting: Sentences without a judgement.
        run: Names the annotation, so that a new one begins with nothing chosen.
        stopped: Whether the waiting ones will never be judged.
        with_reference: Whether the reference and the corrected answer are shown too.
    """
    sentences = record["sentences"]
    first = next((i for i, s in enumerate(sentences) if s["label"] in HALLUCINATED), None)
    if first is None and sentences and not waiting:
        first = 0
    total = len(sentences) + len(waiting)
    cards = "" if waiting and total > MANY else "".join(_card(s, i, total) for i, s in enumerate(sentences))
    answer = (
        f'<section class="pane"><h3>Answer</h3>{answer_html(record, waiting, stopped=stopped)}'
        f'<div class="cards" hidden>{STEPS}<div aria-live="polite">{cards}</div></div></section>'
    )
    start = f' data-first="{first}"' if first is not None else ""
    body = answer
    if with_reference:
        body = f'<div class="panes">{answer}{_reference(record)}</div>'
    return (
        f'<div class="mt-view{" busy" if waiting and not stopped else ""}" data-run="{escape(run)}"{start}>'
        f"{summary(record, waiting, stopped)}{body}{_corrected(record) if with_reference else ''}</div>"
    )


def summary(record: Record, waiting: Sequence[Span] = (), stopped: bool = False) -> str:
    """Rate, bar and legend of one answer, and what was not checked."""
    kinds = Counter(kind_of(s) for s in record["sentences"])
    hallucinated = sum(kinds[k] for k in HALLUCINATED)
    factual = hallucinated + kinds["supported"]
    if factual:
        detail = f"{hallucinated} of {factual} judged factual sentence{'s' if factual > 1 else ''}"
    elif waiting and not stopped:
        detail = "judging"
    else:
        detail = "no factual sentence was judged"
    if waiting:
        total = len(record["sentences"]) + len(waiting)
        detail += f" · {len(record['sentences'])} of {total} {'judged, then stopped' if stopped else 'judged so far'}"
    rate = percent(record["hallucination_rate"]) if record["hallucination_rate"] is not None else "–"
    legend = "".join(
        f'<li title="{MEANING[k]}" class="{"" if kinds[k] else "none"}">{tag(k)}<b>{kinds[k]}</b></li>' for k in KINDS
    )
    total = len(record["sentences"]) + len(waiting)
    shares = [(k, kinds[k] / total) for k in KINDS] if total else []
    return (
        f'<div class="summary"><div class="rate"><b>{rate}</b><span>hallucination rate<small>{detail}</small></span>'
        f'</div><div class="counts">{bar(shares, "sentences by label")}<ul class="legend">{legend}</ul></div></div>'
        f"{_unchecked(record, len(waiting) if stopped else 0)}"
    )


def _unchecked(record: Record, stopped: int) -> str:
    reasons = Counter(s["status"] for s in record["sentences"] if kind_of(s) == NOT_CHECKED)
    parts = [f"{n} because {html.escape(REASONS.get(k, k))}" for k, n in sorted(reasons.items())]
    if stopped:
        parts.append(f"{stopped} because it was stopped")
    if not parts:
        return ""
    count = sum(reasons.values()) + stopped
    hint = (
        " Choose an annotator that reads it, such as <code>generative:KIND:MODEL</code>."
        if reasons["language_unsupported"]
        else ""
    )
    return (
        f'<p class="unchecked" role="status"><b>{count} sentence{"s were" if count > 1 else " was"} not checked:</b> '
        f"{'; '.join(parts)}.{hint} They count neither for nor against the answer.</p>"
    )


def bar(shares: Sequence[tuple[str, float]], description: str) -> str:
    """A stacked bar of (class, share)."""
    parts, x = [], 0.0
    for kind, share in shares:
        if share > 0:
            parts.append(f'<rect class="{kind}" x="{1000 * x:.1f}" y="0" width="{1000 * share:.1f}" height="10"/>')
            x += share
    return (
        f'<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(description)}">{"".join(parts)}</svg>'
    )


def _card(sentence: Record, index: int, total: int) -> str:
    """What is known of one sentence; hidden until it is chosen."""
    kind, body = kind_of(sentence), []
    if kind == NOT_CHECKED:
        body.append(f"<p>Not checked: {html.escape(reason_of(sentence))}.</p>")
    if problems := sentence.get("problems"):
        body.append(f'<p class="small">{escape("; ".join(map(str, problems))[:600])}</p>')
    if edits := sentence["correction"]:
        pieces = edit_pieces(sentence["text"], edits, sentence["start"])
        body.append(f'<h4>Correction</h4><p class="text diff" dir="auto">{difference_html(pieces)}</p>')
    if scores := sentence["scores"]:
        rows = "".join(
            f'<tr><th scope="row">{WORDS[k]}</th><td><i class="{k}" style="width:{100 * scores[k]:.1f}%"></i></td>'
            f"<td>{percent(scores[k])}</td></tr>"
            for k in LABELS
        )
        body.append(f'<h4>Probabilities</h4><table class="scores">{rows}</table>')
    elif kind != NOT_CHECKED:
        body.append('<p class="small">This annotator gives no probabilities.</p>')
    body.append(_evidence(sentence, kind))
    return (
        f'<article class="card {kind}" data-card="{index}" hidden><header>{tag(kind)}'
        f"<span>sentence {index + 1} of {total}</span></header>{''.join(body)}</article>"
    )


def _evidence(sentence: Record, kind: str) -> str:
    parts = []
    for f in sentence["fragments"]:
        more = " …" if len(f["text"]) > SHOWN_FRAGMENT else ""
        parts.append(
            f'<blockquote class="text" dir="auto">{escape(f["text"][:SHOWN_FRAGMENT])}{more}'
            f"<footer>characters {f['start']:,} to {f['end']:,}</footer></blockquote>"
        )
    for text in sentence.get("not_verbatim") or ():
        parts.append(
            f'<blockquote class="text foreign" dir="auto">{escape(str(text)[:SHOWN_FRAGMENT])}'
            "<footer>written by the annotator, not found in the reference</footer></blockquote>"
        )
    if parts:
        return f"<h4>Evidence in the reference</h4>{''.join(parts)}"
    if kind in (NOT_CHECKED, "no_fact"):
        return ""
    return "<h4>Evidence in the reference</h4><p class='small'>No passage was given.</p>"


def _reference(record: Record) -> str:
    reference = record["reference"]
    if not reference.strip():
        return '<section class="pane"><h3>Reference</h3><p class="small">None was given.</p></section>'
    return (
        '<section class="pane"><h3>Reference <small>evidence of the chosen sentence is marked</small></h3>'
        f"{reference_html(reference, record['sentences'])}</section>"
    )


def _corrected(record: Record) -> str:
    """The answer with its corrections put in; nothing where the annotator gives none."""
    edits = [edit for s in record["sentences"] for edit in s["correction"]]
    if not edits:
        return ""
    open_ = sum(s["label"] in HALLUCINATED and not s["correction"] for s in record["sentences"])
    left = f" {open_} marked sentence{'s have' if open_ > 1 else ' has'} no correction." if open_ else ""
    return (
        '<section class="corrected"><h3>Corrected answer <small>struck through: taken out; underlined: put in.'
        f'{left}</small></h3><div class="text diff" dir="auto">'
        f"{difference_html(edit_pieces(record['answer'], edits))}</div></section>"
    )


# ----------------------------------------------------------------------------------------------------
# Curves of a run as small SVG figures, all text escaped, the last value in words beside the name.

Point = tuple[float, float]
WIDTH, HEIGHT = 320, 150
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 22


def sorted_curves(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of curves to show first (rewards, hallucination rates, shares of labels), and the others."""

    def rank(name: str) -> int:
        if label_of(name) is not None:
            return 2
        low = name.lower()
        return 1 if "hallucinat" in low else 0 if "reward" in low and "std" not in low else 3

    first = sorted((name for name in names if rank(name) < 3), key=rank)
    return first, [name for name in names if rank(name) == 3]


def label_of(name: str) -> str | None:
    """The label that a curve counts: the last part of its name, "factuality/supported" and the like."""
    last = name.replace(".", "/").rsplit("/", 1)[-1].lower()
    return next((label for label in LABEL_ORDER if last in (label, f"{label}_rate", f"{label}_share")), None)


def figures(curves: Mapping[str, Sequence[Point]], names: Sequence[str]) -> str:
    """The figures of some curves."""
    return f'<div class="curves">{"".join(figure(name, curves[name]) for name in names)}</div>'


def figure(name: str, points: Sequence[Point]) -> str:
    """One curve, from the lowest to the highest value; (step, value), at least one, in order of steps."""
    (first, start), (last, end) = points[0], points[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    floor, ceiling = (low, high) if high > low else (low - 0.5, high + 0.5)
    width = max(last - first, 1e-9)
    places = [
        (
            LEFT + (WIDTH - LEFT - RIGHT) * (x - first) / width,
            TOP + (HEIGHT - TOP - BOTTOM) * (1 - (y - floor) / (ceiling - floor)),
        )
        for x, y in points
    ]
    path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dot = f'<circle cx="{places[-1][0]:.1f}" cy="{places[-1][1]:.1f}" r="3"/>'
    ground = HEIGHT - BOTTOM
    label = label_of(name)
    told = f"from {short(start)} at step {short(first)} to {short(end)} at step {short(last)}"
    return (
        f"<figure><figcaption>{escape(name)}<span>{short(end)}</span></figcaption>"
        f'<svg class="curve {label or ""}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(name)}: {told}">'
        f'<line x1="{LEFT}" y1="{TOP}" x2="{WIDTH - RIGHT}" y2="{TOP}"/>'
        f'<line x1="{LEFT}" y1="{ground}" x2="{WIDTH - RIGHT}" y2="{ground}"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{short(ceiling)}</text>'
        f'<text x="{LEFT - 6}" y="{ground + 4}" text-anchor="end">{short(floor)}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{short(first)}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">step {short(last)}</text>'
        f'<path d="{path}"/>{dot}</svg></figure>'
    )


def short(value: float) -> str:
    """A number in few characters: 1,200 · 0.358 · 1e-05."""
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:.3g}"


# ----------------------------------------------------------------------------------------------------
# What the Compare tab shows: two answers side by side, their FEWL scores and the parts of them, and λ.

CompareViewRecord = Mapping[str, Any]
NO_PAIR = (
    '<div class="empty"><p><b>Two answers, side by side, appear here.</b></p><p>Pick an example, or give two answers '
    "and what one or more LLMs answer to the same question.</p></div>"
)


def number(value: float | None) -> str:
    """0.1234 → "0.123"; None → "–"."""
    return "–" if value is None else f"{value:.3f}"


def compare_view(
    scored: CompareViewRecord | None, annotated: Sequence[str], answers: Sequence[Mapping[str, Any]]
) -> str:
    """Both answers with their scores, then the references.

    Args:
        scored: Of ``scoring.fewl_record``; None without reference answers.
        annotated: A view of each answer; "" where it was not judged.
        answers: {"text", "model"} of each answer.
    """
    rows = scored["answers"] if scored else [{} for _ in answers]
    known = [row.get("score") for row in rows]
    best = max((s for s in known if s is not None), default=None)
    alone = sum(s == best for s in known) == 1 and sum(s is not None for s in known) > 1
    columns = []
    for answer, row, view in zip(answers, rows, annotated, strict=True):
        crown = '<span class="best">higher FEWL score</span>' if alone and row.get("score") == best else ""
        score = (
            f'<div class="score"><b>{number(row["score"])}</b><span>FEWL score</span>{crown}</div>{_parts(row)}'
            if scored
            else ""
        )
        text = view or f'<div class="answer text" dir="auto">{escape(answer["text"])}</div>'
        columns.append(
            f'<div class="stack"><section class="pane"><h3><bdi>{escape(answer["model"])}</bdi></h3>{score}</section>'
            f"{text if view else f'<section class=pane>{text}</section>'}</div>"
        )
    below = _references(scored) if scored else ""
    return f'<div class="stack"><div class="columns">{"".join(columns)}</div>{below}</div>'


def _parts(row: CompareViewRecord) -> str:
    lazy = row["laziness"]
    rows = [
        ("truthfulness", row["truthfulness"], "Σ λ·s, agreement with the reference answers; higher is better"),
        ("laziness", lazy, "agreement with the answers to other questions; taken off the score"),
    ]
    cells = "".join(
        f'<tr title="{meaning}"><th scope="row">{name}</th><td>'
        f'<i class="plain" style="width:{100 * min(max(value or 0.0, 0.0), 1.0):.1f}%"></i></td>'
        f"<td>{number(value)}</td></tr>"
        for name, value, meaning in rows
    )
    none = (
        '<p class="small">No laziness penalty: there are no other questions to compare with.</p>'
        if lazy is None
        else ""
    )
    return f'<table class="scores">{cells}</table>{none}'


def _references(scored: CompareViewRecord) -> str:
    answers, lambdas = scored["answers"], scored["lambda"]
    heads = "".join(
        f'<th scope="col">s(<bdi>{escape(a.get("model") or f"answer {i}")}</bdi>, reference)</th>'
        for i, a in enumerate(answers, start=1)
    )
    rows = "".join(
        f'<tr><td class="wide"><b><bdi>{escape(name)}</bdi></b><br><span class="text" dir="auto">'
        f"{escape(_first(scored['reference_answers'][name]))}</span></td>"
        f'<td class="number">{bar([("plain", weight)], "weight")}{number(weight)}</td>'
        + "".join(f'<td class="number">{number(a["similarity"].get(name))}</td>' for a in answers)
        + "</tr>"
        for name, weight in lambdas.items()
    )
    how = scored["scored_with"]
    weights = (
        "λ is high for a reference LLM that is nearer to the corrected than to the intentionally wrong answers."
        if how["expertise"] == "similarity"
        else "All λ are equal: without intentionally wrong and corrected answers nothing tells who is the expert."
    )
    return (
        '<section class="pane"><h3>Reference answers</h3><div class="wrap"><table class="plain"><thead><tr>'
        f'<th scope="col">reference LLM</th><th scope="col">expertise λ</th>{heads}</tr></thead><tbody>{rows}</tbody>'
        f'</table></div><p class="small">{weights} Aggregation {escape(how["aggregation"])}, similarity '
        f"{escape(how['similarity'])}, embeddings {escape(how['embedding'])}, {how['neighbours']} other questions."
        "</p></section>"
    )


def _first(texts: object) -> str:
    found = texts if isinstance(texts, str) else next((t for t in texts or [] if t), "")  # type: ignore[attr-defined]
    return found if len(found) <= 300 else found[:299] + "…"


SHOWN_PAIRS = 20
SHOWN_FIGURES = 40


def run_view(run: Run) -> str:
    """Recipe, curves, final figures, and answers before and after."""
    about = run.config.get("about")
    kind = run.config.get("kind")
    head = (
        f'<section class="pane"><h3><bdi>{escape(run.path.name)}</bdi>'
        f"<small>{escape(str(kind)) if kind else 'kind not known'}</small></h3>"
        f"<p>{escape(str(about)) if about else ''}</p>{_settings(run.config)}</section>"
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in run.notes)
    told = f'<div class="note" role="status">{notes}</div>' if notes else ""
    return f'<div class="stack">{head}{told}{_curves(run)}{_final(run.figures)}{_pairs(run)}</div>'


def _curves(run: Run) -> str:
    first, others = sorted_curves(list(run.curves))
    parts = [figures(run.curves, first)] if first else []
    if others:
        drawn = figures(run.curves, others)
        parts.append(
            f"<details{'' if first else ' open'}><summary>Other curves, {len(others)}</summary>{drawn}</details>"
        )
    return "".join(parts)


def _settings(config: Mapping[str, Any]) -> str:
    if not config:
        return ""
    text = json.dumps(config, ensure_ascii=False, indent=1, default=str)
    return f'<details><summary>Recipe</summary><pre class="text">{escape(text[:20_000])}</pre></details>'


def _final(found: Mapping[str, Any]) -> str:
    flat = [(k, v) for k, v in _flat("", found) if isinstance(v, int | float | str)][:SHOWN_FIGURES]
    if not flat:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="number">'
        f"{escape(value[:200]) if isinstance(value, str) else short(value)}</td></tr>"
        for name, value in flat
    )
    return f'<details><summary>Final figures</summary><table class="plain">{rows}</table></details>'


def _flat(prefix: str, value: object) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [pair for k, v in value.items() for pair in _flat(f"{prefix} {k}".strip(), v)]
    if isinstance(value, list):
        return [pair for i, v in enumerate(value, start=1) for pair in _flat(f"{prefix} {i}".strip(), v)]
    return [(prefix, value)]


def _pairs(run: Run) -> str:
    if not run.pairs:
        return ""
    shown = []
    for number, (before, after) in enumerate(run.pairs[:SHOWN_PAIRS], start=1):
        question = next((str(side["question"]) for side in (before, after) if side and side.get("question")), "")
        columns = "".join(
            f'<div class="stack"><h3>{name}</h3>{_side(side, f"{number}{name}")}</div>'
            for name, side in (("Before", before), ("After", after))
        )
        title = f"<bdi>{escape(question[:300])}</bdi>" if question else f"Sample {number}"
        shown.append(
            f'<details{" open" if number == 1 else ""}><summary>{title}</summary><div class="columns">{columns}</div>'
            "</details>"
        )
    more = len(run.pairs) - SHOWN_PAIRS
    rest = f'<p class="small">and {more:,} more in samples.jsonl</p>' if more > 0 else ""
    return f'<div class="stack"><h3>Answers before and after</h3>{"".join(shown)}{rest}</div>'


def _side(record: Mapping[str, Any] | None, run: str) -> str:
    if record is None:
        return '<p class="small">No answer was kept.</p>'
    whole = whole_record(record)
    if whole is None:
        return (
            f'<div class="answer text" dir="auto">{escape(record["answer"])}</div>'
            '<p class="small">This answer was not annotated.</p>'
        )
    return annotated_view(whole, run=run, with_reference=False)


def whole_record(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record with all that a view reads, or None where its sentences are missing or not those of its answer."""
    answer, place, sentences = record["answer"], 0, []
    if not isinstance(record.get("sentences"), list) or not record["sentences"]:
        return None
    reference = record.get("reference")
    reference = reference if isinstance(reference, str) else ""
    for found in record["sentences"]:
        try:
            start, end = int(found["start"]), int(found["end"])
            fits = place <= start < end and answer[start:end] == found["text"]
            label, status = found["label"], str(found["status"])
        except (KeyError, TypeError, ValueError):
            return None
        if not fits or not (label is None or isinstance(label, str)):
            return None
        place = end
        plain = {"text": found["text"], "start": start, "end": end, "status": status, "label": label}
        sentences.append(
            {**plain, "scores": None, "fragments": [], "correction": [], **_extras(found, reference, answer)}
        )
    rate = hallucination_rate(sentence["label"] for sentence in sentences)
    return {**record, "reference": reference, "sentences": sentences, "hallucination_rate": rate}


def _extras(found: Mapping[str, Any], reference: str, answer: str) -> dict[str, Any]:
    """Scores, fragments and corrections of a sentence, where they are as they should be."""
    from annotators.records import LABELS

    extras: dict[str, Any] = {}
    scores = found.get("scores")
    if isinstance(scores, dict) and all(isinstance(scores.get(label), int | float) for label in LABELS):
        extras["scores"] = scores
    for name, key, text in (("fragments", "text", reference), ("correction", "from", answer)):
        rows = found.get(name)
        if isinstance(rows, list):
            extras[name] = [
                row
                for row in rows
                if isinstance(row, dict)
                and isinstance(row.get("start"), int)
                and isinstance(row.get("end"), int)
                and 0 <= row["start"] < row["end"]
                and text[row["start"] : row["end"]] == row.get(key)
                and isinstance(row.get("to", ""), str)
            ]
    return extras
