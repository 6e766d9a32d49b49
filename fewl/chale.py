"""Build a benchmark of controlled hallucinations, the CHALE way (the paper's section 4.1 and Appendix C.2).

From questions with a short and a long answer come several answers of each kind, all "short answer. One sentence
of the long answer.":

- ``non_hallucinated``: both parts are the question's own;
- ``half_hallucinated``: one part is a nearby question's, and which one is recorded;
- ``hallucinated``: both parts are the same nearby question's.

Rows whose answers are tables, lists or markup are dropped. The first and the last sentence of the long answer
are never used. A nearby question is one of the 20 nearest with similarity of 0.2 to 0.8 and another short answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from annotators.text.sentences import split_sentences
from fewl.expertise import folded
from fewl.neighbours import nearest, pair_cosine
from fewl.similarity import Encode, words

PARAGRAPH = re.compile(r"</?p\s*>", re.I)
MARKUP = re.compile(r"</?[a-z][a-z0-9]*[^<>]*>|^\s*\|.*\||^\s*(?:[-*+]|\d+[.)])\s|^\s*#{1,6}\s|^```|\{\|", re.I | re.M)
T = TypeVar("T")
KINDS = ("non_hallucinated", "half_hallucinated", "hallucinated")


@dataclass(frozen=True)
class BuildOptions:
    """How to build.

    Args:
        answers: Answers of each kind per question.
        neighbours: How many nearest questions are looked at.
        low: Least similarity of a nearby question.
        high: Greatest similarity of a nearby question.
        seed: Of every choice.
    """

    answers: int = 3
    neighbours: int = 20
    low: float = 0.2
    high: float = 0.8
    seed: int = 0


@dataclass(frozen=True)
class _Row:
    raw: Mapping[str, Any]
    question: str
    short: str
    details: tuple[str, ...]


def build_benchmark(
    rows: Sequence[Mapping[str, Any]], encode: Encode, options: BuildOptions | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Make the benchmark and its statistics.

    Args:
        rows: ``{"question", "short_answer", "long_answer"}``, other keys pass through.
        encode: Sentence embeddings of the questions.
        options: None for the paper's settings.

    Returns:
        FEWL records with ``answers`` (each with ``text``, ``kind``, ``label``, ``swapped`` ("short", "detail" or
        null) and ``from`` (the question that a swapped part is from, or null)); and statistics as in Table 8,
        with what was dropped and why.
    """
    options = options or BuildOptions()
    dropped: Counter[str] = Counter()
    usable = [row for raw in rows if (row := _prepared(raw, dropped)) is not None]
    nearby = _nearby(usable, encode, options)
    built = []
    for place, (row, others) in enumerate(zip(usable, nearby, strict=True)):
        if not others:
            dropped["no_neighbour"] += 1
            continue
        generator = np.random.default_rng([options.seed, place])
        built.append({**row.raw, "answers": _answers(row, [usable[o] for o in others], options, generator)})
    return built, _statistics(len(rows), usable, nearby, built, dropped)


def _prepared(raw: Mapping[str, Any], dropped: Counter[str]) -> _Row | None:
    """A row with the sentences that may be used, or None and its reason counted."""
    short, long = (PARAGRAPH.sub(" ", str(raw[key])).strip() for key in ("short_answer", "long_answer"))
    if not short or not long:
        dropped["no_answer"] += 1
    elif MARKUP.search(short) or MARKUP.search(long):
        dropped["markup"] += 1
    else:
        sentences = [long[start:end] for start, end in split_sentences(long)]
        if len(sentences) > 2:
            return _Row(raw, str(raw["question"]).strip(), short.rstrip(" ."), tuple(sentences[1:-1]))
        dropped["too_few_sentences"] += 1
    return None


def _nearby(rows: Sequence[_Row], encode: Encode, options: BuildOptions) -> list[list[int]]:
    """The nearby questions of each row that may lend a part."""
    if not rows:
        return []
    questions = [row.question for row in rows]
    vectors = encode(questions)
    near_QK = nearest(vectors, options.neighbours, texts=questions)
    row_P, place_P = np.nonzero(near_QK >= 0)
    other_P = near_QK[row_P, place_P]
    similar_P = pair_cosine(vectors, row_P, other_P)
    kept_P = (similar_P >= options.low) & (similar_P <= options.high)
    nearby: list[list[int]] = [[] for _ in rows]
    for row, other in zip(row_P[kept_P].tolist(), other_P[kept_P].tolist(), strict=True):
        if folded(rows[row].short) != folded(rows[other].short):
            nearby[row].append(other)
    return nearby


def _answers(
    row: _Row, others: Sequence[_Row], options: BuildOptions, generator: np.random.Generator
) -> list[dict[str, Any]]:
    """``options.answers`` answers of each kind; sentences and questions are repeated only when used up."""
    own = _cycle(row.details, options.answers, generator)
    answers = [_answer(KINDS[0], row.short, detail, True) for detail in own]
    for other, detail in zip(_cycle(others, options.answers, generator), own, strict=True):
        theirs = other.details[generator.integers(len(other.details))]
        if generator.random() < 0.5:
            half = _answer(KINDS[1], other.short, detail, False, "short", other.question)
        else:
            half = _answer(KINDS[1], row.short, theirs, False, "detail", other.question)
        answers.append(half)
    for other in _cycle(others, options.answers, generator):
        theirs = other.details[generator.integers(len(other.details))]
        answers.append(_answer(KINDS[2], other.short, theirs, False, None, other.question))
    return answers


def _answer(
    kind: str, short: str, detail: str, label: bool, swapped: str | None = None, source: str | None = None
) -> dict[str, Any]:
    return {"text": f"{short}. {detail}", "kind": kind, "label": label, "swapped": swapped, "from": source}


def _cycle(items: Sequence[T], n: int, generator: np.random.Generator) -> list[T]:
    """n items in random order, each as often as the others, give or take one."""
    order = generator.permutation(len(items))
    return [items[order[i % len(items)]] for i in range(n)]


def _statistics(
    total: int,
    usable: Sequence[_Row],
    nearby: Sequence[Sequence[int]],
    built: Sequence[Mapping[str, Any]],
    dropped: Counter[str],
) -> dict[str, Any]:
    """Table 8 (means of words, unique words and characters) and what was dropped."""
    texts = {
        "short": [str(row["short_answer"]) for row in built],
        "long": [str(row["long_answer"]) for row in built],
        **{kind: [a["text"] for row in built for a in row["answers"] if a["kind"] == kind] for kind in KINDS},
    }

    def mean(values: Sequence[float]) -> float | None:
        return float(np.mean(values)) if values else None

    table = {}
    for kind, rows in texts.items():
        cut = [words(text) for text in rows]
        table[kind] = {
            "n": len(rows),
            "words": mean([len(w) for w in cut]),
            "unique_words": mean([len(set(w)) for w in cut]),
            "characters": mean([len(text) for text in rows]),
        }
    swapped = Counter(a["swapped"] for row in built for a in row["answers"] if a["kind"] == KINDS[1])
    return {
        "rows": total,
        "questions": len(built),
        "dropped": dict(dropped),
        "sentences_per_answer": mean([len(row.details) for row in usable]),
        "usable_neighbours_per_question": mean([len(others) for others in nearby]),
        "swapped": dict(swapped),
        "table": table,
    }
