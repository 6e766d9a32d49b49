"""Options that several tasks share, and what of them can be checked before anything is loaded.

`Training`, `LmTraining` and `Lora` are sections of SFT and of the annotators; `Base` is what `rlhf` and `mask-dpo` have
in common.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from annotators import load_annotator
from annotators.base import Annotator
from engines.checkpoint import HUB_ID, locate
from mitigate.io import UsageError, usage
from mitigate.models import ModelName, check_annotator, check_place
from mitigate.recipes.config import Recipe, Section, nearest, recipes_folder
from mitigate.rewards.config import Reward

UNSAFE = {"trust_remote_code", "use_safetensors"}
OWN = {"output_dir", "remove_unused_columns", "precompute_ref_log_probs", *UNSAFE}
"""What a recipe does not let options for TRL say."""
WIDER = {"scale_rewards", "fsdp"}
"""Options that also take a truth value or a list, whatever type their class states."""


class Training(Section):
    """Settings of the trainer; batch sizes are for one device."""

    epochs: float = Field(gt=0)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    accumulate: int = Field(default=1, ge=1, description="batches for one optimiser step")
    warmup: float = Field(default=0.0, ge=0, lt=1, description="share of the steps")
    max_steps: int | None = Field(default=None, ge=1, description="instead of epochs")
    max_tokens: int = Field(default=16_384, ge=64, description="longest row")
    gradient_checkpointing: bool = False
    evaluate_every: int = Field(default=100, ge=1, description="steps; checkpoints are written as often")
    keep: int = Field(default=2, ge=1, description="checkpoints that are kept")
    early_stop: int | None = Field(default=None, ge=1, description="evaluations without a lower loss; null: never")
    deepspeed: str | None = Field(default=None, description="a DeepSpeed JSON, see recipes/accelerate/")
    fsdp: str | None = Field(default=None, description="as transformers' --fsdp, e.g. 'full_shard auto_wrap'")
    fsdp_config: str | None = Field(default=None, description="a JSON beside fsdp")
    # The others need less memory; adamw_bnb_8bit needs bitsandbytes.
    optim: Literal["adamw_torch", "adamw_torch_8bit", "adamw_bnb_8bit", "adafactor"] = "adamw_torch"
    seed: int = Field(default=0, ge=0, lt=2**31)


class LmTraining(Training):
    dtype: Literal["float32", "bfloat16"] = "float32"  # bfloat16 takes half the memory, and small steps are lost
    trust_remote_code: bool = Field(default=False, description="run the Python files that come with the base")


class Lora(Section):
    """Low-rank adapters in place of training all weights."""

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    targets: str | list[str] = Field(default="all-linear", min_length=1, description="modules, or all-linear")


class Columns(Section):
    """Names of the fields of a data set, or paths to nested ones: `context.sentences`, `passages.passage_text`."""

    question: str = "question"
    reference: str = "reference"


class Evaluation(Section):
    """Answers before and after, to questions whose references training never saw, or to sets of questions as given."""

    data: dict[str, str] | None = Field(default=None, min_length=1, description="set → file; null: a part is held out")
    questions: int = Field(default=64, ge=2, description="of each set")
    engine: Literal["transformers", "vllm"] = "transformers"
    annotator: str | None = Field(default=None, description="null: the reward's, which needs same_judge")
    same_judge: bool = Field(default=False, description="the reward's annotator may judge what it was optimised for")
    temperature: float = Field(default=1.0, ge=0, le=2)
    max_new_tokens: int = Field(default=512, ge=1)


class Trainer(Section):
    """What GRPO and DPO have in common."""

    per_device_batch: int | None = Field(default=None, ge=1, description="answers or pairs at once; null: a step's")
    learning_rate: float = Field(default=1e-6, gt=0)
    schedule: Literal["constant_with_warmup", "linear", "cosine"] = "constant_with_warmup"
    warmup_steps: int = Field(default=0, ge=0)
    gradient_checkpointing: bool = False
    save_every: int = Field(default=20, ge=1, description="steps between checkpoints")


DIVIDED = re.compile(r"^\s*(zero_stage: 3|distributed_type: FSDP)\b", re.M)
"""What an accelerate YAML says where every process holds a part of the weights."""


class Launch(Section):
    """Training in several processes, one per GPU; null in a recipe: in this process."""

    config: str = Field(description="of recipes/accelerate/ (zero3), or the path of an accelerate YAML")
    processes: int = Field(ge=1)

    def file(self) -> Path:
        path = Path(self.config)
        return path if path.suffix else recipes_folder() / "accelerate" / f"{self.config}.yaml"


class Base(Recipe):
    model: ModelName = Field(description="folder, hub id or packaged:NAME of a chat model")
    data: str = Field(min_length=1, description="JSON Lines file, CSV file or hub id")
    configuration: str | None = Field(default=None, description="of a hub data set that has several: distractor, v2.1")
    split: str = Field(default="train", description="of a hub data set")
    columns: Columns = Columns()
    reference_in_prompt: bool = Field(default=False, description="show the model the reference with the question")
    template: str | None = Field(
        default=None, pattern=r"\{question\}", description="user's message, also with {reference}"
    )
    system: str | None = Field(default=None, pattern=r"\S", description="the system's message")
    max_questions: int | None = Field(default=None, ge=4, description="null: all")
    seed: int = Field(default=0, ge=0, lt=2**31 - 1)  # mask-dpo samples with the next one
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    lora: Lora | None = None
    reward: Reward = Reward()
    uncalibrated: bool = Field(default=False, description="train on an annotator that nobody fitted to such answers")
    evaluation: Evaluation = Evaluation()
    launch: Launch | None = None

    @property
    def judge(self) -> str:
        return self.evaluation.annotator or self.reward.annotator

    @property
    def processes(self) -> int:
        return self.launch.processes if self.launch else 1

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Arguments of the chat template, in training and for the answers before and after."""
        return {}

    def load_annotator(self, name: str) -> Annotator:
        """The annotator of that name: one that the program handed in, or what ``load_annotator`` finds."""
        if name in self._annotators:
            return self._annotators[name]
        from mitigate.rewards.reward import own_device

        operating = self.reward.operating if name == self.reward.annotator else {}
        with usage(f"annotator {name}: ", (OSError, ValueError, ImportError)):
            device = self.reward.device or own_device()
            return load_annotator(name, device=device, dtype=self.reward.dtype, **operating)


