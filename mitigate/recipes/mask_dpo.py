"""Task `mask-dpo`: sampled answers, judged, paired best against worst, and DPO on the sentences that differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from engines.checkpoint import locate
from engines.types import check_chats
from mitigate.io import Problem, Record, UsageError, check_texts, read_lines, say, shown
from mitigate.recipes import options as shared
from mitigate.recipes import runner
from mitigate.recipes.config import Section
from mitigate.recipes.data import HELD_OUT, Questions
from mitigate.recipes.folder import RunFolder
from mitigate.recipes.trainer import fit_and_save, rl_arguments, starting_point
from mitigate.rl.preferences import KEPT, best_against_worst, sentences_of

SAMPLED, PAIRS = "sampled.jsonl", "pairs.jsonl"
SIDES, CUT = ("chosen", "rejected"), ("chosen_cut_off", "rejected_cut_off")
CHUNK = 32  # questions sampled and judged between two writes
TELLING = 8  # characters from which a held-out text in the middle of a prompt is no accident
show = runner.show


class Sampling(Section):
    per_question: int = Field(default=8, ge=2)
    temperature: float = Field(default=1.0, gt=0, le=2)
    max_new_tokens: int = Field(default=512, ge=1)
    min_gap: float = Field(default=0.0, ge=0, le=1, description="smallest difference of the two rates of a pair")
    # Largest difference in copying; then the least copied best and the most copied worst answer make a pair.
    copy_gap: float | None = Field(default=None, ge=-1, le=1)
    chat_template_kwargs: dict[str, Any] = Field(default={}, description="also for training, and before and after it")


class Trainer(shared.Trainer):
    """DPO over sentences, or of whole answers with the losses of our variant ("plain")."""

    loss: Literal["variant", "paper", "plain"] = "variant"  # paper: masks and loss of Gu et al. 2025, whose beta is 0.1
    epochs: float = Field(default=1.0, gt=0)
    batch: int = Field(default=16, ge=1, description="pairs per step, on all devices")
    beta: float = Field(default=0.1, gt=0)
    max_length: int | None = Field(default=None, ge=16, description="tokens of prompt and answer; null: all")


class Options(shared.Base):
    task: Literal["mask-dpo"]
    sampling: Sampling = Sampling()
    pairs: Path | None = Field(default=None, description="to train on, in our form or Mask-DPO's; null: sampled")
    trainer: Trainer = Trainer()
    dpo: dict[str, Any] = Field(default={}, description="any option of TRL's DPOConfig; it wins over the others")

    @property
    def template_arguments(self) -> dict[str, Any]:
        return self.sampling.chat_template_kwargs


def check(options: Options) -> None:
    shared.check_base(options)
    if options.pairs is not None:
        _read_pairs(options.pairs)
    once, processes = options.trainer.per_device_batch or 1, options.processes
    if options.trainer.batch % (once * processes):
        raise UsageError(
            f"trainer.batch: expected a multiple of per_device_batch × processes = {once} × {processes}, "
            f"got {options.trainer.batch}"
        )
    shared.check_arguments(options, "dpo", arguments)


def run(options: Options, folder: RunFolder) -> int:
    return runner.run(options, folder, train, prepare)


def prepare(options: Options, questions: Questions, folder: RunFolder) -> None:
    """Write the folder's pairs.jsonl: those given, or from answers of the starting model; goes on where it stopped."""
    if (folder / PAIRS).is_file():
        return
    if options.pairs is not None:
        folder.write_rows(PAIRS, _apart(_read_pairs(options.pairs), questions.evaluation.get(HELD_OUT, [])))
        return
    how, judge = options.sampling, options.load_annotator(options.reward.annotator)
    done = folder.rows(SAMPLED)
    first = done[-1]["place"] if done else 0  # of which only a part may have been written
    folder.write_rows(SAMPLED, [row for row in done if row["place"] < first])
    rows = [{**row, "place": place} for place, row in enumerate(questions.train)]
    seed = options.seed + 1
    # A half sentence would be judged; where to stop is learned from answers that ended by themselves.
    kinds: Any = {"n": how.per_question, "seed": seed, "chunk": CHUNK, "whole": True}
    for records in runner.ask(options.model, rows[first:], options, how, **kinds):
        found = runner.judged(options.reward.annotator, judge, records)
        folder.append(SAMPLED, (one.to_dict() for one in found))
    samples: dict[int, list[Record]] = {}
    for row in folder.rows(SAMPLED):
        samples.setdefault(row["place"], []).append(row)
    pairs = [  # with the prompt as it was asked
        pair | {"prompt": questions.train[place]["prompt"]}
        for place, own in samples.items()
        if (pair := best_against_worst(own, min_gap=how.min_gap, copy_gap=how.copy_gap)) is not None
    ]
    if not pairs:
        bound = "" if how.copy_gap is None else f", of which the better one copies at most {how.copy_gap} more"
        raise UsageError(
            f"no pairs: expected two answers to one question whose hallucination rates differ, by {how.min_gap} or more"
            f"{bound}, found none; draw more (sampling.per_question), longer ones (max_new_tokens: what is cut off "
            "counts up to its last whole sentence), or bound less (min_gap, copy_gap), with another --output"
        )
    folder.write_rows(PAIRS, pairs)


