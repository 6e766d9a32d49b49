"""Task `discriminative-annotator`: train a causal LM with a head of four classes (docs/annotators.md).

Source: ANAH (ACL 2024), C.2: 2 epochs, batch 8, learning rate 1e-5, AdamW, linear schedule, 16k tokens. The run folder
gets the splits, checkpoints, metrics.jsonl and `annotator/`, which `--annotator` of every command takes.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from annotators.text.language import stated
from mitigate.models import ModelName
from mitigate.recipes import annotator_training as shared
from mitigate.recipes.config import Recipe
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.options import Lora, Training, check_training
from mitigate.recipes.trainer import fit, lora_config, save_merged, training_arguments


class DiscriminativeTraining(Training):
    epochs: float = Field(default=2, gt=0)
    batch_size: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0)


class Options(Recipe):
    task: Literal["discriminative-annotator"]
    base: ModelName = Field(description="folder, hub id or packaged:NAME of a decoder, or of a token classifier")
    data: shared.Data
    training: DiscriminativeTraining = DiscriminativeTraining()
    lora: Lora | None = None
    balance: Literal["none", "sqrt", "full"] = "sqrt"  # classes weigh 1, 1/√n or 1/n of their sentences in the loss
    focal: float = Field(default=0.0, ge=0, description="γ of the focal loss; 0 is plain cross entropy")


def check(options: Options) -> None:
    check_training(options.task, [options.base, *options.data.sources], options.training, options.lora)


def run(options: Options, folder: RunFolder) -> None:
    splits = shared.load_splits(options.data, folder)
    if not train(options, folder, splits, sorted({stated(row) or "en" for row in splits["train"]})):
        return  # not the first of several processes: that one judges
    figures = shared.evaluate_splits(folder, {k: v for k, v in splits.items() if k not in ("train", "test")})
    folder.finish(figures)
    print(json.dumps(figures, indent=1))


def train(options: Options, folder: RunFolder, splits: dict[str, shared.Rows], languages: list[str]) -> bool:
    """Train and write `annotator/`; returns whether this is the first of the processes that train together."""
    import numpy as np
    import torch
    from transformers import Trainer, TrainingArguments

    from annotators.verifier import causal

    training = options.training
    tokenizer = causal.load_tokenizer(options.base)
    model: Any = causal.new_head(options.base, seed=training.seed)
    tokens = causal.longest(model, training.max_tokens)
    to_train, to_watch = shared.watched(splits)
    rows, lost = causal.training_rows(tokenizer, to_train, tokens)
    watched_rows, _ = causal.training_rows(tokenizer, to_watch, tokens)
    print(f"# {len(rows)} training rows of at most {tokens} tokens, {lost} sentences too long", flush=True)
    weights = causal.class_weights([t for row in rows for t in row["targets"].values()], options.balance)
    weights_C = torch.tensor(weights, dtype=torch.float32)
    print(f"# weights of the classes: {[round(w, 2) for w in weights_C.tolist()]}", flush=True)
    if options.lora is not None:
        from peft import get_peft_model

        model = get_peft_model(model, lora_config(options.lora, "TOKEN_CLS"))
    arguments = training_arguments(training, folder, evaluate=bool(watched_rows))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(**arguments, label_names=["labels"]),
        train_dataset=rows,
        eval_dataset=watched_rows or None,
        processing_class=tokenizer,
        data_collator=causal.collator(tokenizer),
        compute_loss_func=lambda outputs, labels, num_items_in_batch=None: causal.head_loss(
            outputs.logits, labels, weights_C, options.focal, num_items_in_batch
        ),
        preprocess_logits_for_metrics=lambda logits, _: logits.argmax(-1),
        compute_metrics=lambda found: causal.figures(np.asarray(found.predictions), np.asarray(found.label_ids)),
    )
    fit(trainer, folder, training.early_stop)
    save_merged(trainer, tokenizer, folder / shared.ANNOTATOR)
    if folder.writes:
        causal.write_settings(folder / shared.ANNOTATOR, languages, tokens)
    return folder.writes
