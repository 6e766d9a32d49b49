"""FEWL's input records, checked and in one shape.

    {"id", "question", "answers": [{"text", "model"?, "label"?}],
     "reference_answers": {"llm": text or [text, …]}, "iw": […]?, "co": […]?}

Extra keys pass through. ``label`` is true, false or null. A reference answer of null or of white space only
is a missing one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """An answer to score; ``label`` says whether a person found it true, None where nobody looked."""

    text: str
    model: str | None = None
    label: bool | None = None


@dataclass(frozen=True)
class FewlRecord:
    """One question with the answers to score and the reference answers."""

    question: str
    answers: tuple[Candidate, ...]
    references: Mapping[str, tuple[str, ...]]
    iw: tuple[str, ...]
    co: tuple[str, ...]


class RecordError(ValueError):
    """A field that is not as expected; ``field``, ``value`` and ``expected`` tell them apart."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field, self.value, self.expected = field, value, expected
        super().__init__(f"{field}: expected {expected}, got {value!r:.80}")


def read_record(raw: Mapping[str, Any]) -> FewlRecord:
    """Check a record and bring it into one shape; RecordError where it is not as expected."""
    question, rows, references = raw.get("question"), raw.get("answers"), raw.get("reference_answers")
    if not isinstance(question, str) or not question.strip():
        raise RecordError("question", question, "a string with text in it")
    if not isinstance(rows, list):
        raise RecordError("answers", rows, 'a list of {"text", "model"?, "label"?}')
    answers = []
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RecordError(f"answers[{i}]", row, 'an object {"text", "model"?, "label"?}')
        for key, types, expected in (
            ("text", str, "a string"),
            ("model", str | None, "a string or null"),
            ("label", bool | None, "true, false or null"),
        ):
            if not isinstance(row.get(key), types):
                raise RecordError(f"answers[{i}].{key}", row.get(key), expected)
        answers.append(Candidate(row["text"], row.get("model"), row.get("label")))
    if not isinstance(references, Mapping | None):
        raise RecordError("reference_answers", references, "an object of LLM name to text or list of texts")
    given = {
        str(name): _texts(f"reference_answers.{name}", [texts] if isinstance(texts, str) else texts)
        for name, texts in (references or {}).items()
    }
    iw, co = (_texts(name, raw.get(name)) for name in ("iw", "co"))
    return FewlRecord(question.strip(), tuple(answers), given, iw, co)


def _texts(field: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(text is None or isinstance(text, str) for text in value):
        raise RecordError(field, value, "a list of strings")
    return tuple(text for text in value if text is not None and text.strip())
