"""Counts in words, and progress of long work.

That is a bar in a terminal, else a line every tenth of the way, ten seconds apart at least.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

APART = 10.0
"""Seconds between two lines: short work prints none."""


class Tell(Protocol):
    """Called with how much is done and, where there is one, a note to show beside it."""

    def __call__(self, done: int, note: str = "") -> None: ...


def counted(n: int, one: str, many: str = "") -> str:
    """A number before what it counts: "1 record", "2,000 records".

    Args:
        n: How many.
        one: What a single one is called.
        many: What all others are called; without it ``one`` and an s.
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


@contextmanager
def progress(what: str, total: int, done: int = 0) -> Iterator[Tell]:
    """Shows progress on standard error while the block runs.

    Args:
        what: The work, in a word or two.
        total: Steps in all.
        done: Of them done before.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )  # fmt: skip
        with Progress(*columns, console=console, disable=done >= total, transient=True) as bar:
            task = bar.add_task(what, total=total, completed=done, note="")
            yield lambda done, note="": bar.update(task, completed=done, note=note)
        return
    last, said = done * 10 // max(total, 1), time.monotonic()

    def tell(done: int, note: str = "") -> None:
        nonlocal last, said
        tenth = done * 10 // max(total, 1)
        if tenth > last and time.monotonic() - said >= APART:
            last, said = tenth, time.monotonic()
            print(f"{what}: {done:,} of {total:,} {note}".rstrip(), file=sys.stderr, flush=True)

    yield tell
