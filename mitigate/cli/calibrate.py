"""`mitigate calibrate`: fit an annotator's probabilities and its threshold for "hallucinated" to your labelled rows.

    mitigate calibrate --input my.jsonl --target-precision 0.9 --output calibration.json
    mitigate annotate --calibration calibration.json --input in.jsonl --output out.jsonl

Rows are labelled sentences, or records that `mitigate annotate` wrote with "gold" added to sentences. The file belongs
to the annotator whose scores were used; another one refuses it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mitigate.cli.options import Subparsers, add_command, check_files, figure, print_json, sha256, versions
from mitigate.io import FAILED, REJECTED, OutputError, UsageError, progress, say, set_aside, whole_file
from mitigate.models import open_annotator

if TYPE_CHECKING:
    from annotators.base import Annotator
    from annotators.operating import Calibration
    from annotators.records import SentenceAnnotation


CHUNK = 256


def add_parser(subparsers: Subparsers) -> None:
    """Add the command and its options."""
    more = (
        "Probabilities then mean what they say, and --target-precision sets a threshold that keeps false alarms rare; "
        'sentences that are neither flagged nor likely supported get the status "unsure". Rows are labelled sentences '
        '{"reference", "sentence", "label", …}, or records of `mitigate annotate` with "gold" in sentences. A target '
        "precision out of reach is a failure."
    )
    text = "Fit an annotator's probabilities and threshold to labelled rows."
    parser = add_command(subparsers, "calibrate", text, more)
    parser.input("These JSON Lines files hold labelled rows.", several=True)
    parser.output()
    parser.json()
    parser.annotator(calibration=False)
    text = "So many of the flagged sentences are hallucinated, between 0 and 1."
    parser.number("--target-precision", text, "a number between 0 and 1", lambda p: 0 < p < 1, "P")
    text = "The precision is at least P with this confidence, between 0.5 and 1 (%(default)s)."
    parser.number("--confidence", text, "a number between 0.5 and 1", lambda c: 0.5 < c < 1, "C", default=0.9)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit and write the file; returns the exit code."""
    from annotators.operating import OutOfReach, fit_calibration
    from mitigate.labels import read_gold

    check_files(args)
    gold = read_gold(args.input)
    set_aside(gold.rejected, args.output)
    if not gold.rows:
        raise UsageError("--input: expected labelled rows, found none; see `mitigate calibrate --help` for their form")
    annotator = open_annotator(args.annotator)
    judged = _judge(annotator, gold.rows)
    checked = [s if s.status == "checked" else None for s in judged]
    try:
        calibration = fit_calibration(
            [s.scores if s else None for s in checked],
            [s.label if s else None for s in checked],
            [row["label"] for row in gold.rows],
            gold.groups,
            annotator=annotator.fingerprint,
            target_precision=args.target_precision,
            confidence=args.confidence,
        )
    except OutOfReach as error:
        say(f"error: {error}")
        return FAILED
    except ValueError as error:
        raise UsageError(f"--input: {error}") from error
    made = {
        "annotator": annotator.name,
        "data": [{"file": path.name, "sha256": sha256(path)} for path in args.input],
        "versions": versions("torch", "transformers", "numpy"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    try:
        with whole_file(args.output) as part:
            replace(calibration, report={**calibration.report, **made}).save(part)
    except OSError as error:
        raise OutputError(f"cannot write {args.output}: {error.strerror or error}") from error
    if args.json:
        fitted = {"fingerprint": annotator.fingerprint, **calibration.report, "rejected_lines": len(gold.rejected)}
        print_json({"annotator": annotator.name, **fitted, "output": str(args.output)})
    else:
        _print(calibration, annotator)
        print(f"calibration         {args.output}")
    return REJECTED if gold.rejected else 0


def _judge(annotator: Annotator, rows: Sequence[dict[str, Any]]) -> list[SentenceAnnotation]:
    """Ask the annotator, which gets no labels."""
    asked = [{k: v for k, v in row.items() if k != "label"} for row in rows]
    judged: list[SentenceAnnotation] = []
    with progress("judging", len(asked)) as tell:
        for start in range(0, len(asked), CHUNK):
            judged += annotator.predict(asked[start : start + CHUNK])
            tell(len(judged))
    return judged


def _print(calibration: Calibration, annotator: Annotator) -> None:
    report, flagging = calibration.report, calibration.report["flagging"]
    print(f"annotator           {annotator.name} ({annotator.fingerprint})")
    print(
        f"labelled rows       {report['n']:,} factual and checked in {report['n_groups']:,} groups: "
        f"{report['n_supported']:,} supported, {report['n_hallucinated']:,} hallucinated; "
        f"{report['n_no_fact']:,} no fact, {report['n_unchecked']:,} not checked"
    )
    after = figure(report["ece_after_cross_fitted"])
    print(f"calibration error   {report['ece_before']:.3f} before, {after} after (cross-fitted by groups)")
    if flagging:
        print(
            f"hallucinated        from probability {flagging['threshold']:.3f}: precision {flagging['precision']:.3f}, "
            f"at least {flagging['low']:.3f} with confidence {report['confidence']:g}; "
            f"recall {flagging['recall']:.3f}; {flagging['n_flagged']:,} rows flagged"
        )
