"""Curves of a run as small SVG figures, all text escaped, the last value in words beside the name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from annotators.records import LABELS
from mitigate.report_html import escape

Point = tuple[float, float]
WIDTH, HEIGHT = 320, 150
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 22


def sorted_curves(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names of curves to show first (rewards, hallucination rates, shares of labels), and the others."""

    def rank(name: str) -> int:
        if label_of(name) is not None:
            return 2
        low = name.lower()
        return 1 if "hallucinat" in low else 0 if "reward" in low and "std" not in low else 3

    first = sorted((name for name in names if rank(name) < 3), key=rank)
    return first, [name for name in names if rank(name) == 3]


def label_of(name: str) -> str | None:
    """The label that a curve counts: the last part of its name, "factuality/supported" and the like."""
    last = name.replace(".", "/").rsplit("/", 1)[-1].lower()
    return next((label for label in LABELS if last in (label, f"{label}_rate", f"{label}_share")), None)


def figures(curves: Mapping[str, Sequence[Point]], names: Sequence[str]) -> str:
    """The figures of some curves."""
    return f'<div class="curves">{"".join(figure(name, curves[name]) for name in names)}</div>'


def figure(name: str, points: Sequence[Point]) -> str:
    """One curve, from the lowest to the highest value; (step, value), at least one, in order of steps."""
    (first, start), (last, end) = points[0], points[-1]
    low, high = min(y for _, y in points), max(y for _, y in points)
    floor, ceiling = (low, high) if high > low else (low - 0.5, high + 0.5)
    width = max(last - first, 1e-9)
    places = [
        (
            LEFT + (WIDTH - LEFT - RIGHT) * (x - first) / width,
            TOP + (HEIGHT - TOP - BOTTOM) * (1 - (y - floor) / (ceiling - floor)),
        )
        for x, y in points
    ]
    path = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dot = f'<circle cx="{places[-1][0]:.1f}" cy="{places[-1][1]:.1f}" r="3"/>'
    ground = HEIGHT - BOTTOM
    label = label_of(name)
    told = f"from {short(start)} at step {short(first)} to {short(end)} at step {short(last)}"
    return (
        f"<figure><figcaption>{escape(name)}<span>{short(end)}</span></figcaption>"
        f'<svg class="curve {label or ""}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(name)}: {told}">'
        f'<line x1="{LEFT}" y1="{TOP}" x2="{WIDTH - RIGHT}" y2="{TOP}"/>'
        f'<line x1="{LEFT}" y1="{ground}" x2="{WIDTH - RIGHT}" y2="{ground}"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 4}" text-anchor="end">{short(ceiling)}</text>'
        f'<text x="{LEFT - 6}" y="{ground + 4}" text-anchor="end">{short(floor)}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{short(first)}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">step {short(last)}</text>'
        f'<path d="{path}"/>{dot}</svg></figure>'
    )


def short(value: float) -> str:
    """A number in few characters: 1,200 · 0.358 · 1e-05."""
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:.3g}"
