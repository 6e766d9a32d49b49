"""Reading and writing JSON Lines: checked lines, whole files, and jobs that continue after they were killed.

One bad line never stops the others: it is reported with what was expected and goes to ``<output>.rejected.jsonl``.
A file is either written whole in one step, or by a job that appends chunk by chunk and can be continued at any byte.
Leaves out compressed files, pipes (a job reads its input twice) and Windows, which has no ``flock``.
"""

from __future__ import annotations

import base64
import csv
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from io import FileIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

from engines.usage import METER
from fewl.records import RecordError, read_record

Record = dict[str, Any]
Check = Callable[[Record], "list[Problem]"]
"""Finds what is wrong with a record."""
Matches = Callable[[Record, Record], "str | None"]
"""Why the second record, of the output, is not a result of the first, of the input; None when it is."""
Process = Callable[[list[Record]], Sequence[Record]]
"""Turns records into as many results, in the same order."""
MAX_DEPTH = 100  # nested lists and objects; Python's own reader and writer give up near 1,000
MAX_SHOWN = 80  # characters of a bad value in a message
TOLD = 10  # bad lines that are told; the rejected file holds all of them
ADDED = ("sentences", "annotator", "hallucination_rate", "coverage", "operating_point")  # by annotation
FAILED, REJECTED = 1, 3  # exit codes: a failure that is nobody's wrong usage; some input lines were rejected


class UsageError(Exception):
    """A wrong option, file or value; the command line prints it as one line and exits with 2."""


class OutputError(Exception):
    """The output cannot be written (disk full, file gone); what was written before stays usable."""


@contextmanager
def usage(what: str = "", kinds: type[Exception] | tuple[type[Exception], ...] = ValueError) -> Iterator[None]:
    """Turn errors of these kinds in the block into usage errors that begin with ``what``."""
    try:
        yield
    except kinds as error:
        raise UsageError(f"{what}{error}") from error


@contextmanager
def files(kind: type[Exception], what: str, then: str = "") -> Iterator[None]:
    """Turn what keeps files from being read or written in the block into an error of this kind: ``what``, why, then."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}{then}") from error


def say(text: str) -> None:
    """Print a line to standard error, made safe to print."""
    print("mitigate: " + "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text), file=sys.stderr)


# --- progress of long work ----------------------------------------------------------------------------------------

APART = 10.0
"""Seconds between two lines of progress in a log: short work prints none."""


class Tell(Protocol):
    """A function that is called with how much is done and, where there is one, a note to show beside it."""

    def __call__(self, done: int, note: str = "") -> None: ...


def counted(n: int, one: str, many: str = "") -> str:
    """A number before what it counts: "1 record", "2,000 records"; the plural is ``many``, or ``one`` and an s."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


@contextmanager
def progress(what: str, total: int, done: int = 0) -> Iterator[Tell]:
    """Show ``done`` of ``total`` steps on standard error: a bar in a terminal, else a line every tenth of the way or
    minute. Within a step, such as a long document, the replies of language models are counted.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, before, since, now = Console(stderr=True), METER.heard, METER.requests, done
    last, said = done * 10 // max(total, 1), time.monotonic()

    def show(note: str) -> None:
        nonlocal last, said
        tenth, waited = now * 10 // max(total, 1), time.monotonic() - said
        if waited >= APART and (tenth > last or waited >= 6 * APART):
            last, said = tenth, time.monotonic()
            so_far = f"{what}: {now:,} of {total:,}"
            print(f"{so_far}, {note}" if note else so_far, file=sys.stderr, flush=True)

    def tell(done: int, note: str = "") -> None:
        nonlocal now
        now = done
        show(note)

    with ExitStack() as stack:
        if console.is_terminal:
            about, beside = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
            columns = (about, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), beside)
            bar = stack.enter_context(Progress(*columns, console=console, disable=done >= total, transient=True))
            task = bar.add_task(what, total=total, completed=done, note="")

            def show(note: str) -> None:
                bar.update(task, completed=now, note=note)

        METER.heard = lambda: show(f"{METER.requests - since:,} replies")
        try:
            yield tell
        finally:
            METER.heard = before


# --- lines and records --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """What is wrong with one field ("" = the whole line); ``value`` is shortened, None when it is missing."""

    field: str
    value: str | None
    expected: str

    @classmethod
    def of(cls, record: Record, name: str, expected: str) -> Problem:
        """The problem with what a record has under a name, or that it has nothing there."""
        return cls(name, shown(record[name]) if name in record else None, expected)

    def __str__(self) -> str:
        name = f"{self.field}: " if self.field else ""
        return f"{name}expected {self.expected}, got {'nothing' if self.value is None else self.value}"


@dataclass(frozen=True)
class Line:
    """One line of a file: its number from 1, its bytes, and either a record or what is wrong with it."""

    number: int
    raw: bytes
    record: Record | None
    problems: tuple[Problem, ...] = ()


def shown(value: object) -> str:
    """A value as JSON, cut to :data:`MAX_SHOWN` characters, safe to print."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = json.dumps(text[: MAX_SHOWN + 1], ensure_ascii=False) if isinstance(value, str) else text
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def dump_line(record: Record, indent: int | None = None) -> bytes:
    """A record as one UTF-8 line; lone surrogates, which UTF-8 cannot hold, make the line ASCII with escapes.
    ValueError: a number is NaN or infinite, which JSON cannot hold.
    """
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False, indent=indent).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, allow_nan=False, indent=indent).encode() + b"\n"


