"""Task `fewl`: tables of the FEWL paper on the user's files, each figure beside its controls and the paper's.

Data are CHALE, TruthfulQA (generation), HaluEval (QA), or FEWL records whose answers have a ``kind``, as `mitigate fewl
build-benchmark` writes them. A figure is a mean over seeds, which choose the questions and the random neighbours. Its
control is the same method with the reference answers of other questions; what that reaches, the references did not
bring. LLMs can be compared pair by pair: an answer is as true as it is nearer to the true answers of the data than to
the false ones. Writes records.jsonl, table.json and, with a ``judge``, figure2.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from engines.types import Engine, EngineError, Sampling
from fewl.core import Aggregation, nan_mean
from fewl.expertise import PAIRS, TOKENS, yes_or_no
from fewl.neighbours import nearest
from fewl.records import read_record
from fewl.score import FewlOptions, check_options, score_records
from fewl.similarity import Encode
from mitigate import models
from mitigate.io import Record, UsageError, check_record, usage
from mitigate.recipes.config import Recipe, Section
from mitigate.recipes.data import check_files, read_good
from mitigate.recipes.folder import RunFolder

LAYOUTS: tuple[dict[str, bool | None], ...] = (
    {"non_hallu": True, "half_hallu": None, "hallu": False},  # CHALE
    {"best_answer": True, "correct_answers": True, "incorrect_answers": False},  # TruthfulQA
    {"right_answer": True, "hallucinated_answer": False},  # HaluEval
)
"""The keys of a data set's answers, which become their kinds, and whether these are true."""
NEIGHBOURS = 10  # of Figure 2


class Method(Section):
    """A row of a table: how FEWL scores, and the paper's figures in the order of those here."""

    aggregation: Aggregation = "paper"
    expertise: Literal["similarity", "discovered", "uniform", "ideal"] = "uniform"
    references: str = Field(default="all", description="all, or single:NAME")
    samples: int | None = Field(default=None, ge=1, description="the first so many answers of each LLM; null: all")
    penalty: bool = True
    neighbour_choice: Literal["nearest", "random"] = "nearest"
    paper: tuple[float, ...] = ()

    def options(self, seed: int) -> FewlOptions:
        return FewlOptions(**self.model_dump(exclude={"samples", "paper"}), seed=seed)


class Options(Recipe):
    task: Literal["fewl"]
    data: Path = Field(description="CHALE, TruthfulQA, HaluEval or FEWL records, JSON Lines")
    reference_llms: dict[str, models.EngineName] = Field(default={}, description="asked for what records lack, by name")
    samples: int = Field(default=1, ge=1, description="answers that each of them gives")
    pairs: int = Field(default=PAIRS, ge=1, description="IW/CO pairs of a question, where a method needs them")
    similarity: models.SimilarityName = Field(default="cosine", description="as in `mitigate fewl score`")
    embedding: models.ModelName = "auto"
    above: tuple[tuple[str, str], ...] = Field(default=(), description="% of questions with kind A above kind B")
    highest: str | None = Field(default=None, description="the number of questions where this kind scores highest")
    answer_llms: dict[str, models.EngineName] = Field(default={}, description="asked for answers to compare, by name")
    # % of questions where the truer of the answers of LLM A and LLM B scores higher
    compared: tuple[tuple[str, str], ...] = ()
    methods: dict[str, Method] = Field(min_length=1)
    questions: int | None = Field(default=None, ge=2, description="drawn by each seed; null: all")
    seeds: int = Field(default=3, ge=1)
    judge: models.EngineName | None = Field(default=None, description="says which neighbours' answers fit (Figure 2)")


def check(options: Options) -> None:
    check_files(options.data)
    if not options.above and not options.compared and options.highest is None:
        raise UsageError("above, highest, compared: expected at least one of them, got none")


