"""`mitigate fewl`: score answers, rank models and pick answers without gold labels; build a benchmark.

    mitigate fewl score --input questions.jsonl --output scored.jsonl
    mitigate fewl rank --input scored.jsonl --png ranking.png
    mitigate fewl pick --input scored.jsonl --output picked.jsonl
    mitigate fewl build-benchmark --input short-and-long-answers.jsonl --output benchmark.jsonl

Here are the options; what they do is in ``fewl_score.py`` and ``fewl_use.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from mitigate import scale

Run = Callable[[argparse.Namespace], int]

EXIT_CODES = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 some lines were rejected (they are in "
    "OUTPUT.rejected.jsonl)."
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `fewl` with its four sub-commands."""
    fewl = subparsers.add_parser("fewl", help="score answers and rank models without gold labels")
    kinds = fewl.add_subparsers(dest="kind", required=True, metavar="WHAT")
    _score(kinds.add_parser("score", help="score every answer", description=f"{SCORE} {EXIT_CODES}"))
    _rank(kinds.add_parser("rank", help="rank models by mean score", description=RANK))
    _pick(kinds.add_parser("pick", help="best answer of each question", description=f"{PICK} {EXIT_CODES}"))
    _build(
        kinds.add_parser("build-benchmark", help="CHALE-style answers", description=f"{BUILD} {EXIT_CODES}")
    )


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


def _files(
    parser: argparse.ArgumentParser,
    what: str,
    output: str | None = "where results go",
) -> None:
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help=what)
    if output is not None:
        parser.add_argument("--output", type=Path, required=True, metavar="FILE", help=output)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON and nothing else")


def _score(parser: argparse.ArgumentParser) -> None:
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
    how.add_argument(
        "--seed", type=int, default=0, help="of random neighbours and drawn answers (%(default)s)"
    )
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
        "--reference-samples",
        type=int,
        default=1,
        metavar="N",
        help="answers of each (1, greedy; more are drawn)",
    )
    ask.add_argument("--cache", type=Path, metavar="FILE", help="of replies (OUTPUT.cache.sqlite)")
    ask.add_argument(
        "--agreement-png",
        type=Path,
        metavar="FILE",
        help="plot how many IW and CO answers each LLM agrees with",
    )
    scale.add_options(parser, "the reference LLMs")
    parser.set_defaults(run=_lazily("fewl_score", "run_score"))


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
    parser.set_defaults(run=_lazily("fewl_use", "run_rank"))


def _pick(parser: argparse.ArgumentParser) -> None:
    _files(parser, "output of `mitigate fewl score`")
    parser.set_defaults(run=_lazily("fewl_use", "run_pick"))


def _build(parser: argparse.ArgumentParser) -> None:
    _files(parser, "questions with a short and a long answer, JSON Lines")
    parser.add_argument(
        "--answers", type=int, default=3, metavar="N", help="answers of each kind (%(default)s)"
    )
    parser.add_argument(
        "--embedding", default="auto", metavar="NAME", help="as in `mitigate fewl score` (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of every choice (%(default)s)")
    parser.set_defaults(run=_lazily("fewl_use", "run_build"))


def _lazily(module: str, function: str) -> Run:
    """A command whose module is imported when it runs, so that `mitigate --help` stays quick."""

    def run(args: argparse.Namespace) -> int:
        from importlib import import_module

        return int(getattr(import_module(f"mitigate.commands.{module}"), function)(args))

    return run
