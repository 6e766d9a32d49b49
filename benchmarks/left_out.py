"""The embedded annotator on sources that it was not trained on: trained anew without a third of them at a time.

    python -m benchmarks.left_out --data ../shared/data --work out/left_out

Each training run is that of recipes/annotators/embedded.yaml with fewer sources, and all start from one stage of pairs
(`pairs.jsonl` and `pairs/` of an earlier run, copied to --work). It goes on where it was stopped. Judged on fold 0 of
the sources left out; n-gram overlap beside it. The pairs hold other rows of DialFact and FEVER.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import numpy as np

from annotators.evaluation.metrics import supported_score
from annotators.evaluation.splits import FOLD_NAMES
from annotators.verifier.training import SOURCES, Settings, train_annotator
from benchmarks.annotator import Judged, beside_baselines, predictions, with_threshold
from benchmarks.common import TRAINABLE, english_rows, ngram_overlap, parser, save

THIRDS = (
    ("begin", "dialfact_small", "faithdial_audit"),
    ("fm2", "summedits", "wice"),
    ("factcheckgpt", "factcheckgpt_pair", "expertqa", "halueval_qa"),
)


def main() -> None:
    """Train, judge and write the page."""
    made = parser(__doc__)
    made.add_argument("--work", type=Path, required=True, help="folder for the training runs")
    made.add_argument("--passes", type=float, default=2.0, help="of the second training stage (default 2)")
    args = made.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    rows = [r for r in english_rows(args.data) if r["source"] in TRAINABLE and r["fold"] in (0, *FOLD_NAMES["dev"])]
    support = np.full(len(rows), np.nan)
    labels: list[str | None] = [None] * len(rows)
    for third in THIRDS:
        sources = tuple(source for source in SOURCES if source not in third)
        settings = Settings(args.data, sources, label_epochs=args.passes)
        work = args.work / hashlib.sha256(repr((sources, args.passes)).encode()).hexdigest()[:8]
        for name in ("pairs.jsonl", "pairs"):  # the first stage reads no labelled sentences: it is made once
            if (args.work / name).exists() and not (work / name).exists():
                work.mkdir(parents=True, exist_ok=True)
                (work / name).symlink_to((args.work / name).resolve())
        annotator = train_annotator(settings, work)
        at = [i for i, r in enumerate(rows) if r["fold"] == 0 and r["source"] in third]
        answers = predictions(annotator, [rows[i] for i in at])
        support[at] = supported_score([a.scores for a in answers])
        for i, answer in zip(at, answers, strict=True):
            labels[i] = answer.label
    found: dict[str, Judged] = {
        "annotator, source left out": (support, labels),
        "n-gram overlap, the same sources": with_threshold(rows, ngram_overlap(rows)),
    }
    shown, table = beside_baselines(rows, found)
    save("annotator", "left_out", shown, tables={"by source": table})


if __name__ == "__main__":
    main()
