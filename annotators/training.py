"""Train the embedded annotator: features of labelled sentences, combiner, calibration.

    python -m annotators.training --data ../shared/data --output annotators/embedded

Reads the labelled-sentence files of DATA/sentences and DATA/binary of the sources named by --sources (by default
those whose licences allow shipped weights), English rows only. Folds 2 to 4 train, fold 1 calibrates, chooses the
threshold and is never trained on, fold 0 is not read beyond its fold number (annotators/splits.py). Beside them: one
small false edit of each supported training sentence (annotators/edits.py), with its sentence once more, and small
talk as "no fact" (annotators/small_talk.py). Word weights (idf) come from the references of the training folds.
About ten minutes on one core, nearly all of it embedding, which --cache FILE keeps for the next run; seeded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from annotators.cleaning import clean
from annotators.combiner import UNSUPPORTED, Combiner, decide
from annotators.discriminative import CHUNK, DiscriminativeAnnotator, unjudgeable
from annotators.edits import edit
from annotators.features import FEATURES, VERSION, Idf
from annotators.judging import Item, Judge
from annotators.records import LABELS
from annotators.sentences import split_sentences
from annotators.small_talk import SMALL_TALK
from annotators.splits import FOLD_NAMES, assign_folds
from engines.embedding import Embedder

log = logging.getLogger(__name__)
SOURCES = (
    "begin", "dialfact_small", "expertqa", "factcheckgpt", "factcheckgpt_pair", "faithdial_audit", "fm2",
    "halueval_qa", "summedits", "wice",
)  # fmt: skip
"""English sources whose licences allow shipped weights."""
TARGET: dict[str, int] = {**{str(label): i for i, label in enumerate(LABELS)}, "unsupported": UNSUPPORTED}
MAX_IDF_PASSAGES = 60
SYNTHETIC_WEIGHT = 0.5
"""Of an edit, where human rows weigh 1 on average; see docs/LOG.md for others that were tried."""
TALK_REFERENCES = 3
TALK_WEIGHT = 6.0
"""Of a row of small talk: few rows, and a refusal called a hallucination is a bad error."""


def read_rows(data: Path) -> list[dict[str, Any]]:
    """All labelled sentences below ``data`` with their fold; folds are computed over every file at once."""
    rows = []
    for path in sorted(
        p for folder in ("sentences", "binary", "spans") for p in (data / folder).glob("*.jsonl")
    ):
        with path.open(encoding="utf-8") as lines:
            rows += [json.loads(line) | {"folder": path.parent.name} for line in lines]
    for row, fold in zip(rows, assign_folds(rows), strict=True):
        row["fold"] = fold
    return [row for row in rows if row["folder"] != "spans"]


def usable(row: Mapping[str, Any], sources: Sequence[str]) -> bool:
    """Whether a row is of a named source, English, and can be judged at all."""
    if row["source"] not in sources or (row.get("lang") or row.get("language")) != "en":
        return False
    return unjudgeable({"reference": row["reference"] or ""}, clean(row["sentence"])[0]) is None


def fit_idf(rows: Sequence[Mapping[str, Any]]) -> Idf:
    """Word weights from the sentences of the rows' distinct references, at most 60 of each."""
    return Idf.fit(_passages({row["reference"] for row in rows}))


def _passages(references: set[str]) -> Iterator[str]:
    for reference in sorted(references):
        for start, end in split_sentences(reference)[:MAX_IDF_PASSAGES]:
            yield clean(reference[start:end])[0]


