"""The work behind the page and its endpoints, without Gradio: checked input in, records out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mitigate.demo.limits import Limits, check_answer
from mitigate.demo.scoring import fewl_record
from mitigate.demo.shelf import Shelf
from mitigate.demo.stream import Partial, annotate_stepwise, annotate_whole


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
        return annotate_stepwise(self.shelf, annotator, self._record(question, reference, answer))

    def annotate(
        self, question: str | None, reference: str | None, answer: str | None, annotator: str | None
    ) -> dict[str, Any]:
        """Judge one answer at once; the annotated record.

        Raises:
            Refusal: The input is not taken, or the annotator fails.
        """
        return annotate_whole(self.shelf, annotator, self._record(question, reference, answer))

    def _record(self, question: str | None, reference: str | None, answer: str | None) -> dict[str, str]:
        self.limits.check(question=question, reference=reference, answer=answer)
        record = {"reference": reference or "", "answer": answer or ""}
        check_answer(record)
        return {"question": question, **record} if question and question.strip() else record

    def fewl(self, record: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Score the answers of one FEWL record; see ``scoring.fewl_record``."""
        return fewl_record(self.shelf, self.limits, record, **options)
