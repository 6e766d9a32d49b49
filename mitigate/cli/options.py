"""The one grammar of the command line: options that several commands share, their words and their checks.

A command reads `--input` and writes `--output`. An OUTPUT that exists is continued by commands that work record by
record, and refused by commands that write a whole file; `--overwrite` starts it again. `--json` prints the result as
one JSON object. Leaves out what only one command takes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import tee
from pathlib import Path
from typing import Any, TypeAlias

from annotators.base import Annotator, CascadeAnnotator, engines_in
from engines.packaged import sha256
from engines.usage import METER
from mitigate.io import FAILED, REJECTED, UsageError, alone, check_paths, make_parent, say, usage, versions
from mitigate.scale import LIMITS

EXIT_CODES = (
    "The exit code is 0 when all is done, 1 after a failure, 2 for wrong usage, and 3 when lines were rejected, which "
    "are then in OUTPUT.rejected.jsonl."
)
ENGINE = "KIND:MODEL[@BASE_URL]"
ANNOTATORS = (
    f"This annotator judges: embedded, embedded-fast, embedded-zh, a folder, a hub id, generative:{ENGINE}, or a "
    "published detector, a hub id or folder after nli:, minicheck:, hhem: or lettucedetect:; cascade:A+B asks B where "
    "A is unsure"
)
GENERATIVE = (
    "preset", "protocol", "schema", "prompt", "templates", "window", "window_tokens", "max_retries", "max_tokens",
    "concurrency", "without_evidence", "trust_remote_code", "seed", "cache",
)  # fmt: skip
COSTS = ("price", *LIMITS)


class Parser(argparse.ArgumentParser):
    """A parser that knows the shared options; sub-commands get the same class."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{**settings, "add_help": False})
        self._group: argparse._ActionsContainer = self
        self.add_argument("-h", "--help", help="The program prints this help and exits.", action="help")

    @contextmanager
    def group(self, title: str = "", text: str | None = None) -> Iterator[None]:
        """Options that the block adds stand together; without a title, one of them has to be given."""
        self._group = (
            self.add_argument_group(title, text) if title else self.add_mutually_exclusive_group(required=True)
        )
        yield
        self._group = self

    def option(self, name: str, text: str, metavar: Any = None, **settings: Any) -> None:
        settings |= {} if metavar is None else {"metavar": metavar}
        self._group.add_argument(name, help=text, **settings)

    def flag(self, name: str, text: str) -> None:
        self.option(name, text, action="store_true")

    def file(self, name: str, text: str, metavar: Any = "FILE", **settings: Any) -> None:
        self.option(name, text, metavar, type=Path, **settings)

    def repeated(self, name: str, text: str, metavar: str) -> None:
        self.option(name, f"{text} The option may be given several times.", metavar, action="append", default=[])

    def number(
        self, name: str, text: str, expected: str, allowed: Callable[[float], bool], metavar: str = "N",
        kind: type[int] | type[float] = float, **settings: Any,
    ) -> None:  # fmt: skip
        """Add an option that takes the numbers that are ``allowed``, ``expected`` in words; others are usage errors."""

        def read(typed: str) -> float:
            with suppress(ValueError):
                if allowed(value := kind(typed)):
                    return value
            raise UsageError(f"{name}: expected {expected}, got {typed}")

        self.option(name, text, metavar, type=read, **settings)

    def count(self, name: str, text: str, default: int | None = None, least: int = 1, metavar: str = "N") -> None:
        self.number(name, text, f"{least} or more", lambda n: n >= least, metavar, int, default=default)

    def input(self, text: str, *, several: bool = False, required: bool = True) -> None:
        self.file("--input", text, required=required, **({"nargs": "+"} if several else {}))

    def output(self, *, continued: bool = False, required: bool = True, folder: str = "") -> None:
        """Add `--output` and `--overwrite`, and `--json` where it is a file and no folder (by default this one)."""
        then = "continues it" if continued else "refuses to replace it without --overwrite"
        where, word = (f"folder ({folder})", "DIR") if folder else ("file", "FILE")
        self.file("--output", f"Results go to this {where}. If it exists, the command {then}.", word, required=required)
        self.flag("--overwrite", "The command starts OUTPUT again if it exists.")
        if not folder:
            self.json()

    def json(self) -> None:
        self.flag("--json", "The result is printed as one JSON object, and nothing else.")

    def annotator(self, default: str | None = "embedded", *, calibration: bool = True) -> None:
        self.option("--annotator", f"{ANNOTATORS}{' (%(default)s)' if default else ''}.", "NAME", default=default)
        if calibration:
            self.calibration()

    def calibration(self, whose: str = "The annotator") -> None:
        self.file("--calibration", f"{whose} uses this file, which `mitigate calibrate` wrote for it.")
        self.share("--expected-rate", "Probabilities hold where this share of sentences is hallucinated (as fitted).")

    def share(self, name: str, text: str, default: float | None = None) -> None:
        self.number(name, text, "a number between 0 and 1", lambda p: 0 < p < 1, "P", default=default)

    def engine(self, text: str) -> None:
        self.option("--engine", text, ENGINE)
        if self._group is self:
            self.cost()

    def cost(self) -> None:
        """Add the price and the limits of asking servers, which `main` hands to ``engines.usage.METER``."""
        with self.group("what language models cost", "Prices and limits are those of openai engines."):
            text = "A million prompt tokens and a million reply tokens cost this, as in 0.15,0.6."
            self.option("--price", text, "IN,OUT", type=_price)
            for name, text in (
                ("--max-cost", "The run stops (exit code 1) before costs exceed N, but asks once; needs --price."),
                ("--requests-per-minute", "At most so many requests, with retries, begin in a minute."),
                ("--tokens-per-minute", "Requests wait so that prompts and replies have so many tokens a minute."),
            ):
                self.number(name, text, "more than 0", lambda n: 0 < n < math.inf)

    def cache(self, default: str = "OUTPUT.cache.sqlite") -> None:
        self.file("--cache", f"Replies of language models are kept in this file ({default}).")

    def seed(self, what: str, default: int | None = 0) -> None:
        text, expected = f"{what} are drawn from this seed (0).", "0 or more, up to 2147483647"
        self.number("--seed", text, expected, lambda n: 0 <= n < 2**31, kind=int, default=default)

    def chunk_size(self) -> None:
        self.count("--chunk-size", "So many records are judged at once (%(default)s).", 32)

    def generative(self, *, seed: bool = True, protocols: Sequence[str] = ()) -> None:
        """Add how a language model is asked to annotate; each option, also a command's own ``--seed``, is None unless
        given. ``protocols`` are the command's own.
        """
        where = "KIND is transformers, vllm or openai (any OpenAI-compatible server; OPENAI_API_KEY holds its key)."
        with self.group(f"with --annotator generative:{ENGINE}", where):
            text = "All is as for the published checkpoints; --templates is what `mitigate prompts import` wrote."
            self.option("--preset", text, choices=("anah-v1", "anah-v2"))
            text = "The model answers in one turn, or in three without corrections (tagged)."
            self.option("--protocol", text, choices=("tagged", "three-turn", *protocols))
            text = "So many sentences share a call, whose reply is JSON; with three-turn, two turns are choices (0)."
            self.option("--schema", text, "N", type=int)
            text = "The prompt has this wording and the order reference-first or question-first, or is random (plain)."
            self.option("--prompt", text, "NAME[/ORDER]")
            self.file("--templates", "Prompts come from this file, see docs/annotators.md.")
            text = "The model sees what bears on the sentence, on the answer, or the whole reference (sentence)."
            self.option("--window", text, choices=("sentence", "answer", "whole"))
            self.option("--window-tokens", "It sees at most so many tokens (400; Chinese: 540).", "N", type=int)
            self.option("--max-retries", "An unreadable reply is asked for so many more times (2).", "N", type=int)
            self.option("--max-tokens", "A reply has at most so many tokens (768).", "N", type=int)
            self.option("--concurrency", "So many requests are in flight, with openai only (16).", "N", type=int)
            text = "A sentence called supported without evidence in the reference counts as this (failed)."
            self.option("--without-evidence", text, choices=("failed", "unverifiable"))
            text = "The Python files of a checkpoint are run (transformers and vllm only): read them before."
            self.option("--trust-remote-code", text, action="store_true", default=None)
            if seed:
                self.seed("Random prompts and further attempts", None)
            self.cache()
        self.cost()

    def max_failed(self) -> None:
        text = "The exit code is 1 where the judgement of more than this share of sentences failed (%(default)s)."
        self.number("--max-failed", text, "a share from 0 to 1", lambda p: 0 <= p <= 1, "SHARE", default=0.1)

    def pool(self, per_worker: str) -> None:
        """Add the options of `mitigate/scale.py`; ``per_worker`` is what each worker loads."""
        with self.group("many machines, by Ray (extra `ray`)"):
            text = "INPUT is cut into parts for workers. Finished parts are kept in OUTPUT.parts,"
            self.flag("--distributed", f"{text} and the same command goes on from there.")
            self.option("--address", "The Ray cluster has this address; auto finds it (starts a local Ray).")
            text = f"Each of N workers loads {per_worker}; 0 works in this process, without Ray (%(default)s)."
            self.count("--workers", text, 1, least=0)
            for name, text, default in (
                ("--cpus-per-worker", "Each worker takes N CPUs (%(default)s).", 1.0),
                ("--gpus-per-worker", "Each worker takes N GPUs; 0.5 is half of one (%(default)s).", 0.0),
            ):
                self.number(name, text, "0 or more", lambda n: n >= 0, default=default)
            self.count("--part-size", "A part has N records (%(default)s).", 1000)


