"""`mitigate correct` and `mitigate best-of`: answers made better after they were written.

    mitigate correct --input answers.jsonl --output corrected.jsonl --delete
    mitigate correct --input answers.jsonl --output corrected.jsonl --engine openai:MODEL@URL --abstain-above 0.5
    mitigate best-of --input candidates.jsonl --output best.jsonl

Both judge with an annotator, go on after they were killed, and leave the rest to `mitigate/inference/correct.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mitigate.io import (
    REJECTED,
    Job,
    OutputError,
    Problem,
    Record,
    UsageError,
    check_annotation_input,
    check_text,
    counted,
    make_parent,
    open_job,
    progress,
    say,
    shown,
    tell_rejected,
)
from mitigate.models import open_annotator, open_engine

if TYPE_CHECKING:
    from annotators.base import Annotator
    from mitigate.inference.correct import Regenerate


if TYPE_CHECKING:
    from annotators.base import Annotator
    from mitigate.inference.correct import Regenerate

    Process = Callable[[list[Record], Annotator], Sequence[Record]]

FAILED = 1  # exit code
ERROR = "correction_error"
CORRECTED = (
    "answer", "sentences", "annotator", "hallucination_rate", "action", "original_answer", "original_sentences",
    "original_hallucination_rate", "changes", "correction_options", "correction_error",
)  # fmt: skip
CHOSEN = ("answer", "model", "index", "sentences", "annotator", "hallucination_rate", "rates")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both commands and their options."""
    parser = subparsers.add_parser(
        "correct",
        help="correct the hallucinated sentences of answers",
        description='Correct answers {"question"?, "reference", "answer"}: the corrections that a generative '
        "annotator gives (the embedded one only marks sentences), sentences written anew by an engine, deletion, "
        "abstention, as far as asked for. Only flagged sentences "
        "change, and the number of hallucinated sentences never rises. Exit codes as of `mitigate annotate`; an answer "
        "whose request to the engine failed has `correction_error` (exit code 1) and is done again by a second start.",
    )
    _add_files(parser)
    parser.add_argument(
        "--engine", metavar="KIND:MODEL[@URL]", help="writes flagged sentences anew from their evidence"
    )
    parser.add_argument("--cache", metavar="FILE", type=Path, help="of replies (OUTPUT.cache.sqlite)")
    parser.add_argument("--delete", action="store_true", help="take out sentences that stay hallucinated")
    parser.add_argument(
        "--abstain-above", metavar="RATE", type=float,
        help="replace an answer whose hallucination rate stays above RATE (0 to 1) by an abstention",
    )  # fmt: skip
    parser.set_defaults(run=run_correct)

    best = subparsers.add_parser(
        "best-of",
        help="choose the least hallucinated of several answers",
        description='Choose one of {"question"?, "reference", "answers": [{"text", "model"?}, …]}: the answer with the '
        "lowest hallucination rate, of equals the one with most supported sentences. (By FEWL, without a reference "
        "document: `mitigate fewl score` and `mitigate fewl pick`.) Exit codes as of `mitigate annotate`.",
    )
    _add_files(best)
    best.set_defaults(run=run_best_of)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input", metavar="FILE", type=Path, required=True, help="records, JSON Lines")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, required=True, help="where results go; continued if it is there"
    )
    parser.add_argument("--overwrite", action="store_true", help="start OUTPUT again instead of continuing it")
    parser.add_argument(
        "--annotator", metavar="NAME", default="embedded", help="embedded, a path or a hub id (%(default)s)"
    )
    parser.add_argument("--chunk-size", metavar="N", type=int, default=32, help="records judged at once (%(default)s)")


