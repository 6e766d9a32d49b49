"""Task `generative-annotator`: fine-tune a language model to annotate, in tags or in three turns (docs/annotators.md).

Source: ANAH (ACL 2024), C.1: 1 epoch, batch 2, learning rate 4e-5, AdamW, linear schedule, 16k tokens; each sentence a
sample, other tasks mixed in, prompts in several wordings. The loop is TRL's SFTTrainer with the loss on replies only.
The run folder gets the splits, samples, checkpoints, metrics.jsonl and `annotator/`: use it as
`--annotator generative:transformers:DIR/annotator`, or serve it and name the server, with the options that are printed.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from annotators.generative.prompts import Protocol, names_of
from annotators.generative.samples import dialogue_samples
from mitigate.io import REJECTED, Problem, Record, UsageError, shown
from mitigate.models import ModelName
from mitigate.recipes.annotator_training import ANNOTATOR, Data, Rows, load_splits, watched
from mitigate.recipes.config import Recipe, Section
from mitigate.recipes.data import check_files, read_good
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.options import LmTraining, Lora, check_training
from mitigate.recipes.trainer import fit, load_lm, losses, row_tokens, save_merged, sft_trainer

TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% else %}{{ '\n\n' }}{% endif %}{% endfor %}"
)
"""For a checkpoint without a chat template; saved with the annotator, so that it is asked as it was trained."""
DIALOGUE = "messages, conversations, or instruction and response, where an assistant answers"


class GenerativeTraining(LmTraining):
    epochs: float = Field(default=1, gt=0)
    batch_size: int = Field(default=2, ge=1)
    learning_rate: float = Field(default=4e-5, gt=0)


class Mix(Section):
    """Shares of the tasks; annotation alone is the single-task setting. What there is less of is not repeated."""

    annotation: float = Field(default=1.0, gt=0)
    question_generation: float = Field(default=0.0, ge=0)
    question_selection: float = Field(default=0.0, ge=0)
    answer_generation: float = Field(default=0.0, ge=0)
    dialogue: float = Field(default=0.0, ge=0)


class Settings(Recipe):
    base: ModelName = Field(description="folder, hub id or packaged:NAME of a causal LM")
    data: Data
    training: GenerativeTraining = GenerativeTraining()
    lora: Lora | None = None
    mix: Mix = Mix()
    dialogue: list[Path] = Field(default=[], description="JSON Lines in the form of Dolly, ShareGPT or messages")
    protocol: Protocol = Field(default="tagged", description="tagged, or three-turn (ANAH-v2): a sample for each turn")
    prompts: list[str] = Field(
        default=["plain"], min_length=1, description="wordings; several are drawn from, in both orders"
    )
    window: Literal["sentence", "whole"] = Field(default="sentence", description="what of the reference is shown")
    window_tokens: int | None = Field(default=None, ge=1)

    @field_validator("prompts")
    @classmethod
    def _known(cls, names: list[str], info: ValidationInfo) -> list[str]:
        known = names_of(info.data.get("protocol", "tagged"), "en")
        if unknown := sorted(set(names) - set(known)):
            raise ValueError(f"expected some of {', '.join(known)}, got {', '.join(unknown)}")
        if len(set(names)) == len(known):
            raise ValueError(f"expected at least one wording to be held out for testing, got all {len(known)}")
        return names


class Options(Settings):
    task: Literal["generative-annotator"]


def check(options: Settings) -> None:
    """Refuse missing files and extras, and a mix that does not sum to 1."""
    check_training(options.task, [options.base, *options.data.sources], options.training, options.lora)
    check_files(*options.dialogue, key="dialogue: ")
    if bool(options.mix.dialogue) != bool(options.dialogue):
        raise UsageError("mix.dialogue: expected files under `dialogue` and a share above 0, or neither; got one alone")
    if abs((total := sum(options.mix.model_dump().values())) - 1) > 1e-6:
        raise UsageError(f"mix: expected shares that sum to 1, got {total:g}")


def run(options: Options, folder: RunFolder) -> int:
    """Train; 3 where lines of dialogues were rejected."""
    splits = load_splits(options.data, folder)
    figures = train(options, folder, *watched(splits))
    folder.finish(figures)
    print(json.dumps(figures, indent=1))
    files = " ".join(str(folder / f"{name}.jsonl") for name in splits if name not in ("train", "test"))
    name = f"generative:transformers:{folder / ANNOTATOR}"
    print(f"# judge it: mitigate evaluate --annotator {name} --input {files}")
    print(f"# a server does not know how it was trained; give {as_served(options)}")
    return REJECTED if figures["rejected_dialogues"] else 0


def as_served(options: Settings) -> str:
    """The options that a served annotator must be given, to be asked as it was trained."""
    said = f"--protocol {options.protocol} --prompt {options.prompts[0]} --window {options.window}"
    return said if options.window_tokens is None else f"{said} --window-tokens {options.window_tokens}"


def train(options: Settings, folder: RunFolder, to_train: Rows, to_watch: Rows) -> dict[str, Any]:
    """Train on labelled sentences, going on from the folder's last checkpoint, and save the annotator; its figures."""
    training = options.training
    read = [
        read_good(path, check_dialogue, folder, DIALOGUE, f"dialogue.{place}.rejected.jsonl")
        for place, path in enumerate(options.dialogue)
    ]
    samples = build_samples(options, to_train, [row for rows, _ in read for row in rows])
    model, tokenizer = load_lm(options.base, training)
    if not tokenizer.chat_template:
        tokenizer.chat_template = TEMPLATE
    rows, too_long = in_form(samples, tokenizer, training.max_tokens)
    watched_rows, _ = in_form(build_samples(options, to_watch), tokenizer, training.max_tokens)
    counts = Counter(sample["task"] for sample in samples)
    lost = len(to_train) - len({sample["number"] for sample in samples if "number" in sample})
    print(f"# {len(rows)} of {len(samples)} samples ({dict(counts)})", flush=True)
    print(f"# left out: {sum(too_long.values())} sentences or other tasks that are too long ({dict(too_long)})")
    without = "supported" if options.protocol == "tagged" else "supported or contradictory"
    print(f"# left out: {lost} sentences labelled in two ways only, or {without} without a fragment that shows it")
    if not rows:
        raise UsageError("data: no training sample is left; see what was left out above")
    folder.write_rows("samples.jsonl", samples[:50])
    # Longer samples were left out, not cut: a cut annotation teaches a wrong one.
    trainer = sft_trainer((model, tokenizer), rows, options, folder, watched_rows, max_length=None)
    fit(trainer, folder, training.early_stop)
    target = folder / ANNOTATOR
    save_merged(trainer, tokenizer, target)
    as_trained = options.model_dump(include={"protocol", "prompts", "window", "window_tokens"})
    settings = {"kind": "generative", **as_trained}
    folder.write(f"{ANNOTATOR}/annotator.json", json.dumps(settings, indent=1) + "\n")
    return {
        "samples": len(rows), "too_long": len(samples) - len(rows), "rejected_dialogues": sum(bad for _, bad in read),
        **{f"samples_{task}": n for task, n in sorted(counts.items())},
        **losses(folder),
        "eval_loss": next((row["eval_loss"] for row in reversed(folder.rows()) if "eval_loss" in row), None),
    }  # fmt: skip


