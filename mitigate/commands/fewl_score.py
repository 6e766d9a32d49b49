"""`mitigate fewl score`: fill in what the input lacks, score, write the records and a summary."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewl.iwco import agreement_counts
from fewl.iwco import report as pairs_report
from fewl.plots import plot_agreement
from fewl.records import read_record
from fewl.score import Expertise, FewlOptions, FewlReport, score_records
from mitigate import scale
from mitigate.commands.fewl_files import (
    REJECTED,
    check_record,
    figure,
    plain,
    provenance,
    say,
    whole_job,
    write_all,
    write_json,
)
from mitigate.commands.fewl_similarity import check_similarity, load_encoder, load_similarity
from mitigate.errors import UsageError
from mitigate.fewl_filling import Asked, failures, fill, wants_pairs
from mitigate.jobs import OutputError, make_parent
from mitigate.jsonl import Record

if TYPE_CHECKING:
    from engines.types import Engine


def run_score(args: argparse.Namespace) -> int:
    """Score a file; returns the exit code."""
    from engines.cache import CacheError
    from engines.types import EngineError

    _check_options(args)
    pool = scale.pool_of(args)
    if pool is not None and not args.reference_llm:
        say(
            "--distributed: there is no --reference-llm to ask, and one process computes the scores: this one does"
        )
        pool = None
    how = {"samples": args.reference_samples, "seed": args.seed, "expertise": args.expertise}
    try:
        with whole_job(args, check_record) as (job, records), ExitStack() as stack:
            if not records:
                raise UsageError(f"{args.input}: expected FEWL records, found no good line")
            engines: list[Engine] = []
            if pool is not None:
                records, asked = scale.fill(job, args.reference_llm, how, _cache(args, pool), pool, say)
            else:
                engines += [stack.enter_context(closing(_engine(spec, args))) for spec in args.reference_llm]
                asked = fill(records, engines, **how, tell=say)
            summary = _score(args, records, asked)
            write_all(job, summary.pop("records"))
            summary["rejected_lines"] = job.rejected
            write_json(Path(f"{args.output}.run.json"), {**provenance(args), **summary})
            _print(args, summary)
            if _tell_failed(engines):
                return 1
            return REJECTED if job.rejected else 0
    except (OutputError, EngineError, CacheError, scale.PartsError) as error:
        say(f"error: {error}")
        return 1


def _tell_failed(engines: Sequence[Engine]) -> bool:
    """Say which LLMs left requests without an answer; whether any did."""
    for failure in (found := failures(engines)):
        say(
            f"error: {failure}, and the scores lack what they would have brought: run the same command again to "
            "ask only these"
        )
    return bool(found)


def _check_options(args: argparse.Namespace) -> None:
    check_similarity(args.similarity)
    for name, least in (("neighbours", 1), ("reference_samples", 1), ("seed", 0)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')}: expected {least} or more, got {value}")
    if args.references != "all" and not args.references.startswith("single:"):
        raise UsageError(f"--references: expected all or single:NAME, got {args.references!r}")
    if args.reference_samples > 1 and not args.reference_llm:
        raise UsageError("--reference-samples: only with --reference-llm; samples of the input are all used")
    if args.expertise == "prompted" and not args.reference_llm:
        raise UsageError("--expertise prompted asks the reference LLMs: give each as --reference-llm")
    if args.agreement_png is not None:
        make_parent(args.agreement_png)


def options_of(args: argparse.Namespace, expertise: Expertise) -> FewlOptions:
    return FewlOptions(
        aggregation=args.aggregation,
        divergence=args.divergence,
        expertise=expertise,
        expertise_scope=args.expertise_scope,
        neighbours=args.neighbours,
        neighbour_choice=args.neighbour_choice,
        penalty=not args.no_penalty,
        references=args.references,
        weak=tuple(args.weak_llm),
        seed=args.seed,
    )


def _cache(args: argparse.Namespace, pool: scale.Pool | None = None) -> Path | None:
    """The file of replies; None on a cluster, unless one is named, since its machines cannot share an SQLite file."""
    if args.cache is None and pool is not None and pool.address is not None:
        return None
    cache = args.cache or Path(f"{args.output}.cache.sqlite")
    make_parent(cache)
    return Path(cache).resolve()


def _engine(spec: str, args: argparse.Namespace) -> Engine:
    from engines.chat import load_engine

    try:
        return load_engine(spec, cache=_cache(args))
    except (ValueError, ImportError, OSError) as error:
        raise UsageError(f"--reference-llm {spec}: {error}") from error


def _score(args: argparse.Namespace, records: list[Record], asked: Sequence[Asked]) -> dict[str, Any]:
    """Everything between filling and writing."""
    if not any(read_record(record).references for record in records):
        raise UsageError(f"{args.input}: no record has reference_answers; add some, or give --reference-llm")
    pairs = None
    if args.reference_llm and wants_pairs(args.expertise):
        pairs = pairs_report([one.pairs for one in asked if one.pairs is not None])
    has_pairs = any(record.get("iw") and record.get("co") for record in records)
    expertise: Expertise = args.expertise or ("similarity" if has_pairs else "uniform")
    if expertise == "similarity" and not has_pairs:
        raise UsageError("--expertise similarity: no record has iw and co; add them, or give --reference-llm")
    embedding, encode = load_encoder(args.embedding, [record["question"] for record in records])
    called, similarity = load_similarity(args.similarity, encode)
    options = options_of(args, expertise)
    prompted = [one.prompted for one in asked] if expertise == "prompted" else None
    try:
        scored, report = score_records(
            records, similarity=similarity, encode=encode, options=options, prompted=prompted
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    summary = {
        "records": scored,
        "similarity": called,
        "embedding": embedding,
        "fewl_options": asdict(options),
        "report": asdict(report),
        "pairs": pairs,
    }
    if has_pairs:
        counts = agreement_counts(records, similarity)
        summary["agreement"] = {
            name: {
                "wrong": sum(w for w, _ in rows) / len(rows),
                "corrected": sum(c for _, c in rows) / len(rows),
            }
            for name, rows in counts.items()
        }
        if args.agreement_png is not None:
            plot_agreement(counts, args.agreement_png)
    elif args.agreement_png is not None:
        say("--agreement-png: no record has iw and co, so there is nothing to plot")
    return summary


def _print(args: argparse.Namespace, summary: dict[str, Any]) -> None:
    if args.json:
        print(json.dumps({**summary, "output": str(args.output)}, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 100)
    report = FewlReport(**summary["report"])
    options = summary["fewl_options"]
    console.print(
        f"FEWL, {options['aggregation']}, {options['divergence']}, expertise {options['expertise']}, "
        f"similarity {plain(summary['similarity'])}, embedding {plain(summary['embedding'])}",
        highlight=False,
    )
    table = Table("what", "number")
    for name, value in asdict(report).items():
        if isinstance(value, int) and (value or name in ("questions", "answers", "scored")):
            table.add_row(name.replace("_", " "), f"{value:,}")
    table.add_row("rejected lines", f"{summary['rejected_lines']:,}")
    console.print(table)
    llms = Table(
        "reference LLM", "mean λ", "questions without its answer", "agrees with wrong", "with corrected"
    )
    for name, mean in report.mean_lambda.items():
        agreed = summary.get("agreement", {}).get(name, {})
        llms.add_row(
            plain(name),
            figure(mean),
            f"{report.missing_references[name]:,}",
            figure(agreed.get("wrong"), 1),
            figure(agreed.get("corrected"), 1),
        )
    console.print(llms)
    if summary["pairs"] is not None:
        console.print(
            f"IW/CO pairs: {plain(json.dumps(summary['pairs'], ensure_ascii=False))}", highlight=False
        )
    console.print(f"scored: {plain(args.output)}   run: {plain(args.output)}.run.json", highlight=False)
