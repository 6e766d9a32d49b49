"""Label-free SFT, the parts without a trainer: split by question, rows to train on, weights by score, generation.

Per question the picked answer (FEWL, baseline, labels: `mitigate/recipes/data.py`) is what the model learns to give (FEWL,
§5.2). Loss is on the answer only. Leaves out the trainer: `mitigate/recipes/sft.py`.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from mitigate.icl import normalised, one_line

Form = Literal["chat", "plain"]


def is_test(question: str, share: float, seed: int = 0) -> bool:
    """Whether a question is kept apart; depends on its words only, so that equal questions stay together.

    Args:
        question: The question.
        share: Of the questions kept apart, in (0, 1); 0.2 in the paper.
        seed: Another seed, another split.
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
    if form == "chat":
        return {"prompt": prompt(question, form), "completion": [{"role": "assistant", "content": answer}]}
    return {"prompt": prompt(question, form), "completion": f" {one_line(answer)}"}


def drawn_by_score(scores: Sequence[float], temperature: float, seed: int) -> list[int]:
    """Row numbers drawn with replacement, as many as there are rows, in proportion to exp(score / temperature).

    Args:
        scores: Of the picked answers, higher is better; minus infinity for one without a score.
        temperature: Above 0; small ones keep the best-scored rows only, large ones every row alike.
        seed: Of the draw.

    Returns:
        Numbers in ascending order.

    Raises:
        ValueError: `temperature` is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"temperature: expected more than 0, got {temperature}")
    if not scores:
        return []
    top = max(scores)
    if math.isinf(top):  # no row has a score
        return list(range(len(scores)))
    weights = [math.exp((score - top) / temperature) for score in scores]
    return sorted(random.Random(seed).choices(range(len(scores)), weights=weights, k=len(scores)))


def generate(
    model: Any,
    tokenizer: Any,
    questions: Sequence[str],
    form: Form,
    *,
    max_new_tokens: int,
    batch_size: int = 16,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """Greedy answers of a model.

    Args:
        model: A causal LM, on its device.
        tokenizer: Its tokenizer; pads on the left meanwhile.
        questions: What is asked.
        form: As in training.
        max_new_tokens: Where an answer is cut.
        batch_size: Questions at once.
        progress: Told how many are done.

    Returns:
        One text each; of a plain model only its first line, since it may go on with a question of its own.
    """
    import torch

    side, tokenizer.padding_side = tokenizer.padding_side, "left"
    texts: list[str] = []
    model.eval()
    try:
        for start in range(0, len(questions), batch_size):
            chunk = [prompt(question, form) for question in questions[start : start + batch_size]]
            if form == "chat":
                chunk = tokenizer.apply_chat_template(chunk, tokenize=False, add_generation_prompt=True)
            inputs = tokenizer(
                chunk,
                return_tensors="pt",
                padding=True,
                add_special_tokens=form == "plain",
                return_token_type_ids=False,
            ).to(model.device)
            with torch.inference_mode():
                out = model.generate(
                    **inputs, do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id
                )
            new = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            texts += [text.strip() if form == "chat" else text.strip().partition("\n")[0].strip() for text in new]
            if progress is not None:
                progress(len(texts))
    finally:
        tokenizer.padding_side = side
    return texts


def pairs(records: Sequence[Mapping[str, Any]], before: Sequence[str], after: Sequence[str]) -> list[dict[str, Any]]:
    """Pairs for `mitigate judge`: the untuned model's answer is the baseline; labelled answers go along where known."""
    rows = []
    for record, base, tuned in zip(records, before, after, strict=True):
        if not base or not tuned:
            continue
        row = {"id": record["id"], "question": record["question"], "baseline": base, "method": tuned}
        for name, right in (("correct", True), ("incorrect", False)):
            known = [a["text"] for a in record["answers"] if a.get("label") is not None and bool(a["label"]) == right]
            if known:
                row[name] = known
        rows.append(row)
    return rows
