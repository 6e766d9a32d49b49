"""The page as one Gradio Blocks: four tabs (Mitigate is in ``mend.py``) and the endpoint `/annotate`.

It is served on loopback, silent towards everywhere else, with system fonts only.
"""

from __future__ import annotations

import secrets
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import gradio as gr
from starlette.datastructures import URL, Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from annotators.records import LABELS
from annotators.verifier.annotator import SHIPPED
from mitigate.demo import parts
from mitigate.demo.limits import Limits, Refusal, private_folder, problems_of, read_uploaded, work_folder
from mitigate.demo.mend import mend_tab, rank
from mitigate.demo.service import STEP_SECONDS, Service, Step, at_thresholds, heard, threads
from mitigate.io import counted, dump_line, read_rows, rejected_row, without_results, write_lines
from mitigate.report.html import STYLE, bar, escape, table, write_page
from mitigate.report.totals import KINDS, STATES, Totals, kind_of, one_line, verdict

TITLE = "Hallucination toolkit"
HEAD = (
    f'<div class="mt-head"><h1>{TITLE}</h1><p>Which sentences of an answer does its reference support? Judged on this '
    "machine.</p></div>"
)
NO_ANSWER = parts.empty(
    "The judged answer appears here.", "Pick an example above or paste a reference and an answer, then press Annotate."
)
NO_FILE = parts.empty(
    "Results of the file appear here.",
    'JSON Lines, or CSV with such columns: <code>{"id"?, "question"?, "reference", "answer", "language"?}</code>; '
    "other keys pass through.",
)
COLUMNS = ("record", "question", *(STATES[kind] for kind in KINDS))
SHOWN_REJECTED = 20
QUEUE = 32  # calls that may wait

Record = dict[str, Any]
MAX_ANSWERS = 5
NO_PAIR = parts.empty(
    "Answers, ranked, appear here.", "Pick an example, or give a reference and two to five answers to one question."
)

Update = dict[Any, Any]  # component → its new value
Compared = tuple[Sequence[tuple[str, str]], dict[int, Step], str]  # what ``compare_view`` shows
Shown = tuple[Record, Sequence[tuple[int, int]], str, str]  # record, what is not judged, name, HTML below the verdict
CALIBRATED = "as measured"
THRESHOLDS = {CALIBRATED: None, "decide all": (0.5, 0.5), "only where sure": (0.8, 0.95)}  # flag_at, support_at
KEPT, KEPT_CHARACTERS = 10, 20_000  # inputs that the browser remembers, and the longest of them
LABEL_BYTES = 4_000_000  # of labels: browsers keep five million characters of a page
Labels = dict[str, list[Record]]  # by reference, so that it is kept once
# A link holds the texts behind "#", which a browser sends to nobody.
TO_LINK = """(...texts) => {
  const link = '#' + encodeURIComponent(JSON.stringify(texts)), button = document.querySelector('#link');
  const say = (told) => { button.textContent = told; setTimeout(() => { button.textContent = 'Copy a link'; }, 3000); };
  if (link.length > 2_000_000) { say('Too long for a link'); return; }  // browsers open none beyond
  history.replaceState(null, '', link);
  navigator.clipboard?.writeText(location.href).then(() => say('Copied'), () => say('It is the address'));
}"""
# Labels are read anew and written by the page itself: all tabs of a browser keep the same.
STORED = """(shown, _) => {
  try {
    const rows = Object.entries(JSON.parse(localStorage.getItem('mitigate-labels') ?? '{}'));
    return [shown, Object.fromEntries(rows.filter(([, own]) => Array.isArray(own)))];
  } catch { return [shown, {}]; }
}"""
STORE = "(labels) => localStorage.setItem('mitigate-labels', JSON.stringify(labels))"
FROM_LINK = """(...texts) => {
  try {
    const linked = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    return texts.map((text, place) => String(linked[place] ?? text));
  } catch { return texts; }
}"""


