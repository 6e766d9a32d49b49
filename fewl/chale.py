"""Build a benchmark of controlled hallucinations, the CHALE way (the paper's section 4.1 and Appendix C.2).

From questions with a short and a long answer come several answers of each kind, all "short answer. One sentence of the
long answer.": ``non_hallucinated`` (both parts are the question's own), ``half_hallucinated`` (one part is a nearby
question's) and ``hallucinated`` (both are the same nearby question's). Answers with tables, lists or markup are left
out, the first and the last sentence of the long answer never used. A nearby question is one of the 20 nearest with
similarity of 0.2 to 0.8 and another short answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from annotators.text.sentences import split_sentences
from annotators.text.words import is_chinese, rouge_words
from fewl.expertise import folded
from fewl.neighbours import nearest, pair_cosine
from fewl.similarity import Encode

PARAGRAPH = re.compile(r"</?p\s*>", re.I)
MARKUP = re.compile(r"</?[a-z][a-z0-9]*[^<>]*>|^\s*\|.*\||^\s*(?:[-*+]|\d+[.)])\s|^\s*#{1,6}\s|^```|\{\|", re.I | re.M)
T = TypeVar("T")
KINDS = ("non_hallucinated", "half_hallucinated", "hallucinated")
NEIGHBOURS, LOW, HIGH = 20, 0.2, 0.8


@dataclass(frozen=True)
class _Row:
    raw: Mapping[str, Any]
    question: str
    short: str
    details: tuple[str, ...]


def build_benchmark(
    rows: Sequence[Mapping[str, Any]], encode: Encode, *, answers: int = 3, seed: int = 0
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Make the benchmark, with so many ``answers`` of each kind per question, and its statistics.

    Rows are ``{"question", "short_answer", "long_answer"}``, other keys pass through; ``encode`` embeds the questions.
    Returns FEWL records with ``answers`` (each with ``text``, ``kind``, ``label``, ``swapped`` ("short", "detail" or
    null) and ``from`` (the question that a swapped part is from, or null)); and statistics as in Table 8, with what was
    dropped and why.
    """
    dropped: Counter[str] = Counter()
    usable = [row for raw in rows if (row := _prepared(raw, dropped)) is not None]
    nearby = _nearby(usable, encode)
    built = []
    for place, (row, others) in enumerate(zip(usable, nearby, strict=True)):
        if not others:
            dropped["no_neighbour"] += 1
            continue
        generator = np.random.default_rng([seed, place])
        built.append({**row.raw, "answers": _answers(row, [usable[o] for o in others], answers, generator)})
    made = [answer for row in built for answer in row["answers"]]
    texts = {part: [str(row[f"{part}_answer"]) for row in built] for part in ("short", "long")}
    texts |= {kind: [answer["text"] for answer in made if answer["kind"] == kind] for kind in KINDS}
    return built, {
        "rows": len(rows),
        "questions": len(built),
        "dropped": dict(dropped),
        "sentences_per_answer": _mean([len(row.details) for row in usable]),
        "usable_neighbours_per_question": _mean([len(others) for others in nearby]),
        "swapped": dict(Counter(answer["swapped"] for answer in made if answer["kind"] == KINDS[1])),
        "table": {kind: _sizes(group) for kind, group in texts.items()},
    }


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
            return _Row(raw, str(raw["question"]).strip(), short.rstrip(" .。!！?？"), tuple(sentences[1:-1]))
        dropped["too_few_sentences"] += 1
    return None


def _nearby(rows: Sequence[_Row], encode: Encode) -> list[list[int]]:
    """The nearby questions of each row that may lend a part."""
    nearby: list[list[int]] = [[] for _ in rows]
    if not rows:
        return nearby
    questions = [row.question for row in rows]
    vectors = encode(questions)
    near_QK = nearest(vectors, NEIGHBOURS, texts=questions)
    row_P, place_P = np.nonzero(near_QK >= 0)
    other_P = near_QK[row_P, place_P]
    similar_P = pair_cosine(vectors, row_P, other_P)
    for row, other, similar in zip(row_P.tolist(), other_P.tolist(), similar_P.tolist(), strict=True):
        if (
            LOW <= similar <= HIGH
            and _lent(rows[other], rows[row])
            and folded(rows[row].short) != folded(rows[other].short)
        ):
            nearby[row].append(other)
    return nearby


def _lent(other: _Row, row: _Row) -> list[str]:
    """The sentences that a question lends to another one, of which they are not true as well."""
    return [detail for detail in other.details if detail not in row.details]


def _answers(row: _Row, others: Sequence[_Row], n: int, generator: np.random.Generator) -> list[dict[str, Any]]:
    """n answers of each kind; sentences and questions are repeated only when used up."""

    def answer(kind: str, short: str, detail: str, swapped: str | None = None, source: str | None = None) -> None:
        text, label = short + ("。" if is_chinese(short + detail) else ". ") + detail, kind == KINDS[0]
        made.append({"text": text, "kind": kind, "label": label, "swapped": swapped, "from": source})

    made: list[dict[str, Any]] = []
    own = _cycle(row.details, n, generator)
    for detail in own:
        answer(KINDS[0], row.short, detail)
    for other, detail in zip(_cycle(others, n, generator), own, strict=True):
        theirs = str(generator.choice(_lent(other, row)))
        if generator.random() < 0.5:
            answer(KINDS[1], other.short, detail, "short", other.question)
        else:
            answer(KINDS[1], row.short, theirs, "detail", other.question)
    for other in _cycle(others, n, generator):
        theirs = str(generator.choice(_lent(other, row)))
        answer(KINDS[2], other.short, theirs, None, other.question)
    return made


def _cycle(items: Sequence[T], n: int, generator: np.random.Generator) -> list[T]:
    """n items in random order, each as often as the others, give or take one."""
    order = generator.permutation(len(items))
    return [items[order[i % len(items)]] for i in range(n)]


def _sizes(texts: Sequence[str]) -> dict[str, Any]:
    """One row of Table 8: means of words, unique words and characters."""
    words = [rouge_words(text) for text in texts]
    return {
        "n": len(texts),
        "words": _mean([len(w) for w in words]),
        "unique_words": _mean([len(set(w)) for w in words]),
        "characters": _mean([len(text) for text in texts]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
