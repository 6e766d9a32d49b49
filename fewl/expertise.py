"""Intentionally wrong (IW) answers and their corrections (CO): asked for, parsed strictly, counted.

A reply holds numbered pairs, ``1. Wrong Answer: …`` and ``1. Non-Wrong Answer: …`` (the paper's tags,
Appendix D.1). What can be read of a reply is kept, what is missing is asked for again, and everything else is
counted by its reason. Leaves out whether a wrong answer is in fact wrong: nothing here can know that.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engines.types import ChatResult, Engine, Sampling
from fewl.records import read_record
from fewl.similarity import Similarity, checked

PAIRS = 25
ROUNDS = 3
TAG = re.compile(r"^[ \t*_#>-]*(\d+)[.)][ \t*_]*(Non-Wrong|Wrong)[ ]Answer[ \t*_]*:[ \t*_]*", re.I | re.M)


@dataclass
class Pairs:
    """The pairs of one question, aligned, and what was counted while getting them."""

    iw: list[str] = field(default_factory=list)
    co: list[str] = field(default_factory=list)
    replies: int = 0
    problems: Counter[str] = field(default_factory=Counter)


def prompt(question: str, n: int, known: Sequence[str] = ()) -> list[dict[str, str]]:
    """The chat that asks for n pairs; ``known`` wrong answers are to be avoided."""
    lines = [
        f"Question: {question}",
        "",
        f"Invent {n} different answers to this question that are false but that somebody could believe. "
        "After each, write a true sentence that sets it right. Word the true sentence afresh instead of putting "
        'a "not" into the false one, and do it in a different way each time. Use the language of the question.',
    ]
    if known:
        lines += ["", "These false answers are taken, so do not repeat them:", *(f"- {text}" for text in known)]
    lines += [
        "",
        "Write nothing but these numbered lines:",
        "1. Wrong Answer: <false answer>",
        "1. Non-Wrong Answer: <true sentence>",
        f"and so on up to number {n}.",
    ]
    return [{"role": "user", "content": "\n".join(lines)}]


def parse_pairs(reply: str, *, truncated: bool = False) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Read the numbered pairs of a reply.

    Args:
        reply: What the LLM wrote.
        truncated: Whether the reply was cut at its token limit; its last answer is then dropped.

    Returns:
        (wrong, corrected) pairs in order, and problems by name: ``no_pairs`` (nothing of the template),
        ``truncated``, ``unpaired`` (one of the two is missing), ``empty``, ``repeated_number`` (the first is
        kept) and ``same_text`` (wrong and corrected are equal).
    """
    problems: Counter[str] = Counter()
    found: dict[int, dict[str, str]] = {}
    marks = list(TAG.finditer(reply))
    for place, mark in enumerate(marks):
        last = place + 1 == len(marks)
        if last and truncated:
            problems["truncated"] += 1
            continue
        text = " ".join(reply[mark.end() : len(reply) if last else marks[place + 1].start()].split()).strip("*_ ")
        number, kind = int(mark.group(1)), mark.group(2).lower()
        if kind in found.setdefault(number, {}):
            problems["repeated_number"] += 1
        else:
            found[number][kind] = text
    pairs = []
    for pair in found.values():
        wrong, corrected = pair.get("wrong"), pair.get("non-wrong")
        if wrong is None or corrected is None:
            problems["unpaired"] += 1
        elif not wrong or not corrected or set(wrong + corrected) <= set("<>.… "):
            problems["empty"] += 1
        elif folded(wrong) == folded(corrected):
            problems["same_text"] += 1
        else:
            pairs.append((wrong, corrected))
    if not marks:
        problems["no_pairs"] += 1
    return pairs, problems


