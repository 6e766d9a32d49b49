"""One answer judged piece by piece, so that sentences are shown as they are judged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from annotators.records import Annotator, SentenceAnnotation, hallucination_rate
from annotators.sentences import split_sentences
from mitigate.demo.limits import Refusal
from mitigate.demo.shelf import Shelf

STEP_SECONDS = 0.7
"""How long a step should take: short enough to watch, long enough that starting one does not count."""


@dataclass(frozen=True)
class Partial:
    """An answer of which the first sentences are judged.

    Args:
        record: The input and, as in an annotated record, what is judged so far.
        waiting: Offsets of the sentences that are not judged yet.
    """

    record: dict[str, Any]
    waiting: tuple[tuple[int, int], ...]

    @property
    def done(self) -> bool:
        return not self.waiting


def annotate_stepwise(shelf: Shelf, name: str | None, record: Mapping[str, Any]) -> Iterator[Partial]:
    """Judge an answer, yielding after every step; the last is the whole annotation.

    An annotator with ``annotate_spans`` is given one sentence, then more at a time as long as a step is quick; any
    other judges the whole answer in one step. Sentences and order are those of ``annotate``.

    Raises:
        Refusal: The annotator can't be had, or fails.
    """
    spans = tuple(split_sentences(record["answer"]))
    yield Partial(_record(record, [], {}), spans)  # shown while the annotator loads
    annotator = shelf.annotator(name)
    who = {"name": annotator.name, "fingerprint": annotator.fingerprint}
    by_span = getattr(annotator, "annotate_spans", None)
    judged: list[SentenceAnnotation] = []
    size = 1
    most = max(8, len(spans) // 8)
    while len(judged) < len(spans):
        start = perf_counter()
        with shelf.turn(annotator.name):
            judged += _judge(annotator, record, spans[len(judged) : len(judged) + size], by_span)
        if by_span is None:  # sentences are the annotator's own
            spans = spans[: len(judged)]
        yield Partial(_record(record, judged, who), spans[len(judged) :])
        seconds = max(perf_counter() - start, 1e-3)
        size = max(1, min(most, 4 * size, int(size * STEP_SECONDS / seconds)))


def annotate_whole(shelf: Shelf, name: str | None, record: Mapping[str, Any]) -> dict[str, Any]:
    """Judge an answer in one step; the annotated record.

    Raises:
        Refusal: The annotator can't be had, or fails.
    """
    annotator = shelf.annotator(name)
    with shelf.turn(annotator.name):
        judged = _judge(annotator, record, (), None)
    return _record(record, judged, {"name": annotator.name, "fingerprint": annotator.fingerprint})


def _judge(
    annotator: Annotator, record: Mapping[str, Any], spans: tuple[tuple[int, int], ...], by_span: Any
) -> list[SentenceAnnotation]:
    try:
        if by_span is not None:
            return list(by_span(record, spans))
        return list(annotator.annotate_batch([record])[0].sentences)
    except Exception as error:
        detail = " ".join(str(error).split())[:400] or type(error).__name__
        raise Refusal(f"The annotator {annotator.name!r} failed: {detail}") from error


def _record(
    record: Mapping[str, Any], judged: list[SentenceAnnotation], who: dict[str, str]
) -> dict[str, Any]:
    return {
        **record,
        "sentences": [sentence.to_dict() for sentence in judged],
        "annotator": who,
        "hallucination_rate": hallucination_rate(sentence.label for sentence in judged),
    }
