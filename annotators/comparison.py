"""Two annotators on the same rows: differences of their figures with paired bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from annotators.evaluation import LabelledSentence
from annotators.intervals import Floats, Statistic, paired_difference
from annotators.metrics import UNCHECKED, confusion, label_codes, macro_f1, statistics
from annotators.records import LABELS, SentenceAnnotation


def compare(
    rows: Sequence[LabelledSentence],
    first: Sequence[SentenceAnnotation],
    second: Sequence[SentenceAnnotation],
    *,
    n_resamples: int = 1000,
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """first − second of each figure, overall and by language and split, over the same draws of groups.

    Args:
        rows: What both were asked.
        first: What one answered.
        second: What the other answered.
        n_resamples: Draws of the bootstrap.
        seed: Of the bootstrap.

    Returns:
        Part ("overall", "language en", "split unseen_topic", …) → figure → what
        :func:`annotators.intervals.paired_difference` returns.
    """
    parts = {"overall": list(range(len(rows)))}
    for name, key in (("language", lambda r: r.language), ("split", lambda r: str(r.row.get("split") or ""))):
        values = {key(row) for row in rows} - {""}
        if name == "split" or len(values) > 1:
            parts |= {
                f"{name} {v}": [i for i, row in enumerate(rows) if key(row) == v] for v in sorted(values)
            }
    out: dict[str, dict[str, Any]] = {}
    for part, numbers in parts.items():
        some = [rows[i] for i in numbers]
        a = figures_of(some, [first[i] for i in numbers])
        b = figures_of(some, [second[i] for i in numbers])
        groups = [row.group for row in some]
        out[part] = {"n": len(some)} | {
            name: paired_difference(a[name], b[name], groups, n_resamples, seed) for name in a
        }
    return out


def figures_of(
    rows: Sequence[LabelledSentence], judged: Sequence[SentenceAnnotation]
) -> dict[str, Statistic]:
    """``accuracy``, ``macro_f1``, ``balanced_accuracy`` and ``auc`` as functions of row weights."""
    gold = [row.row["label"] for row in rows]
    predicted = [a.label if a.status == "checked" else None for a in judged]
    scores = [a.scores if a.status == "checked" else None for a in judged]
    two_way = [row.two_way for row in rows]
    codes, choices = label_codes(gold), label_codes(predicted)
    four = (codes != UNCHECKED) & ~np.array(two_way, dtype=bool)

    def macro(weights: Floats) -> float | None:
        return macro_f1(confusion(codes[four], choices[four], len(LABELS), weights[four]))

    known = statistics(gold, predicted, scores, two_way)
    return {
        "accuracy": known["accuracy"],
        "macro_f1": macro,
        "balanced_accuracy": known["balanced_accuracy"],
        "auc": known["auc"],
    }