def run_correct(args: argparse.Namespace) -> int:
    """Correct a file of answers; returns the exit code."""
    above = args.abstain_above
    if above is not None and not 0 <= above < 1:
        raise UsageError(f"--abstain-above: expected a rate from 0 to below 1, got {above}")
    if args.cache is not None and args.engine is None:
        raise UsageError("--cache: the response cache of an engine; give --engine too")

    asked = {"engine": args.engine, "delete": args.delete, "abstain_above": above}

    def matches(record: Record, written: Record) -> str | None:
        if (was := written.get("correction_options")) != asked:
            return f"it was corrected with {was}, not {asked}"
        if written.get("original_answer") != record["answer"]:
            return "'original_answer' differs"
        return _same_rest(record, written, CORRECTED)

    def process(records: list[Record], annotator: Annotator) -> list[Record]:
        from mitigate.inference.correct import correct

        rows = [{k: v for k, v in record.items() if k == "answer" or k not in CORRECTED} for record in records]
        mended = correct(rows, annotator, regenerate=regenerate, delete=args.delete, abstain_above=above)
        return [{**one.to_dict(), "correction_options": asked} for one in mended]

    if args.engine is None:
        regenerate: Regenerate | None = None
        return _run(args, check_annotation_input, matches, process, tell_correct)
    from mitigate.inference.regenerate import with_engine

    cache = args.cache or Path(f"{args.output}.cache.sqlite")
    make_parent(cache)
    with closing(open_engine(args.engine, "--engine", cache)) as engine:
        regenerate = with_engine(engine)
        return _run(args, check_annotation_input, matches, process, tell_correct)


def run_best_of(args: argparse.Namespace) -> int:
    """Choose among the answers of a file; returns the exit code."""

    def matches(record: Record, written: Record) -> str | None:
        return _same_rest(record, written, CHOSEN)

    return _run(args, check_candidates, matches, choose, tell_best)


def _run(
    args: argparse.Namespace,
    check: Callable[[Record], list[Problem]],
    matches: Callable[[Record, Record], str | None],
    process: Process,
    tell: Callable[[Sequence[Record]], str],
) -> int:
    if args.chunk_size < 1:
        raise UsageError(f"--chunk-size: expected 1 or more, got {args.chunk_size}")
    written_by: set[str] = set()
    failed = False

    def compare(record: Record, written: Record) -> str | None:
        nonlocal failed
        written_by.add(str((written.get("annotator") or {}).get("fingerprint")))
        failed = failed or ERROR in written
        return matches(record, written)

    try:
        with open_job(args.input, args.output, check=check, matches=compare, overwrite=args.overwrite) as job:
            tell_rejected(job.source, job.first_rejected, job.rejected, str(job.rejected_path))
            if job.valid:
                annotator = open_annotator(args.annotator)  # of a complete output too: it may be of another annotator
                if other := written_by - {annotator.fingerprint}:
                    raise UsageError(
                        f"cannot continue {job.output}: it was written with an annotator of fingerprint {min(other)}, "
                        f"and {args.annotator} has {annotator.fingerprint}; choose another --output, or --overwrite"
                    )
                if failed:  # at an earlier start; what has its replies by now is in the cache
                    job.redo(lambda records: process(records, annotator), lambda row: ERROR in row,
                             chunk_size=args.chunk_size)  # fmt: skip
                _work(job, lambda records: process(records, annotator), args.chunk_size)
            else:
                job.run(lambda records: [], chunk_size=1)
            rows = _rows(args.output)
            print(tell(rows))
            print(f"output: {args.output}" + (f"\nrejected: {job.rejected_path}" if job.rejected else ""))
    except OutputError as error:
        say(f"error: {error}")
        return FAILED
    if unasked := [row[ERROR] for row in rows if ERROR in row]:
        say(
            f"error: {len(unasked)} of {len(rows)} answers have a request without a reply, the last: {unasked[-1]}; "
            "what it was to mend stays as it is: run the same command again to ask for these"
        )
        return FAILED
    return REJECTED if job.rejected else 0


def _work(job: Job, process: Callable[[list[Record]], Sequence[Record]], chunk_size: int) -> None:
    with progress("judging", job.valid, job.done) as tell:
        job.run(process, chunk_size=chunk_size, on_chunk=lambda _: tell(job.done))


def _rows(path: Path) -> list[Record]:
    from mitigate.report.totals import read_annotated

    return list(read_annotated(path))


def _same_rest(record: Record, written: Record, added: Sequence[str]) -> str | None:
    for key in {**record, **written}:
        if key not in added and (key not in record or key not in written or record[key] != written[key]):
            return f"{key!r} differs"
    return None if isinstance(written.get("sentences"), list) else "it has no sentences"


