"""Kind `rlhf`: GRPO with the sentence reward, credited by sentence or as one number (recipes/rlhf/README.md)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from mitigate.io import UsageError
from mitigate.recipes.config import Section
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.options import Base, check_base

if TYPE_CHECKING:
    from mitigate.recipes.data import Questions
    from mitigate.recipes.runner import Log


class Trainer(Section):
    """GRPO. A step draws ``prompts`` questions and samples ``group`` answers to each."""

    credit: Literal["sentence", "sequence"] = Field(
        default="sentence", description="sentence: every sentence its own reward; sequence: TRL's own GRPO"
    )
    gamma: float = Field(default=0.0, ge=0, le=1, description="1 credits a sentence with all later ones too")
    sequence_share: float = Field(default=0.0, ge=0, description="share of the answer's advantage")
    eos: Literal["none", "last", "sequence"] = "none"
    steps: int = Field(default=200, ge=1)
    prompts: int = Field(default=8, ge=1)
    group: int = Field(default=8, ge=2)
    per_device_batch: int | None = Field(default=None, ge=1, description="answers at once; null: all of a step")
    max_new_tokens: int = Field(default=512, ge=1)
    temperature: float = Field(default=1.0, gt=0, le=2)
    learning_rate: float = Field(default=1e-6, gt=0)
    schedule: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant_with_warmup"
    warmup_steps: int = Field(default=0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    beta: float = Field(default=0.0, ge=0, description="weight of the KL to the starting model")
    gradient_checkpointing: bool = False
    save_every: int = Field(default=50, ge=1, description="steps between checkpoints")
    log_judge: bool = Field(
        default=False, description="also log what the judge of the evaluation says of the sampled answers"
    )


class Vllm(Section):
    """Generation with vLLM; null in a recipe: with transformers."""

    mode: Literal["colocate", "server"] = "colocate"
    memory: float = Field(default=0.3, gt=0, lt=1, description="share of the GPU, colocate only")
    tensor_parallel: int = Field(default=1, ge=1, description="colocate only")
    sleep: bool = Field(default=False, description="give the memory back while training, colocate only")
    url: str | None = Field(default=None, description="of `trl vllm-serve`, server only")


class Options(Base):
    kind: Literal["rlhf"]
    trainer: Trainer = Trainer()
    vllm: Vllm | None = None


def check(options: Options) -> None:
    """Refuse what can't work; loads no model.

    Raises:
        UsageError: See ``check_base``; also a batch that does not divide, or vLLM that is missing or has no server.
    """
    check_base(options)
    answers, processes = options.trainer.prompts * options.trainer.group, processes_of(options)
    if answers % (per_device(options) * processes):
        raise UsageError(
            f"trainer.per_device_batch: expected a divisor of prompts × group / processes = {answers} / {processes}, "
            f"got {options.trainer.per_device_batch}"
        )
    if options.vllm is not None:
        if find_spec("vllm") is None:
            raise UsageError("vllm: not installed: pip install 'hallucination-toolkit[vllm]', or leave the section out")
        if options.vllm.mode == "server" and options.vllm.url is None:
            raise UsageError("vllm.url: expected the address of `trl vllm-serve`, such as http://127.0.0.1:8000")


def run(options: Options, folder: RunFolder) -> int:
    """Train, with answers before and after; 3 where input lines were rejected."""
    from mitigate.recipes.runner import run_recipe

    return run_recipe(options, folder, train)


def show(folder: RunFolder) -> None:
    """Print the table of a complete run again."""
    from mitigate.recipes.runner import show as print_run

    print_run(folder)


def processes_of(options: Options) -> int:
    return options.launch.processes if options.launch else 1


def per_device(options: Options) -> int:
    whole = options.trainer.prompts * options.trainer.group // processes_of(options)
    return options.trainer.per_device_batch or max(whole, 1)


def train(options: Options, questions: Questions, model: str, folder: Path, log: Log) -> None:
    """GRPO from ``model`` to ``folder``/model, going on from ``folder``/checkpoints."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOTrainer

    from mitigate.recipes.runner import adapters, fit
    from mitigate.rl.credit import Credit
    from mitigate.rl.grpo import SentenceGRPOTrainer

    tokenizer: Any = AutoTokenizer.from_pretrained(model, padding_side="left", trust_remote_code=False)
    args = arguments(options, folder)
    asked = [questions.train[i % len(questions.train)] for i in range(options.trainer.steps * options.trainer.prompts)]
    common: dict[str, Any] = {
        "args": args,
        "train_dataset": Dataset.from_list(asked),
        "processing_class": tokenizer,
        "peft_config": adapters(options),
    }
    functions = rewards(options, questions, tokenizer.eos_token_id)
    if options.trainer.credit == "sequence":
        trainer = GRPOTrainer(model, functions, **common)
    else:
        chosen = options.trainer
        credit = Credit(gamma=chosen.gamma, sequence_share=chosen.sequence_share, eos=chosen.eos)
        trainer = SentenceGRPOTrainer(model, functions, credit=credit, **common)
    fit(trainer, folder, log)


def arguments(options: Options, folder: Path) -> Any:
    """The GRPOConfig."""
    from trl import GRPOConfig

    from mitigate.recipes.runner import common_arguments, load_options

    chosen, batch = options.trainer, per_device(options)
    answers = chosen.prompts * chosen.group
    vllm: dict[str, Any] = {}
    if options.vllm is not None:
        vllm = {"use_vllm": True, "vllm_mode": options.vllm.mode}
        if options.vllm.mode == "server":
            vllm |= {"vllm_server_base_url": options.vllm.url}
        else:
            vllm |= {
                "vllm_gpu_memory_utilization": options.vllm.memory,
                "vllm_tensor_parallel_size": options.vllm.tensor_parallel,
                "vllm_enable_sleep_mode": options.vllm.sleep,
            }
    return GRPOConfig(
        **common_arguments(options, chosen, folder),
        **vllm,
        model_init_kwargs=load_options(options),
        max_steps=chosen.steps,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=answers // (batch * processes_of(options)),
        num_generations=chosen.group,
        max_completion_length=chosen.max_new_tokens,
        temperature=chosen.temperature,
        loss_type="dapo",
        scale_rewards="group",
        importance_sampling_level="token",
        reward_weights=[1.0, 0.0] if chosen.log_judge else [1.0],
        log_completions=False,
    )


def rewards(options: Options, questions: Questions, eos: int) -> list[Any]:
    """The reward, and the judge's log with weight 0 where it is asked for."""
    from mitigate.recipes.results import JudgeLog
    from mitigate.rewards.reward import SentenceReward

    chosen = options.reward
    reward = SentenceReward(
        options.load_annotator(chosen.annotator),
        label_rewards=chosen.label_rewards,
        aspects=chosen.aspects,
        eos_token_ids=eos,
        target_sentences=chosen.target_sentences,
        max_words=chosen.max_words,
        device=chosen.device,
    )
    reward.check({name: [row.get(name) for row in questions.train] for name in questions.train[0]})
    if not options.trainer.log_judge:
        return [reward]
    return [reward, JudgeLog(options.load_annotator(options.judge))]
