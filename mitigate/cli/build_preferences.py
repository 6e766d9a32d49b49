"""`mitigate build-preferences`: annotated answers to pairs, the best against the worst of each question.

    mitigate annotate --input samples.jsonl --output annotated.jsonl
    mitigate build-preferences --input annotated.jsonl --output pairs.jsonl

Several answers to the same question and reference are compared by hallucination rate; ties make no pair. The
output is what `mitigate.rl.dpo` and TRL's DPO trainer read. Leaves out sampling and annotating.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mitigate.io import (
    Line,
    Problem,
    Record,
    UsageError,
    check_text,
    counted,
    dump_line,
    make_parent,
    read_lines,
    rejected_path,
    rejected_row,
    shown,
    whole_file,
)
from mitigate.rl.preferences import build_pairs

REJECTED = 3  # exit code
FAILED = 1
LABELS = (None, "supported", "contradictory", "unverifiable", "no_fact")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "build-preferences",
        help="make preference pairs from annotated answers",
        description="Take the output of `mitigate annotate` with several answers to each question, and write one "
        'pair a question, JSON Lines: {"prompt", "chosen", "rejected", "reference", "chosen_sentences", '
        '"rejected_sentences", "chosen_rate", "rejected_rate"}. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 some '
        "lines were rejected (they are in OUTPUT.rejected.jsonl).",
    )
    parser.add_argument("--input", metavar="FILE", type=Path, required=True, help="annotated answers, JSON Lines")
    parser.add_argument("--output", metavar="FILE", type=Path, required=True, help="where pairs go")
    parser.add_argument("--overwrite", action="store_true", help="replace OUTPUT if it is there")
    parser.add_argument(
        "--min-gap", metavar="X", type=float, default=0.0,
        help="smallest difference of the two hallucination rates, 0 to 1 (%(default)s: any)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def check_annotated(record: Record) -> list[Problem]:
    """Problems of an annotated answer: question, reference, answer and its sentences."""
    problems = check_text(record, "question", required=True)
    problems += check_text(record, "reference", required=True, empty=True)
    problems += check_text(record, "answer", required=True)
    sentences = record.get("sentences")
    if not isinstance(sentences, list):
        value = shown(sentences) if "sentences" in record else None
        return [*problems, Problem("sentences", value, "the list that `mitigate annotate` writes")]
    size = len(record["answer"]) if isinstance(record.get("answer"), str) else 0
    for i, sentence in enumerate(sentences):
        known = sentence if isinstance(sentence, dict) else {}
        start, end = known.get("start"), known.get("end")
        if not (type(start) is int and type(end) is int and 0 <= start < end <= size):
            problems.append(
                Problem(f"sentences[{i}]", shown(sentence), f"start and end inside the answer ({size} characters)")
            )
        elif "label" not in known or known["label"] not in LABELS:
            problems.append(
                Problem(f"sentences[{i}].label", shown(known.get("label")), "null or one of the four labels")
            )
    return problems


def run(args: argparse.Namespace) -> int:
    """Build the pairs of a file; returns the exit code.

    Raises:
        UsageError: An option is wrong, or the output is there already.
    """
    if not 0 <= args.min_gap <= 1:
        raise UsageError(f"--min-gap: expected a number from 0 to 1, got {args.min_gap}")
    if not args.input.is_file():
        raise UsageError(f"cannot read {args.input}: no such file; --input takes a file of JSON Lines")
    rejects = rejected_path(args.output)
    for path in (args.output, rejects):
        if path.resolve() == args.input.resolve():
            raise UsageError(f"{args.input} would be written over as {path}: choose another --output")
    if args.output.exists() and not args.overwrite:
        raise UsageError(f"{args.output} is there already: choose another --output, or give --overwrite")
    make_parent(args.output)
    bad: list[Line] = []
    samples: list[Record] = []
    for line in read_lines(args.input, check_annotated):
        if line.record is None:
            bad.append(line)
        else:
            samples.append(line.record)
    pairs = build_pairs(samples, min_gap=args.min_gap)
    try:
        _write(args.output, [dump_line(pair) for pair in pairs])
        if bad:
            _write(rejects, [dump_line(rejected_row(args.input, line)) for line in bad])
        else:
            rejects.unlink(missing_ok=True)
    except OSError as error:
        print(f"mitigate: error: cannot write {args.output}: {error.strerror or error}", file=sys.stderr)
        return FAILED
    for line in bad[:10]:
        for problem in line.problems:
            print(f"mitigate: {args.input}:{line.number}: {problem} (line rejected)", file=sys.stderr)
    n = len({(sample["question"], sample["reference"]) for sample in samples})
    print(
        f"{counted(len(samples), 'answer')} to {counted(n, 'question')}, {counted(len(pairs), 'pair')}, "
        f"{counted(n - len(pairs), 'question')} without one"
    )
    print(f"output: {args.output}")
    if bad:
        print(f"rejected: {counted(len(bad), 'line')}, {rejects}")
    return REJECTED if bad else 0


def _write(path: Path, lines: list[bytes]) -> None:
    """Write whole or not at all."""
    with whole_file(path) as part:
        part.write_bytes(b"".join(lines))
