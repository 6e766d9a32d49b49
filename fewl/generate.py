"""What an input lacks, asked from LLMs: reference answers, and whether an LLM calls an answer its own.

Asking twice costs nothing where the engine has a response cache, which is how a killed run goes on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from engines.types import Engine, Sampling
from fewl.records import FewlRecord

YES = re.compile(r"^\W*(yes|是)\b|^\W*是", re.I)
NO = re.compile(r"^\W*(no|not)\b|^\W*(否|不)", re.I)


def reference_answers(
    engine: Engine, questions: Sequence[str], *, samples: int = 1, max_tokens: int = 256, seed: int = 0
) -> list[list[str]]:
    """Answers of one reference LLM.

    Args:
        engine: The LLM.
        questions: What it is asked.
        samples: 1 is the greedy answer; more are drawn at temperature 1, each by a request with its own seed
            (a server that ignores ``n`` then does no harm).
        max_tokens: Longest answer.
        seed: Of the draws.

    Returns:
        Per question the answers that hold text, ``samples`` of them unless a request failed.

    Raises:
        EngineError: The engine cannot answer at all.
    """
    chats = [[{"role": "user", "content": f"Answer the question briefly.\n\n{question}"}] for question in questions]
    answers: list[list[str]] = [[] for _ in questions]
    for sample in range(samples):
        drawn = Sampling(max_tokens=max_tokens, temperature=1.0, seed=seed + sample)
        results = engine.chat(chats, Sampling(max_tokens=max_tokens) if samples == 1 else drawn)
        for texts, result in zip(answers, results, strict=True):
            if result.text is not None and result.text.strip():
                texts.append(result.text.strip())
    return answers


def prompted_expertise(engine: Engine, name: str, records: Sequence[FewlRecord]) -> list[float | None]:
    """r of one LLM by asking it: (CO answers it calls its own − IW answers it calls its own) / K_pairs.

    Args:
        engine: The LLM that gave the reference answers ``name``.
        name: Its key in ``reference_answers``.
        records: With ``iw`` and ``co``.

    Returns:
        r in [−1, 1] per record, higher is better: the share of CO minus the share of IW answers that it calls
        its own, of those where it said yes or no. None where it has no answer, or said so of none.

    Raises:
        EngineError: The engine cannot answer at all.
    """
    asked = [
        (q, kind, text)
        for q, record in enumerate(records)
        if record.references.get(name)
        for kind, texts in (("co", record.co), ("iw", record.iw))
        for text in texts
    ]
    chats = [_same_answer(records[q], records[q].references[name][0], text) for q, _, text in asked]
    said: Mapping[str, list[list[bool]]] = {kind: [[] for _ in records] for kind in ("co", "iw")}
    for (q, kind, _), result in zip(asked, engine.chat(chats, Sampling(max_tokens=8)), strict=True):
        verdict = yes_or_no(result.text or "")
        if verdict is not None:
            said[kind][q].append(verdict)
    return [
        sum(co) / len(co) - sum(iw) / len(iw) if co and iw else None
        for co, iw in zip(said["co"], said["iw"], strict=True)
    ]


def yes_or_no(reply: str) -> bool | None:
    """True for a reply that begins with yes, False for no (是 and 否 or 不 in Chinese), None for neither."""
    if NO.match(reply):
        return False
    return True if YES.match(reply) else None


def _same_answer(record: FewlRecord, own: str, other: str) -> list[dict[str, str]]:
    text = (
        f"Question: {record.question}\nYour answer: {own}\nAnother answer: {other}\n\n"
        "Does the other answer say the same as yours? Reply with Yes or No only."
    )
    return [{"role": "user", "content": text}]
