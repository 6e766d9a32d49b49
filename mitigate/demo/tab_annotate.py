"""The tab that annotates one answer."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from mitigate.demo.files import write_download
from mitigate.demo.limits import Refusal
from mitigate.demo.parts import QUICK, annotator_box, examples, judging, views
from mitigate.demo.records import read_records
from mitigate.demo.service import Service
from mitigate.demo.view import EMPTY, annotated_view, notice
from mitigate.jsonl import dump_line
from mitigate.progress import counted

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
    result = views(EMPTY, "annotated")
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
            yield {
                save: gr.update(
                    value=write_download("annotated.json", [dump_line(last.record)]), interactive=True
                )
            }
        except Refusal as error:
            yield {result: notice(str(error)), partial: None, stop: gr.update(interactive=False)}

    def stopped(kept: tuple[dict[str, Any], tuple[tuple[int, int], ...], str] | None) -> Update:
        if kept is None or not kept[1]:
            return {stop: gr.update(interactive=False)}
        record, waiting, token = kept
        return {
            result: annotated_view(record, waiting, run=token, stopped=True),
            stop: gr.update(interactive=False),
        }

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
            result: notice(told) if told else EMPTY,
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
