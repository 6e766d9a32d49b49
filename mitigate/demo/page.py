"""The page as one Gradio Blocks: four tabs and two named endpoints, `/annotate` and `/fewl`.

The tabs that annotate an answer and a file are here; the other two are in ``compare.py`` and ``training.py``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before the import: nothing is sent anywhere

import gradio as gr

from mitigate.demo import parts
from mitigate.demo.compare import compare_tab
from mitigate.demo.limits import Refusal, private_folder, problems_of, read_uploaded, work_folder
from mitigate.demo.service import STEP_SECONDS, Service
from mitigate.demo.training import training_tab
from mitigate.io import counted, dump_line, rejected_row, without_results
from mitigate.report.html import bar, escape, rate, strip, table, write_page
from mitigate.report.totals import Totals, interval_text, kind_of, one_line, read_annotated

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
    'JSON Lines, one object a line: <code>{"id"?, "question"?, "reference", "answer", "language"?}</code>; other keys '
    "pass through.",
)
ROWS = 200  # records in the table of a file; all are in the files to download
SHOWN_REJECTED = 20

Update = dict[Any, Any]  # component → its new value


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

    settings = {k: v for k, v in parts.judging(service.limits).items() if k.startswith("concurrency")}
    gr.api(annotate, api_name="annotate", **settings)
    gr.api(fewl, api_name="fewl", **settings)


def annotate_tab(service: Service) -> None:
    """Build the tab that annotates one answer, inside a Blocks context."""
    found = parts.examples("annotate")
    with gr.Row(equal_height=True):
        question = gr.Textbox(label="Question (optional)", max_lines=3, scale=3, min_width=260, elem_id="question")
        annotator = parts.annotator_box(service.shelf)
    with gr.Row():
        reference, answer = (
            gr.Textbox(label=label, lines=9, max_lines=9, min_width=290, placeholder=told, elem_id=label.lower())
            for label, told in (
                ("Reference", "The text to check against"),
                ("Answer", "The text to judge, sentence by sentence"),
            )
        )
    boxes = [question, reference, answer]
    gr.Examples(
        [[e["question"], e["reference"], e["answer"]] for e in found],
        boxes,
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
        picker = parts.picker_box()
    result = parts.views(NO_ANSWER, "annotated")
    shown = gr.State(None, time_to_live=parts.KEPT_SECONDS)  # record, sentences not judged, name of the annotation

    off: Update = {stop: gr.update(interactive=False)}

    def judge(q: str, r: str, a: str, name: str) -> Iterator[Update]:
        token = secrets.token_hex(4)
        try:
            for record, waiting in service.annotate_stepwise(q, r, a, name):
                yield {
                    result: parts.annotated_view(record, waiting, run=token),
                    shown: (record, waiting, token),
                    stop: gr.update(interactive=bool(waiting)),
                    save: gr.update(interactive=False),
                }
            path = work_folder() / "annotated.json"
            path.write_bytes(dump_line(record))
            yield {save: gr.update(value=str(path), interactive=True)}
        except Refusal as error:
            yield {result: parts.notice(str(error)), shown: None, **off}

    def stopped(kept: tuple[dict[str, Any], Sequence[tuple[int, int]], str] | None) -> Update:
        if kept is None or not kept[1]:
            return off
        record, waiting, token = kept
        return {result: parts.annotated_view(record, waiting, run=token, stopped=True), **off}

    running = run.click(judge, [*boxes, annotator], [result, shown, stop, save], **parts.judging(service.limits))
    # Cancelled first, then shown: a part under way would be written over what is shown.
    stop.click(None, cancels=[running], api_visibility="private")
    running.failure(stopped, shown, [result, stop], **parts.QUICK)
    parts.fill_from_file(
        load, picker, result, boxes, limits=service.limits, check=service.limits.check_record, nothing=NO_ANSWER,
        title=lambda record: str(record.get("id") or record.get("question") or record["answer"]),
        fill=lambda records, i: (records[i].get("question") or "", records[i]["reference"], records[i]["answer"]),
    )  # fmt: skip


@dataclass
class Batch:
    """Where a file stands.

    Attributes:
        output: Annotated JSON Lines, as far as it is done.
        total: Good records of the file.
        rejected: Bad lines, in words; ``rejected_file`` holds them whole.
        rows: Of the table, as HTML: number, title, hallucination rate and labels of a record.
    """

    output: Path
    total: int
    rejected: list[str]
    rejected_file: Path | None
    done: int = 0
    totals: Totals = field(default_factory=Totals)
    rows: list[tuple[str, str, str, str]] = field(default_factory=list)

    def add(self, records: list[dict[str, Any]]) -> None:
        """Write annotated records behind those that are there."""
        with self.output.open("ab") as file:
            file.write(b"".join(map(dump_line, records)))
        for record in records:
            self.done += 1
            self.totals.add(record)
            if len(self.rows) < ROWS:
                title = escape(one_line(str(record.get("question") or record.get("id") or record["answer"]), 90))
                labels = strip([kind_of(sentence) for sentence in record["sentences"]])
                self.rows.append((str(self.done), f"<bdi>{title}</bdi>", rate(record["hallucination_rate"]), labels))

    def files(self) -> tuple[Path, Path, Path | None]:
        """The annotated records, the HTML report of what is done, and the bad lines."""
        page, rejected = self.output.with_name("report.html"), len(self.rejected)
        write_page(
            page, partial(read_annotated, self.output), self.totals, rejected=rejected, full_output=self.output.name
        )
        return self.output, page, self.rejected_file


def run_batch(service: Service, path: Path, name: str | None) -> Iterator[Batch]:
    """Annotate a file; yields the same Batch after every step.

    Raises:
        Refusal: The file is not taken, or the annotator can't be had or fails.
    """
    records, bad = read_uploaded(path, service.limits, service.limits.check_record)
    folder = work_folder()
    rejected_file = folder / "rejected.jsonl" if bad else None
    if rejected_file is not None:
        rejected_file.write_bytes(b"".join(dump_line(rejected_row(Path(path.name), line)) for line in bad))
    batch = Batch(folder / "annotated.jsonl", len(records), [problems_of(line) for line in bad], rejected_file)
    yield batch
    annotator = service.shelf.annotator(name)
    inputs = [without_results(record) for record in records]
    size = 1
    while batch.done < batch.total:
        start = perf_counter()
        with service.shelf.turn(annotator):
            judged = annotator.annotate_batch(inputs[batch.done : batch.done + size])
        batch.add([annotation.to_dict() for annotation in judged])
        yield batch
        seconds = max(perf_counter() - start, 1e-3)
        size = max(1, min(64, 2 * size, int(size * STEP_SECONDS / seconds)))


def batch_tab(service: Service) -> None:
    """Build the tab that annotates a file, inside a Blocks context."""
    limits = service.limits
    with gr.Row(equal_height=True):
        label = f"JSON Lines, up to {limits.records:,} records"
        file = gr.File(label=label, file_types=[".jsonl"], height=130, scale=3, elem_id="batch-file")
        annotator = parts.annotator_box(service.shelf)
    with gr.Row(elem_classes="mt-actions"):
        run = gr.Button("Annotate the file", variant="primary", scale=0, elem_id="batch-run")
        stop = gr.Button("Stop", scale=0, interactive=False, elem_id="batch-stop")
        saves = [
            gr.DownloadButton(name, scale=0, interactive=False, elem_id=f"batch-save-{i}")
            for i, name in enumerate(("Annotated JSONL", "HTML report", "Rejected lines"))
        ]
    result = gr.HTML(NO_FILE, apply_default_css=False, elem_id="batched", elem_classes="mt")
    kept = gr.State(None, time_to_live=parts.KEPT_SECONDS)
    off: Update = {stop: gr.update(interactive=False)}

    def downloads(batch: Batch) -> Update:
        return {
            save: gr.update(value=str(path) if path else None, interactive=path is not None)
            for save, path in zip(saves, batch.files(), strict=True)
        }

    def work(path: str | None, name: str) -> Iterator[Update]:
        if not path:
            yield {result: parts.notice("Choose a file of JSON Lines first.")}
            return
        no_saves = {save: gr.update(interactive=False) for save in saves}
        try:
            for batch in run_batch(service, Path(path), name):
                yield {result: batch_view(batch), kept: batch, stop: gr.update(interactive=True), **no_saves}
            yield {kept: None, **off, **downloads(batch)}
        except Refusal as error:
            yield {result: parts.notice(str(error)), kept: None, **off}

    def stopped(batch: Batch | None) -> Update:
        if batch is None:
            return off
        return {result: batch_view(batch, stopped=True), **off, **(downloads(batch) if batch.done else {})}

    running = run.click(work, [file, annotator], [result, kept, stop, *saves], **parts.judging(limits))
    stop.click(None, cancels=[running], api_visibility="private")  # first, as in the tab of one answer
    running.failure(stopped, kept, [result, stop, *saves], **parts.QUICK)


def batch_view(batch: Batch, *, stopped: bool = False) -> str:
    """Progress, totals, rejected lines and the table."""
    state = "stopped" if stopped else "done" if batch.done == batch.total else "working"
    progress = bar([("plain", batch.done / batch.total)], f"{batch.done} of {batch.total} records annotated")
    more = f" · {batch.done:,} of {batch.total:,} records, {state}{interval_text(batch.totals, ' · ')}"
    rejected = ""
    if batch.rejected:
        left = len(batch.rejected) - SHOWN_REJECTED
        lines = [*map(escape, batch.rejected[:SHOWN_REJECTED])]
        lines += [f"and {left:,} more, in the file of rejected lines"] if left > 0 else []
        rejected = (
            f'<div class="notice"><p><b>{counted(len(batch.rejected), "line was", "lines were")} rejected</b></p>'
            f"<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul></div>"
        )
    records = ""
    if batch.rows:
        note = f"the first {ROWS}; all are in the files" if batch.done > ROWS else ""
        records = parts.pane("Records", table(("record", "question", "hallucinated", "sentences"), batch.rows), note)
    return f'<div class="stack">{progress}{parts.summary(batch.totals, more)}{rejected}{records}</div>'
