"""One rank of the two-process test: a training step with half a group, what came out as JSON.

python -m torch.distributed.run --nproc_per_node 2 -m tests.helpers.grpo_two_ranks DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from mitigate.rl.grpo import SentenceGRPOTrainer
from tests.helpers.grpo_common import config, dataset, tiny_model, tiny_tokenizer, vowel_reward


class Kept(SentenceGRPOTrainer):
    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self.out = super()._generate_and_score_completions(inputs)
        return self.out


def main(directory: str) -> None:
    tokenizer = tiny_tokenizer()
    args = config(Path(directory), per_device_train_batch_size=2, max_steps=1, ddp_backend="gloo")
    model = tiny_model(len(tokenizer))
    trainer = Kept(model, vowel_reward, args, train_dataset=dataset(), processing_class=tokenizer)
    trainer.train()
    masks = trainer.out["completion_mask"].bool()
    ids = [row[m].tolist() for row, m in zip(trainer.out["completion_ids"], masks, strict=True)]
    kept = {"ids": ids, "advantages": trainer.out["advantages"].tolist()}
    Path(directory, f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(kept))


if __name__ == "__main__":
    main(sys.argv[1])
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    os._exit(0)  # gloo's threads may abort the interpreter's own exit, when all is done and written
