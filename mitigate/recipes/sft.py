"""Kind `sft`: label-free supervised fine-tuning on the answers that FEWL picks (or a baseline, or labels).

Writes train.jsonl, test.jsonl, checkpoints/, model/, answers.jsonl (untuned and tuned, questions kept apart) and
pairs.jsonl for `mitigate judge`. On several GPUs: `accelerate launch --config_file recipes/accelerate/zero2.yaml -m
mitigate.cli run …`.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mitigate.io import Record, UsageError
from mitigate.recipes.config import Recipe
from mitigate.recipes.data import By, Scoring, check_baseline, read_records
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.trainer import (
    CHECKPOINTS,
    Lora,
    Training,
    callbacks,
    check_paths,
    checkpoint_activations,
    lora_config,
    train_on,
    trainer_settings,
    unchecked,
)

MODEL = "model"


class Options(Recipe):
    kind: Literal["sft"]
    model: str = Field(min_length=1, description="folder or hub id of a causal LM")
    data: Path = Field(description="FEWL records with answers and reference_answers, JSON Lines")
    pick: By = Field(default="fewl", description="fewl, baseline, or labels (the ceiling)")
    baseline: str = Field(min_length=1, description="the reference LLM that the baseline scores with")
    scoring: Scoring = Scoring()
    weight_temperature: float | None = Field(
        default=None, gt=0, description="draw rows in proportion to exp(score / it); null: every row once"
    )
    test_share: float = Field(default=0.2, gt=0, lt=1, description="of the questions, kept apart")
    split_seed: int = Field(default=0, ge=0)
    form: Literal["auto", "chat", "plain"] = Field(default="auto", description="auto: chat where there is a template")
    scheduler: Literal["cosine", "linear", "constant"] = "cosine"
    packing: bool = False
    training: Training
    lora: Lora | None = None
    answer_tokens: int = Field(default=128, ge=1)


def check(options: Options) -> None:
    """Files and extras are there."""
    from mitigate.models import check_similarity

    for name in ("trl", "datasets", *(("peft",) if options.lora else ())):
        if find_spec(name) is None:
            raise UsageError(f"sft needs {name}: pip install 'hallucination-toolkit[trl]'")
    check_paths([options.model, str(options.data)], options.training)
    check_similarity(options.scoring.similarity)
    if options.weight_temperature is not None and options.pick == "labels":
        raise UsageError("weight_temperature: labels have no score; expected null with pick: labels")


def run(options: Options, folder: RunFolder) -> int:
    """Pick, train, answer the questions kept apart before and after."""
    from mitigate.sft import pairs

    records, bad = read_records(options.data)
    check_baseline(records, options.baseline)
    train, test = _rows(options, folder, records)
    before, after = _train(options, folder, train, test)
    rows = [
        {"id": r["id"], "question": r["question"], "untuned": b or None, "tuned": a or None}
        for r, b, a in zip(test, before, after, strict=True)
    ]
    folder.write_rows("answers.jsonl", rows)
    judged = pairs(test, before, after)
    folder.write_rows("pairs.jsonl", judged)
    losses = [row["loss"] for row in folder.rows() if "loss" in row]
    figures = {
        "train_rows": len(train), "train_questions": len({row["question"] for row in train}),
        "test_questions": len(test), "rejected_lines": len(bad), "pairs": len(judged),
        "first_loss": losses[0] if losses else None, "last_loss": losses[-1] if losses else None,
    }  # fmt: skip
    folder.finish(figures)
    print(json.dumps(figures))
    print(
        f"model: {folder / MODEL}\njudge with: mitigate judge --input {folder / 'pairs.jsonl'} --output judged.jsonl …"
    )
    for line in bad[:10]:
        print(f"line {line.number}: {'; '.join(map(str, line.problems))} (left out)")
    return 3 if bad else 0


def _rows(options: Options, folder: RunFolder, records: list[Record]) -> tuple[list[Record], list[Record]]:
    """Rows {"id", "question", "answer"} to train on, and the records kept apart; written to the run folder.

    Scores are computed within the training part, so that nothing of the questions kept apart is used.
    """
    from mitigate.models import load_encoder, load_similarity
    from mitigate.recipes.data import picks
    from mitigate.sft import drawn_by_score, is_test

    apart = [is_test(record["question"], options.test_share, options.split_seed) for record in records]
    train = [record for record, out in zip(records, apart, strict=True) if not out]
    test = [record for record, out in zip(records, apart, strict=True) if out]
    if not train or not test:
        raise UsageError(
            f"data: {len(records)} questions leave {len(train)} to train on and {len(test)} apart; give more"
        )
    named, encode = load_encoder(options.scoring.embedding, [record["question"] for record in train])
    _, similarity = load_similarity(options.scoring.similarity, encode)
    chosen = picks(
        train, options.pick, scoring=options.scoring, baseline=options.baseline, similarity=similarity, encode=encode
    )
    rows = [
        {"id": record["id"], "question": record["question"], "answer": record["answers"][i]["text"]}
        for record, i in zip(train, chosen, strict=True)
        if i is not None
    ]
    if not rows:
        raise UsageError(f"pick: no training question has an answer picked by {options.pick}")
    if options.weight_temperature is not None:
        scores = _scores(options, train, chosen, similarity, encode)
        rows = [rows[i] for i in drawn_by_score(scores, options.weight_temperature, options.training.seed)]
    for name, part in (("train.jsonl", rows), ("test.jsonl", test)):
        folder.write_rows(name, part)
    print(f"# {len(rows)} rows picked by {options.pick} ({named}), {len(test)} questions kept apart", flush=True)
    return rows, test


def _scores(options: Options, train: list[Record], chosen: Any, similarity: Any, encode: Any) -> list[float]:
    from fewl.score import score_records

    scored, _ = score_records(train, similarity=similarity, encode=encode, options=options.scoring.options())
    found = [(record["answers"][i]["score"], i) for record, i in zip(scored, chosen, strict=True) if i is not None]
    return [float("-inf") if score is None else float(score) for score, _ in found]


def _train(options: Options, folder: RunFolder, train: list[Record], test: list[Record]) -> tuple[list[str], list[str]]:
    """Fine-tune, write `model/`; answers to the questions kept apart, untuned and tuned."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from mitigate.sft import as_row, generate

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    form: Any = options.form
    if form == "auto":
        form = "chat" if tokenizer.chat_template else "plain"
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype="float32", use_safetensors=True)
    questions = [record["question"] for record in test]
    kept = folder / "untuned.json"  # an interrupted run has asked the untuned model already
    if kept.is_file():
        before = json.loads(kept.read_text(encoding="utf-8"))
    else:
        before = generate(_placed(model), tokenizer, questions, form, max_new_tokens=options.answer_tokens)
        folder.write(kept.name, json.dumps(before))
    if options.training.gradient_checkpointing:
        checkpoint_activations(model)
    settings = trainer_settings(options.training, folder, evaluate=False)
    config = SFTConfig(
        **settings | {"lr_scheduler_type": options.scheduler, "remove_unused_columns": True},
        max_length=options.training.max_tokens,
        packing=options.packing,
        completion_only_loss=True,
        **unchecked(),  # done above where asked for
    )
    trainer = SFTTrainer(
        model=model,
        args=config,
        train_dataset=Dataset.from_list([as_row(row["question"], row["answer"], form) for row in train]),
        processing_class=tokenizer,
        peft_config=None if options.lora is None else lora_config(options.lora, "CAUSAL_LM"),
        callbacks=callbacks(options.training, folder),
    )
    train_on(trainer, folder / CHECKPOINTS)
    tuned = trainer.accelerator.unwrap_model(trainer.model)
    if hasattr(tuned, "merge_and_unload"):
        tuned = tuned.merge_and_unload()
    trainer.accelerator.wait_for_everyone()
    if options.training.deepspeed or options.training.fsdp:
        trainer.save_model(str(folder / MODEL))
    elif trainer.is_world_process_zero():
        tuned.save_pretrained(folder / MODEL)
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(folder / MODEL)
    print(f"# trained; checkpoints in {folder / CHECKPOINTS}; answering {len(questions)} questions", flush=True)
    return before, generate(tuned, tokenizer, questions, form, max_new_tokens=options.answer_tokens)


def _placed(model: Any) -> Any:
    import torch

    return model.to("cuda") if torch.cuda.is_available() else model
