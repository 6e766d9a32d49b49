"""Task `inference`: several answers per question from any engine, the best chosen, corrected, or withheld.

Writes results.jsonl (the answer as given, its annotation, what it would have been without this), report.html (the first
answer beside the one that is given), answers.html (what is known of every given sentence) and the figures of the first,
the chosen and the given answers. The first is the likeliest one (temperature 0), so that what is gained by choosing and
correcting is not only what any user gains by not sampling; the others are drawn. Since the annotator that judges also
chose, a lexical control stands beside its rate: how much of an answer is copied from its reference.

A second run goes on where the first one stopped; replies are cached. A question that a request failed for is kept with
its `error`, and the next run does its chunk again; what was `refused` is not asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from annotators.base import engines_in
from annotators.evaluation.metrics import Statistic, paired_difference
from engines.types import EngineError, Sampling, check_asked
from fewl.expertise import reference_answers
from fewl.ranking import pick_answers
from fewl.score import check_options, score_records
from mitigate.inference.correct import best_of, correct, with_engine
from mitigate.io import Record, UsageError, counted, say, usage
from mitigate.models import EngineName, at_once, check_annotator, failures, open_annotator, open_engine
from mitigate.recipes import runner
from mitigate.recipes.config import Recipe
from mitigate.recipes.data import Scoring, as_row, check_files, check_question, read_good
from mitigate.recipes.folder import RunFolder
from mitigate.report.html import write_page, write_run_page
from mitigate.report.totals import Totals
from mitigate.rewards.config import Judging
from mitigate.rewards.inputs import copied

RESULTS = "results.jsonl"
CONTEXT = ("question", "reference", "language")
ASKED = ("id", "question", "reference", "prompt")  # what makes a question another one
STAGES = ("first", "chosen", "given")
HEADINGS = runner.HEADINGS[1:]
FROM_TEXT = """Answer the question from the text below, and say so where it does not tell.

Text:
{reference}

