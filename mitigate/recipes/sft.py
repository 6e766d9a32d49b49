"""Task `sft`: label-free supervised fine-tuning on the answers that FEWL picks (or a baseline, or labels).

Writes train.jsonl, test.jsonl, checkpoints/, model/, answers.jsonl (untuned and tuned, to the held-out questions) and
pairs.jsonl for `mitigate judge`. On several GPUs: `accelerate launch --config_file recipes/accelerate/zero2.yaml -m
mitigate.cli run …`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from engines.checkpoint import not_partitioned
from mitigate.io import Record, UsageError
from mitigate.models import ModelName
from mitigate.recipes.config import Recipe
from mitigate.recipes.data import By, Scoring, picks, read_records
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.options import LmTraining, Lora, check_training
from mitigate.recipes.trainer import CHECKPOINTS, MODEL, fit, load_lm, losses, save_merged, sft_trainer


class Options(Recipe):
    task: Literal["sft"]
    model: ModelName = Field(description="folder, hub id or packaged:NAME of a causal LM")
    data: Path = Field(description="FEWL records with answers and reference_answers, JSON Lines")
    pick: By = Field(default="fewl", description="fewl, baseline, or labels (the ceiling)")
    baseline: str = Field(min_length=1, description="the reference LLM that the baseline scores with")
    scoring: Scoring = Scoring()
    weight_temperature: float | None = Field(
        default=None, gt=0, description="draw rows in proportion to exp(score / it); null: every row once"
    )
    test_share: float = Field(default=0.2, gt=0, lt=1, description="of the questions, held out")
    split_seed: int = Field(default=0, ge=0)
    form: Literal["auto", "chat", "plain"] = Field(default="auto", description="auto: chat where there is a template")
    scheduler: Literal["cosine", "linear", "constant"] = "cosine"
    training: LmTraining
    lora: Lora | None = None
    answer_tokens: int = Field(default=128, ge=1)


def check(options: Options) -> None:
    """Refuse missing files and extras, and options that do not go together."""
    from mitigate.models import check_similarity

    check_training(options.task, [options.model, str(options.data)], options.training, options.lora)
    check_similarity(options.scoring.similarity)
    if options.weight_temperature is not None and options.pick == "labels":
        raise UsageError("weight_temperature: labels have no score; expected null with pick: labels")


def run(options: Options, folder: RunFolder) -> int:
    """Pick, train, answer the held-out questions before and after."""
    from mitigate.sft import pairs

    records, bad = read_records(options.data, options.baseline, options.scoring, folder)
    train, test = _rows(options, folder, records)
    before, after = _train(options, folder, train, test)
    rows = [
        {"id": r["id"], "question": r["question"], "untuned": b or None, "tuned": a or None}
        for r, b, a in zip(test, before, after, strict=True)
    ]
    folder.write_rows("answers.jsonl", rows)
    judged = pairs(test, before, after)
    folder.write_rows("pairs.jsonl", judged)
    figures = {
        "train_rows": len(train), "train_questions": len({row["question"] for row in train}),
        "test_questions": len(test), "rejected_lines": bad, "pairs": len(judged), **losses(folder),
    }  # fmt: skip
    folder.finish(figures)
    print(json.dumps(figures))
    print(
        f"model: {folder / MODEL}\njudge with: mitigate judge --input {folder / 'pairs.jsonl'} --output judged.jsonl …"
    )
    return 3 if bad else 0


def _rows(options: Options, folder: RunFolder, records: list[Record]) -> tuple[list[Record], list[Record]]:
    """Rows to train on (id, question, answer), scored among themselves, and the held-out records; writes both."""
    from fewl.score import score_records
    from mitigate.sft import drawn_by_score, is_test

    parts: tuple[list[Record], list[Record]] = ([], [])
    for record in records:
        parts[is_test(record["question"], options.test_share, options.split_seed)].append(record)
    train, test = parts
    if not train or not test:
        raise UsageError(
            f"data: {len(records)} questions leave {len(train)} to train on and {len(test)} held out; give more"
        )
    named, encode, similarity = options.scoring.load([record["question"] for record in train])
    how: Any = {"similarity": similarity, "encode": encode}
    picked = picks(train, options.pick, scoring=options.scoring, baseline=options.baseline, **how)
    chosen = [(n, i) for n, i in enumerate(picked) if i is not None]
    rows = [
        {**{k: train[n][k] for k in ("id", "question")}, "answer": train[n]["answers"][i]["text"]} for n, i in chosen
    ]
    if not rows:
        raise UsageError(f"pick: no training question has an answer picked by {options.pick}")
    if options.weight_temperature is not None:
        scored, _ = score_records(train, options=options.scoring.options(), **how)
        found = [scored[n]["answers"][i]["score"] for n, i in chosen]
        scores = [float("-inf") if score is None else float(score) for score in found]
        rows = [rows[i] for i in drawn_by_score(scores, options.weight_temperature, options.training.seed)]
    folder.write_rows("train.jsonl", rows)
    folder.write_rows("test.jsonl", test)
    print(f"# {len(rows)} rows picked by {options.pick} ({named}), {len(test)} held-out questions", flush=True)
    return rows, test


def _train(options: Options, folder: RunFolder, train: list[Record], test: list[Record]) -> tuple[list[str], list[str]]:
    """Fine-tune, write `model/`; answers to the held-out questions, untuned and tuned."""
    import torch

    from mitigate.sft import as_row, generate

    model, tokenizer = load_lm(options.model, options.training)
    form: Any = options.form
    if form == "auto":
        form = "chat" if tokenizer.chat_template else "plain"
    questions = [record["question"] for record in test]

    def answers(model: Any) -> list[str]:
        return generate(model, tokenizer, questions, form, max_new_tokens=options.answer_tokens)

    kept = folder / "untuned.json"
    if kept.is_file():  # an interrupted run has asked the untuned model already
        before = json.loads(kept.read_text(encoding="utf-8"))
    else:
        before = answers(model.to("cuda") if torch.cuda.is_available() else model)
        folder.write(kept.name, json.dumps(before))
    rows = [as_row(row["question"], row["answer"], form) for row in train]
    trainer = sft_trainer(
        (model, tokenizer), rows, options, folder,
        max_length=options.training.max_tokens, lr_scheduler_type=options.scheduler,
    )  # fmt: skip
    fit(trainer, folder)
    tuned = save_merged(trainer, tokenizer, folder / MODEL)
    if tuned is None:
        with not_partitioned():
            tuned, _ = load_lm(str(folder / MODEL), options.training)
        tuned = tuned.to(trainer.args.device)
    print(f"# trained; checkpoints in {folder / CHECKPOINTS}; answering {len(questions)} questions", flush=True)
    return before, answers(tuned)
