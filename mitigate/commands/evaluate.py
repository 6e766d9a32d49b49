"""`mitigate evaluate annotator`: how good an annotator is on labelled sentences.

    mitigate evaluate annotator --data dev/*.jsonl --annotator embedded --fold test --output metrics.json

Prints a table (or JSON with --json) and writes the same as JSON with --output. Lines that are no labelled
sentences are reported, left out and, with --output, written to OUTPUT.rejected.jsonl; then the exit code is
3.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mitigate.errors import UsageError
from mitigate.jobs import make_parent, rejected_path
from mitigate.jsonl import dump_line, rejected_row

if TYPE_CHECKING:
    from annotators.evaluation import LabelledSentence
    from annotators.records import Annotator, SentenceAnnotation
    from mitigate.labelled import LabelledFiles

SHOWN_REJECTED = 10
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


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `evaluate`, with one sub-command per kind of thing that is evaluated."""
    evaluate = subparsers.add_parser("evaluate", help="measure an annotator on labelled data")
    kinds = evaluate.add_subparsers(dest="kind", required=True, metavar="KIND")
    parser = kinds.add_parser(
        "annotator", help="judge labelled sentences and compare", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--data", nargs="+", type=Path, required=True, metavar="FILE", help="JSON Lines files")
    add("--annotator", required=True, metavar="NAME", help="embedded, a folder or a hub id")
    add("--fold", default="all", help="test, dev, train, all (default) or a number 0 to 4")
    add("--limit", type=int, metavar="N", help="judge N rows drawn at random (see --seed)")
    add("--seed", type=int, default=0, help="of --limit and of the intervals (default 0)")
    add("--output", type=Path, metavar="FILE", help="write all figures as JSON")
    add("--json", action="store_true", help="print all figures as JSON instead of a table")
    parser.set_defaults(run=run_annotator)


def run_annotator(args: argparse.Namespace) -> int:
    """Evaluate an annotator; returns 0, or 3 where lines were rejected."""
    from annotators.evaluation import evaluate
    from mitigate.labelled import read_labelled

    folds, paths = _checked(args)
    files = read_labelled(paths, folds)
    rows = _chosen(files, args)
    annotator = _load(args.annotator)
    result = {
        "run": _provenance(args, annotator, paths),
        "n_rejected": len(files.rejected),
        **evaluate(rows, _judge(annotator, rows), seed=args.seed),
    }
    text = json.dumps(result, indent=2, allow_nan=False)
    if args.json:
        print(text)
    else:
        _print_tables(result)
    if args.output:
        _write(args.output, text.encode() + b"\n")
        _say(f"figures: {args.output}")
        _keep_rejected(rejected_path(args.output), files)
    _report_rejected(files)
    return 3 if files.rejected else 0


def _checked(args: argparse.Namespace) -> tuple[tuple[int, ...] | None, list[Path]]:
    """Fold numbers and data files, all mistakes found before anything is loaded."""
    from mitigate.labelled import parse_fold

    try:
        folds = parse_fold(args.fold)
    except ValueError as error:
        raise UsageError(f"--fold: {error}") from None
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit: expected a number of rows from 1 up; got {args.limit}")
    if args.seed < 0:
        raise UsageError(f"--seed: expected a number from 0 up; got {args.seed}")
    for path in args.data:
        if not path.is_file():
            hint = f"; for all of its files give {path}/*.jsonl" if path.is_dir() else ""
            raise UsageError(f"--data: expected a JSON Lines file; {path} is not one{hint}")
    if args.output:
        for path in (args.output, rejected_path(args.output)):
            if path.resolve() in {data.resolve() for data in args.data}:
                raise UsageError(f"--output: {path} is one of the data files and would be written over")
        make_parent(args.output)
    return folds, list({path.resolve(): path for path in args.data}.values())


def _chosen(files: LabelledFiles, args: argparse.Namespace) -> list[LabelledSentence]:
    """The rows to judge."""
    rows = files.rows
    if files.fold_files:
        folders = ", ".join(sorted({str(file.parent) for file in files.fold_files}))
        _say(
            f"fold {args.fold}: {len(rows)} of {files.n_valid} rows; "
            f"folds computed over {len(files.fold_files)} files of {folders}"
        )
    if not rows:
        _report_rejected(files)
        where = f" in fold {args.fold}" if files.n_valid else ""
        raise UsageError(f"--data: expected labelled sentences; found none{where}")
    if args.limit is None or args.limit >= len(rows):
        return rows
    numbers = random.Random(args.seed).sample(range(len(rows)), args.limit)
    return [rows[i] for i in sorted(numbers)]


def _load(name: str) -> Annotator:
    from annotators import load_annotator

    try:
        return load_annotator(name)
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(f"--annotator: {error}") from error


def _judge(annotator: Annotator, rows: Sequence[LabelledSentence]) -> list[SentenceAnnotation]:
    """Ask the annotator, with a progress bar where standard error is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from annotators.evaluation import predict

    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("judging", total=len(rows))
        return predict(annotator, rows, lambda done, total: bar.update(task, completed=done, total=total))


def _provenance(args: argparse.Namespace, annotator: Annotator, paths: Sequence[Path]) -> dict[str, Any]:
    """What would be needed to run it again, and on what it ran."""
    command = ["mitigate", "evaluate", "annotator", "--data", *map(str, args.data)]
    command += ["--annotator", args.annotator, "--fold", args.fold, "--seed", str(args.seed)]
    command += ["--limit", str(args.limit)] if args.limit is not None else []
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("torch", "transformers", "hallucination-toolkit"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "command": shlex.join(command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "annotator": {"name": annotator.name, "fingerprint": annotator.fingerprint},
        "data": [{"file": str(p), "sha256": hashlib.sha256(p.read_bytes()).hexdigest()} for p in paths],
        "fold": args.fold,
        "limit": args.limit,
        "seed": args.seed,
        "versions": versions,
    }


def _print_tables(result: Mapping[str, Any]) -> None:
    """Figures per part, and what became of each gold label."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else WIDE)
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


def _report_rejected(files: LabelledFiles) -> None:
    """Tell which lines were left out."""
    for path, line in files.rejected[:SHOWN_REJECTED]:
        _say(f"rejected {path}:{line.number}: {'; '.join(map(str, line.problems))}")
    if (more := len(files.rejected) - SHOWN_REJECTED) > 0:
        _say(f"rejected {more} more lines")
    if files.rejected:
        _say(f"{len(files.rejected)} lines are no labelled sentences and were left out of the evaluation")


def _keep_rejected(target: Path, files: LabelledFiles) -> None:
    if files.rejected:
        _write(target, b"".join(dump_line(rejected_row(path, line)) for path, line in files.rejected))
        _say(f"rejected lines: {target}")
    else:
        target.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _say(text: str) -> None:
    print(f"mitigate: {text}", file=sys.stderr)
