"""Task `embedded-annotator`: train the annotator that comes with the toolkit (docs/results/annotator.md).

The recipe that comes with the toolkit makes the shipped weights. Any encoder of transformers can be the base. The run
folder gets the stages' results (`work/`, from which a second run goes on) and `annotator/`, which `--annotator` takes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from pydantic import Field

from mitigate.io import UsageError
from mitigate.models import ModelName
from mitigate.recipes.config import Recipe, Section
from mitigate.recipes.folder import RunFolder


class Stage(Section):
    """One stage of the pair encoder."""

    rate: float = Field(gt=0, description="highest learning rate")
    epochs: float = Field(gt=0)


class Options(Recipe):
    task: Literal["embedded-annotator"]
    data: Path = Field(description="folder with sentences/ and binary/: labelled sentences, JSON Lines")
    sources: list[str] = Field(min_length=1, description="of `data`, the ones to train on; English rows")
    base: ModelName | None = Field(default=None, description="of the pair encoder: hub id, folder or packaged:NAME")
    embedder: ModelName | None = Field(default=None, description="for windows and features: likewise")
    edits: Stage = Stage(rate=1.2e-4, epochs=1.0)
    labels: Stage = Stage(rate=8e-5, epochs=2.0)
    batch: int = Field(default=32, ge=1, description="rows of a step")
    seed: int = Field(default=0, ge=0)


def check(options: Options) -> None:
    """Refuse data that is not there."""
    for name in ("sentences", "binary"):
        if not (options.data / name).is_dir():
            raise UsageError(
                f"data: expected a folder with sentences/ and binary/, {options.data} has no {name}/; "
                "give another one with data=FOLDER"
            )


def run(options: Options, folder: RunFolder) -> None:
    """Train and write `annotator/`."""
    from annotators.verifier.training import Settings, train_annotator

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = Settings(
        options.data, tuple(options.sources), options.base, options.embedder, options.seed,
        options.edits.rate, options.edits.epochs, options.labels.rate, options.labels.epochs, options.batch,
    )  # fmt: skip
    annotator = train_annotator(settings, folder / "work")
    annotator.save_pretrained(folder / "annotator")
    folder.finish({"fingerprint": annotator.fingerprint, "annotator": str(folder / "annotator")})
    print(f"# {folder / 'annotator'}: fingerprint {annotator.fingerprint}")
