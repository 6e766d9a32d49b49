"""What all training shares: arguments of transformers and TRL, the loop with its checkpoints, the saved model.

SFT and the annotators compute in bfloat16 where the GPU or CPU has it, with float32 weights unless their `dtype` says
otherwise; GRPO and DPO choose by `dtype`. A run that was stopped goes on from its last whole checkpoint. Leaves out
options (mitigate/recipes/options.py), data, losses and rewards.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal

from engines.checkpoint import locate, own_code
from engines.embedding import cpu_has_bfloat16
from mitigate.io import progress, usage
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.options import Base, LmTraining, Lora, Training

CHECKPOINTS = "checkpoints"
MODEL = "model"
Rows = Sequence[dict[str, Any]]


def _common(folder: Path) -> dict[str, Any]:
    """Arguments of every trainer: it prints and reports nothing itself, and sees all columns of its rows."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "output_dir": str(folder / CHECKPOINTS), "use_cpu": not cuda, "dataloader_pin_memory": cuda,
        "remove_unused_columns": False, "report_to": "none", "disable_tqdm": True,
    }  # fmt: skip


def training_arguments(training: Training, folder: RunFolder, *, evaluate: bool) -> dict[str, Any]:
    import torch
    from transformers import TrainingArguments

    renamed = "activation_checkpointing" in TrainingArguments.__dataclass_fields__  # in newer releases
    settings = _common(folder.path) | {
        "activation_checkpointing" if renamed else "gradient_checkpointing": training.gradient_checkpointing,
        "num_train_epochs": training.epochs,
        "max_steps": training.max_steps or -1,
        "per_device_train_batch_size": training.batch_size,
        "per_device_eval_batch_size": training.batch_size,
        "gradient_accumulation_steps": training.accumulate,
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": training.warmup,  # below 1: a share of the steps
        "optim": training.optim,
        "bf16": torch.cuda.is_bf16_supported() if torch.cuda.is_available() else cpu_has_bfloat16(),
        "save_steps": training.evaluate_every,
        "save_total_limit": training.keep,
        "logging_steps": max(1, min(10, training.evaluate_every)),
        "seed": training.seed,
        "data_seed": training.seed,
    }
    if evaluate:
        settings |= {"eval_strategy": "steps", "eval_steps": training.evaluate_every}
        if training.early_stop is not None:
            settings |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    sharding = {key: getattr(training, key) for key in ("deepspeed", "fsdp", "fsdp_config")}
    return settings | {key: value for key, value in sharding.items() if value is not None}


def rl_arguments(options: Base, trainer: Any, folder: Path) -> dict[str, Any]:
    """Keyword arguments for ``GRPOConfig`` and ``DPOConfig`` alike; weights from safetensors only, no remote code."""
    import torch

    cuda = torch.cuda.is_available()
    # An update at the learning rates of RL is too small for a bfloat16 weight: most would never move. Full weights are
    # float32, computed in bfloat16; only those that LoRA leaves alone are bfloat16.
    bfloat16 = options.lora is not None and (options.dtype == "bfloat16" or (options.dtype == "auto" and cuda))
    return _common(folder) | {
        "model_init_kwargs": {
            "dtype": "bfloat16" if bfloat16 else "float32", "trust_remote_code": False, "use_safetensors": True,
        },
        "seed": options.seed,
        "bf16": cuda and options.dtype != "float32",
        "gradient_checkpointing": trainer.gradient_checkpointing,
        "learning_rate": trainer.learning_rate,
        "lr_scheduler_type": trainer.schedule,
        "warmup_steps": trainer.warmup_steps,
        "beta": trainer.beta,
        "save_steps": trainer.save_every,
        "save_total_limit": 2,
        "logging_steps": 1,
    }  # fmt: skip


def lora_config(lora: Lora | None, task: Literal["TOKEN_CLS", "CAUSAL_LM"] = "CAUSAL_LM") -> Any:
    """A peft config, None without LoRA."""
    if lora is None:
        return None
    from peft import LoraConfig

    # peft would take the new head of TOKEN_CLS, all of which is trained, for one more layer.
    head = ["score", "classifier"] if task == "TOKEN_CLS" and lora.targets == "all-linear" else None
    return LoraConfig(
        task_type=task, r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=lora.targets,
        exclude_modules=head,
    )  # fmt: skip


