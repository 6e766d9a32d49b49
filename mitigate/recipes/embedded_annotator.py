"""Task `embedded-annotator`: train an annotator like those that come with the toolkit (docs/results/annotator.md).

The recipes `embedded`, `embedded-fast` and `embedded-zh` have the settings of the shipped weights. Any encoder or
language model can be the base. The run folder gets the stages' results (`work/`, from which a second run goes on) and
`annotator/`, which `--annotator` takes.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from engines.checkpoint import locate
from mitigate.io import UsageError, usage
from mitigate.models import ModelName
from mitigate.recipes.config import Recipe, Section
from mitigate.recipes.folder import RunFolder


class Stage(Section):
    rate: float = Field(gt=0, description="highest learning rate")
    epochs: float = Field(gt=0)


class Further(Stage):
    """The last stage, after which weights are the mean of those before and after it."""

    examples: int = Field(default=23_040, ge=1, description="labelled, edited and paired sentences")
    labels: int | None = Field(default=None, ge=0, description="labelled ones that these are drawn from; null: all")
    edits: int = Field(default=16_000, ge=0, description="edited sentences among them")
    pairs: int = Field(default=8_000, ge=0, description="pairs among them")
    texts: int = Field(default=0, ge=0, description="written texts, the first ones; the tenth is watched and left out")
    teacher: str | None = Field(default=None, description="an embedded annotator or its folder; null: their own labels")


class Options(Recipe):
    task: Literal["embedded-annotator"]
    data: Path = Field(description="folder with sentences/, binary/, pairs/ and documents/, JSON Lines; not all needed")
    sources: list[str] = Field(min_length=1, description="labelled sentences to train on")
    pair_sources: list[str] = Field(description="entailment pairs to train on first; with `start` there may be none")
    base: ModelName = Field(default="packaged:minilm", description="encoder or language model")
    layers: int | None = Field(default=None, ge=1, description="how many of its layers are taken; null: all")
    lora: int | None = Field(default=None, ge=1, description="rank of LoRA; null: all weights are trained")
    pairs: Stage = Stage(rate=1.5e-4, epochs=1.0)
    labels: Stage = Stage(rate=8e-5, epochs=2.0)
    further: Further | None = Field(default=None, description="null: no such stage")
    start: str | None = Field(
        default=None, description="annotator that the last stage begins with; null: the first two stages"
    )
    edited: int = Field(default=9_000, ge=0, description="edited sentences among the labels")
    replayed: int = Field(default=6_000, ge=0, description="pairs among the labels")
    tokens: int = Field(default=4096, ge=512, description="of a step")
    evidence_tokens: int = Field(default=128, ge=16, le=320, description="of a reference that are read at once")
    narrow_tokens: int | None = Field(
        default=None, ge=8, le=320, description="of a reference, read once more; null: not"
    )
    seed: int = Field(default=0, ge=0)
    languages: list[str] | None = Field(default=["en"], min_length=1, description="of what is judged; null: any")


def check(options: Options) -> None:
    from transformers import AutoConfig

    from annotators.text.language import TOLD
    from annotators.verifier.annotator import stored
    from annotators.verifier.data import PAIR_SHARES

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
    from annotators.verifier.training import CannotTrainError, Settings, train_annotator

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    same = set("data base layers lora seed edited replayed tokens evidence_tokens narrow_tokens".split())
    settings = Settings(
        sources=tuple(options.sources), pairs=tuple(options.pair_sources),
        languages=None if options.languages is None else tuple(options.languages),
        pair_rate=options.pairs.rate, pair_epochs=options.pairs.epochs,
        label_rate=options.labels.rate, label_epochs=options.labels.epochs, **options.model_dump(include=same),
    )  # fmt: skip
    if (further := options.further) is not None:
        more = {f"further_{name}": value for name, value in further if name not in ("examples", "teacher")}
        settings = replace(settings, further=further.examples, teacher=further.teacher, start=options.start, **more)
    with usage(kinds=CannotTrainError):
        annotator = train_annotator(settings, folder / "work")
    annotator.save_pretrained(folder / "annotator")
    folder.finish({"fingerprint": annotator.fingerprint, "annotator": str(folder / "annotator")})
    print(f"# {folder / 'annotator'}: fingerprint {annotator.fingerprint}")
