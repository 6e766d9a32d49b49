"""`mitigate calibrate`: fit an annotator's probabilities and its operating point to your labelled rows.

    mitigate calibrate --input my.jsonl --output calibration.json
    mitigate annotate --calibration calibration.json --input in.jsonl --output out.jsonl

Rows are labelled sentences, or records that `mitigate annotate` wrote with "gold" added to sentences. The file belongs
to the annotator whose scores were used; another one refuses it.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from annotators.operating import BASE_RATES, EXPECTED_RATE, FALSE_FLAGS, FALSE_PASSES, fit_calibration
from annotators.records import SentenceAnnotation
from engines.packaged import sha256
from mitigate.cli.options import Args, Subparsers, add_command, print_json
from mitigate.io import REJECTED, UsageError, progress, set_aside, usage, versions, whole_file
from mitigate.models import open_annotator
from mitigate.report.terminal import figure
from mitigate.report.totals import point_of

CHUNK = 256
FIGURES = {
    "true_flagged": "flagged, of supported", "false_flagged": "flagged, of hallucinated",
    "false_supported": "called supported, of hallucinated", "unsure": "unsure",
    **{f"precision_at_{rate:g}": f"precision where {rate:.0%} are wrong" for rate in BASE_RATES},
}  # fmt: skip


def add_parser(subparsers: Subparsers) -> None:
    more = (
        "Probabilities then mean what they say at the expected rate of hallucination, and two thresholds say what is "
        'flagged, what is called supported, and what lies between them ("unsure"). Rows are labelled sentences '
        '{"reference", "sentence", "label", …}, or records of `mitigate annotate` with "gold" in sentences; from 50 on '
        "it is worth it."
    )
    parser = add_command(
        subparsers, "calibrate", "Fit an annotator's probabilities and thresholds to your labelled rows.", more
    )
    parser.input("These JSON Lines files hold labelled rows.", several=True)
    parser.output()
    parser.annotator(calibration=False)
    text = "Probabilities hold where this share of sentences is hallucinated (%(default)s)."
    parser.share("--expected-rate", text, EXPECTED_RATE)
    parser.share("--false-flags", "At most this share of supported sentences is flagged (%(default)s).", FALSE_FLAGS)
    text = "At most this share of hallucinated sentences is called supported (%(default)s)."
    parser.share("--false-passes", text, FALSE_PASSES)
    parser.set_defaults(run=run)


def run(args: Args) -> int:
    from mitigate.labels import read_gold

    if args.annotator.startswith(("cascade:", "ensemble:")):
        raise UsageError(
            f"--annotator: expected one annotator, got {args.annotator}; calibrate its first one alone, and give the "
            f"file to the {args.annotator.partition(':')[0]}"
        )
    if args.annotator.startswith("generative:"):  # before anything is paid for
        raise UsageError(
            f"--annotator: expected one with scores to calibrate, got {args.annotator}; those of a language model are "
            "good for ranking only, and it refuses a calibration"
        )
    args.check_files()
    rows, groups, rejected = read_gold(args.input)
    set_aside(rejected, args.output)
    if not rows:
        raise UsageError("--input: expected labelled rows, found none; see `mitigate calibrate --help` for their form")
    annotator = open_annotator(args.annotator).calibrated(None)  # its own scores
    asked = [{k: v for k, v in row.items() if k != "label"} for row in rows]  # no gold
    judged: list[SentenceAnnotation] = []
    with progress("judging", len(asked)) as tell:
        for start in range(0, len(asked), CHUNK):
            judged += annotator.predict(asked[start : start + CHUNK])
            tell(len(judged))
    with usage("--input: "):
        wanted = {name: getattr(args, name) for name in ("expected_rate", "false_flags", "false_passes")}
        scores, labels, gold = [s.scores for s in judged], [s.label for s in judged], [row["label"] for row in rows]
        calibration = fit_calibration(
            scores, labels, gold, groups, annotator=annotator.fingerprint, name=args.output.stem, **wanted
        )
    made = {
        "annotator": annotator.name,
        "data": [{"file": path.name, "sha256": sha256(path)} for path in args.input],
        "versions": versions("torch", "transformers", "numpy"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with whole_file(args.output) as part:
        replace(calibration, report={**calibration.report, **made}).save(part)
    report = calibration.report
    if args.json:
        who = {"annotator": annotator.name, "fingerprint": annotator.fingerprint}
        fitted = {"operating_point": calibration.point.to_dict(), **report}
        print_json({**who, **fitted, "rejected_lines": len(rejected), "output": str(args.output)})
        return REJECTED if rejected else 0
    print(f"annotator           {annotator.name} ({annotator.fingerprint})")
    print(
        f"labelled rows       {report['n']:,} factual and checked in {report['n_groups']:,} groups: "
        f"{report['n_supported']:,} supported, {report['n_hallucinated']:,} hallucinated; "
        f"{report['n_no_fact']:,} no fact, {report['n_unchecked']:,} not checked"
    )
    print(f"calibration error   {report['ece_before']:.3f} before, {figure(report['ece_after'])} after")
    print(f"operating point     {point_of({'operating_point': calibration.point.to_dict()})}")
    for name, text in FIGURES.items():
        value, ends = report["table"][name]["value"], report["table"][name]["interval"]
        print(f"  {text:<34} {figure(value)}" + (f"  ({ends[0]:.3f} to {ends[1]:.3f})" if ends else ""))
    print("                    all cross-fitted: each group was judged by what the others gave; 95 % intervals")
    print(f"calibration         {args.output}")
    return REJECTED if rejected else 0
