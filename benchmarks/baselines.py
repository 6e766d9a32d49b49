"""The simple baselines that an annotator must beat, on the English labelled sentences of one fold.

    python -m benchmarks.baselines --data ../shared/data

majority: the most frequent of the four labels in the training folds of the trainable sources. n-gram overlap: the
share of the sentence's distinct 1- to 3-grams of words that the reference has. MiniLM cosine: the highest cosine of
the sentence to a sentence of the reference. The last two call a sentence supported from a threshold up, which has
the best mean balanced accuracy over the trainable sources on fold 1. Chinese is left out: MiniLM can't read it, and
the one trainable Chinese source with both classes has verbatim supported rows, on which no threshold can be tuned.
Prints the figures on fold 0 and writes docs/results/baselines.md.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from annotators.evaluation.metrics import (
    Floats,
    Statistic,
    best_threshold,
    bootstrap,
    mean_of,
    two_way_gold,
    two_way_statistics,
)
from annotators.evaluation.splits import FOLD_NAMES
from annotators.records import LABELS
from annotators.text.sentences import split_sentences
from benchmarks.splits import DATA, TRAINABLE, load_rows

if TYPE_CHECKING:
    from engines.embedding import Embedder

Row = Mapping[str, Any]
RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results" / "baselines.md"
TOKEN = re.compile(r"[^\W_]+")
KEYS = ("balanced_accuracy", "auc")
NEWLINE = "\n"


@dataclass(frozen=True)
class Baseline:
    """What a baseline says of each row.

    Args:
        name: To print.
        support: (n,) higher means more supported; NaN where it can't tell.
        labels: (n,) None where it can't tell. "unsupported" means hallucinated, of whichever kind; such labels
            enter two-way figures only.
        threshold: The lowest ``support`` that is called supported; None for the majority.
    """

    name: str
    support: Floats
    labels: list[str | None]
    threshold: float | None = None


def english_rows(data: Path = DATA) -> list[dict[str, Any]]:
    """All English rows with a label (those of spans/ have none), with group and fold."""
    return [row for row in load_rows(data) if "label" in row and row["lang"] == "en"]


def judged(rows: Iterable[Row], fold: int = 0) -> list[Row]:
    """The rows that the baselines need: those of a fold, and those on which thresholds are chosen."""
    return [row for row in rows if row["fold"] == fold or chooses_threshold(row)]


def chooses_threshold(row: Row) -> bool:
    """Whether thresholds are chosen on a row: fold 1 of the trainable sources."""
    return row["fold"] in FOLD_NAMES["dev"] and row["source"] in TRAINABLE


def majority(rows: Sequence[Row], training: Iterable[Row]) -> Baseline:
    """The label that is most frequent among the four-way rows to train on, for every row."""
    counts = Counter(
        row["label"]
        for row in training
        if row["fold"] in FOLD_NAMES["train"] and row["source"] in TRAINABLE and row["file"].startswith("sentences/")
    )
    label = max(LABELS, key=lambda name: counts[name])
    return Baseline("majority", np.zeros(len(rows)), [label] * len(rows))


def ngram_overlap(rows: Sequence[Row], longest: int = 3) -> Floats:
    """Share of each sentence's distinct 1- to ``longest``-grams that its reference has; NaN without words."""
    of_reference = {reference: _ngrams(reference, longest) for reference in {row["reference"] for row in rows}}
    support = np.full(len(rows), np.nan)
    for i, row in enumerate(rows):
        own = _ngrams(row["sentence"], longest)
        if own:
            support[i] = len(own & of_reference[row["reference"]]) / len(own)
    return support


def _ngrams(text: str, longest: int) -> frozenset[tuple[str, ...]]:
    words = TOKEN.findall(text.lower())
    return frozenset(tuple(words[i : i + n]) for n in range(1, longest + 1) for i in range(len(words) - n + 1))


def cosine(rows: Sequence[Row], embedder: Embedder) -> Floats:
    """Highest cosine of each sentence to a sentence of its reference; NaN where that is empty."""
    sentences_of = {
        reference: [reference[start:end] for start, end in split_sentences(reference)]
        for reference in {row["reference"] for row in rows}
    }
    texts = {text for sentences in sentences_of.values() for text in sentences}
    place = {text: i for i, text in enumerate(sorted(texts | {row["sentence"] for row in rows}))}
    vectors = embedder.encode(list(place))
    support = np.full(len(rows), np.nan)
    for i, row in enumerate(rows):
        pieces = [place[text] for text in sentences_of[row["reference"]]]
        if pieces:
            support[i] = float((vectors[pieces] @ vectors[place[row["sentence"]]]).max())
    return support


