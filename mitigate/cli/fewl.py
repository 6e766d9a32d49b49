"""`mitigate fewl`: score answers, rank models and pick answers without gold labels; build a benchmark.

    mitigate fewl score --input questions.jsonl --output scored.jsonl
    mitigate fewl rank --input scored.jsonl --png ranking.png
    mitigate fewl pick --input scored.jsonl --output picked.jsonl
    mitigate fewl build-benchmark --input short-and-long-answers.jsonl --output benchmark.jsonl

Here are the options; what they do is in ``fewl_score.py`` and ``fewl_use.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewl.chale import build_benchmark
from fewl.expertise import agreement_counts
from fewl.expertise import report as pairs_report
from fewl.ranking import Ranking, pick_answers, plot_agreement, plot_ranking, rank_models
from fewl.records import read_record
from fewl.score import Expertise, FewlOptions, FewlReport, score_records
from mitigate import scale
from mitigate.io import (
    REJECTED,
    OutputError,
    Problem,
    Record,
    UsageError,
    check_record,
    check_text,
    counted,
    dump_line,
    figure,
    make_parent,
    plain,
    provenance,
    read_whole,
    rejected_path,
    say,
    shown,
    whole_job,
    write_all,
    write_bytes,
    write_json,
)
from mitigate.models import Asked, check_similarity, fill, load_encoder, load_similarity, wants_pairs
from mitigate.models import fewl_filling_failures as failures

if TYPE_CHECKING:
    from engines.types import Engine


# ----------------------------------------------------------------------------------------------------
# `mitigate fewl score`: fill in what the input lacks, score, write the records and a summary.


def run_score(args: argparse.Namespace) -> int:
    """Score a file; returns the exit code."""
    from engines.cache import CacheError
    from engines.types import EngineError

    _check_options(args)
    pool = scale.pool_of(args)
    if pool is not None and not args.reference_llm:
        say("--distributed: there is no --reference-llm to ask, and one process computes the scores: this one does")
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
            name: {"wrong": sum(w for w, _ in rows) / len(rows), "corrected": sum(c for _, c in rows) / len(rows)}
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
    llms = Table("reference LLM", "mean λ", "questions without its answer", "agrees with wrong", "with corrected")
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
        console.print(f"IW/CO pairs: {plain(json.dumps(summary['pairs'], ensure_ascii=False))}", highlight=False)
    console.print(f"scored: {plain(args.output)}   run: {plain(args.output)}.run.json", highlight=False)


# ----------------------------------------------------------------------------------------------------
# `mitigate fewl rank`, `pick` and `build-benchmark`.

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
    built, statistics = build_benchmark(records, encode, answers=args.answers, seed=args.seed)
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


EXIT_CODES = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 some lines were rejected (they are in OUTPUT.rejected.jsonl)."
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `fewl` with its four sub-commands."""
    fewl = subparsers.add_parser("fewl", help="score answers and rank models without gold labels")
    kinds = fewl.add_subparsers(dest="kind", required=True, metavar="WHAT")
    _fewl_score(kinds.add_parser("score", help="score every answer", description=f"{SCORE} {EXIT_CODES}"))
    _rank(kinds.add_parser("rank", help="rank models by mean score", description=RANK))
    _pick(kinds.add_parser("pick", help="best answer of each question", description=f"{PICK} {EXIT_CODES}"))
    _build(kinds.add_parser("build-benchmark", help="CHALE-style answers", description=f"{BUILD} {EXIT_CODES}"))


SCORE = (
    'Score answers by reference answers of LLMs. Input: {"id", "question", "answers": [{"text", "model"?, '
    '"label"?}], "reference_answers": {"llm": text or [text, …]}, "iw"?: […], "co"?: […]}, one JSON object a '
    "line. What is missing is asked from --reference-llm; every reply is kept in OUTPUT.cache.sqlite, so that "
    "the same command goes on after it was killed. The neighbours of a question are the other questions of the "
    "input."
)
RANK = "Rank the models of scored records by mean score, with 95 % bootstrap intervals over questions."
PICK = "Write the best-scored answer of each record."
BUILD = (
    'Make answers with controlled hallucinations. Input: {"question", "short_answer", "long_answer"}, one JSON '
    "object a line. Output: records for `mitigate fewl score`, which still need reference answers."
)


def _files(parser: argparse.ArgumentParser, what: str, output: str | None = "where results go") -> None:
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help=what)
    if output is not None:
        parser.add_argument("--output", type=Path, required=True, metavar="FILE", help=output)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON and nothing else")


