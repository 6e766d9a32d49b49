"""The tab that compares two answers: FEWL and its parts, and both annotated where there is a reference document."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr

from mitigate.commands.fewl_score import check_record
from mitigate.demo.compare_view import EMPTY, compare_view
from mitigate.demo.limits import Refusal
from mitigate.demo.parts import QUICK, annotator_box, examples, judging, views
from mitigate.demo.records import problems_of, read_uploaded
from mitigate.demo.scoring import AGGREGATIONS, MAX_NEIGHBOURS, SIMILARITIES
from mitigate.demo.service import Service
from mitigate.demo.view import annotated_view, notice
from mitigate.progress import counted

Record = dict[str, Any]
LLMS = 3
"""Reference LLMs that have boxes."""


def compare_tab(service: Service) -> None:
    """Build the tab inside a Blocks context."""
    found = examples("compare")
    with gr.Row(equal_height=True):
        question = gr.Textbox(
            label="Question", max_lines=3, scale=3, min_width=260, elem_id="compare-question"
        )
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
                llms.append(
                    gr.Textbox(f"llm-{number}", label="LLM", lines=1, max_lines=1, scale=1, min_width=110)
                )
                replies.append(gr.Textbox(label="Its answer", lines=1, max_lines=4, scale=5))
    with gr.Accordion("More: reference document, known wrong and right answers, how to score", open=False):
        reference = gr.Textbox(
            label="Reference document (both answers are then annotated)", lines=3, max_lines=8
        )
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
            [],
            label="Question of the file",
            show_label=False,
            container=False,
            visible=False,
            type="index",
            scale=1,
        )
    result = views(EMPTY, "compared")
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
                    shown[side] = annotated_view(
                        part.record, part.waiting, run=f"{token}{side}", with_reference=False
                    )
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
        told = notice(f"{lines} rejected: {problems_of(bad[0])[:300]}") if bad else EMPTY
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
    running = run.click(
        compare, [*boxes, annotator, aggregation, similarity], result, **judging(service.limits)
    )
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
    llms = [
        (name, text if isinstance(text, str) else next(iter(text or []), "")) for name, text in given.items()
    ]
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