def with_threshold(name: str, rows: Sequence[Row], support: Floats) -> Baseline:
    """Choose the threshold on fold 1 of the trainable sources, and label all rows by it.

    Every source with both classes counts alike, and both classes within it, so what is chosen has the best mean
    balanced accuracy over sources.

    Args:
        name: Of the baseline.
        rows: With ``source``, ``fold`` and ``label``; see :func:`judged`.
        support: (n,) of the rows.

    Raises:
        ValueError: The rows to choose on lack a class.
    """
    truth = two_way_gold([row["label"] for row in rows])
    dev = np.array([chooses_threshold(row) for row in rows]) & ~np.isnan(truth) & ~np.isnan(support)
    sizes = Counter((rows[i]["source"], truth[i]) for i in np.flatnonzero(dev).tolist())
    weights = np.zeros(len(rows))
    for i in np.flatnonzero(dev).tolist():
        source = rows[i]["source"]
        if sizes[source, 0.0] and sizes[source, 1.0]:
            weights[i] = 1 / sizes[source, truth[i]]
    threshold = best_threshold(truth[dev] == 1, support[dev], weights[dev])
    if threshold is None:
        raise ValueError("expected rows of fold 1 of trainable sources, of both classes; got none")
    labels = [None if np.isnan(s) else "supported" if s >= threshold else "unsupported" for s in support]
    return Baseline(name, support, labels, threshold)


def baselines(rows: Sequence[Row], training: Iterable[Row], embedder: Embedder) -> list[Baseline]:
    """The three baselines on the same rows.

    Args:
        rows: Of :func:`judged`.
        training: Rows among which those of the training folds are found, for the majority label.
        embedder: For the cosine.
    """
    return [
        majority(rows, training),
        with_threshold("n-gram overlap", rows, ngram_overlap(rows)),
        with_threshold("MiniLM cosine", rows, cosine(rows, embedder)),
    ]


def figures(rows: Sequence[Row], baseline: Baseline, chosen: Sequence[int]) -> dict[str, Statistic]:
    """``balanced_accuracy`` and ``auc`` of some rows, as functions of their weights."""
    return two_way_statistics(
        [rows[i]["label"] for i in chosen], [baseline.labels[i] for i in chosen], support=baseline.support[list(chosen)]
    )


def _cell(value: float | None, interval: tuple[float, float] | None = None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def table(rows: Sequence[Row], found: Sequence[Baseline], fold: int = 0) -> list[str]:
    """Markdown lines: balanced accuracy and AUC by source, and their mean over sources with an interval."""
    parts: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        if row["fold"] == fold and row["label"] != "no_fact":
            parts.setdefault(row["source"], []).append(i)
    both = {name: len({rows[i]["label"] == "supported" for i in numbers}) == 2 for name, numbers in parts.items()}
    parts = {name: parts[name] for name in sorted(parts) if both[name]}
    heads = [f"{b.name}: {what}" for what in ("balanced acc.", "AUC") for b in found]
    lines = [f"| source | n | {' | '.join(heads)} |", "|---|---|" + "---|" * len(heads)]
    for source, numbers in parts.items():
        of = [figures(rows, b, numbers) for b in found]
        cells = [_cell(f[key](np.ones(len(numbers)))) for key in KEYS for f in of]
        mark = "" if source in TRAINABLE else " (evaluation only)"
        lines.append(f"| {source}{mark} | {len(numbers)} | {' | '.join(cells)} |")
    trainable = [source for source in parts if source in TRAINABLE]
    for title, sources in ((f"all {len(parts)}", list(parts)), (f"the {len(trainable)} trainable", trainable)):
        chosen = [i for s in sources for i in parts[s]]
        position = {i: at for at, i in enumerate(chosen)}
        numbers_of = [(np.array([position[i] for i in parts[s]]), parts[s]) for s in sources]
        means = {
            f"{key} {b.name}": mean_of([(at, figures(rows, b, numbers)[key]) for at, numbers in numbers_of])
            for key in KEYS
            for b in found
        }
        limits = bootstrap(means, [rows[i]["group"] for i in chosen])
        cells = [_cell(mean(np.ones(len(chosen))), limits[name]) for name, mean in means.items()]
        lines.append(f"| **mean over {title} sources** | {len(chosen)} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Print and write the figures of the three baselines on fold 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    everything = english_rows(args.data)
    rows = judged(everything)
    from engines.embedding import Embedder

    started = time.process_time()
    embedder = Embedder(device="cpu")
    found = baselines(rows, everything, embedder)
    seconds = time.process_time() - started
    thresholds = "; ".join(f"{b.name} {b.threshold:.3f}" for b in found if b.threshold is not None)
    page = f"""# Baselines for two-way sentence judgement

Supported against hallucinated, English rows of fold 0, gold `no_fact` left out. What the baselines are stands in
`benchmarks/baselines.py`. Nothing was trained but the majority label ({found[0].labels[0]}, folds 2 to 4 of the
trainable sources) and the thresholds ({thresholds}; fold 1 of the trainable sources).
In brackets: 95 % percentile intervals from 1,000 draws of groups of rows.

    python -m benchmarks.baselines --data ../shared/data

Python {platform.python_version()}, torch {version("torch")}, numpy {version("numpy")}; {platform.machine()} CPU,
{embedder.dtype}; {seconds:.0f} CPU-seconds. Embedder {embedder.name}, fingerprint {embedder.fingerprint[:12]}.

{NEWLINE.join(table(rows, found))}
"""
    print(page)
    args.output.write_text(page, encoding="utf-8")
    print(f"wrote {args.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