class _BadValue(ValueError):
    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def _unique_keys(pairs: list[tuple[str, Any]]) -> Record:
    record: Record = {}
    for name, value in pairs:
        if name in record:
            raise _BadValue(Problem(shown(name)[1:-1], "the same key twice", "each key once"))
        record[name] = value
    return record


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _BadValue(Problem("", shown(text)[1:-1], "finite numbers, below 1.8e308"))
    return number


def _whole(text: str) -> int:
    if len(text) > 308:
        _finite(text)
    return int(text)


def _too_deep(record: Record) -> bool:
    layer: list[Any] = [record]
    for _ in range(MAX_DEPTH):
        held = (one.values() if isinstance(one, dict) else one for one in layer if isinstance(one, (dict, list)))
        layer = list(chain.from_iterable(held))
    return any(isinstance(one, (dict, list)) for one in layer)


def parse_line(raw: bytes, check: Check) -> tuple[Record | None, tuple[Problem, ...]]:
    """Read one line: ``(record, ())`` when it is good, ``(None, problems)`` when it is not."""

    def bad(value: object, expected: str) -> tuple[None, tuple[Problem, ...]]:
        return None, (Problem("", shown(value), expected),)

    numbers: Any = {"parse_constant": _finite, "parse_float": _finite, "parse_int": _whole}
    try:
        text = raw.decode("utf-8")
        record = json.loads(text, object_pairs_hook=_unique_keys, **numbers)
    except UnicodeDecodeError as error:
        near = raw[max(0, error.start - 10) : error.start + 20].decode("utf-8", "replace")
        return bad(near, f"UTF-8 (byte {error.start + 1} of the line is not)")
    except _BadValue as error:
        return None, (error.problem,)
    except json.JSONDecodeError as error:
        return bad(text[max(0, error.pos - 20) :], f"one JSON object a line ({error.msg}, column {error.colno})")
    except RecursionError as error:  # a pile of brackets
        return bad(text, f"one JSON object a line ({error})")
    if not isinstance(record, dict):
        return bad(text, "a JSON object")
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _too_deep(record):
        return bad(text, f"at most {MAX_DEPTH} levels of lists and objects")
    problems = check(record)
    return (None, tuple(problems)) if problems else (record, ())


def csv_rows(path: Path, needed: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a UTF-8 CSV file with a line of names, without empty cells; spreadsheets may write ";" or tabs.
    ValueError where a column that is ``needed`` is not there, or the file can't be read.
    """
    csv.field_size_limit(2**31 - 1)  # references are long
    done = 0  # lines
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            heads = {}
            for sign in ",;\t":
                heads[sign] = next(csv.reader(file, delimiter=sign), [])
                file.seek(0)
            sign = max(heads, key=lambda sign: (set(heads[sign]).issuperset(needed), len(heads[sign])))
            rows = csv.DictReader(file, delimiter=sign, strict=True)  # or a stray " swallows rows
            if missing := [name for name in needed if name not in (rows.fieldnames or ())]:
                got = ", ".join(map(repr, rows.fieldnames or ()))[:300]
                wanted = f"expected columns named {' and '.join(needed)}, got {got}; no {missing[0]}"
                raise ValueError(f"{path.name}: {wanted}")
            done = rows.line_num
            for row in rows:
                if any(row.pop(None, None) or ()):
                    raise csv.Error(f"more cells than the {len(rows.fieldnames or ())} names")
                done = rows.line_num
                yield {name: value for name, value in row.items() if value}
    except csv.Error as error:
        raise ValueError(
            f"{path.name}, after line {done}: not a CSV file: {error}; a cell with a quotation mark, or what parts "
            'cells, in it stands in quotation marks, and its own are doubled: "He said ""yes""."'
        ) from error


def read_lines(path: Path, check: Check) -> Iterator[Line]:
    """Every line that is not blank, good or bad, without a byte order mark. UsageError: the file can't be read."""
    with files(UsageError, f"cannot read {path}"), path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            raw = raw.removesuffix(b"\n")
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if raw.strip():
                yield Line(number, raw, *parse_line(raw, check))


FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "text": ("a string with text in it", lambda value: isinstance(value, str) and value.strip() != ""),
    "any": ("a string", lambda value: isinstance(value, str)),
    "id": ("a string or a whole number", lambda value: isinstance(value, str | int) and not isinstance(value, bool)),
}