def _apart(pairs: list[Record], held: Sequence[Record]) -> list[Record]:
    """The pairs whose prompt and reference have no held-out question and none of the held-out references in them."""
    from annotators.evaluation.splits import plain

    texts_held = (text for row in held for text in (row["question"], row["prompt"][-1]["content"], row["reference"]))
    told = {plain(text) for text in texts_held} - {""}
    left = []
    for one in pairs:
        texts = [plain(text) for text in (*(m["content"] for m in one["prompt"]), one.get("reference"))]
        whole = " ".join(texts)
        if told.isdisjoint(texts) and not any(len(text) >= TELLING and text in whole for text in told):
            left.append(one)
    if len(left) < len(pairs):
        print(f"# pairs: {len(left)}; {len(pairs) - len(left)} left out, of the held-out questions")
    if not left:
        raise UsageError("pairs: all are of the held-out questions; give others, or name files in evaluation.data")
    return left


def _read_pairs(path: Path) -> list[Record]:
    """The pairs of a file with their sentences in our form; UsageError names the first bad line."""

    def check_pair(record: Record) -> list[Problem]:
        try:
            check_chats([record[name] for name in ("prompt", *SIDES)])
            for side in SIDES:
                sentences_of(record, side, record[side][-1]["content"])
        except KeyError as error:
            return [Problem(str(error.args[0]), None, "a list of messages")]
        except (ValueError, TypeError) as error:
            return [Problem("pair", shown(record), f"prompt, chosen and rejected with their sentences: {error}")]
        return check_texts(record, reference="any?")

    rows = []
    for line in read_lines(path, check_pair):
        if line.record is None:
            raise UsageError(f"pairs: {path}:{line.number}: {'; '.join(map(str, line.problems))}")
        pair = {name: line.record[name] for name in ("prompt", *SIDES, "reference", *CUT) if name in line.record}
        judged = {f"{side}_sentences": sentences_of(line.record, side, pair[side][-1]["content"]) for side in SIDES}
        rows.append(pair | judged)
    if not rows:
        raise UsageError(f"pairs: {path}: expected pairs, found none")
    for side in SIDES:
        if not any(s["label"] in KEPT[side] for row in rows for s in row[f"{side}_sentences"]):
            raise UsageError(
                f"pairs: {path}: no sentence of {side} is {' or '.join(sorted(KEPT[side]))}, so none would train; the "
                "types of Mask-DPO are hallucination and no_hallucination"
            )
    return rows


def arguments(options: Options, folder: Path) -> Any:
    from mitigate.rl.dpo import MASK_DPO, PAPER_MASK_DPO

    chosen, processes = options.trainer, options.processes
    batch = chosen.per_device_batch or chosen.batch // processes
    settings = PAPER_MASK_DPO if chosen.loss == "paper" else MASK_DPO
    own = settings | rl_arguments(options, chosen, folder) | dict(
        num_train_epochs=chosen.epochs,
        per_device_train_batch_size=batch, gradient_accumulation_steps=chosen.batch // (batch * processes),
        max_length=chosen.max_length,
    )  # fmt: skip
    return shared.trl_config(options, "dpo", own)


def train(options: Options, questions: Questions, folder: RunFolder) -> None:
    """DPO on pairs.jsonl, from the recipe's model to ``folder``/model, going on from ``folder``/checkpoints."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import DPOTrainer

    from mitigate.rl.dpo import MaskDPOCollator, kept_as_written

    tokenizer: Any = AutoTokenizer.from_pretrained(locate(options.model), trust_remote_code=False)
    args, loss = arguments(options, folder.path), options.trainer.loss
    collator = None if loss == "plain" else MaskDPOCollator(tokenizer, args, loss)
    pairs = folder.rows(PAIRS)
    if collator is not None:
        # Sentences are found by the characters of tokens: some tokenizers write e + accent as one sign.
        every = len(pairs)
        pairs = [pair for pair in pairs if all(kept_as_written(tokenizer, pair[side]) for side in SIDES)]
        if len(pairs) < every and args.process_index == 0:
            say(f"pairs: {every - len(pairs)} of {every} left out, whose text the tokenizer changes")
        if not pairs:
            raise UsageError("pairs: the tokenizer of the model changes the text of all; give trainer.loss=plain")
    if options.template_arguments:
        pairs = [pair | {"chat_template_kwargs": options.template_arguments} for pair in pairs]
    trainer = DPOTrainer(
        **starting_point(options.model, options.lora, args), processing_class=tokenizer,
        train_dataset=Dataset.from_list(pairs),
        data_collator=collator,
    )  # fmt: skip
    fit_and_save(trainer, folder)
