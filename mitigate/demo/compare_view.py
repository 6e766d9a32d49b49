"""What the Compare tab shows: two answers side by side, their FEWL scores and the parts of them, and λ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mitigate.demo.view import bar
from mitigate.report_html import escape

Record = Mapping[str, Any]
EMPTY = (
    '<div class="empty"><p><b>Two answers, side by side, appear here.</b></p><p>Pick an example, or give two answers '
    "and what one or more LLMs answer to the same question.</p></div>"
)


def number(value: float | None) -> str:
    """0.1234 → "0.123"; None → "–"."""
    return "–" if value is None else f"{value:.3f}"


def compare_view(
    scored: Record | None, annotated: Sequence[str], answers: Sequence[Mapping[str, Any]]
) -> str:
    """Both answers with their scores, then the references.

    Args:
        scored: Of ``scoring.fewl_record``; None without reference answers.
        annotated: A view of each answer; "" where it was not judged.
        answers: {"text", "model"} of each answer.
    """
    rows = scored["answers"] if scored else [{} for _ in answers]
    known = [row.get("score") for row in rows]
    best = max((s for s in known if s is not None), default=None)
    alone = sum(s == best for s in known) == 1 and sum(s is not None for s in known) > 1
    columns = []
    for answer, row, view in zip(answers, rows, annotated, strict=True):
        crown = '<span class="best">higher FEWL score</span>' if alone and row.get("score") == best else ""
        score = (
            f'<div class="score"><b>{number(row["score"])}</b><span>FEWL score</span>{crown}</div>{_parts(row)}'
            if scored
            else ""
        )
        text = view or f'<div class="answer text" dir="auto">{escape(answer["text"])}</div>'
        columns.append(
            f'<div class="stack"><section class="pane"><h3><bdi>{escape(answer["model"])}</bdi></h3>{score}</section>'
            f"{text if view else f'<section class=pane>{text}</section>'}</div>"
        )
    below = _references(scored) if scored else ""
    return f'<div class="stack"><div class="columns">{"".join(columns)}</div>{below}</div>'


def _parts(row: Record) -> str:
    lazy = row["laziness"]
    rows = [
        (
            "truthfulness",
            row["truthfulness"],
            "Σ λ·s, agreement with the reference answers; higher is better",
        ),
        ("laziness", lazy, "agreement with the answers to other questions; taken off the score"),
    ]
    cells = "".join(
        f'<tr title="{meaning}"><th scope="row">{name}</th><td>'
        f'<i class="plain" style="width:{100 * min(max(value or 0.0, 0.0), 1.0):.1f}%"></i></td>'
        f"<td>{number(value)}</td></tr>"
        for name, value, meaning in rows
    )
    none = (
        '<p class="small">No laziness penalty: there are no other questions to compare with.</p>'
        if lazy is None
        else ""
    )
    return f'<table class="scores">{cells}</table>{none}'


def _references(scored: Record) -> str:
    answers, lambdas = scored["answers"], scored["lambda"]
    heads = "".join(
        f'<th scope="col">s(<bdi>{escape(a.get("model") or f"answer {i}")}</bdi>, reference)</th>'
        for i, a in enumerate(answers, start=1)
    )
    rows = "".join(
        f'<tr><td class="wide"><b><bdi>{escape(name)}</bdi></b><br><span class="text" dir="auto">'
        f"{escape(_first(scored['reference_answers'][name]))}</span></td>"
        f'<td class="number">{bar([("plain", weight)], "weight")}{number(weight)}</td>'
        + "".join(f'<td class="number">{number(a["similarity"].get(name))}</td>' for a in answers)
        + "</tr>"
        for name, weight in lambdas.items()
    )
    how = scored["scored_with"]
    weights = (
        "λ is high for a reference LLM that is nearer to the corrected than to the intentionally wrong answers."
        if how["expertise"] == "similarity"
        else "All λ are equal: without intentionally wrong and corrected answers nothing tells who is the expert."
    )
    return (
        '<section class="pane"><h3>Reference answers</h3><div class="wrap"><table class="plain"><thead><tr>'
        f'<th scope="col">reference LLM</th><th scope="col">expertise λ</th>{heads}</tr></thead><tbody>{rows}</tbody>'
        f'</table></div><p class="small">{weights} Aggregation {escape(how["aggregation"])}, similarity '
        f"{escape(how['similarity'])}, embeddings {escape(how['embedding'])}, {how['neighbours']} other questions."
        "</p></section>"
    )


def _first(texts: object) -> str:
    found = texts if isinstance(texts, str) else next((t for t in texts or [] if t), "")  # type: ignore[attr-defined]
    return found if len(found) <= 300 else found[:299] + "…"
