"""The records that pass between rooms: labels, sentence annotations and whole annotations.

Plain frozen dataclasses without torch, so that reading a record costs nothing. What a record looks like on
disk (JSON Lines) is what :meth:`Annotation.to_dict` returns. Reading and checking input lines is the work of
``mitigate/io.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

Label = Literal["supported", "contradictory", "unverifiable", "no_fact"]
Status = Literal["checked", "no_reference", "language_unsupported", "too_long", "failed", "unsure"]
LABELS: tuple[Label, ...] = get_args(Label)
STATUSES: tuple[Status, ...] = get_args(Status)
HALLUCINATED: frozenset[str] = frozenset({"contradictory", "unverifiable"})


@dataclass(frozen=True)
class Fragment:
    """A piece of the reference: ``reference[start:end] == text`` (code points).

    ``match`` is 1 unless an annotator that writes text wrote it in other words: then the similarity in [0, 1] of what
    it wrote.
    """

    text: str
    start: int
    end: int
    match: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {"text": self.text, "start": self.start, "end": self.end}
        return row if self.match == 1 else {**row, "match": self.match}


@dataclass(frozen=True)
class Edit:
    """A correction of the answer: ``answer[start:end] == source`` becomes ``target`` ("" deletes it)."""

    source: str
    target: str
    start: int
    end: int

    def to_dict(self) -> dict[str, Any]:
        return {"from": self.source, "to": self.target, "start": self.start, "end": self.end}


@dataclass(frozen=True)
class Span:
    """Unsupported words of the answer, as offsets into it."""

    start: int
    end: int

    def to_dict(self) -> dict[str, Any]:
        return {"start": self.start, "end": self.end}


@dataclass(frozen=True)
class SentenceAnnotation:
    """The judgement of one sentence: ``answer[start:end] == text``.

    ``label`` is None unless ``status`` is "checked". ``scores`` maps each label to its probability in [0, 1]
    (they sum to 1), or is None where the annotator has none. ``spans`` is None where the annotator does not
    look for them. ``not_verbatim`` are fragments that an annotator wrote and that are not in the reference;
    ``problems`` name what was wrong with what it wrote (all of it where ``status`` is "failed").
    """

    text: str
    start: int
    end: int
    status: Status
    label: Label | None = None
    scores: Mapping[Label, float] | None = None
    fragments: tuple[Fragment, ...] = ()
    correction: tuple[Edit, ...] = ()
    spans: tuple[Span, ...] | None = None
    not_verbatim: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "text": self.text,
            "start": self.start,
            "end": self.end,
            "status": self.status,
            "label": self.label,
            "scores": dict(self.scores) if self.scores is not None else None,
            "fragments": [f.to_dict() for f in self.fragments],
            "correction": [c.to_dict() for c in self.correction],
        }
        if self.spans is not None:
            row["spans"] = [s.to_dict() for s in self.spans]
        row |= {k: list(v) for k in ("not_verbatim", "problems") if (v := getattr(self, k))}
        return row


@dataclass(frozen=True)
class Annotation:
    """An input record with its judged sentences.

    Args:
        record: The input as it came: question, reference, answer and any extra keys, which pass through.
        sentences: One judgement per sentence, in order.
        annotator: ``{"name": …, "fingerprint": …}`` of what judged it.
    """

    record: Mapping[str, Any]
    sentences: tuple[SentenceAnnotation, ...]
    annotator: Mapping[str, str] = field(default_factory=dict)

    @property
    def hallucination_rate(self) -> float | None:
        """Hallucinated / judged factual sentences in [0, 1], lower is better; None when none is factual."""
        return hallucination_rate(s.label for s in self.sentences)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.record,
            "sentences": [s.to_dict() for s in self.sentences],
            "annotator": dict(self.annotator),
            "hallucination_rate": self.hallucination_rate,
        }


class Annotator(Protocol):
    """What every annotator does: judge whole answers, or labelled sentences as they are given."""

    name: str

    @property
    def fingerprint(self) -> str:
        """Of all that its verdicts depend on."""

    def annotate(
        self, *, reference: str, answer: str, question: str | None = None, language: str | None = None
    ) -> Annotation: ...

    def annotate_batch(self, records: Iterable[Mapping[str, Any]]) -> list[Annotation]:
        """Annotate records ({"question"?, "reference", "answer", "language"?, …}), keeping their order."""
        ...

    def predict(self, rows: Iterable[Mapping[str, Any]]) -> list[SentenceAnnotation]:
        """Judge ``row["sentence"]`` as given (offsets from 0) against ``row["reference"]``, keeping order."""
        ...


def hallucination_rate(labels: Iterable[str | None]) -> float | None:
    """Share of contradictory or unverifiable among factual labels; None when there is none (None = unchecked)."""
    factual = [label for label in labels if label is not None and label != "no_fact"]
    if not factual:
        return None
    return sum(label in HALLUCINATED for label in factual) / len(factual)


def input_record(
    reference: str, answer: str, question: str | None = None, language: str | None = None
) -> dict[str, Any]:
    """The record of one answer, without what is None."""
    record = {"reference": reference, "answer": answer, "question": question, "language": language}
    return {name: text for name, text in record.items() if text is not None}


def checked(records: Iterable[Any], fields: Sequence[str]) -> list[Mapping[str, Any]]:
    """Records for annotation, or rows for prediction, that have their texts.

    Args:
        records: What came.
        fields: Names of the texts that must be there.

    Raises:
        ValueError: One is no mapping, lacks a field, or has one that is no string; the message names its place.
    """
    records = list(records)
    for number, record in enumerate(records):
        _check(record, fields, number)
    return records


def _check(record: object, fields: Sequence[str], number: int) -> None:
    if not isinstance(record, Mapping):
        raise ValueError(
            f"record {number}: expected a mapping with {' and '.join(map(repr, fields))}, got "
            f"{type(record).__name__}; hand over a list of records"
        )
    for name in fields:
        if not isinstance(record.get(name), str):
            raise ValueError(
                f"record {number}: expected {name!r} to be a string, got {type(record.get(name)).__name__}; "
                f"give every record {' and '.join(map(repr, fields))}"
            )
    for name in ("question", "language"):
        if record.get(name) is not None and not isinstance(record[name], str):
            raise ValueError(
                f"record {number}: expected {name!r} to be a string or absent, got {type(record[name]).__name__}"
            )
