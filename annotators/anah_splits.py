"""Splits of annotated answers: train, unseen topics, unseen questions, by seed and checked for leaks.

Source: ANAH (ACL 2024), §4.1: of the unseen-topic part, topic, references, questions and answers were never trained
on; of the unseen-question part the topic was, the question was not. Topics that share their documents or a question
count as one.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from annotators.splits import joined, plain

Split = Literal["train", "unseen_topic", "unseen_question"]
SPLITS: tuple[Split, ...] = ("train", "unseen_topic", "unseen_question")


def split_rows(
    rows: Sequence[Mapping[str, Any]], *, share: float = 0.1, seed: int = 0
) -> tuple[list[Split], list[int]]:
    """Assign each labelled sentence to a split.

    Args:
        rows: With ``topic``, ``question``, ``reference``, ``answer``.
        share: Of the rows in each of the two unseen parts, above 0 and below 0.5.
        seed: Equal seeds give equal splits, whatever the order of the rows.

    Returns:
        The split of each row, and the numbers of rows that belong to none: test rows whose answer is also in train
        (refusals, mostly).

    Raises:
        ValueError: The share is out of range, or there are too few topics or questions to split.
    """
    if not 0 < share < 0.5:
        raise ValueError(f"share: expected a number above 0 and below 0.5, got {share}")
    topics = _joined_topics(rows)
    size = Counter(topics)
    shuffled = sorted(size)
    random.Random(seed).shuffle(shuffled)
    wanted = share * len(rows)
    unseen_topics: set[str] = set()
    count = 0
    for topic in shuffled:
        if count < wanted and len(unseen_topics) < len(size) - 1:
            unseen_topics.add(topic)
            count += size[topic]

    questions_of: dict[str, Counter[str]] = defaultdict(Counter)
    for row, topic in zip(rows, topics, strict=True):
        if topic not in unseen_topics:
            questions_of[topic][plain(row["question"])] += 1
    choices = [
        (topic, question) for topic, found in sorted(questions_of.items()) for question in sorted(found)
    ]
    random.Random(seed + 1).shuffle(choices)
    unseen_questions: set[tuple[str, str]] = set()
    left = {topic: len(found) for topic, found in questions_of.items()}
    count = 0
    for topic, question in choices:
        if count < wanted and left[topic] > 1:
            unseen_questions.add((topic, question))
            left[topic] -= 1
            count += questions_of[topic][question]
    if not unseen_topics or not unseen_questions:
        raise ValueError(
            f"expected at least two topics, one of them with two questions, got {len(size)} topics with "
            f"{sum(map(len, questions_of.values()))} questions among those trained on"
        )
    splits: list[Split] = [
        "unseen_topic"
        if topic in unseen_topics
        else "unseen_question"
        if (topic, plain(row["question"])) in unseen_questions
        else "train"
        for row, topic in zip(rows, topics, strict=True)
    ]
    trained = {plain(row["answer"]) for row, split in zip(rows, splits, strict=True) if split == "train"}
    dropped = [
        n
        for n, (row, split) in enumerate(zip(rows, splits, strict=True))
        if split != "train" and plain(row["answer"]) in trained
    ]
    return splits, dropped


def leaks(rows: Sequence[Mapping[str, Any]], splits: Sequence[Split]) -> list[str]:
    """What of the unseen parts is in train as well, in words; nothing where the splits are sound.

    Args:
        rows: Labelled sentences, without those that :func:`split_rows` said belong to none.
        splits: Of each row.
    """
    forbidden: dict[Split, tuple[str, ...]] = {
        "unseen_topic": ("topic", "reference", "question", "answer"),
        "unseen_question": ("question", "answer"),
    }
    found = []
    for part, names in forbidden.items():
        for name in names:
            there = {plain(r.get(name)) for r, s in zip(rows, splits, strict=True) if s == "train"}
            both = there & {plain(r.get(name)) for r, s in zip(rows, splits, strict=True) if s == part}
            if both - {""}:
                found.append(f"{len(both)} {name}s of {part} are in train, e.g. {min(both - {''})[:60]!r}")
    return found


def _joined_topics(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The group of each row: topics joined by an equal name, reference or question, transitively."""
    return joined(
        [f"{name} {plain(row.get(name))}" for name in ("topic", "reference", "question") if row.get(name)]
        for row in rows
    )
