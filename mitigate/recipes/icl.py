"""Task `icl`: demonstrations chosen by FEWL, prompts for any engine, and its answers with and without them.

Writes pool.jsonl, prompts.jsonl (three chats per question: none, baseline, fewl) and, with an engine, answers.jsonl and
pairs-fewl.jsonl and pairs-baseline.jsonl for `mitigate judge`.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from engines.types import EngineError, Sampling, check_asked
from mitigate.icl import candidate_pool, chat, demonstrations
from mitigate.inference.judge import about_tokens
from mitigate.io import Record, check_texts
from mitigate.models import EngineName, failures, open_engine
from mitigate.recipes.config import Recipe
from mitigate.recipes.data import Scoring, check_files, picks, read_good, read_records
from mitigate.recipes.folder import RunFolder

VARIANTS = ("none", "baseline", "fewl")


class Options(Recipe):
    task: Literal["icl"]
    pool: Path = Field(description="FEWL records with answers and reference_answers, JSON Lines")
    questions: Path | None = Field(default=None, description="null: those of the pool, each left out for itself")
    baseline: str = Field(min_length=1, description="the reference LLM that the baseline scores with")
    scoring: Scoring = Scoring()
    demonstrations: int = Field(default=5, ge=1)
    prompt_tokens: int = Field(default=2000, ge=50, description="most tokens of a prompt, about 4 characters each")
    engine: EngineName | None = Field(
        default=None, description="KIND:MODEL[@BASE_URL] that answers; null: prompts only"
    )
    answer_tokens: int = Field(default=256, ge=1)


def check(options: Options) -> None:
    check_files(options.pool, options.questions)


def run(options: Options, folder: RunFolder) -> int:
    records, bad = read_records(options.pool, options.baseline, options.scoring, folder)
    tests = records
    if options.questions is not None:
        check_line = partial(check_texts, question="text")
        tests, more = read_good(options.questions, check_line, folder, "questions", "questions.rejected.jsonl")
        bad += more
    named, encode, similarity = options.scoring.load([record["question"] for record in records])
    print(f"{len(records)} records, {len(tests)} questions, embeddings: {named}", flush=True)
    how: Any = {"scoring": options.scoring, "baseline": options.baseline, "similarity": similarity, "encode": encode}
    pool = candidate_pool(records, picks(records, "fewl", **how), picks(records, "baseline", **how))
    folder.write_rows("pool.jsonl", [asdict(example) for example in pool])
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
