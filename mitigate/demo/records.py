"""Uploaded JSON Lines, read whole within the limits of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mitigate.demo.limits import Limits, Refusal
from mitigate.errors import UsageError
from mitigate.jsonl import Check, Line, read_lines


def read_uploaded(path: Path, limits: Limits, check: Check) -> tuple[list[dict[str, Any]], list[Line]]:
    """The good records and the bad lines of a file.

    Raises:
        Refusal: It is too large, can't be read, or has no good record.
    """
    if path.stat().st_size > limits.file_bytes:
        raise Refusal(
            f"The file has {path.stat().st_size:,} bytes; this page takes {limits.file_bytes:,}. Use "
            "`mitigate annotate --input FILE --output FILE`, which takes any size."
        )
    records: list[dict[str, Any]] = []
    bad: list[Line] = []
    try:
        for line in read_lines(path, check):
            if line.record is None:
                bad.append(line)
            else:
                records.append(line.record)
            if len(records) > limits.records:
                raise Refusal(
                    f"The file has more than {limits.records:,} records, which is what this page takes. Use "
                    "`mitigate annotate --input FILE --output FILE`, which takes any number."
                )
    except UsageError as error:
        raise Refusal(str(error)) from error
    if not records:
        detail = f" The first bad line: {problems_of(bad[0])}." if bad else ""
        raise Refusal(f"The file has no good record.{detail}")
    return records, bad


def problems_of(line: Line) -> str:
    """A bad line in words."""
    return f"line {line.number}: {'; '.join(map(str, line.problems))}"


def read_records(path: Path, limits: Limits) -> tuple[list[dict[str, Any]], list[str]]:
    """Records to annotate and the bad lines of a file, in words.

    Raises:
        Refusal: See ``read_uploaded``.
    """
    records, bad = read_uploaded(path, limits, limits.check_record)
    return records, [problems_of(line) for line in bad]