def check_packages(task: str, lora: Lora | None) -> None:
    for name in ("trl", "datasets", *(("peft",) if lora else ())):
        if find_spec(name) is None:
            raise UsageError(f"{task} needs {name}: pip install 'hallucination-toolkit[trl]'")


def check_training(task: str, sources: Sequence[str], training: Training, lora: Lora | None) -> None:
    """Refuse missing libraries, local paths and trainer files that are not there; hub ids pass."""
    check_packages(task, lora)
    for source in sources:
        path = Path(source).expanduser()
        looks_local = source.startswith((".", "/", "~")) or path.suffix in {".parquet", ".json", ".jsonl"}
        if looks_local and not path.exists():
            raise UsageError(f"{source}: no such file or folder")
        if path.is_dir():
            with usage(kinds=OSError):
                locate(source)
    for key, file in (("deepspeed", training.deepspeed), ("fsdp_config", training.fsdp_config)):
        if file is not None and not Path(file).is_file():
            raise UsageError(f"training.{key}: expected a JSON file, there is none at {file}")
    if training.deepspeed is not None and find_spec("deepspeed") is None:
        raise UsageError("training.deepspeed needs DeepSpeed: DS_BUILD_OPS=0 pip install deepspeed")
    needed = {"adamw_torch_8bit": "torchao", "adamw_bnb_8bit": "bitsandbytes"}.get(training.optim)
    if needed is not None and find_spec(needed) is None:
        raise UsageError(f"training.optim: {training.optim} needs {needed}: pip install {needed}")
    if training.fsdp_config is not None and training.fsdp is None:
        raise UsageError("training.fsdp_config: expected training.fsdp beside it, got none")


