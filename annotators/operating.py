"""Calibration of an annotator: honest probabilities, and as many flags as a target precision allows.

P(supported) among factual labels goes through a sigmoid of its log-odds (Platt 1999), fitted on labelled rows; then the
threshold for "hallucinated" is the one with the most flags whose precision is at least the target by the lower end of
an interval. What is neither flagged nor more likely supported than not gets the status "unsure".
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from annotators.evaluation.metrics import ece, supported_score, two_way_gold
from annotators.records import LABELS, SentenceAnnotation

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
VERSION = 1
CLIP = 1e-6  # shares are kept this far from 0 and 1, where log-odds are infinite
UNSURE = -1
SUPPORTED, CONTRADICTORY, UNVERIFIABLE, NO_FACT = range(len(LABELS))
MIN_ROWS = 50  # checked factual rows to fit on, with at least MIN_CLASS supported and as many hallucinated ones
MIN_CLASS = 15
MIN_FLAGGED = 20  # flagged rows below which a precision is not trusted
N_FOLDS = 5


@dataclass(frozen=True)
class Calibration:
    """What `mitigate calibrate` fits for the annotator with this fingerprint: a sigmoid with a slope above 0, and the
    least probability of a hallucination that is flagged (None for the likelier of the two); the report is for people.
    """

    annotator: str
    slope: float
    intercept: float
    hallucinated_at: float | None = None
    report: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """16 hex digits over all that changes verdicts: annotator, sigmoid and threshold."""
        parts = json.dumps([VERSION, self.annotator, self.slope, self.intercept, self.hallucinated_at])
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def judge(self, probabilities: Floats, labels: Ints) -> tuple[Floats, Ints]:
        """Calibrated probabilities (n, 4), rows sum to 1, and labels (n,), positions in LABELS or UNSURE.

        P(no_fact) and "no_fact" labels stay; the rest is shared anew between supported and hallucinated, and among the
        two kinds of hallucination as before.
        """
        p = np.asarray(probabilities, dtype=np.float64)
        factual = 1.0 - p[:, NO_FACT]
        share = sigmoid(p[:, SUPPORTED] / np.maximum(factual, 1e-12), self.slope, self.intercept)
        wrong = p[:, [CONTRADICTORY, UNVERIFIABLE]]
        mass = wrong.sum(1, keepdims=True)
        split = np.where(mass > 1e-12, wrong / np.maximum(mass, 1e-12), 0.5)
        out = np.column_stack([share * factual, split * ((1.0 - share) * factual)[:, None], p[:, NO_FACT]])
        flagged = 1.0 - share >= (0.5 if self.hallucinated_at is None else self.hallucinated_at)
        judged = np.where(flagged, CONTRADICTORY + split.argmax(1), np.where(share > 0.5, SUPPORTED, UNSURE))
        return out, np.where(labels == NO_FACT, NO_FACT, judged)

    def apply(self, sentence: SentenceAnnotation) -> SentenceAnnotation:
        """A sentence judged anew by its scores; one without scores stays as it is."""
        if sentence.status != "checked" or sentence.scores is None or sentence.label is None:
            return sentence
        chances, labels = self.judge(
            np.array([[sentence.scores[label] for label in LABELS]]), np.array([LABELS.index(sentence.label)])
        )
        if labels[0] == UNSURE:
            return SentenceAnnotation(sentence.text, sentence.start, sentence.end, "unsure")
        return replace(
            sentence, label=LABELS[int(labels[0])], scores=dict(zip(LABELS, chances[0].tolist(), strict=True))
        )

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        row = {"kind": "calibration", "version": VERSION, **asdict(self)}
        path.write_text(json.dumps(row, indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what ``save`` wrote; OSError without such a file, ValueError where it is not one of this version."""
        try:
            row = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:  # not UTF-8, or not JSON
            raise ValueError(f"{path}: expected JSON in UTF-8 ({error}); fit it again") from error
        if not isinstance(row, dict) or (row.get("kind"), row.get("version")) != ("calibration", VERSION):
            raise ValueError(f"{path}: expected a file of `mitigate calibrate` of this version; fit it again")
        at = row.get("hallucinated_at")
        numbers: list[Any] = [row.get("slope"), row.get("intercept"), 0.5 if at is None else at]
        if not all(type(x) in (int, float) and math.isfinite(x) for x in numbers) or row["slope"] <= 0:
            raise ValueError(f"{path}: expected slope > 0, intercept and hallucinated_at as numbers; fit it again")
        if not isinstance(row.get("annotator"), str) or not isinstance(row.get("report"), dict):
            raise ValueError(f"{path}: expected an annotator's fingerprint and a report; fit it again")
        return cls(row["annotator"], row["slope"], row["intercept"], at, row["report"])


