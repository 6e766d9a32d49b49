"""Rows of like length in batches of few different shapes.

oneDNN, which multiplies bfloat16 matrices on a CPU, compiles a kernel for every new shape and keeps it for good, about
half a MiB each: with batches as they come, memory would grow with every text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def padded(length: int) -> int:
    """The length a row is padded to: a multiple of 8, above 128 tokens at most an eighth more."""
    step = max(8, (1 << max(0, length - 1).bit_length()) // 16)
    return -(-max(1, length) // step) * step


def batches(lengths: Sequence[int], budget: int, limit: int) -> Iterator[tuple[list[int], int]]:
    """Rows, longest first, in batches whose number of rows is a power of two.

    Args:
        lengths: Of the rows, in tokens.
        budget: Padded tokens of a batch of more than one row.
        limit: Tokens that the model reads, no less than any length.

    Yields:
        (positions of the rows, width that they are padded to).
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    at = 0
    while at < len(order):
        width = min(padded(lengths[order[at]]), limit)
        size = 1 << (min(max(1, budget // width), len(order) - at).bit_length() - 1)
        yield order[at : at + size], width
        at += size