def starting_point(name: str, lora: Lora | None, args: Any) -> dict[str, Any]:
    """What TRL's trainers take as ``model``, ``args`` and ``peft_config`` to train the model ``name``.

    A folder with an adapter alone, as an earlier run left it, is loaded on its base and trained further, and KL is
    measured from where it stood; ``lora`` is for models that have none yet. UsageError where it can't be loaded.
    """
    where = locate(name)
    if not (Path(where) / "adapter_config.json").is_file():
        return {"model": where, "args": args, "peft_config": lora_config(lora)}
    from peft import AutoPeftModelForCausalLM
    from safetensors import SafetensorError

    safe = ("use_safetensors", "trust_remote_code")
    loading = {key: value for key, value in args.model_init_kwargs.items() if key not in safe}
    args.model_init_kwargs = None  # TRL would say that it leaves them out
    # peft's errors for a configuration of an unknown kind, and for weights that do not fit it
    with usage(f"model {name}: ", (OSError, ValueError, KeyError, RuntimeError, SafetensorError)):
        model = AutoPeftModelForCausalLM.from_pretrained(
            where, is_trainable=True, use_safetensors=True, trust_remote_code=False, **loading
        )
    return {"model": model, "args": args, "peft_config": None}


def load_lm(name: str, training: LmTraining) -> tuple[Any, Any]:
    """A causal LM and its tokenizer, which gets a padding token where it has none; UsageError where it can't be loaded:
    there is no such model, it has no safetensors weights, or it needs its own code.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    code: Any = {"trust_remote_code": training.trust_remote_code}
    with usage(f"model {name}: ", (ImportError, OSError, ValueError)):
        where = locate(name)
        with own_code(name):
            tokenizer = AutoTokenizer.from_pretrained(where, **code)
            model = AutoModelForCausalLM.from_pretrained(where, dtype=training.dtype, use_safetensors=True, **code)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def row_tokens(tokenizer: Any, row: Mapping[str, Any]) -> int:
    """How many tokens a row of ``sft_trainer`` is trained as."""
    if isinstance(row["prompt"], str):
        return len(tokenizer(row["prompt"] + row["completion"], verbose=False)["input_ids"]) + 1  # its end
    text = tokenizer.apply_chat_template([*row["prompt"], *row["completion"]], tokenize=False)
    return len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def sft_trainer(
    lm: tuple[Any, Any], rows: Rows, options: Any, folder: RunFolder, watched: Rows = (), **more: Any
) -> Any:
    """TRL's SFTTrainer on rows {"prompt", "completion"}, with the loss on completions only.

    ``options`` is a recipe with `training` and `lora`. The loss of the ``watched`` rows is evaluated meanwhile.
    ``more`` are further arguments of ``SFTConfig``.
    """
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer = lm
    settings = training_arguments(options.training, folder, evaluate=bool(watched))
    settings |= {"remove_unused_columns": True, "completion_only_loss": True}
    return SFTTrainer(
        model=model,
        args=SFTConfig(**settings | more),
        train_dataset=Dataset.from_list(list(rows)),
        eval_dataset=Dataset.from_list(list(watched)) if watched else None,
        processing_class=tokenizer,
        peft_config=lora_config(options.lora),
    )


# ----------------------------------------------------------------------------------------------------
# The loop, and what is left of it.


def give_back() -> None:
    """Free what trainers that nobody needs any more hold: they are in cycles, and cuda keeps what it had."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def last_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder, None without one; a trainer writes trainer_state.json last."""
    found = []
    for state in folder.glob("checkpoint-*/trainer_state.json"):
        with suppress(ValueError, KeyError):  # cut off while it was written
            found.append((int(json.loads(state.read_text(encoding="utf-8"))["global_step"]), state.parent))
    return max(found)[1] if found else None


def fit(trainer: Any, folder: RunFolder, early_stop: int | None = None) -> None:
    """Train from the last checkpoint, if any; figures go to metrics.jsonl, progress is shown.

    ``early_stop`` evaluations without a lower loss end the training; None: never.
    """
    from transformers import EarlyStoppingCallback, PrinterCallback, ProgressCallback

    for printing in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(printing)
    if early_stop is not None and trainer.args.eval_strategy != "no":  # nothing may be left to watch
        trainer.add_callback(EarlyStoppingCallback(early_stop))
    found = last_checkpoint(folder / CHECKPOINTS)
    with ExitStack() as stack:
        trainer.add_callback(_watch(folder, stack))
        stack.enter_context(scoring_replies_alone())
        trainer.train(resume_from_checkpoint=str(found) if found else None)


