"""The training run of the embedded annotator, stage by stage; each stage's result is kept and read again.

    1. edited.jsonl           sentences of documents and people's supported ones, reworded, half of them made false
    2. edits/, labels/        the pair encoder learns from these, then from people's labels (checkpoints inside)
    3. windows.npz, .jsonl    features of every labelled row, and what the encoder reads of its window
    4. the combiner           networks over the features; calibrated with the encoder's logits on fold 1

People's labels are learned beside the combiner: the encoder's logits are to be right by themselves and added to
those of networks that did not see the row, so that it learns what the features can't tell. The same settings and
data give the same annotator, up to the order in which a machine adds numbers.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from annotators.discriminative import DiscriminativeAnnotator
from annotators.encoder import PairEncoder
from annotators.encoder_data import (
    EDITED_TOKENS,
    cut,
    edited_set,
    labelled_examples,
    read_examples,
    write_examples,
)
from annotators.encoder_training import train_stage
from annotators.features import FEATURES, VERSION, Idf
from annotators.pairs import EXCERPT_TOKENS, LEAST_GAIN
from annotators.splits import FOLD_NAMES
from annotators.synthetic import Example
from annotators.training import (
    Edits,
    Table,
    calibrate,
    false_edits,
    fit_combiner,
    fit_idf,
    read_rows,
    read_windows,
    row_weights,
    synthetic,
    usable,
)
from engines.embedding import Embedder

log = logging.getLogger(__name__)
EDIT_SHARE, EDIT_WEIGHT = 0.5, 0.7
"""Of people's supported sentences in false versions beside people's labels: how many, and the weight of each."""
REPLAYED = 1500
"""Examples of the first stage in the second one, the first of its random order, so that what only they teach (who did
what) is not forgotten."""


@dataclass(frozen=True)
class Settings:
    """What a training run depends on.

    Args:
        data: Folder with sentences/, binary/ and spans/.
        sources: To train on.
        base: Of the pair encoder: hub id or folder; None for the packaged MiniLM.
        embedder: For windows and features, likewise.
        seed: Of everything drawn.
        edit_rate, label_rate: Highest learning rates of the encoder's two stages.
        edit_epochs, label_epochs: Passes over their examples.
        batch: Rows of a step.
    """

    data: Path
    sources: tuple[str, ...]
    base: str | None = None
    embedder: str | None = None
    seed: int = 0
    edit_rate: float = 1.2e-4
    edit_epochs: float = 1.0
    label_rate: float = 8e-5
    label_epochs: float = 2.0
    batch: int = 32


def train_annotator(settings: Settings, work: Path) -> DiscriminativeAnnotator:
    """Train, going on from what an earlier start with the same settings left in ``work``."""
    import torch

    work.mkdir(parents=True, exist_ok=True)
    test = FOLD_NAMES["test"]
    rows = [r for r in read_rows(settings.data) if r["fold"] not in test and usable(r, settings.sources)]
    train_rows = [row for row in rows if row["fold"] in FOLD_NAMES["train"]]
    idf = fit_idf(train_rows)
    idf = Idf(idf.table.astype(np.float16))  # as it is stored
    torch.manual_seed(settings.seed)
    encoder = PairEncoder(settings.base)
    edited = work / "edited.jsonl"
    if not edited.is_file():
        write_examples(edited_set(train_rows, idf, encoder, settings.seed), edited)
    examples = cut(read_examples(edited), idf, encoder, EDITED_TOKENS)
    train_stage(
        encoder, examples, work / "edits", epochs=settings.edit_epochs, rate=settings.edit_rate,
        batch=settings.batch, seed=settings.seed,
    )  # fmt: skip
    embedder = Embedder(settings.embedder)
    table, passages = windows(rows, idf, embedder, work)
    train_labels(encoder, table, passages, examples[:REPLAYED], settings, work / "labels")
    encoder = PairEncoder(settings.base, encoder.packed())  # as it is stored
    logits = np.zeros((len(rows), 4), np.float32)
    dev = np.flatnonzero(table.dev).tolist()
    logits[dev] = logits_of(encoder, [rows[i] for i in dev], [passages[i] for i in dev])
    edits = dev_edits(encoder, rows, passages, idf, embedder, work)
    combiner = fit_combiner(table, FOLD_NAMES["train"], seed=settings.seed)
    combiner = calibrate(combiner, table, logits, edits)
    log.info("calibration: %s", {k: combiner.tensors[k].tolist() for k in CALIBRATION})
    return DiscriminativeAnnotator(combiner, idf, embedder, encoder=encoder, embedder_id=settings.embedder)


CALIBRATION = ("temperature", "bias", "threshold")


def train_labels(
    encoder: PairEncoder,
    table: Table,
    passages: Sequence[tuple[str, ...]],
    replayed: Sequence[Example],
    settings: Settings,
    folder: Path,
) -> None:
    """People's labels of the training folds, some of the synthetic rows and examples of stage 1, for the encoder."""
    train = np.flatnonzero(np.isin(table.folds, FOLD_NAMES["train"])).tolist()
    beside, extra_beside = unseen_logits(table, settings.seed)
    random = Random(settings.seed)
    kept = [
        i
        for i, row in enumerate(table.extra_rows)
        if row["label"] == "no_fact" or random.random() < EDIT_SHARE
    ]
    rows = [table.rows[i] for i in train] + [made_row(table, i) for i in kept]
    weights = np.concatenate(
        [row_weights(table.names[train].tolist(), table.targets[train]), np.full(len(kept), EDIT_WEIGHT)]
    )
    texts = [passages[i] for i in train] + [passages[table.parents[i]] for i in kept]
    again = [replace(example, weight=EDIT_WEIGHT) for example in replayed]
    train_stage(
        encoder, [*labelled_examples(rows, texts, weights), *again], folder, epochs=settings.label_epochs,
        rate=settings.label_rate, batch=settings.batch, seed=settings.seed,
        beside=np.concatenate([beside[train], extra_beside[kept], np.zeros((len(again), 4), np.float32)]),
    )  # fmt: skip