def generate_pairs(
    engine: Engine, questions: Sequence[str], *, n: int = PAIRS, rounds: int = ROUNDS, seed: int = 0
) -> list[Pairs]:
    """Ask an LLM for n pairs per question, and again for what is missing.

    Args:
        engine: Who is asked.
        questions: One chat each and round.
        n: Pairs wanted per question.
        rounds: How often a question is asked at most.
        seed: Of the draws; each round has its own.

    Returns:
        Per question at most n pairs, without repeated wrong answers (case, spaces and punctuation aside).

    Raises:
        EngineError: The engine cannot answer at all.
    """
    results = [Pairs() for _ in questions]
    for turn in range(rounds):
        open_ = [q for q, pairs in enumerate(results) if len(pairs.iw) < n]
        if not open_:
            break
        chats = [prompt(questions[q], n - len(results[q].iw), results[q].iw) for q in open_]
        sampling = Sampling(max_tokens=100 * n, temperature=0.7, seed=seed + turn)
        for q, answer in zip(open_, engine.chat(chats, sampling), strict=True):
            _add(results[q], answer, n)
    return results


def _add(pairs: Pairs, answer: ChatResult, n: int) -> None:
    pairs.replies += 1
    if answer.text is None:
        pairs.problems["failed"] += 1
        return
    new, problems = parse_pairs(answer.text, truncated=answer.samples[0].finish_reason == "length")
    pairs.problems.update(problems)
    known = {folded(text) for text in pairs.iw}
    for wrong, corrected in new:
        if folded(wrong) in known:
            pairs.problems["duplicate"] += 1
        elif len(pairs.iw) < n:
            known.add(folded(wrong))
            pairs.iw.append(wrong)
            pairs.co.append(corrected)


def report(results: Sequence[Pairs], n: int = PAIRS) -> dict[str, Any]:
    """How many pairs were wanted and read, over how many replies, and what went wrong how often."""
    problems: Counter[str] = Counter()
    for pairs in results:
        problems.update(pairs.problems)
    return {
        "questions": len(results),
        "pairs_wanted": n * len(results),
        "pairs": sum(len(pairs.iw) for pairs in results),
        "questions_with_all_pairs": sum(len(pairs.iw) >= n for pairs in results),
        "questions_without_pairs": sum(not pairs.iw for pairs in results),
        "replies": sum(pairs.replies for pairs in results),
        "problems": dict(problems),
    }


def agreement_counts(
    records: Sequence[Mapping[str, Any]], similarity: Similarity, *, at_least: float = 0.7
) -> dict[str, list[tuple[int, int]]]:
    """Per LLM and question: how many IW and how many CO answers its answer agrees with (Figure 4).

    Args:
        records: FEWL records with ``iw`` and ``co``; those without are passed over.
        similarity: Of reference answer and IW or CO answer.
        at_least: The similarity from which two answers are called the same. The paper does not state its own.

    Returns:
        {LLM: [(wrong, corrected), …]}; fewer wrong and more corrected ones speak for an LLM. Of several
        samples of one LLM the first counts.
    """
    rows = []
    for raw in records:
        record = read_record(raw)
        if record.iw and record.co:
            rows += [(name, texts[0], record) for name, texts in record.references.items() if texts]
    numbers: dict[str, int] = {}
    pairs = [
        [numbers.setdefault(part, len(numbers)) for part in (text, other, record.question)]
        for _, text, record in rows
        for other in (*record.iw, *record.co)
    ]
    values = checked(similarity(list(numbers)), np.array(pairs, dtype=np.int64).reshape(-1, 3))
    counts: dict[str, list[tuple[int, int]]] = {}
    place = 0
    for name, _, record in rows:
        end = place + len(record.iw) + len(record.co)
        agreed = values[place:end] >= at_least
        counts.setdefault(name, []).append((int(agreed[: len(record.iw)].sum()), int(agreed[len(record.iw) :].sum())))
        place = end
    return counts


def folded(text: str) -> str:
    """A text without case, punctuation and repeated spaces, to find repetitions."""
    return " ".join(
        "".join(ch if ch.isalnum() else " " for ch in unicodedata.normalize("NFKC", text)).casefold().split()
    )
