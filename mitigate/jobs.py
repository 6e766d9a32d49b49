"""Jobs from JSON Lines to JSON Lines that go on after they were killed, without loss or repetition.

Results are appended in input order, one line per valid record, chunk by chunk. A second run with the same
input and output finds what is done, checks that it belongs to this input, cuts a half-written last line and
continues. Bad lines go to ``<output>.rejected.jsonl``, written whole before any model loads. Memory holds
one chunk of records, whatever the size of the file. A lock on the output keeps a second run away and dies
with its process. Leaves out pipes, since the input is read twice, and Windows, which has no ``flock``.

    with open_job(source, output, check=check_annotation_input, matches=same_record) as job:
        job.run(process, chunk_size=32)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import NoReturn

from mitigate.errors import UsageError
from mitigate.jsonl import Check, Line, Record, dump_line, parse_line, read_lines, rejected_row
from mitigate.progress import counted

Matches = Callable[[Record, Record], "str | None"]


class OutputError(Exception):
    """The output cannot be written (disk full, file gone); what was written before stays usable."""


@dataclass
class Job:
    """An input file being turned into an output file, locked until :meth:`close`. See :func:`open_job`.

    ``valid`` and ``rejected`` count the lines of the input, ``done`` the valid ones whose result is in the
    output; ``first_rejected`` keeps the first few bad lines for messages.
    """

    source: Path
    output: Path
    check: Check
    file: FileIO
    lines: int = 0
    valid: int = 0
    rejected: int = 0
    done: int = 0
    keep: int = 0  # bytes of the output that stay
    first_rejected: list[Line] = field(default_factory=list)

    @property
    def rejected_path(self) -> Path:
        return rejected_path(self.output)

    def run(
        self,
        process: Callable[[list[Record]], Sequence[Record]],
        *,
        chunk_size: int,
        on_chunk: Callable[[Sequence[Record]], None] | None = None,
    ) -> None:
        """Process what is not done yet, chunk by chunk, appending and flushing the results of each.

        Args:
            process: Turns records into as many results, in the same order.
            chunk_size: Records handed over at once, at least 1. Chunks start at the same records as in an
                uninterrupted run, so that results which depend on the batch in the last digits agree.
            on_chunk: Called with each chunk's results once they are written.

        Raises:
            OutputError: The output cannot be written.
            RuntimeError: ``process`` returned another number of results.
        """
        self._write(b"")
        lines = islice(read_lines(self.source, self.check), self.lines)
        records = islice((line.record for line in lines if line.record is not None), self.done, None)
        while chunk := list(islice(records, chunk_size - self.done % chunk_size)):
            rows = _processed(process, chunk)
            self._write(b"".join(dump_line(row) for row in rows))
            self.done += len(rows)
            if on_chunk is not None:
                on_chunk(rows)

    def redo(
        self,
        process: Callable[[list[Record]], Sequence[Record]],
        again: Callable[[Record], bool],
        *,
        chunk_size: int,
    ) -> None:
        """Process written records anew, by whole chunks, where one of a chunk is to be done again.

        The output is replaced once all are done, so that a run killed on the way leaves it as it was.

        Args:
            process: As of :meth:`run`.
            again: Whether a result is to be replaced.
            chunk_size: As of :meth:`run`, so that results are those of an uninterrupted run.

        Raises:
            OutputError: The new output cannot be written.
            RuntimeError: ``process`` returned another number of results.
        """
        part = self.output.with_name(self.output.name + ".part")
        lines = islice(read_lines(self.source, self.check), self.lines)
        records = (line.record for line in lines if line.record is not None)
        with ExitStack() as on_failure:
            with self._rewriting(part):
                file = on_failure.enter_context(_open_locked(part))
                file.truncate(0)  # a run that was killed may have left one
            on_failure.callback(part.unlink, missing_ok=True)
            with self.output.open("rb") as written:
                pairs = zip(records, islice(written, self.done), strict=False)
                while chunk := list(islice(pairs, chunk_size)):
                    data = [raw for _, raw in chunk]
                    if any(again(json.loads(raw)) for raw in data):
                        data = [
                            dump_line(row) for row in _processed(process, [record for record, _ in chunk])
                        ]
                    with self._rewriting(part):
                        _write_all(file, b"".join(data))
            with self._rewriting(part):
                part.replace(self.output)  # locked already
            on_failure.pop_all()
        self.file.close()
        self.file, self.keep = file, file.tell()

    @contextmanager
    def _rewriting(self, part: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"cannot write {part}: {error.strerror or error}; {self.output} is as it was"
            ) from error

    def _write(self, data: bytes) -> None:
        try:
            self.file.truncate(self.keep)
            self.file.seek(self.keep)
            _write_all(self.file, data)
        except OSError as error:
            with suppress(OSError):
                self.file.truncate(self.keep)
            raise OutputError(
                f"cannot write {self.output}: {error.strerror or error}; "
                f"its {counted(self.done, 'record is', 'records are')} kept: "
                "mend that and run the same command again to continue"
            ) from error
        self.keep += len(data)

    def close(self) -> None:
        """Close the output and let other runs have it."""
        self.file.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _processed(process: Callable[[list[Record]], Sequence[Record]], chunk: list[Record]) -> Sequence[Record]:
    rows = process(chunk)
    if len(rows) != len(chunk):
        raise RuntimeError(f"{len(chunk)} records went in and {len(rows)} results came out")
    return rows


def _write_all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def rejected_path(output: Path) -> Path:
    """Where the bad lines of a job go."""
    return output.with_name(output.name + ".rejected.jsonl")


def make_parent(path: Path) -> None:
    """Make the folder of a file that is to be written.

    Raises:
        UsageError: That cannot be done, or the folder or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {path.parent}: {error.strerror or error}") from error
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"cannot write {path}: permission denied; name a place that you may write to")


