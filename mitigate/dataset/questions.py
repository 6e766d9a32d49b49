"""Stages 5 to 10: questions written, made distinct, filtered, selected and answered; the records to annotate.

Each stage takes topics' rows and adds its part: ``questions``, ``distinct`` with ``duplicates``, ``verdicts`` with
``kept``, ``selected``, ``answers_…``. Any number of models answer, with and without the reference; each is one pass
over all topics, so that local models are in memory one at a time. Then every answer becomes one annotation record. The
annotator chooses windows and takes a second look at what it can't verify by itself. Source: ANAH §2.2 to §2.4.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fewl.expertise import folded
from mitigate.dataset import prompts
from mitigate.dataset.prompts import parse_choice, parse_questions, parse_verdicts
from mitigate.dataset.stage import LLM, TURNS, cut_off, extended, fill_verdicts, head_of, read_rows, text_of, vectors_of
from mitigate.io import Check, Line, Problem, Record, dump_line, set_aside, write_lines

SOURCES = {True: "with reference", False: "without reference"}


def write(topics: Sequence[Record], llm: LLM, *, per_topic: int, rounds: int, characters: int) -> list[Record]:
    """Write ``per_topic`` questions on the first ``characters`` of the document; each of at most so many rounds asks
    for those that are missing.
    """
    found: list[list[str]] = [[] for _ in topics]
    problems: list[Counter[str]] = [Counter() for _ in topics]
    for turn in range(rounds):
        open_ = [n for n in range(len(topics)) if len(found[n]) < per_topic]
        heads = {n: head_of(topics[n]["reference"], characters) for n in open_}
        chats = [prompts.write_questions(topics[n], heads[n], per_topic - len(found[n]), found[n]) for n in open_]
        for n, result in zip(open_, llm.ask(chats, turn), strict=True):
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


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_ASKED = {
    name: re.compile(pattern, re.I)
    for name, pattern in {
        "time": r"\b(when|(what|which) (time|year|date|day|month|century))\b"
        r"|何时|什么时候|[哪何]一?[年天月]|什么年份|几[年月点号]",
        "place": r"\b(where|(what|which) place)\b|哪里|哪儿|何处|什么地方",
        "person": r"\b(who|whom|whose|(what|which) person)\b|谁|哪位|何人",
        "reason": r"\b(why|(what|which) reason|how come)\b|为什么|为何|什么原因",
        "amount": r"\bhow (many|much)\b|\bwhat number\b|多少|几[个次人位种座]",
    }.items()
}


def ask_apart(first: str, second: str) -> bool:
    """Whether two questions can't be the same: other numbers in them, or one asks when and the other where, which
    embeddings hardly see (docs/results/dataset.md).
    """
    if sorted(_NUMBER.findall(first)) != sorted(_NUMBER.findall(second)):
        return True
    a, b = ({name for name, pattern in _ASKED.items() if pattern.search(text)} for text in (first, second))
    return bool(a and b) and not a & b


def distinct(questions: Sequence[str], vectors: np.ndarray, threshold: float) -> tuple[list[str], list[Record]]:
    """Keep a question unless it asks the same as one kept before: from this cosine of their (n, D) vectors of length 1
    on, unless ``ask_apart``. Returns the kept ones, and {"question", "of", "similarity"} of each left out.
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


def make_distinct(topics: Sequence[Record], thresholds: Mapping[str, float], model: str | None) -> list[Record]:
    """Leave out questions that ask the same as an earlier one of the topic; the thresholds are per language."""
    rows = []
    for topic in topics:
        language, questions = topic["language"], topic["questions"]
        kept, dropped = distinct(questions, vectors_of(questions, language, model), thresholds[language])
        rows.append(extended(topic, distinct=kept, duplicates=dropped))
    return rows


def keep_answerable(topics: Sequence[Record], llm: LLM, *, characters: int) -> list[Record]:
    """Keep the questions that are objective and that the document answers; a verdict that can't be read is null.
    Objectivity is judged for all of a topic at once, and, where no verdict is readable, one by one, as answerability.
    """
    chats = [prompts.judge_objective(topic["language"], topic["distinct"]) for topic in topics]
    objective: dict[tuple[int, int], bool | None] = {}
    for n, result in enumerate(llm.ask(chats)):
        verdicts = parse_verdicts(text_of(result), len(topics[n]["distinct"]))
        objective |= {(n, place): verdict for place, verdict in enumerate(verdicts)}
    asked = {(n, p): (topics[n]["language"], topics[n]["distinct"][p]) for n, p in objective}
    alone = {key: prompts.judge_objective(language, [question]) for key, (language, question) in asked.items()}
    fill_verdicts(llm, objective, alone)
    heads = [head_of(topic["reference"], characters) for topic in topics]
    answerable: dict[tuple[int, int], bool | None] = {key: None for key, yes in objective.items() if yes}
    fill_verdicts(llm, answerable, {key: prompts.judge_answerable(*asked[key], heads[key[0]]) for key in answerable})
    rows = []
    for n, topic in enumerate(topics):
        found = [
            {"question": question, "objective": objective[n, p], "answerable": answerable.get((n, p))}
            for p, question in enumerate(topic["distinct"])
        ]
        kept = [v["question"] for v in found if v["objective"] and v["answerable"]]
        rows.append(extended(topic, verdicts=found, kept=kept))
    return rows


