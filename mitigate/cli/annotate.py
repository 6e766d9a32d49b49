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
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from annotators.base import Annotator
from mitigate import scale
from mitigate.cli.options import (
    CONTINUED,
    EXIT_CODES,
    add_annotator,
    add_chunk_size,
    add_generative,
    add_input,
    add_json,
    add_output,
    cache_of,
    calibration_option,
    generative_options,
)
from mitigate.cli.results import print_json
from mitigate.io import (
    ADDED,
    REJECTED,
    Check,
    Job,
    Matches,
    OutputError,
    Record,
    UsageError,
    check_annotation_input,
    counted,
    make_parent,
    open_job,
    progress,
    rejected_path,
    say,
    tell_rejected,
    without_results,
)
from mitigate.models import open_annotator
from mitigate.report.html import write_page
from mitigate.report.totals import Totals, read_annotated

if TYPE_CHECKING:
    from rich.console import Console


SHOWN_RECORDS = 50  # a file of up to so many records is also printed


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "annotate",
        help="Judge each sentence of an answer against its reference.",
        description="Judge each sentence of an answer against its reference: supported, contradictory, "
        "unverifiable or no fact, with evidence and a correction. Give one answer, or a file of records "
        '{"id"?, "question"?, "reference", "answer", "language"?}, one JSON object a line; other keys pass '
        f"through, and the results of an earlier run in them are replaced. {EXIT_CODES}",
    )
    one = parser.add_argument_group("one answer")
    one.add_argument("--question", metavar="TEXT", help="This is the question that was answered.")
    one.add_argument("--reference", metavar="FILE", type=Path, help="This text file holds the reference.")
    one.add_argument("--answer", metavar="FILE", help="This text file holds the answer; - is standard input.")
    one.add_argument("--language", metavar="CODE", help="The answer is in en or zh (found from the text).")
    many = parser.add_argument_group("a file of answers")
    add_input(many, "This JSON Lines file holds the records.", required=False)
    add_output(many, CONTINUED, required=False)
    add_chunk_size(many)
    parser.add_argument("--html", metavar="FILE", type=Path, help="The report is also written here, as one HTML page.")
    add_json(parser)
    add_annotator(parser)
    add_generative(parser)
    scale.add_options(parser, "an annotator")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Annotate one answer or a file of them; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without Unicode shows escapes instead of failing
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    check_options(args)
    options = {**generative_options(args), **calibration_option(args, args.annotator)}
    return run_one(args, options) if args.input is None else run_file(args, options)


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageError: With what to change.
    """
    if args.distributed and (args.input is None or args.output is None):
        raise UsageError("--distributed works on a file of records: give --input and --output")
    given = [f"--{name}" for name in ("question", "reference", "answer", "language") if getattr(args, name) is not None]
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
    reference = read_text(args.reference, "--reference")
    answer = read_text(args.answer, "--answer")
    if not answer.strip():
        raise UsageError(f"--answer: {args.answer} holds no text, so there is nothing to judge")
    annotation = open_annotator(args.annotator, options).annotate(
        reference=reference, answer=answer, question=args.question, language=args.language
    )
    record = annotation.to_dict()
    if args.json:
        print_json(record)
    report(args, lambda: [record], None)
    return 0


def run_file(args: argparse.Namespace, options: Mapping[str, Any]) -> int:
    """Annotate a file of records, continuing an earlier run; print totals and, if few, every record."""
    pool = scale.pool_of(args)
    problems: Counter[str] = Counter()
    with continued(args, check_annotation_input, ADDED) as (job, fingerprints):
        # Replies survive whatever stops this run; the machines of a cluster cannot share an SQLite file.
        if job.valid and args.annotator.startswith("generative:") and (pool is None or pool.address is None):
            options = {"cache": cache_of(args), **options}
        if job.valid and pool is not None:
            _annotate_at_scale(job, args, options, pool, fingerprints, problems)
        else:
            annotator = annotator_for(args, options, job, fingerprints)
            _annotate(job, annotator, args.chunk_size, problems)
        if problems:
            say(f"problems with replies, by sentence: {', '.join(f'{k} {n:,}' for k, n in problems.most_common())}")
        report(args, lambda: read_annotated(job.output), job)
    return REJECTED if job.rejected else 0


@contextmanager
def continued(
    args: argparse.Namespace, check: Check, added: Sequence[str], also: Matches = lambda _, __: None
) -> Iterator[tuple[Job, set[str]]]:
    """Open the job of `--input` and `--output`, and tell its rejected lines.

    Args:
        args: The options of the command.
        check: Finds what is wrong with a record of the input.
        added: The keys by which a result may differ from its record.
        also: Says what else keeps a result of an earlier run from being continued.

    Yields:
        The job, and the fingerprints of the annotators that wrote what is in OUTPUT.
    """
    fingerprints: set[str] = set()

    def matches(record: Record, written: Record) -> str | None:
        if reason := also(record, written):
            return reason
        for key in {**record, **written}:
            if key not in added and (key not in record or key not in written or record[key] != written[key]):
                return f"{key!r} differs"
        if not isinstance(written.get("sentences"), list) or not isinstance(written.get("annotator"), dict):
            return "it has no sentences and annotator"
        fingerprints.add(str(written["annotator"].get("fingerprint")))
        return None

    with open_job(args.input, args.output, check=check, matches=matches, overwrite=args.overwrite) as job:
        tell_rejected(job.source, job.first_rejected, job.rejected, job.rejected_path)
        yield job, fingerprints


def annotator_for(
    args: argparse.Namespace, options: Mapping[str, Any], job: Job, fingerprints: set[str]
) -> Annotator | None:
    """The annotator of a job, None where it has no record; also for a complete output, which may be another's.

    Raises:
        UsageError: It cannot be loaded, or another annotator wrote what is in OUTPUT.
    """
    if not job.valid:
        return None
    annotator = open_annotator(args.annotator, options)
    for other in fingerprints - {annotator.fingerprint}:
        raise UsageError(
            f"cannot continue {job.output}: it was written by an annotator with fingerprint {other}, "
            f"and {args.annotator} has {annotator.fingerprint}; choose another --output, or start again with "
            "--overwrite"
        )
    return annotator


def _annotate(job: Job, annotator: Annotator | None, chunk_size: int, problems: Counter[str]) -> None:
    from rich.console import Console

    before, sentences, start = job.done, 0, perf_counter()
    if annotator is not None:
        Console(stderr=True).print(
            f"annotator {annotator.name}, {counted(job.valid, 'record')}"
            + (f", {before:,} of them already in {job.output}" if before else ""),
            style="dim",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    with progress("annotating", job.valid, before) as tell:

        def process(records: list[Record]) -> list[Record]:
            assert annotator is not None  # there are records
            inputs = [without_results(record) for record in records]
            return [annotation.to_dict() for annotation in annotator.annotate_batch(inputs)]

        def on_chunk(rows: Sequence[Record]) -> None:
            nonlocal sentences
            sentences += sum(len(row["sentences"]) for row in rows)
            problems.update(_problems(rows))
            tell(job.done, f"{sentences / (perf_counter() - start):,.1f} sentences/s")

        job.run(process, chunk_size=chunk_size, on_chunk=on_chunk)
    seconds = perf_counter() - start
    if job.done > before:
        print(
            f"{counted(job.done - before, 'record')}, {counted(sentences, 'sentence')} in {seconds:.1f} s "
            f"({sentences / seconds:,.1f} sentences/s)",
            file=sys.stderr,
        )


def _annotate_at_scale(
    job: Job,
    args: argparse.Namespace,
    options: Mapping[str, Any],
    pool: scale.Pool,
    known: set[str],
    problems: Counter[str],
) -> None:
    if args.overwrite:
        scale.delete_parts(scale.folder_of(job.output))
    rows = scale.annotate(job, args.annotator, options, args.chunk_size, pool, known, say)
    job.run(
        lambda records: list(islice(rows, len(records))),
        chunk_size=args.chunk_size,
        on_chunk=lambda done: problems.update(_problems(done)),
    )
    scale.delete_parts(scale.folder_of(job.output))


def _problems(rows: Sequence[Record]) -> Iterable[str]:
    """What was wrong with an LLM's replies, by sentence."""
    return (name for row in rows for one in row["sentences"] for name in one.get("problems", ()))


