"""How commands print their results and what they note about how a result was made."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_json(result: Mapping[str, Any]) -> None:
    """Print a result as one JSON object on one line, with escapes where the terminal cannot show a character."""
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    try:
        print(json.dumps(result, ensure_ascii=ascii_only, allow_nan=False))
    except UnicodeEncodeError:  # a lone surrogate
        print(json.dumps(result, allow_nan=False))


def console(width: int) -> Console:
    """A console as wide as the terminal; ``width`` columns where the output is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, highlight=False)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: bool = False, **settings: Any) -> Table:
    """A table with these headings and rows; with ``right`` all columns but the first stand right and do not wrap."""
    from rich.table import Table

    shown = Table(**settings)
    for place, heading in enumerate(headings):
        shown.add_column(heading, justify="right" if right and place else "left", no_wrap=right)
    for row in rows:
        shown.add_row(*row)
    return shown


def plain(text: object) -> str:
    """Text of a file, made safe to print: no terminal codes, no markup."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else "\ufffd" for c in str(text)))


def figure(value: float | None, digits: int = 3) -> str:
    """A number with so many digits; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def versions(*packages: str) -> dict[str, str | None]:
    """The versions of Python, the toolkit and these packages; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("hallucination-toolkit", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def sha256(path: Path) -> str:
    """The digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    """All options, the input's digest and the versions, so that a result can be made again."""
    options = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(args).items()
        if not (callable(value) or isinstance(value, partial))
    }
    return {
        "options": options,
        "input_sha256": sha256(args.input),
        "versions": versions("numpy", "torch", "sentence-transformers"),
    }
