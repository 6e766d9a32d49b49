"""Options of commands that may use a generative annotator: how the language model is asked."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mitigate.io import UsageError

NAMES = ("protocol", "prompt", "templates", "window", "max_retries", "max_tokens", "seed", "concurrency", "cache")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the group of options; each is None unless given."""
    group = parser.add_argument_group(
        "with --annotator generative:KIND:MODEL[@BASE_URL]",
        "KIND is transformers, vllm or openai (any OpenAI-compatible server; key: OPENAI_API_KEY)",
    )
    group.add_argument(
        "--protocol", choices=("tagged", "three-turn"), help="one turn, or three without corrections (tagged)"
    )
    group.add_argument(
        "--prompt",
        metavar="NAME[/ORDER]",
        help="wording and order of the inputs, reference-first or question-first; or random (plain)",
    )
    group.add_argument("--templates", metavar="FILE", type=Path, help="own prompts, see docs/annotators.md")
    group.add_argument(
        "--window",
        choices=("sentence", "answer", "whole"),
        help="what of the reference is shown: what bears on the sentence, on the answer, or all of it (sentence)",
    )
    group.add_argument("--max-retries", metavar="N", type=int, help="further attempts after an unreadable reply (2)")
    group.add_argument("--max-tokens", metavar="N", type=int, help="limit of a reply (768)")
    group.add_argument("--seed", metavar="N", type=int, help="of random prompts and further attempts (0)")
    group.add_argument("--concurrency", metavar="N", type=int, help="requests in flight, openai only (16)")
    group.add_argument("--cache", metavar="FILE", type=Path, help="of replies (OUTPUT.cache.sqlite)")


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The options given, for ``load_annotator``; checked, with the engine's name, before anything loads.

    Raises:
        UsageError: Options are given and the annotator is not generative, or one is wrong.
    """
    given = {name: value for name in NAMES if (value := getattr(args, name)) is not None}
    if not args.annotator.startswith("generative:"):
        if given:
            names = ", ".join("--" + name.replace("_", "-") for name in given)
            raise UsageError(f"{names}: only with --annotator generative:KIND:MODEL[@BASE_URL]")
        return {}
    from annotators.generative.protocols import Options
    from engines.chat import parse_engine

    try:
        spec = parse_engine(args.annotator.removeprefix("generative:"))
        Options(**{k: v for k, v in given.items() if k not in ("cache", "concurrency")})
    except ValueError as error:
        raise UsageError(f"--annotator {args.annotator}: {error}") from error
    if "concurrency" in given and (spec.kind != "openai" or given["concurrency"] < 1):
        raise UsageError("--concurrency: expected 1 or more, and an openai engine; leave it out for others")
    return given
