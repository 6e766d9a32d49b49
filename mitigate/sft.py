"""Label-free SFT, the parts without a trainer: split by question, rows to train on, weights by score, generation.

For each question the picked answer (by FEWL, the baseline or labels: `mitigate/recipes/data.py`) is what the model
learns to give (FEWL, §5.2). Loss is on the answer only. Leaves out the trainer: `mitigate/recipes/sft.py`.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mitigate.icl import normalised, one_line

Form = Literal["chat", "plain"]
BATCH = 16  # questions generated for at once


def is_test(question: str, share: float, seed: int = 0) -> bool:
    """Whether a question is held out: a ``share`` in (0, 1) of them is, 0.2 in the paper.

    It depends on the words and the seed only, so that equal questions stay together.
    """
    digest = hashlib.sha256(f"{seed} {normalised(question)}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def prompt(question: str, form: Form) -> Any:
    """What the model is given: a chat, or plain text for a model without chat template."""
    if form == "chat":
        return [{"role": "user", "content": question}]
    return f"Question: {one_line(question)}\nAnswer:"


def as_row(question: str, answer: str, form: Form) -> dict[str, Any]:
    """A row for TRL's SFTTrainer: {"prompt", "completion"}; the loss is on the completion."""
    completion = [{"role": "assistant", "content": answer}] if form == "chat" else f" {one_line(answer)}"
    return {"prompt": prompt(question, form), "completion": completion}


def drawn_by_score(scores: Sequence[float], temperature: float, seed: int) -> list[int]:
    """Row numbers, ascending, drawn with replacement, as many as rows, in proportion to exp(score / temperature).

    A row without a score has minus infinity. Small temperatures keep the best-scored rows only, large ones all alike.
    Raises ValueError: `temperature` is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"temperature: expected more than 0, got {temperature}")
    top = max(scores, default=-math.inf)
    if math.isinf(top):  # no row has a score
        return list(range(len(scores)))
    weights = [math.exp((score - top) / temperature) for score in scores]
    return sorted(random.Random(seed).choices(range(len(scores)), weights=weights, k=len(scores)))


def generate(model: Any, tokenizer: Any, questions: Sequence[str], form: Form, *, max_new_tokens: int) -> list[str]:
    """Greedy answers of a causal LM, on its device, asked in the form it is trained in.

    Returns one text per question; of a plain model only the first line, since it may go on with a question of its own.
    """
    import torch

    side, tokenizer.padding_side = tokenizer.padding_side, "left"  # generation goes on at the right
    texts: list[str] = []
    model.eval()
    try:
        for start in range(0, len(questions), BATCH):
            asked = [prompt(question, form) for question in questions[start : start + BATCH]]
            if form == "chat":
                asked = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
            special = form == "plain"  # a chat template has its own
            how = {"return_tensors": "pt", "padding": True, "return_token_type_ids": False}
            inputs = tokenizer(asked, add_special_tokens=special, **how).to(model.device)
            with torch.inference_mode():
                out = model.generate(
                    **inputs, do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id
                )
            new = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            texts += [text.strip() if form == "chat" else text.strip().partition("\n")[0].strip() for text in new]
    finally:
        tokenizer.padding_side = side
    return texts


def pairs(records: Sequence[Mapping[str, Any]], before: Sequence[str], after: Sequence[str]) -> list[dict[str, Any]]:
    """Pairs for `mitigate judge`: the untuned model's answer is the baseline; labelled answers go along where known.

    A model that says nothing has the empty answer, which loses.
    """
    rows = []
    for record, base, tuned in zip(records, before, after, strict=True):
        row = {"id": record["id"], "question": record["question"], "baseline": base, "method": tuned}
        labelled = [(a["text"], bool(a["label"])) for a in record["answers"] if a.get("label") is not None]
        for name, right in (("correct", True), ("incorrect", False)):
            if known := [text for text, label in labelled if label == right]:
                row[name] = known
        rows.append(row)
    return rows
