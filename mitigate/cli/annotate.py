"""`mitigate annotate`: judge each sentence of an answer, or of a file of answers, against its reference.

    mitigate annotate --question Q --reference reference.txt --answer answer.txt
    mitigate annotate --input in.jsonl --output out.jsonl --html report.html

A file is worked through in chunks and can be interrupted: the same command continues where it stopped. Every
mistake in the options or paths is reported before a model loads. Leaves out how sentences are judged: that is
the annotator's work.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

from annotators.base import Annotator, engine_in
from mitigate import scale
from mitigate.cli.options import Args, Subparsers, add_command, print_json, tell_cost
from mitigate.io import (
    ADDED,
    Check,
    Job,
    Matches,
    Record,
    UsageError,
    check_annotation_input,
    counted,
    files,
    make_parent,
    open_job,
    progress,
    read_rows,
    rejected_path,
    say,
    without_results,
)
from mitigate.models import open_annotator
from mitigate.report.html import write_page
from mitigate.report.terminal import print_records, summary
from mitigate.report.totals import Totals

SHOWN_RECORDS = 50  # a file of up to so many records is also printed


def add_parser(subparsers: Subparsers) -> None:
    more = (
        "The labels are supported, contradictory, unverifiable and no fact; evidence and a correction come with them. "
        'Give one answer, or a file of records {"id"?, "question"?, "reference", "answer", "language"?}, one JSON '
        "object a line; other keys pass through, and the results of an earlier run in them are replaced."
    )
    parser = add_command(subparsers, "annotate", "Judge each sentence of an answer against its reference.", more)
    with parser.group("one answer"):
        parser.option("--question", "This is the question that was answered.", "TEXT")
        parser.file("--reference", "This text file holds the reference.")
        parser.option("--answer", "This text file holds the answer; - is standard input.", "FILE")
        parser.option("--language", "The answer is in en or zh (found from the text).", "CODE")
    with parser.group("a file of answers"):
        parser.input("This JSON Lines file holds the records.", required=False)
        parser.output(continued=True, required=False)
        parser.chunk_size()
    parser.file("--html", "The report is also written here, as one HTML page.")
    parser.annotator()
    parser.max_failed()
    parser.generative()
    parser.pool("an annotator")
    parser.set_defaults(run=run)


def run(args: Args) -> int:
    check_options(args)
    settings = {**args.generative_options(), **args.calibration_options(args.annotator)}
    if args.input is not None:
        return run_file(args, settings)
    reference, answer = read_text(args.reference, "--reference"), read_text(args.answer, "--answer")
    if not answer.strip():
        raise UsageError(f"--answer: {args.answer} holds no text, so there is nothing to judge")
    annotator = open_annotator(args.annotator, settings)
    found = annotator.annotate(reference=reference, answer=answer, question=args.question, language=args.language)
    if args.json:
        print_json(found.to_dict())
    return args.exit_code(report(args, lambda: [found.to_dict()], None).failed, 0)


def check_options(args: Args) -> None:
    """Refuse options that do not go together."""
    many = args.input is not None, args.output is not None
    if args.distributed and not all(many):
        raise UsageError("--distributed works on a file of records: give --input and --output")
    given = [f"--{name}" for name in ("question", "reference", "answer", "language") if getattr(args, name) is not None]
    if any(many) and given:
        raise UsageError(f"{', '.join(given)}: for one answer only; leave out --input and --output, or these")
    if any(many) and not all(many):
        raise UsageError("--input and --output go together; give both")
    if not any(many) and (missing := [name for name in ("--reference", "--answer") if name not in given]):
        raise UsageError(
            f"{' and '.join(missing)} missing: give --reference FILE and --answer FILE (or -) for one "
            "answer, or --input FILE and --output FILE for many"
        )
    if not any(many) and args.overwrite:
        raise UsageError("--overwrite: for --input and --output only; one answer has no output to continue")
    if args.html is not None:
        named = {f"--{name}": getattr(args, name) for name in ("input", "reference", "answer", "output")}
        for name, path in (*named.items(), ("rejected lines", args.output and rejected_path(args.output))):
            if path is not None and Path(path).resolve() == args.html.resolve():
                raise UsageError(f"--html: {args.html} is also the file of {name}; name another file")
        make_parent(args.html)


def read_text(path: str | Path, option: str) -> str:
    """The text of a UTF-8 file, exactly; "-" is standard input."""
    with files(UsageError, f"{option}: cannot read {path}"):
        if path == "-":
            if sys.stdin.isatty():
                print("Type the answer, then Ctrl-D on a line of its own.", file=sys.stderr)
            data = sys.stdin.buffer.read()
        else:
            data = Path(path).read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{option}: {path} is not UTF-8 (byte {error.start + 1}); convert it first") from error


def run_file(args: Args, settings: Mapping[str, Any]) -> int:
    pool = scale.pool_of(args)
    problems: Counter[str] = Counter()  # what was wrong with an LLM's replies, by sentence

    def note(rows: Sequence[Record]) -> None:
        problems.update(name for row in rows for one in row["sentences"] for name in one.get("problems", ()))

    with continued(args, check_annotation_input, ADDED) as (job, fingerprints):
        # Replies survive whatever stops this run; the machines of a cluster cannot share an SQLite file.
        if job.valid and engine_in(args.annotator) is not None and (pool is None or pool.address is None):
            settings = {"cache": args.cache_file(), **settings}
        if job.valid and pool is not None:
            parts = scale.folder_of(job.output)
            if args.overwrite:
                scale.delete_parts(parts)
            rows = scale.annotate(job, args.annotator, settings, args.chunk_size, pool, fingerprints)
            job.run(lambda records: list(islice(rows, len(records))), chunk_size=args.chunk_size, on_chunk=note)
            scale.delete_parts(parts)
        else:
            _annotate(job, annotator_for(args, settings, job, fingerprints), args.chunk_size, note)
        if problems:
            say(f"problems with replies, by sentence: {', '.join(f'{k} {n:,}' for k, n in problems.most_common())}")
        totals = report(args, lambda: read_rows(job.output), job)
    return args.exit_code(totals.failed, job.rejected)


@contextmanager
def continued(
    args: Args, check: Check, added: Sequence[str], also: Matches = lambda _, __: None
) -> Iterator[tuple[Job, set[str]]]:
    """The job of `--input` and `--output`, and the fingerprints of the annotators that wrote what is in OUTPUT.

    A result may differ from its record by the keys ``added``; ``also`` says what else keeps it from being continued.
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
        yield job, fingerprints


