"""The one grammar of the command line: options that several commands share, their words and their checks.

A command reads `--input` and writes `--output`. An OUTPUT that exists is continued by commands that work record by
record, and refused by commands that write a whole file; `--overwrite` starts it again. `--json` prints the result as
one JSON object. Leaves out what only one command takes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mitigate.io import UsageError, check_new, check_paths, make_parent

CONTINUED = "Results go to this file. If it exists, the command continues it."
WHOLE = "The result goes to this file. If it exists, the command refuses to replace it without --overwrite."
EXIT_CODES = (
    "The exit code is 0 when all is done, 1 after a failure, 2 for wrong usage, and 3 when lines were rejected, which "
    "are then in OUTPUT.rejected.jsonl."
)
ENGINE = "KIND:MODEL[@BASE_URL]"
GENERATIVE = ("protocol", "prompt", "templates", "window", "max_retries", "max_tokens", "concurrency")


class Parser(argparse.ArgumentParser):
    """A parser whose help option is described like all others; sub-commands get the same class."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "add_help": False})
        self.add_argument("-h", "--help", action="help", help="The program prints this help and exits.")


def number(
    name: str, expected: str, allowed: Callable[[Any], bool], kind: type[int] | type[float] = float
) -> Callable[[str], Any]:
    """The type of an option that takes certain numbers only; anything else is a usage error.

    Args:
        name: The option, for the message.
        expected: What it takes, in words.
        allowed: Whether it takes a number.
        kind: Whether the number is whole.
    """

    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not allowed(value):
            raise UsageError(f"{name}: expected {expected}, got {text if value is None else value}")
        return value

    return read


def at_least(name: str, least: int) -> Callable[[str], Any]:
    """The type of an option that takes a whole number from ``least`` up."""
    return number(name, f"{least} or more", lambda value: bool(value >= least), int)


def add_input(parser: argparse._ActionsContainer, text: str, *, several: bool = False, required: bool = True) -> None:
    """Add `--input`; ``text`` says what is in the file or files."""
    parser.add_argument(
        "--input", metavar="FILE", type=Path, required=required, help=text, **({"nargs": "+"} if several else {})
    )


def add_output(parser: argparse._ActionsContainer, text: str, *, required: bool = True) -> None:
    """Add `--output`, with ``text`` CONTINUED or WHOLE, and `--overwrite`."""
    parser.add_argument("--output", metavar="FILE", type=Path, required=required, help=text)
    add_overwrite(parser)


def add_overwrite(parser: argparse._ActionsContainer) -> None:
    """Add `--overwrite`."""
    parser.add_argument("--overwrite", action="store_true", help="The command starts OUTPUT again if it exists.")


def add_json(parser: argparse._ActionsContainer) -> None:
    """Add `--json`."""
    parser.add_argument(
        "--json", action="store_true", help="The result is printed as one JSON object, and nothing else."
    )


def add_annotator(
    parser: argparse._ActionsContainer, default: str | None = "embedded", *, calibration: bool = True
) -> None:
    """Add `--annotator` and, unless it is added for itself, `--calibration`."""
    shown = " (%(default)s)" if default else ""
    parser.add_argument(
        "--annotator", metavar="NAME", default=default,
        help=f"This annotator judges: embedded, a folder, a hub id, or generative:{ENGINE}{shown}.",
    )  # fmt: skip
    if calibration:
        add_calibration(parser)


def add_calibration(parser: argparse._ActionsContainer, whose: str = "The annotator") -> None:
    """Add `--calibration`."""
    parser.add_argument(
        "--calibration", metavar="FILE", type=Path,
        help=f"{whose} uses this file, which `mitigate calibrate` wrote for it.",
    )  # fmt: skip


def add_engine(parser: argparse._ActionsContainer, text: str, cache: bool = True) -> None:
    """Add `--engine`, and `--cache` unless a group of other options holds it."""
    parser.add_argument("--engine", metavar=ENGINE, help=text)
    if cache:
        add_cache(parser)


def add_cache(parser: argparse._ActionsContainer, default: str = "OUTPUT.cache.sqlite") -> None:
    """Add `--cache`."""
    parser.add_argument(
        "--cache", metavar="FILE", type=Path, help=f"Replies of language models are kept in this file ({default})."
    )