def made_row(table: Table, number: int) -> dict[str, Any]:
    """A synthetic row; an edit carries the true sentence as its correction."""
    row, parent = table.extra_rows[number], table.rows[table.parents[number]]
    return {**row, "correction": None if row["label"] == "no_fact" else parent["sentence"]}


def logits_of(
    encoder: PairEncoder, rows: Sequence[Mapping[str, Any]], passages: Sequence[tuple[str, ...]]
) -> np.ndarray:
    """Logits (n, 4) of the encoder for rows and what it reads beside them."""
    examples = labelled_examples(rows, passages, np.ones(len(rows)))
    return encoder([(e.question, e.sentence, e.passages) for e in examples])[0]


def dev_edits(
    encoder: PairEncoder,
    rows: Sequence[Mapping[str, Any]],
    passages: Sequence[tuple[str, ...]],
    idf: Idf,
    embedder: Embedder,
    work: Path,
) -> Edits:
    """False edits of the development fold; their features are kept in ``work``."""
    made, parents = false_edits(rows, FOLD_NAMES["dev"])
    key = _digest(made, idf, embedder)
    cache = work / "edits.npz"
    features: np.ndarray | None = None
    if cache.is_file():
        with np.load(cache, allow_pickle=False) as stored:
            if str(stored["key"]) == key:
                features = np.asarray(stored["features"])
    if features is None:
        features = read_windows(made, idf, embedder)[0]
        np.savez(cache, key=np.array(key), features=features)
    beside = logits_of(encoder, made, [passages[i] for i in parents])
    return Edits(features, np.array(parents, dtype=int), beside)


def _digest(rows: Sequence[Mapping[str, Any]], idf: Idf, embedder: Embedder) -> str:
    digest = hashlib.sha256(
        f"{VERSION} {FEATURES} {EXCERPT_TOKENS} {LEAST_GAIN} {embedder.fingerprint}".encode()
    )
    digest.update(idf.table.tobytes())
    for row in rows:
        digest.update(json.dumps([row["sentence"], row["reference"], row["question"]]).encode())
    return digest.hexdigest()


def unseen_logits(table: Table, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (n, 4) and (m, 4) of rows and synthetic rows by networks trained on the other training folds."""
    rows, extra = np.zeros((len(table.rows), 4), np.float32), np.zeros((len(table.extra_rows), 4), np.float32)
    for fold in FOLD_NAMES["train"]:
        combiner = fit_combiner(table, [f for f in FOLD_NAMES["train"] if f != fold], members=2, seed=seed)
        mine, made = table.folds == fold, table.folds[table.parents] == fold
        rows[mine], extra[made] = combiner.logits(table.features[mine]), combiner.logits(table.extra[made])
    return rows, extra


def windows(
    rows: Sequence[Mapping[str, Any]], idf: Idf, embedder: Embedder, work: Path
) -> tuple[Table, list[tuple[str, ...]]]:
    """The table of all rows, and what the encoder reads beside each; kept in ``work``."""
    extra_rows, parents = synthetic(rows)
    key = _digest([*rows, *extra_rows], idf, embedder)
    cache, texts = work / "windows.npz", work / "windows.jsonl"
    features: np.ndarray | None = None
    if cache.is_file() and texts.is_file():
        with np.load(cache, allow_pickle=False) as stored:
            if str(stored["key"]) == key:
                features = np.asarray(stored["features"])
    if features is None:
        features, read = read_windows([*rows, *extra_rows], idf, embedder)
        texts.write_text(
            "".join(json.dumps(passages) + "\n" for passages in read[: len(rows)]), encoding="utf-8"
        )
        np.savez(cache, key=np.array(key), features=features)
    passages = [tuple(json.loads(line)) for line in texts.read_text(encoding="utf-8").splitlines()]
    n = len(rows)
    return Table(rows, features[:n], extra_rows, features[n:], np.array(parents, dtype=int)), passages
