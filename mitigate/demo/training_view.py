"""What the Training tab shows of a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from annotators.records import hallucination_rate
from mitigate.demo.curves import figures, short, sorted_curves
from mitigate.demo.training import Run
from mitigate.demo.view import annotated_view
from mitigate.report_html import escape

SHOWN_PAIRS = 20
SHOWN_FIGURES = 40


def run_view(run: Run) -> str:
    """Recipe, curves, final figures, and answers before and after."""
    about = run.config.get("about")
    kind = run.config.get("kind")
    head = (
        f'<section class="pane"><h3><bdi>{escape(run.path.name)}</bdi>'
        f"<small>{escape(str(kind)) if kind else 'kind not known'}</small></h3>"
        f"<p>{escape(str(about)) if about else ''}</p>{_settings(run.config)}</section>"
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in run.notes)
    told = f'<div class="note" role="status">{notes}</div>' if notes else ""
    return f'<div class="stack">{head}{told}{_curves(run)}{_final(run.figures)}{_pairs(run)}</div>'


def _curves(run: Run) -> str:
    first, others = sorted_curves(list(run.curves))
    parts = [figures(run.curves, first)] if first else []
    if others:
        drawn = figures(run.curves, others)
        parts.append(
            f"<details{'' if first else ' open'}><summary>Other curves, {len(others)}</summary>{drawn}</details>"
        )
    return "".join(parts)


def _settings(config: Mapping[str, Any]) -> str:
    if not config:
        return ""
    text = json.dumps(config, ensure_ascii=False, indent=1, default=str)
    return f'<details><summary>Recipe</summary><pre class="text">{escape(text[:20_000])}</pre></details>'


def _final(found: Mapping[str, Any]) -> str:
    flat = [(k, v) for k, v in _flat("", found) if isinstance(v, int | float | str)][:SHOWN_FIGURES]
    if not flat:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="number">'
        f"{escape(value[:200]) if isinstance(value, str) else short(value)}</td></tr>"
        for name, value in flat
    )
    return f'<details><summary>Final figures</summary><table class="plain">{rows}</table></details>'


def _flat(prefix: str, value: object) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [pair for k, v in value.items() for pair in _flat(f"{prefix} {k}".strip(), v)]
    if isinstance(value, list):
        return [pair for i, v in enumerate(value, start=1) for pair in _flat(f"{prefix} {i}".strip(), v)]
    return [(prefix, value)]


def _pairs(run: Run) -> str:
    if not run.pairs:
        return ""
    shown = []
    for number, (before, after) in enumerate(run.pairs[:SHOWN_PAIRS], start=1):
        question = next(
            (str(side["question"]) for side in (before, after) if side and side.get("question")), ""
        )
        columns = "".join(
            f'<div class="stack"><h3>{name}</h3>{_side(side, f"{number}{name}")}</div>'
            for name, side in (("Before", before), ("After", after))
        )
        title = f"<bdi>{escape(question[:300])}</bdi>" if question else f"Sample {number}"
        shown.append(
            f'<details{" open" if number == 1 else ""}><summary>{title}</summary><div class="columns">{columns}</div>'
            "</details>"
        )
    more = len(run.pairs) - SHOWN_PAIRS
    rest = f'<p class="small">and {more:,} more in samples.jsonl</p>' if more > 0 else ""
    return f'<div class="stack"><h3>Answers before and after</h3>{"".join(shown)}{rest}</div>'


def _side(record: Mapping[str, Any] | None, run: str) -> str:
    if record is None:
        return '<p class="small">No answer was kept.</p>'
    whole = whole_record(record)
    if whole is None:
        return (
            f'<div class="answer text" dir="auto">{escape(record["answer"])}</div>'
            '<p class="small">This answer was not annotated.</p>'
        )
    return annotated_view(whole, run=run, with_reference=False)


def whole_record(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record with all that a view reads, or None where its sentences are missing or not those of its answer."""
    answer, place, sentences = record["answer"], 0, []
    if not isinstance(record.get("sentences"), list) or not record["sentences"]:
        return None
    reference = record.get("reference")
    reference = reference if isinstance(reference, str) else ""
    for found in record["sentences"]:
        try:
            start, end = int(found["start"]), int(found["end"])
            fits = place <= start < end and answer[start:end] == found["text"]
            label, status = found["label"], str(found["status"])
        except (KeyError, TypeError, ValueError):
            return None
        if not fits or not (label is None or isinstance(label, str)):
            return None
        place = end
        plain = {"text": found["text"], "start": start, "end": end, "status": status, "label": label}
        sentences.append(
            {**plain, "scores": None, "fragments": [], "correction": [], **_extras(found, reference, answer)}
        )
    rate = hallucination_rate(sentence["label"] for sentence in sentences)
    return {**record, "reference": reference, "sentences": sentences, "hallucination_rate": rate}


def _extras(found: Mapping[str, Any], reference: str, answer: str) -> dict[str, Any]:
    """Scores, fragments and corrections of a sentence, where they are as they should be."""
    from annotators.records import LABELS

    extras: dict[str, Any] = {}
    scores = found.get("scores")
    if isinstance(scores, dict) and all(isinstance(scores.get(label), int | float) for label in LABELS):
        extras["scores"] = scores
    for name, key, text in (("fragments", "text", reference), ("correction", "from", answer)):
        rows = found.get(name)
        if isinstance(rows, list):
            extras[name] = [
                row
                for row in rows
                if isinstance(row, dict)
                and isinstance(row.get("start"), int)
                and isinstance(row.get("end"), int)
                and 0 <= row["start"] < row["end"]
                and text[row["start"] : row["end"]] == row.get(key)
                and isinstance(row.get("to", ""), str)
            ]
    return extras
