"""The two figures: models by mean score with intervals, and agreement with wrong and corrected answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fewl.core import Float, nan_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# ----------------------------------------------------------------------------------------------------
# What scores are for: rank models by their mean score, pick the best answer of each question.
#
# Input are scored records (``fewl/score.py``). Intervals are percentile bootstraps over questions. A model's
# null scores are left out of its mean and counted beside it, never taken for 0.

RESAMPLES = 2000
BLOCK = 50
"""Resamples computed at once."""


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
    """Models, best first.

    Args:
        models: One row per model; those without any score come last.
        wins: wins[a][b]: share in [0, 1] of the questions both answered where a scores above b, ties half.
        common: common[a][b]: how many questions that are.
        kendall: τ-b of mean score and truth with its interval and n models; None without truth.
        truth: The truth it was compared with.
        unnamed: Answers without a model, which no row holds.
    """

    models: list[ModelScore]
    wins: dict[str, dict[str, float | None]]
    common: dict[str, dict[str, int]]
    kendall: dict[str, Any] | None
    truth: dict[str, float] | None
    unnamed: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def rank_models(
    scored: Sequence[Mapping[str, Any]],
    *,
    truth: Mapping[str, float] | None = None,
    truth_from_labels: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Ranking:
    """Rank the models of scored records.

    Args:
        scored: Records whose answers have ``model`` and ``score``.
        truth: A number per model, higher is better, to compare the ranking with.
        truth_from_labels: Take the share of answers labelled true for it; resampled with the scores.
        resamples: Bootstrap resamples of questions.
        seed: Of the bootstrap.

    Raises:
        ValueError: No answer names a model, or the truth and the records share fewer than two models.
    """
    names, scores_QM, labels_QM, missing_M, unnamed = _tables(scored)
    if not names:
        raise ValueError('answers: expected a "model" on the answers to rank, got none')
    means_M = nan_mean(scores_QM.T)
    draws_BM = _bootstrap_means(scores_QM, resamples, seed)
    rows = []
    for m, name in enumerate(names):
        some = not np.isnan(means_M[m])
        low, high = np.nanpercentile(draws_BM[:, m], [2.5, 97.5]) if some else (None, None)
        rows.append(
            ModelScore(
                name,
                float(means_M[m]) if some else None,
                None if low is None else float(low),
                None if high is None else float(high),
                int((~np.isnan(scores_QM[:, m])).sum()),
                int(missing_M[m]),
            )
        )
    rows.sort(key=lambda row: -row.mean if row.mean is not None else np.inf)
    wins, common = _win_table(names, scores_QM)
    kendall = None
    if truth_from_labels:
        truth_M = nan_mean(labels_QM.T)
        truth = {name: float(t) for name, t in zip(names, truth_M, strict=True) if not np.isnan(t)}
    if truth is not None:
        kept = [m for m, name in enumerate(names) if name in truth and not np.isnan(means_M[m])]
        if len(kept) < 2:
            raise ValueError(f"truth: expected at least two of the ranked models {names}, got {sorted(truth)}")
        fixed_M = np.array([truth[names[m]] for m in kept])
        truth_BM = _bootstrap_means(labels_QM, resamples, seed)[:, kept] if truth_from_labels else None
        taus = [kendall_tau(draws_BM[b, kept], fixed_M if truth_BM is None else truth_BM[b]) for b in range(resamples)]
        known = [tau for tau in taus if tau is not None]
        interval = np.percentile(known, [2.5, 97.5]).tolist() if known else [None, None]
        kendall = {
            "tau": kendall_tau(means_M[kept], fixed_M),
            "low": interval[0],
            "high": interval[1],
            "models": len(kept),
        }
    return Ranking(rows, wins, common, kendall, None if truth is None else dict(truth), unnamed)


def kendall_tau(x: Float, y: Float) -> float | None:
    """Kendall's τ-b in [−1, 1]; None where either side is all ties or a number is missing."""
    if len(x) != len(y):
        raise ValueError(f"kendall: expected two lists of one length, got {len(x)} and {len(y)}")
    dx, dy = np.sign(x[:, None] - x[None, :]), np.sign(y[:, None] - y[None, :])
    scale = np.sqrt((dx**2).sum() * (dy**2).sum())
    return float((dx * dy).sum() / scale) if scale > 0 else None


