"""FEWL of one question on the page: the scores, and the parts that they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fewl.records import RecordError, read_record
from mitigate.demo.limits import Limits, Refusal

if TYPE_CHECKING:
    from fewl.similarity import Encode
    from mitigate.demo.shelf import Shelf

SIMILARITIES = ("cosine", "new-words", "rouge-l")
AGGREGATIONS = ("eq6", "paper")
MAX_ANSWERS = 20
MAX_TEXTS = 200
"""Reference answers, IW and CO answers of one question."""
MAX_NEIGHBOURS = 200


def fewl_record(
    shelf: Shelf,
    limits: Limits,
    record: Mapping[str, Any],
    *,
    neighbours: Sequence[Mapping[str, Any]] = (),
    aggregation: str = "eq6",
    similarity: str = "cosine",
) -> dict[str, Any]:
    """Score the answers of one record.

    Args:
        shelf: Has the embedder.
        limits: Of the texts.
        record: {"question", "answers", "reference_answers", "iw"?, "co"?}, see ``fewl/records.py``.
        neighbours: Other questions with reference answers, for the laziness penalty; without any there is none.
        aggregation: One of AGGREGATIONS.
        similarity: One of SIMILARITIES.

    Returns:
        The record with ``score``, ``truthfulness`` and ``laziness`` of each answer and ``similarity`` ({LLM: s(y, h_i),
        the mean over its texts}), with ``lambda`` ({LLM: λ_i}), and ``scored_with`` (names of what was chosen).

    Raises:
        Refusal: The record or an option is not as expected, or too large.
    """
    from fewl.score import FewlOptions, score_records
    from mitigate.commands.fewl_similarity import load_similarity

    if aggregation not in AGGREGATIONS or similarity not in SIMILARITIES:
        raise Refusal(
            f"Expected an aggregation of {', '.join(AGGREGATIONS)} and a similarity of {', '.join(SIMILARITIES)}, "
            f"got {aggregation!r} and {similarity!r}."
        )
    records = [dict(record), *(dict(other) for other in neighbours)]
    _check(records, limits)
    has_pairs = bool(record.get("iw") and record.get("co"))
    options = FewlOptions(
        aggregation=aggregation,  # type: ignore[arg-type]
        expertise="similarity" if has_pairs else "uniform",
        penalty=len(records) > 1,
    )
    with shelf.turn("embedder"):
        embedding, encode = _encoder(shelf, [r["question"] for r in records])
        chosen = load_similarity(similarity, encode)[1]
        try:
            scored, _ = score_records(records, similarity=chosen, encode=encode, options=options)
            parts = _similarities(scored[0], chosen)
        except ValueError as error:
            raise Refusal(str(error)) from error
    answers = [{**a, "similarity": s} for a, s in zip(scored[0]["answers"], parts, strict=True)]
    return {
        **scored[0],
        "answers": answers,
        "scored_with": {
            "aggregation": aggregation,
            "similarity": similarity,
            "embedding": embedding,
            "expertise": options.expertise,
            "neighbours": len(neighbours),
        },
    }


def _check(records: Sequence[Mapping[str, Any]], limits: Limits) -> None:
    if len(records) - 1 > MAX_NEIGHBOURS:
        raise Refusal(f"There are {len(records) - 1:,} other questions; this page takes {MAX_NEIGHBOURS}.")
    for record in records:
        try:
            read = read_record(record)
        except RecordError as error:
            raise Refusal(str(error)) from error
        texts = [text for group in read.references.values() for text in group]
        texts += [*read.iw, *read.co]
        limits.check(question=read.question)
        for answer in read.answers:
            limits.check(answer=answer.text)
        for text in texts:
            limits.check(reference_answer=text)
        if len(read.answers) > MAX_ANSWERS or len(texts) > MAX_TEXTS:
            raise Refusal(
                f"A question has {len(read.answers)} answers and {len(texts)} reference, wrong and corrected answers; "
                f"this page takes {MAX_ANSWERS} and {MAX_TEXTS}. `mitigate fewl score` takes any number."
            )
    first = read_record(records[0])
    if not any(answer.text.strip() for answer in first.answers):
        raise Refusal("There is no answer to score. Paste at least one.")
    if not first.references:
        raise Refusal(
            "There is no reference answer. Give the answers of one or more LLMs to the same question."
        )


def _encoder(shelf: Shelf, questions: Sequence[str]) -> tuple[str, Encode]:
    from fewl.similarity import char_tfidf, each_once, is_chinese

    if any(is_chinese(question) for question in questions):
        return f"character TF-IDF ({shelf.embedder.name} can't read Chinese)", char_tfidf()
    return shelf.embedder.name, each_once(shelf.embedder.encode)


def _similarities(record: Mapping[str, Any], similarity: Any) -> list[dict[str, float | None]]:
    """s(y, h_i) of every answer y and reference LLM i, the mean over its texts; None where there is none."""
    import numpy as np

    from fewl.similarity import compare

    read = read_record(record)
    pairs = [(a.text, text) for a in read.answers for group in read.references.values() for text in group]
    values = iter(
        compare(similarity, [a for a, _ in pairs], [b for _, b in pairs], [read.question] * len(pairs))
    )
    rows: list[dict[str, float | None]] = []
    for answer in read.answers:
        row: dict[str, float | None] = {}
        for name, group in read.references.items():
            found = np.array([next(values) for _ in group])
            usable = found[~np.isnan(found)] if answer.text.strip() and answer.model != name else []
            row[name] = float(np.mean(usable)) if len(usable) else None
        rows.append(row)
    return rows
