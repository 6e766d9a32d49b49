"""A training run that is killed after a checkpoint and resumed."""

from pathlib import Path
from typing import Any

import pytest

from mitigate.recipes.folder import RunFolder, open_run


def killed_and_resumed(task: Any, options: Any, path: Path, step: int) -> RunFolder:
    """Run a recipe (its task's module, its options) until its first checkpoint at or after a step, then again."""
    from transformers import Trainer

    saved = Trainer._save_checkpoint

    def save_and_die(self: Any, *args: Any, **more: Any) -> None:
        saved(self, *args, **more)
        if self.state.global_step >= step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "_save_checkpoint", save_and_die)
        with open_run(path, options) as cut, pytest.raises(KeyboardInterrupt):
            task.run(options, cut)
    with open_run(path, options) as cut:
        task.run(options, cut)
    return cut
