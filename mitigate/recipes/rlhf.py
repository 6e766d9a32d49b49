"""Task `rlhf`: GRPO with the sentence reward, credited by sentence or as one number (recipes/rlhf/README.md)."""

from __future__ import annotations

from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat

from engines.checkpoint import locate
from engines.types import TAGS
from mitigate.io import UsageError, counted
from mitigate.recipes import options as shared
from mitigate.recipes import runner
from mitigate.recipes.data import Questions
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.trainer import fit_and_save, rl_arguments, starting_point
from mitigate.rl.credit import Credit

show = runner.show
Extra = Literal["think_format", "soft_overlong", "repetition"]


class Trainer(shared.Trainer):
    """GRPO. A step draws ``prompts`` questions and samples ``group`` answers to each."""

    credit: Literal["sentence", "sequence"] = "sentence"  # every sentence its own reward, or TRL's own GRPO
    gamma: float = Field(default=Credit.gamma, ge=0, le=1, description="1 credits a sentence with all later ones too")
    sequence_share: float = Field(default=Credit.sequence_share, ge=0, le=1, description="share of the whole answer")
    eos: Literal["none", "last", "sequence"] = Credit.eos
    thinking: Literal["none", "sequence"] = Credit.thinking
    baseline: Literal["group", "position"] = Credit.baseline
    clip: float | None = Field(default=Credit.clip, gt=0, description="of the advantage of a token")
    rollouts: int = Field(default=Credit.rollouts, ge=0, description="from each sentence's end, to say its worth")
    steps: int = Field(default=200, ge=1)
    prompts: int = Field(default=8, ge=1)
    group: int = Field(default=8, ge=2)
    max_new_tokens: int = Field(default=512, ge=1)
    temperature: float = Field(default=1.0, gt=0, le=2)
    beta: float = Field(default=0.0, ge=0, description="weight of the KL to the starting model")
    kl_target: float | None = Field(default=None, gt=0, description="that beta is steered to; null: beta stays")
    judge_every: int | None = Field(default=None, ge=1, description="steps between readings of the judge; null: never")
    share_prompts: bool = False  # the answers to a prompt share its forward pass: faster where prompts are long
    on_gap: Literal["warn", "stop", "raise-kl"] = "warn"  # when the reward rises and the judge's rate does not fall


class Options(shared.Base):
    task: Literal["rlhf"]
    trainer: Trainer = Trainer()
    extra_rewards: dict[Extra, PositiveFloat] = Field(default={}, description="TRL's for form → weight; ours has 1")
    grpo: dict[str, Any] = Field(default={}, description="any option of TRL's GRPOConfig; it wins over the others")

    @property
    def template_arguments(self) -> dict[str, Any]:
        return self.grpo.get("chat_template_kwargs") or {}

    @property
    def per_device(self) -> int:
        """Answers that a device trains on at once."""
        whole = self.trainer.prompts * self.trainer.group // self.processes
        return self.trainer.per_device_batch or max(whole, 1)


def check(options: Options) -> None:
    shared.check_base(options)
    chosen = options.trainer
    if (chosen.kl_target is not None or chosen.on_gap == "raise-kl") and not options.grpo.get("beta", chosen.beta):
        raise UsageError("trainer.beta: expected a number above 0 to start from, since KL is to be controlled, got 0")
    if chosen.on_gap != "warn" and not chosen.judge_every:
        raise UsageError(
            f"trainer.judge_every: expected a number of steps, since on_gap: {chosen.on_gap} acts on what that judge "
            "says; got null"
        )
    if chosen.share_prompts and options.grpo.get("gradient_checkpointing", chosen.gradient_checkpointing):
        raise UsageError("trainer.share_prompts: expected gradient_checkpointing: false, which keeps no keys")
    if chosen.rollouts and chosen.credit == "sequence":
        raise UsageError(f"trainer.rollouts: expected 0 with credit: sequence, got {chosen.rollouts}")
    answers, processes = chosen.prompts * chosen.group, options.processes
    if answers % (options.per_device * processes):
        raise UsageError(
            f"trainer.per_device_batch: expected a divisor of prompts × group / processes = {answers} / {processes}, "
            f"got {chosen.per_device_batch}"
        )
    if options.grpo.get("use_vllm") and find_spec("vllm") is None:
        raise UsageError("grpo.use_vllm: vllm is not installed: pip install 'hallucination-toolkit[vllm]'")
    shared.check_arguments(options, "grpo", arguments)
    level = options.grpo.get("importance_sampling_level", "token")
    if chosen.credit == "sentence" and level != "token":
        raise UsageError(f"grpo.importance_sampling_level: expected token with credit: sentence, got {level}")
    weights, functions = options.grpo.get("reward_weights"), 1 + len(options.extra_rewards) + bool(chosen.judge_every)
    if weights is not None and len(weights) != functions:
        raise UsageError(
            f"grpo.reward_weights: expected {counted(functions, 'number')}, of the reward, extra_rewards and the judge "
            f"(0), got {weights}"
        )


