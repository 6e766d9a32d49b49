"""The `mitigate` program: one sub-command for each module of `mitigate/cli`.

A module's `add_parser` adds the command and its options, and says which function runs it and returns the exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 some input lines were rejected, 130 interrupted. A user's mistake
is a :class:`UsageError` and prints one line, never a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from io import TextIOWrapper

from annotators.base import Annotator
from engines.cache import CacheError
from engines.types import EngineError
from engines.usage import METER
from mitigate.cli import grpo, run
from mitigate.cli.options import COSTS, Args, Parser
from mitigate.io import FAILED, OutputError, UsageError, say, usage, versions
from mitigate.scale import PartsError

COMMANDS = [
    import_module(f"mitigate.cli.{name}")
    for name in (
        "annotate", "build_preferences", "calibrate", "correct", "demo", "evaluate", "fewl", "grpo", "judge", "models",
        "prompts", "serve", "stats",
    )
]  # fmt: skip


def build_parser(program: str = "mitigate", annotators: Mapping[str, Annotator] | None = None) -> Parser:
    """The whole command line; building it imports no model library."""
    parser = Parser(prog=program, description="Find, score and reduce LLM hallucination.")
    version = versions()["hallucination-toolkit"] or "a checkout that is not installed"
    parser.option("--version", "The program prints its version.", action="version", version=version)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    run.add_parser(subparsers, annotators or {})
    return parser


def main(
    argv: Sequence[str] | None = None, *, program: str = "mitigate", annotators: Mapping[str, Annotator] | None = None
) -> int:
    """Run one command, by default that of this process, and return its exit code.

    ``program`` is what the user typed to get here, for messages. Recipes may use the ``annotators`` by these names.
    """
    for name, value in (("OMP_WAIT_POLICY", "PASSIVE"), ("GOMP_SPINCOUNT", "0")):  # read when torch is first imported
        os.environ.setdefault(name, value)  # threads that spin are many times slower where other work runs
    if not sys.stderr.isatty():  # bars of loading and downloading, each step a line of a log
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if isinstance(sys.stdout, TextIOWrapper):  # a terminal without Unicode shows escapes instead of failing
        sys.stdout.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if argv is None else argv)
    held = ExitStack()  # outputs
    METER.begin()
    try:
        if words[:1] == ["grpo"] and words[1:]:  # TRL's own parser reads the rest
            return grpo.run(words[1:])
        parser = build_parser(program, annotators)
        args, more = parser.parse_known_args(words, Args(words=words, held=held))
        if more:  # KEY=VALUE of a recipe may follow an option, which argparse does not allow
            if not hasattr(args, "overrides") or any(word.startswith("-") or "=" not in word for word in more):
                parser.error(f"unrecognized arguments: {' '.join(more)}")
            args.overrides = [*args.overrides, *more]
        with usage():
            METER.begin(**{name: getattr(args, name, None) for name in COSTS})
        with held:
            return int(args.run(args))
    except UsageError as error:
        say(f"error: {error}")
        return 2
    except (EngineError, CacheError, OutputError, PartsError) as error:
        say(f"error: {error}")
        return FAILED
    except BrokenPipeError:  # whoever read the output wants no more; the interpreter would flush it again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        say("interrupted; run the same command again to continue where it can")
        return 130
    finally:
        if METER.requests:
            say(str(METER))
