"""How the embedded annotator does on each trainable source when nothing was learned from it but edited sentences.

    python -m benchmarks.embedded_left_out --data ../shared/data --work out/embedded

--work is the folder of a training run. Networks over the features learn from all sources but one, each in turn (the two
of factcheckgpt, which are the same sentences, together); the pair encoder, which takes minutes to train, from all but a
third of them. Writes docs/results/embedded-left-out.md; it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import platform
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from annotators import LABELS
from annotators.evaluation.splits import FOLD_NAMES
from annotators.verifier.combiner import Combiner, votes_of
from annotators.verifier.encoder import PairEncoder
from annotators.verifier.features import Idf
from annotators.verifier.judging import as_judged, capped
from annotators.verifier.synthetic import Example
from annotators.verifier.training import (
    EDITED_TOKENS,
    REPLAYED,
    SOURCES,
    Settings,
    Table,
    best_threshold,
    calibrate,
    cut,
    fit_combiner,
    fit_idf,
    logits_of,
    read_examples,
    read_rows,
    restore,
    train_labels,
    usable,
    windows,
)
from benchmarks.baselines import Baseline, english_rows, judged, table
from benchmarks.embedded_baselines import boosting, kept, kept_windows, windows_key
from benchmarks.splits import DATA
from engines.embedding import Embedder

log = logging.getLogger(__name__)
PAGE = Path(__file__).parent.parent / "docs" / "results" / "embedded-left-out.md"
TOGETHER = ("factcheckgpt", "factcheckgpt_pair")
ONE_OUT = (TOGETHER, *((source,) for source in SOURCES if source not in TOGETHER))
THIRDS = (
    ("begin", "dialfact_small", "faithdial_audit"),
    ("fm2", "summedits", "wice"),
    (*TOGETHER, "expertqa", "halueval_qa"),
)
PASSES = 1.0
"""Of the encoder's second stage, half as many as in the shipped weights."""
ENCODER = f"""The whole annotator: a third of the sources left out at a time
({"; ".join(", ".join(third) for third in THIRDS)}),
since the pair encoder's second stage is trained again for it, with {PASSES:g} pass instead of two; so it learned from
less than the shipped weights. The encoder's first stage, edited sentences of documents, is shared and has seen training
documents of all ten and their supported sentences. """
WAYS = ("boosting", "features alone", "annotator, a third left out")
SAID = (*LABELS, "unsupported")
Judged = tuple[np.ndarray, np.ndarray]
"""Support (n,) of rows, and the places of their labels in SAID."""


def by_features(out: Sequence[str], table: Table, features: np.ndarray) -> tuple[Judged, Judged]:
    """Boosting and the annotator's networks, of rows of sources that they did not learn from."""
    part, _ = table.without(out)
    combiner = calibrate(fit_combiner(part, FOLD_NAMES["train"]), part, None, None)
    return _by_boosting(part, features), _said(combiner, features, None)


def by_annotator(
    out: Sequence[str],
    table: Table,
    passages: Sequence[tuple[str, ...]],
    edited: Sequence[Example],
    work: Path,
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    features: np.ndarray,
    texts: Sequence[tuple[str, ...]],
) -> np.ndarray:
    """``Judged`` (2, n) by networks and pair encoder, of rows of sources that they did not learn from.

    Args:
        out: The sources.
        table: Of the training run, with ``passages``.
        passages: What the encoder reads beside its rows.
        edited: The first stage's examples; some of those of the other sources are taken into the second stage.
        work: Folder of the training run.
        folder: For the encoder's checkpoints.
        rows: To judge, n.
        features: (n, F).
        texts: What the encoder reads beside them.
    """
    part, left = table.without(out)
    encoder = PairEncoder()
    restore(encoder.model, work / "edits")
    train_labels(
        encoder, part, [passages[i] for i in left], [e for e in edited if e.source not in out][:REPLAYED],
        Settings(work, (), label_epochs=PASSES), folder,
    )  # fmt: skip
    encoder = PairEncoder(None, encoder.packed())
    dev = np.flatnonzero(part.dev).tolist()
    beside = np.zeros((len(part.rows), 4), np.float32)
    beside[dev] = logits_of(encoder, [part.rows[i] for i in dev], [passages[left[i]] for i in dev])
    combiner = calibrate(fit_combiner(part, FOLD_NAMES["train"]), part, beside, None)
    votes = votes_of(logits_of(encoder, rows, texts))
    return np.stack(_said(combiner, features, as_judged(combiner, features, votes)))


