"""Two judges in turn: the second, slower one is asked only about sentences that the first one can't decide.

annotator = load_annotator("cascade:embedded+generative:openai:MODEL@http://127.0.0.1:8000/v1")
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from annotators.base import Annotator, Sentence
from annotators.records import Annotation, SentenceAnnotation

OPEN = frozenset({"unsure", "language_unsupported", "too_long"})
"""Statuses with which a sentence goes on to the second judge."""


class CascadeAnnotator(Annotator):
    """Judges by ``first``, and by ``second`` what that leaves without a verdict.

    Where the second fails, the sentence has failed; where it can't judge it either, the first one's annotation stands.
    ValueError where the first has no operating point: it would decide everything.
    """

    def __init__(self, first: Annotator, second: Annotator) -> None:
        if first.calibration is None:
            raise ValueError(
                f"cascade: expected a first annotator with an operating point, {first.name!r} has none, so it is never "
                "unsure; fit one with `mitigate calibrate`"
            )
        self.first, self.second = first, second
        self.name = f"cascade:{first.name}+{second.name}"
        self.fingerprint = hashlib.sha256(f"{first.fingerprint} {second.fingerprint}".encode()).hexdigest()[:16]
        self.reads = tuple(dict.fromkeys((*first.reads, *second.reads)))
        both = (first.languages, second.languages)
        self.languages = None if None in both else tuple(dict.fromkeys(name for some in both for name in some or ()))
        self.embedder = first.embedder

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        """One verdict per sentence, in order, each with its own judge's operating point."""
        out = self.first.verdicts_of(sentences)
        left = [i for i, found in enumerate(out) if found.status in OPEN]
        for i, other in zip(left, self.second.verdicts_of([sentences[i] for i in left]), strict=True):
            decided = other.label is not None or (other.status == "unsure" and out[i].status != "unsure")
            # A failure is told, or a dead second judge would look like an unsure first one.
            out[i] = other if decided or other.status == "failed" else out[i]
        return out

    def annotation(self, record: Mapping[str, Any], judged: Iterable[SentenceAnnotation]) -> Annotation:
        """The annotation of a record, with the first one's operating point."""
        point = None if self.first.calibration is None else self.first.calibration.point.to_dict()
        return Annotation(dict(record), tuple(judged), self.who, point)

    def close(self) -> None:
        """Close both."""
        self.first.close()
        self.second.close()


def engine_in(name: str) -> str | None:
    """The engine of ``generative:ENGINE``, also where that is the second of a cascade; None of other annotators."""
    if name.startswith("cascade:"):
        return engine_in(name.partition("+")[2].strip())
    return name.removeprefix("generative:") if name.startswith("generative:") else None


def parts_of(name: str) -> tuple[str, str]:
    """The two names in ``cascade:FIRST+SECOND``; ValueError where there are not two."""
    first, plus, second = name.removeprefix("cascade:").partition("+")
    if not (first.strip() and plus and second.strip()):
        raise ValueError(f"annotator {name!r}: expected cascade:FIRST+SECOND, as in cascade:embedded+generative:…")
    return first.strip(), second.strip()
