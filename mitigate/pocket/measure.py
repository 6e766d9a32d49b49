"""How a language model of the pocket world does, in the oracle's eyes (simulated)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from annotators.records import Annotation, hallucination_rate

if TYPE_CHECKING:
    from mitigate.pocket.oracle import Oracle
    from mitigate.pocket.texts import Question


def measure(annotations: Sequence[Annotation]) -> dict[str, float | None]:
    """Figures over all sentences of some answers.

    Returns:
        ``hallucination_rate``: hallucinated / factual sentences, lower is better, None without factual ones;
        ``supported``: true sentences an answer, repeats of one counted once; ``sentences`` an answer; ``no_fact``:
        share of sentences that claim nothing, abstentions among them. None where there are no answers or sentences.
    """
    labels = [sentence.label for one in annotations for sentence in one.sentences]
    distinct = sum(len({s.text for s in one.sentences if s.label == "supported"}) for one in annotations)
    n = len(annotations)
    return {
        "hallucination_rate": hallucination_rate(labels),
        "supported": distinct / n if n else None,
        "sentences": len(labels) / n if n else None,
        "no_fact": labels.count("no_fact") / len(labels) if labels else None,
    }


def judge(
    oracle: Oracle, questions: Sequence[Question], answers: Sequence[Sequence[str]]
) -> list[Annotation]:
    """Annotate the answers to each question, in order."""
    return oracle.annotate_batch(
        {"question": q.text, "reference": q.entity.document.text, "answer": text}
        for q, texts in zip(questions, answers, strict=True)
        for text in texts
    )
