"""The two figures: models by mean score with intervals, and agreement with wrong and corrected answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fewl.ranking import Ranking

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_ranking(ranking: Ranking, path: Path) -> None:
    """Write a PNG (or what the suffix says) of the ranking with its 95 % intervals."""
    rows = [
        (f"{row.model} (n={row.n})", row.mean, row.low, row.high)
        for row in reversed(ranking.models)
        if row.mean is not None and row.low is not None and row.high is not None
    ]
    figure = _figure(6.4, 1.2 + 0.32 * len(rows))
    axes = figure.add_subplot()
    for place, (_, mean, low, high) in enumerate(rows):
        axes.plot([low, high], [place, place], color="0.6", linewidth=2, zorder=1)
        axes.scatter([mean], [place], color="C0", zorder=2)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set_xlabel("mean FEWL score, 95 % bootstrap interval (higher is better)")
    figure.savefig(path, dpi=150)


def plot_agreement(counts: Mapping[str, Sequence[tuple[int, int]]], path: Path) -> None:
    """Write box plots of how many wrong and corrected answers each LLM agrees with (the paper's Figure 4)."""
    figure = _figure(6.4, 4.0)
    axes = figure.add_subplot()
    labels, values = [], []
    for name, rows in counts.items():
        labels += [f"{name}\nwrong", f"{name}\ncorrected"]
        values += [[wrong for wrong, _ in rows], [corrected for _, corrected in rows]]
    axes.boxplot(values)
    axes.set_xticks(range(1, len(labels) + 1), labels)
    axes.set_ylabel("answers agreed with, per question")
    figure.savefig(path, dpi=150)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
