"""Task `icl`: demonstrations chosen by FEWL, prompts for any engine, and its answers with and without them.

The pool is made of the questions that FEWL and the baseline answer differently, since there the choice of the score
matters (FEWL, §5.1); a test question gets the nearest of them as demonstrations, the most similar last, next to the
question. A question is never its own demonstration, nor is one of nearly the same words. The prompt is this toolkit's
own.

Writes pool.jsonl, prompts.jsonl (three chats per question: none, baseline, fewl) and, with an engine, answers.jsonl and
pairs-fewl.jsonl and pairs-baseline.jsonl for `mitigate judge`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from engines.types import Chat, EngineError, Sampling, check_asked
from fewl.similarity import Encode
from mitigate.io import Record, UsageError, check_text
from mitigate.models import EngineName, failures, open_engine
from mitigate.recipes.config import Recipe
from mitigate.recipes.data import Scoring, picks, read_good, read_records
from mitigate.recipes.folder import RunFolder

VARIANTS = ("none", "baseline", "fewl")
SAME = 0.95
"""Cosine from which two questions count as one: a demonstration of it would give the answer away."""
RULES = (
    "Answer the question truthfully and briefly, for any reader. If you don't know the answer, say so instead of "
    "guessing."
)
EXAMPLES = "Here are similar questions with good answers; they show form and care, not the answer to yours."


class Options(Recipe):
    task: Literal["icl"]
    pool: Path = Field(description="FEWL records with answers and reference_answers, JSON Lines")
    questions: Path | None = Field(
        default=None, description="questions to answer, JSON Lines; null: those of the pool, each left out for itself"
    )
    baseline: str = Field(min_length=1, description="the reference LLM that the baseline scores with")
    scoring: Scoring = Scoring()
    demonstrations: int = Field(default=5, ge=1)
    prompt_tokens: int = Field(default=2000, ge=50, description="most tokens of a prompt, about 4 characters each")
    engine: EngineName | None = Field(
        default=None, description="KIND:MODEL[@BASE_URL] that answers; null: prompts only"
    )
    answer_tokens: int = Field(default=256, ge=1)


def check(options: Options) -> None:
    """Refuse missing files."""
    from mitigate.models import check_similarity

    for path in (options.pool, options.questions):
        if path is not None and not path.is_file():
            raise UsageError(f"cannot read {path}: no such file")
    check_similarity(options.scoring.similarity)


def run(options: Options, folder: RunFolder) -> int:
    """Score, choose, prompt, ask."""
    from mitigate.inference.judge import about_tokens

    records, bad = read_records(options.pool, options.baseline, options.scoring, folder)
    tests = records
    if options.questions is not None:
        check_line = partial(check_text, name="question", required=True)
        tests, more = read_good(options.questions, check_line, folder, "questions", "questions.rejected.jsonl")
        bad += more
    named, encode, similarity = options.scoring.load([record["question"] for record in records])
    print(f"{len(records)} records, {len(tests)} questions, embeddings: {named}", flush=True)
    how: Any = {"scoring": options.scoring, "baseline": options.baseline, "similarity": similarity, "encode": encode}
    pool = candidate_pool(records, picks(records, "fewl", **how), picks(records, "baseline", **how))
    folder.write_rows("pool.jsonl", [example.to_dict() for example in pool])
    print(f"pool: {len(pool)} questions that FEWL and {options.baseline} answer differently", flush=True)
    chosen = demonstrations([test["question"] for test in tests], pool, encode, options.demonstrations)
    prompts = []
    for test, neighbours in zip(tests, chosen, strict=True):
        for variant in VARIANTS:
            shown = [] if variant == "none" else [(n.example.question, getattr(n.example, variant)) for n in neighbours]
            messages, kept = chat(test["question"], shown, budget=options.prompt_tokens, count=about_tokens)
            used = [{"id": n.example.id, "similarity": n.similarity} for n in neighbours[len(neighbours) - kept :]]
            prompts.append(
                {"id": test["id"], "question": test["question"], "variant": variant,
                 "demonstrations": used if shown else [], "messages": messages}
            )  # fmt: skip
    folder.write_rows("prompts.jsonl", prompts)
    figures: dict[str, Any] = {"records": len(records), "rejected_lines": bad, "questions": len(tests)}
    figures |= {"pool": len(pool), "prompts": len(prompts)}
    print(f"prompts: {folder / 'prompts.jsonl'}")
    if options.engine is not None:
        figures |= _ask(options.engine, options.answer_tokens, folder, prompts)
    folder.finish(figures)
    return 3 if bad else 0


def _ask(name: str, tokens: int, folder: RunFolder, prompts: list[Record]) -> dict[str, Any]:
    """Answers of the engine; a second run takes those that there are from the cache of the run folder."""
    with closing(open_engine(name, "engine", folder / "replies.sqlite")) as engine:
        print(f"asking {name}: {len(prompts)} prompts", flush=True)
        results = engine.chat([p["messages"] for p in prompts], Sampling(max_tokens=tokens))
        check_asked(results)
        why = failures([engine])
    answers: list[Record] = []
    for i, (prompt, result) in enumerate(zip(prompts, results, strict=True)):
        if i % len(VARIANTS) == 0:  # by place: two questions may have one id
            answers.append({"id": prompt["id"], "question": prompt["question"]})
        answers[-1][prompt["variant"]] = None if result.text is None else result.text.strip()  # silence is an answer
    folder.write_rows("answers.jsonl", answers)
    counts = {}
    for variant in ("fewl", "baseline"):
        pairs = [
            {"id": row["id"], "question": row["question"], "baseline": row["none"], "method": row[variant]}
            for row in answers
            if None not in (row["none"], row[variant])
        ]
        file = f"pairs-{variant}.jsonl"
        folder.write_rows(file, pairs)
        counts[f"pairs_{variant}"] = len(pairs)
        print(f"judge with: mitigate judge --input {folder / file} --output judged.jsonl --engine …")
    if why:
        failed = sum(result.error is not None for result in results)
        raise EngineError(f"{failed} of {len(prompts)} prompts have no answer ({why})")
    return {"answers": sum(row[v] is not None for row in answers for v in VARIANTS), **counts}


@dataclass(frozen=True)
class Example:
    """A question of the pool: what FEWL picked, and what the baseline picked instead."""

    id: str
    question: str
    fewl: str
    baseline: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Neighbour:
    """An example with its similarity to the question that it is for, in [−1, 1]."""

    example: Example
    similarity: float


def candidate_pool(
    records: Sequence[Mapping[str, Any]], fewl: Sequence[int | None], baseline: Sequence[int | None]
) -> list[Example]:
    """The questions of FEWL records for which the two picks (`mitigate.recipes.data.picks`) are different texts."""
    pool = []
    for record, first, second in zip(records, fewl, baseline, strict=True):
        if first is not None and second is not None:
            texts = [record["answers"][i]["text"] for i in (first, second)]
            if normalised(texts[0]) != normalised(texts[1]):
                pool.append(Example(str(record["id"]), record["question"], *texts))
    return pool


def normalised(text: str) -> str:
    """Letters and digits of a text without case, width or presentation forms; equal for equal wordings."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


