"""`mitigate annotate`: judge each sentence of an answer, or of a file of answers, against its reference.

    mitigate annotate --question Q --reference reference.txt --answer answer.txt
    mitigate annotate --input in.jsonl --output out.jsonl --html report.html

A file is worked through in chunks and can be interrupted: the same command continues where it stopped. Every
mistake in the options or paths is reported before a model loads. Leaves out how sentences are judged: that is
the annotator's work.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from annotators.base import Annotator
from engines.cache import CacheError
from engines.types import EngineError
from mitigate import scale
from mitigate.cli.options import add_options, options_of
from mitigate.io import (
    ADDED,
    Job,
    OutputError,
    Record,
    UsageError,
    check_annotation_input,
    counted,
    make_parent,
    open_job,
    progress,
    rejected_path,
    without_results,
)
from mitigate.models import open_annotator
from mitigate.report.html import write_page
from mitigate.report.totals import Totals, read_annotated

if TYPE_CHECKING:
    from rich.console import Console


SHOWN_RECORDS = 50  # a file of up to so many records is also printed
REJECTED = 3  # exit code
FAILED = 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "annotate",
        help="judge each sentence of an answer against its reference",
        description="Judge each sentence of an answer against its reference: supported, contradictory, "
        "unverifiable or no fact, with evidence and a correction. Give one answer, or a file of records "
        '{"id"?, "question"?, "reference", "answer", "language"?}, one JSON object a line; other keys pass '
        "through, and the results of an earlier run in them are replaced. Exit codes: 0 done, 1 failed, "
        "2 wrong usage, 3 some lines were rejected (they are in OUTPUT.rejected.jsonl).",
    )
    one = parser.add_argument_group("one answer")
    one.add_argument("--question", metavar="TEXT", help="the question that was answered")
    one.add_argument("--reference", metavar="FILE", type=Path, help="text file with the reference")
    one.add_argument("--answer", metavar="FILE", help="text file with the answer, - for standard input")
    one.add_argument("--language", metavar="CODE", help="en or zh; found from the text by default")
    one.add_argument("--json", action="store_true", help="print the record as JSON and nothing else")
    many = parser.add_argument_group("a file of answers")
    many.add_argument("--input", metavar="FILE", type=Path, help="records, JSON Lines")
    many.add_argument("--output", metavar="FILE", type=Path, help="where results go; continued if it is there")
    many.add_argument("--overwrite", action="store_true", help="start OUTPUT again instead of continuing it")
    many.add_argument("--chunk-size", metavar="N", type=int, default=32, help="records judged at once (%(default)s)")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write the report as one HTML page")
    parser.add_argument(
        "--annotator",
        metavar="NAME",
        default="embedded",
        help="embedded, a path, a hub id, or generative:KIND:MODEL[@BASE_URL] (%(default)s)",
    )
    parser.add_argument(
        "--calibration", metavar="FILE", type=Path, help="what `mitigate calibrate` wrote for this annotator"
    )
    add_options(parser)
    scale.add_options(parser, "an annotator")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Annotate one answer or a file of them; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode shows escapes instead of failing
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    check_options(args)
    options = options_of(args)
    if args.calibration is not None:
        from mitigate.rewards.config import check_calibration

        try:
            check_calibration("--calibration", str(args.calibration), args.annotator)
        except ValueError as error:
            raise UsageError(str(error)) from error
        options = {**options, "calibration": args.calibration}
    try:
        return run_one(args, options) if args.input is None else run_file(args, options)
    except (OutputError, EngineError, CacheError, scale.PartsError) as error:
        print(f"mitigate: error: {error}", file=sys.stderr)
        return FAILED


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageError: With what to change.
    """
    if args.distributed and (args.input is None or args.output is None):
        raise UsageError("--distributed works on a file of records: give --input and --output")
    names = ("question", "reference", "answer", "language", "json")
    given = [f"--{name}" for name in names if getattr(args, name) not in (None, False)]
    if args.input is not None or args.output is not None:
        if given:
            raise UsageError(f"{', '.join(given)}: for one answer only; leave out --input and --output, or these")
        if args.input is None or args.output is None:
            raise UsageError("--input and --output go together; give both")
    else:
        missing = [name for name in ("--reference", "--answer") if name not in given]
        if missing:
            raise UsageError(
                f"{' and '.join(missing)} missing: give --reference FILE and --answer FILE (or -) for one "
                "answer, or --input FILE and --output FILE for many"
            )
        if args.overwrite:
            raise UsageError("--overwrite: for --input and --output only; one answer has no output to continue")
    if args.chunk_size < 1:
        raise UsageError(f"--chunk-size: expected 1 or more, got {args.chunk_size}")
    if args.html is not None:
        outputs = [("--output", args.output), ("rejected lines", args.output and rejected_path(args.output))]
        inputs = [("--input", args.input), ("--reference", args.reference), ("--answer", args.answer)]
        for name, path in (*inputs, *outputs):
            if path is not None and Path(path).resolve() == args.html.resolve():
                raise UsageError(f"--html: {args.html} is also the file of {name}; name another file")
        make_parent(args.html)