def _fewl_score(parser: argparse.ArgumentParser) -> None:
    _files(parser, "questions with answers, JSON Lines", "scored records; written anew each time")
    how = parser.add_argument_group("how to score")
    how.add_argument(
        "--aggregation",
        choices=("paper", "eq6"),
        default="paper",
        help="paper: Eq. 4; eq6: λ weights both terms (%(default)s)",
    )
    how.add_argument(
        "--divergence",
        choices=("tv", "kl", "reverse-kl", "pearson", "hellinger", "js"),
        default="tv",
        help="f-divergence (%(default)s: total variation)",
    )
    how.add_argument(
        "--expertise",
        choices=("similarity", "prompted", "uniform", "ideal"),
        help="where the weights λ come from: similarity to IW/CO answers (default where the input has them or "
        "an LLM can make them), the LLMs asked about them, uniform (default otherwise), or labelled answers "
        "in their place",
    )
    how.add_argument(
        "--expertise-scope",
        choices=("question", "dataset"),
        default="question",
        help="expertise per question, or its mean over all (%(default)s)",
    )
    how.add_argument(
        "--similarity",
        default="cosine",
        metavar="NAME",
        help="cosine, rouge-l, new-words (share of the words an answer adds to the question that stand in the "
        "reference answer) or annotator:NAME (probability that the reference answer supports the answer; NAME "
        "as for `mitigate annotate --annotator`) (%(default)s)",
    )
    how.add_argument(
        "--embedding",
        default="auto",
        metavar="NAME",
        help="sentence embeddings: auto (the packaged model; tfidf where the input has Chinese, which it cannot "
        "read), tfidf (characters), or a folder or hub id (%(default)s)",
    )
    how.add_argument("--neighbours", type=int, metavar="K", help="neighbour questions (10; 25 when random)")
    how.add_argument(
        "--neighbour-choice",
        choices=("nearest", "random"),
        default="nearest",
        help="nearest, or random with similarity of at most 0.8 (%(default)s)",
    )
    how.add_argument("--no-penalty", action="store_true", help="leave the laziness penalty out")
    how.add_argument(
        "--references", default="all", metavar="WHICH", help="all, or single:NAME of one LLM (%(default)s)"
    )
    how.add_argument(
        "--weak-llm",
        action="append",
        default=[],
        metavar="NAME",
        help="an LLM of reference_answers whose answers count against an answer, as if they were intentionally "
        "wrong (an extension); it is then no reference; may be given several times",
    )
    how.add_argument("--seed", type=int, default=0, help="of random neighbours and drawn answers (%(default)s)")
    ask = parser.add_argument_group("what the input lacks")
    ask.add_argument(
        "--reference-llm",
        action="append",
        default=[],
        metavar="ENGINE",
        help="KIND:MODEL[@BASE_URL] with KIND transformers, vllm or openai; answers the questions that "
        "lack an answer of that name, and the first one makes missing IW/CO pairs; may be given several times",
    )
    ask.add_argument(
        "--reference-samples", type=int, default=1, metavar="N", help="answers of each (1, greedy; more are drawn)"
    )
    ask.add_argument("--cache", type=Path, metavar="FILE", help="of replies (OUTPUT.cache.sqlite)")
    ask.add_argument(
        "--agreement-png", type=Path, metavar="FILE", help="plot how many IW and CO answers each LLM agrees with"
    )
    scale.add_options(parser, "the reference LLMs")
    parser.set_defaults(run=run_score)


def _rank(parser: argparse.ArgumentParser) -> None:
    _files(parser, "output of `mitigate fewl score`", None)
    parser.add_argument("--output", type=Path, metavar="FILE", help="also write the ranking as JSON")
    parser.add_argument("--png", type=Path, metavar="FILE", help="plot the ranking with its intervals")
    parser.add_argument(
        "--truth",
        metavar="FILE",
        help='JSON object {"model": number, higher is better}, or the word labels for the share of true labels; '
        "adds Kendall's τ",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (%(default)s)")
    parser.set_defaults(run=run_rank)


def _pick(parser: argparse.ArgumentParser) -> None:
    _files(parser, "output of `mitigate fewl score`")
    parser.set_defaults(run=run_pick)


def _build(parser: argparse.ArgumentParser) -> None:
    _files(parser, "questions with a short and a long answer, JSON Lines")
    parser.add_argument("--answers", type=int, default=3, metavar="N", help="answers of each kind (%(default)s)")
    parser.add_argument("--embedding", default="auto", metavar="NAME", help="as in `mitigate fewl score` (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of every choice (%(default)s)")
    parser.set_defaults(run=run_build)