def sigmoid(share: Floats, slope: float, intercept: float) -> Floats:
    """1 / (1 + exp(−(slope · logit(share) + intercept))), shares clipped to [CLIP, 1 − CLIP]."""
    s = np.clip(share, CLIP, 1 - CLIP)
    return np.asarray(1 / (1 + np.exp(-(slope * np.log(s / (1 - s)) + intercept))))


class OutOfReach(ValueError):
    """No threshold reaches the target precision; the text says what can be reached."""


@dataclass(frozen=True)
class Flagging:
    """A threshold for "hallucinated": flagged where 1 − P(supported | factual) ≥ ``threshold``; shares are in [0, 1].

    ``low`` is the one-sided lower limit of ``precision``; ``recall`` is the share of hallucinated rows flagged.
    """

    threshold: float
    precision: float
    low: float
    recall: float
    n_flagged: int

    def __str__(self) -> str:
        return (
            f"{self.precision:.3f} (at least {self.low:.3f}) of {self.n_flagged} flagged rows, "
            f"{self.recall:.0%} of the hallucinated ones"
        )


def fit_sigmoid(share: Floats, supported: NDArray[np.bool_]) -> tuple[float, float]:
    """Slope and intercept that make (n,) shares in [0, 1] probabilities: logistic regression on their log-odds.

    Targets are (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), so that separable rows end at finite values; both classes must
    occur. ValueError where higher shares do not go with supported rows. Source: Platt 1999; Lin, Lin & Weng 2007.
    """
    s = np.clip(share, CLIP, 1 - CLIP)
    x = np.column_stack([np.log(s / (1 - s)), np.ones(len(s))])
    n = supported.sum()
    target = np.where(supported, (n + 1) / (n + 2), 1 / (len(s) - n + 2))
    w = np.array([1.0, 0.0])

    def loss(v: Floats) -> float:
        z = x @ v
        return float((np.logaddexp(0, z) - target * z).sum())

    for _ in range(100):  # Newton's method with backtracking; a handful of steps is usual
        p = 1 / (1 + np.exp(-x @ w))
        gradient = x.T @ (p - target)
        hessian = (x.T * (p * (1 - p))) @ x + 1e-9 * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while size > 1e-8 and loss(w - size * step) > loss(w):
            size /= 2
        w = w - size * step
        if np.abs(size * step).max() < 1e-9:
            break
    if w[0] <= 0:
        raise ValueError(
            "calibration: on these rows a higher score does not mean supported (slope "
            f"{w[0]:.3f}); check the labels, or take another annotator"
        )
    return float(w[0]), float(w[1])


def flaggings(
    hallucination: Floats, hallucinated: NDArray[np.bool_], groups: Sequence[Hashable], confidence: float
) -> list[Flagging]:
    """Every threshold between two rows' probabilities, the strictest first, with the precision of its flags.

    ``hallucination`` is (n,) 1 − P(supported | factual), NaN where a row can't be flagged. The one-sided lower limit at
    ``confidence`` in (0.5, 1) is Wilson's with the effective number of rows, n_eff = r(1 − r) / Var(r), Var(r) = u/(u −
    1) Σ(h_g − r f_g)² / F² over the u groups g with f_g flagged and h_g rightly flagged rows, kept between u and F.
    Source: Wilson 1927; Korn & Graubard 1998.
    """
    z = NormalDist().inv_cdf(confidence)
    order = [i for i in np.argsort(-hallucination, kind="stable").tolist() if not np.isnan(hallucination[i])]
    flagged: dict[Hashable, int] = {}
    right: dict[Hashable, int] = {}
    hh = hf = ff = hits = 0
    found = []
    for position, i in enumerate(order):
        g, y = groups[i], int(hallucinated[i])
        h, f = right.get(g, 0), flagged.get(g, 0)
        hh += (h + y) ** 2 - h * h
        hf += (h + y) * (f + 1) - h * f
        ff += 2 * f + 1
        right[g], flagged[g] = h + y, f + 1
        hits += y
        n = position + 1
        here = float(hallucination[i])
        following = float(hallucination[order[n]]) if n < len(order) else -math.inf
        if following == here:
            continue  # equal scores are flagged together
        r, u = hits / n, len(flagged)
        variance = u / (u - 1) * (hh - 2 * r * hf + r * r * ff) / n**2 if u > 1 else 0.0
        n_eff = min(max(r * (1 - r) / variance if variance > 0 else u, u), n)
        centre = (r + z * z / (2 * n_eff)) / (1 + z * z / n_eff)
        half = z * math.sqrt(r * (1 - r) / n_eff + z * z / (4 * n_eff**2)) / (1 + z * z / n_eff)
        threshold = here if following == -math.inf else (here + following) / 2
        recall = hits / max(int(hallucinated.sum()), 1)
        found.append(Flagging(threshold, r, max(0.0, centre - half), recall, n))
    return found


