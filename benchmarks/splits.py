"""The one split of the labelled data, and its table.

    python -m benchmarks.splits --data ../shared/data

Reads every file of sentences/, binary/ and spans/ at once, since rows of one claim or document recur across files,
and prints rows per source and fold, with the largest groups. ``load_rows`` is what every benchmark reads data with.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from annotators.evaluation.splits import N_FOLDS, fold_of, group_rows

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
TRAINABLE = frozenset(
    "factcheckgpt factcheckgpt_pair fm2 dialfact_small wice begin faithdial_audit expertqa summedits halueval_qa "
    "uhgeval kdconv wice_tokens".split()
)
FOLDERS = ("sentences", "binary", "spans")


def require_data(data: Path) -> None:
    """Stop with the agreed words where the data is not here."""
    if not (data / "sentences").is_dir():
        sys.exit(f"skipped: data not here (expected {data}/sentences, /binary and /spans; see --data)")


def load_rows(data: Path = DATA) -> list[dict[str, Any]]:
    """All rows of the three folders, each with ``file`` ("sentences/fm2"), ``group`` and ``fold`` added."""
    require_data(data)
    rows = []
    for folder in FOLDERS:
        for path in sorted((data / folder).glob("*.jsonl")):
            with path.open(encoding="utf-8") as lines:
                for line in lines:
                    rows.append({**json.loads(line), "file": f"{folder}/{path.name.split('.')[0]}"})
    for row, group in zip(rows, group_rows(rows), strict=True):
        row["group"], row["fold"] = group, fold_of(group)
    return rows


def main() -> None:
    """Print rows per source and fold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/ and spans/")
    rows = load_rows(parser.parse_args().data)
    count = Counter((row["file"], row["fold"]) for row in rows)
    groups = Counter(row["group"] for row in rows)
    print(f"{len(rows)} rows in {len(groups)} groups; largest: {[n for _, n in groups.most_common(5)]}")
    print(f"{'file':32} " + " ".join(f"fold {f:1}" for f in range(N_FOLDS)))
    for name in sorted({file for file, _ in count}):
        print(f"{name:32} " + " ".join(f"{count[name, f]:6}" for f in range(N_FOLDS)))


if __name__ == "__main__":
    main()
