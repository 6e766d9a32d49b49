"""Nearest and random neighbours against a whole sorted matrix, with ties, duplicates and odd block sizes."""

import numpy as np
import pytest

from fewl import neighbours
from fewl.neighbours import nearest, pair_cosine, random_dissimilar


def unit(rows):
    rows = np.asarray(rows, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def whole_matrix(vectors, k, texts):
    """Independent: python's stable sort over the full float64 matrix, so ties stay in input order."""
    found = []
    for q, row in enumerate(vectors.astype(np.float64)):
        others = [j for j in range(len(vectors)) if j != q and texts[j] != texts[q]]
        exact = {j: float(np.einsum("d,d->", row, vectors[j].astype(np.float64))) for j in others}
        others.sort(key=lambda j: -exact[j])
        found.append((others + [-1] * k)[:k])
    return np.array(found)


@pytest.mark.parametrize(("rows", "columns"), [(512, 8192), (7, 13), (1, 400), (300, 11), (64, 50)])
def test_nearest_equals_the_whole_matrix(monkeypatch, rows, columns):
    generator = np.random.default_rng(0)
    vectors = unit(generator.normal(size=(301, 16)))
    vectors[40:60] = vectors[3]  # twenty questions whose vectors are equal though their texts are not
    texts = [f"question {i % 290}" for i in range(301)]  # and eleven pairs of equal texts
    monkeypatch.setattr(neighbours, "ROWS", rows)
    monkeypatch.setattr(neighbours, "COLUMNS", columns)
    np.testing.assert_array_equal(nearest(vectors, 10, texts=texts), whole_matrix(vectors, 10, texts))


def test_random_neighbours_are_dissimilar_and_seeded():
    vectors = unit(np.random.default_rng(1).normal(size=(400, 3)))
    drawn = random_dissimilar(vectors, 25, seed=5)
    cosines = vectors.astype(np.float64) @ vectors.astype(np.float64).T
    for q, row in enumerate(drawn):
        assert len(set(row)) == 25
        assert q not in row
        assert cosines[q, row].max() <= 0.8
    np.testing.assert_array_equal(drawn, random_dissimilar(vectors, 25, seed=5))
    assert (drawn != random_dissimilar(vectors, 25, seed=6)).any()
    assert len(np.unique(drawn)) > 350  # drawn from the whole pool, not from its beginning


def test_few_dissimilar_questions_leave_padding():
    vectors = unit([[1, 0]] * 50 + [[0, 1]] * 3)
    drawn = random_dissimilar(vectors, 5)
    assert {*drawn[0, :3].tolist()} == {50, 51, 52}
    np.testing.assert_array_equal(drawn[0, 3:], [-1, -1])


def test_question_without_known_words_does_not_pick_itself():
    found = random_dissimilar(np.zeros((3, 2), np.float32), 3, seed=0)  # products with itself are 0, too
    assert [sorted(row) for row in found.tolist()] == [[-1, 1, 2], [-1, 0, 2], [-1, 0, 1]]


def test_pair_cosine_does_not_depend_on_the_batch():
    vectors = unit(np.random.default_rng(2).normal(size=(500, 384)))
    left, right = np.random.default_rng(3).integers(0, 500, size=(2, 12_000))
    together = pair_cosine(vectors, left, right)
    apart = [pair_cosine(vectors, left[i : i + 1], right[i : i + 1])[0] for i in range(0, 12_000, 1000)]
    np.testing.assert_array_equal(together[::1000], apart)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("run", [1, 7, 40])
def test_pair_cosine_equals_the_products(run, exact):
    vectors = unit(np.random.default_rng(2).normal(size=(900, 384)))
    left = np.repeat(np.random.default_rng(4).permutation(900)[:300], run)
    right = np.random.default_rng(3).integers(0, 900, size=300 * run)
    for cut in (0, 5):  # the second does not divide into equal runs
        want = (vectors[left[cut:]].astype(np.float64) * vectors[right[cut:]].astype(np.float64)).sum(axis=1)
        got = pair_cosine(vectors, left[cut:], right[cut:], exact=exact)
        np.testing.assert_allclose(got, want, atol=1e-6)
    assert len(pair_cosine(vectors, left[:0], right[:0], exact=exact)) == 0


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"at least 1, got 0"):
        nearest(unit([[1, 0]]), 0)
    with pytest.raises(ValueError, match=r"expected finite numbers"):
        random_dissimilar(np.array([[np.nan, 1]], dtype=np.float32), 1)