def check_texts(record: Record, **kinds: Literal["text", "any", "text?", "any?", "id?"]) -> list[Problem]:
    """Problems of fields, each of a kind of FIELDS; with "?" it may be missing or null."""
    problems = []
    for name, kind in kinds.items():
        expected, allowed = FIELDS[kind.removesuffix("?")]
        if not allowed(record.get(name)) and not (kind.endswith("?") and record.get(name) is None):
            problems.append(Problem.of(record, name, expected))
    return problems


def check_annotation_input(record: Record) -> list[Problem]:
    """Problems of an input: {"id"?, "question"?, "reference", "answer", "language"?}; extra keys are free."""
    return check_texts(record, reference="any", answer="text", question="any?", language="text?", id="id?")


def without_results(record: Record) -> Record:
    """A record without the results of an earlier annotation, which are to be replaced."""
    return {name: value for name, value in record.items() if name not in ADDED}


def rejected_row(path: Path, line: Line) -> Record:
    """What ``<output>.rejected.jsonl`` says of a bad line; bytes that are no UTF-8 are kept as base64."""
    raw = line.raw.decode("utf-8", "replace")
    row = {"file": str(path), "line": line.number, "problems": list(map(asdict, line.problems)), "raw": raw}
    return row if raw.encode() == line.raw else {**row, "raw_base64": base64.b64encode(line.raw).decode()}


def tell_rejected(first: Iterable[tuple[Path, Line]], total: int, kept: Path | str | None) -> None:
    """Say which lines are bad and why: the ``TOLD`` first ones, and how many there are in all."""
    for source, line in first:
        for problem in line.problems:
            say(f"{source}:{line.number}: {problem} (line rejected)")
    if total > TOLD:
        say(f"{counted(total - TOLD, 'more line')} rejected" + (f", see {kept}" if kept else ""))


def check_record(record: Record) -> list[Problem]:
    """Problems of a FEWL record."""
    try:
        read_record(record)
    except RecordError as error:
        return [Problem(error.field, None if error.value is None else shown(error.value), error.expected)]
    return []


# --- whole files --------------------------------------------------------------------------------------------------


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give the place to write to, beside the file; it takes the file's name when the block ends without an error. An
    old file stays as it is until then, and for good where the block or the renaming fails. OutputError: it can't be
    written.
    """
    with files(OutputError, f"cannot write {path}"):
        path = path.resolve()  # a link stays one
        part = path.with_name(path.name + ".part")
        try:
            yield part
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all; an error says why it cannot be written."""
    make_parent(path)
    with whole_file(path) as part:
        part.write_bytes(data)


def write_lines(path: Path, rows: Iterable[Record]) -> None:
    write_bytes(path, b"".join(map(dump_line, rows)))


def write_json(path: Path, value: Record) -> None:
    write_bytes(path, dump_line(value, indent=2))


def read_rows(path: Path) -> Iterator[Record]:
    """The objects of a JSON Lines file of this toolkit, one at a time, none where it is not there. A half-written last
    line is left out. Raises UsageError: the file cannot be read.
    """
    if path.is_file():
        with files(UsageError, f"cannot read {path}"), path.open("rb") as file:
            yield from (json.loads(line) for line in file if line.endswith(b"\n"))


def read_whole(path: Path, check: Check, output: Path | None, expected: str = "") -> tuple[list[Record], int]:
    """All good records of a file, and the number of bad lines; see :func:`set_aside`. UsageError: it can't be read, or
    has no good line where some are ``expected``, in words.
    """
    good, bad = read_all([path], check)
    set_aside(bad, output)
    if expected and not good:
        raise UsageError(f"{path}: expected {expected}, found no good line")
    return [record for *_, record in good], len(bad)


