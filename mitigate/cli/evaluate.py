"""`mitigate evaluate annotator`: how good an annotator is on labelled sentences.

    mitigate evaluate annotator --data dev/*.jsonl --annotator embedded --fold test --output metrics.json
    mitigate evaluate annotator --data unseen_*.jsonl --compare out/runs/a/annotator out/runs/b/annotator

Prints a table (or JSON with --json) and writes the same as JSON with --output. Lines that are no labelled
sentences are reported, left out and, with --output, written to OUTPUT.rejected.jsonl; then the exit code is
3. Figures by source, language and split (the rows' "split"). What is written beside them is in
mitigate/cli/evaluate.py.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
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

from mitigate.io import UsageError, dump_line, make_parent, progress, rejected_path, rejected_row, say, write_bytes

if TYPE_CHECKING:
    from annotators.base import Annotator
    from annotators.evaluation.evaluate import LabelledSentence
    from annotators.records import SentenceAnnotation
    from mitigate.labels import LabelledFiles


# ----------------------------------------------------------------------------------------------------
# What `mitigate evaluate annotator` shows: tables, judgements, the confusion matrix, text figures, comparison.

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
    rows: Sequence[LabelledSentence], judged: Sequence[SentenceAnnotation], annotator: str, *, parametric: bool
) -> bytes:
    """One JSON line a row: what was asked about, gold, and what the annotator said; ``parametric`` marks its absence
    of a reference."""
    lines = []
    for row, found in zip(rows, judged, strict=True):
        asked = {k: row.row[k] for k in ("id", "split", "lang", "language", "question", "sentence") if row.row.get(k)}
        line: dict[str, Any] = {**asked, "source": row.source, "gold": row.row["label"], "annotator": annotator}
        line |= {"parametric": True} if parametric else {}
        lines.append(dump_line(line | {k: v for k, v in found.to_dict().items() if k not in ("text", "start", "end")}))
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
    axes.set_title("".join(c if c.isprintable() else "\ufffd" for c in title).replace("$", r"\$"), fontsize=10)
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

    table = Table(title=f"{escape(names[0])} minus {escape(names[1])} (paired, 95 % intervals over groups of rows)")
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

    def add(name: str, n: str, values: Mapping[str, Any], intervals: Mapping[str, Any], recall: float | None) -> None:
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


SHOWN_REJECTED = 10


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `evaluate`, with one sub-command per kind of thing that is evaluated."""
    evaluate = subparsers.add_parser("evaluate", help="measure an annotator on labelled data")
    kinds = evaluate.add_subparsers(dest="kind", required=True, metavar="KIND")
    parser = kinds.add_parser(
        "annotator", help="judge labelled sentences and compare", description=(__doc__ or "").split("\n")[0]
    )
    add = parser.add_argument
    add("--data", nargs="+", type=Path, required=True, metavar="FILE", help="JSON Lines files")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--annotator", metavar="NAME", help="embedded, a folder, a hub id, or generative:KIND:MODEL[@BASE_URL]"
    )
    which.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="judge by both; differences with paired intervals"
    )
    add("--fold", default="all", help="test, dev, train, all (default) or a number 0 to 4")
    add("--limit", type=int, metavar="N", help="judge N rows drawn at random (see --seed)")
    add("--seed", type=int, default=0, help="of --limit and of the intervals (default 0)")
    add("--without-reference", action="store_true", help="hide the reference: what the model knows by itself")
    add("--disturbed-prompts", action="store_true", help="ask in a wording not trained on (generative only)")
    add("--texts", action="store_true", help="compare annotations as texts: ROUGE-L, n-gram precision")
    add("--bertscore", metavar="MODEL", help="with --texts: packaged, paper, or a hub id or folder")
    add("--confusion", type=Path, metavar="FILE.png", help="draw the confusion matrix")
    add("--judgements", type=Path, metavar="FILE", help="write what was said of each row, JSON Lines")
    add("--output", type=Path, metavar="FILE", help="write all figures as JSON")
    add("--json", action="store_true", help="print all figures as JSON instead of a table")
    parser.set_defaults(run=run_annotator)


