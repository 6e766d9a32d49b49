"""The work behind the page and its endpoints, without Gradio: checked input in, records out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mitigate.demo.limits import Limits, check_answer
from mitigate.demo.scoring import fewl_record
from mitigate.demo.shelf import Shelf
from mitigate.demo.stream import Partial, annotate_stepwise


class Service:
    """What the tabs and the endpoints call; every call checks its input first.

    Args:
        shelf: The models.
        limits: The sizes.
    """

    def __init__(self, shelf: Shelf, limits: Limits) -> None:
        self.shelf = shelf
        self.limits = limits

    def annotate_stepwise(
        self, question: str | None, reference: str | None, answer: str | None, annotator: str | None
    ) -> Iterator[Partial]:
        """Judge one answer step by step.

        Raises:
            Refusal: At once if the input is not taken, later if the annotator fails.
        """
        self.limits.check(question=question, reference=reference, answer=answer)
        record = {"reference": reference or "", "answer": answer or ""}
        check_answer(record)
        if question and question.strip():
            record = {"question": question, **record}
        return annotate_stepwise(self.shelf, annotator, record)

    def annotate(
        self, question: str | None, reference: str | None, answer: str | None, annotator: str | None
    ) -> dict[str, Any]:
        """Judge one answer; the annotated record."""
        *_, last = self.annotate_stepwise(question, reference, answer, annotator)
        return last.record

    def fewl(self, record: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Score the answers of one FEWL record; see ``scoring.fewl_record``."""
        return fewl_record(self.shelf, self.limits, record, **options)
