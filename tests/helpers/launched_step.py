"""Two training steps of SentenceGRPOTrainer under a launcher: losses and gradients as a file.

accelerate launch --config_file recipes/accelerate/zero2.yaml … -m tests.helpers.launched_step DIRECTORY ROWS [JSON]

ROWS is the batch of one process; one group of eight answers is spread over all processes, so its statistics must be
gathered. The likeliest token is taken, so that all launches see the same answers. Under ZeRO-3 the judge is loaded
when DeepSpeed is on, to see whether its weights are divided too.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from mitigate.rewards.segments import Segment, SentenceScore
from mitigate.rl.grpo import SentenceGRPOTrainer
from tests.helpers.grpo_common import OWN, config, dataset, pieces, tiny_model, tiny_tokenizer


def mixed_reward(completions: list[str], **kwargs: Any) -> list[SentenceScore | None]:
    """Rewards that differ between neighbours and, by the place in the whole batch, between the halves of a group."""
    scores: list[SentenceScore | None] = []
    for place, text in enumerate(completions, start=int(os.environ.get("RANK", "0")) * len(completions)):
        cuts = pieces(text)
        segments = [Segment(s, e, None, (i * 3 + e - s + len(text)) % 5 - 2.0 + place) for i, (s, e) in enumerate(cuts)]
        scores.append(SentenceScore(float(len(text)), {"mixed": segments}) if segments else None)
    return scores


class Gradients(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.kept: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any, **kwargs: Any) -> None:
        if not self.kept:
            self.kept = {n.removeprefix("module."): p.grad.clone() for n, p in model.named_parameters()}


def main(directory: str, rows: int, deepspeed: str | None) -> None:
    tokenizer = tiny_tokenizer()
    args = config(
        Path(directory), per_device_train_batch_size=rows, num_generations=8, top_k=1, max_grad_norm=0.0,
        seed=5,  # with others the greedy answers are one segment, and the gradients of a group cancel
        learning_rate=1e-3, ddp_backend="gloo" if "RANK" in os.environ else None, deepspeed=deepspeed,
    )  # fmt: skip
    gradients = Gradients()
    plain = args.deepspeed_plugin is None  # DeepSpeed keeps gradients to itself
    trainer = SentenceGRPOTrainer(
        tiny_model(len(tokenizer)), mixed_reward, args, train_dataset=dataset(), processing_class=tokenizer,
        callbacks=[gradients] if plain else None, credit=OWN,
    )  # fmt: skip
    trainer.train()
    logged = {"losses": "loss", "norms": "grad_norm", "rewards": "reward"}
    kept: dict[str, Any] = {
        **{name: [row[key] for row in trainer.state.log_history if key in row] for name, key in logged.items()},
        "zero": getattr(args.deepspeed_plugin, "zero_stage", 0) if args.deepspeed_plugin else 0,
        "world": args.world_size,
        "gradients": gradients.kept,
    }
    if kept["zero"] == 3:
        from annotators import load_annotator

        judge: Any = load_annotator("embedded", device="cpu", dtype="float32")
        kept["judge_divided"] = sum(hasattr(p, "ds_id") for p in judge.verifier.network.parameters())
        kept["policy_divided"] = sum(hasattr(p, "ds_id") for p in trainer.model.parameters())
        text = "The bridge opened in 1931."
        kept["judge_label"] = judge.annotate(reference=text, answer=text).sentences[0].label
    torch.save(kept, Path(directory, f"rank{trainer.accelerator.process_index}.pt"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    os._exit(0)  # gloo's threads may abort the interpreter's own exit, when all is done and written
