"""What the tabs share: settings of their events, boxes, and the view of an annotated answer.

The parts of a view are drawn by ``mitigate/report/html.py``. A view is one `.mt-view` element in which a sentence can
be chosen; ``page.js`` then shows its card and marks its evidence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from annotators.base import Annotator
from annotators.operating import FILE, Calibration
from annotators.verifier.annotator import SHIPPED
from mitigate.demo.limits import DOCUMENTS, Refusal, read_document
from mitigate.demo.service import Service, Shelf
from mitigate.demo.web import read_address
from mitigate.io import counted
from mitigate.report import html
from mitigate.report.totals import HALLUCINATED, LABELS, NOT_CHECKED, STATES, Record, Totals, kind_of, percent, verdict

HERE = Path(__file__).parent
AT_ONCE = 8  # calls that are worked on at the same time; they take turns at the model
QUICK: dict[str, Any] = {"api_visibility": "private", "queue": False, "show_progress": "hidden"}  # asks no model
JUDGING = {**QUICK, "queue": True, "concurrency_limit": AT_ONCE, "concurrency_id": "model"}  # asks one
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
    '<div class="steps"><button type="button" data-step="-1" aria-label="Sentence before">‹</button>'
    '<button type="button" data-step="1" aria-label="Next sentence">›</button>'
    '<button type="button" data-step="0" aria-label="Close">×</button></div>'
)


def examples(tab: str) -> list[dict[str, Any]]:
    return json.loads((HERE / "examples.json").read_text(encoding="utf-8"))[tab]


def offer_examples(boxes: list[gr.Textbox], *names: str) -> None:
    """Buttons that fill boxes with those texts of an example."""
    found = examples("annotate")
    gr.Examples(
        [[example[name] for name in names] for example in found], boxes, label="Examples", cache_examples=False,
        example_labels=[example["label"] for example in found], api_visibility="private",
    )  # fmt: skip


def annotator_box(shelf: Shelf) -> gr.Dropdown:
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


def documents_boxes(reference: gr.Textbox, service: Service) -> None:
    """A button, and a box of web addresses where the service fetches them: documents join the reference in turn.

    A notice says what is wrong with one.
    """
    limits = service.limits
    button = gr.UploadButton("Add documents", file_types=[*DOCUMENTS], file_count="multiple", scale=0)
    address = gr.Textbox(
        label="Web address", placeholder="Web address, then Enter", max_lines=1, container=False, scale=1,
        min_width=180, visible=service.fetch, elem_classes="mt-address",
    )  # fmt: skip
    told = gr.HTML("", apply_default_css=False, elem_classes="mt mt-wrong")
    new = gr.State("")  # joins what then stands in the reference: another document may have come while this was fetched

    def read(*texts: Callable[[], str]) -> dict[Any, Any]:
        try:
            return {new: "\n\n".join(text() for text in texts), told: ""}
        except Refusal as error:
            return {new: "", told: notice(str(error))}

    def from_files(paths: list[str]) -> dict[Any, Any]:
        return read(*(partial(read_document, Path(path), limits) for path in paths))

    def from_web(url: str) -> dict[Any, Any]:
        return read(partial(read_address, url, limits))

    def join(before: str, text: str) -> dict[Any, Any]:
        whole = "\n\n".join(filter(None, [before.strip(), text]))
        try:
            limits.check(reference=whole)
        except Refusal as error:
            return {told: notice(str(error))}
        return {reference: whole, address: ""} if text else {told: gr.skip()}

    asked = [button.upload(from_files, button, [new, told], **QUICK)]
    if service.fetch:  # without, nobody can call it either
        asked.append(address.submit(from_web, address, [new, told, address], **{**QUICK, "show_progress": "full"}))
    for event in asked:
        event.success(join, [reference, new], [reference, told, address], **QUICK)


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


def measured(judge: Annotator) -> str:
    """How often an annotator's verdicts were right where they were measured; HTML, "" where it is not known."""
    calibration = judge.calibration
    table = calibration.report.get("table", {}) if calibration else {}
    rate = calibration.point.expected_rate if calibration else 0.0
    shares = [(table.get(key) or {}).get("value") for key in (f"precision_at_{rate:g}", *MEASURED)]
    if calibration is None or None in shares:
        return ""
    wrong, caught, passed, right = (f"{10 * float(share or 0):.0f} of 10" for share in shares)
    shipped = SHIPPED.get(judge.name)  # which may have a calibration of the user's
    own = shipped is not None and calibration.report == Calibration.load(shipped / FILE).report
    more = f' <a href="measured/{judge.name}" target="_blank">How it was made and measured</a>.' if own else ""
    where = "our tests" if own else "the tests of its calibration"
    return (
        f'<details class="measured"><summary>How far to trust this: {wrong} sentences marked as contradicted or not '
        f"found were wrong in {where}</summary><p>That is where {percent(rate)} of all sentences are wrong; where "
        f"more are, more of the marks are right. Of the wrong sentences {caught} were marked and {passed} were called "
        f"supported, of the right ones {right} were called supported; the rest was too close to call. Measured on "
        f"{calibration.report['n']:,} sentences that people labelled. A mark is a reason to compare, no proof.{more}"
        "</p></details>"
    )


def annotated_view(
    record: Record, waiting: Sequence[tuple[int, int]] = (), *, run: str = "", stopped: bool = False,
    with_reference: bool = True, below: str = "",
) -> str:  # fmt: skip
    """Everything about one annotated answer; HTML.

    ``waiting`` are the offsets of sentences not judged (never, if it was ``stopped``). ``run`` names the annotation, so
    that a new one begins with nothing chosen. ``below`` is what ``measured`` says, shown where most is decided.
    """
    judged, text, reference = record["sentences"], record["answer"], record["reference"]
    left = {"status": "it was stopped", "label": None}  # an unknown status is its own reason
    others = [{**left, "text": text[start:end], "start": start, "end": end} for start, end in waiting]
    whole = {**record, "sentences": [*judged, *others]}
    total = len(whole["sentences"])
    totals = Totals.of([whole if stopped else record])

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
    if stopped or not waiting or total <= MANY:
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
    below = "" if waiting or totals.undecided or not totals.factual else below
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
        hint = " Choose one that reads it: <code>embedded-zh</code> Chinese, <code>generative:KIND:MODEL</code> others."
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
