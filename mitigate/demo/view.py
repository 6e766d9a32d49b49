"""What the page shows of annotated answers: totals, the answer, a card per sentence, the reference, the correction.

A view is one `.mt-view` element; `page.js` shows the card and the evidence of the sentence that is chosen in it.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mitigate.demo.difference import edit_pieces
from mitigate.demo.markup import Span, answer_html, difference_html, reference_html
from mitigate.report import (
    HALLUCINATED,
    KINDS,
    LABELS,
    MEANING,
    NOT_CHECKED,
    REASONS,
    WORDS,
    kind_of,
    percent,
    reason_of,
)
from mitigate.report_html import escape

Record = Mapping[str, Any]
MANY = (
    150  # sentences from which cards come only when all are judged: sending them at every step takes its time
)
SHOWN_FRAGMENT = 1_200  # characters of a fragment in a card; the reference beside it shows it whole
STEPS = (
    '<nav class="steps"><button type="button" data-step="-1" aria-label="Sentence before">‹</button>'
    '<button type="button" data-step="1" aria-label="Next sentence">›</button></nav>'
)
EMPTY = (
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
    record: Record,
    waiting: Sequence[Span] = (),
    *,
    run: str = "",
    stopped: bool = False,
    with_reference: bool = True,
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
        f'<li title="{MEANING[k]}" class="{"" if kinds[k] else "none"}">{tag(k)}<b>{kinds[k]}</b></li>'
        for k in KINDS
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
            parts.append(
                f'<rect class="{kind}" x="{1000 * x:.1f}" y="0" width="{1000 * share:.1f}" height="10"/>'
            )
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