def run(options: Options, folder: RunFolder) -> int:
    found, bad = read_good(options.data, lambda row: check_record(as_record(row)), folder, "questions with answers")
    records = [as_record(row) for row in found]
    for name, method in options.methods.items():
        with usage(f"methods.{name}: "):
            check_options([read_record(r) for r in records], method.options(0), list(options.reference_llms))
    kinds = {answer.get("kind") for record in records for answer in record["answers"]}
    if missing := sorted({*sum(options.above, ()), options.highest} - kinds - {None}):
        raise UsageError(
            f"above, highest: no answer has the kind {missing[0]!r}; {options.data} has {sorted(kinds - {None})}"
        )
    llms = {answer.get("model") for record in records for answer in record["answers"]} | {*options.answer_llms}
    if unknown := sorted({*sum(options.compared, ())} - llms):
        raise UsageError(
            f"compared: no answer is of the model {unknown[0]!r}, and answer_llms has no such name; expected one of "
            f"{sorted(llms - {None})}"
        )
    wanted = [m.expertise for m in options.methods.values() if models.wants_pairs(m.expertise)]
    with ExitStack() as stack:
        opened: dict[str, Engine] = {}
        where: Any = (stack, opened, folder / "replies.sqlite", 16)
        references, answers = (
            models.open_named([f"{name}={engine}" for name, engine in named.items()], option, *where)
            for option, named in (("reference_llms", options.reference_llms), ("answer_llms", options.answer_llms))
        )
        how: Any = {"samples": options.samples, "pairs": options.pairs, "expertise": (*wanted, "uniform")[0]}
        encoder, encode = models.load_encoder(options.embedding, [record["question"] for record in records])
        called, similarity = models.load_similarity(options.similarity, encode)
        models.fill(records, references, answers=answers, **how, tell=partial(print, flush=True))
        if options.compared:
            add_truths(records, encode)
        folder.write_rows("records.jsonl", records)
        print(f"# {len(records)} questions, similarity {called}, embedding {encoder}", flush=True)
        rows = table(records, options, {"similarity": similarity, "encode": encode})
        folder.write("table.json", json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
        print(" | ".join(rows[0]))
        for row in rows:
            print(" | ".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
        if options.judge is not None:
            judge = models.open_named([options.judge], "judge", *where)[options.judge]
            rates = neighbours_fit(judge, records, encode)
            folder.write("figure2.json", json.dumps(rates) + "\n")
            print(f"Figure 2: {rates} of the answers to the 1st to {NEIGHBOURS}th neighbour fit the question")
        if failed := models.failures(opened.values()):
            raise EngineError(f"{failed}; the same command asks only these again")
    folder.finish({"table": rows, "rejected_lines": bad})
    return 3 if bad else 0


def as_record(row: Record) -> Record:
    """A line of one of the data sets of LAYOUTS as a FEWL record; any other line as it is."""
    labels = next((labels for labels in LAYOUTS if labels.keys() <= row.keys()), None)
    if labels is None:
        return row
    texts = {kind: row[kind] if isinstance(row[kind], list) else [row[kind]] for kind in labels}
    answers = [{"text": text, "kind": kind, "label": labels[kind]} for kind in labels for text in texts[kind]]
    return {**{key: value for key, value in row.items() if key not in labels}, "answers": answers}


def table(records: Sequence[Record], options: Options, how: Mapping[str, Any]) -> list[Record]:
    """A row for each method and figure: mean and standard deviation over seeds, the controls, the paper's figure."""
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for seed in range(options.seeds):
        order = np.random.default_rng(seed).permutation(len(records))[: options.questions]
        some = [records[place] for place in order]
        longest = [{**r, "answers": [{**a, "score": len(a["text"])} for a in r["answers"]]} for r in some]
        for name, method in options.methods.items():
            said = [
                {llm: list(texts[: method.samples]) for llm, texts in read_record(record).references.items()}
                for record in some
            ]
            scored = [
                score_records(
                    [{**r, "reference_answers": s} for r, s in zip(some, texts, strict=True)],
                    options=method.options(seed), **how,
                )[0]
                for texts in (said, said[1:] + said[:1])
            ]  # fmt: skip
            values = [figures(rows, options) for rows in (*scored, longest)]
            for figure in values[0]:
                found.setdefault((name, figure), []).append(tuple(v[figure] for v in values))
    rows = []
    for place, ((name, figure), values_S3) in enumerate(found.items()):
        paper = options.methods[name].paper[place % (len(found) // len(options.methods)) :][:1]
        mean, others, length = np.mean(values_S3, axis=0).tolist()
        row = {"method": name, "figure": figure, "mean": mean, "sd": float(np.std(values_S3, axis=0)[0])}
        row |= {"other question's references": others, "longest answer": length, "paper": paper[0] if paper else None}
        rows.append(row)
    return rows


def add_truths(records: Sequence[Record], encode: Encode) -> None:
    """Put into each LLM's answer its "truth": the cosine with the nearest true answer of the data less that with the
    nearest false one, in [−2, 2] (the paper's TQA-Metric); nothing where the data lack one of both.
    """
    vectors = iter(encode([answer["text"] for record in records for answer in record["answers"]]))
    for record in records:
        both = [(answer, next(vectors)) for answer in record["answers"]]
        true, false = ([v for a, v in both if "kind" in a and a.get("label") is label] for label in (True, False))
        for answer, vector in both:
            if true and false and answer.get("model"):
                answer["truth"] = float(max(v @ vector for v in true) - max(v @ vector for v in false))


def figures(scored: Sequence[Record], options: Options) -> dict[str, float]:
    """The figures of scored records: the means of :func:`wins` in %, and the number of questions where no answer is
    above the first of a kind.

    Raises UsageError: no question has a scored answer of both kinds, or LLMs.
    """
    won, top = wins(scored, options), 0
    for record in scored:
        known = [answer for answer in record["answers"] if answer["score"] is not None]
        first = next((answer["score"] for answer in known if answer.get("kind") == options.highest), None)
        top += first is not None and first >= max(answer["score"] for answer in known)
    for name, values in won.items():
        if not values:
            raise UsageError(f"no question has two answers with a score for {name!r}; are there references?")
    shares = {f"{name}, %": 100 * float(np.mean(values)) for name, values in won.items()}
    return shares | ({f"{options.highest} highest, number": float(top)} if options.highest else {})


def wins(scored: Sequence[Record], options: Options) -> dict[str, list[float]]:
    """For each pair of kinds, of the questions with both: 1 where the first answer of the one is above the first of the
    other, 0 where it is below, ½ where they are equal. For each pair of LLMs the same of the truer answer and the other
    one, equally true ones left out.
    """
    won: dict[str, list[float]] = {f"{a} above {b}": [] for a, b in options.above}
    won |= {f"{a} or {b}, the truer above": [] for a, b in options.compared}
    for record in scored:
        known = [answer for answer in record["answers"] if answer["score"] is not None]
        first = {answer.get("kind"): answer["score"] for answer in reversed(known)}
        of = {answer.get("model"): answer for answer in known if "truth" in answer}
        pairs = [(first.get(a), first.get(b)) for a, b in options.above]
        for a, b in options.compared:
            truer = sorted((of[llm] for llm in (a, b) if llm in of), key=lambda answer: -answer["truth"])
            equal = len(truer) < 2 or truer[0]["truth"] == truer[1]["truth"]
            pairs.append((None, None) if equal else (truer[0]["score"], truer[1]["score"]))
        for (better, worse), values in zip(pairs, won.values(), strict=True):
            if better is not None and worse is not None:
                values.append((better > worse) + 0.5 * (better == worse))
    return won


def neighbours_fit(judge: Engine, records: Sequence[Record], encode: Encode) -> list[float | None]:
    """Share of true answers to a question's 1st, 2nd, … neighbour that a judge calls correct for it (Figure 2)."""
    true = [next((a["text"] for a in record["answers"] if a.get("label")), None) for record in records]
    questions = [record["question"].strip() for record in records]
    near_QK = nearest(encode(questions), NEIGHBOURS, texts=questions)
    places = [(q, k, true[n]) for (q, k), n in np.ndenumerate(near_QK) if n >= 0 and true[n]]
    ask = "Question: {}\nAnswer: {}\n\nIs this a correct answer to the question? Reply with Yes or No only."
    chats = [[{"role": "user", "content": ask.format(records[q]["question"], text)}] for q, _, text in places]
    fits_KQ = np.full(near_QK.T.shape, np.nan)
    for (q, k, _), result in zip(places, judge.chat(chats, Sampling(max_tokens=TOKENS)), strict=True):
        verdict = yes_or_no(result.text or "")
        fits_KQ[k, q] = np.nan if verdict is None else verdict
    return [None if np.isnan(rate) else round(rate, 4) for rate in nan_mean(fits_KQ).tolist()]
