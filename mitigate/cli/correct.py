"""`mitigate correct` and `mitigate best-of`: answers made better after they were written.

    mitigate correct --input answers.jsonl --output corrected.jsonl --delete
    mitigate correct --input answers.jsonl --output corrected.jsonl --engine openai:MODEL@URL --abstain-above 0.5
    mitigate best-of --input candidates.jsonl --output best.jsonl

Both judge with an annotator, go on after they were killed, and leave the rest to `mitigate/inference/correct.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

from annotators.base import Annotator, engines_in
from annotators.records import HALLUCINATED, failed_share
from engines import parse_engine
from mitigate.cli.annotate import annotator_for, continued
from mitigate.cli.options import Args, Subparsers, add_command, print_json
from mitigate.inference.correct import Regenerate, best_of, correct, with_engine
from mitigate.io import (
    ADDED,
    FAILED,
    Check,
    Matches,
    Problem,
    Record,
    UsageError,
    check_annotation_input,
    check_texts,
    counted,
    progress,
    read_rows,
    say,
    usage,
)
from mitigate.models import open_engine
from mitigate.report.totals import percent

ERROR, REFUSED = "correction_error", "correction_refused"
CORRECTED = (
    "answer", *ADDED, "action", "original_answer", "original_sentences", "original_hallucination_rate", "changes",
    "correction_options", ERROR, REFUSED,
)  # fmt: skip
BEST = "best_of"
CHOSEN = ("answer", *ADDED, BEST)


def add_parser(subparsers: Subparsers) -> None:
    more = (
        'Records are {"question"?, "reference", "answer"}. The corrections that a generative annotator gives (the '
        "embedded one only marks sentences), sentences written anew by an engine, deletion and abstention are applied "
        "as far as asked for. Only flagged sentences change, and the number of hallucinated sentences never rises. An "
        "answer whose request to the engine failed has `correction_error` (exit code 1) and is done again by a second "
        "start; one whose request was refused has `correction_refused` and stays as it is."
    )
    one = add_command(subparsers, "correct", "Correct the hallucinated sentences of answers.", more)
    more = (
        'Records are {"question"?, "reference", "answers": [{"text", "model"?}, …]}. The lowest hallucination rate '
        "wins (what could not be judged counts half), and of equals the answer with most supported sentences. The key "
        "best_of of a result, which replaces a record's own, holds index and model of the answer, and rates and "
        "statuses of all. (By FEWL, without a reference document: `mitigate fewl score` and `mitigate fewl pick`.)"
    )
    several = add_command(subparsers, "best-of", "Choose the least hallucinated of several answers.", more)
    for parser, run in ((one, run_correct), (several, run_best_of)):
        parser.input("This JSON Lines file holds the records.")
        parser.output(continued=True)
        parser.annotator()
        parser.cache()
        parser.max_failed()
        parser.chunk_size()
        parser.set_defaults(run=run)
    several.cost()
    one.engine("This language model writes flagged sentences anew from their evidence.")
    one.flag("--delete", "Sentences that stay hallucinated are taken out.")
    text = "An abstention replaces an answer whose hallucination rate stays above RATE, from 0 to 1."
    one.number("--abstain-above", text, "a rate from 0 to below 1", lambda rate: 0 <= rate < 1, "RATE")


def run_correct(args: Args) -> int:
    args.check_engine()
    if args.engine is None and not args.delete and args.abstain_above is None and not engines_in(args.annotator):
        raise UsageError(
            f"expected --engine, --delete or --abstain-above: {args.annotator} gives no corrections, so without them "
            "nothing would change"
        )
    options = args.calibration_options(args.annotator)
    if args.engine is not None:  # which is opened only where there is something to do
        with usage("--engine: "):
            parse_engine(args.engine)
        args.cache_file()
    changes = {"delete": args.delete, "abstain_above": args.abstain_above}
    asked = {"engine": args.engine, **changes}

    def matches(record: Record, written: Record) -> str | None:
        if (was := written.get("correction_options")) != asked:
            return f"it was corrected with {was}, not {asked}"
        return None if written.get("original_answer") == record["answer"] else "'original_answer' differs"

    def process(records: list[Record], annotator: Annotator) -> list[Record]:
        rows = [{k: v for k, v in record.items() if k == "answer" or k not in CORRECTED} for record in records]
        results = correct(rows, annotator, regenerate=args.engine and regenerate(), **changes)
        return [{**one.to_dict(), "correction_options": asked} for one in results]

    with ExitStack() as stack:

        @cache
        def regenerate() -> Regenerate:
            return with_engine(stack.enter_context(closing(open_engine(args.engine, "--engine", args.cache_file()))))

        return _run(args, options, check_annotation_input, CORRECTED, process, summary_of_corrected, matches)


def run_best_of(args: Args) -> int:
    def matches(_: Record, written: Record) -> str | None:
        best = written.get(BEST)
        known = isinstance(best, dict) and best.keys() >= {"index", "model", "rates", "statuses"}
        return None if known else f"it has no {BEST!r} of this command"

    args.check_engine()
    options = args.calibration_options(args.annotator)
    return _run(args, options, check_candidates, CHOSEN, choose, summary_of_chosen, matches)


def _run(
    args: Args,
    options: dict[str, Any],
    check: Check,
    added: Sequence[str],
    process: Callable[[list[Record], Annotator], Sequence[Record]],
    summarise: Callable[[Sequence[Record]], tuple[Record, str]],
    matches: Matches = lambda _, __: None,
) -> int:
    if engines_in(args.annotator):
        options = {"cache": args.cache_file(), **options}
    with continued(args, check, added, matches) as (job, fingerprints):
        annotator = annotator_for(args, options, job, fingerprints)

        def work(records: list[Record]) -> Sequence[Record]:
            assert annotator is not None  # there are records
            return process(records, annotator)

        # What failed at an earlier start and has its replies by now is in the cache.
        if ERROR in added and any(ERROR in row for row in islice(read_rows(args.output), job.done)):
            job.redo(work, lambda row: ERROR in row, chunk_size=args.chunk_size)
        with progress("judging", job.valid, job.done) as tell:
            job.run(work, chunk_size=args.chunk_size, on_chunk=lambda _: tell(job.done))
        rows = list(read_rows(args.output))
        summary, text = summarise(rows)
    if args.json:
        print_json({**summary, "rejected_lines": job.rejected, "output": str(args.output)})
    else:
        print(f"{text}\noutput: {args.output}" + (f"\nrejected: {job.rejected_path}" if job.rejected else ""))
    if ERROR in added and (unasked := [row[ERROR] for row in rows if ERROR in row]):
        say(
            f"error: {len(unasked)} of {len(rows)} answers have a request without a reply, the last: {unasked[-1]}; "
            "run the same command again to ask for these"
        )
        return FAILED
    if refused := [row[REFUSED] for row in rows if REFUSED in row]:
        say(f"{len(refused)} of {len(rows)} answers have a request that was refused, the last: {refused[-1]}")
        if len(refused) > args.max_failed * len(rows):
            return FAILED
    statuses: Counter[str] = Counter()
    for row in rows:  # of all answers that one was chosen from
        statuses.update(row[BEST]["statuses"] if BEST in added else [s["status"] for s in row["sentences"]])
    return args.exit_code(failed_share(statuses), job.rejected)


def check_candidates(record: Record) -> list[Problem]:
    """Problems of a record with several answers."""
    problems = check_texts(record, question="any?", reference="any", language="text?")
    answers = record.get("answers")
    texts = [a.get("text") if isinstance(a, dict) else None for a in answers] if isinstance(answers, list) else []
    if not texts or not all(isinstance(text, str) for text in texts):
        problems.append(Problem.of(record, "answers", 'a non-empty list of {"text": …, "model"?: …}'))
    return problems


def choose(records: Sequence[Record], annotator: Annotator) -> list[Record]:
    """The annotated record of each best answer, with its index and model and the rates and statuses of all.

    Where no answer could be judged, ``answer``, ``index`` and ``model`` are None.
    """
    kept: list[Record] = [{k: v for k, v in record.items() if k not in CHOSEN} for record in records]
    judged = iter(annotator.annotate_batch({**row, "answer": a["text"]} for row in kept for a in row["answers"]))
    rows: list[Record] = []
    for row in kept:
        annotations = [next(judged) for _ in row["answers"]]
        best = best_of(annotations)
        none = replace(annotations[0], record={**row, "answer": None}, sentences=())
        chosen = none if best is None else annotations[best]
        why = {
            "index": best,
            "model": None if best is None else row["answers"][best].get("model"),
            "rates": [a.hallucination_rate for a in annotations],
            "statuses": dict(Counter(s.status for a in annotations for s in a.sentences)),
        }
        rows.append({**chosen.to_dict(), BEST: why})
    return rows


def summary_of_corrected(rows: Sequence[Record]) -> tuple[Record, str]:
    """What was done, and hallucinated of factual sentences before and after: as JSON values and in words."""
    shares = {}
    for when, key in (("before", "original_sentences"), ("after", "sentences")):
        labels = [s["label"] for row in rows for s in row[key] if s["label"] not in (None, "no_fact")]
        bad = sum(label in HALLUCINATED for label in labels)
        shares[when] = {"hallucinated": bad, "factual": len(labels), "rate": bad / len(labels) if labels else None}
    actions = {name: sum(row["action"] == name for row in rows) for name in ("unchanged", "corrected", "abstained")}
    by = Counter(change["by"] for row in rows if row["action"] == "corrected" for change in row["changes"])
    how = ", ".join(f"{n} by {name}" if name != "deleted" else f"{n} deleted" for name, n in by.items())
    parts = [f"{one['hallucinated']} of {one['factual']} ({percent(one['rate'])}) {w}" for w, one in shares.items()]
    text = (
        f"{counted(len(rows), 'answer')}: {', '.join(f'{n} {name}' for name, n in actions.items())}"
        + (f" ({how})" if how else "")
        + f"\nhallucinated sentences: {', '.join(parts)}, by the same annotator"
    )
    return {"answers": len(rows), **actions, "changes": by, **shares}, text


def summary_of_chosen(rows: Sequence[Record]) -> tuple[Record, str]:
    """The mean rates of all candidates and of the chosen: as JSON values and in words."""

    def mean(rates: list[float | None]) -> float | None:
        known = [rate for rate in rates if rate is not None]
        return sum(known) / len(known) if known else None

    every = mean([rate for row in rows for rate in row[BEST]["rates"]])
    best = mean([row["hallucination_rate"] for row in rows])
    none = sum(row[BEST]["index"] is None for row in rows)
    text = (
        f"{counted(len(rows), 'question')}"
        + (f", {none} of them without an answer that could be judged" if none else "")
        + f"\nmean hallucination rate: {percent(every)} of all candidates, {percent(best)} of the chosen, "
        "by the same annotator"
    )
    return {"questions": len(rows), "without_answer": none, "rate_of_all": every, "rate_of_chosen": best}, text
