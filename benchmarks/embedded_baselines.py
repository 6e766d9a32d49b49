"""Baselines that are trained on the same rows as the embedded annotator, and figures that are kept between runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from annotators import LABELS
from annotators.evaluation.splits import FOLD_NAMES
from annotators.verifier.encoder import EXCERPT_TOKENS, LEAST_GAIN, PairEncoder
from annotators.verifier.features import LEXICAL_FEATURES, VERSION, Idf
from annotators.verifier.training import Table, labelled_examples, logits_of, read_windows, row_weights, train_stage
from engines.embedding import Embedder

PLAIN_RATE, PLAIN_EPOCHS = 8e-5, 2.0
"""As in the annotator's second stage."""


def boosting(table: Table, features: np.ndarray) -> np.ndarray:
    """P(supported) (n,) by gradient boosting on the lexical ones of features (n, F), trained on the combiner's rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    n = len(LEXICAL_FEATURES)
    train = np.isin(table.folds, FOLD_NAMES["train"]) & (table.targets != LABELS.index("no_fact"))
    model = HistGradientBoostingClassifier(max_iter=150, learning_rate=0.05, max_leaf_nodes=15, random_state=0)
    weight = row_weights(table.names[train].tolist(), table.targets[train])
    model.fit(table.features[train][:, :n], table.targets[train] == 0, sample_weight=weight)
    return np.asarray(model.predict_proba(features[:, :n])[:, 1])


def plain_encoder(
    table: Table,
    passages: Sequence[tuple[str, ...]],
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[tuple[str, ...]],
    folder: Path,
) -> np.ndarray:
    """P(supported) of rows by MiniLM fine-tuned on people's labels alone: no marks, no edits, no words' labels.

    Args:
        table: Rows of the training run, with ``passages``.
        passages: What is read beside its rows.
        rows: To judge, with ``texts``.
        texts: What is read beside them.
        folder: For its checkpoints.
    """
    train = np.flatnonzero(np.isin(table.folds, FOLD_NAMES["train"])).tolist()
    weights = row_weights(table.names[train].tolist(), table.targets[train])
    examples = labelled_examples([table.rows[i] for i in train], [passages[i] for i in train], weights)
    torch.manual_seed(0)
    encoder = PairEncoder()
    encoder.model.kind.weight.requires_grad_(False)  # stays 0: no marks
    train_stage(encoder, [replace(e, spans=None) for e in examples], folder, epochs=PLAIN_EPOCHS, rate=PLAIN_RATE)
    logits = logits_of(encoder, rows, texts)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return np.asarray(p[:, 0] / np.maximum(1.0 - p[:, 3], 1e-9))


def kept(work: Path, name: str, key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """What was computed under the same key, or is computed now and written, whole or not at all."""
    file = work / f"{name}.npz"
    if file.is_file():
        with np.load(file, allow_pickle=False) as stored:
            if str(stored["key"]) == key:
                return np.asarray(stored["values"])
    values = make()
    with file.with_suffix(".part").open("wb") as part:
        np.savez(part, key=np.array(key), values=values)
    file.with_suffix(".part").replace(file)
    return values


def windows_key(rows: Sequence[Mapping[str, Any]], embedder: Embedder) -> str:
    """What ``kept`` figures of rows depend on."""
    return hashlib.sha256(
        f"{VERSION} {EXCERPT_TOKENS} {LEAST_GAIN} {embedder.fingerprint} {[row['id'] for row in rows]}".encode()
    ).hexdigest()


def kept_windows(
    work: Path, key: str, rows: Sequence[Mapping[str, Any]], idf: Idf, embedder: Embedder
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Features of rows and what the encoder reads of their windows, computed once."""
    texts = work / "test.jsonl"

    def make() -> np.ndarray:
        features, read = read_windows(rows, idf, embedder)
        texts.write_text("".join(json.dumps(passages) + "\n" for passages in read), encoding="utf-8")
        return features

    features = kept(work, "test", key, make)
    return features, [tuple(json.loads(line)) for line in texts.read_text(encoding="utf-8").splitlines()]
