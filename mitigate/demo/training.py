"""The tab that opens a run folder: what was asked, the curves, and answers before and after.

Anything may be missing, half written or broken: a run that is still going has no end, an interrupted one no "after".
What is wrong is said (``notes``) and the rest is shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gradio as gr
import yaml

from annotators.records import LABELS
from mitigate.demo import parts
from mitigate.demo.limits import Refusal
from mitigate.recipes.folder import CONFIG, DONE, METRICS, SAMPLES
from mitigate.report.html import Point, curves_of, escape, figures, pairs_of

MAX_BYTES = 64 * 2**20  # of a file that is read whole; of longer ones the first part is shown
SHOWN_PAIRS = 20
MAX_CHARACTERS = 20_000  # of a recipe
NO_RUN = parts.empty(
    "Curves and answers of a training run appear here.",
    "Choose a run folder, as <code>mitigate run RECIPE.yaml --output DIR</code> writes it.",
)
Row = Mapping[str, Any]


@dataclass
class Run:
    """What is in a run folder.

    Attributes:
        config: The recipe.
        curves: Name → (step, value) in order of steps.
        pairs: (before, after) answers to one question; either may be None.
        figures: The final figures of a complete run.
        notes: What is missing or broken.
    """

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, list[Point]] = field(default_factory=dict)
    pairs: list[tuple[Row | None, Row | None]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


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
    result = parts.views(NO_RUN, "trained")

    def show(name: str | None) -> str:
        try:
            return run_view(read_run(open_folder(root, name or "", any_folder)))
        except Refusal as error:
            return parts.notice(str(error))

    open_.click(show, folder, result, **{**parts.QUICK, "queue": True})
    again.click(lambda: gr.update(choices=run_folders(root)), None, folder, **parts.QUICK)


def run_folders(root: Path) -> list[str]:
    """Names of the run folders in a folder, up to two levels deep, the newest first."""
    found = [file.parent for pattern in (f"*/{CONFIG}", f"*/*/{CONFIG}") for file in root.glob(pattern)]
    found.sort(key=lambda path: (path / CONFIG).stat().st_mtime, reverse=True)
    return [str(path.relative_to(root)) for path in found]


def open_folder(root: Path, name: str, any_folder: bool) -> Path:
    """The folder of that name.

    Args:
        root: Folder of run folders; names count from it.
        name: A name of ``run_folders``, or any path where that is allowed.
        any_folder: Whether folders elsewhere may be named.

    Raises:
        Refusal: There is none, or it is not offered.
    """
    name = name.strip()
    if not name:
        raise Refusal("Choose a run folder first.")
    path = root / name
    if not path.is_dir() and any_folder:
        path = Path(name).expanduser()
    if not (any_folder or path.resolve().is_relative_to(root.resolve())):
        raise Refusal(f"{name} is not in the folder of runs that this page shows.")
    if not path.is_dir():
        raise Refusal(f"There is no folder {name}. `mitigate run RECIPE.yaml --output DIR` makes one.")
    if not any((path / file).is_file() for file in (CONFIG, METRICS, SAMPLES)):
        raise Refusal(f"{name} is no run folder: it has no {CONFIG}, {METRICS} or {SAMPLES}.")
    return path


def read_run(path: Path) -> Run:
    """Everything that the page shows of a run folder."""
    run = Run(path)
    run.config = _object(run, CONFIG, yaml.safe_load, f"{CONFIG} is not there.")
    run.curves = curves_of(_rows(run, METRICS))
    if (path / METRICS).is_file() and not run.curves:
        run.notes.append(f"{METRICS} has no figures yet.")
    run.pairs = pairs_of(_rows(run, SAMPLES))
    not_complete = "The run is not complete: it is still going, or was interrupted."
    run.figures = _object(run, DONE, json.loads, not_complete)
    return run


def _object(run: Run, name: str, parse: Callable[[str], Any], none: str) -> dict[str, Any]:
    """The object that a file holds, empty where it can't be read; ``none`` is said where it is not there."""
    try:
        found = parse((run.path / name).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    except FileNotFoundError:
        run.notes.append(none)
    except (OSError, ValueError, yaml.YAMLError) as error:
        run.notes.append(f"{name} can't be read: {' '.join(str(error).split())[:200]}.")
    return {}


def _rows(run: Run, name: str) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file; what is no object is counted."""
    try:
        with (run.path / name).open("rb") as file:
            lines = file.read(MAX_BYTES).split(b"\n")
    except FileNotFoundError:
        run.notes.append(f"{name} is not there yet.")
        return
    except OSError as error:
        run.notes.append(f"{name} can't be read: {error.strerror or error}.")
        return
    bad = 0
    for line in filter(bytes.strip, lines[:-1]):  # behind the last line break: nothing, or half a line
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            yield row
        else:
            bad += 1
    if bad:
        run.notes.append(f"{bad:,} lines of {name} are no JSON objects and were left out.")


def run_view(run: Run) -> str:
    """Recipe, curves, final figures, and answers before and after."""
    about, task = run.config.get("about"), run.config.get("task")
    head = parts.pane(
        f"<bdi>{escape(run.path.name)}</bdi>",
        f"<p>{escape(str(about)) if about else ''}</p>{_folded('Recipe', run.config)}",
        escape(str(task)) if task else "task not known",
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in run.notes)
    told = f'<div class="note" role="status">{notes}</div>' if notes else ""
    final = _folded("Final figures", run.figures)
    return f'<div class="stack">{head}{told}{figures(run.curves)}{final}{_answers(run)}</div>'


def _folded(title: str, found: Row) -> str:
    if not found:
        return ""
    text = json.dumps(found, ensure_ascii=False, indent=1, default=str)
    return f'<details><summary>{title}</summary><pre class="text">{escape(text[:MAX_CHARACTERS])}</pre></details>'


def _answers(run: Run) -> str:
    if not run.pairs:
        return ""
    shown = []
    for number, pair in enumerate(run.pairs[:SHOWN_PAIRS], start=1):
        question = next((str(side["question"]) for side in pair if side and side.get("question")), "")
        columns = "".join(
            f'<div class="stack"><h2>{name}</h2>{_side(side, f"{number}{name}")}</div>'
            for name, side in zip(("Before", "After"), pair, strict=True)
        )
        title = f"<bdi>{escape(question[:300])}</bdi>" if question else f"Sample {number}"
        shown.append(
            f'<details{" open" if number == 1 else ""}><summary>{title}</summary><div class="columns">{columns}</div>'
            "</details>"
        )
    more = len(run.pairs) - SHOWN_PAIRS
    rest = f"<p><small>and {more:,} more in {SAMPLES}</small></p>" if more > 0 else ""
    return f'<div class="stack"><h2>Answers before and after</h2>{"".join(shown)}{rest}</div>'


def _side(record: Row | None, run: str) -> str:
    if record is None:
        return "<p><small>No answer was kept.</small></p>"
    if (whole := whole_record(record)) is not None:
        return parts.annotated_view(whole, run=run, with_reference=False)
    text = f'<div class="answer" dir="auto">{escape(record["answer"])}</div>'
    return f"{text}<p><small>This answer was not annotated.</small></p>"


def whole_record(record: Row) -> dict[str, Any] | None:
    """The record with all that a view reads, or None where its sentences are missing or not those of its answer."""
    answer, reference, place, sentences = record["answer"], record.get("reference"), 0, []
    reference = reference if isinstance(reference, str) else ""
    if not isinstance(record.get("sentences"), list) or not record["sentences"]:
        return None
    for found in record["sentences"]:
        if not _stands(found, "text", answer, place) or found.get("label") not in (None, *LABELS):
            return None
        place, scores = found["end"], found.get("scores")
        known = isinstance(scores, dict) and all(isinstance(scores.get(name), int | float) for name in LABELS)
        changed = {"scores": scores if known else None, "status": str(found.get("status"))}
        for name, key, text in (("fragments", "text", reference), ("correction", "from", answer)):
            rows = found.get(name) if isinstance(found.get(name), list) else []
            changed[name] = [
                {"to": "", **row} for row in rows if _stands(row, key, text) and isinstance(row.get("to", ""), str)
            ]
        sentences.append({**{name: found.get(name) for name in ("text", "start", "end", "label")}, **changed})
    return {**record, "reference": reference, "sentences": sentences, "annotator": {}}


def _stands(row: object, key: str, text: str, after: int = 0) -> bool:
    """Whether a sentence, fragment or correction stands in the text where it says."""
    if not isinstance(row, dict):
        return False
    start, end = row.get("start"), row.get("end")
    return isinstance(start, int) and isinstance(end, int) and after <= start < end and text[start:end] == row.get(key)
