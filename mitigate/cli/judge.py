"""`mitigate judge`: baseline against method, answer by answer.

    mitigate judge --input pairs.jsonl --output judged.jsonl --engine openai:MODEL@URL --cache replies.sqlite
    mitigate judge --input pairs.jsonl --output judged.jsonl --annotator embedded
    mitigate judge --input pairs.jsonl --output judged.jsonl --similarity cosine

The judge's rules and the form of pairs are in `mitigate/inference/judge.py`. With an engine the cost is estimated first, and
asked about where a terminal is at hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from engines.types import EngineError
from mitigate.io import (
    REJECTED,
    OutputError,
    Problem,
    Record,
    UsageError,
    check_text,
    make_parent,
    say,
    shown,
    whole_job,
    write_all,
)
from mitigate.models import failures, open_engine
from mitigate.report.totals import percent

FAILED = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "judge",
        help="compare two answers to each question: by an LLM in both orders, an annotator or a metric",
        description='Compare {"question", "baseline", "method", "reference"?, "correct"?, "incorrect"?}. Gives the '
        "shares of all pairs and the win rate of decided pairs with its 95 % interval. Exit codes as of `annotate`.",
    )
    parser.add_argument("--input", metavar="FILE", type=Path, required=True, help="pairs, JSON Lines")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, required=True, help="where judged pairs go; written anew"
    )
    judge = parser.add_mutually_exclusive_group(required=True)
    judge.add_argument("--engine", metavar="KIND:MODEL[@URL]", help="an LLM as judge")
    judge.add_argument("--annotator", metavar="NAME", help="the lower hallucination rate wins; needs references")
    judge.add_argument(
        "--similarity", metavar="NAME", help="nearer to correct than to incorrect answers wins (cosine, rouge-l)"
    )
    parser.add_argument("--cache", metavar="FILE", type=Path, help="of replies (OUTPUT.cache.sqlite)")
    parser.add_argument("--yes", action="store_true", help="do not ask before an engine is used")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    parser.set_defaults(run=run)


def check_pair(record: Record) -> list[Problem]:
    """Problems of a pair."""
    problems = [p for name in ("question", "baseline", "method") for p in check_text(record, name, required=True)]
    problems += check_text(record, "reference", required=False, empty=True)
    for name in ("correct", "incorrect"):
        texts = record.get(name)
        if texts is not None and not (isinstance(texts, list) and all(isinstance(t, str) and t for t in texts)):
            problems.append(Problem(name, shown(texts), "a list of texts"))
    return problems


def run(args: argparse.Namespace) -> int:
    """Judge a file of pairs; returns the exit code."""
    if args.cache is not None and args.engine is None:
        raise UsageError("--cache: the response cache of an engine; give --engine too")
    try:
        with whole_job(args, check_pair) as (job, pairs):
            if not pairs:
                raise UsageError(f"{args.input}: expected pairs of answers, found no good line")
            failed: str | None = None
            if args.engine is not None:
                if not _agreed(args, pairs):
                    say("nothing was asked")
                    return FAILED
                judged, failed = _by_engine(args, pairs)
            else:
                judged = _judge(args, pairs)
            write_all(
                job, [{**p, "outcome": outcome, **more} for p, (outcome, more) in zip(pairs, judged, strict=True)]
            )
    except OutputError as error:
        say(f"error: {error}")
        return FAILED
    _tell(args, [outcome for outcome, _ in judged], job.rejected)
    if failed:
        say(f"error: {failed}; their pairs count as unsure: the same command asks only these again")
        return FAILED
    return REJECTED if job.rejected else 0


def _judge(args: argparse.Namespace, pairs: list[Record]) -> list[Any]:
    from mitigate.inference import judge

    if args.annotator is not None:
        from mitigate.models import open_annotator

        missing = sum(not pair.get("reference") for pair in pairs)
        if missing:
            raise UsageError(f"--annotator: {missing} of {len(pairs)} pairs have no reference to judge against")
        return judge.by_annotator(pairs, open_annotator(args.annotator))
    from mitigate.models import load_encoder, load_similarity

    if args.similarity not in ("cosine", "rouge-l"):
        raise UsageError(f"--similarity: expected cosine or rouge-l, got {args.similarity!r}")
    encode = load_encoder("auto", [pair["question"] for pair in pairs])[1]
    return judge.by_similarity(pairs, load_similarity(args.similarity, encode)[1])


def _agreed(args: argparse.Namespace, pairs: list[Record]) -> bool:
    """Tell the cost; whether whoever is at the terminal, if anybody, wants to go on."""
    from mitigate.inference.judge import estimate

    cost = estimate(pairs)
    say(
        f"{cost['requests']:,} requests to {args.engine}: about {cost['prompt_tokens']:,} prompt tokens and at most "
        f"{cost['reply_tokens']:,} reply tokens (fewer where replies are in the cache)"
    )
    if args.yes or not sys.stdin.isatty():
        return True
    print("go on? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _by_engine(args: argparse.Namespace, pairs: list[Record]) -> tuple[list[Any], str | None]:
    """Outcomes, and which requests failed."""
    from mitigate.inference.judge import by_engine

    cache = args.cache or Path(f"{args.output}.cache.sqlite")
    make_parent(cache)
    with closing(open_engine(args.engine, "--engine", cache)) as engine:
        try:
            return by_engine(pairs, engine), failures([engine])
        except EngineError as error:
            raise EngineError(f"{error}; the same command continues from {cache}") from error


def _tell(args: argparse.Namespace, outcomes: list[Any], bad: int) -> None:
    from mitigate.inference.judge import tally

    result = tally(outcomes)
    if args.json:
        print(json.dumps({**result.to_dict(), "rejected_lines": bad, "output": str(args.output)}))
        return
    shares = ", ".join(f"{name} {percent(share)}" for name, share in result.shares.items())
    print(f"{result.n} pairs: {shares} ({result.unsure} of the ties unsure or inconsistent)")
    if result.win_rate is None:
        print("win rate: no pair was decided")
    else:
        print(
            f"win rate of the method over decided pairs: {percent(result.win_rate)} "
            f"[{percent(result.low)}, {percent(result.high)}], n = {result.method + result.baseline}"
        )
    print(f"output: {args.output}")