def run_annotator(args: argparse.Namespace) -> int:
    """Evaluate an annotator; returns 0, or 3 where lines were rejected."""
    from annotators.evaluation.evaluate import evaluate
    from mitigate.labels import read_labelled

    folds, paths = _checked(args)
    files = read_labelled(paths, folds)
    rows = _chosen(files, args)
    names = args.compare or [args.annotator]
    results, answers = [], []
    for name in names:
        annotator = _load(name, args.disturbed_prompts)
        judged = _judge(annotator, rows, parametric=args.without_reference)
        similarity, models = _bert_scores(rows, judged, args.bertscore) if args.bertscore else (None, {})
        run = _provenance(args, name, annotator, paths) | ({"bert_score_models": models} if models else {})
        figures = evaluate(rows, judged, seed=args.seed, texts=args.texts, similarity=similarity)
        results.append({"run": run, "n_rejected": len(files.rejected), **figures})
        answers.append(judged)
        annotator.close()
    _write_beside(args, rows, names, results, answers)
    result: dict[str, Any] = results[0]
    if args.compare:
        from annotators.evaluation.evaluate import compare

        result = {"first": results[0], "second": results[1], "difference": compare(rows, *answers, seed=args.seed)}
    text = json.dumps(result, indent=2, allow_nan=False)
    if args.json:
        print(text)
    else:
        _print_all(result, results, args)
    if args.output:
        write_bytes(args.output, text.encode() + b"\n")
        say(f"figures: {args.output}")
        _keep_rejected(rejected_path(args.output), files)
    _report_rejected(files)
    return 3 if files.rejected else 0


def _write_beside(
    args: argparse.Namespace,
    rows: Sequence[LabelledSentence],
    names: Sequence[str],
    results: Sequence[Mapping[str, Any]],
    answers: Sequence[Sequence[SentenceAnnotation]],
) -> None:
    """Judgements and the picture, where asked for; with --compare the second picture is FILE-2.png."""

    if args.judgements:
        parts = [
            judgement_lines(rows, judged, name, parametric=args.without_reference)
            for name, judged in zip(names, answers, strict=True)
        ]
        write_bytes(args.judgements, b"".join(parts))
        say(f"judgements: {args.judgements}")
    if args.confusion:
        for number, (name, result) in enumerate(zip(names, results, strict=True), start=1):
            stem = args.confusion.stem + (f"-{number}" if number > 1 else "")
            path = args.confusion.with_name(stem + ".png")
            draw_confusion(result["overall"]["confusion"], f"{name}, {result['overall']['n_four_way']} rows", path)
            say(f"confusion matrix: {path}")


def _print_all(result: Mapping[str, Any], results: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 140)
    for found in results:
        print_tables(console, found)
        if args.texts:
            console.print(text_table(found))
    if args.compare:
        console.print(comparison_table(result["difference"], args.compare))


def _bert_scores(
    rows: Sequence[LabelledSentence], judged: Sequence[SentenceAnnotation], models: str
) -> tuple[list[float | None], dict[str, str]]:
    from annotators.evaluation.texts import bert_scores

    try:
        return bert_scores([row.row for row in rows], judged, models)
    except (ImportError, OSError) as error:
        raise UsageError(f"--bertscore: {error}") from error


def _checked(args: argparse.Namespace) -> tuple[tuple[int, ...] | None, list[Path]]:
    """Fold numbers and data files, all mistakes found before anything is loaded."""
    from mitigate.labels import parse_fold

    try:
        folds = parse_fold(args.fold)
    except ValueError as error:
        raise UsageError(f"--fold: {error}") from None
    if args.limit is not None and args.limit < 1:
        raise UsageError(f"--limit: expected a number of rows from 1 up; got {args.limit}")
    if args.seed < 0:
        raise UsageError(f"--seed: expected a number from 0 up; got {args.seed}")
    if args.bertscore and not args.texts:
        raise UsageError("--bertscore: expected --texts beside it")
    if args.bertscore and importlib.util.find_spec("bert_score") is None:
        raise UsageError("--bertscore needs bert-score: pip install 'hallucination-toolkit[bertscore]'")
    if args.confusion and args.confusion.suffix != ".png":
        raise UsageError(f"--confusion: expected a name that ends in .png; got {args.confusion}")
    for name in args.compare or [args.annotator]:
        if args.disturbed_prompts and not name.startswith("generative:"):
            raise UsageError(f"--disturbed-prompts: {name} is asked in no words; expected generative:KIND:MODEL")
    for path in args.data:
        if not path.is_file():
            hint = f"; for all of its files give {path}/*.jsonl" if path.is_dir() else ""
            raise UsageError(f"--data: expected a JSON Lines file; {path} is not one{hint}")
    if args.output:
        for path in (args.output, rejected_path(args.output)):
            if path.resolve() in {data.resolve() for data in args.data}:
                raise UsageError(f"--output: {path} is one of the data files and would be written over")
        make_parent(args.output)
    for path in (args.confusion, args.judgements):
        if path:
            if path.resolve() in {data.resolve() for data in args.data}:
                raise UsageError(f"{path} is one of the data files and would be written over")
            make_parent(path)
    return folds, list({path.resolve(): path for path in args.data}.values())


