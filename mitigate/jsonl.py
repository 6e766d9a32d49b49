"""Reading JSON Lines: each line becomes a checked record or a list of problems; a bad one stops no other.

What a record must look like is a function handed in (``check``). Lines end at ``\\n``, blank ones are
passed over, a byte order mark is dropped. Bad are: text that is not UTF-8 or not one JSON object, the same
key twice, NaN and infinite numbers, more than :data:`MAX_DEPTH` levels, and whatever ``check`` finds.
Leaves out compressed files. Jobs that write results are in ``mitigate/jobs.py``.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mitigate.errors import UsageError

Record = dict[str, Any]
Check = Callable[[Record], "list[Problem]"]
MAX_DEPTH = 100  # nested lists and objects; Python's own reader and writer give up near 1,000
MAX_SHOWN = 80  # characters of a bad value in a message
ADDED = ("sentences", "annotator", "hallucination_rate")  # what annotation adds to a record


@dataclass(frozen=True)
class Problem:
    """What is wrong with one field ("" = the whole line); ``value`` is shortened, None when it is missing."""

    field: str
    value: str | None
    expected: str

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


def dump_line(record: Record) -> bytes:
    """A record as one UTF-8 line; lone surrogates, which UTF-8 cannot hold, make the line ASCII with escapes.

    Raises:
        ValueError: A number is NaN or infinite, which JSON cannot hold.
    """
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(record, allow_nan=False).encode() + b"\n"


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
        raise _BadValue(Problem("", shown(text)[1:-1], "finite numbers"))
    return number


def _too_deep(record: Record) -> bool:
    layer: list[Any] = [record]
    for _ in range(MAX_DEPTH):
        layer = [
            child
            for parent in layer
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not layer:
            return False
    return True


def parse_line(raw: bytes, check: Check) -> tuple[Record | None, tuple[Problem, ...]]:
    """Read one line: ``(record, ())`` when it is good, ``(None, problems)`` when it is not."""

    def bad(value: object, expected: str) -> tuple[None, tuple[Problem, ...]]:
        return None, (Problem("", shown(value), expected),)

    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        near = raw[max(0, error.start - 10) : error.start + 20].decode("utf-8", "replace")
        return bad(near, f"UTF-8 (byte {error.start + 1} of the line is not)")
    try:
        record = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_finite, parse_float=_finite)
    except _BadValue as error:
        return None, (error.problem,)
    except json.JSONDecodeError as error:
        return bad(
            text[max(0, error.pos - 20) :], f"one JSON object a line ({error.msg}, column {error.colno})"
        )
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits; a pile of brackets
        return bad(text, f"one JSON object a line ({error})")
    if not isinstance(record, dict):
        return bad(text, "a JSON object")
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _too_deep(record):
        return bad(text, f"at most {MAX_DEPTH} levels of lists and objects")
    problems = check(record)
    return (None, tuple(problems)) if problems else (record, ())


def read_lines(path: Path, check: Check) -> Iterator[Line]:
    """Yield every line that is not blank, in order, good or bad; a UTF-8 byte order mark is dropped.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                raw = raw.removesuffix(b"\n")
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                if raw.strip():
                    yield Line(number, raw, *parse_line(raw, check))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def check_text(record: Record, name: str, *, required: bool, empty: bool = False) -> list[Problem]:
    """Problems of one text field; a field that is not required may also be null.

    Args:
        record: The object read from the line.
        name: Its key.
        required: Whether the key must be there and hold a string.
        empty: Whether a string without any letter or sign is allowed.
    """
    expected = "a string" if empty else "a string with text in it"
    if name not in record or (record[name] is None and not required):
        return [Problem(name, None, expected)] if required else []
    value = record[name]
    if not isinstance(value, str) or not (empty or value.strip()):
        return [Problem(name, shown(value), expected)]
    return []


def check_annotation_input(record: Record) -> list[Problem]:
    """Problems of an input: {"id"?, "question"?, "reference", "answer", "language"?}; extra keys are free."""
    problems = check_text(record, "reference", required=True, empty=True)
    problems += check_text(record, "answer", required=True)
    problems += check_text(record, "question", required=False, empty=True)
    problems += check_text(record, "language", required=False)
    if isinstance(record.get("id"), (bool, float, list, dict)):
        problems.append(Problem("id", shown(record["id"]), "a string or a whole number"))
    return problems


def without_results(record: Record) -> Record:
    """A record without the results of an earlier annotation, which are to be replaced."""
    return {name: value for name, value in record.items() if name not in ADDED}


def rejected_row(path: Path, line: Line) -> Record:
    """What ``<output>.rejected.jsonl`` says of a bad line; bytes that are no UTF-8 are kept as base64."""
    row: Record = {
        "file": str(path),
        "line": line.number,
        "problems": [{"field": p.field, "value": p.value, "expected": p.expected} for p in line.problems],
        "raw": line.raw.decode("utf-8", "replace"),
    }
    if row["raw"].encode() != line.raw:
        row["raw_base64"] = base64.b64encode(line.raw).decode()
    return row