def select(topics: Sequence[Record], llm: LLM, *, keep: int) -> list[Record]:
    """Choose the best questions of each topic. Adds ``selected`` and ``selection``: "all" (no more than ``keep`` were
    left), "chosen", or "filled" (the LLM named too few, and the first of the others make up the number).
    """
    chosen: list[list[int]] = [[] for _ in topics]
    many = [n for n, topic in enumerate(topics) if len(topic["kept"]) > keep]
    for turn in range(TURNS):
        open_ = [n for n in many if len(chosen[n]) < keep]
        chats = [prompts.select_questions(topics[n]["language"], topics[n]["kept"], keep) for n in open_]
        for n, result in zip(open_, llm.ask(chats, turn), strict=True):
            places = parse_choice(text_of(result), len(topics[n]["kept"]), keep)
            chosen[n] = max(chosen[n], places, key=len)
    rows = []
    for n, topic in enumerate(topics):
        kept = topic["kept"]
        how = "all" if n not in many else "chosen" if len(chosen[n]) == keep else "filled"
        others = [place for place in range(len(kept)) if place not in chosen[n]]
        places = sorted([*chosen[n], *others][:keep])
        rows.append(extended(topic, selected=[kept[place] for place in places], selection=how))
    return rows


def answer(topics: Sequence[Record], llm: LLM, *, key: str, with_reference: bool, characters: int) -> list[Record]:
    """Answer the selected questions of each topic; adds a list under ``key``. In it, ``answer`` is null where the model
    gave none, with the reason in ``error``.
    """
    places = [(n, question) for n, topic in enumerate(topics) for question in topic["selected"]]
    heads = [head_of(topic["reference"], characters) if with_reference else None for topic in topics]
    chats = [prompts.answer_question(topics[n]["language"], question, heads[n]) for n, question in places]
    answers: list[list[Record]] = [[] for _ in topics]
    for (n, question), result in zip(places, llm.ask(chats), strict=True):
        text = text_of(result)
        how = {"model": llm.engine.name, "with_reference": with_reference, "cut_off": cut_off(result)}
        error = result.error or (None if text else "an empty reply")
        answers[n].append({"question": question, "answer": text or None, **how, "error": error})
    return [extended(topic, **{key: found}) for topic, found in zip(topics, answers, strict=True)]


def write_records(source: Path, output: Path, keys: Sequence[str]) -> tuple[int, int]:
    """Write one record per answer, missing answers to the rejected file; returns how many of each. A record that is
    there stays as it is, since a person may have corrected it."""
    records, missing = [], []
    there = {row["id"]: row for row in read_rows(output)} if output.is_file() else {}
    for number, row in enumerate(read_rows(source), start=1):
        for place, key in enumerate(keys, start=1):
            for count, answer in enumerate(row[key], start=1):
                if answer["answer"] is None:
                    expected = f"an answer of {answer['model']} to {answer['question']!r} ({answer['error']})"
                    line = Line(number, dump_line(answer).strip(), None, (Problem(key, None, expected),))
                    missing.append((source, line))
                    continue
                own = f"{row['topic']}/{count}/{place}"
                records.append(there.get(own) or {
                    "id": own,
                    "question": answer["question"], "answer": answer["answer"],
                    **{name: row[name] for name in ("language", "topic", "category", "domain", "document")},
                    "model": answer["model"], "source": SOURCES[answer["with_reference"]],
                    "cut_off": answer["cut_off"], "reference": row["reference"],
                })  # fmt: skip
    set_aside(missing, output)
    write_lines(output, records)
    return len(records), len(missing)


def check_questions(name: str, wanted: str) -> Check:
    """A topic goes on when its list of that name is not empty."""
    return lambda row: [] if row[name] else [Problem(name, "[]", f"{wanted} for the topic {row['topic']!r}")]