def read_all(paths: Iterable[Path], check: Check) -> tuple[list[tuple[Path, int, Record]], list[tuple[Path, Line]]]:
    """The good records of files, each with its file and the number of its line, and the bad lines."""
    good: list[tuple[Path, int, Record]] = []
    bad: list[tuple[Path, Line]] = []
    for path in paths:
        for line in read_lines(path, check):
            if line.record is None:
                bad.append((path, line))
            else:
                good.append((path, line.number, line.record))
    return good, bad


def set_aside(bad: Sequence[tuple[Path, Line]], output: Path | None) -> None:
    """Tell the bad lines of some files and keep them beside the output; without any, an old rejected file goes."""
    target = output and rejected_path(output)
    tell_rejected(bad[:TOLD], len(bad), target)
    if target and bad:
        write_lines(target, (rejected_row(path, line) for path, line in bad))
    elif target:
        target.unlink(missing_ok=True)


def rejected_path(output: Path) -> Path:
    """Where the bad lines of an output's input go."""
    return output.parent / (output.name + ".rejected.jsonl")  # "." has no name


def make_parent(path: Path) -> None:
    """Make the folder of a file that is to be written. UsageError: that, or writing either of them, can't be done."""
    with files(UsageError, f"cannot make the folder {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise UsageError(
            f"cannot write {path}: it is {'a folder' if path.is_dir() else 'not a regular file'}; name a file"
        )
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise UsageError(f"cannot write {path}: permission denied; name a place that you may write to")


def check_paths(sources: Sequence[Path], output: Path | None, *, overwrite: bool = True) -> None:
    """See that inputs can be read and the output can be written beside them, and make the output's folder. Raises
    UsageError with what to change; also where the output is there and may not be overwritten.
    """
    if named := [path for path in (*sources, output) if path is not None and str(path) == "-"]:
        raise UsageError(f"expected a file, got {named[0]}: a second start reads both again; name files")
    for source in sources:
        if not source.is_file():
            reason = "it is not a regular file" if source.exists() else "no such file"
            hint = f"; put its files into one: cat {source}/*.jsonl > all.jsonl" if source.is_dir() else ""
            raise UsageError(f"cannot read {source}: {reason}; --input takes a file of JSON Lines{hint}")
        for path in () if output is None else (output, rejected_path(output)):
            if path.resolve() == source.resolve() or (path.exists() and path.samefile(source)):
                raise UsageError(f"{source} is the input and would be written over as {path}: choose another --output")
    if output is not None:
        make_parent(output)
        if output.exists() and not overwrite:
            raise UsageError(f"{output} is there already: choose another --output, or start again with --overwrite")


# --- jobs ---------------------------------------------------------------------------------------------------------
#
# Results are appended in input order, so that a second run can compare what is done with the input line by line, cut a
# half-written last line and continue. Memory holds one chunk of records. The lock on the output ends with its process.


@dataclass
class Job:
    """An input file being turned into an output file, which is locked. See :func:`open_job`."""

    source: Path
    output: Path
    check: Check
    file: FileIO
    lines: int = 0
    valid: int = 0
    rejected: int = 0
    done: int = 0
    keep: int = 0  # bytes of the output that stay

    @property
    def rejected_path(self) -> Path:
        return rejected_path(self.output)

    def records(self) -> Iterator[Record]:
        """The good records of the input, as far as it went when the job was opened."""
        lines = islice(read_lines(self.source, self.check), self.lines)
        return (line.record for line in lines if line.record is not None)

    def run(
        self, process: Process, *, chunk_size: int, on_chunk: Callable[[Sequence[Record]], None] | None = None
    ) -> None:
        """Process what is not done yet, chunk by chunk, and append the results of each; then ``on_chunk`` gets them.

        Chunks start at the same records as in an uninterrupted run, so that results which depend on the batch in the
        last digits agree. Raises OutputError: the output cannot be written.
        """
        self._write(b"")
        records = islice(self.records(), self.done, None)
        while chunk := list(islice(records, chunk_size - self.done % chunk_size)):
            rows = processed(process, chunk)
            self._write(b"".join(dump_line(row) for row in rows))
            self.done += len(rows)
            if on_chunk is not None:
                on_chunk(rows)

    def redo(self, process: Process, again: Callable[[Record], bool], *, chunk_size: int) -> None:
        """Process written records anew, by whole chunks, where ``again`` holds for one of a chunk; see :meth:`run`. The
        output is replaced once all are done, so that a run killed on the way leaves it as it was.
        """
        output = self.output.resolve()  # a link stays one
        part = output.with_name(output.name + ".part")
        rewriting = partial(files, OutputError, f"cannot write {part}", f"; {self.output} is as it was")
        with ExitStack() as on_failure:
            with rewriting():
                file = on_failure.enter_context(open_locked(part, part))
                file.truncate(0)  # a run that was killed may have left one
            on_failure.callback(part.unlink, missing_ok=True)
            with self.output.open("rb") as written:
                pairs = zip(self.records(), islice(written, self.done), strict=False)
                while chunk := list(islice(pairs, chunk_size)):
                    data = [raw for _, raw in chunk]
                    if any(again(json.loads(raw)) for raw in data):
                        data = [dump_line(row) for row in processed(process, [record for record, _ in chunk])]
                    with rewriting():
                        _write_all(file, b"".join(data))
            with rewriting():
                part.replace(output)  # locked already
            on_failure.pop_all()
        self.file.close()
        self.file, self.keep = file, file.tell()

    def _write(self, data: bytes) -> None:
        try:
            self.file.truncate(self.keep)
            self.file.seek(self.keep)
            _write_all(self.file, data)
        except OSError as error:
            with suppress(OSError):
                self.file.truncate(self.keep)
            kept = f"its {counted(self.done, 'record is', 'records are')} kept"
            advice = f"{kept}: fix that and run the same command again to continue"
            raise OutputError(f"cannot write {self.output}: {error.strerror or error}; {advice}") from error
        self.keep += len(data)


