"""Rows, features and the combiner of the embedded annotator; what a training run does with them: annotators/stages.py.

    python -m annotators.training --data ../shared/data --work out/embedded --output annotators/embedded

is `mitigate train annotator --config recipes/annotators/embedded.yaml` without a run folder. Reads the
labelled-sentence files of DATA/sentences and DATA/binary of the sources named by --sources (by default those whose
licences allow shipped weights), English rows only. Folds 2 to 4 train, fold 1 calibrates, chooses the threshold and is
never trained on, fold 0 is not read beyond its fold number (annotators/splits.py).
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from annotators.cleaning import clean_text
from annotators.combiner import Combiner, decide, votes_of
from annotators.discriminative import CHUNK, unjudgeable
from annotators.edits import edit
from annotators.features import FEATURES, FORM, Idf
from annotators.judging import Item, Judge, as_judged
from annotators.records import LABELS
from annotators.sentences import split_sentences
from annotators.small_talk import SMALL_TALK
from annotators.splits import FOLD_NAMES, assign_folds
from annotators.synthetic import TARGET
from engines.embedding import Embedder

log = logging.getLogger(__name__)
SOURCES = (
    "begin", "dialfact_small", "expertqa", "factcheckgpt", "factcheckgpt_pair", "faithdial_audit", "fm2",
    "halueval_qa", "summedits", "wice",
)  # fmt: skip
"""English sources whose licences allow shipped weights."""
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
    return unjudgeable({"reference": row["reference"] or ""}, clean_text(row["sentence"])) is None


def fit_idf(rows: Sequence[Mapping[str, Any]]) -> Idf:
    """Word weights from the sentences of the rows' distinct references, at most 60 of each."""
    return Idf.fit(_passages({row["reference"] for row in rows}))


def _passages(references: set[str]) -> Iterator[str]:
    for reference in sorted(references):
        for start, end in split_sentences(reference)[:MAX_IDF_PASSAGES]:
            yield clean_text(reference[start:end])