def one_line(text: str) -> str:
    """A text on one line, so that none can look like another question and answer."""
    return " ".join(text.split())


def demonstrations(questions: Sequence[str], pool: Sequence[Example], encode: Encode, k: int) -> list[list[Neighbour]]:
    """For each question at most k nearest examples by cosine, the most similar last.

    Examples with the question's own words, or a cosine of SAME and more, are left out. ``encode`` maps texts to
    vectors of length 1.
    """
    if not pool or not questions:
        return [[] for _ in questions]
    texts = [example.question for example in pool]
    similarity_QP = encode(list(questions)) @ encode(texts).T
    own_P = [normalised(text) for text in texts]
    found = []
    for question, row_P in zip(questions, similarity_QP, strict=True):
        own = normalised(question)
        order = [int(p) for p in np.argsort(-row_P, kind="stable") if row_P[p] < SAME and own_P[p] != own]
        found.append([Neighbour(pool[p], float(row_P[p])) for p in reversed(order[:k])])
    return found


def chat(
    question: str, shown: Sequence[tuple[str, str]], *, budget: int | None = None, count: Callable[[str], int] = len
) -> tuple[Chat, int]:
    """The chat that asks a question after demonstrations, and how many of them are in it.

    ``shown`` are (question, answer), the most similar last. Where ``count`` of the prompt exceeds ``budget`` tokens
    (None: no limit), the first are dropped; the question itself always stays.
    """
    kept = list(shown)
    while True:
        parts = [RULES, *([EXAMPLES] if kept else [])]
        parts += [f"Question: {one_line(q)}\nAnswer: {one_line(a)}" for q, a in kept]
        text = "\n\n".join([*parts, f"Question: {one_line(question)}\nAnswer:"])
        if budget is None or count(text) <= budget or not kept:
            return [{"role": "user", "content": text}], len(kept)
        del kept[0]