def processed(process: Process, chunk: list[Record]) -> Sequence[Record]:
    """The results of some records. Raises RuntimeError: there are more, or fewer, than records."""
    rows = process(chunk)
    if len(rows) != len(chunk):
        raise RuntimeError(f"{len(chunk)} records went in and {len(rows)} results came out")
    return rows


def _write_all(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def open_job(source: Path, output: Path, *, check: Check, matches: Matches, overwrite: bool = False) -> Iterator[Job]:
    """Lock the output, read the whole input once, write the rejected file and tell it, and see what is already done.

    With ``overwrite`` the output is started again instead of continued. Raises UsageError: a path is wrong, another run
    holds the output, or it belongs to something else; OutputError: the rejected file cannot be written.
    """
    check_paths([source], output)
    new = not output.exists()
    job = Job(source, output, check, open_locked(output, output))
    try:
        tell_rejected([(source, line) for line in _scan(job, matches, overwrite)], job.rejected, job.rejected_path)
        yield job
    except BaseException:
        if new and not os.fstat(job.file.fileno()).st_size:  # such as by an annotator that cannot be loaded
            output.unlink(missing_ok=True)
        raise
    finally:
        job.file.close()


@contextmanager
def alone(output: Path) -> Iterator[None]:
    """Hold an output that is written whole at the end, so that a second run is refused before it asks the same again.
    A killed run leaves OUTPUT.lock, which keeps nobody out.
    """
    path = output.with_name(output.name + ".lock")
    with open_locked(path, output):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def open_locked(path: Path, output: Path) -> FileIO:
    """Open a file and lock it until it is closed; what cannot be done is a UsageError that names the output."""
    import fcntl

    if path.exists() and not path.is_file():
        raise UsageError(f"cannot write {output}: it is not a regular file")
    with files(UsageError, f"cannot write {output}"):
        file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        why = f"cannot lock {output}: {error.strerror or error}"
        if isinstance(error, BlockingIOError):
            why = f"{output} is being written by another run: wait for it, or choose another --output"
        raise UsageError(why) from error
    return file


def _scan(job: Job, matches: Matches, overwrite: bool) -> list[Line]:
    """First pass: count good and bad lines, of which the ``TOLD`` first are returned, write the rejected file, and
    compare the output with the input.
    """
    target, first = job.rejected_path, list[Line]()
    with whole_file(target) as part, part.open("wb") as rejected, job.output.open("rb") as written:
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
                first += [line] if len(first) < TOLD else []
                rejected.write(dump_line(rejected_row(job.source, line)))
        if next(found, b""):
            _foreign(job, f"it holds more than the {job.valid} valid records of {job.source}")
    if not job.rejected:
        target.unlink()
    return first


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
    advice = "choose another --output, or start again with --overwrite"
    raise UsageError(f"cannot continue {job.output}: {reason}; {advice}")


def versions(*packages: str) -> dict[str, str | None]:
    """The versions of Python, the toolkit and these packages; None for one that is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in ("hallucination-toolkit", *packages):
        found[package] = None
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