def read_text(path: str | Path, option: str) -> str:
    """The text of a file, exactly; "-" is standard input.

    Raises:
        UsageError: It cannot be read or is not UTF-8.
    """
    try:
        if path == "-":
            if sys.stdin.isatty():
                print("Type the answer, then Ctrl-D on a line of its own.", file=sys.stderr)
            data = sys.stdin.buffer.read()
        else:
            data = Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{option}: cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{option}: {path} is not UTF-8 (byte {error.start + 1}); convert it first") from error


def run_one(args: argparse.Namespace, options: Mapping[str, Any]) -> int:
    """Annotate one answer and print it."""
    from mitigate.report.terminal import print_records, summary

    reference = read_text(args.reference, "--reference")
    answer = read_text(args.answer, "--answer")
    if not answer.strip():
        raise UsageError(f"--answer: {args.answer} holds no text, so there is nothing to judge")
    annotation = open_annotator(args.annotator, options).annotate(
        reference=reference, answer=answer, question=args.question, language=args.language
    )
    record = annotation.to_dict()
    totals = Totals()
    totals.add(record)
    if args.html is not None:
        _write_html(args.html, lambda: [record], totals)
    if args.json:
        ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
        try:
            print(json.dumps(record, ensure_ascii=ascii_only, allow_nan=False))
        except UnicodeEncodeError:
            print(json.dumps(record, allow_nan=False))
        return 0
    console = _console()
    print_records(console, [record])
    console.print(summary(totals, 0, [("page", args.html)] if args.html is not None else []))
    return 0


def run_file(args: argparse.Namespace, options: Mapping[str, Any]) -> int:
    """Annotate a file of records, continuing an earlier run; print totals and, if few, every record."""
    pool = scale.pool_of(args)
    fingerprints: set[str] = set()

    def matches(record: Record, written: Record) -> str | None:
        for key in {**record, **written}:
            if key not in ADDED and (key not in record or key not in written or record[key] != written[key]):
                return f"{key!r} differs"
        if not isinstance(written.get("sentences"), list) or not isinstance(written.get("annotator"), dict):
            return "it has no sentences and annotator"
        fingerprints.add(str(written["annotator"].get("fingerprint")))
        return None

    with open_job(
        args.input, args.output, check=check_annotation_input, matches=matches, overwrite=args.overwrite
    ) as job:
        _tell_rejected(job)
        if job.valid:
            one_machine = pool is None or pool.address is None
            if args.annotator.startswith("generative:") and one_machine:  # replies survive whatever stops this run
                cache = job.output.with_name(job.output.name + ".cache.sqlite").resolve()
                options = {"cache": cache, **options}
        if job.valid and pool is not None:
            _annotate_at_scale(job, args, options, pool, fingerprints)
        elif job.valid:
            annotator = open_annotator(args.annotator, options)
            for other in fingerprints - {annotator.fingerprint}:
                raise UsageError(
                    f"cannot continue {job.output}: it was written by an annotator with fingerprint {other}, "
                    f"and {args.annotator} has {annotator.fingerprint}; choose another --output, or start "
                    "again with --overwrite"
                )
            _annotate(job, annotator, args.chunk_size)
        else:
            job.run(lambda records: [], chunk_size=1)
        _report(job, args.html)
    return REJECTED if job.rejected else 0