@contextmanager
def scoring_replies_alone() -> Iterator[None]:
    """TRL's language-model heads score no token of a prompt on a CPU either.

    Elsewhere than on Triton's devices TRL scores prompts too and then leaves them out, since compilers such as Neuron's
    begin anew for each number of tokens. That took two fifths of SmolLM2's time with prompts nine times as long as the
    replies. oneDNN also makes a kernel for each new number, in bfloat16 with some 2 MiB, but in half a millisecond.
    """
    utils: Any = sys.modules.get("trl.trainer.utils")
    original = getattr(utils, "_use_triton", None)
    if original is None:  # no trainer of TRL, or a TRL that decides elsewhere
        yield
        return
    utils._use_triton = lambda device: device.type == "cpu" or original(device)
    try:
        yield
    finally:
        utils._use_triton = original


def _watch(folder: RunFolder, stack: ExitStack) -> Any:
    """A callback that writes what the trainer logs to the run folder, and shows progress until the stack closes."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                folder.cut(state.global_step)  # a run resumed from a checkpoint writes no step twice
                self.spent = time.process_time()
                self.tell = stack.enter_context(progress("training", state.max_steps, state.global_step))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if not state.is_world_process_zero or not logs or "train_runtime" in logs:
                return
            numbers = {name: value for name, value in logs.items() if isinstance(value, int | float)}
            before, self.spent = self.spent, time.process_time()
            folder.log(state.global_step, **numbers, cpu_seconds=self.spent - before)
            shown = [name for name in ("reward", "loss", "eval_loss", "eval_macro_f1") if name in numbers]
            note = " ".join(f"{name} {numbers[name]:.3f}" for name in shown)
            self.tell(state.global_step, note)
            if "eval_loss" in numbers:
                print(f"step {state.global_step} of {state.max_steps}: {note}", flush=True)

    return Watch()


def losses(folder: RunFolder) -> dict[str, float | None]:
    """The first and the last logged loss of a run."""
    found = [row["loss"] for row in folder.rows() if "loss" in row]
    return {"first_loss": found[0] if found else None, "last_loss": found[-1] if found else None}


def fit_and_save(trainer: Any, folder: RunFolder) -> None:
    """As :func:`fit`, then `model/`, which is there only when it is whole."""
    fit(trainer, folder)
    part = folder / f"{MODEL}.part"
    trainer.save_model(str(part))  # on every rank: the parts of divided weights are gathered
    if trainer.is_world_process_zero():
        rmtree(part / "ref", ignore_errors=True)  # TRL's copy of an adapter that was trained on, for the KL
        part.rename(folder / MODEL)


def divided(trainer: Any) -> bool:
    """Whether each process has a part of the weights only: ZeRO-3 or FSDP, asked for by the recipe or its launcher."""
    state = trainer.accelerator.state
    plugin = getattr(state, "deepspeed_plugin", None)
    return getattr(state, "fsdp_plugin", None) is not None or (plugin is not None and plugin.zero_stage == 3)


def save_merged(trainer: Any, tokenizer: Any, target: Path) -> Any:
    """Write the whole weights, adapters merged, or what a trainer of divided weights gathers, unmerged.

    Every process of a run has to call it. Returns the model when the files are there, None where it is divided: what
    each process has of it can't run. RuntimeError where no weights were gathered.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if apart := divided(trainer):
        trainer.save_model(str(target))
    else:
        model = model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
        if trainer.is_world_process_zero():
            model.save_pretrained(target)
    if trainer.is_world_process_zero():
        if not any(target.glob("*.safetensors")):
            raise RuntimeError(
                f"{target}: the parts of the weights were not gathered, the checkpoints of the run have them; use "
                "zero3_save_16bit_model: true (DeepSpeed), or fsdp_state_dict_type: FULL_STATE_DICT (FSDP)"
            )
        tokenizer.save_pretrained(target)
    trainer.accelerator.wait_for_everyone()
    return None if apart else model
