"""The split: groups joined by hand, folds recomputed with hashlib."""

import hashlib
import itertools
import json
import random
import re
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotators.evaluation.splits import assign_folds, fold_of, group_rows

DATA = Path(__file__).parents[4] / "shared" / "data"


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_rows_are_joined_through_other_rows() -> None:
    rows = [
        {"reference": "R1", "answer": "A1", "sentence": "S1"},
        {"reference": "R2", "answer": "A1", "sentence": "S2"},  # the answer of row 0
        {"reference": "R3", "answer": None, "sentence": "S2"},  # the claim of row 1
        {"reference": "R3", "sentence": "S4"},  # the reference of row 2
        {"reference": "R5", "answer": "", "sentence": "S5"},  # an empty answer joins nothing
        {"reference": "R6", "answer": "", "sentence": "S6"},
    ]
    groups = group_rows(rows)
    assert len(set(groups[:4])) == 1
    assert len(set(groups)) == 3
    # The name of a group is the smallest hash of its texts, white space folded and without case.
    texts = ["r1", "a1", "s1", "r2", "s2", "r3", "s4"]
    assert groups[0] == min(map(_sha, texts))
    assert groups[4] == min(_sha("r5"), _sha("s5"))
    # A text joins whatever its field; a row without texts stands by its id.
    found = group_rows([{"sentence": "The claim.", "reference": "a"}, {"answer": "the  CLAIM.\n", "reference": "b"}])
    assert found[0] == found[1]
    found = group_rows([{"id": "x"}, {"id": "y"}, {"id": "x", "reference": ""}])
    assert found[0] == found[2] == _sha("x") != found[1]


def test_fold_is_sha256_of_the_group_mod_five() -> None:
    rows = [{"reference": f"Document {i}", "sentence": f"Claim {i}"} for i in range(50)]
    names = [min(_sha(f"document {i}"), _sha(f"claim {i}")) for i in range(50)]
    expected = [int(_sha(name), 16) % 5 for name in names]
    assert assign_folds(rows) == expected
    assert set(expected) == {0, 1, 2, 3, 4}


def _components(rows: list[dict[str, str]]) -> list[int]:
    """Independent of the code: colours spread over shared texts until nothing changes."""
    colours = list(range(len(rows)))
    changed = True
    while changed:
        changed = False
        for i, one in enumerate(rows):
            for j, other in enumerate(rows):
                if set(one.values()) & set(other.values()) and colours[i] != colours[j]:
                    colours[i] = colours[j] = min(colours[i], colours[j])
                    changed = True
    return colours


letters = st.sampled_from("abcdefghijklmnop")
some_rows = st.lists(st.fixed_dictionaries({"reference": letters, "answer": letters, "sentence": letters}), max_size=9)


@given(some_rows, st.randoms())
def test_groups_are_the_connected_parts_in_any_order(rows: list[dict[str, str]], rng: random.Random) -> None:
    groups, parts = group_rows(rows), _components(rows)
    for i, j in itertools.combinations(range(len(rows)), 2):
        assert (groups[i] == groups[j]) == (parts[i] == parts[j])
    order = list(range(len(rows)))
    rng.shuffle(order)
    shuffled = group_rows([rows[i] for i in order])
    assert shuffled == [groups[i] for i in order]
    assert assign_folds([rows[i] for i in order]) == [fold_of(groups[i]) for i in order]


def test_no_text_of_one_fold_occurs_in_another():
    files = sorted(path for folder in ("sentences", "binary", "spans") for path in (DATA / folder).glob("*.jsonl"))
    if not files:
        pytest.skip("skipped: data not here")
    rows = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    folds: dict[str, set[int]] = defaultdict(set)
    for row, group in zip(rows, group_rows(rows), strict=True):
        for text in filter(None, (row.get(name) for name in ("reference", "answer", "sentence"))):
            folds[re.sub(r"\s+", " ", text).strip().lower()].add(fold_of(group))
    assert len(folds) > 30_000
    assert [text[:80] for text, found in folds.items() if len(found) > 1] == []
