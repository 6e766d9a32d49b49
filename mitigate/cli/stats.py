"""`mitigate stats`: figures of annotated data, and the agreement of two annotations.

    mitigate stats --input out/annotated.jsonl --output statistics.md
    mitigate stats --agreement machine.jsonl human.jsonl

Label shares by source and language, and whether hallucinations accumulate in an answer, with intervals. Reads both
what `mitigate annotate` writes and labelled sentences. annotators/evaluation/agreement.py says what the figures mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from annotators.records import LABELS
from mitigate.cli.options import EXIT_CODES, Args, Subparsers, add_command, print_json
from mitigate.io import REJECTED, UsageError, check_paths, write_bytes
from mitigate.report.totals import table

if TYPE_CHECKING:
    from annotators.evaluation.agreement import Figure
    from mitigate.labels import JudgedAnswer

WHOLE = 0.9
"""Accumulation counts answers with at least this share of characters in judged sentences."""


def add_parser(subparsers: Subparsers) -> None:
    more = "OUTPUT gets the page as Markdown."
    exit_codes = EXIT_CODES.partition(", which are then")[0] + "."
    text = "Count labels, and measure accumulation and agreement of annotated data."
    parser = add_command(subparsers, "stats", text, more, exit_codes)
    parser.input("These JSON Lines files hold annotated answers or sentences.", several=True, required=False)
    parser.file("--agreement", "A is compared with B, which counts as right.", ("A", "B"), nargs=2)
    parser.output(required=False)
    parser.count("--resamples", "Intervals come from N bootstrap draws (%(default)s).", 1000, least=0)
    parser.set_defaults(run=run)


def run(args: Args) -> int:
    from mitigate.labels import read_answers

    if bool(args.input) == bool(args.agreement):
        raise UsageError("give --input FILE…, or --agreement A B")
    check_paths(args.input or args.agreement, args.output, overwrite=args.overwrite)
    if args.agreement:
        found = [read_answers([path], gold=right) for path, right in zip(args.agreement, (False, True), strict=True)]
        rejected = sum(bad for _, bad in found)
        page, figures = agreement_page([answers for answers, _ in found], args)
    else:
        answers, rejected = read_answers(args.input)
        page, figures = statistics_page(answers, args)
    if args.json:
        print_json(figures)
    else:
        print(page)
    if args.output:
        write_bytes(args.output, page.encode())
    return REJECTED if rejected else 0


def statistics_page(answers: Sequence[JudgedAnswer], args: Args) -> tuple[str, dict[str, Any]]:
    """Label shares and accumulation, by source and language and over all."""
    from annotators.evaluation.agreement import FIGURES, accumulation

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
        f"Answers of at least two judged sentences that make up {WHOLE:.0%} of them; 95 % intervals from "
        f"{args.resamples:,} draws of answers. `order` = difference minus what random order within each answer gives.",
        "",
    ]  # fmt: skip
    head = [
        "source", "answers", "P(H) first", "P(H, none before)", "P(H, some before)", "difference", "random order",
        "order",
    ]  # fmt: skip
    rows = []
    for part, held in [*parts.items(), *([("all", list(answers))] if len(parts) > 1 else [])]:
        marks = [
            [s.label not in ("supported", "no_fact") for s in a.sentences if s.label is not None]
            for a in held
            if a.ordered and a.coverage >= WHOLE
        ]
        marks = [row for row in marks if len(row) > 1]
        if not marks:
            continue
        found = accumulation(marks, n_resamples=args.resamples)
        rows.append([part, f"{len(marks):,}", *(shown(found[name]) for name in FIGURES)])
        figures.setdefault(part, {})["accumulation"] = {"answers": len(marks), **plain(found)}
    lines += table(head, rows) if rows else ["No such answers."]
    return "\n".join(lines) + "\n", figures


def agreement_page(sides: Sequence[Sequence[JudgedAnswer]], args: Args) -> tuple[str, dict[str, Any]]:
    """How far A agrees with B on the sentences that both have judged."""
    from annotators.evaluation.agreement import agreement
    from mitigate.labels import paired

    pairs, groups, alone = paired(*sides)
    if not pairs:
        raise UsageError("--agreement: the two files have no judged sentence of the same answer in common")
    found = agreement(pairs, groups, n_resamples=args.resamples)
    lines = [
        f"## Agreement of {args.agreement[0].name} with {args.agreement[1].name}", "",
        f"{len(pairs):,} sentences of {len(set(groups)):,} answers judged by both; {alone[0]:,} only by the first, "
        f"{alone[1]:,} only by the second. 95 % intervals from {args.resamples:,} draws of answers.", "",
    ]  # fmt: skip
    rows = [
        [name.replace("_", " "), shown(f, 1, 3, 3) if name == "kappa" else shown(f), f"{f.n:,}"]
        for name, f in found.items()
    ]
    lines += table(["figure", "value, interval", "sentences"], rows)
    return "\n".join(lines) + "\n", {**plain(found), "only_first": alone[0], "only_second": alone[1]}


def shown(figure: Figure, scale: float = 100, digits: int = 2, interval_digits: int = 1) -> str:
    """A figure with its interval; a share in percent."""
    if figure.value is None:
        return "–"
    text = f"{scale * figure.value:.{digits}f}"
    if figure.interval is not None:
        low, high = (f"{scale * limit:.{interval_digits}f}" for limit in figure.interval)
        text += f" ({low} to {high})"
    return text


def plain(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Figures as JSON values."""
    return {name: {"value": f.value, "interval": f.interval, "n": f.n} for name, f in figures.items()}