def open_job(
    source: Path,
    output: Path,
    *,
    check: Check,
    matches: Matches,
    overwrite: bool = False,
) -> Job:
    """Lock the output, read the whole input once, write the rejected file, and see what is already done.

    The output itself is changed only by :meth:`Job.run`.

    Args:
        source: The input, a regular file.
        output: Where results go; its folder is made.
        check: Finds what is wrong with an input record.
        matches: Called with (input record, record found in the output); says why the second is not a
            result of the first, or None when it is.
        overwrite: Start again instead of continuing.

    Raises:
        UsageError: A path is wrong, another run holds the output, or the output belongs to something else.
        OutputError: The rejected file cannot be written.
    """
    if not source.is_file():
        reason = "it is not a regular file" if source.exists() else "no such file"
        raise UsageError(f"cannot read {source}: {reason}; --input takes a file of JSON Lines")
    for path in (output, rejected_path(output)):
        if path.resolve() == source.resolve() or (path.exists() and path.samefile(source)):
            raise UsageError(
                f"{source} is the input and would be written over as {path}: choose another --output"
            )
    make_parent(output)
    job = Job(source, output, check, _open_locked(output))
    try:
        _scan(job, matches, overwrite)
    except BaseException:
        job.close()
        raise
    return job


def _open_locked(output: Path) -> FileIO:
    import fcntl  # POSIX only, so not at the top

    if output.exists() and not output.is_file():
        raise UsageError(f"cannot write {output}: it is not a regular file")
    try:
        file = FileIO(os.open(output, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror or error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            raise UsageError(
                f"{output} is being written by another run: wait for it, or choose another --output"
            ) from error
        raise UsageError(f"cannot lock {output}: {error.strerror or error}") from error
    return file


def _scan(job: Job, matches: Matches, overwrite: bool) -> None:
    """First pass: count good and bad lines, write the rejected file, compare the output with the input."""
    target = job.rejected_path
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as rejected, job.output.open("rb") as written:
            found: Iterator[bytes] = iter(()) if overwrite else iter(written)
            for line in read_lines(job.source, job.check):
                job.lines += 1
                if line.record is not None:
                    job.valid += 1
                    raw = next(found, b"")
                    if raw and _compare(job, line.number, line.record, raw, matches):
                        job.done += 1
                        job.keep += len(raw)
                else:
                    job.rejected += 1
                    job.first_rejected += [line] if len(job.first_rejected) < 10 else []
                    rejected.write(dump_line(rejected_row(job.source, line)))
            if next(found, b""):
                _foreign(job, f"it holds more than the {job.valid} valid records of {job.source}")
        if job.rejected:
            part.replace(target)
        else:
            target.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _compare(job: Job, number: int, record: Record, raw: bytes, matches: Matches) -> bool:
    """True for a whole line that is the result of the record, False for one cut while it was written."""
    complete = raw.endswith(b"\n")
    written, _ = parse_line(raw.removesuffix(b"\n"), lambda _: [])
    if written is None and not complete and raw.startswith(b"{"):
        return False
    reason = "it is not a record" if written is None else matches(record, written)
    if reason is not None:
        _foreign(job, f"its line {job.done + 1} is not a result of line {number} of {job.source}: {reason}")
    return complete


def _foreign(job: Job, reason: str) -> NoReturn:
    raise UsageError(
        f"cannot continue {job.output}: {reason}; choose another --output, or start again with --overwrite"
    )
