"""The page as one Gradio Blocks: four tabs (Mitigate is in ``mend.py``) and two endpoints, `/annotate` and `/fewl`."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import gradio as gr

from annotators.base import Annotator
from annotators.records import LABELS
from mitigate.demo import parts
from mitigate.demo.limits import Refusal, private_folder, problems_of, read_uploaded, work_folder
from mitigate.demo.mend import mend_tab
from mitigate.demo.service import (
    AGGREGATIONS,
    MAX_NEIGHBOURS,
    SIMILARITIES,
    STEP_SECONDS,
    Service,
    Step,
    at_thresholds,
    heard,
    threads,
)
from mitigate.io import check_record, counted, dump_line, read_rows, rejected_row, without_results
from mitigate.report.html import bar, escape, table, write_page
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

Record = dict[str, Any]
MAX_ANSWERS = 5
NO_PAIR = parts.empty(
    "Answers, ranked, appear here.",
    "Pick an example, or give two to five answers and what one or more LLMs answer to the same question.",
)
SCORE_PARTS = ("truthfulness", "laziness")

Update = dict[Any, Any]  # component → its new value
Compared = tuple[Record | None, Mapping[int, Step], Sequence[Record], str]  # what ``compare_view`` shows
Shown = tuple[Record, Sequence[tuple[int, int]], str, str]  # record, what is not judged, name, HTML below the verdict
CALIBRATED = "as measured"
THRESHOLDS = {CALIBRATED: None, "decide all": (0.5, 0.5), "only where sure": (0.8, 0.95)}  # flag_at, support_at
KEPT, KEPT_CHARACTERS = 10, 20_000  # inputs that the browser remembers, and the longest of them
# A link holds the texts behind "#", which a browser sends to nobody.
TO_LINK = """(...texts) => {
  location.hash = encodeURIComponent(JSON.stringify(texts));
  navigator.clipboard?.writeText(location.href).catch(() => {});
}"""
FROM_LINK = """(...texts) => {
  try {
    const linked = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    return texts.map((text, place) => String(linked[place] ?? text));
  } catch { return texts; }
}"""


def build(service: Service) -> gr.Blocks:
    """The page; ``service`` is what it calls."""
    private_folder()
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 7200)) as page:
        gr.HTML(HEAD, apply_default_css=False, elem_classes="mt")
        with gr.Tab("Annotate", id="annotate"):
            annotate_tab(service)
        with gr.Tab("Mitigate", id="mitigate"):
            mend_tab(service)
        with gr.Tab("Compare", id="compare"):
            compare_tab(service)
        with gr.Tab("Batch", id="batch"):
            batch_tab(service)
        _endpoints(service)
    page.queue(max_size=service.limits.queue, default_concurrency_limit=service.limits.at_once)
    return page


def _endpoints(service: Service) -> None:
    """The named endpoints; everything else that the page calls is private to it."""

    def told(call: Callable[..., Record]) -> Callable[..., Record]:
        @wraps(call)
        def asked(*values: Any) -> Record:
            try:
                return call(*values)
            except Refusal as error:
                raise gr.Error(str(error), print_exception=False) from error

        return asked

    settings = {k: v for k, v in parts.judging(service.limits).items() if k.startswith("concurrency")}
    gr.api(told(service.annotate), api_name="annotate", **settings)
    gr.api(told(service.fewl), api_name="fewl", **settings)


# --- the tab that annotates one answer ------------------------------------------------------------------------------


def annotate_tab(service: Service) -> None:
    """Build the tab that annotates one answer, inside a Blocks context."""
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
        parts.documents_button(reference, service.limits)
        save = gr.DownloadButton("Download JSON", scale=0, interactive=False, elem_id="save")
        link = gr.Button("Copy a link", scale=0, elem_id="link")
        labels = gr.DownloadButton("My labels", scale=0, visible=False, elem_id="labels")
    result = parts.views(NO_ANSWER, "annotated")
    how = gr.Radio(
        list(THRESHOLDS), value=CALIBRATED, label="Verdicts", info="fewer not sure, or fewer mistakes", elem_id="how"
    )
    shown = gr.State(None, time_to_live=parts.KEPT_SECONDS)  # Shown
    kept_labels = gr.BrowserState([], storage_key="mitigate-labels", secret="hallucination-toolkit")
    history = gr.BrowserState([], storage_key="mitigate-history", secret="hallucination-toolkit")
    earlier = gr.Dropdown([], label="Earlier, kept in this browser", type="index", visible=False, elem_id="earlier")

    off: Update = {stop: gr.update(interactive=False), save: gr.update(value=None, interactive=False)}

    def finished(kept: Shown, chosen: str) -> Update:
        record, _, token, below = kept
        decided = at_thresholds(record, THRESHOLDS[chosen])
        path = work_folder() / "annotated.json"
        path.write_bytes(dump_line(decided))
        view = parts.annotated_view(decided, run=token, below=below if decided is record else "")
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

    def stopped(kept: Shown | None) -> Update:
        if kept is None or not kept[1]:
            return off
        record, waiting, token, _ = kept
        return {**off, result: parts.annotated_view(record, waiting, run=token, stopped=True)}

    def decide(kept: Shown | None, chosen: str) -> Update:
        if kept is None or kept[1]:
            return {stop: gr.update()}
        return finished(kept, chosen)

    def disagree(kept: Shown | None, before: list[dict[str, Any]], event: gr.EventData) -> Update:
        if kept is None or event.label not in LABELS:
            return {kept_labels: before}
        record, sentence = kept[0], kept[0]["sentences"][int(event.sentence) - 1]
        row: Record = {name: record[name] for name in ("question", "reference") if name in record}
        row |= {"sentence": sentence["text"], "label": event.label}
        return {kept_labels: [*(one for one in before if {**one, "label": event.label} != row), row]}

    def offered(rows: list[dict[str, Any]]) -> Any:
        path = work_folder() / "labels.jsonl"
        path.write_bytes(b"".join(map(dump_line, rows)))
        return gr.update(label=f"My labels ({len(rows)})", value=str(path), visible=bool(rows))

    def remembered(rows: list[list[str]]) -> Any:
        return gr.update(choices=[one_line(a or q, 80) for q, _, a in rows], value=None, visible=bool(rows))

    settings = parts.judging(service.limits)
    running = run.click(
        judge, [*boxes, annotator, how, history], [inputs, result, shown, stop, save, history], **settings
    )
    # Cancelled first, then shown: a part under way would be written over what is shown.
    stop.click(None, cancels=[running], api_visibility="private")
    running.failure(stopped, shown, [result, stop, save], **parts.QUICK)
    how.input(decide, [shown, how], [result, stop, save], **parts.QUICK)
    result.select(disagree, [shown, kept_labels], [kept_labels], **parts.QUICK)
    gr.on(None, offered, kept_labels, labels, **parts.QUICK)  # at the start, too
    gr.on(None, remembered, history, earlier, **parts.QUICK)
    gr.on(None, None, boxes, boxes, js=FROM_LINK, **parts.QUICK)
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
    records, bad = read_uploaded(path, service.limits, service.limits.check_record)
    folder = work_folder()
    rejected_file = folder / "rejected.jsonl" if bad else None
    if rejected_file is not None:
        rejected_file.write_bytes(b"".join(dump_line(rejected_row(Path(path.name), line)) for line in bad))
    batch = Batch(
        folder / "annotated.jsonl", len(records), [problems_of(line) for line in bad], rejected_file, path.name
    )
    yield batch
    inputs = [without_results(record) for record in records]
    size = 1

    def judged(annotator: Annotator, some: list[Record]) -> list[Record]:
        with service.shelf.turn(annotator):
            return [annotation.to_dict() for annotation in annotator.annotate_batch(some)]

    with threads(1) as pool:
        annotator = yield from heard(pool.submit(service.shelf.annotator, name))
        while batch.done < batch.total:
            start = perf_counter()
            some = inputs[batch.done : batch.done + size]
            batch.add((yield from heard(pool.submit(judged, annotator, some))))
            seconds = max(perf_counter() - start, 1e-3)
            yield batch
            size = max(1, min(64, 2 * size, int(size * STEP_SECONDS / seconds)))


def batch_tab(service: Service) -> None:
    """Build the tab that annotates a file, inside a Blocks context."""
    limits = service.limits
    with gr.Row(equal_height=True):
        label = f"JSON Lines or CSV, up to {limits.records:,} records"
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
        show_search="search", max_height=420, wrap=True, label="Records; a click opens one", elem_id="batch-records",
        column_widths=[90, 260, *[130] * len(KINDS)],  # wide enough for the headers, also on a phone
    )  # fmt: skip
    opened = parts.views("", "batch-opened")
    kept = gr.State(None, time_to_live=parts.KEPT_SECONDS)
    nothing: Update = {result: NO_FILE, opened: "", records: gr.update(visible=False), kept: None}
    nothing |= {save: gr.update(value=None, interactive=False) for save in saves}
    off: Update = {stop: gr.update(interactive=False)}

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
        yield {**nothing, stop: gr.update(interactive=True)}
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

    outputs = [result, records, opened, kept, stop, *saves]
    running = run.click(work, [file, annotator], outputs, **parts.judging(limits))
    stop.click(None, cancels=[running], api_visibility="private")  # first, as in the tab of one answer
    running.failure(stopped, kept, [result, records, stop, *saves], **parts.QUICK)
    records.select(open_row, kept, opened, **parts.QUICK)
    file.change(lambda: nothing, None, outputs, **parts.QUICK)  # nothing of the file before is left


def batch_view(batch: Batch, *, stopped: bool = False) -> str:
    """Progress, totals and rejected lines."""
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
    """Build the tab that compares answers, inside a Blocks context."""
    found = parts.examples("compare")
    with gr.Row(equal_height=True):
        question = gr.Textbox(label="Question", max_lines=3, scale=3, min_width=220, elem_id="compare-question")
        annotator = parts.annotator_box(service.shelf)
    answers, replies = (
        gr.Dataframe(
            headers=[name, "text"], datatype="str", type="array", row_count=rows, column_count=2, wrap=True,
            interactive=True, label=label, column_widths=["22%", "78%"], elem_id=f"compare-{name}",
        )
        for name, rows, label in (
            ("model", 2, f"Two to {MAX_ANSWERS} answers"), ("llm", 2, "Reference answers: what other LLMs answer")
        )
    )  # fmt: skip
    with gr.Accordion("More: reference document, known wrong and right answers, how to score", open=False):
        reference = gr.Textbox(label="Reference document (the answers are then annotated)", lines=3, max_lines=8)
        with gr.Row():
            iw = gr.Textbox(label="Intentionally wrong answers, one a line", lines=3, max_lines=6)
            co = gr.Textbox(label="Corrected answers, one a line", lines=3, max_lines=6)
        with gr.Row():
            aggregation = gr.Dropdown(list(AGGREGATIONS), value="eq6", label="Aggregation")
            similarity = gr.Dropdown(list(SIMILARITIES), value="cosine", label="Similarity")
    others, loaded = (gr.State([], time_to_live=parts.KEPT_SECONDS) for _ in range(2))  # FEWL records
    gr.HTML("Examples", apply_default_css=False, elem_classes="mt mt-label")
    with gr.Row(elem_classes="mt-chips"):
        chips = [gr.Button(e["label"], size="sm", scale=0) for e in found]
    with gr.Row(elem_classes="mt-actions"):
        run = gr.Button("Compare", variant="primary", elem_id="compare", elem_classes="mt-run", scale=0)
        stop = gr.Button("Stop", scale=0, interactive=False, elem_id="compare-stop", elem_classes="mt-stop")
        load = gr.UploadButton("Load FEWL records", file_types=[".jsonl"], scale=0)
        picker = gr.Dropdown([], show_label=False, label="Record", container=False, visible=False, type="index")
    result = parts.views(NO_PAIR, "compared")
    boxes = [question, answers, replies, reference, iw, co, others]
    kept = gr.State(None, time_to_live=parts.KEPT_SECONDS)  # Compared
    on, off = ({stop: gr.update(interactive=active)} for active in (True, False))

    def compare(*values: Any) -> Iterator[Update]:
        *inputs, name, how, like = values
        record, document, neighbours = _read(inputs)
        token, steps = secrets.token_hex(4), dict[int, Step]()
        yield {result: parts.empty("Comparing …", "The answers are scored, then annotated."), kept: None, **on}
        try:
            if not 2 <= len(record["answers"]) <= MAX_ANSWERS:
                raise Refusal(f"Give two to {MAX_ANSWERS} answers, one a row; there are {len(record['answers'])}.")
            scored = None
            if record["reference_answers"]:
                with threads(1) as pool:
                    scoring = pool.submit(service.fewl, record, neighbours, how, like)
                    yield from (on for _ in heard(scoring))
                    scored = scoring.result()
            elif not document.strip():
                raise Refusal("Give at least one reference answer, or a reference document, to compare by.")
            shown = scored, steps, record["answers"], token
            yield {result: compare_view(*shown)}
            for i, answer in enumerate(record["answers"] if document.strip() else ()):
                for step in service.annotate_stepwise(record["question"], document, answer["text"], name):
                    if step is None:
                        yield on
                        continue
                    steps[i] = step
                    yield {result: compare_view(*shown), kept: shown}
            yield off
        except Refusal as error:
            yield {**off, result: parts.notice(str(error))}

    def stopped(shown: Compared | None) -> Update:
        return {**off, result: compare_view(*shown, stopped=True) if shown else NO_PAIR}

    def opened(path: str) -> Update:
        try:
            records, bad = read_uploaded(Path(path), service.limits, check_record)
        except Refusal as error:
            return {result: parts.notice(str(error)), loaded: [], picker: gr.update(visible=False, choices=[])}
        names = [f"{i}: {one_line(record['question'], 80)}" for i, record in enumerate(records, start=1)]
        lines = counted(len(bad), "line of the file was", "lines of the file were")
        told = parts.notice(f"{lines} rejected: {problems_of(bad[0])[:300]}") if bad else NO_PAIR
        picking = gr.update(choices=names, value=names[0], visible=True)
        return {loaded: records, picker: picking, result: told, **dict(zip(boxes, picked(0, records), strict=True))}

    def picked(number: int, records: list[Record]) -> list[Any]:
        return _filled(records[number], [*records[:number], *records[number + 1 :]][:MAX_NEIGHBOURS])

    load.upload(opened, load, [loaded, picker, result, *boxes], **parts.QUICK)
    picker.input(picked, [picker, loaded], boxes, **parts.QUICK)
    for chip, example in zip(chips, found, strict=True):
        chip.click(lambda e=example: _filled(e, e["others"]), None, boxes, **parts.QUICK)
    outputs = [result, kept, stop]
    running = run.click(compare, [*boxes, annotator, aggregation, similarity], outputs, **parts.judging(service.limits))
    stop.click(None, cancels=[running], api_visibility="private")
    running.failure(stopped, kept, outputs, **parts.QUICK)
    parts.marks_stale([*boxes[:-1], annotator, aggregation, similarity], "compared")


def _filled(record: Record, others: list[Record]) -> list[Any]:
    """The boxes of a FEWL record; ``others`` are neighbours."""
    given = record.get("reference_answers") or {}
    return [
        record["question"],
        [[a.get("model") or f"answer {i}", a["text"]] for i, a in enumerate(record["answers"], start=1)],
        [
            [name, text]
            for name, texts in given.items()
            for text in ([texts] if isinstance(texts, str) else texts or [])
        ],
        record.get("reference") or "",
        "\n".join(record.get("iw") or []),
        "\n".join(record.get("co") or []),
        others,
    ]


def _read(values: Sequence[Any]) -> tuple[Record, str, list[Record]]:
    """A FEWL record of the boxes, the reference document, the other questions."""
    question, answers, replies, reference, iw, co, others = values
    filled, given = ([[str(cell or "") for cell in row] for row in rows or []] for rows in (answers, replies))
    references: dict[str, list[str]] = {}
    for number, (name, text) in enumerate(given, start=1):
        if text.strip():
            references.setdefault(name.strip() or f"llm-{number}", []).append(text)
    record: Record = {
        "question": question or "",
        "answers": [
            {"text": text, "model": name.strip() or f"answer {i}"}
            for i, (name, text) in enumerate(filled, start=1) if text.strip()
        ],
        "reference_answers": references,
    }  # fmt: skip
    pairs = [[line.strip() for line in (box or "").splitlines() if line.strip()] for box in (iw, co)]
    record |= {"iw": pairs[0], "co": pairs[1]} if all(pairs) else {}
    return record, reference or "", others or []


def number(value: float | None) -> str:
    """0.1234 → "0.123"; None → "–"."""
    return "–" if value is None else f"{value:.3f}"


def compare_view(
    scored: Mapping[str, Any] | None,
    steps: Mapping[int, Step],
    answers: Sequence[Record],
    run: str,
    *,
    stopped: bool = False,
) -> str:
    """A table of the answers, the best first, the references, and each answer as far as it is annotated.

    ``scored`` is made by ``Service.fewl`` and None without reference answers; ``steps`` has how far the annotation of
    each answer came, by its place in ``answers`` ({"text", "model"}); ``run`` names the comparison.
    """
    rows = scored["answers"] if scored else [{} for _ in answers]
    judged = [Totals.of([steps[i][0]] if i in steps else []) for i in range(len(answers))]

    def rank(i: int) -> tuple[float, ...]:
        """By score, and without one by what was flagged and supported."""
        score = rows[i].get("score")
        return (-score if score is not None else 9.0, judged[i].hallucinated, -judged[i].kinds["supported"])

    head = ["answer", *(["FEWL score", *SCORE_PARTS] if scored else []), *(["verdict"] if steps else [])]
    lines = []
    for i in sorted(range(len(rows)), key=rank):
        name = f"<b><bdi>{escape(answers[i]['model'])}</bdi></b>"
        text = f'{name}<div class="text" dir="auto">{escape(one_line(answers[i]["text"], 300))}</div>'
        figures = [number(rows[i].get(key)) for key in ("score", *SCORE_PARTS)] if scored else []
        lines.append([text, *figures, *([verdict(judged[i])] if steps else [])])
    ranked = parts.pane("Answers, the best first", table(head, lines))
    views = "".join(
        f'<div class="stack"><h2><bdi>{escape(answers[i]["model"])}</bdi></h2>'
        f"{parts.annotated_view(*step, run=f'{run}{i}', with_reference=False, stopped=stopped)}</div>"
        for i, step in sorted(steps.items())
    )
    below = _references(scored) if scored else ""
    return f'<div class="stack">{ranked}<div class="columns">{views}</div>{below}</div>'


def _references(scored: Mapping[str, Any]) -> str:
    names = [escape(a.get("model") or f"answer {i}") for i, a in enumerate(scored["answers"], start=1)]
    rows = []
    for name, weight in scored["lambda"].items():
        texts = scored["reference_answers"][name]
        text = one_line(texts if isinstance(texts, str) else next(iter(texts), ""), 300)
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
    meaning = "Truthfulness is Σ λ·s, laziness the agreement with answers to other questions, which is taken off."
    head = ("reference LLM", "expertise λ", *(f"s(<bdi>{name}</bdi>, reference)" for name in names))
    return parts.pane(
        "Reference answers",
        f"{table(head, rows)}<p><small>{meaning} {weights} Aggregation {escape(how['aggregation'])}, similarity "
        f"{escape(how['similarity'])}, embeddings {escape(how['embedding'])}, {how['neighbours']} other questions."
        "</small></p>",
    )
