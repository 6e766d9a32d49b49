"""The course of a run, for both kinds: data → answers before → training → answers after → page.

Every part that is done is found again by a resumed run. Training runs in this process, or under `accelerate launch`
(``launch``) with one process a GPU, which reads the run folder and writes checkpoints, metrics and the model there.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mitigate.errors import UsageError
from mitigate.run_folder import CONFIG, METRICS, SAMPLES, RunFolder
from mitigate.runs.data import Questions, read_questions
from mitigate.runs.judging import AFTER, BEFORE, answer_and_judge, compare
from mitigate.runs.options import Base
from mitigate.runs.table import judges, print_table

if TYPE_CHECKING:
    from mitigate.runs.training import Log

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
        from mitigate.runs.training import step_of
        from mitigate.trainer import CHECKPOINTS, last_checkpoint

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
    """Train in several processes; see ``mitigate/runs/worker.py``.

    Raises:
        UsageError: A process failed; what it said is above.
    """
    if options.launch is None:
        return
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(options.launch.file()),
        "--num_processes", str(options.launch.processes), "-m", "mitigate.runs.worker", str(folder.path),
    ]  # fmt: skip
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise UsageError(
            f"training ended with exit code {done.returncode}, see above; go on from the last checkpoint with --resume"
        )


def finish(options: Base, folder: RunFolder) -> None:
    """Curves, page, table and the mark that the run is complete."""
    from mitigate.runs.curves import plot
    from mitigate.runs.page import write_page

    samples = folder.rows(SAMPLES)
    table = compare(samples)
    plot(folder.rows(METRICS), folder / "curves.png")
    write_page(
        folder / "report.html", options.about, samples, table, folder / "curves.png", options.report_pairs
    )
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
    warnings.filterwarnings(
        "ignore", ".*_checkpointing.* is deprecated", FutureWarning
    )  # TRL's own use of it
