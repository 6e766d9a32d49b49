"""Which questions are a question's neighbours: the K nearest, or random ones that are not too similar.

Exact and blocked: the Q x Q matrix of similarities is never whole in memory. A question is never its own
neighbour, nor is another of the same text. Equal similarities come in the order of the input, whatever the
block size, since the order is settled by a float64 product of each pair by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROWS, COLUMNS = 512, 8192
"""One block of similarities: 512 x 8192 float32 is 16 MiB."""
SLACK = 1e-5
"""More than float32 rounding moves a cosine; pairs this close to the K-th, or above, are compared in float64."""


def nearest(vectors_QD: NDArray[np.float32], k: int, *, texts: Sequence[str] | None = None) -> NDArray[np.int64]:
    """The k nearest other questions of each question by cosine, exact, nearest first, ties in input order.

    Vectors have length 1. Questions with the text of the query are left out where ``texts`` are given, as is the query
    itself. Returns neighbours_QK, row numbers; −1 pads rows with fewer than k other questions. Raises ValueError: k is
    below 1 or a vector is not finite.
    """
    _check(vectors_QD, k)
    number: dict[str | int, int] = {}  # equal texts share one; without texts every question has its own
    of_text = [number.setdefault(text, len(number)) for text in texts or range(len(vectors_QD))]
    same_Q = np.array(of_text, dtype=np.int64)
    found_QK = np.full((len(vectors_QD), k), -1, dtype=np.int64)
    for start in range(0, len(vectors_QD), ROWS):
        block_R = np.arange(start, min(start + ROWS, len(vectors_QD)))
        row_P, column_P = _survivors(vectors_QD, block_R, k, same_Q)
        exact_P = pair_cosine(vectors_QD, block_R[row_P], column_P)
        order = np.lexsort((column_P, -exact_P, row_P))
        row_P, column_P = row_P[order], column_P[order]
        rank_P = np.arange(len(row_P)) - np.searchsorted(row_P, row_P)  # from 0 in each row
        top_P = rank_P < k
        found_QK[start + row_P[top_P], rank_P[top_P]] = column_P[top_P]
    return found_QK


def random_dissimilar(vectors_QD: NDArray[np.float32], k: int, *, seed: int = 0) -> NDArray[np.int64]:
    """k random other questions whose similarity is at most 0.8 (Appendix D.4: 25 of them).

    Drawn without replacement; the same seed gives the same questions. Returns neighbours_QK in the order drawn; −1 pads
    rows with fewer than k such questions. Raises ValueError: k is below 1 or a vector is not finite.
    """
    _check(vectors_QD, k)
    n = len(vectors_QD)
    found_QK = np.full((n, k), -1, dtype=np.int64)
    for query in range(n):
        generator = np.random.default_rng([seed, query])
        # A small draw nearly always suffices; the whole permutation is for small or very alike pools.
        for draw in (generator.integers(0, n, size=4 * k), None):
            candidates = generator.permutation(n) if draw is None else np.array(list(dict.fromkeys(draw)))
            candidates = candidates[candidates != query]
            similar = vectors_QD[candidates].astype(np.float64) @ vectors_QD[query].astype(np.float64)
            kept = candidates[similar <= 0.8][:k]
            if len(kept) == k or draw is None:
                found_QK[query, : len(kept)] = kept
                break
    return found_QK


def pair_cosine(
    vectors: NDArray[np.float32], left_P: NDArray[np.int64], right_P: NDArray[np.int64], *, exact: bool = True
) -> NDArray[np.float64]:
    """Products of pairs of rows, in blocks that keep memory small; runs of one length of a left row are read once.

    ``exact`` is in float64, where a pair's value does not depend on the other pairs (error below 1e-9), else in
    float32, several times faster (below 1e-6).
    """
    values_P = np.empty(len(left_P))
    changes = np.flatnonzero(np.diff(left_P)) + 1
    run = int(changes[0]) if len(changes) else max(1, len(left_P))
    if exact or len(left_P) % run or (left_P.reshape(-1, run) != left_P[::run, None]).any():
        run = 1  # a matrix product's value of one pair may depend on the others
    step = run * max(1, 2_000_000 // max(1, vectors.shape[1] * run))
    dtype: type[np.floating] = np.float64 if exact else np.float32
    for start in range(0, len(left_P), step):
        left_RD: NDArray[np.floating] = vectors[left_P[start : start + step : run]].astype(dtype, copy=False)
        right_PD: NDArray[np.floating] = vectors[right_P[start : start + step]].astype(dtype, copy=False)
        right_RKD = right_PD.reshape(len(left_RD), run, -1)
        if run == 1:
            values_P[start : start + step] = np.einsum("rd,rkd->rk", left_RD, right_RKD).ravel()
        else:
            values_P[start : start + step] = (right_RKD @ left_RD[:, :, None]).ravel()
    return values_P


def _survivors(
    vectors_QD: NDArray[np.float32], block_R: NDArray[np.int64], k: int, same_Q: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Pairs (row of the block, question), 2 x P, that hold the k nearest of every row, and few others."""
    floor_R = np.full(len(block_R), -np.inf, dtype=np.float32)
    parts = []
    for start in range(0, len(vectors_QD), COLUMNS):
        tile_RC = vectors_QD[block_R] @ vectors_QD[start : start + COLUMNS].T
        width = tile_RC.shape[1]
        tile_RC[same_Q[block_R][:, None] == same_Q[start : start + width][None, :]] = -np.inf
        if (half := width // 2) >= k:  # the k-th best of any values bounds the k-th best of all from below
            larger_RC = np.maximum(tile_RC[:, :half], tile_RC[:, half : 2 * half])  # as good a bound in half the time
            floor_R = np.maximum(floor_R, np.partition(larger_RC, half - k, axis=1)[:, half - k])
        kept_RC = (tile_RC >= floor_R[:, None] - SLACK) & (tile_RC > -np.inf)
        row_P, column_P = np.divmod(np.flatnonzero(kept_RC), width)  # ten times faster than np.nonzero(kept_RC)
        parts.append((row_P, column_P + start))
    return np.concatenate(parts, axis=1)


def _check(vectors_QD: NDArray[np.float32], k: int) -> None:
    if k < 1:
        raise ValueError(f"neighbours: expected a number of at least 1, got {k}")
    check_finite(vectors_QD)


def check_finite(vectors: NDArray[np.float32]) -> None:
    """ValueError where an embedding is not finite."""
    if not np.isfinite(vectors).all():
        raise ValueError("vectors: expected finite numbers, got NaN or infinity; check the embedding model")