def choose(found: Sequence[Flagging], target: float) -> Flagging:
    """The flagging with most flags whose precision is at least the target by its lower limit; else OutOfReach."""
    enough = [f for f in found if f.n_flagged >= MIN_FLAGGED]
    if good := [f for f in enough if f.low >= target]:
        return max(good, key=lambda f: f.n_flagged)
    if not enough:
        raise OutOfReach(
            f"target precision {target:g}: expected at least {MIN_FLAGGED} rows that can be flagged, got "
            f"{max((f.n_flagged for f in found), default=0)}; give more labelled rows"
        )
    best = max(enough, key=lambda f: (f.low, f.n_flagged))
    raise OutOfReach(
        f"target precision {target:g} cannot be reached on these rows; the best is {best}; lower the target or the "
        "confidence, give more labelled rows, or leave the target out to calibrate probabilities only"
    )


def fit_calibration(
    scores: Sequence[Mapping[Any, float] | None], labels: Sequence[str | None], gold: Sequence[str],
    groups: Sequence[Hashable], *, annotator: str, target_precision: float | None = None, confidence: float = 0.9,
) -> Calibration:  # fmt: skip
    """Fit on (n,) judged rows; rows without scores (not checked) are left out.

    Rows that people call "no_fact" count as false alarms where they are flagged, and enter nothing else; rows that the
    annotator calls "no_fact" are never flagged. ``gold`` is of LABELS or "unsupported"; ``groups`` are those of
    ``annotators/evaluation/splits.group_rows``; with ``confidence`` in (0.5, 1) the precision is at least
    ``target_precision`` in (0, 1), None for no threshold. OutOfReach where that cannot be; ValueError where rows are
    too few or their scores run against the labels.
    """
    share, truth = supported_score(scores), two_way_gold(gold)
    usable = ~np.isnan(share) & ~np.isnan(truth)
    n, n_supported = int(usable.sum()), int((truth[usable] == 1).sum())
    if n < MIN_ROWS or min(n_supported, n - n_supported) < MIN_CLASS:
        raise ValueError(
            f"calibration: expected at least {MIN_ROWS} labelled factual rows that the annotator checks, {MIN_CLASS} "
            f"of them supported and {MIN_CLASS} hallucinated; got {n}, {n_supported} and {n - n_supported}"
        )
    y, kept = truth[usable] == 1, np.flatnonzero(usable).tolist()
    slope, intercept = fit_sigmoid(share[usable], y)
    # Folds for honest figures: whole groups together, dealt out in the order in which groups come.
    dealt = {g: i % N_FOLDS for i, g in enumerate(dict.fromkeys(groups[i] for i in kept))}
    fold = np.array([dealt[groups[i]] for i in kept])
    crossed = np.full(n, np.nan)
    for k in range(N_FOLDS):
        train = fold != k
        if 0 < y[train].sum() < train.sum():
            try:
                crossed[fold == k] = sigmoid(share[usable][~train], *fit_sigmoid(share[usable][train], y[train]))
            except ValueError:
                continue
    own = np.array([label != "no_fact" and s is not None for label, s in zip(labels, scores, strict=True)])
    hallucination = np.where(own, 1 - sigmoid(np.nan_to_num(share, nan=0.5), slope, intercept), np.nan)
    found = flaggings(hallucination, truth == 0, groups, confidence)
    flagging = choose(found, target_precision) if target_precision is not None else None
    report = {
        "n": n, "n_supported": n_supported, "n_hallucinated": n - n_supported,
        "n_no_fact": sum(g == "no_fact" for g in gold), "n_unchecked": int(np.isnan(share).sum()),
        "n_groups": len({groups[i] for i in kept}), "ece_before": ece(share[usable], y),
        "ece_after_cross_fitted": ece(crossed, y), "target_precision": target_precision,
        "confidence": confidence if target_precision is not None else None,
        "flagging": asdict(flagging) if flagging else None,
    }  # fmt: skip
    return Calibration(annotator, slope, intercept, flagging.threshold if flagging else None, report)
