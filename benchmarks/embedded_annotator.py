"""The embedded annotator beside the simple baselines, calibrated or not, and on whole answers of real models.

    python -m benchmarks.embedded_annotator --data ../shared/data

English rows of fold 0, on which nothing was trained or chosen: the trainable sources are "by document" (other rows
of the same source were trained on), the evaluation-only ones are sources that the weights never saw. Then the
whole answers of cliff, lfqa_verification and expertqa: the annotator's hallucination rate beside people's. Writes
docs/results/embedded-annotator.md; about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from annotators import LABELS, Annotator, hallucination_rate, load_annotator
from annotators.evaluation import evaluate, labelled
from annotators.intervals import bootstrap, mean_of, paired_difference
from annotators.metrics import supported_score
from annotators.records import HALLUCINATED, SentenceAnnotation
from annotators.splits import FOLD_NAMES
from benchmarks.baselines import Baseline, baselines, english_rows, figures, judged, table
from benchmarks.splits import DATA, TRAINABLE

PAGE = Path(__file__).parent.parent / "docs" / "results" / "embedded-annotator.md"
WHOLE = ("cliff", "lfqa_verification", "expertqa")
FIGURES = ("accuracy", "macro_f1", "balanced_accuracy", "auc", "ece", "coverage")


def predictions(annotator: Annotator, rows: Sequence[Mapping[str, Any]]) -> list[SentenceAnnotation]:
    """Judge rows in chunks, with progress."""
    out: list[SentenceAnnotation] = []
    for start in range(0, len(rows), 512):
        out += annotator.predict(rows[start : start + 512])
        print(f"{len(out)} of {len(rows)} rows", file=sys.stderr, flush=True)
    return out


def by_source(
    everything: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    answers: Sequence[SentenceAnnotation],
) -> list[str]:
    """Markdown: all figures by source, and their means over the trained and the unseen sources."""
    files, groups = [row["file"] for row in everything], [row["group"] for row in everything]
    whole = labelled(everything, files, groups)  # whether a source is two-way is seen in whole files
    parts = {(row["id"], row["file"]): part for row, part in zip(everything, whole, strict=True)}
    lines = [f"| source | n | {' | '.join(FIGURES)} |", "|---|---|" + "---|" * len(FIGURES)]
    for title, keep in (("trained on", True), ("never seen", False)):
        chosen = [i for i, row in enumerate(rows) if (row["source"] in TRAINABLE) == keep]
        some = [rows[i] for i in chosen]
        result = evaluate([parts[row["id"], row["file"]] for row in some], [answers[i] for i in chosen])
        for name, source in result["sources"].items():
            cells = " | ".join(_number(source[key]) for key in FIGURES)
            lines.append(f"| {name} ({title}) | {source['n']} | {cells} |")
        means = result["mean_over_sources"]
        cells = " | ".join(_number(means[key]["value"], means[key]["interval"]) for key in FIGURES)
        lines.append(f"| **mean, {title}** | {len(some)} | {cells} |")
    return lines


def against(
    rows: Sequence[Mapping[str, Any]], own: Baseline, other: Baseline
) -> tuple[dict[str, float], str]:
    """Differences of balanced accuracy on fold 0 by source, and their mean with a paired interval."""
    parts: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        if row["fold"] == 0 and row["label"] != "no_fact":
            parts.setdefault(row["source"], []).append(i)
    parts = {k: v for k, v in sorted(parts.items()) if len({rows[i]["label"] == "supported" for i in v}) == 2}
    chosen = [i for numbers in parts.values() for i in numbers]
    at = {i: n for n, i in enumerate(chosen)}
    means = [
        mean_of(
            [(np.array([at[i] for i in v]), figures(rows, b, v)["balanced_accuracy"]) for v in parts.values()]
        )
        for b in (own, other)
    ]
    result = paired_difference(means[0], means[1], [rows[i]["group"] for i in chosen])
    by_source = {
        name: (figures(rows, own, v)["balanced_accuracy"](np.ones(len(v))) or 0.0)
        - (figures(rows, other, v)["balanced_accuracy"](np.ones(len(v))) or 0.0)
        for name, v in parts.items()
    }
    return by_source, _number(result["difference"], (result["low"] or 0.0, result["high"] or 0.0))


def near_duplicates(everything: Sequence[Mapping[str, Any]]) -> str:
    """Rows of fold 0 whose reference, in letters and digits alone, is one of folds 2 to 4, by trained source."""
    bare = [re.sub(r"[\W_]+", "", row["reference"].lower()) for row in everything]
    known = {
        (r["source"], b) for r, b in zip(everything, bare, strict=True) if r["fold"] in FOLD_NAMES["train"]
    }
    hits = Counter(
        row["source"]
        for row, b in zip(everything, bare, strict=True)
        if row["fold"] == 0 and row["source"] in TRAINABLE and (row["source"], b) in known
    )
    return ", ".join(f"{name} {count} rows" for name, count in sorted(hits.items())) or "none here"


def confusion_lines(rows: Sequence[Mapping[str, Any]], answers: Sequence[SentenceAnnotation]) -> list[str]:
    """Markdown: gold labels against predicted ones."""
    names = [*LABELS, "unsupported"]
    lines = [f"| gold | {' | '.join(LABELS)} | not checked |", "|---|" + "---|" * (len(LABELS) + 1)]
    for gold in names:
        got = [a.label for row, a in zip(rows, answers, strict=True) if row["label"] == gold]
        if got:
            lines.append(f"| {gold} | {' | '.join(str(got.count(label)) for label in (*LABELS, None))} |")
    return lines


def whole_answers(annotator: Annotator, everything: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown: hallucination rate by people and by the annotator, on judged sentences and on whole answers."""
    lines = [
        "| source | judged sentences | people | annotator, same sentences | answers | sentences of these | "
        "annotator, whole answers |",
        "|---|---|---|---|---|---|---|",
    ]
    for source in WHOLE:
        rows = [row for row in everything if row["source"] == source and row["answer"]]
        gold = [row["label"] for row in rows]
        human = np.array([label in HALLUCINATED or label == "unsupported" for label in gold], dtype=float)
        judged_ = predictions(annotator, rows)
        own = np.array(
            [np.nan if s.label in (None, "no_fact") else float(s.label in HALLUCINATED) for s in judged_]
        )
        groups = [row["group"] for row in rows]
        limits = bootstrap({"human": partial(_mean, human), "own": partial(_mean, own)}, groups)
        references: dict[tuple[str, str], dict[str, None]] = {}  # all that people had for one answer
        for r in rows:
            references.setdefault((r["question"] or "", r["answer"]), {})[r["reference"]] = None
        records = [
            {"question": question, "reference": "\n\n".join(texts), "answer": answer}
            for (question, answer), texts in references.items()
        ]
        annotations = annotator.annotate_batch(records)
        labels = [s.label for a in annotations for s in a.sentences]
        lines.append(
            f"| {source} | {len(rows)} | {_number(float(human.mean()), limits['human'])} "
            f"| {_number(float(np.nanmean(own)), limits['own'])} | {len(records)} | {len(labels)} "
            f"| {_number(hallucination_rate(labels))} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def _mean(values: np.ndarray, weights: np.ndarray) -> float | None:
    """Weighted mean over the rows that have a value."""
    known = ~np.isnan(values)
    mass = weights[known].sum()
    return float(values[known] @ weights[known] / mass) if mass else None


def _number(value: float | None, interval: Sequence[float] | None = None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def main() -> None:
    """Measure, print and write the page."""
    parser = argparse.ArgumentParser(description="The embedded annotator beside the baselines.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--annotator", default="embedded")
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    everything = english_rows(args.data)
    annotator = load_annotator(args.annotator)
    from engines.embedding import Embedder

    started = time.process_time()
    rows = judged(everything)
    answers = predictions(annotator, rows)
    own = Baseline("embedded", supported_score([a.scores for a in answers]), [a.label for a in answers])
    found = [*baselines(rows, everything, Embedder()), own]
    side_by_side = table(rows, found)
    test = [i for i, row in enumerate(rows) if row["fold"] == 0]
    pairs, better = against(rows, own, found[1])
    near = near_duplicates(everything)
    rows_0, answers_0 = [rows[i] for i in test], [answers[i] for i in test]
    newline = "\n"
    page = f"""# The first embedded annotator

Alignment features, the packaged MiniLM and a small combiner (`annotators/discriminative.py`), trained by
`python -m annotators.training` on folds 2 to 4 of the trainable sources, calibrated and given its threshold on
fold 1. Everything below is English rows of fold 0: no weight, threshold or calibration comes from them. The design
(features, size, synthetic rows: `docs/LOG.md`) was chosen with some of these figures in view, so they flatter it a
little. "Trained on" means that other rows of the source were trained on, of groups that share no equal reference,
answer or sentence; near-equal documents do cross folds ({near}). In brackets: 95 % percentile intervals from 1,000
draws of groups of rows. Two-way figures set supported against hallucinated.

    python -m benchmarks.embedded_annotator --data ../shared/data

Annotator fingerprint {annotator.fingerprint}. Python {platform.python_version()}, torch {version("torch")},
transformers {version("transformers")}; {platform.machine()} CPU.

## Beside the baselines

The baselines (see `docs/results/baselines.md`) choose their thresholds on the same fold 1.

{newline.join(side_by_side)}

Embedded annotator less n-gram overlap, balanced accuracy, mean over the {len(pairs)} sources: {better}; by source it is
ahead on {sum(d > 0 for d in pairs.values())} and behind on {", ".join(n for n, d in pairs.items() if d < 0)}.

## All figures by source

`accuracy` and `macro_f1` are four-way, and empty for sources whose labels are two-way; `ece` is two-way, in 15 bins.

{newline.join(by_source(everything, rows_0, answers_0))}

## Labels

{newline.join(confusion_lines(rows_0, answers_0))}

## Whole answers of real models

Share of hallucinated sentences: people's judgements, the annotator's of the same sentences, and the annotator's of
all sentences of the same answers, against all references that people had for the answer (they left sentences out; of
expertqa only the passages of the judged sentences are here, so what else an answer says is often unverifiable). All
folds: the rows of expertqa in folds 1 to 4 were trained or calibrated on; cliff and lfqa_verification never.

{newline.join(whole_answers(annotator, everything))}
"""
    args.output.write_text(page, encoding="utf-8")
    print(page)
    print(f"wrote {args.output}; {time.process_time() - started:.0f} CPU-seconds", file=sys.stderr)


if __name__ == "__main__":
    main()
