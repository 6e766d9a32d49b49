"""Task `sft`: label-free supervised fine-tuning on the answers that FEWL picks (or a baseline, or labels; FEWL, §5.2).

Writes train.jsonl, test.jsonl, checkpoints/, model/, answers.jsonl (untuned and tuned, to the held-out questions) and
pairs.jsonl for `mitigate judge`. On several GPUs: `accelerate launch --config_file recipes/accelerate/zero2.yaml -m
mitigate.cli run …`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from engines.checkpoint import not_partitioned
from mitigate.icl import normalised, one_line
from mitigate.io import Record, UsageError
from mitigate.models import ModelName
from mitigate.recipes.config import Recipe
from mitigate.recipes.data import By, Scoring, picks, read_records
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.options import LmTraining, Lora, check_training
from mitigate.recipes.trainer import CHECKPOINTS, MODEL, fit, load_lm, losses, row_tokens, save_merged, sft_trainer

BATCH = 16  # questions generated for at once


class Options(Recipe):
    task: Literal["sft"]
    model: ModelName = Field(description="folder, hub id or packaged:NAME of a causal LM")
    data: Path = Field(description="FEWL records with answers and reference_answers, JSON Lines")
    pick: By = Field(default="fewl", description="fewl, baseline, or labels (the ceiling)")
    baseline: str = Field(min_length=1, description="the reference LLM that the baseline scores with")
    scoring: Scoring = Scoring()
    test_share: float = Field(default=0.2, gt=0, lt=1, description="of the questions, held out")
    split_seed: int = Field(default=0, ge=0)
    form: Literal["auto", "chat", "plain"] = Field(default="auto", description="auto: chat where there is a template")
    scheduler: Literal["cosine", "linear", "constant_with_warmup"] = "cosine"
    training: LmTraining
    lora: Lora | None = None
    answer_tokens: int = Field(default=128, ge=1)


def check(options: Options) -> None:
    check_training(options.task, [options.model, str(options.data)], options.training, options.lora)
    if options.training.early_stop is not None:
        raise UsageError("training.early_stop: expected null, since all rows are trained on and none is watched")


def run(options: Options, folder: RunFolder) -> int:
    records, bad = read_records(options.data, options.baseline, options.scoring, folder)
    train, test = _rows(options, folder, records)
    before, after, learned = _train(options, folder, train, test)
    answers, pairs = [], []
    for record, untuned, tuned in zip(test, before, after, strict=True):
        asked = {"id": record["id"], "question": record["question"]}
        answers.append({**asked, "untuned": untuned or None, "tuned": tuned or None})
        pairs.append({**asked, "baseline": untuned, "method": tuned})  # an empty answer loses
    folder.write_rows("answers.jsonl", answers)
    folder.write_rows("pairs.jsonl", pairs)
    figures = {
        "train_rows": len(learned), "too_long": len(train) - len(learned),
        "train_questions": len({row["question"] for row in learned}),
        "test_questions": len(test), "rejected_lines": bad, "pairs": len(pairs), **losses(folder),
    }  # fmt: skip
    folder.finish(figures)
    print(json.dumps(figures))
    print(
        f"model: {folder / MODEL}\njudge with: mitigate judge --input {folder / 'pairs.jsonl'} --output judged.jsonl …"
    )
    return 3 if bad else 0


def _rows(options: Options, folder: RunFolder, records: list[Record]) -> tuple[list[Record], list[Record]]:
    """Rows to train on (id, question, answer), scored among themselves, and the held-out records; writes both."""
    parts: tuple[list[Record], list[Record]] = ([], [])
    for record in records:
        parts[is_test(record["question"], options.test_share, options.split_seed)].append(record)
    train, test = parts
    if not train or not test:
        raise UsageError(
            f"data: {len(records)} questions leave {len(train)} to train on and {len(test)} held out; give more"
        )
    named, encode, similarity = options.scoring.load([record["question"] for record in train])
    how: Any = {"scoring": options.scoring, "baseline": options.baseline, "similarity": similarity, "encode": encode}
    rows = [
        {"id": record["id"], "question": record["question"], "answer": record["answers"][i]["text"]}
        for record, i in zip(train, picks(train, options.pick, **how), strict=True)
        if i is not None
    ]
    if not rows:
        raise UsageError(f"pick: no training question has an answer picked by {options.pick}")
    folder.write_rows("train.jsonl", rows)
    folder.write_rows("test.jsonl", test)
    print(f"# {len(rows)} rows picked by {options.pick} ({named}), {len(test)} held-out questions", flush=True)
    return rows, test


def _train(
    options: Options, folder: RunFolder, train: list[Record], test: list[Record]
) -> tuple[list[str], list[str], list[Record]]:
    """Fine-tune, write `model/`; answers to the held-out questions, untuned and tuned, and the rows that were learned:
    cut off at ``max_tokens`` one would teach no end.
    """
    import torch

    model, tokenizer = load_lm(options.model, options.training)
    form = options.form
    if form == "auto":
        form = "chat" if tokenizer.chat_template else "plain"
    questions = [record["question"] for record in test]

    def answers(model: Any) -> list[str]:
        return generate(model, tokenizer, questions, form, max_new_tokens=options.answer_tokens)

    kept = folder / "untuned.json"
    if kept.is_file():  # an interrupted run has asked the untuned model already
        before = json.loads(kept.read_text(encoding="utf-8"))
    else:
        from mitigate.rewards.reward import own_device

        before = answers(model.to(own_device() or "cuda") if torch.cuda.is_available() else model)
        folder.write(kept.name, json.dumps(before))
    every = [(row, as_row(row["question"], row["answer"], form)) for row in train]
    fit_in = [(row, shown) for row, shown in every if row_tokens(tokenizer, shown) <= options.training.max_tokens]
    if not fit_in:
        raise UsageError(f"training.max_tokens: all {len(every)} rows are longer than {options.training.max_tokens}")
    learned, rows = map(list, zip(*fit_in, strict=True))
    trainer = sft_trainer(
        (model, tokenizer), rows, options, folder, max_length=None, lr_scheduler_type=options.scheduler
    )
    fit(trainer, folder)
    tuned = save_merged(trainer, tokenizer, folder / MODEL)
    if tuned is None:
        with not_partitioned():
            tuned, _ = load_lm(str(folder / MODEL), options.training)
        tuned = tuned.to(trainer.args.device)
    print(f"# trained; checkpoints in {folder / CHECKPOINTS}; answering {len(questions)} questions", flush=True)
    return before, answers(tuned), learned


def is_test(question: str, share: float, seed: int = 0) -> bool:
    """Whether a question is held out: a ``share`` in (0, 1) of them is, 0.2 in the paper.

    It depends on the words and the seed only, so that equal questions stay together.
    """
    digest = hashlib.sha256(f"{seed} {normalised(question)}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def prompt(question: str, form: str) -> Any:
    """What the model is given: a chat, or plain text for a model without chat template."""
    if form == "chat":
        return [{"role": "user", "content": question}]
    return f"Question: {one_line(question)}\nAnswer:"


def as_row(question: str, answer: str, form: str) -> dict[str, Any]:
    """A row for TRL's SFTTrainer: {"prompt", "completion"}; the loss is on the completion."""
    completion = [{"role": "assistant", "content": answer}] if form == "chat" else f" {one_line(answer)}"
    return {"prompt": prompt(question, form), "completion": completion}


def generate(model: Any, tokenizer: Any, questions: Sequence[str], form: str, *, max_new_tokens: int) -> list[str]:
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
                shown = {"add_generation_prompt": True, "enable_thinking": False}  # as answers are trained
                asked = tokenizer.apply_chat_template(asked, tokenize=False, **shown)
            how = {"add_special_tokens": form == "plain", "return_token_type_ids": False}  # a chat template has its own
            inputs = tokenizer(asked, return_tensors="pt", padding=True, **how).to(model.device)
            with torch.inference_mode():
                out = model.generate(
                    **inputs, do_sample=False, max_new_tokens=max_new_tokens, pad_token_id=tokenizer.pad_token_id
                )
            new = tokenizer.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            texts += [text.strip() if form == "chat" else text.strip().partition("\n")[0].strip() for text in new]
    finally:
        tokenizer.padding_side = side
    return texts
