"""The embedded annotator on whole answers of real models: its hallucination rate beside people's.

    python -m benchmarks.embedded_whole_answers --data ../shared/data

All rows of cliff, lfqa_verification and expertqa: the sentences that people judged, and all sentences of the same
answers against all references that people had for the answer. Writes docs/results/embedded-whole-answers.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from annotators import Annotator, hallucination_rate, load_annotator
from annotators.evaluation.metrics import bootstrap
from annotators.records import HALLUCINATED
from benchmarks.baselines import english_rows
from benchmarks.embedded_annotator import _number, predictions
from benchmarks.splits import DATA

PAGE = Path(__file__).parent.parent / "docs" / "results" / "embedded-whole-answers.md"
WHOLE = ("cliff", "lfqa_verification", "expertqa")


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
        own = np.array([np.nan if s.label in (None, "no_fact") else float(s.label in HALLUCINATED) for s in judged_])
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


def main() -> None:
    """Measure, print and write the page."""
    parser = argparse.ArgumentParser(description="The embedded annotator on whole answers.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--annotator", default="embedded")
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    annotator: Any = load_annotator(args.annotator)
    lines = whole_answers(annotator, english_rows(args.data))
    page = f"""# Whole answers of real models

Share of hallucinated sentences: people's judgements, the embedded annotator's of the same sentences, and the
annotator's of all sentences of the same answers, against all references that people had for the answer (they left
sentences out; of expertqa only the passages of the judged sentences are here, so what else an answer says is often
unverifiable). All folds: the rows of expertqa in folds 1 to 4 were trained or calibrated on; cliff and
lfqa_verification never.

    python -m benchmarks.embedded_whole_answers --data ../shared/data

Annotator fingerprint {annotator.fingerprint}.

"""
    args.output.write_text(page + "\n".join(lines) + "\n", encoding="utf-8")
    print(page + "\n".join(lines))


if __name__ == "__main__":
    main()
