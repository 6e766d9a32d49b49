"""What the `fewl` commands share: reading a file of records whole, provenance, safe writing and printing."""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fewl.records import RecordError, read_record
from mitigate.errors import UsageError
from mitigate.jobs import Job, make_parent, open_job
from mitigate.jsonl import Check, Line, Problem, Record, dump_line, read_lines, rejected_row, shown
from mitigate.progress import counted
from mitigate.whole_file import whole_file

REJECTED = 3


def check_record(record: Record) -> list[Problem]:
    """What is wrong with a FEWL record."""
    try:
        read_record(record)
    except RecordError as error:
        return [Problem(error.field, None if error.value is None else shown(error.value), error.expected)]
    return []


@contextmanager
def whole_job(args: argparse.Namespace, check: Check) -> Iterator[tuple[Job, list[Record]]]:
    """Lock the output and read all good records; bad lines are told and go to the rejected file.

    FEWL needs all questions at once for the neighbours, so the output is written anew at the end and not
    continued; what takes long are the LLMs' replies, and those are in the cache.
    """
    with open_job(args.input, args.output, check=check, matches=lambda _, __: None, overwrite=True) as job:
        tell_rejected(job.source, job.first_rejected, job.rejected, str(job.rejected_path))
        yield job, [line.record for line in read_lines(args.input, check) if line.record is not None]


def write_all(job: Job, rows: Sequence[Record]) -> None:
    """Write the results, one per good record."""
    results = iter(rows)
    job.run(lambda records: [next(results) for _ in records], chunk_size=1000)


def read_whole(path: Path, check: Check, keep: Path | None = None) -> tuple[list[Record], int]:
    """All good records of a file and the number of bad lines, which are told and, with ``keep``, written there."""
    good: list[Record] = []
    bad: list[Line] = []
    for line in read_lines(path, check):
        if line.record is not None:
            good.append(line.record)
        else:
            bad.append(line)
    tell_rejected(path, bad[:10], len(bad), str(keep) if keep else None)
    if keep is not None and bad:
        write_bytes(keep, b"".join(dump_line(rejected_row(path, line)) for line in bad))
    elif keep is not None:
        keep.unlink(missing_ok=True)
    return good, len(bad)


def tell_rejected(source: Path, first: Sequence[Line], total: int, kept: str | None) -> None:
    """Say which lines are bad and why."""
    for line in first:
        for problem in line.problems:
            say(f"{source}:{line.number}: {problem} (line rejected)")
    if total > len(first):
        say(f"{counted(total - len(first), 'more line')} rejected" + (f", see {kept}" if kept else ""))


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    """All options, the input's sha256 and the versions, to be able to do it again."""
    options = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k != "run"}
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("hallucination-toolkit", "numpy", "torch", "sentence-transformers"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    with args.input.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"options": options, "input_sha256": digest, "versions": versions}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    write_bytes(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False).encode() + b"\n")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        UsageError: It cannot be written.
    """
    make_parent(path)
    try:
        with whole_file(path) as part:
            part.write_bytes(data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def plain(text: object) -> str:
    """Text of a file, made safe to print: no terminal codes, no markup."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else "\ufffd" for c in str(text)))


def figure(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def say(text: str) -> None:
    """A line to standard error."""
    print(f"mitigate: {text}", file=sys.stderr)
