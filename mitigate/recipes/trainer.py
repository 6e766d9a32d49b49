"""Ctrl-C while training: the step under way is finished and kept, a second one stops at once."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from pydantic import Field

from mitigate.io import UsageError
from mitigate.recipes.config import Section
from mitigate.recipes.folder import RunFolder

# ----------------------------------------------------------------------------------------------------
# What kinds that train with transformers or TRL share: the section `training`, LoRA, trainer arguments, checkpoints.
#
# Weights are float32, computed in bfloat16 where a GPU has it. Leaves out data (`mitigate/recipes/annotator_training.py`,
# `mitigate/recipes/sft.py`) and what RL needs more (`mitigate/recipes/runner.py`).

CHECKPOINTS = "checkpoints"


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
    early_stop: int | None = Field(default=None, ge=1, description="evaluations without a lower loss; null: never")
    deepspeed: str | None = Field(default=None, description="a DeepSpeed JSON, see recipes/accelerate/")
    fsdp: str | None = Field(default=None, description="as transformers' --fsdp, e.g. 'full_shard auto_wrap'")
    fsdp_config: str | None = Field(default=None, description="a JSON beside fsdp")
    seed: int = Field(default=0, ge=0)


class Lora(Section):
    """Low-rank adapters in place of training all weights."""

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: str | list[str] = Field(default="all-linear", description="modules, or all-linear")


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
    return {"activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing": False}


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder, None without one; a trainer writes trainer_state.json last."""
    found = []
    for state in folder.glob("checkpoint-*/trainer_state.json"):
        try:
            found.append((int(json.loads(state.read_text(encoding="utf-8"))["global_step"]), state.parent))
        except (ValueError, KeyError):  # cut while it was written
            continue
    return max(found)[1] if found else None


def train_on(trainer: Any, checkpoints: Path) -> None:
    """Train, going on from the last checkpoint where there is one."""
    found = last_checkpoint(checkpoints)
    trainer.train(resume_from_checkpoint=str(found) if found else None)


def lora_config(lora: Lora, task: Literal["TOKEN_CLS", "CAUSAL_LM"], model: Any = None) -> Any:
    """A peft config; peft's "all-linear" needs the model for TOKEN_CLS, where it would take the head for a layer."""
    from peft import LoraConfig

    targets: Any = lora.targets
    if task == "TOKEN_CLS" and targets == "all-linear":
        names = {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if type(module).__name__ in ("Linear", "Conv1D")
        }
        targets = sorted(names - {"score", "classifier", "lm_head"})
    return LoraConfig(
        task_type=task, r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets
    )


class Interrupt:
    """Whether the user asked to stop."""

    asked = False


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Turns the first Ctrl-C of the block into ``interrupt.asked``; the second raises KeyboardInterrupt."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield interrupt
        return

    def note(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True
        print("stopping after this step; Ctrl-C again to stop at once", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