def read_windows(
    rows: Sequence[Mapping[str, Any]], idf: Idf, embedder: Embedder
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """(n, F) features of each row's sentence in its first window, and what the encoder reads of that window."""
    judge = Judge(Combiner({}), idf, embedder)
    order = sorted(range(len(rows)), key=lambda i: rows[i]["reference"])
    parts: list[np.ndarray] = []
    read: dict[int, tuple[str, ...]] = {}
    started = time.monotonic()
    for at in range(0, len(order), 4 * CHUNK):
        chunk = order[at : at + 4 * CHUNK]
        items = [
            Item(clean_text(rows[i]["sentence"]), rows[i]["reference"], clean_text(rows[i]["question"] or ""))
            for i in chunk
        ]
        with judge.memory():
            features, excerpts = judge.read(items)
        parts.append(features)
        read.update(zip(chunk, excerpts, strict=True))
        log.info("windows: %d of %d rows, %.0f s", at + len(items), len(order), time.monotonic() - started)
    features = np.concatenate(parts)
    out = np.empty_like(features)
    out[order] = features
    return out, [read[i] for i in range(len(rows))]


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


def false_edits(
    rows: Sequence[Mapping[str, Any]], folds: Sequence[int]
) -> tuple[list[dict[str, Any]], list[int]]:
    """A false edit of each supported row of some folds where one applies, and the number of the row it is made from."""
    made, parents = [], []
    for i, row in enumerate(rows):
        if row["label"] == "supported" and row["fold"] in folds:
            edited = edit(row["sentence"], row["reference"], Random(str(row["id"])))
            if edited is not None:
                made.append({**row, "sentence": edited, "label": "contradictory"})
                parents.append(i)
    return made, parents


def synthetic(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """False edits of supported training rows, and small talk beside references of training rows.

    Returns:
        (new rows: edits, then talk; the number of the row that each was made from).
    """
    made, parents = false_edits(rows, FOLD_NAMES["train"])
    train = [i for i, row in enumerate(rows) if row["fold"] in FOLD_NAMES["train"]]
    random = Random(0)
    asked = [i for i in train if rows[i]["question"]]
    for sentence in SMALL_TALK:
        for _ in range(TALK_REFERENCES):
            parent = random.choice(asked if "{question}" in sentence and asked else train)
            question = (rows[parent]["question"] or "that").strip().rstrip("?").lower()
            text = sentence.replace("{question}", question)
            made.append({**rows[parent], "sentence": text, "label": "no_fact"})
            parents.append(parent)
    return made, parents


@dataclass(frozen=True)
class Table:
    """Rows with their features (n, F), and the synthetic ones (m) made of them, with theirs."""

    rows: Sequence[Mapping[str, Any]]
    features: np.ndarray
    extra_rows: Sequence[Mapping[str, Any]]
    extra: np.ndarray
    parents: np.ndarray

    @cached_property
    def targets(self) -> np.ndarray:
        """(n,) positions in LABELS, or UNSUPPORTED."""
        return np.array([TARGET[row["label"]] for row in self.rows])

    @cached_property
    def names(self) -> np.ndarray:
        """(n,) sources."""
        return np.array([row["source"] for row in self.rows])

    @cached_property
    def folds(self) -> np.ndarray:
        """(n,) folds."""
        return np.array([row["fold"] for row in self.rows])

    def without(self, sources: Collection[str]) -> tuple[Table, np.ndarray]:
        """The table without some sources, and the numbers of the rows that are left."""
        keep = ~np.isin(self.names, list(sources))
        made = keep[self.parents]
        left = np.flatnonzero(keep)
        place = np.cumsum(keep) - 1
        part = Table(
            [self.rows[i] for i in left.tolist()], self.features[left],
            [self.extra_rows[i] for i in np.flatnonzero(made).tolist()], self.extra[made], place[self.parents[made]],
        )  # fmt: skip
        return part, left

    @property
    def dev(self) -> np.ndarray:
        """(n,) whether a row is of the development fold."""
        return np.isin(self.folds, FOLD_NAMES["dev"])


def fit_combiner(table: Table, folds: Sequence[int], *, members: int = 5, seed: int = 0) -> Combiner:
    """Train on some folds and the synthetic rows made of them; calibration is neutral.

    Rows that edits were made from count once more, so that edits do not tip the balance.
    """
    train = np.isin(table.folds, folds)
    made = np.isin(table.folds[table.parents], folds)
    talk = np.array([row["label"] == "no_fact" for row in table.extra_rows], dtype=bool)
    again = table.parents[made & ~talk]
    extra_targets = np.array([TARGET[row["label"]] for row in table.extra_rows], dtype=int)
    return Combiner.fit(
        np.concatenate([table.features[train], table.extra[made], table.features[again]]),
        np.concatenate([table.targets[train], extra_targets[made], table.targets[again]]),
        np.concatenate(
            [
                row_weights(table.names[train].tolist(), table.targets[train]),
                np.where(talk, TALK_WEIGHT, SYNTHETIC_WEIGHT)[made],
                np.full(len(again), SYNTHETIC_WEIGHT),
            ]
        ),
        members=members,
        seed=seed,
        unread=[i for i, name in enumerate(FEATURES) if name in FORM],
    )


@dataclass(frozen=True)
class Edits:
    """False edits of the development fold: features (m, F), rows they are made from, logits (m, 4) of the encoder."""

    features: np.ndarray
    parents: np.ndarray
    beside: np.ndarray | None


def calibrate(combiner: Combiner, table: Table, beside: np.ndarray | None, edits: Edits | None) -> Combiner:
    """Calibrate and choose the threshold on the development fold.

    Edits, and the rows they are made from once more, count half, since people's rows seldom turn on one wrong word. The
    threshold is chosen on people's rows. With an encoder both are done twice: the first calibration says for which rows
    judging will not ask it, the second one reads the votes so.

    Args:
        combiner: Not yet calibrated.
        table: All rows.
        beside: The encoder's logits of all rows, or None.
        edits: Of the development fold, or None.
    """
    dev = table.dev
    votes = None if beside is None else votes_of(beside)
    own = None if votes is None else votes[dev]
    targets = table.targets[dev]
    features, all_targets, weights = table.features[dev], targets, np.ones(len(targets))
    both = own
    if edits is not None:
        again = edits.parents
        features = np.concatenate([features, edits.features, table.features[again]])
        all_targets = np.concatenate(
            [targets, np.full(len(again), TARGET["contradictory"]), table.targets[again]]
        )
        weights = np.concatenate([weights, np.full(2 * len(again), SYNTHETIC_WEIGHT)])
        if own is not None and votes is not None and edits.beside is not None:
            both = np.concatenate([own, votes_of(edits.beside), votes[again]])

    def fitted(own: np.ndarray | None, both: np.ndarray | None) -> Combiner:
        found = combiner.calibrated(features, all_targets, weights, both)
        probabilities = found.predict_proba(table.features[dev], own)
        return found.with_threshold(best_threshold(probabilities, targets, table.names[dev].tolist()))

    first = fitted(own, both)
    if own is None or both is None:
        return first
    return fitted(as_judged(first, table.features[dev], own), as_judged(first, features, both))


def main() -> None:
    """Train and write the annotator."""
    from annotators.stages import Settings, train_annotator

    parser = argparse.ArgumentParser(description="Train the embedded annotator.")
    parser.add_argument("--data", type=Path, required=True, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--output", type=Path, required=True, help="folder to write the annotator into")
    parser.add_argument("--work", type=Path, required=True, help="folder for what a next start goes on from")
    parser.add_argument("--sources", nargs="+", default=list(SOURCES))
    parser.add_argument("--embedder", default=None, help="hub id or path; the packaged MiniLM by default")
    parser.add_argument("--base", default=None, help="of the pair encoder: hub id or path; default as above")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if not (args.data / "sentences").is_dir():
        parser.error(f"--data: expected a folder with sentences/ and binary/, found none in {args.data}")
    settings = Settings(args.data, tuple(args.sources), args.base, args.embedder, args.seed)
    train_annotator(settings, args.work).save_pretrained(args.output)
    log.info("wrote %s", args.output)


if __name__ == "__main__":
    main()
