"""The tab that compares two answers: FEWL and its parts, and both annotated where there is a reference document."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gradio as gr

from mitigate.demo import parts
from mitigate.demo.limits import Refusal
from mitigate.demo.service import AGGREGATIONS, MAX_NEIGHBOURS, SIMILARITIES, Service
from mitigate.io import check_record
from mitigate.report.html import bar, bars, escape, table

Record = dict[str, Any]
LLMS = 3  # reference LLMs that have boxes
NO_PAIR = parts.empty(
    "Two answers, side by side, appear here.",
    "Pick an example, or give two answers and what one or more LLMs answer to the same question.",
)
PARTS = {
    "truthfulness": "Σ λ·s, agreement with the reference answers; higher is better",
    "laziness": "agreement with the answers to other questions; taken off the score",
}


def compare_tab(service: Service) -> None:
    """Build the tab inside a Blocks context."""
    found = parts.examples("compare")
    with gr.Row(equal_height=True):
        question = gr.Textbox(label="Question", max_lines=3, scale=3, min_width=260, elem_id="compare-question")
        annotator = parts.annotator_box(service.shelf)
    names, texts, llms, replies = [], [], [], []
    with gr.Row():
        for side in "AB":
            with gr.Column(min_width=290):
                names.append(gr.Textbox(f"model {side}", label=f"Model {side}", max_lines=1))
                texts.append(gr.Textbox(label=f"Answer {side}", lines=4, max_lines=10))
    with gr.Accordion("Reference answers: what other LLMs answer", open=True):
        for number in range(1, LLMS + 1):
            with gr.Row(equal_height=True):
                llms.append(gr.Textbox(f"llm-{number}", label="LLM", max_lines=1, scale=1, min_width=110))
                replies.append(gr.Textbox(label="Its answer", max_lines=4, scale=5))
    with gr.Accordion("More: reference document, known wrong and right answers, how to score", open=False):
        reference = gr.Textbox(label="Reference document (both answers are then annotated)", lines=3, max_lines=8)
        with gr.Row():
            iw = gr.Textbox(label="Intentionally wrong answers, one a line", lines=3, max_lines=6)
            co = gr.Textbox(label="Corrected answers, one a line", lines=3, max_lines=6)
        with gr.Row():
            aggregation = gr.Dropdown(list(AGGREGATIONS), value="eq6", label="Aggregation")
            similarity = gr.Dropdown(list(SIMILARITIES), value="cosine", label="Similarity")
    others = gr.State([], time_to_live=parts.KEPT_SECONDS)
    gr.HTML("Examples", apply_default_css=False, elem_classes="mt mt-label")
    with gr.Row(elem_classes="mt-chips"):
        chips = [gr.Button(e["label"], size="sm", scale=0) for e in found]
    with gr.Row(elem_classes="mt-actions"):
        run = gr.Button("Compare", variant="primary", elem_id="compare", scale=0)
        stop = gr.Button("Stop", scale=0)
        load = gr.UploadButton("Load FEWL records", file_types=[".jsonl"], scale=0)
        picker = parts.picker_box()
    result = parts.views(NO_PAIR, "compared")
    boxes = [question, *names, *texts, *llms, *replies, reference, iw, co, others]

    def compare(*values: Any) -> Iterator[str]:
        *inputs, name, how, like = values
        record, document, neighbours = _read(inputs)
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
                for judged, waiting in service.annotate_stepwise(record["question"], document, answer["text"], name):
                    shown[side] = parts.annotated_view(judged, waiting, run=f"{token}{side}", with_reference=False)
                    yield compare_view(scored, shown, record["answers"])
        except Refusal as error:
            yield parts.notice(str(error))

    for chip, example in zip(chips, found, strict=True):
        chip.click(lambda e=example: _filled(e, e["others"]), None, boxes, **parts.QUICK)
    running = run.click(compare, [*boxes, annotator, aggregation, similarity], result, **parts.judging(service.limits))
    stop.click(None, cancels=[running], api_visibility="private")
    parts.fill_from_file(
        load, picker, result, boxes, limits=service.limits, check=check_record, nothing=NO_PAIR,
        title=lambda record: record["question"],
        fill=lambda records, i: _filled(records[i], [*records[:i], *records[i + 1 :]][:MAX_NEIGHBOURS]),
    )  # fmt: skip


def _filled(record: Record, others: list[Record]) -> list[Any]:
    """The boxes of a FEWL record: its first two answers and its first reference LLMs; ``others`` are neighbours."""
    answers = [*record["answers"], {"text": ""}, {"text": ""}][:2]
    given = record.get("reference_answers") or {}
    llms = [*((name, _first(texts)) for name, texts in given.items()), *[("", "")] * LLMS][:LLMS]
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


def _first(texts: str | Sequence[str] | None) -> str:
    """The first reference answer of an LLM."""
    return texts if isinstance(texts, str) else next((text for text in texts or [] if text), "")


def _read(values: Sequence[Any]) -> tuple[Record, str, list[Record]]:
    """A FEWL record of the boxes, the reference document, the other questions."""
    question, *rest = values
    names, texts, rest = rest[:2], rest[2:4], rest[4:]
    llms, replies, (reference, iw, co, others) = rest[:LLMS], rest[LLMS : 2 * LLMS], rest[2 * LLMS :]
    references: dict[str, list[str]] = {}
    for number, (name, text) in enumerate(zip(llms, replies, strict=True), start=1):
        if (text or "").strip():
            references.setdefault((name or "").strip() or f"llm-{number}", []).append(text)
    record: Record = {
        "question": question or "",
        "answers": [
            {"text": text or "", "model": (name or "").strip() or f"answer {side}"}
            for name, text, side in zip(names, texts, "AB", strict=True)
        ],
        "reference_answers": references,
    }
    pairs = [[line.strip() for line in (box or "").splitlines() if line.strip()] for box in (iw, co)]
    record |= {"iw": pairs[0], "co": pairs[1]} if all(pairs) else {}
    return record, reference or "", others or []


def number(value: float | None) -> str:
    """0.1234 → "0.123"; None → "–"."""
    return "–" if value is None else f"{value:.3f}"


def compare_view(
    scored: Mapping[str, Any] | None, annotated: Sequence[str], answers: Sequence[Mapping[str, Any]]
) -> str:
    """Both answers with their scores, then the references.

    Args:
        scored: Made by ``Service.fewl``; None without reference answers.
        annotated: A view of each answer; "" where it was not judged.
        answers: {"text", "model"} of each answer.
    """
    rows = scored["answers"] if scored else [{} for _ in answers]
    known = sorted(row["score"] for row in rows if row.get("score") is not None)
    best = known[-1] if len(known) > 1 and known[-1] > known[-2] else None  # None where both score the same
    columns = []
    for answer, row, view in zip(answers, rows, annotated, strict=True):
        head = f"<h2><bdi>{escape(answer['model'])}</bdi></h2>"
        if scored:
            crown = '<span class="best">higher FEWL score</span>' if best is not None and row["score"] == best else ""
            head += f'<div class="score"><b>{number(row["score"])}</b><span>FEWL score</span>{crown}</div>{_parts(row)}'
        text = view or f'<section class="pane"><div class="answer" dir="auto">{escape(answer["text"])}</div></section>'
        columns.append(f'<div class="stack"><section class="pane">{head}</section>{text}</div>')
    below = _references(scored) if scored else ""
    return f'<div class="stack"><div class="columns">{"".join(columns)}</div>{below}</div>'


def _parts(row: Mapping[str, Any]) -> str:
    drawn = bars(
        (f'<span title="{told}">{name}</span>', "plain", min(max(row[name] or 0.0, 0.0), 1.0), number(row[name]))
        for name, told in PARTS.items()
    )
    if row["laziness"] is not None:
        return drawn
    return f"{drawn}<p><small>No laziness penalty: there are no other questions to compare with.</small></p>"


def _references(scored: Mapping[str, Any]) -> str:
    names = [escape(a.get("model") or f"answer {i}") for i, a in enumerate(scored["answers"], start=1)]
    rows = []
    for name, weight in scored["lambda"].items():
        text = _first(scored["reference_answers"][name])
        text = text if len(text) <= 300 else text[:299] + "…"
        rows.append(
            (
                f'<b><bdi>{escape(name)}</bdi></b><div class="text" dir="auto">{escape(text)}</div>',
                bar([("plain", weight)], "weight") + number(weight),
                *(number(a["similarity"].get(name)) for a in scored["answers"]),
            )
        )
    how = scored["scored_with"]
    weights = (
        "λ is high for a reference LLM that is nearer to the corrected than to the intentionally wrong answers."
        if how["expertise"] == "similarity"
        else "All λ are equal: without intentionally wrong and corrected answers nothing tells who is the expert."
    )
    head = ("reference LLM", "expertise λ", *(f"s(<bdi>{name}</bdi>, reference)" for name in names))
    return parts.pane(
        "Reference answers",
        f"{table(head, rows)}<p><small>{weights} Aggregation {escape(how['aggregation'])}, similarity "
        f"{escape(how['similarity'])}, embeddings {escape(how['embedding'])}, {how['neighbours']} other questions."
        "</small></p>",
    )