def feature_matrix(rows: Sequence[Mapping[str, Any]], idf: Idf, embedder: Embedder) -> np.ndarray:
    """(n, F) features of each row's sentence in its first window."""
    judge = Judge(Combiner({}), idf, embedder)
    order = sorted(range(len(rows)), key=lambda i: rows[i]["reference"])
    parts = []
    started = time.monotonic()
    for at in range(0, len(order), 4 * CHUNK):
        items = [
            Item(clean(rows[i]["sentence"])[0], rows[i]["reference"], clean(rows[i]["question"] or "")[0])
            for i in order[at : at + 4 * CHUNK]
        ]
        with judge.memory():
            parts.append(judge.features(items))
        log.info("features: %d of %d rows, %.0f s", at + len(items), len(order), time.monotonic() - started)
    features = np.concatenate(parts)
    out = np.empty_like(features)
    out[order] = features
    return out


def row_weights(sources: Sequence[str], targets: np.ndarray, power: float = 0.5) -> np.ndarray:
    """Weights of mean 1 under which a source of n rows counts n^power, and its labels equally within it.

    Supported rows weigh as much as hallucinated ones, "no fact" rows half as much.

    Args:
        sources: Of each row.
        targets: (n,) positions in LABELS, or UNSUPPORTED.
        power: 1 leaves sources as large as they are, 0 makes all equal.
    """
    kind = np.where(targets == 0, 0, np.where(targets == LABELS.index("no_fact"), 2, 1))
    size = Counter(sources)
    cell = Counter(zip(sources, kind.tolist(), strict=True))
    weight = np.array(
        [
            size[s] ** power / cell[s, k] * (0.5 if k == 2 else 1.0)
            for s, k in zip(sources, kind.tolist(), strict=True)
        ]
    )
    return weight / weight.mean()


def best_threshold(probabilities: np.ndarray, targets: np.ndarray, sources: Sequence[str]) -> float:
    """The threshold with the highest mean balanced accuracy over sources, on the rows of the development fold."""
    source = np.array(sources)
    factual = targets != LABELS.index("no_fact")
    grid = np.linspace(0.5, 0.8, 31)  # never "supported" against the odds
    means = []
    for threshold in grid:
        clean_ = np.isin(decide(probabilities, float(threshold)), (0, LABELS.index("no_fact")))
        scores = []
        for name in sorted(set(sources)):
            good, bad = (source == name) & (targets == 0), (source == name) & factual & (targets != 0)
            if good.any() and bad.any():
                scores.append((clean_[good].mean() + (~clean_[bad]).mean()) / 2)
        means.append(np.mean(scores))
    smooth = np.convolve(np.pad(means, 3, mode="edge"), np.ones(7) / 7, mode="valid")
    return float(grid[int(smooth.argmax())])


