"""`--similarity annotator:NAME` on TruthfulQA: does a trained judge order right above wrong where a cosine does not?

    python -m benchmarks.fewl_annotator --annotator embedded --output docs/results/fewl_annotator.md

A judge is slow, so this takes a random part of the questions; the other similarities are run on the same
answers and references.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from annotators import load_annotator
from benchmarks.fewl_common import (
    THREE,
    WEAK,
    by_model,
    encoder,
    environment,
    labelled_pairs,
    shown,
    shown_gap,
    shuffled,
    table,
)
from benchmarks.fewl_common import truthfulqa as load
from benchmarks.splits import DATA
from fewl.score import FewlOptions, score_records
from fewl.similarity import Similarity, cosine, new_words, rouge_l
from mitigate.models import annotator_similarity

Record = dict[str, Any]


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=Path("docs/results/fewl_annotator.md"))
    parser.add_argument("--embedding-cache", type=Path, help="file that keeps embeddings between runs")
    parser.add_argument("--annotator", default="embedded")
    parser.add_argument("--questions", type=int, default=300)
    args = parser.parse_args()
    judge = load_annotator(args.annotator)
    records = load(args.data)
    chosen = np.sort(np.random.default_rng(0).choice(len(records), args.questions, replace=False))
    asked = [official_as_labels(records[q]) for q in chosen]
    encode = encoder(args.embedding_cache)
    sims: dict[str, Similarity] = {
        "cosine": cosine(encode),
        "rouge-l": rouge_l,
        "new-words": new_words,
        f"annotator:{args.annotator}": annotator_similarity(judge),
    }
    rows = []
    start = time.process_time()
    for name, similarity in sims.items():
        off = FewlOptions(aggregation="eq6", penalty=False)
        for called, options in {"three": off, "three against three weak": replace(off, weak=WEAK)}.items():
            names = (*THREE, *options.weak)
            own, control = (
                score_records(by_model(r, names), similarity=similarity, options=options)[0]
                for r in (asked, shuffled(asked))
            )
            for kind in ("official", "labelled"):
                a, b = (labelled_pairs([only(r, kind) for r in s]) for s in (own, control))
                rows.append([name, called, kind, shown(a), shown(b), shown_gap(a, b)])
            print(name, called, f"{time.process_time() - start:.0f} s", flush=True)
    head = ["similarity", "references", "pairs", "right above wrong, %", "control, %", "own minus control"]
    page = [
        "# FEWL with an annotator as similarity: table",
        f"Written by `python -m benchmarks.fewl_annotator --annotator {args.annotator}`; read `fewl.md` first. "
        f"{environment()}. {len(asked)} random questions of TruthfulQA. Annotator {judge.name}, fingerprint "
        f"`{judge.fingerprint[:16]}`. Control: reference answers of another question. 95 % bootstrap over questions.",
        table(head, rows),
    ]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("\n\n".join(page) + "\n", encoding="utf-8")
    print(f"written: {args.output}")


def official_as_labels(record: Record) -> Record:
    """The record with correct and wrong official answers labelled true and false."""
    answers = [{**a, "label": a.get("label", a["kind"] in ("best", "correct"))} for a in record["answers"]]
    return {**record, "answers": answers}


def only(record: Record, kind: str) -> Record:
    """The record with its official or its human-labelled answers."""
    return {**record, "answers": [a for a in record["answers"] if (a["kind"] == "labelled") == (kind == "labelled")]}


if __name__ == "__main__":
    main()
