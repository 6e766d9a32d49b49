"""Stages 4 to 7: questions written, made distinct, filtered and selected.

Each stage takes a topic's row and adds its part: ``questions``, ``distinct`` with ``duplicates``, ``verdicts`` with
``kept``, ``selected``. Source: ANAH §2.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from engines.types import Engine
from fewl.expertise import folded, yes_or_no
from mitigate.dataset import prompts
from mitigate.dataset.prompts import parse_choice, parse_questions, parse_verdicts
from mitigate.dataset.stage import Asked, Process, ask, ask_apart, cut_off, extended, head_of, text_of, vectors_of
from mitigate.io import Problem, Record

TURNS = 2
"""How often a verdict or a choice that can't be read is asked for."""


def writing(engine: Engine, asked: Asked, *, per_topic: int, rounds: int, characters: int) -> Process:
    """Write questions; what is missing after a round is asked for again.

    Args:
        engine: The LLM.
        asked: How it is asked.
        per_topic: Questions wanted.
        rounds: How often a topic is asked at most.
        characters: Of the document, from its beginning, that are shown.
    """

    def process(topics: list[Record]) -> list[Record]:
        found: list[list[str]] = [[] for _ in topics]
        problems: list[Counter[str]] = [Counter() for _ in topics]
        for turn in range(rounds):
            open_ = [n for n in range(len(topics)) if len(found[n]) < per_topic]
            chats = [
                prompts.write_questions(
                    topics[n], head_of(topics[n]["reference"], characters), per_topic - len(found[n]), found[n]
                )
                for n in open_
            ]
            for n, result in zip(open_, ask(engine, chats, asked, turn=turn), strict=True):
                if result.error is not None:
                    problems[n]["failed"] += 1
                    continue
                new, wrong = parse_questions(text_of(result), topics[n]["language"], truncated=cut_off(result))
                problems[n].update(wrong)
                known = {folded(question) for question in found[n]}
                for question in new:
                    if folded(question) in known:
                        problems[n]["repeated"] += 1
                    elif len(found[n]) < per_topic:
                        known.add(folded(question))
                        found[n].append(question)
        return [
            extended(topic, questions=questions, question_problems=dict(sorted(wrong.items())))
            for topic, questions, wrong in zip(topics, found, problems, strict=True)
        ]

    return process


def distinct(questions: Sequence[str], vectors: np.ndarray, threshold: float) -> tuple[list[str], list[Record]]:
    """Keep a question unless it asks the same as one kept before.

    Args:
        questions: n texts, the earlier the better.
        vectors: (n, D) of length 1.
        threshold: Cosine from which two are called the same, unless ``ask_apart`` tells them apart.

    Returns:
        The kept questions, and {"question", "of", "similarity"} of each left out.
    """
    kept: list[int] = []
    dropped: list[Record] = []
    for n, question in enumerate(questions):
        near = [(float(vectors[k] @ vectors[n]), k) for k in kept if not ask_apart(questions[k], question)]
        score, of = max(near, default=(-1.0, -1))
        if score >= threshold:
            dropped.append({"question": question, "of": questions[of], "similarity": round(score, 4)})
        else:
            kept.append(n)
    return [questions[n] for n in kept], dropped


def making_distinct(thresholds: dict[str, float], model: str | None = None) -> Process:
    """Leave out questions that ask the same as an earlier one of the topic.

    Args:
        thresholds: Cosine per language, see :func:`distinct`.
        model: Embedding model; None is the packaged one.
    """

    def process(topics: list[Record]) -> list[Record]:
        rows = []
        for topic in topics:
            language, questions = topic["language"], topic["questions"]
            kept, dropped = distinct(questions, vectors_of(questions, language, model), thresholds[language])
            rows.append(extended(topic, distinct=kept, duplicates=dropped))
        return rows

    return process


