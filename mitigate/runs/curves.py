"""curves.png of a run folder: what the trainer logged, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mitigate.whole_file import whole_file

PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("reward", {"reward": "mean reward", "rewards/margins": "preference margin"}),
    (
        "hallucinated, training samples",
        {
            "factuality/hallucination_rate": "by the reward's annotator",
            "judge/hallucination_rate": "by the judge",
        },
    ),
    (
        "sentences an answer",
        {"factuality/sentences": "all", "judge/supported": "supported and distinct, by the judge"},
    ),
    ("KL to the starting model", {"kl": "estimate"}),
    ("loss", {"loss": "loss"}),
)
"""Title → metric → its name in the legend; a panel without any of its metrics is left out."""
SMOOTHED = 5  # steps of the running mean that is drawn over the points


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the panels that have something to show.

    Args:
        rows: Of metrics.jsonl.
        path: The PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    known = [
        (title, {m: n for m, n in metrics.items() if any(m in row for row in rows)})
        for title, metrics in PANELS
    ]
    panels = [(title, metrics) for title, metrics in known if metrics]
    figure = Figure(figsize=(max(3.4 * len(panels), 3.4), 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (title, metrics) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        for metric, name in metrics.items():
            points = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
            (line,) = axes.plot(*zip(*points, strict=True), ".", alpha=0.35, markersize=4)
            values = [y for _, y in points]
            means = [
                sum(values[max(0, i - SMOOTHED + 1) : i + 1]) / min(i + 1, SMOOTHED)
                for i in range(len(values))
            ]
            axes.plot([x for x, _ in points], means, color=line.get_color(), label=name)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        if "hallucinated" in title:
            axes.set_ylim(0, 1)
        if len(metrics) > 1:
            axes.legend(fontsize=8)
    with whole_file(path) as part:
        figure.savefig(part, dpi=130, format="png")
