"""One training process of a launched run: `accelerate launch … -m mitigate.runs.worker RUN_FOLDER`.

The run that launched it holds the folder's lock and waits; only the first process writes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mitigate.config import load_recipe
from mitigate.run_folder import CONFIG, RunFolder
from mitigate.runs.data import read_questions
from mitigate.runs.options import Base
from mitigate.runs.run import quiet


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