def pick_answers(scored: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The best-scored answer of each record: ``answer``, ``model``, ``score`` and where it stood.

    Equal scores go to the first in input order, and ``ties`` says how many there were. Records without any
    score get ``answer`` null. The other keys of the record but its answers and reference answers are kept.
    """
    rows = []
    for record in scored:
        rest = {k: v for k, v in record.items() if k not in ("answers", "reference_answers", "iw", "co", "lambda")}
        places = [i for i, a in enumerate(record["answers"]) if a.get("score") is not None]
        if not places:
            rows.append({**rest, "answer": None, "model": None, "score": None, "index": None, "ties": 0})
            continue
        best = max(places, key=lambda i: record["answers"][i]["score"])  # max keeps the first of equals
        answer = record["answers"][best]
        ties = sum(record["answers"][i]["score"] == answer["score"] for i in places)
        rows.append(
            {
                **rest,
                "answer": answer["text"],
                "model": answer.get("model"),
                "score": answer["score"],
                "index": best,
                "ties": ties,
            }
        )
    return rows


def _tables(scored: Sequence[Mapping[str, Any]]) -> tuple[list[str], Float, Float, Float, int]:
    """Scores and labels as question × model (mean of a model's answers to one question), NaN where none."""
    names: dict[str, int] = {}
    unnamed = 0
    for record in scored:
        for answer in record["answers"]:
            if answer.get("model") is None:
                unnamed += 1
            else:
                names.setdefault(answer["model"], len(names))
    sums = np.zeros((4, len(scored), len(names)))  # score, its count, label, its count
    missing_M = np.zeros(len(names))
    for q, record in enumerate(scored):
        for answer in record["answers"]:
            if answer.get("model") is None:
                continue
            m = names[answer["model"]]
            if answer.get("score") is None:
                missing_M[m] += 1
            else:
                sums[:2, q, m] += answer["score"], 1
            if answer.get("label") is not None:
                sums[2:, q, m] += answer["label"], 1
    with np.errstate(invalid="ignore"):
        return list(names), sums[0] / sums[1], sums[2] / sums[3], missing_M, unnamed


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


def _win_table(
    names: Sequence[str], scores_QM: Float
) -> tuple[dict[str, dict[str, float | None]], dict[str, dict[str, int]]]:
    wins: dict[str, dict[str, float | None]] = {name: {} for name in names}
    common: dict[str, dict[str, int]] = {name: {} for name in names}
    for a, first in enumerate(names):
        for b, second in enumerate(names):
            if a == b:
                continue
            gap_Q = scores_QM[:, a] - scores_QM[:, b]
            gap_Q = gap_Q[~np.isnan(gap_Q)]
            common[first][second] = len(gap_Q)
            wins[first][second] = float(((gap_Q > 0) + 0.5 * (gap_Q == 0)).mean()) if len(gap_Q) else None
    return wins, common


def plot_ranking(ranking: Ranking, path: Path) -> None:
    """Write a PNG (or what the suffix says) of the ranking with its 95 % intervals."""
    rows = [
        (f"{row.model} (n={row.n})", row.mean, row.low, row.high)
        for row in reversed(ranking.models)
        if row.mean is not None and row.low is not None and row.high is not None
    ]
    figure = _figure(6.4, 1.2 + 0.32 * len(rows))
    axes = figure.add_subplot()
    for place, (_, mean, low, high) in enumerate(rows):
        axes.plot([low, high], [place, place], color="0.6", linewidth=2, zorder=1)
        axes.scatter([mean], [place], color="C0", zorder=2)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set_xlabel("mean FEWL score, 95 % bootstrap interval (higher is better)")
    figure.savefig(path, dpi=150)


def plot_agreement(counts: Mapping[str, Sequence[tuple[int, int]]], path: Path) -> None:
    """Write box plots of how many wrong and corrected answers each LLM agrees with (the paper's Figure 4)."""
    figure = _figure(6.4, 4.0)
    axes = figure.add_subplot()
    labels, values = [], []
    for name, rows in counts.items():
        labels += [f"{name}\nwrong", f"{name}\ncorrected"]
        values += [[wrong for wrong, _ in rows], [corrected for _, corrected in rows]]
    axes.boxplot(values)
    axes.set_xticks(range(1, len(labels) + 1), labels)
    axes.set_ylabel("answers agreed with, per question")
    figure.savefig(path, dpi=150)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