def run(options: Options, folder: RunFolder) -> int:
    return runner.run(options, folder, train)


def arguments(options: Options, folder: Path) -> Any:
    chosen = options.trainer
    own = rl_arguments(options, chosen, folder) | dict(
        max_steps=chosen.steps, per_device_train_batch_size=options.per_device,
        gradient_accumulation_steps=chosen.prompts * chosen.group // (options.per_device * options.processes),
        num_generations=chosen.group, max_completion_length=chosen.max_new_tokens, temperature=chosen.temperature,
        loss_type="dapo", scale_rewards="group", importance_sampling_level="token",
        reward_weights=[1.0, *options.extra_rewards.values(), *([0.0] if chosen.judge_every else [])],
        log_completions=False,
    )  # fmt: skip
    return shared.trl_config(options, "grpo", own)


def train(options: Options, questions: Questions, folder: RunFolder) -> None:
    """GRPO from the recipe's model to ``folder``/model, going on from ``folder``/checkpoints."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    from engines.transformers_engine import decode_quickly
    from mitigate.rl.control import Control
    from mitigate.rl.grpo import SentenceGRPOTrainer, SharedPromptTrainer

    chosen = options.trainer
    where = locate(options.model)
    tokenizer: Any = AutoTokenizer.from_pretrained(where, padding_side="left", trust_remote_code=False)
    train = questions.train
    # A Dataset has the columns of its first row.
    names = dict.fromkeys(name for row in train for name in row if name != "id")
    asked = [{name: train[i % len(train)].get(name) for name in names} for i in range(chosen.steps * chosen.prompts)]
    common = starting_point(options.model, options.lora, arguments(options, folder.path))
    common |= {"reward_funcs": rewards(options, tokenizer), "train_dataset": Dataset.from_list(asked)}
    common["processing_class"] = tokenizer
    if chosen.credit == "sequence":
        trainer = SharedPromptTrainer(**common)
    else:
        credit = Credit(**{field.name: getattr(chosen, field.name) for field in fields(Credit)})
        trainer = SentenceGRPOTrainer(**common, credit=credit)
    trainer.share_prompts = chosen.share_prompts
    decode_quickly(trainer.model)
    if chosen.kl_target or chosen.judge_every:
        trainer.add_callback(Control(trainer, kl_target=chosen.kl_target, on_gap=chosen.on_gap))
    fit_and_save(trainer, folder)


def rewards(options: Options, tokenizer: Any) -> list[Any]:
    """The reward, TRL's own that are asked for, and the judge's log with weight 0.

    Thinking is left out of what a model that thinks says; another one would only hide its claims there.
    """
    from trl import rewards as trl_rewards

    from mitigate.rewards.reward import SentenceReward
    from mitigate.rl.control import JudgeLog
    from mitigate.rl.grpo import parses

    every = options.trainer.judge_every
    max_tokens = options.grpo.get("max_completion_length") or options.trainer.max_new_tokens
    how = options.reward.model_dump(exclude={"annotator", "calibration", "expected_rate", "device", "dtype"})
    template = str(tokenizer.chat_template)
    thinking = TAGS[-1] if "<|channel|>" in template else next((tags for tags in TAGS if tags[1] in template), None)
    how |= {"thinking": thinking}
    if thinking and not parses(tokenizer):
        more = {"add_generation_prompt": True, **options.template_arguments}
        asked = tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tokenize=False, **more)
        how["thinking_opened"] = asked.rstrip().endswith(thinking[0])
    own = SentenceReward(options.load_annotator(options.reward.annotator), **how)
    form = {
        "think_format": trl_rewards.think_format_reward,
        "repetition": trl_rewards.get_repetition_penalty_reward(),
        "soft_overlong": trl_rewards.get_soft_overlong_punishment(max_tokens, max_tokens // 5),
    }
    found = [own, *(form[name] for name in options.extra_rewards)]
    if every:
        found.append(JudgeLog(SentenceReward(options.load_annotator(options.judge), name="judge", **how), every))
    return found
