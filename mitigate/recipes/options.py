"""Options that the recipes `rlhf` and `mask-dpo` share, and what of them can be checked before anything is loaded."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mitigate.io import UsageError
from mitigate.recipes.config import Recipe, Section, recipes_folder
from mitigate.recipes.trainer import Lora
from mitigate.rewards.config import Reward, check_calibration

if TYPE_CHECKING:
    from annotators.base import Annotator


HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class Columns(Section):
    """Names of the fields of a data set."""

    question: str = "question"
    reference: str = "reference"


class Evaluation(Section):
    """Answers before and after, to questions whose references training never saw, or to sets of questions as given."""

    data: dict[str, str] | None = Field(
        default=None, min_length=1, description="set → JSON Lines file; null: a part of the data is kept apart"
    )
    questions: int = Field(default=64, ge=2, description="of each set")
    engine: Literal["transformers", "vllm"] = "transformers"
    annotator: str | None = Field(default=None, description="null: the reward's")
    temperature: float = Field(default=1.0, ge=0, le=2)
    max_new_tokens: int = Field(default=512, ge=1)


class Launch(Section):
    """Training in several processes, one a GPU; null in a recipe: in this process."""

    config: str = Field(description="of recipes/accelerate/ (zero3), or the path of an accelerate YAML")
    processes: int = Field(ge=1)

    def file(self) -> Path:
        path = Path(self.config)
        return path if path.suffix else recipes_folder() / "accelerate" / f"{self.config}.yaml"


class Base(Recipe):
    """The options of both kinds."""

    model: str = Field(min_length=1, description="folder or hub id of a chat model")
    data: str = Field(min_length=1, description="JSON Lines file or hub id")
    split: str = Field(default="train", description="of a hub data set")
    columns: Columns = Columns()
    reference_in_prompt: bool = Field(default=False, description="show the model the reference with the question")
    max_questions: int | None = Field(default=None, ge=4, description="null: all")
    seed: int = Field(default=0, ge=0, lt=2**31)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    lora: Lora | None = None
    reward: Reward = Reward()
    evaluation: Evaluation = Evaluation()
    launch: Launch | None = None
    report_pairs: int = Field(default=24, ge=1, description="questions shown in report.html, the first ones")

    @property
    def judge(self) -> str:
        """The annotator of the answers before and after."""
        return self.evaluation.annotator or self.reward.annotator

    def load_annotator(self, name: str) -> Annotator:
        """The annotator of that name: one that the program handed in, or what ``load_annotator`` finds.

        Raises:
            UsageError: It can't be loaded.
        """
        if name in self._annotators:
            return self._annotators[name]
        from annotators import load_annotator

        calibration = self.reward.calibration if name == self.reward.annotator else None
        try:
            return load_annotator(name, device=self.reward.device, dtype=self.reward.dtype, calibration=calibration)
        except (OSError, ValueError, ImportError) as error:
            raise UsageError(f"annotator {name}: {error}") from error


def check_base(options: Base) -> None:
    """Refuse what types can't say; loads nothing.

    Raises:
        UsageError: A file or package is missing, or options do not go together.
    """
    if find_spec("trl") is None or (options.lora is not None and find_spec("peft") is None):
        raise UsageError(f"{options.kind} needs TRL and peft: pip install 'hallucination-toolkit[trl]'")
    own = options._annotators
    for name, annotator in (("reward.annotator", options.reward.annotator), ("evaluation.annotator", options.judge)):
        if annotator in own and options.launch is not None:
            raise UsageError(
                f"{name}: {annotator!r} exists in this process only; expected launch: null, or an annotator that "
                "every process can load"
            )
        _check_place(name, annotator, ("embedded", "generative:", *own))
    if (calibration := options.reward.calibration) is not None:
        if options.reward.annotator in own:
            raise UsageError(
                f"reward.calibration: expected null, since {options.reward.annotator!r} is used as handed in"
            )
        try:
            check_calibration("reward.calibration", calibration, options.reward.annotator)
        except ValueError as error:
            raise UsageError(str(error)) from error
    if not Path(options.data).is_file() and (
        not HUB_ID.fullmatch(options.data) or Path(options.data).suffix in {".jsonl", ".json"}
    ):
        raise UsageError(f"data: no such file {options.data!r}; expected JSON Lines or a hub id")
    for name, path in (options.evaluation.data or {}).items():
        if not Path(path).is_file():
            raise UsageError(f"evaluation.data: {name}: no such file {path!r}; expected JSON Lines")
    _check_place("model", options.model, ())
    if options.evaluation.engine == "vllm" and find_spec("vllm") is None:
        raise UsageError("evaluation.engine: vllm is not installed: pip install 'hallucination-toolkit[vllm]'")
    if options.launch is not None and not options.launch.file().is_file():
        raise UsageError(f"launch.config: no such file {options.launch.file()}")


def _check_place(name: str, value: str, known: tuple[str, ...]) -> None:
    """A known word, a folder that is there, or something that looks like a hub id."""
    if not value.startswith(known) and not Path(value).is_dir() and not HUB_ID.fullmatch(value):
        words = "".join(word.rstrip(":") + ", " for word in known)
        raise UsageError(f"{name}: no such folder {value!r}, and it is no hub id; expected {words}a folder or a hub id")