def annotator_for(args: Args, settings: Mapping[str, Any], job: Job, fingerprints: set[str]) -> Annotator | None:
    """The annotator of a job; None where it has no record. One that did not write what is in OUTPUT is refused."""
    if not job.valid:
        return None
    annotator = open_annotator(args.annotator, settings)
    if others := fingerprints - {annotator.fingerprint}:
        raise UsageError(
            f"cannot continue {job.output}: it was written by an annotator with fingerprint {min(others)}, and "
            f"{args.annotator} has {annotator.fingerprint}; choose another --output, or start again with --overwrite"
        )
    return annotator


def _annotate(job: Job, annotator: Annotator | None, chunk_size: int, note: Callable[[Sequence[Record]], None]) -> None:
    before, sentences, start = job.done, 0, perf_counter()
    if annotator is not None:
        tell_cost(annotator, islice(job.records(), before, None))
        known = f", {before:,} of them already in {job.output}" if before else ""
        text = f"annotator {annotator.name}, {counted(job.valid, 'record')}{known}"
        Console(stderr=True).print(text, style="dim", markup=False, highlight=False, soft_wrap=True)
    with progress("annotating", job.valid, before) as tell:

        def process(records: list[Record]) -> list[Record]:
            assert annotator is not None  # there are records
            return [one.to_dict() for one in annotator.annotate_batch([without_results(record) for record in records])]

        def on_chunk(rows: Sequence[Record]) -> None:
            nonlocal sentences
            sentences += sum(len(row["sentences"]) for row in rows)
            note(rows)
            tell(job.done, f"{sentences / (perf_counter() - start):,.1f} sentences/s")

        job.run(process, chunk_size=chunk_size, on_chunk=on_chunk)
    if job.done > before:
        seconds = perf_counter() - start
        done = f"{counted(job.done - before, 'record')}, {counted(sentences, 'sentence')}"
        print(f"{done} in {seconds:.1f} s ({sentences / seconds:,.1f} sentences/s)", file=sys.stderr)


def report(args: Args, records: Callable[[], Iterable[Record]], job: Job | None) -> Totals:
    """Write the page and print the records, if few, and the totals; with `--json` the totals of a job alone."""
    totals = Totals.of(records())
    rejected = job.rejected if job else 0
    paths = [("output", job.output)] if job else []
    if job and job.rejected:
        paths.append(("rejected", job.rejected_path))
    if args.html is not None:
        write_page(args.html, records, totals, rejected=rejected, full_output=job.output.name if job else "")
        paths.append(("page", args.html))
    if args.json and job:
        counts = {"records": totals.records, "sentences": totals.sentences, "labels": dict(totals.kinds)}
        rate = {"hallucination_rate": totals.rate, "interval": totals.interval, "coverage": totals.coverage}
        who = [{"name": name, "fingerprint": fingerprint} for fingerprint, name in totals.annotators.items()]
        more = {"not_checked": dict(totals.reasons), "annotators": who, "rejected_lines": rejected}
        print_json({**counts, **rate, **more, **{word: str(path) for word, path in paths}})
    if not args.json:
        console = Console(highlight=False, markup=False, emoji=False)
        if job is None or 0 < totals.records <= SHOWN_RECORDS:
            print_records(console, list(records()))
        console.print(summary(totals, rejected, paths))
    return totals