def check_dialogue(record: Record) -> list[Problem]:
    return [] if any(dialogue_samples([record])) else [Problem("dialogue", shown(record), DIALOGUE)]


def build_samples(options: Settings, rows: Rows, dialogues: Rows | None = None) -> Rows:
    """Samples of the mix from labelled sentences and dialogues; without ``dialogues`` those of annotation alone."""
    from annotators.generative import samples
    from annotators.generative.protocols import Windows
    from engines.embedding import Embedder

    several, seed = len(options.prompts) > 1, options.training.seed
    windows = Windows(options.window, options.window_tokens, Embedder)
    annotation = list(samples.annotation_samples(rows, options.prompts, windows, seed, options.protocol))
    if dialogues is None:
        return annotation
    topics: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row.get("question"):
            blank = {"reference": row["reference"], "questions": [], "lang": row.get("lang")}
            topics.setdefault(row["reference"], blank)["questions"].append(row["question"])
    found: dict[Any, Any] = {
        "annotation": annotation,
        **samples.question_samples(list(topics.values()), several=several, seed=seed),
        "answer_generation": samples.answer_samples(rows, several=several, seed=seed),
        "dialogue": list(samples.dialogue_samples(dialogues)),
    }
    shares: dict[Any, float] = options.mix.model_dump()
    return samples.mix(found, shares, seed)


def in_form(samples: Rows, tokenizer: Any, max_tokens: int) -> tuple[Rows, Counter[str]]:
    """Rows for SFTTrainer of at most ``max_tokens`` with the chat template, and how many sentences of each label, or
    samples of another task, were left out.

    A sentence whose last turn is too long loses all: its first turns alone would teach that there is no evidence.
    """
    too_long: dict[int | str, str] = {}
    groups = [sample.get("number", f"{sample['task']} {place}") for place, sample in enumerate(samples)]
    for group, sample in zip(groups, samples, strict=True):
        if row_tokens(tokenizer, sample) > max_tokens:
            too_long[group] = sample["label"] if "label" in sample else sample["task"]
    kept = [sample for group, sample in zip(groups, samples, strict=True) if group not in too_long]
    return [{key: sample[key] for key in ("prompt", "completion")} for sample in kept], Counter(too_long.values())
