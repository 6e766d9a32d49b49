"""What scores are for: rank models by their mean score, pick the best answer to each question; two plots.

Input are scored records (``fewl/score.py``). Intervals are percentile bootstraps over questions. A model's
null scores are left out of its mean and counted beside it, never taken for 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from fewl.core import Float, nan_mean

RESAMPLES = 2000
BLOCK = 50
"""Resamples computed at once: 50 x 100,000 questions are 40 MB of counts."""


@dataclass(frozen=True)
class ModelScore:
    """A model's mean score with its 95 % interval over n questions; ``missing`` answers have no score."""

    model: str
    mean: float | None
    low: float | None
    high: float | None
    n: int
    missing: int


@dataclass(frozen=True)
class Ranking:
    """Models, best first."""

    models: list[ModelScore]  # those without any score come last
    wins: dict[str, dict[str, float | None]]  # [a][b]: share of common questions where a scores above b, ties half
    common: dict[str, dict[str, int]]  # [a][b]: how many questions both answered
    kendall: dict[str, Any] | None  # τ-b of mean score and truth with its interval and n models; None without truth
    truth: dict[str, float] | None  # the truth it was compared with
    unnamed: int  # answers without a model, which no row holds


def rank_models(
    scored: Sequence[Mapping[str, Any]], *, truth: Mapping[str, float] | None = None, truth_from_labels: bool = False,
    resamples: int = RESAMPLES, seed: int = 0,
) -> Ranking:  # fmt: skip
    """Rank the models of scored records, whose answers have ``model`` and ``score``.

    ``truth`` is a number per model, higher is better, to compare the ranking with; ``truth_from_labels`` takes the
    share of answers labelled true for it, resampled with the scores. The bootstrap resamples questions. Raises
    ValueError: no answer names a model, or the truth and the records share fewer than two models.
    """
    rows = [(q, answer) for q, record in enumerate(scored) for answer in record["answers"]]
    named = [(q, answer) for q, answer in rows if answer.get("model") is not None]
    names = list(dict.fromkeys(answer["model"] for _, answer in named))
    if not names:
        raise ValueError('answers: expected a "model" on the answers to rank, got none')
    scores_QM, labels_QM = (_table(named, names, key, len(scored)) for key in ("score", "label"))
    missing = Counter(answer["model"] for _, answer in named if answer.get("score") is None)
    n_M = (~np.isnan(scores_QM)).sum(axis=0)
    means_M = nan_mean(scores_QM.T)
    draws_BM = _bootstrap_means(scores_QM, resamples, seed)
    models = []
    for m, name in enumerate(names):
        mean = low = high = None
        if n_M[m]:
            mean, (low, high) = float(means_M[m]), np.nanpercentile(draws_BM[:, m], [2.5, 97.5]).tolist()
        models.append(ModelScore(name, mean, low, high, int(n_M[m]), missing[name]))
    models.sort(key=lambda row: -row.mean if row.mean is not None else np.inf)
    wins: dict[str, dict[str, float | None]] = {name: {} for name in names}
    common: dict[str, dict[str, int]] = {name: {} for name in names}
    for (a, of_a_Q), (b, of_b_Q) in permutations(zip(names, scores_QM.T, strict=True), 2):
        gap_Q = (of_a_Q - of_b_Q)[~np.isnan(of_a_Q - of_b_Q)]
        common[a][b] = len(gap_Q)
        wins[a][b] = float(((gap_Q > 0) + 0.5 * (gap_Q == 0)).mean()) if len(gap_Q) else None
    if truth_from_labels:
        shares_M = nan_mean(labels_QM.T)
        truth = {name: float(t) for name, t in zip(names, shares_M, strict=True) if not np.isnan(t)}
    kendall = None
    if truth is not None:
        kept = [m for m, name in enumerate(names) if name in truth and n_M[m]]
        if len(kept) < 2:
            raise ValueError(f"truth: expected at least two of the ranked models {names}, got {sorted(truth)}")
        truth_M = np.array([truth[names[m]] for m in kept])
        truth_BM = np.broadcast_to(truth_M, (resamples, len(kept)))
        if truth_from_labels:
            truth_BM = _bootstrap_means(labels_QM, resamples, seed)[:, kept]
        taus = [kendall_tau(draws_M, t_M) for draws_M, t_M in zip(draws_BM[:, kept], truth_BM, strict=True)]
        known = [tau for tau in taus if tau is not None]
        low, high = np.percentile(known, [2.5, 97.5]).tolist() if known else (None, None)
        kendall = {"tau": kendall_tau(means_M[kept], truth_M), "low": low, "high": high, "models": len(kept)}
    return Ranking(models, wins, common, kendall, None if truth is None else dict(truth), len(rows) - len(named))


