"""What a reward is told: the arguments of `SentenceReward`, which are also the keys of its YAML file (docs/rewards.md).

    annotator: embedded            # or a folder, or a hub id
    label_rewards: {unverifiable: -0.5}
    aspects: {factuality: 1.0, relevance: 0.3}
    columns: {reference: document}

The recipes of kinds `rlhf` and `mask-dpo` have ``Reward`` as a section.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from mitigate.io import UsageError
from mitigate.recipes.config import Section, check, nearest, read_yaml
from mitigate.rewards.aspects import ASPECTS, DEFAULT_WEIGHTS, check_label_rewards, worth

# Strict: true is no number, and neither is "2".
Whole = Annotated[int, Field(strict=True)]
Token = Annotated[int, Field(strict=True, ge=0)]
Number = Annotated[float, Field(strict=True)]
Text = Annotated[str, Field(min_length=1)]


class Columns(Section):
    """Names of the data set's columns that a reward reads; only the one of references must be there."""

    reference: Text = "reference"  # the document to judge against
    question: Text = "question"  # without this column it is the last user message of the prompt
    points: Text = "points"  # lists of what a complete answer says; without it sentences of the reference
    language: Text = "language"  # "en", "zh"…, handed to the annotator
    answerable: Text = "answerable"  # true or false: whether the reference answers the question; for ``Abstention``


class Abstention(Section):
    """What "I can't tell from this document" is worth as a whole answer, between false (−1) and true (+1).

    Where abstaining from all questions earns more than the answers of a policy that sometimes abstains, it learns that
    and nothing else: with −0.25 and 1 it did (docs/rewards.md, "Red team").

    Source: the ternary reward of TruthRL (Wei et al. 2025), which gives 0; here it depends on the question.
    """

    # Also where the column does not say; null: the reward of the worst label.
    answerable: Number | None = None
    unanswerable: Number = 0.5


class Judging(Section):
    """Who judges sentences, and at which operating point."""

    annotator: str = Field(
        default="embedded", pattern=r"\S", description="embedded, folder, hub id, nli:ID, ensemble:min:FIRST+SECOND, …"
    )
    calibration: Path | None = Field(default=None, description="of the annotator, made by `mitigate calibrate`")
    expected_rate: float | None = Field(default=None, gt=0, lt=1, description="of hallucination; null: as fitted")

    @property
    def operating(self) -> dict[str, Any]:
        """Calibration and expected rate for ``load_annotator``, where they are given."""
        return self.model_dump(include={"calibration", "expected_rate"}, exclude_none=True)

    def check_calibration(self, prefix: str = "") -> None:
        """UsageError where one of them does not fit the annotator; loads nothing."""
        for name, value in self.operating.items():
            check_calibration(prefix + name, value, self.annotator)


class Reward(Judging):
    """What labels are worth, too (docs/rewards.md)."""

    device: str | None = Field(default=None, description="cpu, cuda:1…; null: cuda where there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    aspects: dict[str, Annotated[Number, Field(gt=0)]] = Field(
        default=DEFAULT_WEIGHTS, min_length=1, description="weights; the others are not computed"
    )
    label_rewards: dict[str, Number | None] = Field(
        default={}, description="null: no opinion; “supported” is worth most"
    )
    target_sentences: Whole = Field(default=4, ge=1, description="credited ones, for the full length reward")
    max_words: Whole = Field(default=150, ge=1, description="or characters of Chinese, beyond which length is punished")
    copy_share: Number | None = Field(
        default=0.8, gt=0, le=1, description="a sentence that copies so much is a copy; null: none is"
    )
    abstention: Abstention | None = Field(default=None, description="what “I can't tell” is worth; null: the worst")

    @field_validator("aspects")
    @classmethod
    def _known_aspects(cls, value: dict[str, float]) -> dict[str, float]:
        if unknown := sorted(set(value) - set(ASPECTS)):
            raise ValueError(f"aspects: unknown aspect {unknown[0]!r}{nearest(unknown[0], ASPECTS)}")
        return {name: value[name] for name in ASPECTS if name in value}

    @field_validator("label_rewards")
    @classmethod
    def _known_labels(cls, value: dict[str, float | None]) -> dict[str, float | None]:
        check_label_rewards(value)
        return value

    @field_validator("abstention")
    @classmethod
    def _in_order(cls, value: Abstention | None, info: ValidationInfo) -> Abstention | None:
        if value is not None and "label_rewards" in info.data:
            floor, top = worth(check_label_rewards(info.data["label_rewards"]))
            answerable = floor if value.answerable is None else value.answerable
            if not floor <= answerable <= value.unanswerable <= top:
                raise ValueError(
                    f"abstention: expected {floor:g} <= answerable <= unanswerable <= {top:g}, the rewards of the "
                    f"worst and the best label, got {answerable:g} and {value.unanswerable:g}"
                )
        return value


class RewardFile(Reward):
    """All arguments of `SentenceReward`, and all keys of a reward's own YAML file."""

    columns: Columns = Columns()
    thinking: tuple[Text, Text] | None = Field(
        default=("<think>", "</think>"), description="tags of what is not judged"
    )
    thinking_opened: bool = Field(default=False, description="prompts end with the first of these tags")
    response: tuple[Text, Text] | None = Field(default=None, description="tags of what alone is judged; null: all else")
    eos_token_ids: Token | Annotated[list[Token], Field(min_length=1)] | None = Field(
        default=None, description="tokens that end a completion: one without was cut off; null: known by its length"
    )
    cache_size: Whole = Field(default=100_000, ge=0, description="verdicts to keep")


def read_config(path: str | Path) -> RewardFile:
    """Read a reward's YAML file; UsageError names file and key of what is wrong."""
    from mitigate.models import check_annotator

    config = check(RewardFile, read_yaml(path), str(path))
    check_annotator(config.annotator, f"{path}: annotator")
    config.check_calibration(f"{path}: ")
    return config


def check_calibration(key: str, path: str | Path | float, annotator: str) -> None:
    """Read a calibration, so that a wrong file is known before anything is loaded; an expected rate has no file.

    Raises UsageError: the annotator has no scores to calibrate, there is no such file, or it is no calibration.
    """
    from annotators.base import parts_of
    from annotators.operating import Calibration

    try:
        annotator = parts_of(annotator)[0]  # which it is for
        if annotator.startswith("generative:"):
            raise ValueError(f"{annotator!r} has no scores to calibrate; expected null")
        if not isinstance(path, float):
            Calibration.load(path)
    except OSError as error:
        raise UsageError(f"{key}: expected a file of `mitigate calibrate`; {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{key}: {error}") from error
