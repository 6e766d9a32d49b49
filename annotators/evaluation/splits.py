"""The one split of labelled rows into folds, by joined groups, never by row.

Rows that share a reference, an answer or a claim (the judged sentence) form one group, transitively, named by the
smallest of its texts' hashes; fold = sha256(name) mod 5. Fold 0 is the test fold (never trained on, never the seed of a
synthetic edit), 1 the development fold, 2 to 4 are for training. Compute folds over *all* files of a data set at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

N_FOLDS = 5
FOLD_NAMES: dict[str, tuple[int, ...]] = {"test": (0,), "dev": (1,), "train": (2, 3, 4)}
GROUP_FIELDS = ("reference", "answer", "sentence")


def plain(text: object) -> str:
    """A text with white space folded and without case: equal texts leak, whatever their spacing."""
    return " ".join(str(text or "").split()).lower()


def _hash(text: str) -> str:
    return hashlib.sha256(plain(text).encode("utf-8", "surrogatepass")).hexdigest()


def group_rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The group (64 hex digits) of each row: rows joined by an equal reference, answer or sentence, transitively.

    Texts are compared with white space folded and without case; missing ones join nothing. A row without any is a group
    of its own, by its id.
    """
    return joined(
        [
            [_hash(text) for name in GROUP_FIELDS if (text := row.get(name))] or [_hash(str(row.get("id", number)))]
            for number, row in enumerate(rows)
        ]
    )


def joined(keys_of_row: Iterable[Sequence[str]]) -> list[str]:
    """The group of each row, by its smallest key: rows that have a key in common are one, transitively."""
    from scipy.cluster.hierarchy import DisjointSet

    rows = list(keys_of_row)
    sets = DisjointSet(key for keys in rows for key in keys)
    for first, *others in rows:
        for key in others:
            sets.merge(first, key)
    name_of = {key: min(group) for group in sets.subsets() for key in group}
    return [name_of[keys[0]] for keys in rows]


def fold_of(group: str) -> int:
    """The fold, 0 to 4, of a group's name."""
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % N_FOLDS


def assign_folds(rows: Iterable[Mapping[str, Any]]) -> list[int]:
    """The fold, 0 to 4, of each row, in order."""
    return [fold_of(group) for group in group_rows(list(rows))]
