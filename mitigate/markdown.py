"""Tables for result pages, with every cell made safe: no markup, no bars, one line."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table; whole numbers get thousands separators."""
    lines = ["|".join(["", *("---" for _ in head), ""])]
    shown = [[f" {cell(value)} " for value in row] for row in (head, *rows)]
    first, *rest = ["|".join(["", *row, ""]) for row in shown]
    return [first, *lines, *rest]


def cell(value: object) -> str:
    """One cell."""
    if isinstance(value, int):
        return f"{value:,}"
    text = escape(" ".join(str(value).split()), quote=False)
    return text.replace("|", "&#124;").replace("[", "&#91;").replace("`", "&#96;")
