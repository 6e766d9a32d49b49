"""What the recipes of both trained annotators share: sections of options, data and splits, trainer settings.

Kinds: ``mitigate/kinds/discriminative_annotator.py`` (transformers' Trainer) and ``…/generative_annotator.py`` (TRL's
SFTTrainer). Defaults that are the same for both are here; the paper's hyper-parameters stand with the kinds. Weights
are float32, computed in bfloat16 where a GPU has it. Resumed runs go on from the last checkpoint in the run folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mitigate.config import Section
from mitigate.errors import UsageError
from mitigate.run_folder import RunFolder

ANNOTATOR = "annotator"
"""Where in the run folder the trained annotator goes."""
CHECKPOINTS = "checkpoints"
SPLIT_FILE = "{}.jsonl"


class Data(Section):
    """Annotated data: the public ANAH rows, or files of labelled sentences."""

    sources: list[str] = Field(
        min_length=1, description="hub ids, .parquet, .json or .jsonl files, or folders of these"
    )
    test_share: float = Field(
        default=0.1, gt=0, lt=0.5, description="of the rows in each unseen part of ANAH data"
    )
    split_seed: int = Field(default=0, ge=0)
    languages: list[Literal["en", "zh"]] = Field(default=["en", "zh"], min_length=1)
    limit: int | None = Field(default=None, ge=1, description="most training sentences; null: all")


class Training(Section):
    """Settings of the trainer; batch sizes are for one device."""

    epochs: float = Field(gt=0)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    accumulate: int = Field(default=1, ge=1, description="batches for one optimiser step")
    warmup: float = Field(default=0.0, ge=0, lt=1, description="share of the steps")
    weight_decay: float = Field(default=0.0, ge=0)
    max_steps: int | None = Field(default=None, ge=1, description="instead of epochs")
    max_tokens: int = Field(default=16_384, ge=64, description="longest row")
    gradient_checkpointing: bool = False
    evaluate_every: int = Field(default=100, ge=1, description="steps; checkpoints are written as often")
    keep: int = Field(default=2, ge=1, description="checkpoints that are kept")
    early_stop: int | None = Field(
        default=None, ge=1, description="evaluations without a lower loss; null: never"
    )
    deepspeed: str | None = Field(default=None, description="a DeepSpeed JSON, see recipes/accelerate/")
    fsdp: str | None = Field(default=None, description="as transformers' --fsdp, e.g. 'full_shard auto_wrap'")
    fsdp_config: str | None = Field(default=None, description="a JSON beside fsdp")
    seed: int = Field(default=0, ge=0)


class Lora(Section):
    """Low-rank adapters instead of all weights."""

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.05, ge=0, lt=1)


def check_training(base: str, data: Data, training: Training, lora: Lora | None) -> None:
    """What types can't say; loads nothing.

    Raises:
        UsageError: A file is not there or an extra is not installed.
    """
    for name, extra in (("trl", "trl"), ("datasets", "trl"), *((("peft", "trl"),) if lora else ())):
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"training needs {name}: pip install 'hallucination-toolkit[{extra}]'")
    check_paths([base, *data.sources], training)


def check_paths(sources: Sequence[str], training: Training) -> None:
    """Refuse local paths and trainer files that are not there; hub ids pass.

    Raises:
        UsageError: A file is not there or an extra is not installed.
    """
    for source in sources:
        path = Path(source).expanduser()
        looks_local = source.startswith((".", "/", "~")) or path.suffix in {".parquet", ".json", ".jsonl"}
        if looks_local and not path.exists():
            raise UsageError(f"{source}: no such file or folder")
    for key in ("deepspeed", "fsdp_config"):
        path = getattr(training, key)
        if path is not None and not Path(path).is_file():
            raise UsageError(f"training.{key}: expected a JSON file, there is none at {path}")
    if training.deepspeed is not None and importlib.util.find_spec("deepspeed") is None:
        raise UsageError("training.deepspeed needs DeepSpeed: DS_BUILD_OPS=0 pip install deepspeed")
    if training.fsdp_config is not None and training.fsdp is None:
        raise UsageError("training.fsdp_config: expected training.fsdp beside it, got none")


def load_splits(data: Data, folder: RunFolder) -> dict[str, list[dict[str, Any]]]:
    """Rows of each split, written to the run folder as `train.jsonl`, `unseen_topic.jsonl`, ….

    ANAH rows are flattened and split by topic and question; labelled sentences by their folds: 2 to 4 train, 1 is
    `dev`, 0 is `test`, which is written and not looked at. Prints what was read and left out.

    Raises:
        UsageError: The data can't be read, or nothing is left to train on.
    """
    from annotators.anah_data import flatten, is_anah, load_rows

    try:
        found = load_rows(data.sources)
    except (OSError, ImportError, ValueError) as error:
        raise UsageError(f"data.sources: {error}") from error
    if found and is_anah(found[0]):
        rows, report = flatten(found)
        print(f"# data: {report}")
        splits = _anah_splits(rows, data)
    else:
        splits = _fold_splits(found)
    for name, part in splits.items():
        part = [row for row in part if (row.get("language") or row.get("lang") or "en") in data.languages]
        splits[name] = part[: data.limit] if name == "train" else part
        text = "".join(json.dumps({**row, "split": name}, ensure_ascii=False) + "\n" for row in splits[name])
        folder.write(SPLIT_FILE.format(name), text)
        labels = ", ".join(
            f"{label} {n}" for label, n in sorted(Counter(r["label"] for r in splits[name]).items())
        )
        print(f"# {name}: {len(splits[name])} sentences ({labels})", flush=True)
    if not splits["train"]:
        raise UsageError("data: nothing to train on is left; see what was left out above")
    return splits


def _anah_splits(rows: Sequence[dict[str, Any]], data: Data) -> dict[str, list[dict[str, Any]]]:
    from annotators.anah_splits import SPLITS, leaks, split_rows

    try:
        assigned, dropped = split_rows(rows, share=data.test_share, seed=data.split_seed)
    except ValueError as error:
        raise UsageError(f"data: {error}") from error
    gone = set(dropped)
    kept = [n for n in range(len(rows)) if n not in gone]
    if found := leaks([rows[n] for n in kept], [assigned[n] for n in kept]):
        raise UsageError(f"data: the splits leak: {'; '.join(found)}")
    if dropped:
        print(f"# data: {len(dropped)} test sentences left out, since their answer is also in train")
    return {split: [rows[n] for n in kept if assigned[n] == split] for split in SPLITS}


def _fold_splits(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    from annotators.splits import FOLD_NAMES, assign_folds
    from mitigate.labelled import check_labelled

    good = [row for row in rows if not check_labelled(row)]
    if len(good) < len(rows):
        print(
            f"# data: {len(rows) - len(good)} of {len(rows)} rows are no labelled sentences and were left out"
        )
    folds = assign_folds(good)
    return {
        name: [row for row, fold in zip(good, folds, strict=True) if fold in numbers]
        for name, numbers in (
            ("train", FOLD_NAMES["train"]),
            ("dev", FOLD_NAMES["dev"]),
            ("test", FOLD_NAMES["test"]),
        )
    }


def watched(
    splits: Mapping[str, Sequence[dict[str, Any]]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows to train on and rows whose loss is watched meanwhile: fold 1, or a tenth of the training topics of ANAH.

    The unseen parts of ANAH data are for the end only.
    """
    train = list(splits["train"])
    if "dev" in splits:
        return train, list(splits["dev"])
    apart = [int(hashlib.sha256(str(row["topic"]).encode()).hexdigest(), 16) % 10 == 0 for row in train]
    return (
        [row for row, out in zip(train, apart, strict=True) if not out],
        [row for row, out in zip(train, apart, strict=True) if out],
    )