def check_base(options: Base) -> None:
    """Refuse what types can't say; loads nothing."""
    check_packages(options.task, options.lora)
    own, reward, asked = options._annotators, options.reward, []
    for name, annotator in (("reward.annotator", reward.annotator), ("evaluation.annotator", options.judge)):
        if annotator in own and options.launch is not None:
            raise UsageError(
                f"{name}: {annotator!r} exists in this process only; expected launch: null, or an annotator that "
                "every process can load"
            )
        asked.append({*check_annotator(annotator, name, own)})
    if reward.annotator in own:
        for name in reward.operating:
            raise UsageError(f"reward.{name}: expected null, since {reward.annotator!r} is used as handed in")
    reward.check_calibration("reward.")
    data = Path(options.data)
    if not data.is_file() and (not HUB_ID.fullmatch(options.data) or data.suffix in {".jsonl", ".json", ".csv"}):
        raise UsageError(f"data: no such file {options.data!r}; expected JSON Lines, CSV or a hub id")
    for name, path in (options.evaluation.data or {}).items():
        if not Path(path).is_file():
            raise UsageError(f"evaluation.data: {name}: no such file {path!r}; expected JSON Lines")
    if options.reference_in_prompt and "{reference}" not in (options.template or "{reference}"):
        raise UsageError("template: expected {reference} in it with reference_in_prompt: true, got none")
    check_place("model", options.model, ("packaged:",))
    adapter = Path(options.model) / "adapter_config.json"
    if adapter.is_file() and not adapter.with_name("adapter_model.safetensors").is_file():
        raise UsageError(f"model: expected adapter_model.safetensors beside {adapter}, there is none")
    if options.evaluation.engine == "vllm" and find_spec("vllm") is None:
        raise UsageError("evaluation.engine: vllm is not installed: pip install 'hallucination-toolkit[vllm]'")
    if options.evaluation.engine == "vllm" and (options.lora is not None or adapter.is_file()):
        raise UsageError("evaluation.engine: expected transformers for an adapter (lora): vLLM loads whole models")
    if options.launch is not None and not options.launch.file().is_file():
        raise UsageError(f"launch.config: no such file {options.launch.file()}")
    if options.launch is not None and adapter.is_file() and DIVIDED.search(options.launch.file().read_text("utf-8")):
        raise UsageError(
            f"model: expected whole weights, got the adapter {options.model}, which is not trained further where "
            "weights are divided (ZeRO-3, FSDP); launch with ddp or zero2, or merge it into its base"
        )
    if not (reward.calibration or options.uncalibrated or reward.annotator in own or "generative:" in reward.annotator):
        raise UsageError(
            f"reward.calibration: expected a file of `mitigate calibrate` for {reward.annotator!r}, got null: "
            "a policy learns to exploit thresholds that are wrong on its answers. Give a file, or uncalibrated=true"
        )
    if set.intersection(*asked) and not options.evaluation.same_judge:
        raise UsageError(
            f"evaluation.annotator: expected another judge than the reward's {reward.annotator!r}, whose mistakes the "
            "policy learns to exploit. Give one, or evaluation.same_judge=true"
        )


def _typed(options: Base, key: Literal["grpo", "dpo"]) -> dict[str, Any]:
    """The recipe's options for TRL under ``key``, as TRL's class types them: YAML reads 1e-6 as a text.

    Imports TRL where any are given. Raises UsageError: the class has no such option, it is of another type, or it lets
    a model run code of its own.
    """
    given: Mapping[str, Any] = getattr(options, key)
    if not given:
        return {}
    import trl

    config = getattr(trl, f"{key.upper()}Config")
    known = {name: kind for name, kind in get_type_hints(config).items() if name not in OWN}
    found = {}
    for name, value in given.items():
        inner = value or {} if name == "model_init_kwargs" else {}
        if not isinstance(inner, dict):  # TRL takes JSON as text too, whose keys nobody would check
            raise UsageError(f"{key}.{name}: expected keys, as in {{attn_implementation: eager}}, got {value!r}")
        for own in UNSAFE & {name, *inner}:
            raise UsageError(
                f"{key}: expected no {own}, got {given!r}: weights are read from safetensors, and a recipe runs no code"
            )
        if name not in known:
            raise UsageError(
                f"{key}.{name}: {config.__name__} of trl {trl.__version__} has no such option{nearest(name, known)}"
            )
        try:
            found[name] = TypeAdapter(known[name]).validate_python(value)
        except ValidationError as error:
            if name not in WIDER or not isinstance(value, (bool, list)):
                raise UsageError(f"{key}.{name}: {error.errors()[0]['msg'].lower()}, got {value!r}") from error
            found[name] = value
        if name == "loss_type":  # TRL refuses it in training only, and lists what it knows in its help
            listed = re.search(r"values are([^.]*)", config.__dataclass_fields__[name].metadata["help"])
            losses, own = re.findall(r"'(\w+)'", listed[1] if listed else ""), found[name]
            if losses and not {*([own] if isinstance(own, str) else own)} <= {*losses}:
                raise UsageError(f"{key}.{name}: expected some of {', '.join(losses)}; got {value!r}")
    return found


def trl_config(options: Base, key: Literal["grpo", "dpo"], own: Mapping[str, Any]) -> Any:
    """TRL's ``GRPOConfig`` or ``DPOConfig``: the recipe's options for it over our own, of ``model_init_kwargs`` each
    key by itself.
    """
    import trl

    given = _typed(options, key)
    inner = own["model_init_kwargs"] | (given.get("model_init_kwargs") or {})
    return getattr(trl, f"{key.upper()}Config")(**{**own, **given, "model_init_kwargs": inner})


def check_arguments(options: Base, key: Literal["grpo", "dpo"], build: Callable[[Any, Path], Any]) -> None:
    """Refuse options for TRL that its class does not take, or of which it can't be built.

    It isn't built for several processes, whose number decides how a batch divides, nor with what only a GPU can do.
    """
    if _typed(options, key) and options.launch is None:
        import torch

        given = getattr(options, key).items()
        anywhere = {name: value for name, value in given if name != "tf32" or torch.cuda.is_available()}
        with usage(f"{key}: ", (ValueError, ImportError, TypeError, OSError)):
            build(options.model_copy(update={key: anywhere}), Path())