def _said(combiner: Combiner, features: np.ndarray, votes: np.ndarray | None) -> Judged:
    p = capped(features, combiner.predict_proba(features, votes))
    return p[:, 0] / np.maximum(1.0 - p[:, LABELS.index("no_fact")], 1e-9), combiner.decide(p)


def _by_boosting(part: Table, features: np.ndarray) -> Judged:
    both = boosting(part, np.concatenate([features, part.features[part.dev]]))
    support, of_dev = both[: len(features)], both[len(features) :]
    as_labels = np.stack([of_dev, 1 - of_dev, 0 * of_dev, 0 * of_dev], 1)
    threshold = best_threshold(as_labels, part.targets[part.dev], part.names[part.dev].tolist())
    said = np.where(support >= threshold, SAID.index("supported"), SAID.index("unsupported"))
    return support, said


def main() -> None:
    """Train, judge and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--work", type=Path, required=True, help="folder of the training run")
    parser.add_argument("--output", type=Path, default=PAGE)
    parser.add_argument("--features-only", action="store_true", help="without the encoder, which is trained again")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    trained = [r for r in read_rows(args.data) if r["fold"] not in FOLD_NAMES["test"] and usable(r, SOURCES)]
    idf = fit_idf([row for row in trained if row["fold"] in FOLD_NAMES["train"]])
    idf = Idf(idf.table.astype(np.float16))
    embedder = Embedder()
    whole, passages = windows(trained, idf, embedder, args.work)
    everything = judged(english_rows(args.data))  # the rows of the other page, whose windows are kept
    some = [row for row in everything if usable(row, [row["source"]])]
    windows_of = windows_key(everything, embedder)
    read, excerpts = kept_windows(args.work, windows_of, some, idf, embedder)
    at = [n for n, row in enumerate(some) if row["fold"] == 0 and row["source"] in SOURCES]
    rows, features, texts = [some[n] for n in at], read[at], [excerpts[n] for n in at]
    edited = cut(read_examples(args.work / "edited.jsonl"), idf, PairEncoder(), EDITED_TOKENS)
    state = (args.work / "edits" / "state.safetensors").read_bytes()
    key = hashlib.sha256(f"{windows_of} {PASSES} {hashlib.sha256(state).hexdigest()}".encode()).hexdigest()
    support = {way: np.full(len(rows), np.nan) for way in WAYS}
    labels: dict[str, list[str | None]] = {way: [None] * len(rows) for way in WAYS}

    def put(way: str, at: Sequence[int], judgement: Judged | np.ndarray) -> None:
        support[way][list(at)] = judgement[0]
        for i, label in zip(at, judgement[1].tolist(), strict=True):
            labels[way][i] = SAID[int(label)]

    for out in ONE_OUT:
        mine = [i for i, row in enumerate(rows) if row["source"] in out]
        for way, judgement in zip(WAYS[:2], by_features(out, whole, features[mine]), strict=True):
            put(way, mine, judgement)
        log.info("features without %s", ", ".join(out))
    for out in () if args.features_only else THIRDS:
        mine = [i for i, row in enumerate(rows) if row["source"] in out]
        name, some, beside = f"without-{out[0]}", [rows[i] for i in mine], [texts[i] for i in mine]
        folder = args.work / f"{name}-{key[:8]}"
        judge = partial(by_annotator, out, whole, passages, edited, args.work, folder, some, features[mine], beside)
        put(WAYS[2], mine, kept(args.work, name, key, judge))
        log.info("encoder without %s", ", ".join(out))
    ways = WAYS[:2] if args.features_only else WAYS
    more = " --features-only" if args.features_only else ""
    lines = table(rows, [Baseline(way, support[way], labels[way]) for way in ways])[:-1]
    page = f"""# The embedded annotator on sources left out

Of sources that the annotator is trained on, each with nothing learned from its labels. Boosting on the lexical
features, and the annotator's networks over all features: one source left out at a time ({" and ".join(TOGETHER)}
together). {"" if args.features_only else ENCODER}Calibrated without false edits. Sources that nothing at all was
learned from are the rows "never seen" of `docs/results/embedded-annotator.md`. Rows of fold 0 with a fact; 95 %
percentile intervals from 1,000 draws of groups of rows.

    python -m benchmarks.embedded_left_out --data ../shared/data --work out/embedded{more}

Python {platform.python_version()}, torch {version("torch")}, transformers {version("transformers")}; 2-core
{platform.machine()} CPU; not run on a GPU.

{chr(10).join(lines)}
"""
    args.output.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
