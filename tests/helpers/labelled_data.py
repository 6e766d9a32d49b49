"""Every row of the labelled data with its group and fold, computed over all files at once."""

import json
from pathlib import Path
from typing import Any

from annotators.evaluation.splits import fold_of, group_rows

DATA = Path(__file__).parents[3] / "shared" / "data"
TRAINABLE = frozenset(
    "factcheckgpt factcheckgpt_pair fm2 dialfact_small wice begin faithdial_audit expertqa summedits halueval_qa "
    "uhgeval kdconv wice_tokens".split()
)


def load_rows() -> list[dict[str, Any]]:
    """All rows of sentences/, binary/ and spans/, each with ``file`` ("sentences/fm2"), ``group`` and ``fold``."""
    rows = []
    for folder in ("sentences", "binary", "spans"):
        for path in sorted((DATA / folder).glob("*.jsonl")):
            with path.open(encoding="utf-8") as lines:
                rows += [json.loads(line) | {"file": f"{folder}/{path.name.split('.')[0]}"} for line in lines]
    for row, group in zip(rows, group_rows(rows), strict=True):
        row["group"], row["fold"] = group, fold_of(group)
    return rows
