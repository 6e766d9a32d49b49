"""Batches of few shapes: every row once, padded little, shapes bounded whatever the texts are."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.embedding import batches, padded


def test_by_hand() -> None:
    assert [padded(n) for n in (0, 1, 8, 9, 128, 129, 145, 256, 257, 500)] == [
        8, 8, 8, 16, 128, 144, 160, 256, 288, 512,
    ]  # fmt: skip
    # 5 rows of 8 fit into 40, a power of two of them is 4; the last three are cut into 2 and 1
    assert list(batches([3, 9, 4, 5, 6, 7, 8, 1, 2], 40, 512)) == [
        ([1, 6], 16), ([5, 4, 3, 2], 8), ([0, 8], 8), ([7], 8),
    ]  # fmt: skip
    assert list(batches([], 40, 512)) == []
    assert list(batches([600], 40, 514)) == [([0], 514)]  # over the budget: alone; never over the model's limit


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 512), max_size=80), st.integers(1, 2048))
def test_every_row_once_longest_first(lengths: list[int], budget: int) -> None:
    found = list(batches(lengths, budget, 512))
    order = [i for rows, _ in found for i in rows]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[i] for i in order] == sorted(lengths, reverse=True)
    for rows, width in found:
        assert len(rows).bit_count() == 1
        assert len(rows) == 1 or len(rows) * width <= budget
        longest = lengths[rows[0]]
        assert longest <= width <= max(longest + 8, longest * 9 / 8)


def test_shapes_are_few() -> None:
    draw = random.Random(0)
    shapes = set()
    for _ in range(3000):
        lengths = [draw.randint(3, 512) for _ in range(draw.randint(1, 60))]
        shapes |= {(len(rows), width) for rows, width in batches(lengths, 2048, 512)}
    assert len({width for _, width in shapes}) == 32
    assert len(shapes) <= 32 * 5
