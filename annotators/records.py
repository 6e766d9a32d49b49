"""The records that pass between rooms: labels, sentence annotations and whole annotations, without torch.

On disk a record is what :meth:`Annotation.to_dict` returns, one JSON object a line; ``mitigate/io.py`` reads lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

Label = Literal["supported", "contradictory", "unverifiable", "no_fact"]
Status = Literal["checked", "no_reference", "language_unsupported", "too_long", "failed", "unsure"]
LABELS: tuple[Label, ...] = get_args(Label)
JUDGED: frozenset[str] = frozenset({"checked", "unsure"})  # statuses of sentences with scores
HALLUCINATED: frozenset[str] = frozenset({"contradictory", "unverifiable"})
MOST_FAILED = 0.5  # share of failed sentences above which no rate is given


@dataclass(frozen=True)
class Fragment:
    """A piece of the reference: ``reference[start:end] == text`` (code points)."""

    text: str
    start: int
    end: int
    match: float = 1.0  # or the similarity in [0, 1] of what an annotator wrote, where that is in other words
    written: str = ""  # what it wrote; "" where that is the text itself

    def to_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {"text": self.text, "start": self.start, "end": self.end}
        row |= {} if self.match == 1 else {"match": self.match}
        return row | ({"written": self.written} if self.written else {})


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


@dataclass(frozen=True)
class SentenceAnnotation:
    """The judgement of one sentence: ``answer[start:end] == text``."""

    text: str
    start: int
    end: int
    status: Status  # "unsure": judged, but between the thresholds of the operating point
    label: Label | None = None  # None unless checked
    scores: Mapping[Label, float] | None = None  # probabilities in [0, 1], sum 1; None where the annotator has none
    fragments: tuple[Fragment, ...] = ()
    correction: tuple[Edit, ...] = ()
    spans: tuple[Span, ...] | None = None  # None where the annotator does not look for them
    not_verbatim: tuple[str, ...] = ()  # fragments that an annotator wrote and that are not in the reference
    problems: tuple[str, ...] = ()  # what was wrong with what it wrote (all of it where it failed)

    @property
    def support(self) -> float | None:
        """P(supported) in [0, 1], given that it states a fact: 1 or 0 by the label, from the scores where it is unsure.

        None where it states nothing or was not judged.
        """
        if self.status == "unsure" and self.scores is not None:
            factual = 1.0 - self.scores["no_fact"]
            return min(1.0, max(0.0, float(self.scores["supported"] / factual))) if factual > 1e-6 else None
        return None if self.label is None or self.label == "no_fact" else float(self.label == "supported")

    def to_dict(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "text": self.text, "start": self.start, "end": self.end, "status": self.status, "label": self.label,
            "scores": dict(self.scores) if self.scores is not None else None,
            "fragments": [f.to_dict() for f in self.fragments], "correction": [c.to_dict() for c in self.correction],
        }  # fmt: skip
        if self.spans is not None:
            row["spans"] = [{"start": s.start, "end": s.end} for s in self.spans]
        row |= {k: list(v) for k in ("not_verbatim", "problems") if (v := getattr(self, k))}
        return row

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> SentenceAnnotation:
        """The judgement of which :meth:`to_dict` made the row."""
        spans = row.get("spans")
        return cls(
            row["text"], row["start"], row["end"], row["status"], row["label"], row["scores"],
            tuple(Fragment(**f) for f in row["fragments"]),
            tuple(Edit(c["from"], c["to"], c["start"], c["end"]) for c in row["correction"]),
            None if spans is None else tuple(Span(**s) for s in spans),
            tuple(row.get("not_verbatim", ())), tuple(row.get("problems", ())),
        )  # fmt: skip


@dataclass(frozen=True)
class Annotation:
    """An input record with its judged sentences, and what judged it."""

    record: Mapping[str, Any]  # with all its keys
    sentences: tuple[SentenceAnnotation, ...]  # in order
    annotator: Mapping[str, str] = field(default_factory=dict)  # name and fingerprint
    operating_point: Mapping[str, Any] | None = None  # its name, thresholds and expected rate; None without thresholds

    @property
    def hallucination_rate(self) -> float | None:
        """Hallucinated / judged factual sentences in [0, 1], lower is better; None when none is factual, or more than
        ``MOST_FAILED`` of the sentences failed: the rate of the few others says nothing of the answer.
        """
        if failed_share(Counter(s.status for s in self.sentences)) > MOST_FAILED:
            return None
        return hallucination_rate(s.label for s in self.sentences)

    @property
    def coverage(self) -> float | None:
        """Checked / all sentences that state something, in [0, 1]; None where none does."""
        return coverage(s.label for s in self.sentences)

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.record,
            "sentences": [s.to_dict() for s in self.sentences],
            "annotator": dict(self.annotator),
            "hallucination_rate": self.hallucination_rate,
            "coverage": self.coverage,
            "operating_point": self.operating_point and dict(self.operating_point),
        }


def hallucination_rate(labels: Iterable[str | None]) -> float | None:
    """Share of contradictory or unverifiable among factual labels; None when there is none (None = unchecked)."""
    factual = [label for label in labels if label is not None and label != "no_fact"]
    if not factual:
        return None
    return sum(label in HALLUCINATED for label in factual) / len(factual)


def failed_share(statuses: Mapping[str, int]) -> float:
    """Share of failed among all sentences, in [0, 1], from the number of each status; 0 without sentences."""
    return statuses.get("failed", 0) / max(1, sum(statuses.values()))


def coverage(labels: Iterable[str | None]) -> float | None:
    """Share of sentences with a label (None: unsure or unchecked), "no_fact" left out; None when none is left."""
    stated = [label for label in labels if label != "no_fact"]
    return sum(label is not None for label in stated) / len(stated) if stated else None


Saved = TypeVar("Saved")


def read_saved(path: str | Path, kind: type[Saved], advice: str = "copy or train it again") -> Saved:
    """What a JSON file says of an annotator; OSError without it, ValueError for the first field that does not fit."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_json(Path(path).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "JSON settings"
        got = "none" if first["type"] == "missing" else f"{first['input']!r:.60}"
        raise ValueError(f"{path}: expected {where} ({first['msg']}), got {got}; {advice}") from error
