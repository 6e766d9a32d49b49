"""A run folder read for the page: what was asked, the curves, and answers before and after.

Anything may be missing, half written or broken: a run that is still going has no end, an interrupted one no "after".
What is wrong is said (``notes``) and the rest is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mitigate.demo.limits import Refusal
from mitigate.recipes.folder import CONFIG, DONE, METRICS, SAMPLES

MAX_BYTES = 64 * 2**20
"""Of a file that is read whole; of longer ones the first part is shown."""
MAX_POINTS = 400
"""Of one curve; more are thinned out evenly."""

Point = tuple[float, float]


@dataclass
class Run:
    """What is in a run folder.

    Attributes:
        config: The recipe.
        curves: Name → (step, value) in order of steps.
        pairs: (before, after) answers to one question; either may be None.
        figures: The final figures of a complete run.
        notes: What is missing or broken.
    """

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, list[Point]] = field(default_factory=dict)
    pairs: list[tuple[dict[str, Any] | None, dict[str, Any] | None]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def run_folders(root: Path) -> list[str]:
    """Names of the run folders in a folder, up to two levels deep, the newest first."""
    found = [file.parent for pattern in (f"*/{CONFIG}", f"*/*/{CONFIG}") for file in root.glob(pattern)]
    found.sort(key=lambda path: (path / CONFIG).stat().st_mtime, reverse=True)
    return [str(path.relative_to(root)) for path in found]


def open_folder(root: Path, name: str, any_folder: bool) -> Path:
    """The folder of that name.

    Args:
        root: Folder of run folders; names count from it.
        name: A name of ``run_folders``, or any path where that is allowed.
        any_folder: Whether folders elsewhere may be named.

    Raises:
        Refusal: There is none, or it is not offered.
    """
    name = (name or "").strip()
    if not name:
        raise Refusal("Choose a run folder first.")
    path = root / name
    if not path.is_dir() and any_folder:
        path = Path(name).expanduser()
    inside = path.resolve().is_relative_to(root.resolve())
    if not (inside or any_folder):
        raise Refusal(f"{name} is not in the folder of runs that this page shows.")
    if not path.is_dir():
        raise Refusal(f"There is no folder {name}. `mitigate run RECIPE.yaml --output DIR` makes one.")
    if not any((path / file).is_file() for file in (CONFIG, METRICS, SAMPLES)):
        raise Refusal(f"{name} is no run folder: it has no {CONFIG}, {METRICS} or {SAMPLES}.")
    return path


def read_run(path: Path) -> Run:
    """Everything that the page shows of a run folder."""
    run = Run(path)
    run.config = _config(run)
    for row in _rows(run, METRICS):
        numbers = {name: float(value) for name, value in row.items() if _is_number(value)}
        step = numbers.pop("step", None)
        if step is not None:
            for name, value in numbers.items():
                run.curves.setdefault(name, []).append((step, value))
    run.curves = {name: _thinned(sorted(points)) for name, points in run.curves.items()}
    if (path / METRICS).is_file() and not run.curves:
        run.notes.append(f"{METRICS} has no figures yet.")
    run.pairs = _pairs(list(_rows(run, SAMPLES)))
    if (path / DONE).is_file():
        try:
            found = json.loads((path / DONE).read_text(encoding="utf-8"))
            run.figures = found if isinstance(found, dict) else {}
        except (OSError, ValueError) as error:
            run.notes.append(f"{DONE} can't be read: {error}.")
    else:
        run.notes.append("The run is not complete: it is still going, or was interrupted.")
    return run


def _config(run: Run) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load((run.path / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        run.notes.append(f"{CONFIG} is not there.")
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        run.notes.append(f"{CONFIG} can't be read: {' '.join(str(error).split())[:200]}.")
        return {}
    return found if isinstance(found, dict) else {}


def _rows(run: Run, name: str) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file; what is no object is counted."""
    try:
        with (run.path / name).open("rb") as file:
            lines = file.read(MAX_BYTES).split(b"\n")
    except FileNotFoundError:
        run.notes.append(f"{name} is not there yet.")
        return
    except OSError as error:
        run.notes.append(f"{name} can't be read: {error.strerror or error}.")
        return
    bad = 0
    for line in lines[:-1]:  # behind the last line break: nothing, or half a line
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            bad += bool(line.strip())
            continue
        if isinstance(row, dict):
            yield row
        else:
            bad += 1
    if bad:
        run.notes.append(f"{bad:,} lines of {name} are no JSON objects and were left out.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _thinned(points: list[Point]) -> list[Point]:
    """At most MAX_POINTS points, the first and the last among them."""
    if len(points) <= MAX_POINTS:
        return points
    return [points[round(i * (len(points) - 1) / (MAX_POINTS - 1))] for i in range(MAX_POINTS)]


def _pairs(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """Answers before and after, paired by set and id or question, in the order of the file."""
    sides: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        if isinstance(row.get("answer"), str) and row.get("when") in ("before", "after"):
            key = str([row.get("set"), row["id"] if row.get("id") is not None else row.get("question")])
            sides.setdefault(key, {"before": [], "after": []})[row["when"]].append(row)
    return [pair for both in sides.values() for pair in zip_longest(both["before"], both["after"])]
