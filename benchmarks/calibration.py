"""A calibration fitted on half of a source that was never trained on, tried on the other half.

    python -m benchmarks.calibration --data ../shared/data

Every evaluation-only English source is judged once (at most --limit rows, whole groups) and cut into two halves of
whole groups, many times. The sigmoid and the threshold for a target precision come from one half, the calibration error
and the precision of what is flagged from the other. About ten minutes on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from annotators import LABELS, SentenceAnnotation, load_annotator
from annotators.evaluation.metrics import ece, supported_score, two_way_gold
from annotators.operating import SUPPORTED, OutOfReach, fit_calibration
from annotators.records import HALLUCINATED
from benchmarks.common import TRAINABLE, Row, english_rows, parser, row, save

TARGETS = (0.7, 0.8, 0.9)
HALVES = 40


@dataclass(frozen=True)
class Outcome:
    """Of one cut: error before and after; for each target (precision on the other half, flagged there) or None."""

    before: float
    after: float
    flags: Mapping[float, tuple[float, int] | None]


def drawn(rows: Sequence[Row], limit: int) -> list[Row]:
    """Whole groups in a random order until there are ``limit`` rows."""
    names = sorted({r["group"] for r in rows})
    np.random.default_rng(0).shuffle(names)
    place = {name: i for i, name in enumerate(names)}
    return sorted(rows, key=lambda r: place[r["group"]])[:limit]


def one_cut(rows: Sequence[Row], judged: Sequence[SentenceAnnotation], seed: int) -> Outcome | None:
    """Fit on half of the groups, measure on the others; None where a half has too few rows."""
    names = sorted({r["group"] for r in rows})
    first = set(np.random.default_rng(seed).permutation(names)[: len(names) // 2].tolist())
    fit = [i for i, r in enumerate(rows) if r["group"] in first]
    other = [i for i, r in enumerate(rows) if r["group"] not in first]
    flags: dict[float, tuple[float, int] | None] = {}
    truth = two_way_gold([rows[i]["label"] for i in other])
    for target in (None, *TARGETS):
        try:
            calibration = fit_calibration(
                [judged[i].scores for i in fit],
                [judged[i].label for i in fit],
                [rows[i]["label"] for i in fit],
                [rows[i]["group"] for i in fit],
                annotator="any",
                target_precision=target,
            )
        except OutOfReach:
            flags[target or 0] = None
            continue
        except ValueError:
            return None
        p: Any = np.array([[judged[i].scores[label] for label in LABELS] for i in other])
        own = np.array([LABELS.index(judged[i].label) for i in other])
        chances, labels = calibration.judge(p, own)
        if target is None:
            plain = supported_score([judged[i].scores for i in other])
            share = chances[:, SUPPORTED] / np.maximum(1 - chances[:, 3], 1e-9)
            known = ~np.isnan(truth)
            before, after = ece(plain[known], truth[known]), ece(share[known], truth[known])
        else:
            flagged = [n for n, label in enumerate(labels) if label in (1, 2)]
            right = sum(rows[other[n]]["label"] in (*HALLUCINATED, "unsupported") for n in flagged)
            flags[target] = (right / len(flagged) if flagged else float("nan"), len(flagged))
    return Outcome(before or 0.0, after or 0.0, flags)


def results(found: Mapping[str, Sequence[Outcome]], sizes: Mapping[str, int]) -> tuple[list[Row], list[list[object]]]:
    """Rows of all sources together, and a table by source."""
    means = {
        s: [float(np.mean([getattr(o, name) for o in cuts])) for name in ("before", "after")]
        for s, cuts in found.items()
    }
    n = sum(sizes.values())
    shown = [
        row(
            f"calibration error (ECE) {called} calibration, mean of {len(found)} sources",
            n,
            float(np.mean([m[k] for m in means.values()])),
        )
        for k, called in enumerate(("before", "after"))
    ]
    table: list[list[object]] = [
        [
            "source",
            "rows",
            "ECE before",
            "ECE after",
            *(f"target {t}: cuts with a threshold, held, precision, flagged" for t in TARGETS),
        ]
    ]
    total = {t: [0, 0] for t in TARGETS}
    for source, cuts in found.items():
        cells: list[object] = []
        for t in TARGETS:
            got = [flag for o in cuts if (flag := o.flags[t]) is not None]
            held, flagged = sum(g[0] >= t for g in got), sum(g[1] for g in got)
            total[t] = [total[t][0] + len(got), total[t][1] + held]
            precision = sum(g[0] * g[1] for g in got if g[1]) / flagged if flagged else None
            cells.append([len(got), held, precision, flagged / len(got) if got else None])
        table.append([source, sizes[source], *means[source], *cells])
    shown += [
        row(
            f"target precision {t}: cuts where it held on the other half",
            got,
            100 * held / got if got else None,
            unit="%",
        )
        for t, (got, held) in total.items()
    ]
    return shown, table


def main() -> None:
    """Measure and write the page."""
    made = parser(__doc__)
    made.add_argument("--annotator", default="embedded")
    made.add_argument("--limit", type=int, default=500, help="rows of a source (default 500)")
    args = made.parse_args()
    annotator: Any = load_annotator(args.annotator)
    everything = [r for r in english_rows(args.data) if r["source"] not in TRAINABLE]
    found: dict[str, list[Outcome]] = {}
    sizes = {}
    for source in sorted({r["source"] for r in everything}):
        rows = drawn([r for r in everything if r["source"] == source], args.limit)
        judged = annotator.predict(rows)
        kept = [i for i, s in enumerate(judged) if s.scores is not None]
        rows, judged = [rows[i] for i in kept], [judged[i] for i in kept]
        cuts = [o for seed in range(HALVES) if (o := one_cut(rows, judged, seed)) is not None]
        if len(cuts) >= HALVES / 2:  # else there are too few rows
            found[source], sizes[source] = cuts, len(rows)
        print(source, len(rows), len(cuts), file=sys.stderr, flush=True)
    shown, table = results(found, sizes)
    save(
        "calibration",
        "calibration",
        shown,
        tables={"by source": table},
        about=f"Annotator {annotator.name}, fingerprint {annotator.fingerprint}.",
    )


if __name__ == "__main__":
    main()
