"""`mitigate calibrate`: fit an annotator's probabilities and its threshold for "hallucinated" to your labelled rows.

    mitigate calibrate --data my.jsonl --target-precision 0.9 --output calibration.json
    mitigate annotate --calibration calibration.json --input in.jsonl --output out.jsonl

Rows are labelled sentences, or records that `mitigate annotate` wrote with "gold" added to sentences. The file belongs
to the annotator whose scores were used; another one refuses it.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mitigate.io import (
    OutputError,
    UsageError,
    dump_line,
    make_parent,
    progress,
    rejected_path,
    rejected_row,
    whole_file,
)
from mitigate.models import open_annotator

if TYPE_CHECKING:
    from annotators.base import Annotator
    from annotators.operating import Calibration
    from annotators.records import SentenceAnnotation
    from mitigate.labels import GoldRows


CHUNK = 256
SHOWN_REJECTED = 10
REJECTED, FAILED = 3, 1


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "calibrate",
        help="fit an annotator's probabilities and threshold to labelled rows",
        description="Fit an annotator to your labelled rows: probabilities that mean what they say, and, with "
        '--target-precision, a threshold for "hallucinated" that keeps false alarms rare; sentences that are neither '
        'flagged nor likely supported then get the status "unsure". Rows: labelled sentences '
        '{"reference", "sentence", "label", …}, or records of `mitigate annotate` with "gold" in sentences. Exit '
        "codes: 0 done, 1 target out of reach or nothing could be written, 2 wrong usage, 3 lines were rejected.",
    )
    add = parser.add_argument
    add("--data", nargs="+", type=Path, required=True, metavar="FILE", help="labelled rows, JSON Lines")
    add("--annotator", default="embedded", metavar="NAME", help="embedded, a folder or a hub id (%(default)s)")
    add("--target-precision", type=float, metavar="P", help="of flagged sentences, between 0 and 1")
    add(
        "--confidence", type=float, default=0.9, metavar="C",
        help="with which the precision is at least that, between 0.5 and 1 (%(default)s)",
    )  # fmt: skip
    add("--output", type=Path, required=True, metavar="FILE", help="the calibration, JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit and write the file; returns the exit code."""
    from annotators.operating import OutOfReach, fit_calibration
    from mitigate.labels import read_gold

    check_options(args)
    gold = read_gold(args.data)
    if not gold.rows:
        _tell_rejected(gold)
        raise UsageError("--data: expected labelled rows, found none; see `mitigate calibrate --help` for their form")
    annotator = open_annotator(args.annotator, {})
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
        _tell_rejected(gold)
        print(f"mitigate: error: {error}", file=sys.stderr)
        return FAILED
    except ValueError as error:
        _tell_rejected(gold)
        raise UsageError(f"--data: {error}") from error
    _print(calibration, annotator)
    try:
        _save(replace(calibration, report={**calibration.report, **_provenance(annotator, args.data)}), args.output)
        _keep_rejected(gold, rejected_path(args.output))
    except OSError as error:
        print(
            f"mitigate: error: {OutputError(f'cannot write {args.output}: {error.strerror or error}')}", file=sys.stderr
        )
        return FAILED
    print(f"calibration         {args.output}")
    _tell_rejected(gold)
    return REJECTED if gold.rejected else 0


def check_options(args: argparse.Namespace) -> None:
    """Refuse wrong options before anything is loaded.

    Raises:
        UsageError: With what to change.
    """
    target, confidence = args.target_precision, args.confidence
    if target is not None and not 0 < target < 1:
        raise UsageError(f"--target-precision: expected a number between 0 and 1, got {target:g}")
    if not 0.5 < confidence < 1:
        raise UsageError(f"--confidence: expected a number between 0.5 and 1, got {confidence:g}")
    for path in args.data:
        if not path.is_file():
            raise UsageError(f"--data: expected a JSON Lines file; {path} is not one")
        if path.resolve() in {args.output.resolve(), rejected_path(args.output).resolve()}:
            raise UsageError(f"--output: {path} is a data file and would be written over; name another file")
    make_parent(args.output)


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
    after = report["ece_after_cross_fitted"]
    shown = "–" if after is None else f"{after:.3f}"
    print(f"calibration error   {report['ece_before']:.3f} before, {shown} after (cross-fitted by groups)")
    if flagging:
        print(
            f"hallucinated        from probability {flagging['threshold']:.3f}: precision {flagging['precision']:.3f}, "
            f"at least {flagging['low']:.3f} with confidence {report['confidence']:g}; "
            f"recall {flagging['recall']:.3f}; {flagging['n_flagged']:,} rows flagged"
        )


def _provenance(annotator: Annotator, paths: Sequence[Path]) -> dict[str, Any]:
    versions: dict[str, str | None] = {}
    for package in ("hallucination-toolkit", "torch", "transformers", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "annotator": annotator.name,
        "data": [{"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in paths],
        "versions": versions,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _save(calibration: Calibration, path: Path) -> None:
    """Whole or not at all."""
    with whole_file(path) as part:
        calibration.save(part)


def _tell_rejected(gold: GoldRows) -> None:
    for path, line in gold.rejected[:SHOWN_REJECTED]:
        print(f"mitigate: {path}:{line.number}: {'; '.join(map(str, line.problems))} (line rejected)", file=sys.stderr)
    if more := len(gold.rejected[SHOWN_REJECTED:]):
        print(f"mitigate: {more:,} more lines rejected", file=sys.stderr)


def _keep_rejected(gold: GoldRows, target: Path) -> None:
    if gold.rejected:
        target.write_bytes(b"".join(dump_line(rejected_row(path, line)) for path, line in gold.rejected))
    else:
        target.unlink(missing_ok=True)
