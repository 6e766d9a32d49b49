"""What GRPO and DPO runs have in common on TRL: arguments, metrics to the run folder, checkpoints, interruption.

Leaves out what the trainers do; see ``mitigate/kinds/rlhf.py`` and ``mask_dpo.py`` for their options.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from mitigate.progress import Tell, progress
from mitigate.runs.interrupt import Interrupt, interruptible
from mitigate.runs.options import Base
from mitigate.trainer import CHECKPOINTS, lora_config, train_on

Log = Callable[..., None]  # RunFolder.log
MODEL = "model"


def common_arguments(options: Base, trainer: Any, folder: Path) -> dict[str, Any]:
    """Arguments of GRPOConfig and DPOConfig alike."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(folder / CHECKPOINTS),
        "seed": options.seed,
        "use_cpu": not cuda,
        "bf16": cuda and options.dtype != "float32",
        "gradient_checkpointing": trainer.gradient_checkpointing,
        "learning_rate": trainer.learning_rate,
        "lr_scheduler_type": trainer.schedule,
        "warmup_steps": trainer.warmup_steps,
        "max_grad_norm": trainer.max_grad_norm,
        "beta": trainer.beta,
        "save_strategy": "steps",
        "save_steps": trainer.save_every,
        "save_total_limit": 2,
        "logging_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": cuda,
        "remove_unused_columns": False,
    }


def load_options(options: Base) -> dict[str, Any]:
    """How a model is loaded: safetensors only, no code of its own."""
    import torch

    wanted = {"auto": torch.cuda.is_available(), "bfloat16": True, "float32": False}[options.dtype]
    return {"dtype": "bfloat16" if wanted else "float32", "trust_remote_code": False, "use_safetensors": True}


def adapters(options: Base) -> Any:
    """The LoRA configuration for TRL, None where all weights are trained."""
    return None if options.lora is None else lora_config(options.lora, "CAUSAL_LM")


def step_of(checkpoint: Path | None) -> int:
    """The step that a checkpoint was written after, 0 without one."""
    return int(checkpoint.name.removeprefix("checkpoint-")) if checkpoint else 0


def fit(trainer: Any, folder: Path, log: Log) -> None:
    """Train from the last checkpoint, if any, and save the model in ``folder``/model.

    Raises:
        KeyboardInterrupt: The user asked to stop; a checkpoint of the last step is there.
    """
    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    with interruptible() as interrupt:
        watch = Watch(log, interrupt)
        trainer.add_callback(watch)
        try:
            train_on(trainer, folder / CHECKPOINTS)
        finally:
            watch.close()
        if interrupt.asked:
            raise KeyboardInterrupt
    part = folder / f"{MODEL}.part"
    trainer.save_model(str(part))  # on every rank: the parts of divided weights are gathered
    if trainer.is_world_process_zero():
        shutil.rmtree(folder / MODEL, ignore_errors=True)
        part.rename(folder / MODEL)


class Watch(TrainerCallback):
    """Writes what the trainer logs to the run folder, shows progress, and stops after a step when asked to."""

    def __init__(self, log: Log, interrupt: Interrupt) -> None:
        self._log, self._interrupt = log, interrupt
        self._bar: Any = None
        self._tell: Tell | None = None
        self._spent = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._spent = time.process_time()
            self._bar = progress("training", state.max_steps, state.global_step)
            self._tell = self._bar.__enter__()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        if not state.is_world_process_zero or not logs or "train_runtime" in logs:
            return
        numbers = {name: value for name, value in logs.items() if isinstance(value, int | float)}
        spent, self._spent = self._spent, time.process_time()
        self._log(state.global_step, **numbers, cpu_seconds=self._spent - spent)
        if self._tell is not None:
            shown = "reward" if "reward" in numbers else "loss"
            self._tell(state.global_step, f"{shown} {numbers.get(shown, float('nan')):.3f}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._interrupt.asked:
            control.should_save = control.should_training_stop = True

    def close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