def trainer_settings(training: Training, folder: RunFolder, *, evaluate: bool) -> dict[str, Any]:
    """Keyword arguments for ``TrainingArguments`` and its subclasses."""
    import torch

    cuda = torch.cuda.is_available()
    settings: dict[str, Any] = {
        "output_dir": str(folder / CHECKPOINTS),
        "num_train_epochs": training.epochs,
        "max_steps": training.max_steps or -1,
        "per_device_train_batch_size": training.batch_size,
        "per_device_eval_batch_size": training.batch_size,
        "gradient_accumulation_steps": training.accumulate,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": training.warmup,  # below 1: a share of the steps
        "weight_decay": training.weight_decay,
        "optim": "adamw_torch",
        "bf16": cuda and torch.cuda.is_bf16_supported(),
        "use_cpu": not cuda,
        "save_steps": training.evaluate_every,
        "save_total_limit": training.keep,
        "logging_steps": max(1, min(10, training.evaluate_every)),
        "report_to": [],
        "disable_tqdm": True,
        "seed": training.seed,
        "data_seed": training.seed,
        "remove_unused_columns": False,
        "dataloader_pin_memory": cuda,
    }
    if evaluate:
        settings |= {"eval_strategy": "steps", "eval_steps": training.evaluate_every}
        if training.early_stop is not None:
            settings |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    for key in ("deepspeed", "fsdp", "fsdp_config"):
        if getattr(training, key) is not None:
            settings[key] = getattr(training, key)
    return settings


