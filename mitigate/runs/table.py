"""The final table on the terminal: before and after, with n and interval."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mitigate.report import percent, printable

HEADINGS = (
    "questions",
    "when",
    "answers",
    "hallucinated",
    "95 % interval",
    "supported",
    "sentences",
    "silent",
)
WIDTH = 100  # columns where the output is no terminal


def cells(row: Mapping[str, Any]) -> list[str]:
    """One row of the table, in the order of HEADINGS."""
    low_high = row["interval"]
    return [
        row["set"],
        row["when"],
        f"{row['answers']:,}",
        f"{percent(row['rate'])} of {row['factual']:,}",
        f"{percent(low_high[0])} to {percent(low_high[1])}" if low_high else "–",
        *(f"{row[name]:.2f}" if row[name] is not None else "–" for name in ("supported", "sentences")),
        percent(row["silent"]),
    ]


def judges(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """ "name (fingerprint)" of every annotator that judged."""
    found = [row["annotator"] for row in samples]
    return list(dict.fromkeys(f"{who.get('name', '')} ({who.get('fingerprint', '')})" for who in found))


def by_reward(table: Sequence[Mapping[str, Any]]) -> str:
    """What the reward's annotator says where it is not the judge, "" where it is."""
    rates = [
        f"{row['set']}, {row['when']}: {percent(row['by_reward'])}"
        for row in table
        if row["by_reward"] is not None
    ]
    return f"Hallucinated by the annotator of the reward: {'; '.join(rates)}." if rates else ""


def print_table(table: Sequence[Mapping[str, Any]], judged_by: Sequence[str]) -> None:
    """Print the table with what it means.

    Args:
        table: Of ``judging.compare``.
        judged_by: Of ``judges``.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(title="Answers before and after", title_justify="left")
    for name in HEADINGS:
        shown.add_column(name, justify="left" if name in HEADINGS[:2] else "right")
    for row in table:
        shown.add_row(*map(Text, cells(row)))
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print(shown)
    note = (
        f"Judged by {printable('; '.join(judged_by))}. Hallucinated: of factual sentences. Supported (repeats "
        f"once) and sentences: an answer's mean. Silent: answers without a fact. Interval over "
        f"answers. {by_reward(table)}"
    )
    console.print(Text(note.strip()))