def _chosen(files: LabelledFiles, args: argparse.Namespace) -> list[LabelledSentence]:
    """The rows to judge."""
    rows = files.rows
    if files.fold_files:
        folders = ", ".join(sorted({str(file.parent) for file in files.fold_files}))
        say(
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


def _load(name: str, disturbed: bool) -> Annotator:
    from annotators import load_annotator

    try:
        return load_annotator(name, **prompt_options(name, disturbed))
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(f"--annotator: {error}") from error


def prompt_options(name: str, disturbed: bool) -> dict[str, Any]:
    """The wording to ask a generative annotator in: the first it was trained on, or one it was not trained on.

    What it was trained on is in the annotator.json that training wrote; a model without one gets the default wording,
    and is taken for one that knows no other.

    Args:
        name: Of the annotator.
        disturbed: Whether to take a wording and an order that are new to it.
    """
    if not name.startswith("generative:"):
        return {}
    from annotators.generative.prompts import names_of
    from engines.chat import parse_engine

    settings = Path(parse_engine(name.removeprefix("generative:")).model) / "annotator.json"
    trained: list[str] = []
    if settings.is_file():
        trained = json.loads(settings.read_text(encoding="utf-8")).get("prompts") or []
    if disturbed:
        unknown = [prompt for prompt in names_of("tagged", "en") if prompt not in (trained or ["plain"])]
        return {"prompt": f"{unknown[-1]}/question-first"}
    return {"prompt": trained[0]} if trained else {}


def _judge(annotator: Annotator, rows: Sequence[LabelledSentence], *, parametric: bool) -> list[SentenceAnnotation]:
    """Ask the annotator."""
    from annotators.evaluation.evaluate import predict

    with progress("judging", len(rows)) as tell:
        return predict(annotator, rows, lambda done, _: tell(done), parametric=parametric)


def _provenance(args: argparse.Namespace, name: str, annotator: Annotator, paths: Sequence[Path]) -> dict[str, Any]:
    """What would be needed to run it again, and on what it ran."""
    command = ["mitigate", "evaluate", "annotator", "--data", *map(str, args.data)]
    command += ["--annotator", name, "--fold", args.fold, "--seed", str(args.seed)]
    command += ["--limit", str(args.limit)] if args.limit is not None else []
    command += ["--without-reference"] if args.without_reference else []
    command += ["--disturbed-prompts"] if args.disturbed_prompts else []
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
        **({"parametric": True} if args.without_reference else {}),
        "versions": versions,
    }


def _report_rejected(files: LabelledFiles) -> None:
    """Tell which lines were left out."""
    for path, line in files.rejected[:SHOWN_REJECTED]:
        say(f"rejected {path}:{line.number}: {'; '.join(map(str, line.problems))}")
    if (more := len(files.rejected) - SHOWN_REJECTED) > 0:
        say(f"rejected {more} more lines")
    if files.rejected:
        say(f"{len(files.rejected)} lines are no labelled sentences and were left out of the evaluation")


def _keep_rejected(target: Path, files: LabelledFiles) -> None:
    if files.rejected:
        write_bytes(target, b"".join(dump_line(rejected_row(path, line)) for path, line in files.rejected))
        say(f"rejected lines: {target}")
    else:
        target.unlink(missing_ok=True)
