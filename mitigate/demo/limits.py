"""What the page accepts, and the words in which it refuses.

Every refusal is a :class:`Refusal`: the page shows it as a notice, the endpoints as an error message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mitigate.jsonl import Problem, Record, check_annotation_input


class Refusal(Exception):
    """Input that the page does not take; the message says what to change."""


@dataclass(frozen=True)
class Limits:
    """Sizes above which input is refused.

    Args:
        characters: Of one text: question, reference, answer.
        records: Of one uploaded file.
        queue: Calls that may wait.
        at_once: Calls that are worked on at the same time; they take turns at the model.
    """

    characters: int = 50_000
    records: int = 1_000
    queue: int = 32
    at_once: int = 8

    @property
    def file_bytes(self) -> int:
        """Of one uploaded file: four bytes a character, three texts a record, and never over 64 MiB."""
        return min(12 * self.characters * self.records, 64 * 2**20)

    @property
    def request_bytes(self) -> int:
        """Of one request that is no file: room for a few texts of escaped characters."""
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
                problems.append(
                    Problem(name, f"{len(text):,} characters", f"at most {self.characters:,} characters")
                )
            if _half_character(text) is not None:
                problems.append(Problem(name, "half a character (a lone surrogate)", "whole characters"))
        return problems


def check_answer(record: Mapping[str, str]) -> None:
    """Refuse a record without an answer.

    Raises:
        Refusal: There is nothing to judge.
    """
    if not record["answer"].strip():
        raise Refusal(
            "The answer is empty, so there is nothing to judge. Paste an answer, or pick an example."
        )


def _half_character(text: str) -> int | None:
    """Place of the first lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
