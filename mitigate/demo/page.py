"""The page as one Gradio Blocks: four tabs and two named endpoints, `/annotate` and `/fewl`.

The tab of training runs is in ``training.py``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import gradio as gr

from mitigate.demo import parts
from mitigate.demo.limits import Refusal, private_folder, problems_of, read_uploaded, work_folder
from mitigate.demo.service import AGGREGATIONS, MAX_NEIGHBOURS, SIMILARITIES, STEP_SECONDS, Service
from mitigate.demo.training import training_tab
from mitigate.io import check_record, counted, dump_line, rejected_row, without_results
from mitigate.report.html import bar, bars, escape, rate, strip, table, write_page
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

Record = dict[str, Any]
LLMS = 3  # reference LLMs that have boxes
NO_PAIR = parts.empty(
    "Two answers, side by side, appear here.",
    "Pick an example, or give two answers and what one or more LLMs answer to the same question.",
)
SCORE_PARTS = {
    "truthfulness": "Σ λ·s, agreement with the reference answers; higher is better",
    "laziness": "agreement with the answers to other questions; taken off the score",
}

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


# --- the tab that annotates one answer ------------------------------------------------------------------------------


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


# --- the tab that annotates a file ----------------------------------------------------------------------------------


@dataclass
class Batch:
    """Where a file stands.

    Attributes:
        output: Annotated JSON Lines, as far as it is done.
        total: Good records of the file.
        rejected: Bad lines, in words; ``rejected_file`` holds them whole.
        rows: Rows of the table, as HTML: number, title, hallucination rate and labels of a record.
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


# --- the tab that compares two answers ------------------------------------------------------------------------------


def compare_tab(service: Service) -> None:
    """Build the tab that compares two answers, inside a Blocks context."""
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
        for name, told in SCORE_PARTS.items()
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
