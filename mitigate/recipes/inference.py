"""Task `inference`: several answers per question from any engine, the best chosen, corrected, or withheld.

Writes results.jsonl (the answer as given, its annotation, what it would have been without this), report.html and the
rates of the first, the chosen and the corrected answers. A second run goes on where the first one stopped; replies are
cached. A question that a request failed for is kept with its `error`, and the next run does its chunk again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from engines.types import Engine, EngineError, Sampling, check_asked
from fewl.score import check_options
from mitigate.io import Record, UsageError
from mitigate.models import EngineName, at_once, failures, open_engine
from mitigate.recipes.config import Recipe
from mitigate.recipes.data import Scoring, best_scored, check_question, read_good
from mitigate.recipes.folder import RunFolder
from mitigate.rewards.config import Judging

RESULTS = "results.jsonl"
CONTEXT = ("question", "reference", "language")
STAGES = ("first", "chosen", "given")
Engines = Mapping[str, Engine]
Rows = Sequence[Record]
Texts = Sequence[Sequence[str]]  # the candidates of each row


class Options(Recipe, Judging):
    task: Literal["inference"]
    engine: EngineName = Field(description="KIND:MODEL[@BASE_URL] that answers")
    data: Path = Field(
        description='questions, JSON Lines: {"question", "reference", "prompt"?: chat, "id"?}; they need a reference '
        "unless FEWL selects, it is not in the prompt, and nothing is corrected"
    )
    reference_in_prompt: bool = Field(default=True, description="show the model the reference with the question")
    answers: int = Field(default=4, ge=1, description="drawn for each question")
    temperature: float = Field(default=0.8, ge=0, le=2)
    answer_tokens: int = Field(default=512, ge=1)
    seed: int = Field(default=0, ge=0)
    select: Literal["annotator", "fewl", "none"] = Field(default="annotator", description="none: the first answer")
    reference_llms: dict[str, EngineName] = Field(
        default={}, description="for select: fewl: name → engine of each reference LLM"
    )
    scoring: Scoring = Scoring()
    correct: bool = True
    regenerate: EngineName | None = Field(default=None, description="engine that writes flagged sentences anew")
    delete: bool = Field(default=False, description="take out sentences that stay hallucinated")
    abstain_above: float | None = Field(default=None, ge=0, lt=1)
    chunk: int = Field(default=32, ge=1, description="questions at once; with FEWL, neighbours are found among these")


def check(options: Options) -> None:
    """Refuse options that do not go together, and data that is not there."""
    from mitigate.models import check_similarity

    if not options.data.is_file():
        raise UsageError(f"cannot read {options.data}: no such file")
    if (options.select == "fewl") != bool(options.reference_llms):
        raise UsageError("reference_llms: expected the engines of reference LLMs with select: fewl, and only then")
    if not options.correct and (options.regenerate or options.delete or options.abstain_above is not None):
        raise UsageError("regenerate, delete and abstain_above: for correct: true only")
    if options.answers > 1 and options.temperature == 0:
        raise UsageError("temperature: expected more than 0 with several answers, which would be equal; got 0")
    check_similarity(options.scoring.similarity)
    if options.select == "fewl":
        if options.scoring.expertise == "similarity":
            raise UsageError("scoring.expertise: nothing makes IW/CO pairs here; expected uniform or discovered")
        try:
            check_options([], options.scoring.options(), list(options.reference_llms))
        except ValueError as error:
            raise UsageError(f"scoring: {error}") from error
    options.check_calibration()


def run(options: Options, folder: RunFolder) -> int:
    """Ask, choose, correct, chunk by chunk; then the figures and the page."""
    from mitigate.models import open_annotator
    from mitigate.report.html import write_page
    from mitigate.report.totals import Totals

    needs = options.select == "annotator" or options.reference_in_prompt or options.correct
    check_line = partial(check_question, needed=True, reference=needs)
    rows, bad = read_good(options.data, check_line, folder, '{"question", "reference"}' if needs else '{"question"}')
    results = _written(options, folder, rows)
    annotator = open_annotator(options.annotator, options.operating)
    with ExitStack() as stack:
        names = {options.engine, options.regenerate, *options.reference_llms.values()} - {None}
        engines = {
            name: stack.enter_context(closing(open_engine(name, "engine", folder / "replies.sqlite")))
            for name in sorted(map(str, names))
        }
        for start in range(0, len(rows), options.chunk):
            part = rows[start : start + options.chunk]
            there = results[start : start + len(part)]
            if there and not any(result.get("error") for result in there):
                continue
            results[start : start + len(part)] = _chunk(options, engines, part, annotator)
            if there:
                folder.write_rows(RESULTS, results)
            else:
                folder.append(RESULTS, results[start:])
            print(f"{len(results)} of {len(rows)} questions", flush=True)
        why = failures(engines.values())
    figures = _figures(results)
    answered = [row for row in results if row["answer"]]
    totals = Totals()
    for row in answered:
        totals.add(row)
    write_page(folder / "report.html", lambda: answered, totals, full_output=RESULTS)
    _tell(figures, folder)
    if figures["failed"]:
        raise EngineError(f"{figures['failed']} of {len(rows)} questions have a request without a reply ({why})")
    folder.finish(figures)
    return 3 if bad else 0


def _written(options: Options, folder: RunFolder, rows: Rows) -> list[Record]:
    """The results of an earlier start, whole chunks only: one that was cut off while it was written begins again."""
    written = folder.rows(RESULTS)
    for i, found in enumerate(written):
        if i >= len(rows) or any(
            (found.get(k) or "") != (rows[i].get(k) or "") for k in ("id", "question", "reference")
        ):
            raise UsageError(
                f"cannot go on in {folder.path}: row {i + 1} of {RESULTS} is not of question {i + 1} of "
                f"{options.data}, which has changed; choose another folder with --output"
            )
    whole = len(written) if len(written) == len(rows) else len(written) - len(written) % options.chunk
    if whole < len(written):
        folder.write_rows(RESULTS, written[:whole])
    return written[:whole]


def _chunk(options: Options, engines: Engines, rows: Rows, annotator: Any) -> list[Record]:
    """One result per question, with `answer` null where there is none and `error` where a request failed.

    What is asked for a whole chunk (reference answers, whose neighbours are found among its questions, and sentences
    written anew) concerns all of its questions.
    """
    how: dict[str, Any] = {"seed": options.seed} if options.temperature > 0 else {}
    sampling = Sampling(options.answer_tokens, options.temperature, n=options.answers, **how)
    asked = engines[options.engine].chat([_prompt(options, row) for row in rows], sampling)
    check_asked(asked)
    candidates = [[text.strip() for text in result.texts if text.strip()] for result in asked]
    before = failures(engines.values())
    results = _finish(options, engines, rows, candidates, annotator)
    after = failures(engines.values())
    shared = None if after == before else f"a request of its chunk failed ({after})"
    return [{**result, "error": one.error or shared} for result, one in zip(results, asked, strict=True)]


def _prompt(options: Options, row: Record) -> list[dict[str, str]]:
    if row.get("prompt"):
        return list(row["prompt"])
    text = str(row["question"])
    if options.reference_in_prompt:
        rule = "Answer the question from the text below, and say so where it does not tell."
        text = f"{rule}\n\nText:\n{row['reference']}\n\nQuestion: {text}"
    return [{"role": "user", "content": text}]


def _finish(options: Options, engines: Engines, rows: Rows, candidates: Texts, annotator: Any) -> list[Record]:
    """Judge the candidates, choose one per question and correct it."""
    from mitigate.inference.correct import best_of, correct
    from mitigate.inference.regenerate import with_engine

    contexts = [{"reference": "", **{k: row[k] for k in CONTEXT if row.get(k) is not None}} for row in rows]
    asked = [{**context, "answer": text} for context, texts in zip(contexts, candidates, strict=True) for text in texts]
    judged = iter(annotator.annotate_batch(asked))
    annotations = [[next(judged) for _ in texts] for texts in candidates]
    picked: list[int | None] = [None] * len(rows)
    if options.select == "fewl":
        picked = _by_fewl(options, engines, rows, candidates)
    elif options.select == "annotator":
        picked = [best_of(a) for a in annotations]
    # Where nothing tells the answers apart, the first is taken.
    places = [p if p is not None or not a else 0 for p, a in zip(picked, annotations, strict=True)]
    chosen = {i: annotations[i][p] for i, p in enumerate(places) if p is not None}
    given = {i: annotation.to_dict() for i, annotation in chosen.items()}
    if options.correct:
        mended = correct(
            [annotation.record for annotation in chosen.values()], annotator,
            regenerate=with_engine(engines[options.regenerate]) if options.regenerate else None,
            delete=options.delete, abstain_above=options.abstain_above,
        )  # fmt: skip
        given = {i: one.to_dict() for i, one in zip(chosen, mended, strict=True)}
    rates = ("hallucination_rate", "coverage", "operating_point")
    nothing: Record = {"answer": None, "sentences": [], "annotator": {}, **dict.fromkeys(rates)}
    results = []
    for i, row in enumerate(rows):
        stages = {"first": annotations[i][:1], "chosen": [chosen[i]] if i in chosen else []}
        labels = {stage: [s.label for one in found for s in one.sentences] for stage, found in stages.items()}
        result = given.get(i, nothing)
        labels["given"] = [sentence["label"] for sentence in result["sentences"]]
        results.append({**row, **result, "candidates": list(candidates[i]), "index": places[i], "stages": labels})
    return results


def _by_fewl(options: Options, engines: Engines, rows: Rows, candidates: Texts) -> list[int | None]:
    """The best-scored candidate of each question, None where none has a score."""
    from fewl.expertise import reference_answers
    from fewl.score import score_records

    questions, llms = [row["question"] for row in rows], options.reference_llms
    asked = {name: engines[engine] for name, engine in llms.items()}
    references = at_once(asked, lambda _, engine: reference_answers(engine, questions))
    own = next((name for name, engine in llms.items() if engine == options.engine), None)  # is no reference for itself
    records = {
        q: {
            "id": row["id"],
            "question": row["question"],
            "answers": [{"text": text, "model": own} for text in texts],
            "reference_answers": {name: texts_Q[q][0] for name, texts_Q in references.items() if texts_Q[q]},
        }
        for q, (row, texts) in enumerate(zip(rows, candidates, strict=True))
        if texts
    }
    _, encode, similarity = options.scoring.load(questions)
    how: Any = {"similarity": similarity, "encode": encode, "options": options.scoring.options()}
    scored, _ = score_records(list(records.values()), **how)
    best = {q: best_scored(record["answers"]) for q, record in zip(records, scored, strict=True)}
    return [best.get(q) for q in range(len(rows))]


def _figures(rows: Rows) -> dict[str, Any]:
    """Hallucinated of factual sentences at each stage, with 95 % intervals."""
    from mitigate.report.totals import Totals

    out: dict[str, Any] = {
        "questions": len(rows),
        "unanswered": sum(row["answer"] is None and not row.get("error") for row in rows),
        "failed": sum(row.get("error") is not None for row in rows),
    }
    for stage in STAGES:
        totals = Totals()
        for row in rows:
            sentences = [{"label": label, "status": "checked"} for label in row["stages"][stage]]
            totals.add({"annotator": row["annotator"], "sentences": sentences})
        out[stage] = {name: getattr(totals, name) for name in ("hallucinated", "factual", "rate", "interval")}
    return out


def _tell(figures: Mapping[str, Any], folder: RunFolder) -> None:
    from mitigate.report.totals import percent

    for stage in STAGES:
        one = figures[stage]
        ends = f" [{percent(one['interval'][0])}, {percent(one['interval'][1])}]" if one["interval"] else ""
        print(f"{stage:>6}: {percent(one['rate'])}{ends} hallucinated of {one['factual']} factual sentences")
    print("all by the same annotator, which also chose and corrected: judge with another one as well")
    print(f"questions: {figures['questions']}, without an answer: {figures['unanswered']}, failed: {figures['failed']}")
    print(f"results: {folder / RESULTS}\npage: {folder / 'report.html'}")
