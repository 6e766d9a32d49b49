"""A task for the tests: it counts up to `steps`, and can be told to break off once."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from mitigate.io import UsageError
from mitigate.recipes.config import Recipe, Section
from mitigate.recipes.folder import RunFolder

WriteRecipe = Callable[..., Path]


class Reward(Section):
    annotator: str = "embedded"
    weight: float = Field(default=1.0, ge=0, le=2)


class Options(Recipe):
    task: Literal["example"]
    steps: int = Field(default=3, ge=1)
    learning_rate: float = Field(default=1e-5, gt=0)
    mode: Literal["fast", "slow"] = "fast"
    reward: Reward = Reward()
    other: Reward | None = None
    named: dict[str, Reward] = Field(default={})
    break_at: int | None = None
    refuse: Literal["", "check", "run"] = ""


def check(options: Options) -> None:
    if options.refuse == "check":
        raise UsageError("refuse: expected an empty one")


def run(options: Options, folder: RunFolder) -> None:
    if options.refuse == "run":
        raise UsageError("the first file is missing")
    done = len(folder.rows())
    for step in range(done, options.steps):
        if step == options.break_at and done < step:
            raise KeyboardInterrupt
        folder.log(step, loss=1 / (step + 1), lost=float("nan"))
    folder.finish({"steps": len(folder.rows())})
