"""Options that the recipes `rlhf` and `mask-dpo` share, and what of them can be checked before anything is loaded."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from pydantic import Field

from mitigate.config import Recipe, Section, recipes_folder
from mitigate.errors import UsageError
from mitigate.reward_config import Reward, check_calibration
from mitigate.trainer import Lora

POCKET, ORACLE = "pocket", "oracle"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class Columns(Section):
    """Names of the fields of a data set."""

    question: str = "question"
    reference: str = "reference"


class Evaluation(Section):
    """Answers before and after, to questions whose references training never saw (and pocket ones that it saw)."""

    questions: int = Field(default=64, ge=2, description="of each set")
    engine: Literal["transformers", "vllm"] = "transformers"
    annotator: str | None = Field(
        default=None, description="null: the reward's; in the pocket world the oracle"
    )
    temperature: float = Field(default=1.0, ge=0, le=2)
    max_new_tokens: int = Field(default=512, ge=1)


class Pocket(Section):
    """The pocket world and its base model, made from nothing (docs/pocket.md)."""

    seed: int = Field(default=0, ge=0, description="of the world and its base model")

    per_kind: int = Field(default=50, ge=4, le=144, description="entities of each of four kinds")
    trained_per_kind: int = Field(default=30, ge=1, description="of these, entities that training asks about")
    rounds: int = Field(
        default=26, ge=1, description="flawed texts for the base model, 17 an entity and round"
    )
    width: int = Field(default=128, ge=16)
    layers: int = Field(default=4, ge=1)
    vocabulary: int = Field(default=2048, ge=300)


class Launch(Section):
    """Training in several processes, one a GPU; null in a recipe: in this process."""

    config: str = Field(description="of recipes/accelerate/ (zero3), or the path of an accelerate YAML")
    processes: int = Field(ge=1)

    def file(self) -> Path:
        path = Path(self.config)
        return path if path.suffix else recipes_folder() / "accelerate" / f"{self.config}.yaml"


class Base(Recipe):
    """The options of both kinds."""

    model: str = Field(min_length=1, description="folder or hub id of a chat model, or pocket")
    data: str = Field(min_length=1, description="JSON Lines file or hub id, or pocket")
    split: str = Field(default="train", description="of a hub data set")
    columns: Columns = Columns()
    reference_in_prompt: bool = Field(
        default=False, description="show the model the reference with the question"
    )
    max_questions: int | None = Field(default=None, ge=4, description="null: all")
    seed: int = Field(default=0, ge=0, lt=2**31)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    lora: Lora | None = None
    reward: Reward = Reward()
    evaluation: Evaluation = Evaluation()
    pocket: Pocket = Pocket()
    launch: Launch | None = None
    report_pairs: int = Field(default=24, ge=1, description="questions shown in report.html, the first ones")

    @property
    def judge(self) -> str:
        """The annotator of the answers before and after."""
        return self.evaluation.annotator or (ORACLE if self.data == POCKET else self.reward.annotator)


def check_base(options: Base) -> None:
    """Refuse what types can't say; loads nothing.

    Raises:
        UsageError: A file or package is missing, or options do not go together.
    """
    if find_spec("trl") is None or (options.lora is not None and find_spec("peft") is None):
        raise UsageError(f"{options.kind} needs TRL and peft: pip install 'hallucination-toolkit[trl]'")
    if options.model == POCKET and options.data != POCKET:
        raise UsageError(
            f"model: pocket knows the pocket world only; expected data: pocket, got {options.data!r}"
        )
    for name, annotator in (
        ("reward.annotator", options.reward.annotator),
        ("evaluation.annotator", options.judge),
    ):
        if annotator == ORACLE and options.data != POCKET:
            raise UsageError(
                f"{name}: the oracle knows the pocket world only; expected embedded, a folder or a hub id"
            )
        _check_place(name, annotator, ("embedded", ORACLE, "generative:"))
    if (calibration := options.reward.calibration) is not None:
        if options.reward.annotator == ORACLE:
            raise UsageError("reward.calibration: the oracle has nothing to calibrate; expected null")
        try:
            check_calibration("reward.calibration", calibration, options.reward.annotator)
        except ValueError as error:
            raise UsageError(str(error)) from error
    if options.data == POCKET:
        if options.reference_in_prompt and options.model == POCKET:
            raise UsageError("reference_in_prompt: the pocket model does not read documents; expected false")
        if options.pocket.trained_per_kind >= options.pocket.per_kind:
            raise UsageError(
                f"pocket.trained_per_kind: expected less than per_kind ({options.pocket.per_kind}), so that entities "
                f"are kept apart, got {options.pocket.trained_per_kind}"
            )
    elif not Path(options.data).is_file() and (
        not HUB_ID.fullmatch(options.data) or Path(options.data).suffix in {".jsonl", ".json"}
    ):
        raise UsageError(f"data: no such file {options.data!r}; expected JSON Lines, a hub id or pocket")
    _check_place("model", options.model, (POCKET,))
    if options.evaluation.engine == "vllm" and find_spec("vllm") is None:
        raise UsageError(
            "evaluation.engine: vllm is not installed: pip install 'hallucination-toolkit[vllm]'"
        )
    if options.launch is not None and not options.launch.file().is_file():
        raise UsageError(f"launch.config: no such file {options.launch.file()}")


def _check_place(name: str, value: str, known: tuple[str, ...]) -> None:
    """A known word, a folder that is there, or something that looks like a hub id."""
    if not value.startswith(known) and not Path(value).is_dir() and not HUB_ID.fullmatch(value):
        words = ", ".join(word.rstrip(":") for word in known)
        raise UsageError(
            f"{name}: no such folder {value!r}, and it is no hub id; expected {words}, a folder or a hub id"
        )
