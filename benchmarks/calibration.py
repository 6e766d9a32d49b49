"""A calibration fitted on half of a source that was never trained on, tried on the other half.

    python -m benchmarks.calibration --data ../shared/data

Every evaluation-only English source is judged once (at most --limit rows, whole groups drawn by seed) and cut into two
halves of whole groups, many times. On one half the calibration is fitted, on the other its error and the precision of
what it flags are measured. Writes docs/results/calibration.md; about ten minutes on one core.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from annotators import LABELS, SentenceAnnotation, load_annotator
from annotators.evaluation.metrics import ece, supported_score, two_way_gold
from annotators.operating import SUPPORTED, OutOfReach, fit_calibration
from annotators.records import HALLUCINATED
from benchmarks.baselines import english_rows
from benchmarks.splits import DATA, TRAINABLE

PAGE = Path(__file__).parent.parent / "docs" / "results" / "calibration.md"
TARGETS = (0.7, 0.8, 0.9)
HALVES = 40


@dataclass(frozen=True)
class Outcome:
    """Of one cut: error before and after; for each target (precision on the other half, flagged there) or None."""

    before: float
    after: float
    flags: Mapping[float, tuple[float, int] | None]


def drawn(rows: Sequence[Mapping[str, Any]], limit: int) -> list[Mapping[str, Any]]:
    """Whole groups in a random order until there are ``limit`` rows."""
    names = sorted({row["group"] for row in rows})
    np.random.default_rng(0).shuffle(names)
    place = {name: i for i, name in enumerate(names)}
    return sorted(rows, key=lambda row: place[row["group"]])[:limit]


def one_cut(rows: Sequence[Mapping[str, Any]], judged: Sequence[SentenceAnnotation], seed: int) -> Outcome | None:
    """Fit on half of the groups, measure on the others; None where a half has too few rows."""
    names = sorted({row["group"] for row in rows})
    first = set(np.random.default_rng(seed).permutation(names)[: len(names) // 2].tolist())
    fit = [i for i, row in enumerate(rows) if row["group"] in first]
    other = [i for i, row in enumerate(rows) if row["group"] not in first]
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
        p = np.array([[judged[i].scores[label] for label in LABELS] for i in other])
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


def table(found: Mapping[str, Sequence[Outcome]], sizes: Mapping[str, tuple[int, int]]) -> list[str]:
    """Markdown: means over cuts, by source."""
    heads = [f"target {t:g}: cuts with a threshold / held / precision / flagged" for t in TARGETS]
    lines = [
        f"| source | rows | groups | ECE before | ECE after | better in | {' | '.join(heads)} |",
        "|---|---|---|---|---|---|" + "---|" * len(TARGETS),
    ]
    total = {t: [0, 0] for t in TARGETS}
    for source, cuts in found.items():
        cells = []
        for t in TARGETS:
            got = [o.flags[t] for o in cuts if o.flags[t] is not None]
            held = sum(g[0] >= t for g in got)
            total[t][0] += len(got)
            total[t][1] += held
            if got:
                flagged = sum(g[1] for g in got)
                precision = sum(g[0] * g[1] for g in got if g[1]) / max(flagged, 1)
                cells.append(f"{len(got)} / {held} / {precision:.3f} / {flagged / len(got):.0f}")
            else:
                cells.append("none")
        before, after = (np.mean([getattr(o, name) for o in cuts]) for name in ("before", "after"))
        better = sum(o.after < o.before for o in cuts)
        lines.append(
            f"| {source} | {sizes[source][0]} | {sizes[source][1]} | {before:.3f} | {after:.3f} "
            f"| {better} of {len(cuts)} | {' | '.join(cells)} |"
        )
    means = [np.mean([np.mean([getattr(o, n) for o in cuts]) for cuts in found.values()]) for n in ("before", "after")]
    rates = [f"{got} / {held} ({held / got:.0%})" if got else "none" for got, held in total.values()]
    lines.append(f"| **all** | | | {means[0]:.3f} | {means[1]:.3f} | | {' | '.join(rates)} |")
    return lines


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--annotator", default="embedded")
    parser.add_argument("--limit", type=int, default=500, help="rows of a source (default 500)")
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    annotator = load_annotator(args.annotator)
    everything = [row for row in english_rows(args.data) if row["source"] not in TRAINABLE]
    found: dict[str, list[Outcome]] = {}
    sizes = {}
    few = []
    for source in sorted({row["source"] for row in everything}):
        rows = drawn([row for row in everything if row["source"] == source], args.limit)
        judged = annotator.predict(rows)
        kept = [i for i, s in enumerate(judged) if s.scores is not None]
        rows, judged = [rows[i] for i in kept], [judged[i] for i in kept]
        cuts = [o for seed in range(HALVES) if (o := one_cut(rows, judged, seed)) is not None]
        if len(cuts) < HALVES / 2:
            few.append(source)
            continue
        found[source], sizes[source] = cuts, (len(rows), len({row["group"] for row in rows}))
        print(source, len(rows), file=sys.stderr, flush=True)
    newline = "\n"
    page = f"""# Calibration on a user's rows

What `mitigate calibrate` promises, on sources that the weights were never trained on, as a user's rows are. Each source
(at most {args.limit} rows, whole groups) is cut into halves of whole groups {HALVES} times; the sigmoid and the
threshold come from one half, the figures from the other. ECE: two-way, 15 bins. "Cuts with a threshold": in the
others `mitigate calibrate` says that the target can't be reached on that half. "Held": precision on the other half was
at least the target; with the confidence of 0.9 that is the default, nine in ten is what is promised, less what comes
from choosing the best of many thresholds. Precision is pooled over cuts, "flagged" is the mean number of rows of
the other half. Left out for want of rows: {", ".join(few) or "none"}. Cuts of one source share rows, so
the counts are no independent trials.

    python -m benchmarks.calibration --data ../shared/data

Annotator {annotator.name}, fingerprint {annotator.fingerprint}. Python {platform.python_version()}, torch
{version("torch")}, numpy {version("numpy")}; 2-core CPU machine.

{newline.join(table(found, sizes))}
"""
    args.output.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
