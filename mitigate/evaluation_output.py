"""What `mitigate evaluate annotator` shows: tables, judgements, the confusion matrix, text figures, comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mitigate.jsonl import dump_line

if TYPE_CHECKING:
    from annotators.evaluation import LabelledSentence
    from annotators.records import SentenceAnnotation

WIDE = 140  # columns that the intervals need
HEADINGS = {
    "coverage": "checked",
    "balanced_accuracy": "balanced acc.",
    "auc": "AUC",
    "accuracy": "accuracy",
    "macro_f1": "F1",
    "ece": "ECE",
}
LEGEND = (
    "Balanced accuracy, AUC, ECE: supported against hallucinated, gold no_fact left out. "
    "Accuracy, macro-F1: four labels. Unchecked rows count as wrong; AUC and ECE leave them out. "
    "Evidence: recall of the gold fragments' characters. [95 % interval over groups of rows] – = none."
)
TEXTS = {
    "rouge_l": "ROUGE-L",
    "bert_score": "BERTScore",
    "fragment_precision_3": "3-gram precision",
    "fragment_precision_4": "4-gram precision",
}
COMPARED = {"accuracy": "accuracy", "macro_f1": "F1", "balanced_accuracy": "balanced acc.", "auc": "AUC"}


def judgement_lines(
    rows: Sequence[LabelledSentence],
    judged: Sequence[SentenceAnnotation],
    annotator: str,
    *,
    parametric: bool,
) -> bytes:
    """One JSON line a row: what was asked about, gold, and what the annotator said; ``parametric`` marks its absence
    of a reference."""
    lines = []
    for row, found in zip(rows, judged, strict=True):
        asked = {
            k: row.row[k]
            for k in ("id", "split", "lang", "language", "question", "sentence")
            if row.row.get(k)
        }
        line: dict[str, Any] = {
            **asked,
            "source": row.source,
            "gold": row.row["label"],
            "annotator": annotator,
        }
        line |= {"parametric": True} if parametric else {}
        lines.append(
            dump_line(line | {k: v for k, v in found.to_dict().items() if k not in ("text", "start", "end")})
        )
    return b"".join(lines)


def draw_confusion(confusion: Mapping[str, Mapping[str, int]], title: str, path: Path) -> None:
    """A confusion matrix as PNG: rows are gold labels, columns predicted ones; shades are shares of the row.

    Args:
        confusion: Gold label → predicted label → number of rows.
        title: Above the picture.
        path: Where to write it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    gold = list(confusion)
    columns = list(next(iter(confusion.values())))
    counts = [[confusion[g][c] for c in columns] for g in gold]
    shares = [[n / max(1, sum(row)) for n in row] for row in counts]
    figure = Figure(figsize=(1.35 * len(columns) + 1.6, 0.95 * len(gold) + 1.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(gold)), gold)
    axes.set_xlabel("predicted")
    axes.set_ylabel("gold")
    axes.set_title(
        "".join(c if c.isprintable() else "\ufffd" for c in title).replace("$", r"\$"), fontsize=10
    )
    for y, row in enumerate(counts):
        for x, n in enumerate(row):
            colour = "white" if shares[y][x] > 0.6 else "black"
            axes.text(x, y, f"{n}\n{shares[y][x]:.0%}", ha="center", va="center", color=colour, fontsize=9)
    figure.savefig(path, dpi=110, format="png")


def text_table(result: Mapping[str, Any]) -> Any:
    """Figures of annotations as texts, overall, by language and by split, as a rich table."""
    from rich.markup import escape
    from rich.table import Table

    named = result["run"].get("bert_score_models") or {}
    caption = "BERTScore: " + ", ".join(f"{k} {escape(v)}" for k, v in named.items()) if named else None
    table = Table(title="Annotations as texts", caption=caption)
    table.add_column("rows", no_wrap=True)
    for heading in ("n", *TEXTS.values()):
        table.add_column(heading, justify="right", no_wrap=True)
    parts = {"all": result["overall"]}
    parts |= {f"language {k}": v for k, v in result["languages"].items()}
    parts |= {f"split {k}": v for k, v in result.get("splits", {}).items()}
    for name, part in parts.items():
        figures = part["texts"]
        cells = ["–" if figures[key] is None else f"{figures[key]:.3f}" for key in TEXTS]
        table.add_row(escape(name), str(figures["n_texts"]), *cells)
    return table


def comparison_table(compared: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> Any:
    """First minus second, with 95 % intervals, as a rich table."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        title=f"{escape(names[0])} minus {escape(names[1])} (paired, 95 % intervals over groups of rows)"
    )
    table.add_column("rows", no_wrap=True)
    for heading in ("n", *COMPARED.values()):
        table.add_column(heading, justify="right", no_wrap=True)
    for part, figures in compared.items():
        cells = []
        for key in COMPARED:
            found = figures[key]
            limits = f" \\[{found['low']:+.3f}, {found['high']:+.3f}]" if found["low"] is not None else ""
            cells.append("–" if found["difference"] is None else f"{found['difference']:+.3f}{limits}")
        table.add_row(escape(part), str(figures["n"]), *cells)
    return table


def print_tables(console: Any, result: Mapping[str, Any]) -> None:
    """Print figures per part, and what became of each gold label."""
    from rich.table import Table

    run, means = result["run"], result["mean_over_sources"]
    title = f"{run['annotator']['name']}, fold {run['fold']}, {result['overall']['n']} rows"
    table = Table(title=_plain(title))
    table.add_column("rows", no_wrap=True)
    for heading in ("n", *HEADINGS.values(), "evidence"):
        table.add_column(heading, justify="right", no_wrap=True)

    def add(
        name: str, n: str, values: Mapping[str, Any], intervals: Mapping[str, Any], recall: float | None
    ) -> None:
        shown = intervals if console.width >= WIDE else {}
        cells = [_figure(values[key], shown.get(key)) for key in HEADINGS]
        table.add_row(_plain(name), n, *cells, _figure(recall), end_section=not n)

    def add_part(name: str, part: Mapping[str, Any]) -> None:
        add(name, str(part["n"]), part, part["intervals"], part["evidence"]["recall"])

    add_part("all", result["overall"])
    values, intervals = ({k: mean[what] for k, mean in means.items()} for what in ("value", "interval"))
    add(f"mean of {len(result['sources'])} sources", "", values, intervals, None)
    for name, part in result["sources"].items():
        add_part(name, part)
    if len(result["languages"]) > 1:
        for name, part in result["languages"].items():
            add_part(f"language {name}", part)
    for name, part in result.get("splits", {}).items():
        add_part(f"split {name}", part)
    console.print(table)
    labels = Table(title="What became of each gold label")
    columns = ("supported", "contradictory", "unverifiable", "no_fact", "unchecked")
    labels.add_column("gold", no_wrap=True)
    for name in ("n", "right", *columns):
        labels.add_column(name, justify="right", no_wrap=True)
    for name, row in result["labels"].items():
        counts = [str(row["predicted"].get(c, 0)) for c in columns]
        labels.add_row(name, str(row["n"]), _figure(row["recall"]), *counts)
    console.print(labels)
    console.print(LEGEND, markup=False, style="dim")


def _figure(value: float | None, interval: Sequence[float] | None = None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" + (f" \\[{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def _plain(text: str) -> str:
    """Text of a file, made safe to print: no terminal codes, no markup."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else "\ufffd" for c in text))