def _price(typed: str) -> tuple[float, float]:
    with suppress(ValueError):
        prompt, reply = map(float, typed.split(","))
        if min(prompt, reply) >= 0 and math.isfinite(prompt + reply):
            return prompt, reply
    raise UsageError(f"--price: expected IN,OUT, two prices of a million tokens, 0 or more, got {typed}")


Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"  # its public name does not exist


def add_command(subparsers: Subparsers, name: str, text: str, more: str = "", exit_codes: str = EXIT_CODES) -> Parser:
    """Add a command; its help is ``text``, and its own page says ``more``."""
    description = " ".join(filter(None, (text, more, exit_codes)))
    return subparsers.add_parser(name, help=text.replace("%", "%%"), description=description)


class Args(argparse.Namespace):
    """The options of a command, with the checks that several commands share."""

    def generative_options(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """The given options of that group, for ``load_annotator`` of generative annotators; they and the engines' names
        are checked here. ``names`` are the annotators, by default that of ``--annotator``.
        """
        given = self._given(GENERATIVE)
        asked = [(name, engine) for name in names or [self.annotator] for engine in engines_in(name)]
        if not asked and (wrong := [name for name in given if name != "seed" or not names]):
            raise UsageError(f"{flags(wrong)}: only with --annotator generative:{ENGINE}")
        self.check_costs([engine for _, engine in asked])
        if not asked:
            return {}
        from engines import parse_engine
        from mitigate.models import check_generative

        how = {k: v for k, v in given.items() if k not in ("cache", "concurrency", "trust_remote_code")}
        for name, _ in asked:
            check_generative(name, how, f"--annotator {name}")
        kinds = {parse_engine(engine).kind for _, engine in asked}
        if "concurrency" in given and ("openai" not in kinds or given["concurrency"] < 1):
            raise UsageError("--concurrency: expected 1 or more, and an openai engine; leave it out for others")
        if "trust_remote_code" in given and kinds == {"openai"}:
            raise UsageError("--trust-remote-code: a server loads its models itself; leave it out for openai")
        return given

    def calibration_options(self, annotator: str | None) -> dict[str, Any]:
        """Calibration and expected rate for ``load_annotator``, checked before a model loads; empty without."""
        given = self._given(("calibration", "expected_rate"))
        for name, value in given.items():
            from mitigate.rewards.config import check_calibration

            if annotator is None:
                raise UsageError(f"{flags([name])}: belongs to one annotator; name it, or leave this option out")
            with usage():
                check_calibration(flags([name]), value, annotator)
        return given

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def check_costs(self, engines: Iterable[str | None]) -> None:
        """Refuse prices and limits where none of the engines, which may be None, is that of a server."""
        given = self._given(COSTS)
        if given and not any((engine or "").startswith("openai:") for engine in engines):
            raise UsageError(f"{flags(given)}: only for servers, engines openai:MODEL[@BASE_URL]; none is asked here")

    def cost_words(self) -> list[str]:
        """The given prices and limits as words of a command line."""
        given = {name: value if name == "price" else [value] for name, value in self._given(COSTS).items()}
        return [word for name, values in given.items() for word in (flags([name]), ",".join(map(str, values)))]

    def check_engine(self) -> None:
        """Refuse `--cache` and costs where neither the engine nor the annotator asks a language model, or a server."""
        from mitigate.models import check_annotator

        asked = [getattr(self, "engine", None), *engines_in(self.annotator or "")]
        if self.annotator is not None:
            check_annotator(self.annotator, "--annotator")
        if self.cache is not None and not any(asked):
            raise UsageError("--cache: the replies of a language model; none is asked here")
        self.check_costs(asked)

    def check_files(self) -> None:
        """Check input and output of a command that writes a whole file, before anything is loaded or written, and hold
        the output until the command ends.
        """
        inputs = [self.input] if isinstance(self.input, Path) else self.input
        check_paths(inputs, self.output, overwrite=self.overwrite)
        if self.output is not None:
            self.held.enter_context(alone(self.output))
            check_paths(inputs, self.output, overwrite=self.overwrite)  # another run may have ended meanwhile

    def cache_file(self) -> Path:
        """The file of replies, in a folder that exists: the one that is named, or one beside OUTPUT."""
        cache = self.cache or Path(f"{self.output}.cache.sqlite")
        if self.output is not None and cache.resolve() == self.output.resolve():
            raise UsageError(f"--cache: {cache} is the output, which would be written over it; name another file")
        make_parent(cache)
        return Path(cache).resolve()

    def exit_code(self, failed: float, rejected: int) -> int:
        """The exit code of a run in which the judgement of this share of sentences failed; tells too large a one."""
        if failed > self.max_failed:
            say(f"the judgement of {failed:.0%} of the sentences failed, more than --max-failed {self.max_failed:g}")
            return FAILED
        return REJECTED if rejected else 0

    def provenance(self) -> dict[str, Any]:
        """All options, the input's digest and the versions, so that a result can be made again."""
        options = {k: v for k, v in vars(self).items() if not (k in ("words", "held") or callable(v))}
        return {
            "options": {name: str(value) if isinstance(value, Path) else value for name, value in options.items()},
            "input_sha256": sha256(self.input),
            "versions": versions("numpy", "torch", "sentence-transformers"),
        }


def flags(names: Iterable[str]) -> str:
    """Options as they are typed, from their names."""
    return ", ".join("--" + name.replace("_", "-") for name in names)


def tell_cost(annotator: Annotator, records: Iterable[Mapping[str, Any]], *, given: bool = False) -> None:
    """Tell what generative annotators, also in a cascade or an ensemble, will ask about records, before they do;
    ``given``: rows, whose sentences are judged as they are.
    """
    from annotators.generative.annotator import GenerativeAnnotator

    which = ""
    if isinstance(annotator, CascadeAnnotator):
        annotator = annotator.second
        which = f", if all sentences go on to {annotator.name}"
    asked = [one for one in annotator.asks or (annotator,) if isinstance(one, GenerativeAnnotator)]
    for one, some in zip(asked, tee(records, len(asked)), strict=True):
        requests, prompts, replies = one.foreseen(some, given=given)
        cost = METER.foreseen(prompts, replies)
        say(f"{requests:,} requests or more: {cost} for these{which} (fewer where replies are in the cache)")


def print_json(result: Mapping[str, Any]) -> None:
    """Print a result, and what was asked of language models, as a line of JSON that any terminal can show."""
    result = {**result, "asked": METER.to_dict()} if METER.requests else result
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    print(json.dumps(result, ensure_ascii=ascii_only, allow_nan=False))
