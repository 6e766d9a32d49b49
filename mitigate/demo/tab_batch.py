"""The tab that annotates a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from mitigate.demo.batch import ROWS, Batch, run_batch
from mitigate.demo.limits import Refusal
from mitigate.demo.parts import QUICK, annotator_box, judging
from mitigate.demo.service import Service
from mitigate.demo.view import bar, notice, tag
from mitigate.report import KINDS, MARKS, percent
from mitigate.report_html import escape

EMPTY = (
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
    result = gr.HTML(EMPTY, apply_default_css=False, elem_id="batched", elem_classes="mt")
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
        f'<p class="small">The first {ROWS} records; all are in the files.</p>'
        if batch.done > len(batch.rows)
        else ""
    )
    return (
        '<section class="pane"><div class="wrap"><table class="plain"><thead><tr><th scope="col">record</th>'
        '<th scope="col">question</th><th scope="col">hallucinated</th><th scope="col">sentences</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{left}</section>"
    )
