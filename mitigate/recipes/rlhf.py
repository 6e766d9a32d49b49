"""Task `rlhf`: GRPO with the sentence reward, credited by sentence or as one number (recipes/rlhf/README.md)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

from pydantic import Field

from engines.checkpoint import locate
from mitigate.io import UsageError
from mitigate.recipes import options as shared
from mitigate.recipes import runner
from mitigate.recipes.config import Section
from mitigate.recipes.data import Questions
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.results import JudgeLog

show = runner.show


class Trainer(shared.Trainer):
    """GRPO. A step draws ``prompts`` questions and samples ``group`` answers to each."""

    credit: Literal["sentence", "sequence"] = Field(
        default="sentence", description="sentence: every sentence its own reward; sequence: TRL's own GRPO"
    )
    gamma: float = Field(default=0.0, ge=0, le=1, description="1 credits a sentence with all later ones too")
    sequence_share: float = Field(default=0.0, ge=0, le=1, description="share of the answer as a whole")
    eos: Literal["none", "last", "sequence"] = "none"
    steps: int = Field(default=200, ge=1)
    prompts: int = Field(default=8, ge=1)
    group: int = Field(default=8, ge=2)
    max_new_tokens: int = Field(default=512, ge=1)
    temperature: float = Field(default=1.0, gt=0, le=2)
    beta: float = Field(default=0.0, ge=0, description="weight of the KL to the starting model")
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

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for ``GRPOConfig``."""
        if self.mode == "server":
            return {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": self.url}
        return {
            "use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": self.memory,
            "vllm_tensor_parallel_size": self.tensor_parallel, "vllm_enable_sleep_mode": self.sleep,
        }  # fmt: skip


class Options(shared.Base):
    task: Literal["rlhf"]
    trainer: Trainer = Trainer()
    vllm: Vllm | None = None
    grpo: dict[str, Any] = Field(default={}, description="any option of TRL's GRPOConfig; it wins over the others")

    @property
    def per_device(self) -> int:
        """Answers that a device trains on at once."""
        whole = self.trainer.prompts * self.trainer.group // self.processes
        return self.trainer.per_device_batch or max(whole, 1)


def check(options: Options) -> None:
    """Refuse what can't work; see ``check_base``."""
    shared.check_base(options)
    shared.check_given("grpo", options.grpo, "GRPOConfig")
    answers, processes = options.trainer.prompts * options.trainer.group, options.processes
    if answers % (options.per_device * processes):
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
    return runner.run(options, folder, train)


def train(options: Options, questions: Questions, folder: RunFolder) -> None:
    """GRPO from the recipe's model to ``folder``/model, going on from ``folder``/checkpoints."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from mitigate.recipes.trainer import fit_and_save, lora_config, rl_arguments
    from mitigate.rl.credit import Credit
    from mitigate.rl.grpo import SentenceGRPOTrainer

    chosen = options.trainer
    model = locate(options.model)
    tokenizer: Any = AutoTokenizer.from_pretrained(model, padding_side="left", trust_remote_code=False)
    own = rl_arguments(options, chosen, folder) | (options.vllm.arguments() if options.vllm else {}) | dict(
        max_steps=chosen.steps, per_device_train_batch_size=options.per_device,
        gradient_accumulation_steps=chosen.prompts * chosen.group // (options.per_device * options.processes),
        num_generations=chosen.group, max_completion_length=chosen.max_new_tokens, temperature=chosen.temperature,
        loss_type="dapo", scale_rewards="group", importance_sampling_level="token",
        reward_weights=[1.0, 0.0] if chosen.log_judge else [1.0], log_completions=False,
    )  # fmt: skip
    args = GRPOConfig(**own | options.grpo)
    asked = [questions.train[i % len(questions.train)] for i in range(chosen.steps * chosen.prompts)]
    common: dict[str, Any] = {"args": args, "train_dataset": Dataset.from_list(asked), "processing_class": tokenizer}
    common["peft_config"] = lora_config(options.lora)
    functions = rewards(options, questions, tokenizer)
    if chosen.credit == "sequence":
        trainer = GRPOTrainer(model, functions, **common)
    else:
        credit = Credit(gamma=chosen.gamma, sequence_share=chosen.sequence_share, eos=chosen.eos)
        trainer = SentenceGRPOTrainer(model, functions, credit=credit, **common)
    fit_and_save(trainer, folder)


def rewards(options: Options, questions: Questions, tokenizer: Any) -> list[Any]:
    """The reward, and the judge's log with weight 0 where it is asked for.

    Thinking is left out of what a model that thinks says; another one would only hide its claims there.
    """
    from mitigate.rewards.reward import SentenceReward

    chosen = options.reward
    reward = SentenceReward(
        options.load_annotator(chosen.annotator), label_rewards=chosen.label_rewards, aspects=chosen.aspects,
        eos_token_ids=tokenizer.eos_token_id, target_sentences=chosen.target_sentences, max_words=chosen.max_words,
        copy_share=chosen.copy_share, abstention=chosen.abstention,
        thinking=("<think>", "</think>") if "</think>" in str(tokenizer.chat_template) else None,
    )  # fmt: skip
    names = dict.fromkeys(name for row in questions.train for name in row)
    reward.check({name: [row.get(name) for row in questions.train] for name in names})
    return [reward, *([JudgeLog(options.load_annotator(options.judge))] if options.trainer.log_judge else [])]
