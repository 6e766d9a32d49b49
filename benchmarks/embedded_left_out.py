"""How the embedded annotator does on trainable sources that are left out of its training.

    python -m benchmarks.embedded_left_out --data ../shared/data --work out/embedded

--work is the folder of the training run. Two halves of the sources instead of one source at a time: the second stage
of the pair encoder, combiner, calibration and threshold are trained twice, each time on one half, and judge the other.
Writes docs/results/embedded-left-out.md; it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from annotators.encoder import PairEncoder
from annotators.encoder_data import labelled_examples
from annotators.encoder_training import restore
from annotators.features import Idf
from annotators.judging import capped
from annotators.metrics import auc, two_way_gold
from annotators.splits import FOLD_NAMES
from annotators.stages import Settings, train_labels, windows
from annotators.training import SOURCES, Table, calibrate, fit_combiner, fit_idf, read_rows, usable
from benchmarks.baselines import english_rows, judged
from benchmarks.embedded_annotator import kept_windows, windows_key
from benchmarks.splits import DATA
from engines.embedding import Embedder

PAGE = Path(__file__).parent.parent / "docs" / "results" / "embedded-left-out.md"
HALVES = (
    ("begin", "factcheckgpt", "factcheckgpt_pair", "faithdial_audit", "halueval_qa"),
    ("dialfact_small", "expertqa", "fm2", "summedits", "wice"),
)
"""Sources of the same documents or dialogues are in the same half."""
NOTE = """Half of the trainable sources are left out at a time (not one: each needs the pair encoder trained
again): the encoder's second stage, the networks over the features, calibration and threshold learn from five sources
and judge the other five. So less is learned from than in the shipped weights. The encoder's first stage, edited
sentences of documents, is shared and has seen training documents of all ten, and their supported sentences. Sources
that nothing was learned from at all are the rows "never seen" of `docs/results/embedded-annotator.md`."""


def left_out(
    table: Table,
    passages: Sequence[tuple[str, ...]],
    rows: Sequence[Mapping[str, Any]],
    features: np.ndarray,
    texts: Sequence[tuple[str, ...]],
    work: Path,
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Support of the rows of each left-out source: by features and encoder, and by the features alone.

    Args:
        table: Of the training run, with ``passages``.
        passages: What the encoder reads beside its rows.
        rows: Rows to judge, with ``features`` (n, F) and ``texts``.
        features: Of the rows.
        texts: What the encoder reads beside them.
        work: Folder of the training run.
    """
    sources = np.array([row["source"] for row in rows])
    settings = Settings(work, ())
    found = {}
    for number, half in enumerate(HALVES):
        part, left = table.without(half)
        encoder = PairEncoder()
        restore(encoder.model, work / "edits")
        train_labels(encoder, part, [passages[i] for i in left], settings, work / f"without-{number}")
        encoder = PairEncoder(None, encoder.packed())
        networks = fit_combiner(part, FOLD_NAMES["train"])
        dev = np.flatnonzero(part.dev)
        beside = np.zeros((len(part.rows), 4), np.float32)
        beside[dev] = _logits(encoder, [part.rows[i] for i in dev], [passages[left[i]] for i in dev])
        both, alone = calibrate(networks, part, beside, None), calibrate(networks, part, None, None)
        mine = np.flatnonzero(np.isin(sources, half))
        logits = _logits(encoder, [rows[i] for i in mine], [texts[i] for i in mine])
        first = _support(capped(features[mine], both.predict_proba(features[mine], logits)))
        second = _support(capped(features[mine], alone.predict_proba(features[mine])))
        for name in half:
            at = sources[mine] == name
            found[name] = (first[at], second[at])
        print(f"left out {', '.join(half)}", file=sys.stderr, flush=True)
    return found


def _logits(
    encoder: PairEncoder, rows: Sequence[Mapping[str, Any]], texts: Sequence[tuple[str, ...]]
) -> np.ndarray:
    examples = labelled_examples(rows, texts, np.ones(len(rows)))
    return encoder([(e.question, e.sentence, e.passages) for e in examples])[0]


def _support(p: np.ndarray) -> np.ndarray:
    return np.asarray(p[:, 0] / np.maximum(1.0 - p[:, 3], 1e-9))


def left_out_lines(
    rows: Sequence[Mapping[str, Any]], found: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> list[str]:
    """Markdown: AUC of each left-out source, and the mean."""
    lines = ["| source left out | n | features and encoder: AUC | features alone: AUC |", "|---|---|---|---|"]
    columns: list[list[float]] = []
    for name in sorted(found):
        truth = two_way_gold([row["label"] for row in rows if row["source"] == name])
        known = ~np.isnan(truth)
        values = [auc(truth[known] == 1, support[known]) or 0.5 for support in found[name]]
        columns.append(values)
        lines.append(f"| {name} | {known.sum()} | {values[0]:.3f} | {values[1]:.3f} |")
    mean = np.mean(columns, axis=0)
    return [*lines, f"| **mean** | | {mean[0]:.3f} | {mean[1]:.3f} |"]


def main() -> None:
    """Train, judge and write the page."""
    parser = argparse.ArgumentParser(
        description="The embedded annotator on sources left out of its training."
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--work", type=Path, required=True, help="folder of the training run")
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    trained = [r for r in read_rows(args.data) if r["fold"] not in FOLD_NAMES["test"] and usable(r, SOURCES)]
    idf = fit_idf([row for row in trained if row["fold"] in FOLD_NAMES["train"]])
    idf = Idf(idf.table.astype(np.float16))
    embedder = Embedder()
    table, passages = windows(trained, idf, embedder, args.work)
    everything = judged(english_rows(args.data))  # the rows of the other page, whose windows are kept
    some = [row for row in everything if usable(row, [row["source"]])]
    read, excerpts = kept_windows(args.work, windows_key(everything, embedder), some, idf, embedder)
    at = [n for n, row in enumerate(some) if row["fold"] == 0 and row["source"] in SOURCES]
    rows, features, texts = [some[n] for n in at], read[at], [excerpts[n] for n in at]
    lines = left_out_lines(rows, left_out(table, passages, rows, features, texts, args.work))
    page = f"""# The embedded annotator on sources left out

{NOTE} AUC of supported against hallucinated, fold 0.

    python -m benchmarks.embedded_left_out --data ../shared/data --work out/embedded

2-core CPU machine; not run on a GPU.

{chr(10).join(lines)}
"""
    args.output.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
