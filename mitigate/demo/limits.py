"""What the page takes: sizes, uploaded files, and the words in which it refuses; and the files that it hands out.

Every refusal is a :class:`Refusal`: the page shows it as a notice, the endpoints as an error message.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mitigate.io import Check, Line, Problem, Record, UsageError, check_annotation_input, read_lines


class Refusal(Exception):
    """Input that the page does not take; the message says what to change."""


@dataclass(frozen=True)
class Limits:
    """Sizes above which input is refused.

    Args:
        characters: The most that one text may have: question, reference or answer.
        records: The most that one uploaded file may have.
        queue: Calls that may wait.
        at_once: Calls that are worked on at the same time; they take turns at the model.
    """

    characters: int = 50_000
    records: int = 1_000
    queue: int = 32
    at_once: int = 8

    @property
    def file_bytes(self) -> int:
        """Bytes that an uploaded file may have: four a character, three texts a record, and never over 64 MiB."""
        return min(12 * self.characters * self.records, 64 * 2**20)

    @property
    def request_bytes(self) -> int:
        """Bytes that a request other than a file may have: a few texts whose characters are all escaped."""
        return max(120 * self.characters, 2**20)

    def check(self, **texts: str | None) -> None:
        """Refuse texts that are too long or hold half a character.

        Raises:
            Refusal: Naming the text.
        """
        for name, text in texts.items():
            words = name.replace("_", " ")
            if text is not None and len(text) > self.characters:
                raise Refusal(
                    f"The {words} has {len(text):,} characters; this page takes {self.characters:,}. "
                    "Shorten it, or start the page with a larger --max-characters."
                )
            if text is not None and (half := _half_character(text)) is not None:
                raise Refusal(f"The {words} holds half a character (a lone surrogate) at place {half + 1:,}.")

    def check_record(self, record: Record) -> list[Problem]:
        """Problems of one record of an uploaded file."""
        problems = check_annotation_input(record)
        for name in ("question", "reference", "answer"):
            text = record.get(name)
            if not isinstance(text, str):
                continue
            if len(text) > self.characters:
                problems.append(Problem(name, f"{len(text):,} characters", f"at most {self.characters:,} characters"))
            if _half_character(text) is not None:
                problems.append(Problem(name, "half a character (a lone surrogate)", "whole characters"))
        return problems


def _half_character(text: str) -> int | None:
    """Place of the first lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def read_uploaded(path: Path, limits: Limits, check: Check) -> tuple[list[dict[str, Any]], list[Line]]:
    """The good records and the bad lines of a file of JSON Lines.

    Raises:
        Refusal: It is too large, can't be read, or has no good record.
    """
    instead = "Use `mitigate annotate --input FILE --output FILE`, which takes any"
    if (size := path.stat().st_size) > limits.file_bytes:
        raise Refusal(f"The file has {size:,} bytes; this page takes {limits.file_bytes:,}. {instead} size.")
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
                    f"The file has more than {limits.records:,} records, which is what this page takes. {instead} "
                    "number."
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


@lru_cache(maxsize=1)
def private_folder() -> Path:
    """A folder that only this user can read, removed at the end of the process; Gradio keeps uploads in it too."""
    folder = Path(tempfile.mkdtemp(prefix="mitigate-demo-"))
    os.environ["GRADIO_TEMP_DIR"] = str(folder / "gradio")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def work_folder() -> Path:
    """A new folder for the files of one call."""
    return Path(tempfile.mkdtemp(dir=private_folder()))