def report(args: argparse.Namespace, records: Callable[[], Iterable[Record]], job: Job | None) -> None:
    """Write the page and print the records, if few, and the totals; with `--json` the totals of a job alone."""
    from mitigate.report.terminal import print_records, summary

    totals = Totals()
    for record in records():
        totals.add(record)
    rejected = job.rejected if job else 0
    paths = [("output", job.output)] if job else []
    if job and job.rejected:
        paths.append(("rejected", job.rejected_path))
    if args.html is not None:
        try:
            write_page(args.html, records, totals, rejected=rejected, full_output=job.output.name if job else "")
        except OSError as error:
            raise OutputError(f"cannot write {args.html}: {error.strerror or error}") from error
        paths.append(("page", args.html))
    if args.json:
        if job:
            print_json({**totals_row(totals), "rejected_lines": rejected, **{word: str(path) for word, path in paths}})
        return
    console = _console()
    if job is None or 0 < totals.records <= SHOWN_RECORDS:
        print_records(console, list(records()))
    console.print(summary(totals, rejected, paths))


def totals_row(totals: Totals) -> Record:
    """The counts over all records as JSON values."""
    return {
        "records": totals.records,
        "sentences": totals.sentences,
        "labels": dict(totals.kinds),
        "not_checked": dict(totals.reasons),
        "hallucination_rate": totals.rate,
        "interval": totals.interval,
        "annotators": [{"name": name, "fingerprint": one} for one, name in totals.annotators.items()],
    }


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)
