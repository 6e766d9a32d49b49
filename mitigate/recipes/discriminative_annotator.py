"""Kind `discriminative-annotator`: train a causal LM with a head of four classes (docs/annotators.md).

Source: ANAH (ACL 2024), C.2: 2 epochs, batch 8, learning rate 1e-5, AdamW, linear schedule, 16k tokens. The run folder
gets the splits, checkpoints, metrics.jsonl and `annotator/`, which `--annotator` of every command takes.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from mitigate.recipes.annotator_training import ANNOTATOR, Data, check_training, evaluate_splits, load_splits, watched
from mitigate.recipes.config import Recipe
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.trainer import (
    CHECKPOINTS,
    Lora,
    Training,
    callbacks,
    checkpoint_activations,
    lora_config,
    train_on,
    trainer_settings,
)


class DiscriminativeTraining(Training):
    """The paper's settings as defaults."""

    epochs: float = Field(default=2, gt=0)
    batch_size: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0)


class Options(Recipe):
    kind: Literal["discriminative-annotator"]
    base: str = Field(min_length=1, description="folder or hub id of a decoder, or of a token classifier")
    data: Data
    training: DiscriminativeTraining = DiscriminativeTraining()
    lora: Lora | None = None
    balance: Literal["none", "sqrt", "full"] = Field(
        default="sqrt", description="weights of the classes in the loss: 1, 1/√n or 1/n of their sentences"
    )
    focal: float = Field(default=0.0, ge=0, description="γ of the focal loss; 0 is plain cross entropy")


def check(options: Options) -> None:
    """Files and extras are there."""
    check_training(options.base, options.data, options.training, options.lora)


def run(options: Options, folder: RunFolder) -> None:
    """Train, save the annotator, and judge the unseen parts with it."""
    splits = load_splits(options.data, folder)
    languages = sorted({str(row.get("language") or row.get("lang") or "en") for row in splits["train"]})
    if not train(options, folder, splits, languages):
        return  # not the first of several processes: that one judges
    figures = evaluate_splits(folder, {k: v for k, v in splits.items() if k not in ("train", "test")})
    folder.finish(figures)
    print(json.dumps(figures, indent=1))


def train(options: Options, folder: RunFolder, splits: dict[str, list[dict[str, Any]]], languages: list[str]) -> bool:
    """Train and write `annotator/`; returns whether this is the first of the processes that train together."""
    import numpy as np
    import torch
    from transformers import PrinterCallback, Trainer, TrainingArguments

    from annotators.verifier.causal import load_tokenizer, longest, new_head
    from annotators.verifier.causal_training import class_weights, collator, figures, head_loss, training_rows

    training = options.training
    tokenizer = load_tokenizer(options.base)
    model: Any = new_head(options.base, seed=training.seed)
    tokens = longest(model, training.max_tokens)
    to_train, to_watch = watched(splits)
    rows, lost = training_rows(tokenizer, to_train, tokens)
    watched_rows, _ = training_rows(tokenizer, to_watch, tokens)
    print(f"# {len(rows)} training rows of at most {tokens} tokens, {lost} sentences too long", flush=True)
    weights_C = torch.tensor(
        class_weights([t for row in rows for t in row["targets"].values()], options.balance), dtype=torch.float32
    )
    print(f"# weights of the classes: {[round(w, 2) for w in weights_C.tolist()]}", flush=True)
    if training.gradient_checkpointing:
        checkpoint_activations(model)
    if options.lora is not None:
        from peft import get_peft_model

        model = get_peft_model(model, lora_config(options.lora, "TOKEN_CLS", model))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            **trainer_settings(training, folder, evaluate=bool(watched_rows)), label_names=["labels"]
        ),
        train_dataset=rows,
        eval_dataset=watched_rows or None,
        processing_class=tokenizer,
        data_collator=collator(tokenizer),
        compute_loss_func=lambda outputs, labels, num_items_in_batch=None: head_loss(
            outputs.logits, labels, weights_C, options.focal, num_items_in_batch
        ),
        preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1),
        compute_metrics=lambda found: figures(np.asarray(found.predictions), np.asarray(found.label_ids)),
        callbacks=callbacks(training, folder),
    )
    trainer.remove_callback(PrinterCallback)
    train_on(trainer, folder / CHECKPOINTS)
    save(trainer, tokenizer, folder, languages, tokens, sharded=bool(training.deepspeed or training.fsdp))
    trainer.accelerator.wait_for_everyone()
    return bool(trainer.is_world_process_zero())


def save(trainer: Any, tokenizer: Any, folder: RunFolder, languages: list[str], tokens: int, *, sharded: bool) -> None:
    """Write `annotator/`: whole weights, adapters merged; of a sharded run what the trainer gathers, unmerged."""
    from annotators.verifier.causal import CausalAnnotator, write_settings

    target = folder / ANNOTATOR
    if sharded:
        trainer.save_model(str(target))
        if trainer.is_world_process_zero():
            tokenizer.save_pretrained(target)
            write_settings(target, languages, tokens)
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    merged = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
    if trainer.is_world_process_zero():
        CausalAnnotator(merged, tokenizer, languages=languages, max_tokens=tokens).save_pretrained(target)
