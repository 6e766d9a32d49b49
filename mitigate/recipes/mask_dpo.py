"""Kind `mask-dpo`: sampled answers, judged, paired best against worst, and DPO on the sentences that differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from mitigate.io import UsageError
from mitigate.recipes.config import Section
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.options import Base, check_base

if TYPE_CHECKING:
    from mitigate.recipes.data import Questions
    from mitigate.recipes.runner import Log


SAMPLED, PAIRS = "sampled.jsonl", "pairs.jsonl"
CHUNK = 32  # questions sampled and judged between two writes


class Sampling(Section):
    """The answers that pairs are made of."""

    per_question: int = Field(default=8, ge=2)
    temperature: float = Field(default=1.0, gt=0, le=2)
    max_new_tokens: int = Field(default=512, ge=1)
    min_gap: float = Field(default=0.0, ge=0, le=1, description="smallest difference of the two rates of a pair")


class Trainer(Section):
    """DPO. ``masked`` false is plain DPO with the same losses."""

    masked: bool = True
    epochs: float = Field(default=1.0, gt=0)
    batch: int = Field(default=16, ge=1, description="pairs a step, on all devices")
    per_device_batch: int | None = Field(default=None, ge=1, description="pairs at once; null: all of a step")
    learning_rate: float = Field(default=1e-6, gt=0)
    schedule: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant_with_warmup"
    warmup_steps: int = Field(default=0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    beta: float = Field(default=0.1, gt=0)
    max_length: int | None = Field(default=None, ge=16, description="tokens of prompt and answer; null: all")
    gradient_checkpointing: bool = False
    save_every: int = Field(default=50, ge=1, description="steps between checkpoints")


class Options(Base):
    kind: Literal["mask-dpo"]
    sampling: Sampling = Sampling()
    trainer: Trainer = Trainer()


def check(options: Options) -> None:
    """Refuse what can't work; loads no model.

    Raises:
        UsageError: See ``check_base``; also a batch that does not divide.
    """
    check_base(options)
    processes = options.launch.processes if options.launch else 1
    if options.trainer.batch % ((options.trainer.per_device_batch or 1) * processes):
        raise UsageError(
            f"trainer.batch: expected a multiple of per_device_batch × processes = "
            f"{options.trainer.per_device_batch or 1} × {processes}, got {options.trainer.batch}"
        )


def run(options: Options, folder: RunFolder) -> int:
    """Sample, pair and train, with answers before and after; 3 where input lines were rejected."""
    from mitigate.recipes.runner import run_recipe

    return run_recipe(options, folder, train, prepare)


def show(folder: RunFolder) -> None:
    """Print the table of a complete run again."""
    from mitigate.recipes.runner import show as print_run

    print_run(folder)


def prepare(options: Options, questions: Questions, model: str, folder: RunFolder) -> None:
    """Write the folder's pairs.jsonl from answers of the starting model; goes on where it stopped.

    Raises:
        UsageError: No two answers to one question differ in their hallucination rates.
    """
    if (folder / PAIRS).is_file():
        return
    from mitigate.recipes.results import ask
    from mitigate.rl.preferences import build_pairs

    how, judge = options.sampling, options.load_annotator(options.reward.annotator)
    done = folder.rows(SAMPLED)
    rest = questions.train[done[-1]["place"] + 1 if done else 0 :]
    first = len(questions.train) - len(rest)
    asked = ask(
        model, rest, options, n=how.per_question, seed=options.seed + 1,
        temperature=how.temperature, max_tokens=how.max_new_tokens, chunk=CHUNK,
    )  # fmt: skip
    for start, chunk in asked:
        records = [
            {**{k: v for k, v in row.items() if k != "prompt"}, "place": first + start + i, "answer": text}
            for i, (row, texts) in enumerate(chunk)
            for text in texts
        ]
        folder.append(SAMPLED, (one.to_dict() for one in judge.annotate_batch(records)))
    pairs = build_pairs(folder.rows(SAMPLED), min_gap=how.min_gap)
    if not pairs:
        raise UsageError("no pairs: no two answers to one question differ in their hallucination rates")
    chats = {(row["question"], row["reference"]): row["prompt"] for row in questions.train}
    for pair in pairs:  # the prompt as it was asked
        pair["prompt"] = chats[pair["prompt"][-1]["content"], pair["reference"]]
    folder.append(PAIRS + ".part", pairs)
    (folder / (PAIRS + ".part")).rename(folder / PAIRS)


def train(options: Options, questions: Questions, model: str, folder: Path, log: Log) -> None:
    """DPO from ``model`` to ``folder``/model on pairs.jsonl, going on from ``folder``/checkpoints."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    from mitigate.recipes.folder import read_rows
    from mitigate.recipes.runner import adapters, common_arguments, fit, load_options
    from mitigate.rl.dpo import MASK_DPO, MaskDPOCollator

    tokenizer: Any = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    chosen = options.trainer
    processes = options.launch.processes if options.launch else 1
    batch = chosen.per_device_batch or chosen.batch // processes
    args = DPOConfig(
        **{**common_arguments(options, chosen, folder), **MASK_DPO},
        model_init_kwargs=load_options(options),
        num_train_epochs=chosen.epochs,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=chosen.batch // (batch * processes),
        max_length=chosen.max_length,
    )
    collator = MaskDPOCollator(tokenizer, max_length=chosen.max_length) if chosen.masked else None
    trainer = DPOTrainer(
        model,
        args=args,
        train_dataset=Dataset.from_list(list(read_rows(folder / PAIRS))),
        processing_class=tokenizer,
        data_collator=collator,
        peft_config=adapters(options),
    )
    fit(trainer, folder, log)