def synthetic(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """False edits of supported training rows, and small talk beside references of training rows.

    Returns:
        (new rows, and for each edit, in the same order, the number of the row it was made from).
    """
    train = [i for i, row in enumerate(rows) if row["fold"] in FOLD_NAMES["train"]]
    edits, parents = [], []
    for i in train:
        if rows[i]["label"] == "supported":
            edited = edit(rows[i]["sentence"], rows[i]["reference"], Random(str(rows[i]["id"])))
            if edited is not None:
                edits.append({**rows[i], "sentence": edited, "label": "contradictory"})
                parents.append(i)
    random = Random(0)
    asked = [i for i in train if rows[i]["question"]]
    talk = []
    for sentence in SMALL_TALK:
        for _ in range(TALK_REFERENCES):
            row = rows[random.choice(asked if "{question}" in sentence and asked else train)]
            question = (row["question"] or "that").strip().rstrip("?").lower()
            text = sentence.replace("{question}", question)
            talk.append({**row, "sentence": text, "label": "no_fact"})
    return [*edits, *talk], parents


def fit_combiner(
    features: np.ndarray,
    rows: Sequence[Mapping[str, Any]],
    extra: np.ndarray,
    extra_rows: Sequence[Mapping[str, Any]],
    parents: Sequence[int],
    *,
    seed: int = 0,
) -> Combiner:
    """Train on folds 2 to 4 and the synthetic rows, then calibrate and choose the threshold on fold 1.

    Args:
        features: (n, F) of ``rows``.
        rows: Labelled rows with ``source``, ``label`` and ``fold``.
        extra: (m, F) of ``extra_rows``.
        extra_rows: What ``synthetic`` returned, with ``parents``.
        parents: Rows that edits were made from; they count once more, so that edits do not tip the balance.
        seed: Of the networks.
    """
    targets = np.array([TARGET[row["label"]] for row in rows])
    names = np.array([row["source"] for row in rows])
    folds = np.array([row["fold"] for row in rows])
    train, dev = np.isin(folds, FOLD_NAMES["train"]), np.isin(folds, FOLD_NAMES["dev"])
    again = np.array(parents, dtype=int)
    combiner = Combiner.fit(
        np.concatenate([features[train], extra, features[again]]),
        np.concatenate([targets[train], [TARGET[row["label"]] for row in extra_rows], targets[again]]),
        np.concatenate(
            [
                row_weights(names[train].tolist(), targets[train]),
                [TALK_WEIGHT if row["label"] == "no_fact" else SYNTHETIC_WEIGHT for row in extra_rows],
                np.full(len(again), SYNTHETIC_WEIGHT),
            ]
        ),
        seed=seed,
    )
    combiner = combiner.calibrated(features[dev], targets[dev], np.ones(int(dev.sum())))
    threshold = best_threshold(combiner.predict_proba(features[dev]), targets[dev], names[dev].tolist())
    return combiner.with_threshold(threshold)


def cached_features(
    rows: Sequence[Mapping[str, Any]], idf: Idf, embedder: Embedder, cache: Path | None
) -> np.ndarray:
    """``feature_matrix``, read from the cache file where that is of these rows, features and embedder."""
    digest = hashlib.sha256(f"{VERSION} {FEATURES} {embedder.fingerprint}".encode() + idf.table.tobytes())
    for row in rows:
        digest.update(json.dumps([row["sentence"], row["reference"], row["question"]]).encode())
    if cache is not None and cache.is_file():
        with np.load(cache, allow_pickle=False) as stored:
            if str(stored["key"]) == digest.hexdigest():
                return np.asarray(stored["features"])
    features = feature_matrix(rows, idf, embedder)
    if cache is not None:
        np.savez(cache, key=np.array(digest.hexdigest()), features=features)
    return features


def main() -> None:
    """Train and write the annotator."""
    parser = argparse.ArgumentParser(description="Train the embedded annotator.")
    parser.add_argument("--data", type=Path, required=True, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--output", type=Path, required=True, help="folder to write the annotator into")
    parser.add_argument("--sources", nargs="+", default=list(SOURCES))
    parser.add_argument("--embedder", default=None, help="hub id or path; the packaged MiniLM by default")
    parser.add_argument("--cache", type=Path, default=None, help=".npz file that keeps the features")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if not (args.data / "sentences").is_dir():
        parser.error(f"--data: expected a folder with sentences/ and binary/, found none in {args.data}")
    rows = [
        r for r in read_rows(args.data) if r["fold"] not in FOLD_NAMES["test"] and usable(r, args.sources)
    ]
    idf = fit_idf([row for row in rows if row["fold"] in FOLD_NAMES["train"]])
    idf = Idf(idf.table.astype(np.float16))  # as it is stored
    embedder = Embedder(args.embedder)
    extra_rows, parents = synthetic(rows)
    features = cached_features([*rows, *extra_rows], idf, embedder, args.cache)
    combiner = fit_combiner(
        features[: len(rows)], rows, features[len(rows) :], extra_rows, parents, seed=args.seed
    )
    DiscriminativeAnnotator(combiner, idf, embedder, embedder_id=args.embedder).save_pretrained(args.output)
    log.info("read %d rows of %s; %d synthetic ones", len(rows), ", ".join(args.sources), len(extra_rows))
    log.info("temperature %.2f, threshold %.2f; wrote %s", combiner.tensors["temperature"],
             combiner.tensors["threshold"], args.output)  # fmt: skip


if __name__ == "__main__":
    main()
