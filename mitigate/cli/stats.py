"""`mitigate stats`: figures of annotated data, and the agreement of two annotations.

    mitigate stats out/annotated.jsonl --output statistics.md
    mitigate stats --agreement machine.jsonl human.jsonl

Label shares by source and language, and whether hallucinations accumulate in an answer, with intervals. Reads both what
`mitigate annotate` writes and labelled sentences. What the figures mean: annotators/evaluation/agreement.py, agreement.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mitigate.io import UsageError

if TYPE_CHECKING:
    from annotators.evaluation.agreement import Figure
    from mitigate.labels import JudgedAnswer


REJECTED = 3


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "stats",
        help="label shares, accumulation and agreement of annotated data",
        description="Figures of annotated answers or labelled sentences (JSON Lines). Exit codes: 0 done, "
        "2 wrong usage, 3 some lines could not be read (they are told).",
    )
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path, help="annotated answers or sentences")
    parser.add_argument(
        "--agreement", metavar=("A", "B"), nargs=2, type=Path, help="compare A with B, which counts as right"
    )
    parser.add_argument(
        "--whole", metavar="SHARE", type=float, default=0.9,
        help="accumulation: least share of an answer's characters in judged sentences (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--resamples", metavar="N", type=int, default=1000, help="bootstrap (%(default)s)")
    parser.add_argument("--output", metavar="FILE", type=Path, help="also write the page there (Markdown)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the figures there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compute, print and write the figures; returns the exit code."""
    from mitigate.io import write_bytes, write_json
    from mitigate.labels import read_answers

    if bool(args.files) == bool(args.agreement):
        raise UsageError("give files, or --agreement A B")
    if not 0 <= args.whole <= 1 or args.resamples < 0:
        raise UsageError(f"--whole takes 0 to 1 and --resamples 0 or more, got {args.whole} and {args.resamples}")
    if args.agreement:
        found = [read_answers([path]) for path in args.agreement]
        rejected = sum(bad for _, bad in found)
        page, figures = agreement_page([answers for answers, _ in found], args)
    else:
        answers, rejected = read_answers(args.files)
        page, figures = statistics_page(answers, args)
    print(page)
    if args.output:
        write_bytes(args.output, page.encode())
    if args.json:
        write_json(args.json, figures)
    return REJECTED if rejected else 0


def statistics_page(answers: Sequence[JudgedAnswer], args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Label shares and accumulation, by source and language and over all."""
    from collections import Counter

    from annotators.evaluation.agreement import FIGURES, accumulation
    from annotators.records import LABELS
    from mitigate.labels import is_hallucinated
    from mitigate.report.totals import table

    parts: dict[str, list[JudgedAnswer]] = {}
    for answer in answers:
        parts.setdefault(f"{answer.source} ({answer.language})", []).append(answer)
    parts = dict(sorted(parts.items()))
    lines = ["## Labels, in percent of judged sentences", ""]
    names = [n for n in (*LABELS, "unsupported") if any(s.label == n for a in answers for s in a.sentences)]
    head = ["source", "answers", "judged", *(name.replace("_", " ") for name in names), "not judged (number)"]
    rows, figures = [], {}
    for part, held in parts.items():
        labels = Counter(s.label for a in held for s in a.sentences)
        judged = sum(n for label, n in labels.items() if label is not None)
        rows.append(
            [part, f"{len(held):,}", f"{judged:,}"]
            + [f"{100 * labels[n] / judged:.2f}" if judged else "–" for n in names]
            + [f"{labels[None]:,}"]
        )
        figures[part] = {"answers": len(held), "labels": {str(k or "not judged"): n for k, n in labels.items()}}
    lines += table(head, rows)
    lines += [
        "", "## Accumulation", "",
        f"Answers of at least two judged sentences that make up {args.whole:.0%} of them; 95 % intervals from "
        f"{args.resamples:,} draws of answers. `order` = difference minus what random order within each answer gives.",
        "",
    ]  # fmt: skip
    head = [
        "source",
        "answers",
        "P(H) first",
        "P(H, none before)",
        "P(H, some before)",
        "difference",
        "random order",
        "order",
    ]
    rows = []
    for part, held in [*parts.items(), *([("all", list(answers))] if len(parts) > 1 else [])]:
        marks = [
            [is_hallucinated(s.label) for s in a.sentences if s.label is not None]
            for a in held
            if a.ordered and a.coverage >= args.whole
        ]
        marks = [row for row in marks if len(row) > 1]
        if not marks:
            continue
        found = accumulation(marks, n_resamples=args.resamples)
        rows.append([part, f"{len(marks):,}", *(shown(found[name]) for name in FIGURES)])
        figures.setdefault(part, {})["accumulation"] = {"answers": len(marks), **plain(found)}
    lines += table(head, rows) if rows else ["No such answers."]
    return "\n".join(lines) + "\n", figures


def agreement_page(sides: Sequence[Sequence[JudgedAnswer]], args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """How far A agrees with B on the sentences that both have judged."""
    from annotators.evaluation.agreement import agreement
    from mitigate.labels import paired
    from mitigate.report.totals import table

    pairs, groups, alone = paired(*sides)
    if not pairs:
        raise UsageError("--agreement: the two files have no judged sentence of the same answer in common")
    found = agreement(pairs, groups, n_resamples=args.resamples)
    lines = [
        f"## Agreement of {args.agreement[0].name} with {args.agreement[1].name}", "",
        f"{len(pairs):,} sentences of {len(set(groups)):,} answers judged by both; {alone[0]:,} only by the first, "
        f"{alone[1]:,} only by the second. 95 % intervals from {args.resamples:,} draws of answers.", "",
    ]  # fmt: skip
    lines += table(
        ["figure", "value, interval", "sentences"],
        [
            [
                name.replace("_", " "),
                f"{f.value:.3f}{_interval(f, 1, 3)}" if name == "kappa" and f.value is not None else shown(f),
                f"{f.n:,}",
            ]
            for name, f in found.items()
        ],
    )
    return "\n".join(lines) + "\n", {**plain(found), "only_first": alone[0], "only_second": alone[1]}


def shown(figure: Figure) -> str:
    """A share in percent with its interval."""
    if figure.value is None:
        return "–"
    return f"{100 * figure.value:.2f}{_interval(figure, 100, 1)}"


def _interval(figure: Figure, scale: float, digits: int) -> str:
    if figure.interval is None:
        return ""
    low, high = (f"{scale * limit:.{digits}f}" for limit in figure.interval)
    return f" ({low} to {high})"


def plain(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Figures as JSON values."""
    return {name: {"value": f.value, "interval": f.interval, "n": f.n} for name, f in figures.items()}