def build(service: Service) -> gr.Blocks:
    private_folder()
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 7200)) as page:
        gr.HTML(HEAD, apply_default_css=False, elem_classes="mt")
        with gr.Tab("Annotate", id="annotate"):
            annotate_tab(service, page)
        with gr.Tab("Mitigate", id="mitigate"):
            mend_tab(service)
        with gr.Tab("Compare", id="compare"):
            compare_tab(service)
        with gr.Tab("Batch", id="batch"):
            batch_tab(service)
        _endpoint(service)
    page.queue(max_size=QUEUE, default_concurrency_limit=parts.AT_ONCE)
    return page


def _endpoint(service: Service) -> None:
    """The named endpoint; everything else that the page calls is private to it."""

    @wraps(service.annotate)
    def annotate(*values: str) -> Record:
        try:
            return service.annotate(*values)
        except Refusal as error:
            raise gr.Error(str(error), print_exception=False) from error

    gr.api(annotate, api_name="annotate", concurrency_limit=parts.AT_ONCE, concurrency_id="model")


# --- the tab that annotates one answer ------------------------------------------------------------------------------


def annotate_tab(service: Service, page: gr.Blocks) -> None:
    with gr.Accordion("Source and answer", open=True, elem_id="inputs") as inputs:
        with gr.Row(equal_height=True):
            question = gr.Textbox(label="Question (optional)", max_lines=3, scale=3, min_width=220, elem_id="question")
            annotator = parts.annotator_box(service.shelf)
        with gr.Row():
            reference, answer = (
                gr.Textbox(label=label, lines=9, max_lines=9, min_width=220, placeholder=told, elem_id=label.lower())
                for label, told in (
                    ("Reference", "The text to check against, or documents by the button below"),
                    ("Answer", "The text to judge, sentence by sentence"),
                )
            )
        boxes = [question, reference, answer]
        parts.offer_examples(boxes, "question", "reference", "answer")
    with gr.Row(elem_classes="mt-actions"):
        run = gr.Button("Annotate", variant="primary", elem_id="annotate", elem_classes="mt-run", scale=0)
        stop = gr.Button("Stop", elem_id="stop", elem_classes="mt-stop", scale=0, interactive=False)
        parts.documents_boxes(reference, service)
        save = gr.DownloadButton("Download JSON", scale=0, interactive=False, elem_id="save")
        link = gr.Button("Copy a link", scale=0, elem_id="link")
        labels = gr.DownloadButton("My labels", scale=0, visible=False, elem_id="labels")
    result = parts.views(NO_ANSWER, "annotated")
    how = gr.Radio(
        list(THRESHOLDS), value=CALIBRATED, label="Verdicts", info="fewer not sure, or fewer mistakes", elem_id="how"
    )
    shown = gr.State(None, time_to_live=parts.KEPT_SECONDS)  # Shown
    kept_labels = gr.JSON({}, visible="hidden")  # Labels
    history = gr.BrowserState([], storage_key="mitigate-history", secret="hallucination-toolkit")
    earlier = gr.Dropdown([], label="Earlier, kept in this browser", type="index", visible=False, elem_id="earlier")

    off: Update = {stop: gr.update(interactive=False), save: gr.update(value=None, interactive=False)}

    def finished(kept: Shown, chosen: str) -> Update:
        record, waiting, token, below = kept
        decided = at_thresholds(record, THRESHOLDS[chosen])
        path = work_folder() / "annotated.json"
        path.write_bytes(dump_line(decided))
        below = below if decided is record else ""
        view = parts.annotated_view(decided, waiting, run=token, below=below, stopped=bool(waiting))
        return {**off, result: view, save: gr.update(value=str(path), interactive=True)}

    def judge(q: str, r: str, a: str, name: str, chosen: str, before: list[list[str]]) -> Iterator[Update]:
        token, below = secrets.token_hex(4), ""
        yield {inputs: gr.update(open=False), stop: gr.update(interactive=True), save: off[save]}
        try:
            for step in service.annotate_stepwise(q, r, a, name):
                if step is None:
                    yield {stop: gr.update()}
                    continue
                record, waiting = step
                if waiting:
                    view = parts.annotated_view(record, waiting, run=token)
                    yield {result: view, shown: (record, waiting, token, below)}
            below = parts.measured(service.shelf.annotator(name))
            short = len(q + r + a) < KEPT_CHARACTERS
            now = [[q, r, a], *(one for one in before if one != [q, r, a])] if short else before
            kept = record, (), token, below
            yield {**finished(kept, chosen), shown: kept, history: now[:KEPT]}
        except Refusal as error:
            yield {**off, result: parts.notice(str(error)), shown: None, inputs: gr.update(open=True)}

    def stopped(kept: Shown | None, chosen: str) -> Update:
        if kept is None or not kept[1]:
            return off
        return finished(kept, chosen)

    def decide(kept: Shown | None, chosen: str) -> Update:
        return {stop: gr.update()} if kept is None or kept[1] else finished(kept, chosen)

    def disagree(kept: Shown | None, before: Labels, event: gr.EventData) -> Update:
        if kept is None or event.label not in LABELS:
            return {kept_labels: before}
        record, sentence = kept[0], kept[0]["sentences"][int(event.sentence) - 1]
        row: Record = {"question": record["question"]} if "question" in record else {}
        row |= {"sentence": sentence["text"], "label": event.label}
        own = [one for one in before.get(record["reference"], ()) if {**one, "label": event.label} != row]
        now = {**before, record["reference"]: [*own, row]}
        if len(dump_line(now)) > min(LABEL_BYTES, service.limits.request_bytes // 2):
            gr.Warning("The browser keeps no more labels: download these, and clear the page's data to go on.")
            return {kept_labels: before}
        return {kept_labels: now}

    def offered(kept: Labels) -> Any:
        path = work_folder() / "labels.jsonl"
        rows = [{"reference": reference, **row} for reference, own in kept.items() for row in own]
        write_lines(path, rows)
        return gr.update(label=f"My labels ({len(rows)})", value=str(path), visible=bool(rows))

    def remembered(rows: list[list[str]]) -> Any:
        return gr.update(choices=[one_line(a or q, 80) for q, _, a in rows], value=None, visible=bool(rows))

    running = run.click(
        judge, [*boxes, annotator, how, history], [inputs, result, shown, stop, save, history], **parts.JUDGING
    )
    # Cancelled first, then shown: a part under way would be written over what is shown.
    stop.click(None, cancels=[running], api_visibility="private")
    running.failure(stopped, [shown, how], [result, stop, save], **parts.QUICK)
    running.success(decide, [shown, how], [result, stop, save], **parts.QUICK)  # it may have been changed meanwhile
    how.input(decide, [shown, how], [result, stop, save], **parts.QUICK)
    result.select(disagree, [shown, kept_labels], [kept_labels], js=STORED, **parts.QUICK)
    kept_labels.change(None, kept_labels, None, js=STORE, api_visibility="private")
    kept_labels.change(offered, kept_labels, labels, **parts.QUICK)
    page.load(None, [shown, kept_labels], [shown, kept_labels], js=STORED, api_visibility="private")
    gr.on(None, remembered, history, earlier, **parts.QUICK)
    page.load(None, boxes, boxes, js=FROM_LINK, **parts.QUICK)  # gr.on would run at each change, too, and undo it
    link.click(None, boxes, None, js=TO_LINK, **parts.QUICK)
    earlier.input(
        lambda number, rows: rows[number] if number is not None and number < len(rows) else [gr.skip()] * 3,
        [earlier, history], boxes, **parts.QUICK,
    )  # fmt: skip
    parts.marks_stale([*boxes, annotator], "annotated")


# --- the tab that annotates a file ----------------------------------------------------------------------------------


@dataclass
class Batch:
    """Where a file stands."""

    output: Path  # annotated JSON Lines, as far as it is done
    total: int  # good records of the file
    rejected: list[str]  # bad lines, in words
    rejected_file: Path | None  # the same, whole
    name: str  # of the file
    done: int = 0
    totals: Totals = field(default_factory=Totals)
    rows: list[list[Any]] = field(default_factory=list)  # number and title of a record, and its sentences of each kind

    def add(self, records: list[dict[str, Any]]) -> None:
        """Write annotated records behind those that are there."""
        with self.output.open("ab") as file:
            file.write(b"".join(map(dump_line, records)))
        for record in records:
            self.done += 1
            self.totals.add(record)
            title = one_line(str(record.get("question") or record.get("id") or record["answer"]), 90)
            kinds = Counter(kind_of(sentence) for sentence in record["sentences"])
            self.rows.append([self.done, title, *(kinds[kind] for kind in KINDS)])

    def files(self) -> tuple[Path, Path, Path | None]:
        """The annotated records, the HTML report of what is done, and the bad lines."""
        page, rejected = self.output.with_name("report.html"), len(self.rejected)
        write_page(page, partial(read_rows, self.output), self.totals, rejected=rejected, full_output=self.output.name)
        return self.output, page, self.rejected_file


def run_batch(service: Service, path: Path, name: str | None) -> Iterator[Batch | None]:
    """Annotate a file; yields the same Batch after every step, and None while it waits.

    Refusal where the file is not taken, or the annotator can't be had or fails.
    """
    records, bad = read_uploaded(path, service.limits)
    folder = work_folder()
    rejected_file = folder / "rejected.jsonl" if bad else None
    if rejected_file is not None:
        write_lines(rejected_file, (rejected_row(Path(path.name), line) for line in bad))
    batch = Batch(
        folder / "annotated.jsonl", len(records), [problems_of(line) for line in bad], rejected_file, path.name
    )
    yield batch
    inputs = [without_results(record) for record in records]
    size = 1
    with threads(1) as pool:
        annotator = yield from heard(pool.submit(service.shelf.annotator, name))
        while batch.done < batch.total:
            start = perf_counter()
            some = inputs[batch.done : batch.done + size]
            batch.add((yield from heard(pool.submit(service.annotated, annotator, some))))
            seconds = max(perf_counter() - start, 1e-3)
            yield batch
            size = max(1, min(64, 2 * size, int(size * STEP_SECONDS / seconds)))


def batch_tab(service: Service) -> None:
    with gr.Row(equal_height=True):
        label = f"JSON Lines or CSV, up to {service.limits.records:,} records"
        file = gr.File(label=label, file_types=[".jsonl", ".csv"], height=130, scale=3, elem_id="batch-file")
        annotator = parts.annotator_box(service.shelf)
    with gr.Row(elem_classes="mt-actions"):
        run = gr.Button("Annotate the file", variant="primary", scale=0, elem_id="batch-run", elem_classes="mt-run")
        stop = gr.Button("Stop", scale=0, interactive=False, elem_id="batch-stop", elem_classes="mt-stop")
        saves = [
            gr.DownloadButton(name, scale=0, interactive=False, elem_id=f"batch-save-{i}")
            for i, name in enumerate(("Annotated JSONL", "HTML report", "Rejected lines"))
        ]
    result = gr.HTML(NO_FILE, apply_default_css=False, elem_id="batched", elem_classes="mt")
    numbers: list[Literal["number"]] = ["number"] * len(KINDS)
    records = gr.Dataframe(
        headers=list(COLUMNS), datatype=["number", "str", *numbers], interactive=False, visible=False,
        show_search="filter", max_height=420, wrap=True, label="Records; a click opens one", elem_id="batch-records",
        column_widths=[90, 260, *[130] * len(KINDS)],  # wide enough for the headers, also on a phone
    )  # fmt: skip
    opened = parts.views("", "batch-opened")
    kept = gr.State(None, time_to_live=parts.KEPT_SECONDS)
    nothing: Update = {result: NO_FILE, opened: "", records: gr.update(visible=False), kept: None}
    nothing |= {save: gr.update(value=None, interactive=False) for save in saves}
    # A file that is changed while it is worked on would show what is left of the one before.
    on, off = ({stop: gr.update(interactive=yes), file: gr.update(interactive=not yes)} for yes in (True, False))

    def finished(batch: Batch) -> Update:
        # Once, at the end: a table that becomes visible while further updates come is not drawn in a slow browser.
        found: Update = {records: gr.update(value=batch.rows, visible=bool(batch.rows))}
        for save, path in zip(saves, batch.files(), strict=True):
            found[save] = gr.update(value=str(path) if path else None, interactive=path is not None)
        return found

    def work(path: str | None, name: str) -> Iterator[Update]:
        if not path:
            yield {**nothing, result: parts.notice("Choose a file of JSON Lines or CSV first.")}
            return
        batch = None
        yield {**nothing, **on}
        try:
            for step in run_batch(service, Path(path), name):
                if step is None:
                    yield {stop: gr.update()}
                    continue
                yield {result: batch_view(batch := step), kept: batch}
            yield stopped(batch)
        except Refusal as error:  # what was judged before it is not lost
            shown = stopped(batch)
            yield {**shown, result: parts.notice(str(error)) + shown.get(result, "")}

    def stopped(batch: Batch | None) -> Update:
        if batch is None:
            return off
        view = batch_view(batch, stopped=batch.done < batch.total)
        return {result: view, **off, **(finished(batch) if batch.done else {})}

    def open_row(batch: Batch | None, event: gr.SelectData) -> str:
        if batch is None:
            return ""
        number = int(event.row_value[0])
        return parts.annotated_view(next(islice(read_rows(batch.output), number - 1, None)), run=f"row {number}")

    outputs = [result, records, opened, kept, stop, *saves, file]
    running = run.click(work, [file, annotator], outputs, **parts.JUDGING)
    stop.click(None, cancels=[running], api_visibility="private")  # first, as in the tab of one answer
    running.failure(stopped, kept, [result, records, stop, *saves, file], **parts.QUICK)
    records.select(open_row, kept, opened, **parts.QUICK)
    file.change(lambda: nothing, None, outputs[:-1], **parts.QUICK)  # nothing of the file before is left


def batch_view(batch: Batch, *, stopped: bool = False) -> str:
    state = "stopped" if stopped else "done" if batch.done == batch.total else "working"
    progress = bar([("plain", batch.done / batch.total)], f"{batch.done} of {batch.total} records annotated")
    more = f"{batch.done:,} of {batch.total:,} records, {state}: {escape(batch.name)}"
    rejected = ""
    if batch.rejected:
        left = len(batch.rejected) - SHOWN_REJECTED
        lines = [*map(escape, batch.rejected[:SHOWN_REJECTED])]
        lines += [f"and {left:,} more, in the file of rejected lines"] if left > 0 else []
        rejected = (
            f'<div class="notice"><p><b>{counted(len(batch.rejected), "line was", "lines were")} rejected</b></p>'
            f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul></div>"
        )
    found = parts.summary(batch.totals, more) if batch.done else f"<p>{more}</p>"
    return f'<div class="stack">{progress}{found}{rejected}</div>'


# --- the tab that compares answers ----------------------------------------------------------------------------------


def compare_tab(service: Service) -> None:
    with gr.Row(equal_height=True):
        question = gr.Textbox(
            label="Question (optional)", max_lines=3, scale=3, min_width=220, elem_id="compare-question"
        )
        annotator = parts.annotator_box(service.shelf)
    reference = gr.Textbox(label="Reference", lines=6, max_lines=9, elem_id="compare-reference")
    boxes = [question, reference]
    for i in range(1, MAX_ANSWERS + 1):  # all there from the start: Gradio has no plain button for one more
        with gr.Row():
            boxes.append(gr.Textbox(label=f"Model {i} (optional)", scale=1, min_width=150))
            label, name = f"Answer {i}", f"compare-answer-{i}"
            boxes.append(gr.Textbox(label=label, lines=2, max_lines=6, scale=4, min_width=220, elem_id=name))
    (example,) = parts.examples("compare")
    with gr.Row(elem_classes="mt-actions"):
        run = gr.Button("Compare", variant="primary", elem_id="compare", elem_classes="mt-run", scale=0)
        stop = gr.Button("Stop", scale=0, interactive=False, elem_id="compare-stop", elem_classes="mt-stop")
        parts.documents_boxes(reference, service)
        fill = gr.Button(f"Example: {example['label']}", scale=0)
    result = parts.views(NO_PAIR, "compared")
    kept = gr.State(None, time_to_live=parts.KEPT_SECONDS)  # Compared
    on, off = ({stop: gr.update(interactive=active)} for active in (True, False))

    def compare(q: str, r: str, *cells: str) -> Iterator[Update]:
        *texts, name = (cell.strip() for cell in cells)
        pairs = enumerate(zip(texts[::2], texts[1::2], strict=True), start=1)
        given = [(model or f"answer {i}", text) for i, (model, text) in pairs if text]
        shown: Compared = given, {}, secrets.token_hex(4)
        yield {result: parts.empty("Comparing …", "The answers are judged, one after the other."), kept: None, **on}
        try:
            if not 2 <= len(given) <= MAX_ANSWERS:
                raise Refusal(f"Give two to {MAX_ANSWERS} answers; there are {len(given)}.")
            if not r.strip():
                raise Refusal("There is no reference to compare by. Paste one, or add documents.")
            for i, (_, text) in enumerate(given):
                for step in service.annotate_stepwise(q, r, text, name):
                    if step is None:
                        yield on
                        continue
                    shown[1][i] = step
                    yield {result: compare_view(*shown), kept: shown}
            yield {**off, result: compare_view(*shown, below=parts.measured(service.shelf.annotator(name)))}
        except Refusal as error:
            yield {**off, result: parts.notice(str(error))}

    def stopped(shown: Compared | None) -> Update:
        return {**off, result: compare_view(*shown, stopped=True) if shown else NO_PAIR}

    outputs = [result, kept, stop]
    given = [text for pair in example["answers"] for text in pair]
    filled = [example["question"], example["reference"], *given, *[""] * (2 * MAX_ANSWERS - len(given))]
    fill.click(lambda: filled, None, boxes, **parts.QUICK)
    running = run.click(compare, [*boxes, annotator], outputs, **parts.JUDGING)
    stop.click(None, cancels=[running], api_visibility="private")
    running.failure(stopped, kept, outputs, **parts.QUICK)
    parts.marks_stale([*boxes, annotator], "compared")


def compare_view(
    answers: Sequence[tuple[str, str]], steps: Mapping[int, Step], run: str, *, stopped: bool = False, below: str = ""
) -> str:
    """A table of the answers, the best first as `mitigate best-of` has it, and each as far as it is annotated.

    ``answers`` are (model, text); ``steps`` has how far the annotation of each came, by its place; ``run`` names the
    comparison; ``below`` is what ``parts.measured`` says, shown where most of what the answers state is decided.
    """
    judged = [Totals.of([steps[i][0]] if i in steps else []) for i in range(len(answers))]

    def told(i: int) -> str:
        done = i in steps and not steps[i][1]
        return verdict(judged[i]) if done or judged[i].sentences else "not judged" + ("" if stopped else " yet")

    ended = {i: record for i, (record, waiting) in steps.items() if not waiting}
    order = sorted(range(len(answers)), key=lambda i: rank(ended.get(i, {"sentences": []})))
    cells = [
        f'<b><bdi>{escape(name)}</bdi></b><div class="text" dir="auto">{escape(one_line(text, 300))}</div>'
        for name, text in answers
    ]
    every = Totals.of(record for record, _ in steps.values())
    decided = every.factual and not every.undecided
    rows = table(("answer", "verdict"), ((cells[i], told(i)) for i in order))
    ranked = parts.pane("Answers, the best first", rows + (below if decided else ""))
    views = "".join(
        f'<div class="stack"><h2><bdi>{escape(answers[i][0])}</bdi></h2>'
        f"{parts.annotated_view(*step, run=f'{run}{i}', with_reference=False, stopped=stopped)}</div>"
        for i, step in sorted(steps.items())
    )
    return f'<div class="stack">{ranked}<div class="columns">{views}</div></div>'


# --- serving --------------------------------------------------------------------------------------------------------

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei")
MONO = ("ui-monospace", "Cascadia Mono", "Menlo", "Consolas")


def theme() -> gr.themes.Base:
    """Fonts of the system, so that there is nothing to fetch; other colours and sizes are in ``page.css``."""
    base = gr.themes.Base(
        primary_hue=gr.themes.colors.sky,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_lg,
        font=[*map(gr.themes.Font, FONTS), gr.themes.Font("sans-serif")],
        font_mono=[*map(gr.themes.Font, MONO), gr.themes.Font("monospace")],
    )
    return base.set(  # used before the style sheet is there
        body_background_fill="#f5f7f9",
        body_background_fill_dark="#14171b",
        body_text_color="#1b1f24",
        body_text_color_dark="#e8eaed",
    )


LOOPBACK = ("127.0.0.1", "localhost")  # not ::1, where Gradio lets every web page ask
DRAINED = 64 * 2**20  # bytes read and dropped so that a client that only reads its answer afterwards gets one


class Gate:
    """ASGI middleware: answers 413 to a request body of more than ``most`` bytes and 411 to one of unknown length.

    Uploads pass: they have a limit of their own. Where only some ``hosts`` are asked for, 403 to others: a foreign web
    page whose name was made to point at this machine (DNS rebinding) shows in Host.
    """

    def __init__(self, app: ASGIApp, most: int, hosts: Sequence[str]) -> None:
        self.app, self.most, self.hosts = app, most, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http" and self.hosts and (host := URL(scope=scope).hostname) not in self.hosts:
            advice = "Behind a proxy, start it with --auth or another --host."
            app = _refusal(403, f"This page answers to {' and '.join(self.hosts)}, not to {host}. {advice}")
        elif scope["type"] == "http" and scope["method"] == "POST" and not scope["path"].endswith("/upload"):
            headers = Headers(scope=scope)
            length = headers.get("content-length", "")
            if not length.isdigit() and "transfer-encoding" in headers:
                app = _refusal(411, "The request does not say how long it is.")
            elif length.isdigit() and int(length) > self.most:
                app = _refusal(413, f"The request has {int(length):,} bytes; this page takes {self.most:,}.")
                dropped, more = 0, True
                while more and dropped < DRAINED:
                    message = await receive()
                    dropped += len(message.get("body", b""))
                    more = message.get("more_body", False)
        await app(scope, receive, send)


def _refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"detail": message, "error": message}, status, {"connection": "close"})


