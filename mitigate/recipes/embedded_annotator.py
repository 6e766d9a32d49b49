"""Task `embedded-annotator`: train an annotator like those that come with the toolkit (docs/results/annotator.md).

The recipes `embedded`, `embedded-fast` and `embedded-zh` have the settings of the shipped weights. Any encoder or
language model can be the base. The run folder gets the stages' results (`work/`, from which a second run goes on) and
`annotator/`, which `--annotator` takes.
"""

from __future__ import annotations

import logging
from typing import Literal

from pydantic import Field

from annotators.verifier.data import PAIR_SHARES, Settings
from engines.checkpoint import locate
from mitigate.io import UsageError, usage
from mitigate.models import ModelName
from mitigate.recipes.config import Recipe
from mitigate.recipes.folder import RunFolder


class Options(Settings, Recipe):
    task: Literal["embedded-annotator"]
    base: ModelName = Field(default="packaged:minilm", description="encoder or language model")


def check(options: Options) -> None:
    from transformers import AutoConfig

    from annotators.text.language import TOLD
    from annotators.verifier.annotator import stored

    if options.labels.epochs % 1:
        raise UsageError(f"labels.epochs: expected a whole number, got {options.labels.epochs}")
    if unknown := {*(options.languages or ())} - TOLD:
        raise UsageError(
            f"languages: expected codes that texts are told apart by ({', '.join(sorted(TOLD))}), or null for any "
            f"language, got {', '.join(sorted(unknown))}"
        )
    there = {name for name in ("sentences", "binary", "pairs") if (options.data / name).is_dir()}
    if not there & {"sentences", "binary"} or (options.pair_sources and "pairs" not in there):
        raise UsageError(
            f"data: expected a folder with sentences/ or binary/, and pairs/ for pair_sources; {options.data} has "
            f"{', '.join(sorted(there)) or 'none of them'}; give another one with data=FOLDER"
        )
    if not options.pair_sources and options.start is None:
        raise UsageError("pair_sources: expected at least one, or an annotator that knows them as start=NAME, got none")
    if unknown := {*options.pair_sources} - PAIR_SHARES.keys():
        raise UsageError(f"pair_sources: expected some of {', '.join(PAIR_SHARES)}; got {', '.join(sorted(unknown))}")
    with usage(f"base {options.base}: ", (OSError, ValueError)):
        depth = AutoConfig.from_pretrained(locate(options.base)).num_hidden_layers
    if (options.layers or 1) > depth:
        raise UsageError(f"layers: expected 1 to {depth}, which {options.base} has, got {options.layers}; null: all")
    teacher = None if options.further is None else options.further.teacher
    for name, annotator in (("start", options.start), ("further.teacher", teacher)):
        if annotator is not None:
            with usage(f"{name}: ", (OSError, ValueError)):
                stored(annotator)
    if options.start is not None and options.further is None:
        raise UsageError("further: expected the settings of the last stage, the only one after `start`; got null")


def run(options: Options, folder: RunFolder) -> None:
    from annotators.verifier.training import CannotTrainError, train_annotator

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    with usage(kinds=CannotTrainError):
        annotator = train_annotator(options, folder / "work")
    annotator.save_pretrained(folder / "annotator")
    folder.finish({"fingerprint": annotator.fingerprint, "annotator": str(folder / "annotator")})
    print(f"# {folder / 'annotator'}: fingerprint {annotator.fingerprint}")