def callbacks(training: Training, folder: RunFolder) -> list[Any]:
    """Trainer callbacks: figures into metrics.jsonl, a progress line, early stop."""
    from transformers import EarlyStoppingCallback, TrainerCallback

    class Log(TrainerCallback):
        """Every log of the trainer as a line of metrics.jsonl; a resumed run writes no step twice."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                folder.cut(state.global_step)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if state.is_world_process_zero:
                found = {k: v for k, v in (logs or {}).items() if isinstance(v, int | float)}
                folder.log(state.global_step, **found)
                shown = " ".join(
                    f"{k}={v:.4g}" for k, v in found.items() if k in ("loss", "eval_loss", "eval_macro_f1")
                )
                if shown:
                    print(f"step {state.global_step} of {state.max_steps}: {shown}", flush=True)

    stop = [] if training.early_stop is None else [EarlyStoppingCallback(training.early_stop)]
    return [Log(), *stop]


def checkpoint_activations(model: Any) -> None:
    """Compute activations again in the backward pass instead of keeping them; transformers renames this in v6."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def unchecked() -> dict[str, Any]:
    """TRL checkpoints activations by default: the argument of SFTConfig that leaves it to us, by its newer name."""
    from trl import SFTConfig

    names = SFTConfig.__dataclass_fields__
    return {
        "activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing": False
    }


def last_checkpoint(folder: RunFolder) -> str | None:
    """The newest whole checkpoint of an interrupted run, None where there is none."""
    found = sorted(
        (
            path
            for path in (folder / CHECKPOINTS).glob("checkpoint-*")
            if (path / "trainer_state.json").is_file()
        ),
        key=lambda path: int(path.name.rpartition("-")[2]),
    )
    return str(found[-1]) if found else None


def lora_config(lora: Lora, model: Any, task: Literal["TOKEN_CLS", "CAUSAL_LM"]) -> Any:
    """A peft config over every linear layer but the head (peft's "all-linear" does not work for TOKEN_CLS)."""
    from peft import LoraConfig

    names = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if type(module).__name__ in ("Linear", "Conv1D")
    } - {"score", "classifier", "lm_head"}
    return LoraConfig(
        task_type=task,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=sorted(names),
    )


def evaluate_splits(folder: RunFolder, splits: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Judge each split with the trained annotator: accuracy, F1 and two-way figures of each.

    All figures are what `mitigate evaluate annotator` gives for the files of the splits.
    """
    from annotators import load_annotator
    from annotators.evaluation import evaluate, labelled, predict
    from annotators.splits import group_rows

    annotator = load_annotator(str(folder / ANNOTATOR))
    out: dict[str, Any] = {}
    for name, part in splits.items():
        if not part:
            continue
        rows = labelled(part, [name] * len(part), group_rows(part))
        found = evaluate(rows, predict(annotator, rows), n_resamples=200)["overall"]
        keys = ("n", "coverage", "accuracy", "macro_f1", "balanced_accuracy_4way", "balanced_accuracy", "auc")
        out[name] = {key: found[key] for key in keys} | {"intervals": found["intervals"]}
    return out