def check_candidates(record: Record) -> list[Problem]:
    """Problems of a record with several answers."""
    problems = check_text(record, "question", required=False, empty=True)
    problems += check_text(record, "reference", required=True, empty=True)
    problems += check_text(record, "language", required=False)
    answers = record.get("answers")
    good = isinstance(answers, list) and answers and all(isinstance(a, dict) for a in answers)
    if not good or not all(isinstance(a.get("text"), str) for a in answers or []):
        value = shown(answers) if "answers" in record else None
        problems.append(Problem("answers", value, 'a non-empty list of {"text": …, "model"?: …}'))
    return problems


def choose(records: Sequence[Record], annotator: Annotator) -> list[Record]:
    """The record of each best answer: answer, model, index, its sentences, and the rates of all.

    Where no answer could be judged, ``answer`` and ``index`` are None.
    """
    from mitigate.inference.correct import best_of

    rests: list[dict[str, Any]] = [{k: v for k, v in r.items() if k not in (*CHOSEN, "answers")} for r in records]
    asked = [
        {**rest, "answer": answer["text"]} for rest, r in zip(rests, records, strict=True) for answer in r["answers"]
    ]
    judged = iter(annotator.annotate_batch(asked))
    rows: list[Record] = []
    for record in records:
        annotations = [next(judged) for _ in record["answers"]]
        best = best_of(annotations)
        kept = {k: v for k, v in record.items() if k not in CHOSEN}
        rates = [a.hallucination_rate for a in annotations]
        if best is None:
            who = dict(annotations[0].annotator)
            rows.append(
                {**kept, "answer": None, "model": None, "index": None, "sentences": [], "annotator": who,
                 "hallucination_rate": None, "rates": rates}
            )  # fmt: skip
            continue
        chosen = annotations[best].to_dict()
        model = record["answers"][best].get("model")
        rows.append({**kept, **chosen, "answers": record["answers"], "model": model, "index": best, "rates": rates})
    return rows


def tell_correct(rows: Sequence[Record]) -> str:
    """Totals before and after: hallucinated of factual sentences, and what was done."""
    from mitigate.report.totals import percent

    def share(key: str) -> tuple[int, int]:
        labels = [s["label"] for row in rows for s in row[key] if s["label"] not in (None, "no_fact")]
        return sum(label in ("contradictory", "unverifiable") for label in labels), len(labels)

    (was, of_was), (now, of_now) = share("original_sentences"), share("sentences")
    actions = {name: sum(row["action"] == name for row in rows) for name in ("unchanged", "corrected", "abstained")}
    by: dict[str, int] = {}
    for row in rows:
        for change in row["changes"] if row["action"] == "corrected" else []:
            by[change["by"]] = by.get(change["by"], 0) + 1
    how = ", ".join(f"{n} by {name}" if name != "deleted" else f"{n} deleted" for name, n in by.items())
    return (
        f"{counted(len(rows), 'answer')}: "
        + ", ".join(f"{n} {name}" for name, n in actions.items())
        + (f" ({how})" if how else "")
        + f"\nhallucinated sentences: {was} of {of_was} ({percent(was / of_was if of_was else None)}) before, "
        f"{now} of {of_now} ({percent(now / of_now if of_now else None)}) after, by the same annotator"
    )


def tell_best(rows: Sequence[Record]) -> str:
    """Mean rate of all candidates and of the chosen."""
    from mitigate.report.totals import percent

    def mean(rates: list[float]) -> float | None:
        return sum(rates) / len(rates) if rates else None

    every = mean([rate for row in rows for rate in row["rates"] if rate is not None])
    best = mean([row["hallucination_rate"] for row in rows if row["hallucination_rate"] is not None])
    none = sum(row["index"] is None for row in rows)
    return (
        f"{counted(len(rows), 'question')}"
        + (f", {none} of them without an answer that could be judged" if none else "")
        + f"\nmean hallucination rate: {percent(every)} of all candidates, {percent(best)} of the chosen, "
        "by the same annotator"
    )
