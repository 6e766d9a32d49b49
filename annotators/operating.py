"""Operating points: honest probabilities at an expected rate of hallucination, and three verdicts.

P(supported | factual) goes through a sigmoid of its log-odds, fitted on labelled rows (Platt 1999), and from the rate
of hallucination of those rows to the expected one (Saerens et al. 2002). Two thresholds then tell apart what is
flagged, what is called supported, and what is "unsure". They bound the share of supported sentences that are flagged
and of hallucinated ones that are passed, so verdicts do not depend on the expected rate; probabilities do.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from annotators.evaluation.metrics import Floats, Ints, bootstrap, ece, share_of, supported_score, two_way_gold
from annotators.records import HALLUCINATED, LABELS, SentenceAnnotation, read_saved

Bools = NDArray[np.bool_]
Rate = Annotated[float, Field(gt=0, lt=1)]
_AS_SAVED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
FILE = "operating.json"  # in an annotator's folder: the operating point that it comes with
CLIP = 1e-6  # shares are kept this far from 0 and 1, where log-odds are infinite
EXPECTED_RATE, FALSE_FLAGS, FALSE_PASSES = 0.15, 0.1, 0.1
BASE_RATES = (0.05, 0.15, 0.3)  # shares of hallucinated sentences at which the precision is reported
UNSURE = -1
SUPPORTED, CONTRADICTORY, UNVERIFIABLE, NO_FACT = range(len(LABELS))
MIN_ROWS = 50  # checked factual rows to fit on, with at least MIN_CLASS supported and as many hallucinated ones
MIN_CLASS = 15
N_FOLDS = 5


@dataclass(frozen=True)
class OperatingPoint:
    """Thresholds on probabilities that hold where ``expected_rate`` of the factual sentences are hallucinated.

    All are in (0, 1), and flag_at + support_at ≥ 1: what is neither flagged nor supported is unsure.
    """

    __pydantic_config__ = _AS_SAVED
    name: str
    flag_at: Rate  # flagged from this 1 − P(supported | factual)
    support_at: Rate  # else supported from this P(supported | factual)
    expected_rate: Rate = EXPECTED_RATE
    fitted_rate: Rate = 0.5  # of the rows that the probabilities were fitted on

    def at(self, rate: float) -> OperatingPoint:
        """The same verdicts on probabilities at another expected rate; ValueError where it is not in (0, 1)."""
        if not 0 < rate < 1:
            raise ValueError(f"expected_rate: expected a rate of hallucination between 0 and 1, got {rate!r}")
        limits = np.array([1 - self.flag_at, self.support_at])
        low, high = corrected(limits, self.expected_rate, rate).tolist()
        return replace(self, flag_at=1 - low, support_at=high, expected_rate=rate)

    def to_dict(self) -> dict[str, Any]:
        """As records carry it."""
        return {name: getattr(self, name) for name in ("name", "flag_at", "support_at", "expected_rate")}

    def verdicts(self, support: Floats) -> Ints:
        """(n,) P(supported | factual) at the expected rate → SUPPORTED, CONTRADICTORY where flagged, or UNSURE."""
        flagged = 1 - support >= self.flag_at
        return np.where(flagged, CONTRADICTORY, np.where(support >= self.support_at, SUPPORTED, UNSURE))


@dataclass(frozen=True)
class Calibration:
    """A sigmoid with a slope above 0 and an operating point, for the annotator with this fingerprint.

    `mitigate calibrate` fits one to the user's rows; an annotator's folder may hold its own (``FILE``). The report is
    for people.
    """

    __pydantic_config__ = _AS_SAVED
    kind: Literal["calibration"] = field(default="calibration", kw_only=True)
    version: Literal[2] = field(default=2, kw_only=True)
    annotator: str
    slope: Annotated[float, Field(gt=0)]
    intercept: float
    point: OperatingPoint
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """16 hex digits over all that changes verdicts and scores: annotator, sigmoid and operating point."""
        parts = json.dumps([self.version, self.annotator, self.slope, self.intercept, asdict(self.point)])
        return hashlib.sha256(parts.encode()).hexdigest()[:16]

    def support(self, share: Floats) -> Floats:
        """P(supported | factual) at the expected rate, of an annotator's own (n,) shares in [0, 1]."""
        fitted = sigmoid(share, self.slope, self.intercept)
        return corrected(fitted, self.point.fitted_rate, self.point.expected_rate)

    def judge(self, probabilities: Floats, labels: Ints) -> tuple[Floats, Ints]:
        """Calibrated probabilities (n, 4), rows sum to 1, and labels (n,), positions in LABELS or UNSURE.

        P(no_fact) and "no_fact" labels stay; the rest is shared anew between supported and hallucinated, and among the
        two kinds of hallucination as before.
        """
        p = np.asarray(probabilities, dtype=np.float64)
        factual = 1.0 - p[:, NO_FACT]
        share = self.support(p[:, SUPPORTED] / np.maximum(factual, 1e-12))
        wrong = p[:, [CONTRADICTORY, UNVERIFIABLE]]
        mass = wrong.sum(1, keepdims=True)
        split = np.where(mass > 1e-12, wrong / np.maximum(mass, 1e-12), 0.5)
        out = np.column_stack([share * factual, split * ((1.0 - share) * factual)[:, None], p[:, NO_FACT]])
        judged = self.point.verdicts(share)
        judged = np.where(judged == CONTRADICTORY, CONTRADICTORY + split.argmax(1), judged)
        return out, np.where(labels == NO_FACT, NO_FACT, judged)

    def apply(self, sentences: Sequence[SentenceAnnotation]) -> list[SentenceAnnotation]:
        """Sentences judged anew by their scores, in order; one without scores stays as it is.

        Scores and fragments stay with an unsure sentence; spans and corrections only with a flagged one.
        """
        out = list(sentences)
        known = [(i, s, s.label, s.scores) for i, s in enumerate(out) if s.label is not None and s.scores is not None]
        if not known:
            return out
        chances, judged = self.judge(
            np.array([[scores[label] for label in LABELS] for *_, scores in known]),
            np.array([LABELS.index(label) for _, _, label, _ in known]),
        )
        for (i, sentence, _, _), chance, code in zip(known, chances.tolist(), judged.tolist(), strict=True):
            label = None if code == UNSURE else LABELS[code]
            flagged = label in HALLUCINATED
            out[i] = replace(
                sentence, status="unsure" if label is None else "checked", label=label,
                scores=dict(zip(LABELS, chance, strict=True)), spans=sentence.spans if flagged else None,
                correction=sentence.correction if flagged else (),
            )  # fmt: skip
        return out

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1, allow_nan=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read what ``save`` wrote; OSError without such a file, ValueError where it is not one of this version."""
        found = read_saved(path, cls, "fit it again with `mitigate calibrate`")
        if missing := {"kind", "version"} - json.loads(Path(path).read_bytes()).keys():
            told = " and ".join(sorted(missing))
            raise ValueError(f"{path}: expected {told}, got none; fit it again with `mitigate calibrate`")
        if found.point.flag_at + found.point.support_at < 1 - 1e-9:
            raise ValueError(f"{path}: expected thresholds that are together at least 1; fit it again")
        return found


# --- maths ------------------------------------------------------------------------------------------------------------


def sigmoid(share: Floats, slope: float, intercept: float) -> Floats:
    """1 / (1 + exp(−(slope · logit(share) + intercept))), shares clipped to [CLIP, 1 − CLIP]."""
    return np.asarray(1 / (1 + np.exp(-(slope * logit(share) + intercept))))


def logit(share: Floats) -> Floats:
    """log(s / (1 − s)), shares clipped to [CLIP, 1 − CLIP]."""
    s = np.clip(share, CLIP, 1 - CLIP)
    return np.asarray(np.log(s / (1 - s)))


def corrected(support: Floats, rate: float, expected: float) -> Floats:
    """P(supported) where ``expected`` of the sentences are hallucinated, from what it is where ``rate`` are.

    Odds times the ratio of prior odds: p' = a p / (a p + b (1 − p)), a = (1 − expected) / (1 − rate), b = expected /
    rate. Source: Saerens, Latinne & Decaestecker 2002, equation 2.4.
    """
    a, b = (1 - expected) / (1 - rate), expected / rate
    return np.asarray(a * support / (a * support + b * (1 - support)))


def fit_sigmoid(share: Floats, supported: Bools, weights: Floats | None = None) -> tuple[float, float]:
    """Slope and intercept that make (n,) shares in [0, 1] probabilities: logistic regression on their log-odds.

    Targets are (n₊ + 1) / (n₊ + 2) and 1 / (n₋ + 2), so that separable rows end at finite values; both classes must
    occur; ``weights`` (n,) have mean 1. ValueError where higher shares do not go with supported rows. Source: Platt
    1999; Lin, Lin & Weng 2007.
    """
    from sklearn.linear_model import LogisticRegression

    v = np.ones(len(share)) if weights is None else weights
    target = np.where(supported, (v[supported].sum() + 1) / (v[supported].sum() + 2), 1 / (v[~supported].sum() + 2))
    # A row with a target between 0 and 1 stands for one of each class, with its weight shared between them.
    both, classes = np.tile(logit(share), 2)[:, None], np.repeat([1, 0], len(share))
    fit = LogisticRegression(C=1e9, tol=1e-9)  # next to no regularisation
    fit.fit(both, classes, sample_weight=np.concatenate([v * target, v * (1 - target)]))
    slope, intercept = float(fit.coef_[0, 0]), float(fit.intercept_[0])
    if slope <= 0:
        raise ValueError(
            f"calibration: on these rows a higher score does not mean supported (slope {slope:.3f}); check the labels, "
            "or take another annotator"
        )
    return slope, intercept


def thresholds(
    support: Floats, supported: Bools, weights: Floats, false_flags: float, false_passes: float
) -> tuple[float, float]:
    """``flag_at`` and ``support_at`` for (n,) P(supported | factual): as few unsure rows as the two limits allow.

    At most ``false_flags`` of the weight of supported rows is flagged, and at most ``false_passes`` of that of
    hallucinated rows is called supported. Where the annotator is good enough for the two regions to overlap, both
    thresholds are put in the middle of the overlap (in log-odds): nothing is unsure, and both limits hold with room.
    """
    z = logit(support)
    low = _cut(z, supported, weights, false_flags)
    high = -_cut(-z, ~supported, weights, false_passes)
    if low > high:
        middle = (low + high) / 2
        if (at := np.abs(z - middle) < 1e-9).any():  # rounding would decide about this score: half-way to the next one
            middle = (middle + z[(z > middle) & ~at].min()) / 2
        low = high = middle
    low, high = 1 / (1 + math.exp(-low)), 1 / (1 + math.exp(-high))
    return 1 - low, high


def _cut(z: Floats, guarded: Bools, weights: Floats, most: float) -> float:
    """The highest cut half-way between two values of z with at most this share of the guarded rows below it."""
    order = np.argsort(z, kind="stable")
    below = np.cumsum((weights * guarded)[order]) / (weights * guarded).sum()
    values = z[order]
    ends = np.flatnonzero(np.diff(values) > 0)  # equal values stay together
    fine = ends[below[ends] <= most + 1e-12]
    return float((values[fine[-1]] + values[fine[-1] + 1]) / 2 if len(fine) else values[0] - 1)


def equal_weights(sources: Sequence[Hashable]) -> Floats:
    """(n,) weights of mean 1 with which every source weighs the same."""
    _, place, sizes = np.unique(np.array([str(s) for s in sources]), return_inverse=True, return_counts=True)
    return np.asarray(len(sources) / (len(sizes) * sizes[place]), dtype=np.float64)


def precision_at(rate: float, caught: float | None, false: float | None) -> float | None:
    """r·tpr / (r·tpr + (1 − r)·fpr): precision of flags where ``rate`` r of the sentences are hallucinated."""
    if caught is None or false is None or not caught + false:
        return None
    return rate * caught / (rate * caught + (1 - rate) * false)


def codes_of(judged: Sequence[SentenceAnnotation]) -> Ints:
    """(n,) verdicts of judged sentences, as positions in LABELS or UNSURE."""
    return np.array([UNSURE if s.label is None else LABELS.index(s.label) for s in judged], dtype=np.int64)


def operating_table(
    verdicts: Ints, gold: Sequence[str], weights: Floats, groups: Sequence[Hashable], n_resamples: int = 1000
) -> dict[str, dict[str, Any]]:
    """What an operating point does to (n,) judged rows: {figure: {"value", "interval"}}, 95 % intervals over groups.

    Shares in [0, 1]: ``true_flagged`` and ``true_supported`` of the rows that people call supported, ``false_flagged``
    and ``false_supported`` of those that they call hallucinated, ``unsure`` of both, and ``precision_at_R`` of flags at
    each of BASE_RATES. ``verdicts`` are positions in LABELS or UNSURE; gold "no_fact" is left out.
    """
    truth = two_way_gold(gold)
    true, false = truth == 1, truth == 0
    flagged = (verdicts == CONTRADICTORY) | (verdicts == UNVERIFIABLE)
    shares = {
        "true_flagged": share_of(flagged, true), "true_supported": share_of(verdicts == SUPPORTED, true),
        "false_flagged": share_of(flagged, false), "false_supported": share_of(verdicts == SUPPORTED, false),
        "unsure": share_of(verdicts == UNSURE, true | false),
    }  # fmt: skip

    figures: dict[str, Any] = {name: lambda draws, f=f: f(draws * weights) for name, f in shares.items()}
    caught, false_alarms = figures["false_flagged"], figures["true_flagged"]
    figures |= {
        f"precision_at_{rate:g}": lambda draws, rate=rate: precision_at(rate, caught(draws), false_alarms(draws))
        for rate in BASE_RATES
    }
    limits = bootstrap(figures, groups, n_resamples)
    return {name: {"value": f(np.ones(len(gold))), "interval": limits[name]} for name, f in figures.items()}


# --- fitting ----------------------------------------------------------------------------------------------------------


def fit_calibration(
    scores: Sequence[Mapping[Any, float] | None], labels: Sequence[str | None], gold: Sequence[str],
    groups: Sequence[Hashable], *, annotator: str, weights: Floats | None = None, name: str = "calibrated",
    expected_rate: float = EXPECTED_RATE, false_flags: float = FALSE_FLAGS, false_passes: float = FALSE_PASSES,
) -> Calibration:  # fmt: skip
    """Fit on (n,) rows as an annotator without calibration judges them; rows without scores are left out.

    ``gold`` is of LABELS or "unsupported"; rows with gold "no_fact" are left out, and rows that the annotator calls
    "no_fact" get no verdict and enter the sigmoid only. ``groups`` are those of
    ``annotators/evaluation/splits.group_rows``; ``weights`` have mean 1. The report's figures are cross-fitted: each
    group is judged by what the others gave. ValueError where rows are too few or their scores run against the labels.
    """
    share, truth = supported_score(scores), two_way_gold(gold)
    kept = np.flatnonzero(~np.isnan(share) & ~np.isnan(truth))
    y, n, n_supported = truth[kept] == 1, len(kept), int((truth[kept] == 1).sum())
    if n < MIN_ROWS or min(n_supported, n - n_supported) < MIN_CLASS:
        raise ValueError(
            f"calibration: expected at least {MIN_ROWS} labelled factual rows that the annotator checks, {MIN_CLASS} "
            f"of them supported and {MIN_CLASS} hallucinated; got {n}, {n_supported} and {n - n_supported}"
        )
    x, w = share[kept], np.ones(n) if weights is None else weights[kept]
    own = np.array([labels[i] != "no_fact" for i in kept.tolist()])

    def fitted(rows: Bools) -> Calibration:
        some = rows & own
        if not 0 < y[some].sum() < some.sum():
            raise ValueError(
                f"calibration: expected supported and hallucinated rows that the annotator gives a verdict, got "
                f"{(some & y).sum()} and {(some & ~y).sum()}; it calls {(~own).sum()} of {n} no_fact"
            )
        slope, intercept = fit_sigmoid(x[rows], y[rows], w[rows] / w[rows].mean())
        rate = float(w[rows & ~y].sum() / w[rows].sum())
        cuts = thresholds(sigmoid(x[some], slope, intercept), y[some], w[some], false_flags, false_passes)
        return Calibration(annotator, slope, intercept, OperatingPoint(name, *cuts, rate, rate))

    found = fitted(np.ones(n, dtype=bool))
    # Folds for honest figures: whole groups together, dealt out in the order in which groups come.
    names = [groups[i] for i in kept.tolist()]
    dealt = {g: i % N_FOLDS for i, g in enumerate(dict.fromkeys(names))}
    fold = np.array([dealt[g] for g in names])
    crossed, verdicts = np.full(n, np.nan), np.full(n, NO_FACT)
    for k in range(N_FOLDS):
        test = fold == k
        with suppress(ValueError):  # its own rows are needed to fit at all
            part = fitted(~test)
            crossed[test] = part.support(x[test])
            verdicts[test] = np.where(own[test], part.point.verdicts(crossed[test]), NO_FACT)
    known = np.flatnonzero(~np.isnan(crossed))
    golds = [gold[i] for i in kept[known].tolist()]
    report = {
        "n": n, "n_supported": n_supported, "n_hallucinated": n - n_supported,
        "n_no_fact": sum(g == "no_fact" for g in gold), "n_unchecked": int(np.isnan(share).sum()),
        "n_groups": len(dealt), "ece_before": ece(x, y), "ece_after": ece(crossed, y),
        "false_flags": false_flags, "false_passes": false_passes,
        "table": operating_table(verdicts[known], golds, w[known], [names[i] for i in known.tolist()]),
    }  # fmt: skip
    return replace(found, point=found.point.at(expected_rate), report=report)