def _card(request: Request) -> FileResponse:
    """How a shipped annotator was made and measured."""
    return FileResponse(SHIPPED[Path(request.url.path).name] / "README.md", media_type="text/plain")


def launch(
    page: gr.Blocks,
    limits: Limits,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    auth: Sequence[tuple[str, str]] = (),
    share: bool = False,
    block: bool = True,
) -> str:
    """Serve a page made by ``build``; returns its address, with ``block`` only when interrupted.

    Without a port it takes a free one from 7860 on. ``auth`` are names and passwords; none lets everybody in who
    reaches it. With ``share`` Gradio tunnels the page to a public address. OSError where it can't listen there.
    """
    hosts = LOOPBACK if host in LOOPBACK and not (share or auth) else ()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    socket.create_server((host, port or 0), family=family).close()  # Gradio would try 100 ports, 5 seconds each
    _, local, public = page.launch(
        server_name=f"[{host}]" if ":" in host else host,
        server_port=port,
        share=share,
        auth=list(auth) or None,
        quiet=True,
        max_file_size=limits.file_bytes,
        run_history=False,  # else the browser keeps every input
        footer_links=["api"],
        mcp_server=False,
        ssr_mode=False,
        pwa=False,
        enable_monitoring=False,
        app_kwargs={
            "middleware": [Middleware(Gate, most=limits.request_bytes, hosts=hosts)],
            "routes": [Route(f"/measured/{name}", _card) for name in SHIPPED],
        },
        theme=theme(),
        css_paths=[STYLE, Path(__file__).with_name("page.css")],
        prevent_thread_lock=True,
    )
    if block:
        print(f"open {public or local}", flush=True)
        page.block_thread()
    return str(public or local)
