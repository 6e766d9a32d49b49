"""Which answer of each question FEWL picks, which a baseline, which the labels: the start of ICL and label-free SFT.

The baseline of the paper is one reference LLM without penalty (§5). Records are those of `mitigate fewl score`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fewl.core import Aggregation, Divergence
from fewl.score import FewlOptions, score_records
from fewl.similarity import Encode, Similarity
from mitigate.commands.fewl_files import check_record
from mitigate.config import Section
from mitigate.errors import UsageError
from mitigate.jsonl import Line, Record, read_lines

By = Literal["fewl", "baseline", "labels"]
# Numbers of the picked answers, one per record; None where there is none.
Picks = list["int | None"]


class Scoring(Section):
    """How FEWL scores; the fields of `fewl.score.FewlOptions` that a recipe sets."""

    similarity: str = Field(default="cosine", description="cosine, rouge-l, new-words or annotator:NAME")
    embedding: str = Field(default="auto", description="auto, tfidf, or a folder or hub id")
    aggregation: Aggregation = "paper"
    divergence: Divergence = "tv"
    expertise: Literal["similarity", "uniform"] = "uniform"
    neighbours: int | None = Field(default=None, ge=1)
    penalty: bool = True
    weak: tuple[str, ...] = ()

    def options(self) -> FewlOptions:
        """As FEWL takes them."""
        return FewlOptions(**self.model_dump(exclude={"similarity", "embedding"}))


def read_records(path: Path) -> tuple[list[Record], list[Line]]:
    """The good records of a file of FEWL records, and its bad lines.

    Raises:
        UsageError: The file can't be read or has no good record.
    """
    if not path.is_file():
        raise UsageError(f"cannot read {path}: no such file; expected FEWL records, JSON Lines")
    lines = list(read_lines(path, check_record))
    good = [line.record for line in lines if line.record is not None]
    if not good:
        raise UsageError(
            f"{path}: expected FEWL records (question, answers, reference_answers), found no good line"
        )
    return good, [line for line in lines if line.record is None]


def check_baseline(records: Sequence[Record], name: str) -> None:
    """Refuse a baseline that no record has an answer of.

    Raises:
        UsageError: Names the reference LLMs that there are.
    """
    names = sorted({llm for record in records for llm in record["reference_answers"]})
    if name not in names:
        raise UsageError(f"baseline: expected one of the reference LLMs {', '.join(names)}, got {name!r}")


def picks(
    records: Sequence[Mapping[str, Any]],
    by: By,
    *,
    scoring: Scoring,
    baseline: str,
    similarity: Similarity,
    encode: Encode,
) -> Picks:
    """The answer that each record's question gets.

    Args:
        records: FEWL records.
        by: `fewl`; `baseline`: the single reference LLM `baseline`, no penalty; `labels`: the first answer labelled
            correct, the ceiling.
        scoring: How FEWL scores.
        baseline: Name of a reference LLM.
        similarity: Of answers and reference answers.
        encode: Embeddings of questions.

    Returns:
        Numbers of answers, one per record; the first of equals; None where no answer has a score or a right label.
    """
    if by == "labels":
        return [next((i for i, a in enumerate(r["answers"]) if a.get("label")), None) for r in records]
    options = scoring.options()
    if by == "baseline":
        options = FewlOptions(divergence=scoring.divergence, references=f"single:{baseline}", penalty=False)
    scored, _ = score_records(records, similarity=similarity, encode=encode, options=options)
    return [best_scored(record["answers"]) for record in scored]


def best_scored(answers: Sequence[Mapping[str, Any]]) -> int | None:
    """The first answer with the highest score, None where none has one."""
    scores = [(-answer["score"], i) for i, answer in enumerate(answers) if answer["score"] is not None]
    return min(scores)[1] if scores else None
