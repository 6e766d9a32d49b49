"""One training process of a launched run: `accelerate launch … -m mitigate.recipes.runner RUN_FOLDER`.

The run that launched it holds the folder's lock and waits; only the first process writes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from mitigate.io import Tell, UsageError, progress, whole_file
from mitigate.recipes.config import load_recipe
from mitigate.recipes.data import Questions, read_questions
from mitigate.recipes.folder import CONFIG, METRICS, SAMPLES, RunFolder
from mitigate.recipes.options import Base
from mitigate.recipes.results import AFTER, BEFORE, answer_and_judge, compare, judges, print_table
from mitigate.recipes.trainer import CHECKPOINTS, Interrupt, interruptible, lora_config, train_on

# ----------------------------------------------------------------------------------------------------
# curves.png of a run folder: what the trainer logged, step by step.

PANELS: tuple[tuple[str, dict[str, str]], ...] = (
    ("reward", {"reward": "mean reward", "rewards/margins": "preference margin"}),
    (
        "hallucinated, training samples",
        {"factuality/hallucination_rate": "by the reward's annotator", "judge/hallucination_rate": "by the judge"},
    ),
    ("sentences an answer", {"factuality/sentences": "all", "judge/supported": "supported and distinct, by the judge"}),
    ("KL to the starting model", {"kl": "estimate"}),
    ("loss", {"loss": "loss"}),
)
"""Title → metric → its name in the legend; a panel without any of its metrics is left out."""
SMOOTHED = 5  # steps of the running mean that is drawn over the points


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw the panels that have something to show.

    Args:
        rows: Of metrics.jsonl.
        path: The PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    known = [(title, {m: n for m, n in metrics.items() if any(m in row for row in rows)}) for title, metrics in PANELS]
    panels = [(title, metrics) for title, metrics in known if metrics]
    figure = Figure(figsize=(max(3.4 * len(panels), 3.4), 3.0), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (title, metrics) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        for metric, name in metrics.items():
            points = [(row["step"], row[metric]) for row in rows if row.get(metric) is not None]
            (line,) = axes.plot(*zip(*points, strict=True), ".", alpha=0.35, markersize=4)
            values = [y for _, y in points]
            means = [sum(values[max(0, i - SMOOTHED + 1) : i + 1]) / min(i + 1, SMOOTHED) for i in range(len(values))]
            axes.plot([x for x, _ in points], means, color=line.get_color(), label=name)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("step")
        if "hallucinated" in title:
            axes.set_ylim(0, 1)
        if len(metrics) > 1:
            axes.legend(fontsize=8)
    with whole_file(path) as part:
        figure.savefig(part, dpi=130, format="png")


# ----------------------------------------------------------------------------------------------------
# What GRPO and DPO runs have in common on TRL: arguments, metrics to the run folder, checkpoints, interruption.
#
# Leaves out what the trainers do; see ``mitigate/recipes/rlhf.py`` and ``mask_dpo.py`` for their options.

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

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
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


# ----------------------------------------------------------------------------------------------------
# The course of a run, for both kinds: data → answers before → training → answers after → page.
#
# Every part that is done is found again by a resumed run. Training runs in this process, or under `accelerate launch`
# (``launch``) with one process a GPU, which reads the run folder and writes checkpoints, metrics and the model there.

Train = Callable[[Any, Questions, str, Path, "Log"], None]
Prepare = Callable[[Any, Questions, str, RunFolder], None]
REJECTED = "rejected.jsonl"


def run_recipe(options: Base, folder: RunFolder, train: Train, prepare: Prepare | None = None) -> int:
    """Run a recipe in its folder; returns the exit code: 0, or 3 where input lines were rejected.

    Args:
        options: The recipe.
        folder: Its folder.
        train: Trains from the starting model to ``folder``/model.
        prepare: Called before it, in one process.

    Raises:
        UsageError: The data can't be used.
    """
    quiet()
    questions = read_questions(options, folder / REJECTED)
    if questions.rejected:
        print(f"{questions.rejected} input lines rejected: {folder / REJECTED}", file=sys.stderr)
    answer_and_judge(BEFORE, options.model, questions, options, folder)
    trained = folder / "model"
    if not trained.is_dir():
        from mitigate.recipes.trainer import CHECKPOINTS, last_checkpoint

        if prepare is not None:
            prepare(options, questions, options.model, folder)
        folder.cut(step_of(last_checkpoint(folder / CHECKPOINTS)), METRICS)
        if options.launch is None:
            train(options, questions, options.model, folder.path, folder.log)
        else:
            launch(options, folder)
    answer_and_judge(AFTER, str(trained), questions, options, folder)
    finish(options, folder)
    return 3 if questions.rejected else 0


def launch(options: Base, folder: RunFolder) -> None:
    """Train in several processes; see ``mitigate/recipes/runner.py``.

    Raises:
        UsageError: A process failed; what it said is above.
    """
    if options.launch is None:
        return
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(options.launch.file()),
        "--num_processes", str(options.launch.processes), "-m", "mitigate.recipes.runner", str(folder.path),
    ]  # fmt: skip
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise UsageError(
            f"training ended with exit code {done.returncode}, see above; the same command goes on from the last "
            "checkpoint"
        )


def finish(options: Base, folder: RunFolder) -> None:
    """Curves, page, table and the mark that the run is complete."""
    from mitigate.recipes.results import write_page

    samples = folder.rows(SAMPLES)
    table = compare(samples)
    plot(folder.rows(METRICS), folder / "curves.png")
    write_page(folder / "report.html", options.about, samples, table, folder / "curves.png", options.report_pairs)
    folder.finish({"table": table, "judges": judges(samples)})
    show(folder)


def show(folder: RunFolder) -> None:
    """Print the table of a complete run, and where its files are."""
    done = folder.done
    if done is None:
        return
    print_table(done["table"], done["judges"])
    for name in ("report.html", "curves.png", SAMPLES, METRICS, CONFIG, "model"):
        print(f"{name.split('.')[0]}: {folder / name}")


def quiet() -> None:
    """Libraries' own progress bars and notices off; errors stay."""
    import warnings

    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", ".*_checkpointing.* is deprecated", FutureWarning)  # TRL's own use of it


def main(path: Path) -> None:
    """Train as the folder's recipe says."""
    options, kind = load_recipe(path / CONFIG)
    if not isinstance(options, Base):
        raise TypeError(f"expected a recipe that trains a language model, got kind {options.kind}")
    quiet()
    questions = read_questions(options, None)
    kind.train(options, questions, options.model, path, RunFolder(path, True, -1).log)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
