"""A calibration fitted on half of a source that was never trained on, tried on the other half.

    python -m benchmarks.calibration --data ../shared/data

Every evaluation-only English source is judged once (at most --limit rows, whole groups) and cut into two halves of
whole groups, many times. The sigmoid and the operating point come from one half; the calibration error, and the shares
of sentences that are flagged, passed and unsure, from the other. About ten minutes on one core.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from annotators import SentenceAnnotation, load_annotator
from annotators.evaluation.metrics import ece, supported_score, two_way_gold
from annotators.operating import FALSE_FLAGS, FALSE_PASSES, Calibration, codes_of, fit_calibration, operating_table
from benchmarks.common import TRAINABLE, Row, english_rows, parser, row, save
from mitigate.cli.calibrate import FIGURES

HALVES = 40
SHARES = ("true_flagged", "false_flagged", "false_supported", "unsure")
Outcome = Mapping[str, float]  # the figures of one cut, on the other half


def drawn(rows: Sequence[Row], limit: int) -> list[Row]:
    """Whole groups in a random order until there are ``limit`` rows."""
    names = sorted({r["group"] for r in rows})
    np.random.default_rng(0).shuffle(names)
    place = {name: i for i, name in enumerate(names)}
    return sorted(rows, key=lambda r: place[r["group"]])[:limit]


def one_cut(
    rows: Sequence[Row], judged: Sequence[SentenceAnnotation], default: Calibration, seed: int
) -> Outcome | None:
    """Fit on half of the groups, measure on the others beside ``default``; None where a half has too few rows."""
    names = sorted({r["group"] for r in rows})
    first = set(np.random.default_rng(seed).permutation(names)[: len(names) // 2].tolist())
    fit = [i for i, r in enumerate(rows) if r["group"] in first]
    other = [i for i, r in enumerate(rows) if r["group"] not in first]
    gold = [rows[i]["label"] for i in other]
    try:
        calibration = fit_calibration(
            [judged[i].scores for i in fit], [judged[i].label for i in fit], [rows[i]["label"] for i in fit],
            [rows[i]["group"] for i in fit], annotator="any",
        )  # fmt: skip
    except ValueError:
        return None
    plain = supported_score([judged[i].scores for i in other])
    # Rows of the other half have about the rate of those fitted on, not the expected one.
    at_rate = replace(calibration, point=calibration.point.at(calibration.point.fitted_rate))
    truth = two_way_gold(gold)
    known = ~np.isnan(truth)
    rest, groups = [judged[i] for i in other], [rows[i]["group"] for i in other]
    table, before = (
        operating_table(codes_of(one.apply(rest)), gold, np.ones(len(other)), groups, 0)
        for one in (calibration, default)
    )
    errors = {"before": ece(plain[known], truth[known]), "after": ece(at_rate.support(plain)[known], truth[known])}
    found = errors | {name: table[name]["value"] for name in FIGURES}
    found |= {f"default {name}": before[name]["value"] for name in SHARES}
    return {name: np.nan if value is None else value for name, value in found.items()}


def results(found: Mapping[str, Sequence[Outcome]], sizes: Mapping[str, int]) -> tuple[list[Row], list[list[object]]]:
    """Rows of all sources together, and a table by source."""
    named = {f"calibration error (ECE) {when} calibration": when for when in ("before", "after")}
    named |= {f"default point: {FIGURES[name]}": f"default {name}" for name in SHARES}
    named |= {text: name for name, text in FIGURES.items()}
    means = {s: {k: float(np.nanmean([o[k] for o in cuts])) for k in named.values()} for s, cuts in found.items()}
    n, cuts = sum(sizes.values()), [o for some in found.values() for o in some]
    shown = [
        row(f"{text}, mean of {len(found)} sources", n, float(np.nanmean([m[name] for m in means.values()])))
        for text, name in named.items()
    ]
    for name, most in (("true_flagged", FALSE_FLAGS), ("false_supported", FALSE_PASSES)):
        for room in (1, 1.5):
            held = float(np.mean([o[name] <= room * most for o in cuts]))
            text = f"{FIGURES[name]}: cuts with at most {room * most:.0%} on the other half"
            shown.append(row(text, len(cuts), 100 * held, unit="%"))
    table: list[list[object]] = [["source", "rows", *named]]
    return shown, table + [[s, sizes[s], *(means[s][name] for name in named.values())] for s in found]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--annotator", default="embedded")
    made.add_argument("--limit", type=int, default=500, help="rows of a source (default 500)")
    args = made.parse_args()
    annotator: Any = load_annotator(args.annotator)
    default = annotator.calibration
    if default is None:
        made.error(
            f"--annotator: expected one that comes with an operating point to compare with, got {args.annotator}"
        )
    annotator = annotator.calibrated(None)  # its own scores
    everything = [r for r in english_rows(args.data) if r["source"] not in TRAINABLE]
    found: dict[str, list[Outcome]] = {}
    sizes = {}
    for source in sorted({r["source"] for r in everything}):
        rows = drawn([r for r in everything if r["source"] == source], args.limit)
        judged = annotator.predict(rows)
        kept = [i for i, s in enumerate(judged) if s.scores is not None]
        rows, judged = [rows[i] for i in kept], [judged[i] for i in kept]
        cuts = [o for seed in range(HALVES) if (o := one_cut(rows, judged, default, seed)) is not None]
        if len(cuts) >= HALVES / 2:  # else there are too few rows
            found[source], sizes[source] = cuts, len(rows)
        print(source, len(rows), len(cuts), file=sys.stderr, flush=True)
    rows, table = results(found, sizes)
    shown = [one for one in rows if not any(word in one["what"] for word in ("precision", "hallucinated: cuts"))]
    about = f"Annotator {annotator.name}, fingerprint {annotator.fingerprint}."
    save("calibration", "calibration", shown, tables={"all": rows, "by source": table}, about=about)


if __name__ == "__main__":
    main()
