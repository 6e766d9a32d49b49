"""What training the causal-LM annotator needs beside a trainer: rows with labels at sentence ends, losses, figures.

Labels stand at the last token of each sentence, every other token has -100. Rows of two-way sources ("unsupported") are
a fifth class whose probability is P(contradictory) + P(unverifiable), so both kinds of data train one head. The loop is
transformers' ``Trainer`` (``mitigate/recipes/discriminative_annotator.py``). Source: ANAH (ACL 2024), §3.2 and C.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from annotators.evaluation.metrics import four_way
from annotators.verifier.causal import IGNORED, collate, encode, readings_of
from annotators.verifier.combiner import TARGET, UNSUPPORTED, log_chances

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase


Balance = Literal["none", "sqrt", "full"]


def training_rows(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Mapping[str, Any]], max_tokens: int
) -> tuple[list[dict[str, Any]], int]:
    """Labelled sentences as rows of ids, all of one answer in one, and the number of those that stand in none.

    Rows are {"input_ids", "targets": {position: class}}; of two labels of one sentence the first counts.
    """
    readings, places = readings_of(rows)
    target_of: dict[tuple[int, int], int] = {}
    for row, place in zip(rows, places, strict=True):
        target_of.setdefault(place, TARGET[row["label"]])
    out: list[dict[str, Any]] = [
        {"input_ids": encoded.ids, "targets": {at: target_of[number, n] for n, at in encoded.ends.items()}}
        for number, found in enumerate(encode(tokenizer, readings, max_tokens))
        for encoded in found.rows
        if encoded.ends
    ]
    return out, len(target_of) - sum(len(row["targets"]) for row in out)


def collator(tokenizer: PreTrainedTokenizerBase) -> Callable[[Sequence[Mapping[str, Any]]], dict[str, Tensor]]:
    """A function that pads rows of :func:`training_rows` on the tokenizer's side."""
    pad, side = tokenizer.pad_token_id or 0, tokenizer.padding_side
    return lambda rows: collate([row["input_ids"] for row in rows], pad, side, [row["targets"] for row in rows])


def class_weights(targets: Iterable[int], balance: Balance) -> np.ndarray:
    """Weights (5,) of the classes 0 to 4: 1 / n_c^p, scaled so that their mean over the given targets is 1.

    ``balance`` "none" is p = 0, "sqrt" p = ½, "full" p = 1: every class weighs the same in total.
    """
    power = {"none": 0.0, "sqrt": 0.5, "full": 1.0}[balance]
    count = Counter(targets)
    raw = np.array([count[c] ** -power if count[c] else 0.0 for c in range(UNSUPPORTED + 1)])
    total = sum(raw[c] * n for c, n in count.items())
    return raw * sum(count.values()) / total if total else raw


def head_loss(
    logits_BTC: Tensor, labels_BT: Tensor, weights_C: Tensor, focal: float = 0.0, n_items: Tensor | int | None = None
) -> Tensor:
    """Σ w_y (1 − p_y)^γ (−log p_y) / n over labelled tokens; p of "unsupported" is P(contradictory) + P(unverifiable).

    Logits are (B, T, 4) in the order of LABELS, labels (B, T) 0 to 4 or -100, weights (5,); ``focal`` is γ ≥ 0, above 0
    easy sentences count less; ``n_items`` is n where it is not the number of labelled tokens here (gradient
    accumulation). Source: cross entropy; focal loss: Lin et al. 2017, equation 5.
    """
    kept = labels_BT != IGNORED
    target_N = labels_BT[kept]
    log_p_N = log_chances(logits_BTC[kept].float()).gather(-1, target_N[:, None])[:, 0]
    loss_N = -log_p_N * weights_C.to(log_p_N.device)[target_N]
    if focal > 0:
        loss_N = loss_N * (1 - log_p_N.exp()).clamp(min=0) ** focal
    n: Any = n_items if n_items is not None else max(1, int(kept.sum()))
    return loss_N.sum() / n


def figures(predicted: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Four-way figures of the labelled tokens; (B, T) labels are 0 to 4, or -100, and 4 enters none."""
    kept = (labels != IGNORED) & (labels != UNSUPPORTED)
    found = four_way(labels[kept].astype(np.int64), predicted[kept].astype(np.int64))
    return {name: found[name] for name in ("accuracy", "macro_f1", "balanced_accuracy_4way") if found[name] is not None}
