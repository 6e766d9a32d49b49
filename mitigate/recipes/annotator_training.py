"""What the recipes of both trained annotators share: annotated data, its splits, figures of what was trained.

The paper's hyper-parameters stand with the tasks `discriminative-annotator` and `generative-annotator`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from annotators.text.language import stated
from mitigate.io import UsageError, usage
from mitigate.recipes.config import Section
from mitigate.recipes.folder import RunFolder

ANNOTATOR = "annotator"  # where in the run folder the trained annotator goes
Rows = list[dict[str, Any]]


class Data(Section):
    """Annotated data: the public ANAH rows, or files of labelled sentences."""

    sources: list[str] = Field(min_length=1, description="hub ids, .parquet, .json or .jsonl files, folders of these")
    test_share: float = Field(default=0.1, gt=0, lt=0.5, description="of the rows in each unseen part of ANAH data")
    split_seed: int = Field(default=0, ge=0)
    languages: list[Literal["en", "zh"]] = Field(default=["en", "zh"], min_length=1)
    limit: int | None = Field(default=None, ge=1, description="most training sentences; null: all")


def load_sentences(data: Data) -> tuple[Rows, bool]:
    """The rows of all sources, and whether they are ANAH's: these are flattened, and what was left out is printed."""
    from annotators.evaluation.anah import flatten, is_anah, load_rows

    try:
        found = load_rows(data.sources)
    except Exception as error:  # the library raises many kinds, of which the cause says more
        raise UsageError(f"data.sources: cannot load {', '.join(data.sources)}: {error.__cause__ or error}") from error
    if not (found and is_anah(found[0])):
        return found, False
    rows, report = flatten(found)
    print(f"# data: {report}")
    return rows, True


def load_splits(data: Data, folder: RunFolder) -> dict[str, Rows]:
    """Rows of each split, written to the run folder as `train.jsonl`, `unseen_topic.jsonl`, ….

    ANAH rows are flattened and split by topic and question; labelled sentences by their folds: 2 to 4 train, 1 is
    `dev`, 0 is `test`, which is written and not looked at. Prints what was read and left out.
    """
    rows, from_anah = load_sentences(data)
    splits = _anah_splits(rows, data) if from_anah else _fold_splits(rows)
    for name, part in splits.items():
        part = [row for row in part if (stated(row) or "en") in data.languages]
        splits[name] = part[: data.limit] if name == "train" else part
        folder.write_rows(f"{name}.jsonl", ({**row, "split": name} for row in splits[name]))
        labels = ", ".join(f"{label} {n}" for label, n in sorted(Counter(r["label"] for r in splits[name]).items()))
        print(f"# {name}: {len(splits[name])} sentences ({labels})", flush=True)
    if not splits["train"]:
        raise UsageError("data: nothing to train on is left; see what was left out above")
    return splits


def _anah_splits(rows: Rows, data: Data) -> dict[str, Rows]:
    from annotators.evaluation.anah import SPLITS, split_rows

    with usage("data: "):
        assigned, dropped = split_rows(rows, share=data.test_share, seed=data.split_seed)
    kept = sorted(set(range(len(rows))) - set(dropped))
    if dropped:
        print(f"# data: {len(dropped)} test sentences left out, since their answer is also in train")
    return {split: [rows[n] for n in kept if assigned[n] == split] for split in SPLITS}


def _fold_splits(rows: Rows) -> dict[str, Rows]:
    from annotators.evaluation.splits import FOLD_NAMES, assign_folds
    from mitigate.labels import check_labelled

    good = [row for row in rows if not check_labelled(row)]
    if len(good) < len(rows):
        print(f"# data: {len(rows) - len(good)} of {len(rows)} rows are no labelled sentences and were left out")
    folds = assign_folds(good)
    return {
        name: [row for row, fold in zip(good, folds, strict=True) if fold in FOLD_NAMES[name]]
        for name in ("train", "dev", "test")
    }


def watched(splits: Mapping[str, Rows]) -> tuple[Rows, Rows]:
    """Rows to train on and rows to watch the loss of: fold 1, or a tenth of the training topics of ANAH."""
    if "dev" in splits:
        return list(splits["train"]), list(splits["dev"])
    parts: tuple[Rows, Rows] = ([], [])
    for row in splits["train"]:  # by a hash of the topic, so that a topic stays whole and every run takes the same
        parts[int(hashlib.sha256(str(row["topic"]).encode()).hexdigest(), 16) % 10 == 0].append(row)
    return parts


def evaluate_splits(folder: RunFolder, splits: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """Accuracy, F1 and two-way figures of the trained annotator on each split, as by `mitigate evaluate`."""
    from annotators import load_annotator
    from annotators.evaluation.evaluate import evaluate, labelled, predict
    from annotators.evaluation.splits import group_rows

    annotator = load_annotator(str(folder / ANNOTATOR))
    out: dict[str, Any] = {}
    for name, part in splits.items():
        if not part:
            continue
        rows = labelled(part, [name] * len(part), group_rows(part))
        found = evaluate(rows, predict(annotator, rows), n_resamples=200)["overall"]
        keys = ("n", "coverage", "accuracy", "macro_f1", "balanced_accuracy_4way", "balanced_accuracy", "auc")
        out[name] = {key: found[key] for key in (*keys, "intervals")}
    return out
