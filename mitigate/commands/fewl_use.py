"""`mitigate fewl rank`, `pick` and `build-benchmark`."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from fewl.chale import BuildOptions, build_benchmark
from fewl.plots import plot_ranking
from fewl.ranking import Ranking, pick_answers, rank_models
from mitigate.commands.fewl_files import (
    REJECTED,
    check_record,
    figure,
    plain,
    provenance,
    read_whole,
    say,
    whole_job,
    write_all,
    write_bytes,
    write_json,
)
from mitigate.commands.fewl_similarity import load_encoder
from mitigate.errors import UsageError
from mitigate.jobs import OutputError, make_parent, rejected_path
from mitigate.jsonl import Problem, Record, check_text, dump_line, shown
from mitigate.progress import counted

WIN_COLUMNS = 8


def check_scored(record: Record) -> list[Problem]:
    """What is wrong with a scored record."""
    if found := check_record(record):
        return found
    problems = []
    for place, answer in enumerate(record["answers"]):
        score = answer.get("score", "nothing")
        if isinstance(score, bool) or not isinstance(score, int | float | None):
            value = None if "score" not in answer else shown(score)
            problems.append(
                Problem(f"answers[{place}].score", value, "a number or null; run `mitigate fewl score` first")
            )
    return problems


def check_source(record: Record) -> list[Problem]:
    """What is wrong with an input of build-benchmark."""
    problems = check_text(record, "question", required=True)
    for name in ("short_answer", "long_answer"):
        problems += check_text(record, name, required=True, empty=True)
    return problems


def run_rank(args: argparse.Namespace) -> int:
    """Rank models; returns the exit code."""
    for path in (args.output, args.png):
        if path is not None:
            make_parent(path)
    truth, from_labels = _truth(args.truth)
    records, bad = read_whole(args.input, check_scored)
    try:
        ranking = rank_models(records, truth=truth, truth_from_labels=from_labels, seed=args.seed)
    except ValueError as error:
        raise UsageError(f"{args.input}: {error}") from error
    result = {**ranking.to_dict(), "rejected_lines": bad}
    if args.output is not None:
        write_json(args.output, {**provenance(args), **result})
    if args.png is not None:
        plot_ranking(ranking, args.png)
    if args.json:
        print(json.dumps(result, ensure_ascii=False, allow_nan=False))
    else:
        _print_ranking(ranking)
        for name, path in (("ranking", args.output), ("plot", args.png)):
            if path is not None:
                print(f"{name}: {path}")
    return REJECTED if bad else 0


def _truth(name: str | None) -> tuple[dict[str, float] | None, bool]:
    if name is None or name == "labels":
        return None, name == "labels"
    try:
        value = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--truth: cannot read {name} as JSON: {error}") from error
    good = isinstance(value, dict) and all(
        isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in value.values()
    )
    if not good:
        raise UsageError(f'--truth: expected a JSON object {{"model": number}} in {name}, got {value!r:.80}')
    return {model: float(v) for model, v in value.items()}, False


def _print_ranking(ranking: Ranking) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table("", "model", "mean", "95 % interval", "n", "no score")
    if ranking.truth is not None:
        table.add_column("truth")
    for place, row in enumerate(ranking.models, 1):
        cells = [str(place), plain(row.model), figure(row.mean, 4)]
        cells += [f"{figure(row.low, 4)} to {figure(row.high, 4)}", str(row.n), str(row.missing)]
        if ranking.truth is not None:
            cells.append(figure(ranking.truth.get(row.model)))
        table.add_row(*cells)
    console.print(table)
    if ranking.kendall is not None:
        k = ranking.kendall
        console.print(
            f"Kendall's τ with the truth: {figure(k['tau'])}, 95 % interval {figure(k['low'])} to "
            f"{figure(k['high'])}, {k['models']} models",
            highlight=False,
        )
    shown_models = [row.model for row in ranking.models][:WIN_COLUMNS]
    wins = Table("share of questions won", *[plain(name) for name in shown_models])
    for name in shown_models:
        wins.add_row(plain(name), *[figure(ranking.wins[name].get(other), 2) for other in shown_models])
    console.print(wins)
    if ranking.unnamed:
        who = counted(ranking.unnamed, "answer names no model and is", "answers name no model and are")
        console.print(f"{who} not ranked", highlight=False)


def run_pick(args: argparse.Namespace) -> int:
    """Write the best answer of each record; returns the exit code."""
    try:
        with whole_job(args, check_scored) as (job, records):
            rows = pick_answers(records)
            write_all(job, rows)
    except OutputError as error:
        say(f"error: {error}")
        return 1
    summary = {
        "records": len(rows),
        "picked": sum(row["answer"] is not None for row in rows),
        "ties": sum(row["ties"] > 1 for row in rows),
        "rejected_lines": job.rejected,
        "output": str(args.output),
    }
    _tell(args, summary)
    return REJECTED if job.rejected else 0


def run_build(args: argparse.Namespace) -> int:
    """Build the benchmark; returns the exit code."""
    if args.answers < 1 or args.seed < 0:
        raise UsageError("--answers: expected 1 or more; --seed: 0 or more")
    make_parent(args.output)
    records, bad = read_whole(args.input, check_source, rejected_path(args.output))
    if not records:
        raise UsageError(f"{args.input}: expected questions with short and long answers, found no good line")
    embedding, encode = load_encoder(args.embedding, [record["question"] for record in records])
    built, statistics = build_benchmark(records, encode, BuildOptions(answers=args.answers, seed=args.seed))
    write_bytes(args.output, b"".join(dump_line(row) for row in built))
    statistics = {**statistics, "embedding": embedding, "rejected_lines": bad, "output": str(args.output)}
    write_json(Path(f"{args.output}.run.json"), {**provenance(args), "statistics": statistics})
    _tell(args, statistics)
    return REJECTED if bad else 0


def _tell(args: argparse.Namespace, summary: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps(summary, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 100)
    parts = summary.get("table")
    table = Table("what", "number")
    for name, value in summary.items():
        if name != "table":
            text = figure(value, 2) if isinstance(value, float) else value
            table.add_row(name.replace("_", " "), plain(text))
    console.print(table)
    if parts:
        kinds = Table("answer", "n", "words", "unique words", "characters")
        for name, row in parts.items():
            means = (figure(row[key], 2) for key in ("words", "unique_words", "characters"))
            kinds.add_row(name.replace("_", " "), str(row["n"]), *means)
        console.print(kinds)