Question: {question}"""
Engines = Mapping[str, Any]  # each with its cache
Rows = Sequence[Record]
Texts = Sequence[Sequence[str]]  # the candidates of each row


class Options(Recipe, Judging):
    task: Literal["inference"]
    engine: EngineName = Field(description="KIND:MODEL[@BASE_URL] that answers")
    # Questions, JSON Lines: {"question", "reference", "prompt"?: chat, "id"?}. They need no reference where FEWL
    # selects, it is not in the prompt, and nothing is corrected.
    data: Path
    reference_in_prompt: bool = Field(default=True, description="show the model the reference with the question")
    answers: int = Field(default=4, ge=1, description="for each question: the likeliest, and others that are drawn")
    temperature: float = Field(default=0.8, gt=0, le=2, description="of the answers after the first")
    answer_tokens: int = Field(default=512, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**31)
    select: Literal["annotator", "fewl", "none"] = Field(default="annotator", description="none: the first answer")
    reference_llms: dict[str, EngineName] = Field(default={}, description="for select: fewl: name → engine of each")
    scoring: Scoring = Scoring()
    correct: bool = True
    regenerate: EngineName | None = Field(default=None, description="engine that writes flagged sentences anew")
    delete: bool = Field(default=False, description="take out sentences that stay hallucinated")
    abstain_above: float | None = Field(default=None, ge=0, lt=1)
    chunk: int = Field(default=32, ge=1, description="questions at once; with FEWL, neighbours are found among these")


def check(options: Options) -> None:
    check_files(options.data)
    check_annotator(options.annotator, "annotator")
    if (options.select == "fewl") != bool(options.reference_llms):
        raise UsageError("reference_llms: expected the engines of reference LLMs with select: fewl, and only then")
    if not options.correct and (options.regenerate or options.delete or options.abstain_above is not None):
        raise UsageError("regenerate, delete and abstain_above: for correct: true only")
    mends = options.regenerate or options.delete or options.abstain_above is not None or engines_in(options.annotator)
    if options.correct and not mends:
        raise UsageError(
            f"correct: {options.annotator} gives no corrections, so nothing would change; expected regenerate, delete "
            "or abstain_above beside it, or correct: false"
        )
    if options.select == "fewl":
        if set(options.reference_llms.values()) == {options.engine}:
            raise UsageError(
                f"reference_llms: expected another engine than {options.engine}, which answers: it is no reference for "
                "its own answers, so nothing could be chosen"
            )
        if options.scoring.expertise == "similarity":
            raise UsageError("scoring.expertise: nothing makes IW/CO pairs here; expected uniform or discovered")
        with usage("scoring: "):
            check_options([], options.scoring.options(), list(options.reference_llms))
    options.check_calibration()


def run(options: Options, folder: RunFolder) -> int:
    needs = options.select == "annotator" or options.reference_in_prompt or options.correct
    check_line = partial(check_question, needed=True, reference=needs)
    rows, bad = read_good(options.data, check_line, folder, '{"question", "reference"}' if needs else '{"question"}')
    results = _written(options, folder, rows)
    annotator = open_annotator(options.annotator, options.operating)
    scoring = options.scoring.load([row["question"] for row in rows]) if options.select == "fewl" else None
    with ExitStack() as stack:
        names = {options.engine, options.regenerate, *options.reference_llms.values()} - {None}
        engines = {
            name: stack.enter_context(closing(open_engine(name, "engine", folder / "replies.sqlite")))
            for name in sorted(map(str, names))
        }
        for start in range(0, len(rows), options.chunk):
            part = rows[start : start + options.chunk]
            there = results[start : start + len(part)]
            if len(there) == len(part) and not any(result.get("error") for result in there):
                continue
            results[start : start + len(part)] = _chunk(options, engines, part, annotator, scoring)
            if there:
                folder.write_rows(RESULTS, results)
            else:
                folder.append(RESULTS, results[start:])
            print(f"{len(results)} of {len(rows)} questions", flush=True)
    figures = {**_figures(results), "judge": _judged_by(options)}
    answered = [row for row in results if row["answer"]]
    write_page(folder / "answers.html", lambda: answered, Totals.of(answered), full_output=RESULTS)
    write_run_page(
        folder / "report.html", about=[options.about, f"Answers by {options.engine}, judged by {annotator.name}"],
        comparison=[figures[STAGES[0]], figures[STAGES[-1]]],
        head=HEADINGS, rows=_table(figures), note=_note(figures), metrics=(), samples=_pairs(results), pairs=len(rows),
    )  # fmt: skip
    _tell(figures, folder)
    if figures["failed"]:
        why = [row["error"] for row in results if row.get("error")][-1]
        raise EngineError(f"{figures['failed']} of {len(rows)} questions have a request without a reply ({why})")
    if figures["unanswered"] == len(rows):
        (folder / RESULTS).unlink()  # all are asked again
        why = next((f", the first: refused: {row['refused']}" for row in results if row["refused"]), "")
        raise EngineError(f"none of {counted(len(rows), 'question')} has an answer{why}")
    folder.finish(figures)
    return 3 if bad else 0


def _written(options: Options, folder: RunFolder, rows: Rows) -> list[Record]:
    """The results of an earlier start, the last chunk perhaps in part, cut off while it was written."""
    written = folder.rows(RESULTS)
    for i, found in enumerate(written):
        if i >= len(rows) or any((found.get(k) or "") != (rows[i].get(k) or "") for k in ASKED):
            raise UsageError(
                f"cannot go on in {folder.path}: row {i + 1} of {RESULTS} is not of question {i + 1} of "
                f"{options.data}, which has changed; choose another folder with --output"
            )
    return written


def _chunk(options: Options, engines: Engines, rows: Rows, annotator: Any, scoring: Any) -> list[Record]:
    """One result per question, with `answer` null where there is none and `error` where a request failed.

    What is asked for a whole chunk (reference answers, whose neighbours are found among its questions, and sentences
    written anew) concerns all of its questions.
    """
    template = FROM_TEXT if options.reference_in_prompt else "{question}"
    chats, engine = [as_row(row, template, None)["prompt"] for row in rows], engines[options.engine]
    asked = [engine.chat(chats, Sampling(options.answer_tokens))]
    if (drawn := options.answers - 1) > 0:
        sampling = Sampling(options.answer_tokens, options.temperature, n=drawn, seed=options.seed)
        asked.append(engine.chat(chats, sampling))
    for results_Q in asked:
        check_asked(results_Q)
    of_question = list(zip(*asked, strict=True))
    candidates = [[t.strip() for one in found for t in one.texts if t.strip()] for found in of_question]
    errors, refusals = (
        [next((one.error for one in found if one.error and one.refused == refused), None) for found in of_question]
        for refused in (False, True)
    )
    for one in engines.values():
        one.errors.clear()
    results = _finish(options, engines, rows, candidates, annotator, scoring)
    for result, found in zip(results, of_question, strict=True):
        if not any(text.strip() for text in found[0].texts):  # a drawn answer is no likeliest one
            result["stages"]["first"] = {"answer": "", "sentences": []}
    failed = failures(engines.values(), refused=False)
    if failed is None and (told := failures(engines.values())):
        say(f"refused, and not asked again: {told}")
    shared = failed and f"a request of its chunk failed ({failed})"
    return [
        {**result, "error": error or shared, "refused": refusal}
        for result, error, refusal in zip(results, errors, refusals, strict=True)
    ]


def _finish(
    options: Options, engines: Engines, rows: Rows, candidates: Texts, annotator: Any, scoring: Any
) -> list[Record]:  # fmt: skip
    contexts = [{"reference": "", **{k: row[k] for k in CONTEXT if row.get(k) is not None}} for row in rows]
    asked = [{**context, "answer": text} for context, texts in zip(contexts, candidates, strict=True) for text in texts]
    judged = iter(annotator.annotate_batch(asked))
    annotations = [[next(judged) for _ in texts] for texts in candidates]
    picked: list[int | None] = [None] * len(rows)
    if options.select == "fewl":
        picked = _by_fewl(options, engines, rows, candidates, scoring)
    elif options.select == "annotator":
        picked = [best_of(a) for a in annotations]
    # Where nothing tells the answers apart, the first is taken.
    places = [p if p is not None or not a else 0 for p, a in zip(picked, annotations, strict=True)]
    chosen = {i: annotations[i][p] for i, p in enumerate(places) if p is not None}
    given = {i: annotation.to_dict() for i, annotation in chosen.items()}
    if options.correct:
        corrected = correct(
            [annotation.record for annotation in chosen.values()], annotator,
            regenerate=with_engine(engines[options.regenerate]) if options.regenerate else None,
            delete=options.delete, abstain_above=options.abstain_above,
        )  # fmt: skip
        given = {i: one.to_dict() for i, one in zip(chosen, corrected, strict=True)}
    rates = ("hallucination_rate", "coverage", "operating_point")
    nothing: Record = {"answer": None, "sentences": [], "annotator": {}, **dict.fromkeys(rates)}
    results = []
    for i, row in enumerate(rows):
        stages = {}
        for stage, found in (("first", annotations[i][:1]), ("chosen", [chosen[i]] if i in chosen else [])):
            judged_one = found[0].to_dict() if found else nothing
            stages[stage] = {key: judged_one[key] for key in ("answer", "sentences")}
        made = {"candidates": list(candidates[i]), "index": places[i], "stages": stages}
        results.append({**row, **given.get(i, nothing), **made})
    return results


def _by_fewl(options: Options, engines: Engines, rows: Rows, candidates: Texts, scoring: Any) -> list[int | None]:
    """The best-scored candidate of each question, None where none has a score."""
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
    _, encode, similarity = scoring
    how: Any = {"similarity": similarity, "encode": encode, "options": options.scoring.options()}
    scored, _ = score_records(list(records.values()), **how)
    best = {q: row["index"] for q, row in zip(records, pick_answers(scored), strict=True)}
    return [best.get(q) for q in range(len(rows))]


def _stage(row: Record, stage: str) -> Record:
    """The answer of a question and its judged sentences at one of STAGES."""
    return row if stage == "given" else {**row, **row["stages"][stage]}


def _figures(results: Rows) -> dict[str, Any]:
    """The runner's figures of each stage, and how the given answers differ from the first ones.

    An abstention counts as no answer. Differences are bootstrapped over questions.
    """
    out: dict[str, Any] = {
        "questions": len(results),
        "unanswered": sum(row["answer"] is None and not row.get("error") for row in results),
        "abstained": sum(row.get("action") == "abstained" for row in results),
        "failed": sum(row.get("error") is not None for row in results),
    }
    statistics: dict[str, dict[str, Statistic]] = {}
    for stage in STAGES:
        rows, counts_Q4 = [], np.zeros((len(results), 4))  # hallucinated, factual; how much is copied, of 0 or 1
        for q, row in enumerate(results):
            one = _stage(row, stage)
            if one["answer"] and not (stage == "given" and row.get("action") == "abstained"):
                rows.append(one)
                own, share = Totals.of([one]), copied(one)
                counts_Q4[q] = own.hallucinated, own.factual, share or 0, share is not None
        h_Q, f_Q, copied_Q, known_Q = counts_Q4.T
        statistics[stage] = {"rate": _ratio(h_Q, f_Q), "copied": _ratio(copied_Q, known_Q)}
        out[stage] = {"set": "asked", "when": stage, **runner.figures(rows)}
    groups = list(range(len(results)))
    out["difference"] = {
        name: paired_difference(statistic, statistics["first"][name], groups)
        for name, statistic in statistics["given"].items()
    }
    return out


def _ratio(above: np.ndarray, below: np.ndarray) -> Statistic:
    """Σ w·above / Σ w·below as a function of the weights w of questions; None without anything below."""
    return lambda weights: float(weights @ above / (weights @ below)) if weights @ below > 0 else None


def _table(figures: Mapping[str, Any]) -> list[list[str]]:
    return [runner.cells(figures[stage])[1:] for stage in STAGES]


def _judged_by(options: Options) -> str:
    also = [what for what, done in (("chose", options.select == "annotator"), ("corrected", options.correct)) if done]
    told = f"The annotator that judged also {' and '.join(also)}." if also else ""
    return " ".join(filter(None, ("FEWL chose." if options.select == "fewl" else "", told)))


def _note(figures: Mapping[str, Any]) -> str:
    """What the figures mean, and how the given answers differ from the first ones."""
    said = []
    for name, what in (
        ("rate", "hallucinated of factual sentences"),
        ("copied", "copied from the document (no annotator is asked)"),
    ):
        one = figures["difference"][name]
        if one["low"] is not None:
            low, high = 100 * one["low"], 100 * one["high"]
            said.append(f"{what} {100 * one['difference']:+.0f} points [{low:+.0f}, {high:+.0f}]")
    change = f" Given against first: {'; '.join(said)}; 95 % bootstrap over questions." if said else ""
    return (
        f"Questions: {figures['questions']}, without an answer: {figures['unanswered']}, abstentions (they count as no "
        f"answer): {figures['abstained']}, failed: {figures['failed']}. {figures.get('judge', '')}{change}"
    )


def _pairs(results: Rows) -> list[Record]:
    """The first and the given answer of each question, as the page of a run takes them."""
    rows = []
    for row in results:
        for when, stage in (("before", "first"), ("after", "given")):
            how = {"corrected": ", corrected", "abstained": ", withheld"}.get(row.get("action", ""), "")
            if row["index"] is not None:
                done = f"answer {row['index'] + 1} of {len(row['candidates'])}{how}"
                rows.append({**_stage(row, stage), "when": when, "set": "asked", "done": done})
    return rows


def _tell(figures: Mapping[str, Any], folder: RunFolder) -> None:
    runner.print_rows("Answers", HEADINGS, _table(figures))
    print(f"{_note(figures)}\nresults: {folder / RESULTS}\npage: {folder / 'report.html'}")


def show(folder: RunFolder) -> None:
    if "difference" not in (folder.done or {}):
        raise UsageError(f"{folder.path}: expected the figures of this version, got others; give --overwrite")
    _tell(folder.done or {}, folder)