def add_seed(parser: argparse._ActionsContainer, what: str, default: int | None = 0) -> None:
    """Add `--seed`; ``what`` is drawn from it."""
    shown = "%(default)s" if default is not None else "0"
    parser.add_argument(
        "--seed",
        metavar="N",
        type=at_least("--seed", 0),
        default=default,
        help=f"{what} are drawn from this seed ({shown}).",
    )


def add_chunk_size(parser: argparse._ActionsContainer) -> None:
    """Add `--chunk-size`."""
    parser.add_argument(
        "--chunk-size", metavar="N", type=at_least("--chunk-size", 1), default=32,
        help="So many records are judged at once (%(default)s).",
    )  # fmt: skip


def add_generative(parser: argparse.ArgumentParser) -> None:
    """Add the group of options that say how a language model is asked to annotate; each is None unless given."""
    group = parser.add_argument_group(
        f"with --annotator generative:{ENGINE}",
        "KIND is transformers, vllm or openai (any OpenAI-compatible server; OPENAI_API_KEY holds its key).",
    )
    add = group.add_argument
    add(
        "--protocol", choices=("tagged", "three-turn"),
        help="The model answers in one turn, or in three without corrections (tagged).",
    )  # fmt: skip
    add(
        "--prompt", metavar="NAME[/ORDER]",
        help="The prompt has this wording, with the order reference-first or question-first, or is random (plain).",
    )  # fmt: skip
    add("--templates", metavar="FILE", type=Path, help="Prompts come from this file, see docs/annotators.md.")
    add(
        "--window", choices=("sentence", "answer", "whole"),
        help="The model sees what bears on the sentence, what bears on the answer, or the whole reference (sentence).",
    )  # fmt: skip
    add("--max-retries", metavar="N", type=int, help="An unreadable reply is asked for so many more times (2).")
    add("--max-tokens", metavar="N", type=int, help="A reply has at most so many tokens (768).")
    add("--concurrency", metavar="N", type=int, help="So many requests are in flight, with openai only (16).")
    add_seed(group, "Random prompts and further attempts", default=None)
    add_cache(group)


def generative_options(args: argparse.Namespace) -> dict[str, Any]:
    """The given options of that group, for ``load_annotator``; they and the engine's name are checked here.

    Raises:
        UsageError: Options are given and the annotator is not generative, or one is wrong.
    """
    names = (*GENERATIVE, "seed", "cache")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    if not args.annotator.startswith("generative:"):
        if given:
            options = ", ".join("--" + name.replace("_", "-") for name in given)
            raise UsageError(f"{options}: only with --annotator generative:{ENGINE}")
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


def calibration_option(args: argparse.Namespace, annotator: str | None) -> dict[str, Any]:
    """The calibration for ``load_annotator``, checked before a model loads; empty where none is given.

    Raises:
        UsageError: It cannot be read, or the command uses no annotator that it could belong to.
    """
    if args.calibration is None:
        return {}
    from mitigate.rewards.config import check_calibration

    if annotator is None:
        raise UsageError("--calibration: belongs to one annotator; name it, or leave this option out")
    try:
        check_calibration("--calibration", str(args.calibration), annotator)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return {"calibration": args.calibration}


def cache_of(args: argparse.Namespace) -> Path:
    """The file of replies, in a folder that exists: the one that is named, or one beside OUTPUT."""
    cache = args.cache or Path(f"{args.output}.cache.sqlite")
    make_parent(cache)
    return Path(cache).resolve()


def check_cache(args: argparse.Namespace) -> None:
    """Refuse `--cache` without `--engine`."""
    if args.cache is not None and args.engine is None:
        raise UsageError("--cache: the response cache of an engine; give --engine too")


def check_files(args: argparse.Namespace) -> None:
    """Check the inputs and the output of a command that writes a whole file; nothing is loaded or written yet.

    Raises:
        UsageError: With what to change.
    """
    sources = [args.input] if isinstance(args.input, Path) else list(args.input)
    check_paths(sources, args.output)
    if args.output is not None:
        check_new(args.output, args.overwrite)