def _table(named: Sequence[tuple[int, Mapping[str, Any]]], names: Sequence[str], key: str, questions: int) -> Float:
    """``key`` as question × model: the mean over a model's answers to one question, NaN where it has none."""
    place = {name: m for m, name in enumerate(names)}
    sums = np.zeros((2, questions, len(names)))
    for q, answer in named:
        if answer.get(key) is not None:
            sums[:, q, place[answer["model"]]] += answer[key], 1
    with np.errstate(invalid="ignore"):
        return sums[0] / sums[1]


def _bootstrap_means(values_QM: Float, resamples: int, seed: int) -> Float:
    """Means over resampled questions, (resamples, M); NaN where a resample holds no value of a model."""
    generator = np.random.default_rng(seed)
    there_QM = ~np.isnan(values_QM)
    filled_QM = np.where(there_QM, values_QM, 0.0)
    n = len(values_QM)
    parts = []
    for start in range(0, resamples, BLOCK):
        counts_BQ = generator.multinomial(n, np.full(n, 1 / n), size=min(BLOCK, resamples - start))
        with np.errstate(invalid="ignore"):
            parts.append((counts_BQ @ filled_QM) / (counts_BQ @ there_QM))
    return np.concatenate(parts)


def kendall_tau(x: Float, y: Float) -> float | None:
    """Kendall's τ-b in [−1, 1]; None where either side is all ties or a number is missing."""
    from scipy.stats import kendalltau

    tau = float(kendalltau(x, y).statistic)
    return None if np.isnan(tau) else tau


def pick_answers(scored: Sequence[Mapping[str, Any]], abstain_above: float | None = None) -> list[dict[str, Any]]:
    """The best-scored answer of each record: ``answer``, ``model``, ``score`` and where it stood.

    Equal scores go to the first in input order, and ``ties`` says how many there were. Records without any
    score get ``answer`` null, and so do those whose ``entropy`` exceeds ``abstain_above``, if that is given, or is not
    known. The other keys of the record but its answers and reference answers are kept.
    """
    rows = []
    nothing: tuple[int | None, Mapping[str, Any]] = (None, {})
    for record in scored:
        rest = {k: v for k, v in record.items() if k not in ("answers", "reference_answers", "iw", "co", "lambda")}
        known = [(i, answer) for i, answer in enumerate(record["answers"]) if answer.get("score") is not None]
        entropy = record.get("entropy")
        if abstain_above is not None and (entropy is None or entropy > abstain_above):
            known = []
        index, best = max(known, key=lambda pair: pair[1]["score"], default=nothing)  # max keeps the first of equals
        ties = sum(answer["score"] == best["score"] for _, answer in known)
        found = {"answer": best.get("text"), "model": best.get("model"), "score": best.get("score")}
        rows.append({**rest, **found, "index": index, "ties": ties})
    return rows


def plot_ranking(ranking: Ranking, path: Path, form: str | None = None) -> None:
    """Write a PNG (or what the suffix says) of the ranking with its 95 % intervals."""
    from matplotlib.figure import Figure

    rows = [row for row in reversed(ranking.models) if row.mean is not None]
    figure = Figure(figsize=(6.4, 1.2 + 0.32 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(rows))
    mean, low, high = np.array([(row.mean, row.low, row.high) for row in rows], dtype=float).reshape(-1, 3).T
    axes.hlines(places, low, high, color="0.6", linewidth=2, zorder=1)
    axes.scatter(mean, places, color="C0", zorder=2)
    axes.set_yticks(places, [f"{row.model} (n={row.n})" for row in rows])
    axes.set_xlabel("mean FEWL score, 95 % bootstrap interval (higher is better)")
    figure.savefig(path, dpi=150, format=form)


def plot_agreement(counts: Mapping[str, Sequence[tuple[int, int]]], path: Path, form: str | None = None) -> None:
    """Write box plots of how many wrong and corrected answers each LLM agrees with (the paper's Figure 4)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.boxplot([column for rows in counts.values() for column in zip(*rows, strict=True)])
    labels = [f"{name}\n{kind}" for name in counts for kind in ("wrong", "corrected")]
    axes.set_xticks(range(1, len(labels) + 1), labels)
    axes.set_ylabel("answers agreed with, per question")
    figure.savefig(path, dpi=150, format=form)
