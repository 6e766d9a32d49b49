"""A reward described by YAML, and rewards that TRL's command line takes by their dotted name, without any code:

    trl grpo --reward_funcs mitigate.factuality --model_name_or_path … --dataset_name …

The data set needs a column ``reference``; ``question`` and ``points`` are read where they are there.
``MITIGATE_REWARD_CONFIG=FILE`` names a YAML, which is checked as a whole when the plug-in is looked up; TRL does so
before it loads a model. The annotator is loaded at the first call.

    annotator: embedded            # or a folder, or a hub id
    label_rewards: {unverifiable: -0.5}
    aspects: {factuality: 1.0, relevance: 0.3}
    columns: {reference: document}

Every key is an argument of ``SentenceReward``. The recipes of kinds `rlhf` and `mask-dpo` have ``Reward`` as a section.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from mitigate.io import UsageError
from mitigate.recipes.config import Section, check, read_yaml
from mitigate.rewards.aspects import DEFAULT_WEIGHTS, check_aspects, check_label_rewards, worth
from mitigate.rewards.inputs import Abstention, Columns, Text

if TYPE_CHECKING:
    from mitigate.rewards.reward import SentenceReward
    from mitigate.rewards.segments import SentenceScore

    factuality: LazyReward

CONFIG_VARIABLE = "MITIGATE_REWARD_CONFIG"
# Strict: true is no number, and neither is "2".
Whole = Annotated[int, Field(strict=True)]
Token = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[float, Field(strict=True)]


class Judging(Section):
    """Who judges sentences, and at which operating point."""

    annotator: str = Field(
        default="embedded", pattern=r"\S", description="embedded, folder, hub id, nli:ID, ensemble:min:FIRST+SECOND, …"
    )
    calibration: str | None = Field(default=None, description="of the annotator, made by `mitigate calibrate`")
    expected_rate: float | None = Field(default=None, gt=0, lt=1, description="of hallucination; null: as fitted")

    @property
    def operating(self) -> dict[str, Any]:
        """Calibration and expected rate for ``load_annotator``, where they are given."""
        given = {"calibration": self.calibration, "expected_rate": self.expected_rate}
        return {name: value for name, value in given.items() if value is not None}

    def check_calibration(self, prefix: str = "") -> None:
        """UsageError where one of them does not fit the annotator; loads nothing."""
        for name, value in self.operating.items():
            try:
                check_calibration(prefix + name, value, self.annotator)
            except ValueError as error:
                raise UsageError(str(error)) from error


class Reward(Judging):
    """What labels are worth, too (docs/rewards.md)."""

    device: str | None = Field(default=None, description="cpu, cuda:1…; null: cuda where there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    aspects: dict[str, Number] = Field(default=DEFAULT_WEIGHTS)
    label_rewards: dict[str, Number | None] = Field(default={})
    target_sentences: Whole = Field(default=4, ge=1)
    max_words: Whole = Field(default=150, ge=1)
    copy_share: Number | None = Field(default=0.8, gt=0, le=1, description="density of a copy; null: copies are fine")
    abstention: Abstention | None = Field(default=None, description="what “I can't tell” is worth; null: the worst")

    @field_validator("aspects")
    @classmethod
    def _known_aspects(cls, value: dict[str, float]) -> dict[str, float]:
        return {str(name): weight for name, weight in check_aspects(value).items()}

    @field_validator("label_rewards")
    @classmethod
    def _known_labels(cls, value: dict[str, float | None]) -> dict[str, float | None]:
        check_label_rewards(value)
        return value

    @field_validator("abstention")
    @classmethod
    def _in_order(cls, value: Abstention | None, info: ValidationInfo) -> Abstention | None:
        if value is not None and "label_rewards" in info.data:
            value.check(*worth(check_label_rewards(info.data["label_rewards"])))
        return value


class RewardFile(Reward):
    """All keys of a reward's own YAML file."""

    columns: Columns = Columns()
    thinking: tuple[Text, Text] | None = ("<think>", "</think>")
    response: tuple[Text, Text] | None = None
    eos_token_ids: Token | Annotated[list[Token], Field(min_length=1)] | None = None
    cache_size: Whole = Field(default=100_000, ge=0)


def read_config(path: str | Path) -> RewardFile:
    """Read a reward's YAML file; UsageError, naming file and key, where it can't be read or something is wrong."""
    config = check(RewardFile, read_yaml(path), str(path))
    config.check_calibration(f"{path}: ")
    return config


def check_calibration(key: str, path: str | Path | float, annotator: str) -> None:
    """Read a calibration, so that a wrong file is known before anything is loaded; an expected rate has no file.

    Raises:
        ValueError: The annotator has no scores to calibrate, there is no such file, or it is no calibration.
    """
    from annotators.base import parts_of
    from annotators.operating import Calibration
    from mitigate.rewards import ensemble

    if annotator.startswith("cascade:"):
        annotator = parts_of(annotator)[0]  # which it is for
    elif annotator.startswith("ensemble:"):
        annotator = ensemble.parts_of(annotator)[1]
    if annotator.startswith("generative:"):
        raise ValueError(f"{key}: {annotator!r} has no scores to calibrate; expected null")
    if isinstance(path, float):
        return
    try:
        Calibration.load(path)
    except OSError as error:
        raise ValueError(f"{key}: expected a file of `mitigate calibrate`; {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


class LazyReward:
    """A `SentenceReward` that is built, with its annotator, when it is first called."""

    def __init__(self, name: str, config: RewardFile) -> None:
        self.__name__ = name  # under which trainers log it
        self.config = config

    @cached_property
    def reward(self) -> SentenceReward:
        from mitigate.rewards.reward import SentenceReward

        return SentenceReward(name=self.__name__, **dict(self.config))

    def __call__(self, completions: Sequence[Any], **arguments: Any) -> list[SentenceScore | None]:
        """As `SentenceReward.__call__`."""
        return self.reward(completions, **arguments)


def __getattr__(name: str) -> LazyReward:
    """`factuality`, made at the first look-up; UsageError where MITIGATE_REWARD_CONFIG names a wrong file."""
    if name != "factuality":
        raise AttributeError(f"module {__name__!r} has no plugin {name!r}; there is 'factuality'")
    path = os.environ.get(CONFIG_VARIABLE)
    plugin = LazyReward(name, read_config(path) if path else RewardFile())
    globals()[name] = plugin
    return plugin
