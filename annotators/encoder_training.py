"""Train the pair encoder on examples: two heads, one loop, checkpoints from which it goes on.

The label head learns four-way and two-way labels at once (``combiner.multitask_loss``), the token head learns which
words are unsupported where that is known. Stages differ only in their examples, learning rate and passes.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from annotators.combiner import multitask_loss
from annotators.encoder import PairEncoder
from annotators.pairs import Pair
from annotators.synthetic import Example

log = logging.getLogger(__name__)
TOKEN_WEIGHT = 0.5
POSITIVE_TOKEN = 3.0
CHECKPOINT_STEPS = 250


def token_targets(pair: Pair, example: Example) -> np.ndarray:
    """(_S,) 1 on tokens of unsupported words, 0 on others, −1 where it is not known."""
    if example.spans is None:
        return np.full(len(pair.offsets), -1.0, np.float32)
    wrong = np.zeros(len(pair.offsets), np.float32)
    for a, b in example.spans:
        wrong[(pair.offsets[:, 0] < b) & (pair.offsets[:, 1] > a)] = 1.0
    return wrong


def batch_order(lengths: Sequence[int], size: int, seed: int) -> list[list[int]]:
    """Rows in random batches of ``size`` rows of like length."""
    random = Random(seed)
    order = list(range(len(lengths)))
    random.shuffle(order)
    groups = [order[i : i + 24 * size] for i in range(0, len(order), 24 * size)]
    batches = []
    for group in groups:
        group.sort(key=lambda i: lengths[i])
        batches += [group[i : i + size] for i in range(0, len(group), size)]
    random.shuffle(batches)
    return batches


def loss_of(
    encoder: PairEncoder,
    pairs: Sequence[Pair],
    examples: Sequence[Example],
    numbers: Sequence[int],
    beside: np.ndarray | None,
) -> torch.Tensor:
    """Loss of one batch; with ``beside``, logits (n, 4) of another model, also that of the two added up."""
    batch = encoder.batch([pairs[i] for i in numbers])
    kind = encoder.device.split(":")[0]
    with torch.autocast(kind, torch.bfloat16, enabled=encoder.dtype == "bfloat16"):
        label_B4, token_BT = encoder.model(**batch)
    target_B = torch.tensor([examples[i].target for i in numbers], device=encoder.device)
    weight_B = torch.tensor([examples[i].weight for i in numbers], device=encoder.device)
    loss = multitask_loss(label_B4, target_B, weight_B)
    if beside is not None:
        other = torch.tensor(beside[list(numbers)], dtype=torch.float32, device=encoder.device)
        loss = 0.5 * loss + multitask_loss(label_B4 + other, target_B, weight_B)
    wanted = torch.full(token_BT.shape, -1.0)
    for row, i in enumerate(numbers):
        first = pairs[i].first
        wanted[row, first : first + len(pairs[i].offsets)] = torch.from_numpy(
            token_targets(pairs[i], examples[i])
        )
    wanted = wanted.to(encoder.device)
    known = (wanted >= 0) & batch["sentence_BT"]
    if known.any():
        each = binary_cross_entropy_with_logits(
            token_BT[known], wanted[known], pos_weight=torch.tensor(POSITIVE_TOKEN, device=encoder.device)
        )
        loss = loss + TOKEN_WEIGHT * each
    return loss


def train_stage(
    encoder: PairEncoder,
    examples: Sequence[Example],
    folder: Path,
    *,
    epochs: float,
    rate: float,
    batch: int = 32,
    seed: int = 0,
    beside: np.ndarray | None = None,
) -> None:
    """Train in place; the state is kept in ``folder`` every CHECKPOINT_STEPS steps and taken up again from there.

    Args:
        encoder: What is trained.
        examples: n rows.
        folder: For checkpoints; of this stage alone.
        epochs: Passes over the rows.
        rate: Highest learning rate; rises over the first 6 % of steps, then falls linearly to 0.
        batch: Rows of a step.
        seed: Of the order.
        beside: (n, 4) logits of another model to which the encoder's are to be added, or None.
    """
    pairs = encoder.pairs([(e.question, e.sentence, e.passages) for e in examples])
    lengths = [len(pair.ids) for pair in pairs]
    per_epoch = -(-len(examples) // batch)
    total = max(1, round(per_epoch * epochs))
    model = encoder.model
    body = [p for n, p in model.named_parameters() if p.requires_grad and n.startswith("base.")]
    heads = [p for n, p in model.named_parameters() if p.requires_grad and not n.startswith("base.")]
    optimizer = torch.optim.AdamW(
        [{"params": body, "lr": rate}, {"params": heads, "lr": 5 * rate}], weight_decay=0.01
    )
    highest = [group["lr"] for group in optimizer.param_groups]
    step = restore(model, folder, optimizer)
    log.info("%s: %d examples, %d steps from %d, %.0f tokens a row", folder.name, len(examples), total, step,
             float(np.mean(lengths)))  # fmt: skip
    started, running = time.monotonic(), 0.0
    for numbers in _steps(lengths, batch, seed, step, total):
        share = min((step + 1) / (0.06 * total + 1), max(0.0, (total - step) / (0.94 * total)))
        for group, top in zip(optimizer.param_groups, highest, strict=True):
            group["lr"] = top * share
        optimizer.zero_grad()
        loss = loss_of(encoder, pairs, examples, numbers, beside)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(body + heads, 1.0)
        optimizer.step()
        step += 1
        running += loss.item()
        if step % 50 == 0:
            log.info("%s: step %d of %d, loss %.3f, %.0f s", folder.name, step, total, running / 50,
                     time.monotonic() - started)  # fmt: skip
            running = 0.0
        if step % CHECKPOINT_STEPS == 0 or step == total:
            keep(model, optimizer, folder, step)
    model.eval()


def _steps(lengths: Sequence[int], size: int, seed: int, done: int, total: int) -> Iterator[list[int]]:
    at = 0
    epoch = 0
    while at < total:
        for numbers in batch_order(lengths, size, seed + epoch):
            if at >= total:
                return
            if at >= done:
                yield numbers
            at += 1
        epoch += 1


def keep(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: Path, step: int) -> None:
    """Write parameters, optimizer state and step; the last complete state survives a kill."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{n}": p.detach() for n, p in model.named_parameters() if p.requires_grad}
    for group, values in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{group}.{k}": torch.as_tensor(v) for k, v in values.items()}
    part = folder / "state.part"
    save_file(
        {k: v.clone().contiguous() for k, v in tensors.items()}, part, metadata={"step": json.dumps(step)}
    )
    part.replace(folder / "state.safetensors")


def restore(model: torch.nn.Module, folder: Path, optimizer: torch.optim.Optimizer | None = None) -> int:
    """Take up what ``keep`` wrote, without an optimizer the weights alone; the step, 0 where there is nothing."""
    from safetensors import safe_open

    path = folder / "state.safetensors"
    if not path.is_file():
        return 0
    with safe_open(path, "pt") as stored:
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        step = int(json.loads(stored.metadata()["step"]))
    model.load_state_dict(
        {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}, strict=False
    )
    if optimizer is None:
        return step
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, group, key = name.split(".", 2)
            state.setdefault(int(group), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return step
