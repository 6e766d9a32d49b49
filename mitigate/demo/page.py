"""The page as one Gradio Blocks: four tabs and two named endpoints, `/annotate` and `/fewl`."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import Any

import gradio as gr

from mitigate.demo.limits import (
    Limits,
    Refusal,
    private_folder,
    problems_of,
    read_records,
    read_uploaded,
    work_folder,
    write_download,
)
from mitigate.demo.service import AGGREGATIONS, MAX_NEIGHBOURS, SIMILARITIES, STEP_SECONDS, Service, Shelf
from mitigate.demo.training import open_folder, read_run, run_folders
from mitigate.demo.view import NO_ANSWER, NO_PAIR, annotated_view, bar, compare_view, notice, run_view, tag
from mitigate.io import check_record, counted, dump_line, rejected_row, without_results
from mitigate.report.html import escape, write_page
from mitigate.report.totals import KINDS, MARKS, Totals, kind_of, one_line, percent, read_annotated

# ----------------------------------------------------------------------------------------------------
# What the tabs share: the settings of their events, the box that names the annotator, the element that shows views.

HERE = Path(__file__).parent
QUICK: dict[str, Any] = {"api_visibility": "private", "queue": False, "show_progress": "hidden"}
"""For events that ask no model."""


def judging(limits: Limits) -> dict[str, Any]:
    """For events that ask a model: queued, and as many at once as the limits say."""
    return {
        "api_visibility": "private",
        "show_progress": "hidden",
        "concurrency_limit": limits.at_once,
        "concurrency_id": "model",
    }


@lru_cache(maxsize=1)
def _examples() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads((HERE / "examples.json").read_text(encoding="utf-8"))
    return found


def examples(tab: str) -> list[dict[str, Any]]:
    """The examples of a tab."""
    return _examples()[tab]


def annotator_box(shelf: Shelf) -> gr.Dropdown:
    """The choice of annotator."""
    return gr.Dropdown(
        list(shelf.names),
        value=shelf.names[0],
        allow_custom_value=shelf.open_choice,
        label="Annotator",
        info="embedded, a folder, a hub id, or generative:KIND:MODEL[@URL]" if shelf.open_choice else None,
        scale=2,
        min_width=260,
        elem_classes="mt-annotator",
    )


def views(value: str, name: str) -> gr.HTML:
    """An element that shows views, with the script that lets sentences be chosen.

    The template stays "${value}": Gradio evaluates a template, and inserts a value as it is.
    """
    return gr.HTML(
        value,
        js_on_load=(HERE / "page.js").read_text(encoding="utf-8"),
        apply_default_css=False,
        elem_id=name,
        elem_classes="mt",
    )


# ----------------------------------------------------------------------------------------------------
# The tab that annotates one answer.

Update = dict[Any, Any]


def annotate_tab(service: Service) -> None:
    """Build the tab inside a Blocks context."""
    limits, shelf = service.limits, service.shelf
    found = examples("annotate")
    with gr.Row(equal_height=True):
        question = gr.Textbox(
            label="Question (optional)", lines=1, max_lines=3, scale=3, min_width=260, elem_id="question"
        )
        annotator = annotator_box(shelf)
    with gr.Row():
        reference = gr.Textbox(
            label="Reference",
            lines=9,
            max_lines=9,
            min_width=290,
            placeholder="The text to check against",
            elem_id="reference",
        )
        answer = gr.Textbox(
            label="Answer",
            lines=9,
            max_lines=9,
            min_width=290,
            placeholder="The text to judge, sentence by sentence",
            elem_id="answer",
        )
    gr.Examples(
        [[e["question"], e["reference"], e["answer"]] for e in found],
        [question, reference, answer],
        example_labels=[e["label"] for e in found],
        label="Examples",
        cache_examples=False,
        api_visibility="private",
    )
    with gr.Row(elem_classes="mt-actions"):
        run = gr.Button("Annotate", variant="primary", elem_id="annotate", scale=0)
        stop = gr.Button("Stop", elem_id="stop", scale=0, interactive=False)
        load = gr.UploadButton("Load a JSONL file", file_types=[".jsonl"], scale=0, elem_id="load")
        save = gr.DownloadButton("Download JSON", scale=0, interactive=False, elem_id="save")
        picker = gr.Dropdown(
            [], label="Record of the file", show_label=False, container=False, visible=False, type="index", scale=1,
            elem_id="picker",
        )  # fmt: skip
    result = views(NO_ANSWER, "annotated")
    partial = gr.State(None, time_to_live=3600)
    loaded = gr.State([], time_to_live=3600)

    def judge(q: str, r: str, a: str, name: str) -> Iterator[Update]:
        token = secrets.token_hex(4)
        try:
            for part in service.annotate_stepwise(q, r, a, name):
                yield {
                    result: annotated_view(part.record, part.waiting, run=token),
                    partial: (part.record, part.waiting, token),
                    stop: gr.update(interactive=not part.done),
                    save: gr.update(interactive=False),
                }
                last = part
            yield {save: gr.update(value=write_download("annotated.json", [dump_line(last.record)]), interactive=True)}
        except Refusal as error:
            yield {result: notice(str(error)), partial: None, stop: gr.update(interactive=False)}

    def stopped(kept: tuple[dict[str, Any], tuple[tuple[int, int], ...], str] | None) -> Update:
        if kept is None or not kept[1]:
            return {stop: gr.update(interactive=False)}
        record, waiting, token = kept
        return {result: annotated_view(record, waiting, run=token, stopped=True), stop: gr.update(interactive=False)}

    def opened(path: str) -> Update:
        try:
            records, rejected = read_records(Path(path), limits)
        except Refusal as error:
            return {result: notice(str(error)), loaded: [], picker: gr.update(visible=False, choices=[])}
        names = [_name(number, record) for number, record in enumerate(records, start=1)]
        lines = counted(len(rejected), "line of the file was", "lines of the file were")
        told = f"{lines} rejected: {rejected[0][:300]}" if rejected else ""
        return {
            loaded: records,
            picker: gr.update(choices=names, value=names[0], visible=True),
            question: records[0].get("question") or "",
            reference: records[0]["reference"],
            answer: records[0]["answer"],
            result: notice(told) if told else NO_ANSWER,
        }

    def picked(number: int | None, records: list[dict[str, Any]]) -> tuple[str, str, str]:
        if number is None or not 0 <= number < len(records):
            return gr.skip(), gr.skip(), gr.skip()
        record = records[number]
        return record.get("question") or "", record["reference"], record["answer"]

    running = run.click(
        judge, [question, reference, answer, annotator], [result, partial, stop, save], **judging(limits)
    )
    # Cancelled first, then shown: a part under way would be written over what is shown.
    stop.click(None, cancels=[running], api_visibility="private")
    running.failure(stopped, partial, [result, stop], **QUICK)
    load.upload(opened, load, [loaded, picker, question, reference, answer, result], **QUICK)
    picker.input(picked, [picker, loaded], [question, reference, answer], **QUICK)


def _name(number: int, record: dict[str, Any]) -> str:
    title = str(record.get("id") or record.get("question") or record["answer"])
    return f"{number}: {' '.join(title.split())[:80]}"


# ----------------------------------------------------------------------------------------------------
# An uploaded file annotated step by step, into files to download.

ROWS = 200
"""Records in the table; all are in the files."""


@dataclass
class Batch:
    """Where a file stands.

    Attributes:
        output: Annotated JSON Lines, as far as it is done.
        rejected: Bad lines, in words; ``rejected_file`` holds them whole.
        rows: Of the table: (record number, title, hallucination rate, kinds of its sentences).
    """

    output: Path
    total: int
    rejected: list[str]
    rejected_file: Path | None
    done: int = 0
    totals: Totals = field(default_factory=Totals)
    rows: list[tuple[int, str, float | None, list[str]]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.done == self.total

    def add(self, records: list[dict[str, Any]]) -> None:
        """Write annotated records behind those that are there."""
        with self.output.open("ab") as file:
            file.write(b"".join(map(dump_line, records)))
        for record in records:
            self.done += 1
            self.totals.add(record)
            if len(self.rows) < ROWS:
                title = one_line(str(record.get("question") or record.get("id") or record["answer"]), 90)
                kinds = [kind_of(sentence) for sentence in record["sentences"]]
                self.rows.append((self.done, title, record["hallucination_rate"], kinds))

    def report(self) -> Path:
        """Write the HTML report of what is done."""
        page = self.output.with_name("report.html")
        write_page(
            page,
            lambda: read_annotated(self.output),
            self.totals,
            rejected=len(self.rejected),
            full_output=self.output.name,
        )
        return page


def run_batch(shelf: Shelf, limits: Limits, path: Path, name: str | None) -> Iterator[Batch]:
    """Annotate a file; yields the same Batch after every step.

    Raises:
        Refusal: The file is not taken, or the annotator can't be had or fails.
    """
    records, bad = read_uploaded(path, limits, limits.check_record)
    folder = work_folder()
    rejected_file = folder / "rejected.jsonl" if bad else None
    if rejected_file is not None:
        rejected_file.write_bytes(b"".join(dump_line(rejected_row(Path(path.name), line)) for line in bad))
    batch = Batch(folder / "annotated.jsonl", len(records), [problems_of(line) for line in bad], rejected_file)
    yield batch
    annotator = shelf.annotator(name)
    inputs = [without_results(record) for record in records]
    size = 1
    while not batch.complete:
        start = perf_counter()
        try:
            with shelf.turn(annotator.name):
                judged = annotator.annotate_batch(inputs[batch.done : batch.done + size])
        except Exception as error:
            detail = " ".join(str(error).split())[:400] or type(error).__name__
            raise Refusal(f"The annotator {annotator.name!r} failed: {detail}") from error
        batch.add([annotation.to_dict() for annotation in judged])
        yield batch
        seconds = max(perf_counter() - start, 1e-3)
        size = max(1, min(64, 2 * size, int(size * STEP_SECONDS / seconds)))


# ----------------------------------------------------------------------------------------------------
# The tab that annotates a file.

NO_FILE = (
    '<div class="empty"><p><b>Results of the file appear here.</b></p><p>JSON Lines, one object a line: '
    '<code>{"id"?, "question"?, "reference", "answer", "language"?}</code>; other keys pass through.</p></div>'
)
SHOWN_REJECTED = 20
SHOWN_MARKS = 40


def batch_tab(service: Service) -> None:
    """Build the tab inside a Blocks context."""
    limits = service.limits
    with gr.Row(equal_height=True):
        file = gr.File(
            label=f"JSON Lines, up to {limits.records:,} records", file_types=[".jsonl"], height=130, scale=3,
            elem_id="batch-file",
        )  # fmt: skip
        annotator = annotator_box(service.shelf)
    with gr.Row(elem_classes="mt-actions"):
        run = gr.Button("Annotate the file", variant="primary", scale=0, elem_id="batch-run")
        stop = gr.Button("Stop", scale=0, interactive=False, elem_id="batch-stop")
        names = ("Annotated JSONL", "HTML report", "Rejected lines")
        saves = [
            gr.DownloadButton(name, scale=0, interactive=False, elem_id=f"batch-save-{i}")
            for i, name in enumerate(names)
        ]
    result = gr.HTML(NO_FILE, apply_default_css=False, elem_id="batched", elem_classes="mt")
    kept = gr.State(None, time_to_live=3600)
    off = {save: gr.update(interactive=False) for save in saves}

    def work(path: str | None, name: str) -> Iterator[dict[Any, Any]]:
        if not path:
            yield {result: notice("Choose a file of JSON Lines first.")}
            return
        try:
            batch = None
            for batch in run_batch(service.shelf, limits, Path(path), name):
                yield {result: batch_view(batch), kept: batch, stop: gr.update(interactive=True), **off}
            assert batch is not None
            yield {kept: None, stop: gr.update(interactive=False), **_downloads(saves, batch)}
        except Refusal as error:
            yield {result: notice(str(error)), kept: None, stop: gr.update(interactive=False)}

    def stopped(batch: Batch | None) -> dict[Any, Any]:
        if batch is None:
            return {stop: gr.update(interactive=False)}
        files = _downloads(saves, batch) if batch.done else {}
        return {result: batch_view(batch, stopped=True), stop: gr.update(interactive=False), **files}

    running = run.click(work, [file, annotator], [result, kept, stop, *saves], **judging(limits))
    stop.click(None, cancels=[running], api_visibility="private")  # first, as in the tab of one answer
    running.failure(stopped, kept, [result, stop, *saves], **QUICK)


def _downloads(saves: list[gr.DownloadButton], batch: Batch) -> dict[Any, Any]:
    files = (batch.output, batch.report(), batch.rejected_file)
    return {
        save: gr.update(value=str(path) if path else None, interactive=path is not None)
        for save, path in zip(saves, files, strict=True)
    }


def batch_view(batch: Batch, *, stopped: bool = False) -> str:
    """Progress, totals, rejected lines and the table."""
    share = batch.done / batch.total
    state = "stopped" if stopped else "done" if batch.complete else "working"
    progress = (
        f'<div class="progress" role="progressbar" aria-valuemin="0" aria-valuemax="{batch.total}" '
        f'aria-valuenow="{batch.done}" aria-label="records annotated"><i style="width:{100 * share:.1f}%"></i></div>'
    )
    rate = percent(batch.totals.rate) if batch.totals.rate is not None else "–"
    kinds, sentences = batch.totals.kinds, max(batch.totals.sentences, 1)
    legend = "".join(f"<li>{tag(k)}<b>{kinds[k]:,}</b></li>" for k in KINDS)
    detail = f"{batch.done:,} of {batch.total:,} records, {state}"
    if batch.totals.interval is not None:
        low, high = batch.totals.interval
        detail += f" · 95 % interval {percent(low)} to {percent(high)}"
    return (
        f'<div class="stack">{progress}<div class="summary"><div class="rate"><b>{rate}</b><span>hallucination rate'
        f'<small>{detail}</small></span></div><div class="counts">'
        f"{bar([(k, kinds[k] / sentences) for k in KINDS], 'sentences by label')}"
        f'<ul class="legend">{legend}</ul></div></div>{_rejected(batch)}{_table(batch)}</div>'
    )


def _rejected(batch: Batch) -> str:
    if not batch.rejected:
        return ""
    items = "".join(f"<li>{escape(line)}</li>" for line in batch.rejected[:SHOWN_REJECTED])
    more = len(batch.rejected) - SHOWN_REJECTED
    rest = f"<li>and {more:,} more, in the file of rejected lines</li>" if more > 0 else ""
    return (
        f'<div class="notice"><p><b>{len(batch.rejected):,} line{"s were" if len(batch.rejected) > 1 else " was"} '
        f'rejected</b></p><ul class="rejected">{items}{rest}</ul></div>'
    )


def _table(batch: Batch) -> str:
    if not batch.rows:
        return ""
    rows = []
    for number, title, rate, kinds in batch.rows:
        marks = "".join(f'<i class="{k}" title="{k}">{MARKS[k]}</i>' for k in kinds[:SHOWN_MARKS])
        more = f"<small>and {len(kinds) - SHOWN_MARKS} more</small>" if len(kinds) > SHOWN_MARKS else ""
        rows.append(
            f'<tr><td class="number">{number}</td><td class="wide"><bdi>{escape(title)}</bdi></td>'
            f'<td class="number">{percent(rate) if rate is not None else "–"}</td>'
            f'<td><span class="strip">{marks}{more}</span></td></tr>'
        )
    left = (
        f'<p class="small">The first {ROWS} records; all are in the files.</p>' if batch.done > len(batch.rows) else ""
    )
    return (
        '<section class="pane"><div class="wrap"><table class="plain"><thead><tr><th scope="col">record</th>'
        '<th scope="col">question</th><th scope="col">hallucinated</th><th scope="col">sentences</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{left}</section>"
    )


# ----------------------------------------------------------------------------------------------------
# The tab that compares two answers: FEWL and its parts, and both annotated where there is a reference document.

Record = dict[str, Any]
LLMS = 3
"""Reference LLMs that have boxes."""


def compare_tab(service: Service) -> None:
    """Build the tab inside a Blocks context."""
    found = examples("compare")
    with gr.Row(equal_height=True):
        question = gr.Textbox(label="Question", max_lines=3, scale=3, min_width=260, elem_id="compare-question")
        annotator = annotator_box(service.shelf)
    with gr.Row():
        names, texts = [], []
        for side in "AB":
            with gr.Column(min_width=290):
                names.append(gr.Textbox(f"model {side}", label=f"Model {side}", lines=1, max_lines=1))
                texts.append(gr.Textbox(label=f"Answer {side}", lines=4, max_lines=10))
    llms, replies = [], []
    with gr.Accordion("Reference answers: what other LLMs answer", open=True):
        for number in range(1, LLMS + 1):
            with gr.Row(equal_height=True):
                llms.append(gr.Textbox(f"llm-{number}", label="LLM", lines=1, max_lines=1, scale=1, min_width=110))
                replies.append(gr.Textbox(label="Its answer", lines=1, max_lines=4, scale=5))
    with gr.Accordion("More: reference document, known wrong and right answers, how to score", open=False):
        reference = gr.Textbox(label="Reference document (both answers are then annotated)", lines=3, max_lines=8)
        with gr.Row():
            iw = gr.Textbox(label="Intentionally wrong answers, one a line", lines=3, max_lines=6)
            co = gr.Textbox(label="Corrected answers, one a line", lines=3, max_lines=6)
        with gr.Row():
            aggregation = gr.Dropdown(list(AGGREGATIONS), value="eq6", label="Aggregation")
            similarity = gr.Dropdown(list(SIMILARITIES), value="cosine", label="Similarity")
    others = gr.State([], time_to_live=3600)
    loaded = gr.State([], time_to_live=3600)
    gr.HTML("Examples", apply_default_css=False, elem_classes="mt mt-label")
    with gr.Row(elem_classes="mt-chips"):
        chips = [gr.Button(e["label"], size="sm", scale=0) for e in found]
    with gr.Row(elem_classes="mt-actions"):
        run = gr.Button("Compare", variant="primary", elem_id="compare", scale=0)
        stop = gr.Button("Stop", scale=0)
        load = gr.UploadButton("Load FEWL records", file_types=[".jsonl"], scale=0)
        picker = gr.Dropdown(
            [], label="Question of the file", show_label=False, container=False, visible=False, type="index", scale=1
        )
    result = views(NO_PAIR, "compared")
    boxes = [question, *names, *texts, *llms, *replies, reference, iw, co, others]

    def compare(*values: Any) -> Iterator[str]:
        record, document, neighbours, (name, how, like) = _read(values)
        token, shown = secrets.token_hex(4), ["", ""]
        try:
            scored = None
            if record["reference_answers"]:
                scored = service.fewl(record, neighbours=neighbours, aggregation=how, similarity=like)
            elif not document.strip():
                raise Refusal("Give at least one reference answer, or a reference document, to compare by.")
            yield compare_view(scored, shown, record["answers"])
            for side, answer in enumerate(record["answers"]):
                if not document.strip() or not answer["text"].strip():
                    continue
                for part in service.annotate_stepwise(record["question"], document, answer["text"], name):
                    shown[side] = annotated_view(part.record, part.waiting, run=f"{token}{side}", with_reference=False)
                    yield compare_view(scored, shown, record["answers"])
        except Refusal as error:
            yield notice(str(error))

    def opened(path: str) -> dict[Any, Any]:
        try:
            records, bad = read_uploaded(Path(path), service.limits, check_record)
        except Refusal as error:
            return {result: notice(str(error)), loaded: [], picker: gr.update(visible=False, choices=[])}
        titles = [f"{i}: {' '.join(r['question'].split())[:80]}" for i, r in enumerate(records, start=1)]
        lines = counted(len(bad), "line was", "lines were")
        told = notice(f"{lines} rejected: {problems_of(bad[0])[:300]}") if bad else NO_PAIR
        return {
            loaded: records,
            picker: gr.update(choices=titles, value=titles[0], visible=True),
            result: told,
            **dict(zip(boxes, _filled(records[0], _but(records, 0)), strict=True)),
        }

    def picked(number: int | None, records: list[Record]) -> list[Any]:
        if number is None or not 0 <= number < len(records):
            return [gr.skip()] * len(boxes)
        return _filled(records[number], _but(records, number))

    for chip, example in zip(chips, found, strict=True):
        chip.click(lambda e=example: _filled(e, e["others"]), None, boxes, **QUICK)
    running = run.click(compare, [*boxes, annotator, aggregation, similarity], result, **judging(service.limits))
    stop.click(None, cancels=[running], api_visibility="private")
    load.upload(opened, load, [loaded, picker, result, *boxes], **QUICK)
    picker.input(picked, [picker, loaded], boxes, **QUICK)


def _but(records: list[Record], number: int) -> list[Record]:
    """The other questions of a file, as neighbours."""
    return [r for i, r in enumerate(records) if i != number][:MAX_NEIGHBOURS]


def _filled(record: Record, others: list[Record]) -> list[Any]:
    """The boxes of a FEWL record: its first two answers and its first reference LLMs."""
    answers = [*record["answers"], {"text": ""}, {"text": ""}][:2]
    given = record.get("reference_answers") or {}
    llms = [(name, text if isinstance(text, str) else next(iter(text or []), "")) for name, text in given.items()]
    llms = [*llms, *[("", "")] * LLMS][:LLMS]
    return [
        record["question"],
        *(answer.get("model") or f"answer {i}" for i, answer in enumerate(answers, start=1)),
        *(answer["text"] for answer in answers),
        *(name for name, _ in llms),
        *(text for _, text in llms),
        record.get("reference") or "",
        "\n".join(record.get("iw") or []),
        "\n".join(record.get("co") or []),
        others,
    ]


def _read(values: tuple[Any, ...]) -> tuple[Record, str, list[Record], tuple[str, str, str]]:
    """A FEWL record of the boxes; the reference document; the other questions; annotator, aggregation, similarity."""
    question, *rest = values
    names, texts, rest = rest[:2], rest[2:4], rest[4:]
    llms, replies, rest = rest[:LLMS], rest[LLMS : 2 * LLMS], rest[2 * LLMS :]
    reference, iw, co, others, *options = rest
    references: dict[str, list[str]] = {}
    for number, (name, text) in enumerate(zip(llms, replies, strict=True), start=1):
        if (text or "").strip():
            references.setdefault((name or "").strip() or f"llm-{number}", []).append(text)
    record: Record = {
        "question": question or "",
        "answers": [
            {"text": text or "", "model": (name or "").strip() or side}
            for name, text, side in zip(names, texts, ("answer A", "answer B"), strict=True)
        ],
        "reference_answers": references,
    }
    pairs = [[line.strip() for line in (box or "").splitlines() if line.strip()] for box in (iw, co)]
    record |= {"iw": pairs[0], "co": pairs[1]} if all(pairs) else {}
    return record, reference or "", others or [], (options[0], options[1], options[2])


# ----------------------------------------------------------------------------------------------------
# The tab that opens a run folder.

NO_RUN = (
    '<div class="empty"><p><b>Curves and answers of a training run appear here.</b></p><p>Choose a run folder, as '
    "<code>mitigate run RECIPE.yaml --output DIR</code> writes it.</p></div>"
)


def training_tab(runs: str, any_folder: bool) -> None:
    """Build the tab inside a Blocks context."""
    root = Path(runs)
    with gr.Row(equal_height=True, elem_classes="mt-actions"):
        folder = gr.Dropdown(
            run_folders(root),
            value=None,
            allow_custom_value=any_folder,
            label="Run folder",
            info=f"those in {root}, or any path" if any_folder else f"those in {root}",
            scale=4,
            elem_id="run-folder",
        )
        open_ = gr.Button("Open", variant="primary", scale=0, elem_id="run-open")
        again = gr.Button("Look for runs", scale=0)
    result = views(NO_RUN, "trained")

    def show(name: str | None) -> str:
        try:
            return run_view(read_run(open_folder(root, name or "", any_folder)))
        except Refusal as error:
            return notice(str(error))

    settings: dict[str, Any] = {**QUICK, "queue": True}
    open_.click(show, folder, result, **settings)
    again.click(lambda: gr.update(choices=run_folders(root)), None, folder, **QUICK)


os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before the import: nothing is sent anywhere


TITLE = "Hallucination toolkit"
HEAD = (
    f'<div class="mt-head"><h1>{TITLE}</h1><p>Which sentences of an answer does its reference support? Judged on this '
    "machine.</p></div>"
)


def build(service: Service, *, runs: str = "runs", any_folder: bool = False) -> gr.Blocks:
    """The page.

    Args:
        service: What it calls.
        runs: Folder whose run folders the Training tab offers.
        any_folder: Whether other folders may be named there; for a page that only its owner reaches.
    """
    private_folder()
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 7200)) as page:
        gr.HTML(HEAD, apply_default_css=False, elem_classes="mt")
        with gr.Tab("Annotate", id="annotate"):
            annotate_tab(service)
        with gr.Tab("Compare", id="compare"):
            compare_tab(service)
        with gr.Tab("Batch", id="batch"):
            batch_tab(service)
        with gr.Tab("Training", id="training"):
            training_tab(runs, any_folder)
        _endpoints(service)
    page.queue(max_size=service.limits.queue, default_concurrency_limit=service.limits.at_once)
    return page


def _endpoints(service: Service) -> None:
    """The named endpoints; everything else that the page calls is private to it."""

    def annotate(question: str, reference: str, answer: str, annotator: str = "") -> dict[str, Any]:
        """Judge each sentence of an answer against its reference; returns the annotated record."""
        try:
            return service.annotate(question, reference, answer, annotator)
        except Refusal as error:
            raise gr.Error(str(error), print_exception=False) from error

    def fewl(
        record: dict[str, Any],
        neighbours: list[dict[str, Any]] | None = None,
        aggregation: str = "eq6",
        similarity: str = "cosine",
    ) -> dict[str, Any]:
        """Score the answers of one FEWL record by its reference answers; returns the scored record."""
        try:
            return service.fewl(record, neighbours=neighbours or [], aggregation=aggregation, similarity=similarity)
        except Refusal as error:
            raise gr.Error(str(error), print_exception=False) from error

    settings = {k: v for k, v in judging(service.limits).items() if k.startswith("concurrency")}
    gr.api(annotate, api_name="annotate", **settings)
    gr.api(fewl, api_name="fewl", **settings)
