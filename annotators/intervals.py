"""Bootstrap intervals of any figure, by drawing whole groups of rows with replacement.

Rows of one document or claim are not independent, so groups (``annotators/splits.group_rows``) are drawn, not
rows. A figure is a function of row weights (how often each row was drawn) that is None where it cannot be
computed; nothing here knows which figure it is.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], float | None]


def resample(groups: Sequence[Hashable], n_resamples: int, seed: int) -> Iterator[Floats]:
    """Yield (n,) weights: how often each row occurs when the groups are drawn with replacement."""
    names = {name: i for i, name in enumerate(dict.fromkeys(groups))}
    member = np.array([names[name] for name in groups], dtype=np.int64)
    rng = np.random.default_rng(seed)
    for _ in range(n_resamples if names else 0):
        draw = np.bincount(rng.integers(0, len(names), len(names)), minlength=len(names))
        yield draw[member].astype(np.float64)


def percentiles(values: Sequence[float | None], level: float = 0.95) -> tuple[float, float] | None:
    """The middle ``level`` of bootstrap values; None where more than one in ten could not be computed."""
    known = [value for value in values if value is not None]
    if not known or len(known) < 0.9 * len(values):
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def bootstrap(
    statistics: Mapping[str, Statistic],
    groups: Sequence[Hashable],
    n_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, tuple[float, float] | None]:
    """Percentile intervals of several figures, all from the same draws.

    Args:
        statistics: Name → function of (n,) row weights.
        groups: (n,) group of each row; all different means drawing rows.
        n_resamples: Number of draws; 0 gives no interval.
        seed: Equal seeds give equal intervals.
        level: Share of the draws inside.

    Returns:
        Name → (low, high); None with fewer than two groups.

    Source: Efron & Tibshirani 1993, chapter 13; drawing clusters, Davison & Hinkley 1997, §3.8.
    """
    if len(set(groups)) < 2:
        return dict.fromkeys(statistics)
    values: dict[str, list[float | None]] = {name: [] for name in statistics}
    for weights in resample(groups, n_resamples, seed):
        for name, statistic in statistics.items():
            values[name].append(statistic(weights))
    return {name: percentiles(drawn, level) for name, drawn in values.items()}


def paired_difference(
    first: Statistic, second: Statistic, groups: Sequence[Hashable], n_resamples: int = 1000, seed: int = 0
) -> dict[str, float | None]:
    """first − second with its 95 % interval, both computed on the same draws of groups.

    Returns:
        ``difference``, ``low``, ``high`` and ``share_above_0`` (the share of draws where first is higher),
        each None where it cannot be computed.
    """

    def difference(weights: Floats) -> float | None:
        a, b = first(weights), second(weights)
        return None if a is None or b is None else a - b

    result: dict[str, float | None] = dict.fromkeys(("low", "high", "share_above_0"))
    result = {"difference": difference(np.ones(len(groups))), **result}
    if result["difference"] is None or len(set(groups)) < 2:
        return result
    drawn = [difference(weights) for weights in resample(groups, n_resamples, seed)]
    if limits := percentiles(drawn):
        result["low"], result["high"] = limits
        result["share_above_0"] = float(np.mean([d > 0 for d in drawn if d is not None]))
    return result


def mean_of(parts: Sequence[tuple[NDArray[np.int64], Statistic]]) -> Statistic:
    """The plain mean of figures of parts of the rows (a mean over sources), leaving out those that are None.

    Args:
        parts: (row numbers, figure of the weights of just those rows) of each part.
    """

    def mean(weights: Floats) -> float | None:
        known = [value for rows, part in parts if (value := part(weights[rows])) is not None]
        return float(np.mean(known)) if known else None

    return mean
