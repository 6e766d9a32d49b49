"""What the tabs share: settings of their events, boxes, and the view of an annotated answer.

The parts of a view are drawn by ``mitigate/report/html.py``. A view is one `.mt-view` element in which a sentence can
be chosen; ``page.js`` then shows its card and marks its evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from mitigate.demo.limits import DOCUMENTS, Limits, Refusal, problems_of, read_document, read_uploaded
from mitigate.demo.service import Shelf
from mitigate.io import Check, counted
from mitigate.report import html
from mitigate.report.totals import HALLUCINATED, LABELS, NOT_CHECKED, STATES, Record, Totals, kind_of, percent, verdict

if TYPE_CHECKING:
    from annotators.operating import Calibration

HERE = Path(__file__).parent
QUICK: dict[str, Any] = {"api_visibility": "private", "queue": False, "show_progress": "hidden"}  # asks no model
KEPT_SECONDS = 3600  # of what a visitor has loaded or judged
MANY = 150  # sentences from which cards come only when all are judged: sending them at every step takes its time
SHOWN_FRAGMENT = 1_200  # characters of a fragment in a card; the reference beside it shows it whole
LABELLING = (
    '<p class="labels">I disagree, it is '
    + "".join(f'<button type="button" data-label="{label}">{STATES[label]}</button>' for label in LABELS)
    + "</p>"
)
MEASURED = ("false_flagged", "false_supported", "true_supported")
STEPS = (
    '<nav class="steps"><button type="button" data-step="-1" aria-label="Sentence before">‹</button>'
    '<button type="button" data-step="1" aria-label="Next sentence">›</button></nav>'
)


def judging(limits: Limits) -> dict[str, Any]:
    """For events that ask a model: queued, and as many at once as the limits say."""
    return {**QUICK, "queue": True, "concurrency_limit": limits.at_once, "concurrency_id": "model"}


def examples(tab: str) -> list[dict[str, Any]]:
    """The examples of a tab."""
    return json.loads((HERE / "examples.json").read_text(encoding="utf-8"))[tab]


def annotator_box(shelf: Shelf) -> gr.Dropdown:
    """The choice of annotator."""
    return gr.Dropdown(
        list(shelf.names),
        value=shelf.names[0],
        allow_custom_value=shelf.open_choice,
        label="Annotator",
        info="embedded, a folder, a hub id, generative:KIND:MODEL[@URL], nli:ID, …" if shelf.open_choice else None,
        scale=2,
        min_width=220,
        elem_classes="mt-annotator",
    )


def views(value: str, name: str) -> gr.HTML:
    """An element that shows views, with the script that lets sentences be chosen.

    The template stays "${value}": Gradio evaluates a template, and inserts a value as it is.
    """
    script = (HERE / "page.js").read_text(encoding="utf-8")
    return gr.HTML(value, js_on_load=script, apply_default_css=False, elem_id=name, elem_classes="mt")


def marks_stale(boxes: Sequence[Any], name: str) -> None:
    """Show a result as stale once an input of it changes; its script takes that back when another one comes."""
    script = f"() => {{ document.querySelector('#{name}:has(.mt-view, .stack)')?.classList.add('stale'); }}"
    gr.on([box.change for box in boxes], None, js=script, api_visibility="private")


def picker_box() -> gr.Dropdown:
    """The choice of a record of a file, there once a file is."""
    return gr.Dropdown(
        [], label="Record of the file", show_label=False, container=False, visible=False, type="index", scale=1
    )


def fill_from_file(
    load: gr.UploadButton,
    picker: gr.Dropdown,
    result: gr.HTML,
    boxes: Sequence[Any],
    *,
    limits: Limits,
    check: Check,
    title: Callable[[Record], str],
    fill: Callable[[list[dict[str, Any]], int], Sequence[Any]],
    nothing: str,
) -> None:
    """Let an uploaded file fill boxes: with its first record, or with the one that is picked.

    ``fill`` gives the values of the boxes for the record of a number, from 0; ``title`` names a record in the picker;
    ``result`` says which lines are bad, and ``nothing`` where none is.
    """
    loaded = gr.State([], time_to_live=KEPT_SECONDS)

    def opened(path: str) -> dict[Any, Any]:
        try:
            records, bad = read_uploaded(Path(path), limits, check)
        except Refusal as error:
            return {result: notice(str(error)), loaded: [], picker: gr.update(visible=False, choices=[])}
        names = [f"{i}: {' '.join(title(record).split())[:80]}" for i, record in enumerate(records, start=1)]
        lines = counted(len(bad), "line of the file was", "lines of the file were")
        return {
            loaded: records,
            picker: gr.update(choices=names, value=names[0], visible=True),
            result: notice(f"{lines} rejected: {problems_of(bad[0])[:300]}") if bad else nothing,
            **dict(zip(boxes, fill(records, 0), strict=True)),
        }

    def picked(number: int | None, records: list[dict[str, Any]]) -> Sequence[Any]:
        if number is None or not 0 <= number < len(records):
            return [gr.skip()] * len(boxes)
        return fill(records, number)

    load.upload(opened, load, [loaded, picker, result, *boxes], **QUICK)
    picker.input(picked, [picker, loaded], [*boxes], **QUICK)


def documents_button() -> gr.UploadButton:
    """The button that takes documents as reference."""
    return gr.UploadButton("Add documents", file_types=[*DOCUMENTS], file_count="multiple", scale=0)


def fill_from_documents(button: gr.UploadButton, reference: gr.Textbox, told: gr.HTML, limits: Limits) -> None:
    """Let uploaded documents join the reference, one behind the other; ``told`` says what is wrong with one."""

    def joined(paths: list[str], before: str) -> dict[Any, Any]:
        try:
            texts = [read_document(Path(path), limits) for path in paths]
            whole = "\n\n".join([*filter(None, [before.strip()]), *texts])
            limits.check(reference=whole)
        except Refusal as error:
            return {told: notice(str(error))}
        return {reference: whole, told: ""}

    button.upload(joined, [button, reference], [reference, told], **QUICK)


def notice(message: str) -> str:
    """A refusal, or what was left out."""
    return f'<div class="notice" role="alert"><p>{html.escape(message)}</p></div>'


def empty(what: str, how: str) -> str:
    """What stands where results will be; HTML."""
    return f'<div class="empty"><p><b>{what}</b></p><p>{how}</p></div>'


def pane(title: str, body: str, note: str = "") -> str:
    """A part of a view with its heading; HTML."""
    return f'<section class="pane"><h2>{title} <small>{note}</small></h2>{body}</section>'


def summary(totals: Totals, more: str = "", below: str = "") -> str:
    """The verdict in one sentence, and the bar that goes with it; ``more`` and ``below`` are HTML."""
    return (
        f'<div class="summary"><p class="verdict" role="status">{verdict(totals)} <small>{more}</small></p>'
        f'<div class="counts">{html.counts(totals)}</div>{below}</div>'
    )


def reliability(calibration: Calibration | None) -> str:
    """How often such verdicts were right where they were measured; HTML, "" where it is not known."""
    table = calibration.report.get("table", {}) if calibration else {}
    rate = calibration.point.expected_rate if calibration else 0.0
    shares = [(table.get(name) or {}).get("value") for name in (f"precision_at_{rate:g}", *MEASURED)]
    if calibration is None or None in shares:
        return ""
    wrong, caught, passed, right = (f"{10 * float(share):.0f} of 10" for share in shares)
    return (
        f'<details class="measured"><summary>How far to trust this: {wrong} sentences marked as contradicted or not '
        f"found were wrong in our tests</summary><p>That is where {percent(rate)} of all sentences are wrong; where "
        f"more are, more of the marks are right. Of the wrong sentences {caught} were marked and {passed} were called "
        f"supported, of the right ones {right} were called supported; the rest was too close to call. Measured on "
        f"{calibration.report['n']:,} sentences that people labelled; see docs/results/calibration.md. A mark is a "
        "reason to compare, no proof.</p></details>"
    )


def annotated_view(
    record: Record,
    waiting: Sequence[tuple[int, int]] = (),
    *,
    run: str = "",
    stopped: bool = False,
    with_reference: bool = True,
    below: str = "",
) -> str:
    """Everything about one annotated answer.

    Args:
        record: Annotated record, maybe of its first sentences only.
        waiting: Offsets of the sentences without a judgement.
        run: Names the annotation, so that a new one begins with nothing chosen.
        stopped: Whether the waiting ones will never be judged.
        with_reference: Whether the reference and the corrected answer are shown too.
        below: HTML that belongs under the verdict.
    """
    judged, text, reference = record["sentences"], record["answer"], record["reference"]
    left = {"status": "it was stopped", "label": None}  # an unknown status is its own reason
    others = [{**left, "text": text[start:end], "start": start, "end": end} for start, end in waiting]
    whole = {**record, "sentences": [*judged, *others]}
    total = len(whole["sentences"])
    totals = Totals()
    totals.add(whole if stopped else record)

    def opening(number: int, sentence: Record) -> str:
        kind = kind_of(sentence)
        if number > len(judged):
            kind, title = (kind, "not checked: stopped") if stopped else ("waiting", "not judged yet")
            return f'<span class="s {kind}" title="{title}">'
        return (
            f'<span class="s {kind}" role="button" tabindex="{0 if number == 1 else -1}" aria-pressed="false" '
            f'data-s="{number}" title="{number}: {STATES[kind]}">'
        )

    at_last = 1 if judged and not waiting else ""
    first = next((i for i, s in enumerate(judged, start=1) if s["label"] in HALLUCINATED), at_last)
    cards = ""
    if not waiting or total <= MANY:
        cards = "".join(_card(s, i, total, len(reference)) for i, s in enumerate(judged, start=1))
    text = (
        '<div class="answer" dir="auto" role="group" aria-label="Answer; arrow keys go from sentence to sentence">'
        f"{html.answer_text(whole, opening)}</div>"
    )
    beside = f'<div class="cards" hidden>{STEPS}<div aria-live="polite">{cards}</div></div>'
    if with_reference:
        beside = f'<div class="beside">{beside}{_reference(reference, judged)}</div>'
        shown = f'<div class="panes">{pane("Answer", text + html.corrected(record))}{beside}</div>'
    else:
        shown = pane("Answer", text + beside)
    so_far = f"{len(judged)} of {total} {'judged, then stopped' if stopped else 'judged so far'}" if waiting else ""
    live = bool(waiting) and not stopped
    return (
        f'<div class="mt-view{" busy" if live else ""}" data-run="{html.escape(run)}" data-first="{first}">'
        f"{summary(totals, so_far, below)}{_unchecked(totals)}{shown}</div>"
    )


def _unchecked(totals: Totals) -> str:
    if not totals.reasons:
        return ""
    count = counted(totals.kinds[NOT_CHECKED], "sentence was", "sentences were")
    hint = ""
    if totals.reasons["language_unsupported"]:
        hint = " Choose an annotator that reads it, such as <code>generative:KIND:MODEL</code>."
    return (
        f'<p class="unchecked" role="status"><b>{count} not checked:</b> {html.reasons(totals)}.{hint} They count '
        "neither for nor against the answer.</p>"
    )


def _card(sentence: Record, number: int, total: int, reference_length: int) -> str:
    """Hidden until its sentence is chosen."""
    kind = kind_of(sentence)
    none = "" if sentence["scores"] or kind == NOT_CHECKED else "<p>This annotator gives no probabilities.</p>"
    return (
        f'<article class="card {kind}" data-card="{number}" hidden><header>{html.tag(kind)}<span>sentence {number} of '
        f"{total}</span></header>{html.findings(sentence, reference_length, SHOWN_FRAGMENT)}{none}{LABELLING}</article>"
    )


def _reference(reference: str, sentences: Sequence[Record]) -> str:
    if not reference.strip():
        return pane("Reference", "<p><small>None was given.</small></p>")
    return pane(
        "Reference",
        '<div class="reference text" dir="auto" tabindex="0" role="region" aria-label="Reference">'
        f"{html.reference_text(reference, sentences)}</div>",
        "evidence is marked; a click on it chooses its sentence",
    )
