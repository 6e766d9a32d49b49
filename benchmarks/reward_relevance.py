"""How well the relevance aspect tells sentences that answer a question from sentences about something else.

    python -m benchmarks.reward_relevance

Labelled rows of fold 1 with a question (English): each sentence beside its own question and document, and beside those
of another row of its source. What is counted is what the reward counts: near the question, or near a sentence of the
document that bears on it, from a cosine of RELEVANT on.
"""

from __future__ import annotations

import argparse
import random
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.splits import DATA, load_rows
from engines.embedding import Embedder
from mitigate.rewards.inputs import Answer
from mitigate.rewards.reward import RELEVANT, Vectors, similarity, texts_of

PAGE = Path(__file__).parent.parent / "docs" / "results" / "reward-relevance.md"
SHIFT = 17
"""The other row: so many places on, after shuffling."""


def near(sentence: str, row: dict[str, Any], vectors: Vectors) -> float:
    """What the reward compares with RELEVANT."""
    answer = Answer(sentence, ((0, len(sentence)),), False, row["reference"], row["question"], None, None)
    return float(similarity(answer, ["supported"], vectors([sentence, *texts_of(answer)])).near_S[0])


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description="Relevance threshold on labelled rows.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rows", type=int, default=100, help="of a source")
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    by_source: dict[str, list[dict[str, Any]]] = {}
    for row in load_rows(args.data):
        english = (row.get("lang") or row.get("language") or "en") == "en"
        if row["fold"] == 1 and english and row["question"] and row["reference"] and len(row["sentence"].split()) > 3:
            by_source.setdefault(row["source"], []).append(row)
    vectors = Vectors(Embedder(device="cpu", dtype="float32"), 50_000)
    lines = []
    for source, rows in sorted(by_source.items()):
        random.Random(0).shuffle(rows)
        rows = rows[: args.rows]
        if len(rows) < 2 * SHIFT or len({row["question"] for row in rows}) < len(rows) // 4:
            continue
        own = np.array([near(row["sentence"], row, vectors) for row in rows])
        other = np.array([near(row["sentence"], rows[i - SHIFT], vectors) for i, row in enumerate(rows)])
        auc = roc_auc_score([1] * len(own) + [0] * len(other), np.concatenate([own, other]))
        lines.append(
            f"| {source} | {len(rows)} | {auc:.3f} | {100 * (own >= RELEVANT).mean():.0f} % | "
            f"{100 * (other >= RELEVANT).mean():.0f} % |"
        )
        print(lines[-1], flush=True)
    page = [
        "# What the relevance threshold separates\n",
        "Written by `benchmarks/reward_relevance.py` (what is counted: see its head).\n",
        f"```\npython -m benchmarks.reward_relevance --rows {args.rows}\n```\n",
        f"Packaged MiniLM in float32, torch {version('torch')}; at most {args.rows} rows of a source, so shares are "
        f"good to about ±{100 / args.rows**0.5:.0f} points (95 %). Threshold: cosine {RELEVANT}.\n",
        "| source | rows | AUC | own question: called relevant | another row's: called relevant |",
        "|---|---|---|---|---|",
        *lines,
        "\nSources with few different questions (healthver) are left out. Rows of "
        "begin and faithdial_audit are turns of a conversation; the sentence may answer an earlier one.",
    ]  # fmt: skip
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("\n".join(page) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