def filtering(engine: Engine, asked: Asked, *, characters: int) -> Process:
    """Keep the questions that are objective and that the document answers.

    Objectivity is judged for all questions of a topic at once, and for those without a readable verdict one by one;
    answerability one by one. A question is kept when both verdicts are yes; null means that none could be read.
    """

    def process(topics: list[Record]) -> list[Record]:
        chats = [prompts.judge_objective(topic["language"], topic["distinct"]) for topic in topics]
        objective: dict[tuple[int, int], bool | None] = {}
        for n, result in enumerate(ask(engine, chats, asked)):
            verdicts = parse_verdicts(text_of(result), len(topics[n]["distinct"]))
            objective |= {(n, place): verdict for place, verdict in enumerate(verdicts)}
        heads = [head_of(topic["reference"], characters) for topic in topics]

        def one_objective(n: int, place: int) -> prompts.Messages:
            return prompts.judge_objective(topics[n]["language"], [topics[n]["distinct"][place]])

        def one_answerable(n: int, place: int) -> prompts.Messages:
            return prompts.judge_answerable(topics[n]["language"], topics[n]["distinct"][place], heads[n])

        _fill(engine, asked, objective, one_objective)
        answerable: dict[tuple[int, int], bool | None] = {key: None for key, yes in objective.items() if yes}
        _fill(engine, asked, answerable, one_answerable)
        rows = []
        for n, topic in enumerate(topics):
            verdicts_of = [
                {"question": question, "objective": objective[n, p], "answerable": answerable.get((n, p))}
                for p, question in enumerate(topic["distinct"])
            ]
            kept = [v["question"] for v in verdicts_of if v["objective"] and v["answerable"]]
            rows.append(extended(topic, verdicts=verdicts_of, kept=kept))
        return rows

    return process


def _fill(
    engine: Engine,
    asked: Asked,
    verdicts: dict[tuple[int, int], bool | None],
    chat: Callable[[int, int], prompts.Messages],
) -> None:
    """Ask one by one for the verdicts that are None, at most ``TURNS`` times."""
    for turn in range(TURNS):
        open_ = [key for key, verdict in verdicts.items() if verdict is None]
        results = ask(engine, [chat(*key) for key in open_], asked, turn=turn)
        for key, result in zip(open_, results, strict=True):
            reply = text_of(result)
            (verdict,) = parse_verdicts(reply, 1)
            verdicts[key] = yes_or_no(reply) if verdict is None else verdict


def selecting(engine: Engine, asked: Asked, *, keep: int) -> Process:
    """Choose the best questions of each topic.

    Adds ``selected`` and ``selection``: "all" (no more than ``keep`` were left), "chosen", or "filled" (the LLM named
    too few, and the first of the others make up the number).
    """

    def process(topics: list[Record]) -> list[Record]:
        chosen: list[list[int]] = [[] for _ in topics]
        many = [n for n, topic in enumerate(topics) if len(topic["kept"]) > keep]
        for turn in range(TURNS):
            open_ = [n for n in many if len(chosen[n]) < keep]
            chats = [prompts.select_questions(topics[n]["language"], topics[n]["kept"], keep) for n in open_]
            for n, result in zip(open_, ask(engine, chats, asked, turn=turn), strict=True):
                places = parse_choice(text_of(result), len(topics[n]["kept"]), keep)
                chosen[n] = max(chosen[n], places, key=len)
        rows = []
        for n, topic in enumerate(topics):
            kept, how = topic["kept"], "chosen" if n in many else "all"
            if len(chosen[n]) < min(keep, len(kept)):
                how = "filled" if n in many else how
                chosen[n] += [place for place in range(len(kept)) if place not in chosen[n]]
            places = sorted(chosen[n][:keep])
            rows.append(extended(topic, selected=[kept[place] for place in places], selection=how))
        return rows

    return process


def check_questions(name: str, wanted: str) -> Callable[[Record], list[Problem]]:
    """A topic goes on when its list of that name is not empty."""

    def check(row: Record) -> list[Problem]:
        return [] if row[name] else [Problem(name, "[]", f"{wanted} for the topic {row['topic']!r}")]

    return check
