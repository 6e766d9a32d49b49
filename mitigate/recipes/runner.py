"""The course of a run of `rlhf` and `mask-dpo`: data → answers before → training → answers after → table and page.

A resumed run finds every part that is done. Training runs in this process, or under `accelerate launch` (section
``launch``) with one process per GPU, each of them `python -m mitigate.recipes.runner RUN_FOLDER`: the run that launched
them holds the folder's lock and waits, and the first of them writes checkpoints, metrics and the model.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mitigate.io import UsageError
from mitigate.recipes.config import load_recipe
from mitigate.recipes.data import Questions, read_questions
from mitigate.recipes.folder import CONFIG, METRICS, REJECTED, SAMPLES, RunFolder
from mitigate.recipes.options import Base
from mitigate.recipes.results import AFTER, BEFORE, answer_and_judge, compare, judges, print_table, write_page
from mitigate.recipes.trainer import MODEL

Part = Callable[[Any, Questions, RunFolder], None]


def run(options: Base, folder: RunFolder, train: Part, prepare: Part | None = None) -> int:
    """Run a recipe in its folder; returns the exit code: 0, or 3 where input lines were rejected.

    ``train`` makes ``folder``/model from the starting model; ``prepare`` is called before it, in one process.
    """
    quiet()
    questions = read_questions(options, folder)
    if questions.rejected:
        print(f"{questions.rejected} input lines rejected: {folder / REJECTED}", file=sys.stderr)
    answer_and_judge(BEFORE, options.model, questions, options, folder)
    if not (folder / MODEL).is_dir():
        if prepare is not None:
            prepare(options, questions, folder)
        if options.launch is None:
            train(options, questions, folder)
        else:
            launch(options.launch.file(), options.launch.processes, folder)
    answer_and_judge(AFTER, str(folder / MODEL), questions, options, folder)
    samples = folder.rows(SAMPLES)
    table = compare(samples)
    write_page(folder / "report.html", options.about, samples, table, folder.rows(METRICS), options.report_pairs)
    folder.finish({"table": table, "judges": judges(samples)})
    show(folder)
    return 3 if questions.rejected else 0


def launch(config: Path, processes: int, folder: RunFolder) -> None:
    """Train in several processes."""
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(config),
        "--num_processes", str(processes), "-m", "mitigate.recipes.runner", str(folder.path),
    ]  # fmt: skip
    if code := subprocess.run(command, check=False).returncode:
        raise UsageError(
            f"training ended with exit code {code}, see above; the same command goes on from the last checkpoint"
        )


def show(folder: RunFolder) -> None:
    """Print the table of a complete run, and where its files are."""
    if (done := folder.done) is None:
        return
    print_table(done["table"], done["judges"])
    for name in ("report.html", SAMPLES, METRICS, CONFIG, MODEL):
        print(f"{name.split('.')[0]}: {folder / name}")


def quiet() -> None:
    """Turn libraries' own progress bars and notices off; errors stay."""
    import warnings

    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", ".*_checkpointing.* is deprecated", FutureWarning)  # TRL's own use of it


def main(path: Path) -> None:
    """Train as the folder's recipe says."""
    options, task = load_recipe(path / CONFIG)
    if not isinstance(options, Base):
        raise TypeError(f"expected a recipe that trains a language model, got the task {options.task}")
    quiet()
    task.train(options, read_questions(options, None), RunFolder(path))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
