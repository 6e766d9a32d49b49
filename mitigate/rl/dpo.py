"""Mask-DPO on TRL: the preference counts only where it is about facts.

    args = DPOConfig(**MASK_DPO, ...)  # our variant; or **PAPER_MASK_DPO, and loss="paper" for the collator
    DPOTrainer(model, args=args, train_dataset=..., processing_class=tokenizer,
               data_collator=MaskDPOCollator(tokenizer, args))

Plain DPO also pushes down the true sentences of the rejected answer and pulls up the wrong ones of the chosen one.
Gu et al. (ICLR 2025) leave the hallucinated sentences of the chosen and the supported ones of the rejected answer out
of the loss. Our variant also leaves out what is neither, and the end of the rejected answer. Pairs come from
``preferences.py``, or `mitigate build-preferences`. Tokens are matched with sentences by exact character offsets of the
ids (``credit.py``); nothing is tokenised twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from mitigate.rewards.inputs import completion_text
from mitigate.rewards.segments import Segment
from mitigate.rl.credit import anchors, locate, owners, special_ids, token_spans
from mitigate.rl.preferences import KEPT, LEFT_OUT, sentences_of

try:
    from trl import DPOConfig
    from trl.trainer.dpo_trainer import DataCollatorForPreference
except ImportError as error:
    raise ImportError("mitigate.rl.dpo needs TRL: pip install 'hallucination-toolkit[trl]'") from error

MASK_DPO: dict[str, Any] = {
    "loss_type": ["sigmoid_norm", "sft"],
    "loss_weights": [1.0, 1.0],
    "remove_unused_columns": False,
}
"""Settings of ``DPOConfig`` for our variant. The mask leaves many more tokens of the rejected than of the chosen
side, under which the summed log-ratios of plain "sigmoid" collapse: "sigmoid_norm" takes means, and "sft" holds the
chosen sentences up. With ``remove_unused_columns`` the sentences would never reach the collator."""

PAPER_MASK_DPO: dict[str, Any] = {"loss_type": ["sigmoid"], "beta": 0.1, "remove_unused_columns": False}
"""Those of the paper: DPO's sigmoid of summed log-ratios over the tokens that its masks leave."""


class MaskDPOCollator(DataCollatorForPreference):
    """TRL's collator with ``completion_mask`` zeroed for the tokens that do not count.

    The variant keeps the supported sentences of the chosen answer with its end, and the hallucinated ones of the
    rejected answer; the paper keeps all but the hallucinated, and all but the supported ones, both ends included. The
    end of an answer that was cut off (``chosen_cut_off``, ``rejected_cut_off``) never counts.

    Args:
        tokenizer: The trainer's; ValueError where it is slow, or has neither a padding nor an end token.
        args: The trainer's ``DPOConfig``; ``max_length``, ``truncation_mode`` and ``pad_to_multiple_of`` are taken from
            it, as TRL's own collator has them.
        loss: "variant" or "paper"; the settings of the same name go with it.
    """

    def __init__(self, tokenizer: Any, args: DPOConfig, loss: Literal["variant", "paper"] = "variant") -> None:
        if loss not in ("variant", "paper"):
            raise ValueError(f"loss: expected variant or paper, got {loss!r}")
        fast = getattr(tokenizer, "backend_tokenizer", None)
        if fast is None:
            raise ValueError(
                f"token offsets need a fast tokenizer, got {type(tokenizer).__name__}: load it with AutoTokenizer"
            )
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        if pad is None:
            raise ValueError("expected a tokenizer with a padding or end token, got one with neither")
        if getattr(args, "precompute_ref_log_probs", False):  # TRL finds them again by data and model alone
            raise ValueError(
                "precompute_ref_log_probs: expected False: TRL's cache of them does not know what the masks keep"
            )
        names = ("max_length", "truncation_mode", "pad_to_multiple_of")
        # TRL's trainer replaces "auto" itself, but only in what it hands to its own collator.
        options = {name: getattr(args, name) for name in names if getattr(args, name, "auto") != "auto"}
        super().__init__(pad_token_id=pad, **options)
        self._paper = loss == "paper"
        self._fast, self._eos, self._special = fast, tokenizer.eos_token_id, special_ids(fast)

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate examples that have the sentences of both sides too (``sentences_of``).

        Raises ValueError: there are none, or ``max_length`` leaves nothing of a chosen answer that counts.
        """
        out: dict[str, Any] = super().torch_call(examples)
        mask_BT = out["completion_mask"]
        for half, side in enumerate(("chosen", "rejected")):
            for i, example in enumerate(examples):
                kept = whole = [0] * len(example["prompt_ids"]) + self.kept(example, side)
                if self.max_length is not None:  # as TRL cuts: the end or the start of prompt and completion together
                    start = self.truncation_mode == "keep_start"
                    kept = kept[: self.max_length] if start else kept[-self.max_length :]
                if side == "chosen" and not self._paper and any(whole) and not any(kept):
                    raise ValueError(
                        f"max_length={self.max_length} cuts off all that counts of the chosen answer, and the mean of "
                        f'"sft" would be NaN: give a larger one, or leave the pair out: {str(example[side])[:200]}'
                    )
                row_T = mask_BT[half * len(examples) + i]
                row_T[: len(kept)] *= row_T.new_tensor(kept)
        return out

    def kept(self, example: Mapping[str, Any], side: str) -> list[int]:
        """1 for each token of ``example[side + "_ids"]`` that counts, else 0; ``side`` is "chosen" or "rejected"."""
        ids = example[f"{side}_ids"]
        decoded, spans_T2 = token_spans(self._fast, ids, self._special)
        text = completion_text(example[side]).removesuffix(self._fast.id_to_token(self._eos) or "")
        segments = [Segment(s["start"], s["end"], s["label"]) for s in sentences_of(example, side, text)]
        places = locate(text, decoded, segments)
        if places is None:
            raise ValueError(
                f"the text of {side} is not what its token ids decode to: text {text[:80]!r}, decoded {decoded[:80]!r}"
                "; give the answers as they were sampled"
            )
        owners_T = owners(anchors(decoded, spans_T2), places)
        if self._paper:
            kept = [int(j < 0 or segments[j].label not in LEFT_OUT[side]) for j in owners_T]
        else:
            kept = [int(j >= 0 and segments[j].label in KEPT[side]) for j in owners_T]
        # What ends a turn is the first special token after it, often another than the tokenizer's own end.
        after = max(np.flatnonzero(owners_T >= 0), default=-1) + 1
        end = next((t for t in range(after, len(ids)) if ids[t] in self._special), len(ids))
        if example.get(f"{side}_cut_off"):
            kept[end:] = [0] * (len(ids) - end)
        elif side == "chosen":
            kept[end : end + 1] = [1] * len(ids[end : end + 1])
        return kept


def kept_as_written(tokenizer: Any, messages: Any) -> bool:
    """Whether an answer's token ids decode to its own text, so that its sentences can be found in them."""
    text, fast = completion_text(messages), tokenizer.backend_tokenizer
    decoded, _ = token_spans(fast, fast.encode(text, add_special_tokens=False).ids, special_ids(fast))
    return locate(text, decoded, ()) is not None