def _tell_rejected(job: Job) -> None:
    for line in job.first_rejected:
        for problem in line.problems:
            print(f"mitigate: {job.source}:{line.number}: {problem} (line rejected)", file=sys.stderr)
    if more := job.rejected - len(job.first_rejected):
        print(f"mitigate: {counted(more, 'more line')} rejected, see {job.rejected_path}", file=sys.stderr)


def _annotate(job: Job, annotator: Annotator, chunk_size: int) -> None:
    from rich.console import Console

    errors = Console(stderr=True)
    before, sentences, start = job.done, 0, perf_counter()
    problems: Counter[str] = Counter()
    errors.print(
        f"annotator {annotator.name}, {counted(job.valid, 'record')}"
        + (f", {before:,} of them already in {job.output}" if before else ""),
        style="dim",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    with progress("annotating", job.valid, before) as tell:

        def process(records: list[Record]) -> list[Record]:
            inputs = [without_results(record) for record in records]
            return [annotation.to_dict() for annotation in annotator.annotate_batch(inputs)]

        def on_chunk(rows: Sequence[Record]) -> None:
            nonlocal sentences
            sentences += sum(len(row["sentences"]) for row in rows)
            problems.update(_problems(rows))
            speed = sentences / (perf_counter() - start)
            tell(job.done, f"{speed:,.1f} sentences/s")

        job.run(process, chunk_size=chunk_size, on_chunk=on_chunk)
    seconds = perf_counter() - start
    if job.done > before:
        print(
            f"{counted(job.done - before, 'record')}, {counted(sentences, 'sentence')} in {seconds:.1f} s "
            f"({sentences / seconds:,.1f} sentences/s)",
            file=sys.stderr,
        )
    _tell_problems(problems)


def _annotate_at_scale(
    job: Job, args: argparse.Namespace, options: Mapping[str, Any], pool: scale.Pool, known: set[str]
) -> None:
    problems: Counter[str] = Counter()
    if args.overwrite:
        scale.delete_parts(scale.folder_of(job.output))

    def tell(text: str) -> None:
        print(f"mitigate: {text}", file=sys.stderr)

    rows = scale.annotate(job, args.annotator, options, args.chunk_size, pool, known, tell)
    job.run(
        lambda records: list(islice(rows, len(records))),
        chunk_size=args.chunk_size,
        on_chunk=lambda done: problems.update(_problems(done)),
    )
    scale.delete_parts(scale.folder_of(job.output))
    _tell_problems(problems)


def _problems(rows: Sequence[Record]) -> Iterable[str]:
    """What was wrong with an LLM's replies, by sentence."""
    return (name for row in rows for one in row["sentences"] for name in one.get("problems", ()))


def _tell_problems(problems: Counter[str]) -> None:
    if problems:
        counts = ", ".join(f"{name} {count:,}" for name, count in problems.most_common())
        print(f"mitigate: problems with replies, by sentence: {counts}", file=sys.stderr)


def _report(job: Job, page: Path | None) -> None:
    from mitigate.report.terminal import print_records, summary

    totals = Totals()
    for record in read_annotated(job.output):
        totals.add(record)
    paths = [("output", job.output)]
    if job.rejected:
        paths.append(("rejected", job.rejected_path))
    if page is not None:
        _write_html(page, lambda: read_annotated(job.output), totals, job.rejected, job.output.name)
        paths.append(("page", page))
    console = _console()
    if 0 < totals.records <= SHOWN_RECORDS:
        print_records(console, list(read_annotated(job.output)))
    console.print(summary(totals, job.rejected, paths))


def _write_html(
    path: Path, records: Callable[[], Iterable[Record]], totals: Totals, rejected: int = 0, output: str = ""
) -> None:
    try:
        write_page(path, records, totals, rejected=rejected, full_output=output)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)
