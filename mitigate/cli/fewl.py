"""`mitigate fewl`: score answers, rank models and pick answers without gold labels; build a benchmark.

    mitigate fewl score --input questions.jsonl --output scored.jsonl
    mitigate fewl rank --input scored.jsonl --png ranking.png
    mitigate fewl pick --input scored.jsonl --output picked.jsonl
    mitigate fewl build-benchmark --input short-and-long-answers.jsonl --output benchmark.jsonl

FEWL needs all questions at once, so an output is written whole at the end; replies of language models are kept in a
cache, so that the same command asks nothing twice after it was killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from annotators.base import engines_in
from engines.types import Engine
from fewl.chale import build_benchmark
from fewl.expertise import PAIRS, TOKENS, agreement_counts
from fewl.expertise import report as pairs_report
from fewl.ranking import Ranking, pick_answers, plot_agreement, plot_ranking, rank_models
from fewl.records import read_record
from fewl.score import CHOICES, FewlOptions, check_options, score_records
from mitigate import models, scale
from mitigate.cli.options import ENGINE, Args, Parser, Subparsers, add_command, print_json
from mitigate.io import (
    FAILED,
    REJECTED,
    Problem,
    Record,
    UsageError,
    check_record,
    check_texts,
    counted,
    files,
    make_parent,
    parse_line,
    read_whole,
    say,
    shown,
    usage,
    whole_file,
    write_json,
    write_lines,
)
from mitigate.report.terminal import console, figure, plain, table

WIN_COLUMNS = 8  # models in the table of wins
PLOTS = (".png", ".svg", ".pdf")
CONCURRENCY = 16


def add_parser(subparsers: Subparsers) -> None:
    """Add `fewl` with its four sub-commands."""
    fewl = add_command(subparsers, "fewl", "Score answers and rank models without gold labels.", exit_codes="")
    kinds = fewl.add_subparsers(dest="kind", required=True, metavar="WHAT")

    def add(name: str, text: str, more: str, rows: str, run: Callable[[Args], int]) -> Parser:
        parser = add_command(kinds, name, text, more)
        parser.input(f"This JSON Lines file holds {rows}.")
        parser.output(required=name != "rank")
        parser.set_defaults(run=run)
        return parser

    text = "Score every answer by reference answers of language models."
    more = (
        'Records are {"id", "question", "answers": [{"text", "model"?, "label"?}], "reference_answers": {"llm": text '
        'or [text, …]}, "iw"?: […], "co"?: […]}, one JSON object a line. What is missing is asked from '
        "--reference-llm and --answer-llm; every reply is kept in OUTPUT.cache.sqlite, so that the same command goes "
        "on after it was killed. The neighbours of a question are the other questions of the input."
    )
    _score_options(add("score", text, more, "questions with answers", run_score))
    text = "Rank the models of scored records by mean score, with 95 % bootstrap intervals over questions."
    rank = add("rank", text, "", "what `mitigate fewl score` wrote", run_rank)
    rank.file("--png", "A plot shows the ranking with its intervals.")
    text = (
        'Kendall\'s τ compares the ranking with this JSON object {"model": number, higher is better}, or, for the word '
        "labels, with the share of true labels."
    )
    rank.option("--truth", text, "FILE")
    rank.seed("Bootstrap samples")
    pick = add("pick", "Write the best-scored answer of each record.", "", "what `mitigate fewl score` wrote", run_pick)
    text = "Records whose entropy exceeds H (0: the LLMs mean the same) get no answer."
    pick.number("--abstain-above", text, "0 or more", lambda h: h >= 0, "H")
    text = "Make CHALE-style answers with controlled hallucinations."
    more = (
        'Sources are {"question", "short_answer", "long_answer"}, one JSON object a line. The result is records for '
        "`mitigate fewl score`, which still need reference answers."
    )
    build = add("build-benchmark", text, more, "questions with a short and a long answer", run_build)
    build.count("--answers", "Each question gets N answers of each kind (%(default)s).", 3)
    text = "Sentence embeddings come from NAME, as in `mitigate fewl score` (%(default)s)."
    build.option("--embedding", text, "NAME", default="auto")
    build.seed("All choices")


# --- score --------------------------------------------------------------------------------------------------------


def _score_options(parser: Parser) -> None:
    with parser.group("how to score"):
        text = "The penalty is weighted as in Eq. 4 of the paper, or by λ as in its Eq. 6 (%(default)s)."
        parser.option("--aggregation", text, choices=CHOICES["aggregation"], default=FewlOptions.aggregation)
        text = "This f-divergence is used (%(default)s, total variation)."
        parser.option("--divergence", text, choices=CHOICES["divergence"], default=FewlOptions.divergence)
        text = (
            "The weights λ come from the similarity to IW/CO answers (the default where the input has them or an LLM "
            "can make them), from asking the LLMs about these, from the LLMs' agreement with each other (discovered), "
            "from nowhere (uniform, the default otherwise), or from labelled answers (ideal)."
        )
        parser.option("--expertise", text, choices=CHOICES["expertise"])
        text = "Expertise is measured per question, or as the mean over all (%(default)s)."
        parser.option("--expertise-scope", text, choices=("question", "dataset"), default="question")
        text = (
            "Answers are compared by cosine, rouge-l, new-words (the share of the words which an answer adds to the "
            "question that stand in the reference answer), annotator:NAME (the probability that the reference answer "
            "supports the answer; NAME as for `mitigate annotate --annotator`) or entailment:NAME (the mean of that "
            "and of the other way round) (%(default)s)."
        )
        parser.option("--similarity", text, "NAME", default="cosine")
        parser.calibration("The annotator of --similarity")
        text = (
            "Sentence embeddings come from auto (the packaged model; tfidf for Chinese questions and their "
            "answers, which it cannot read), tfidf (characters), or a folder or hub id (%(default)s)."
        )
        parser.option("--embedding", text, "NAME", default="auto")
        parser.count("--neighbours", "A question has K neighbours (10; 25 when random).", metavar="K")
        text = "Neighbours are the nearest questions, or random ones with a similarity of at most 0.8 (%(default)s)."
        parser.option("--neighbour-choice", text, choices=("nearest", "random"), default="nearest")
        text = "The laziness penalty counts or not (on with --aggregation paper or where neighbours are asked for)."
        parser.option("--penalty", text, choices=("on", "off"))
        text = "Reference answers of all LLMs count, or single:NAME takes those of one (%(default)s)."
        parser.option("--references", text, "WHICH", default="all")
        text = (
            "LLMs whose reference answers are at least so similar, both ways, mean the same, and each record gets the "
            "entropy of what they mean (for `fewl pick --abstain-above`; an extension)."
        )
        parser.share("--same-from", text)
        parser.seed("Random neighbours and sampled answers")
    with parser.group("what the input lacks"):
        text = (
            "This LLM answers the questions that lack a reference answer of that name (the engine's string, if none is "
            "given), and the first one makes missing IW/CO pairs. Answers whose model has that name are not compared "
            "with it. KIND is transformers, vllm or openai; servers are asked side by side."
        )
        parser.repeated("--reference-llm", text, f"[NAME=]{ENGINE}")
        text = "This LLM answers the questions that lack an answer of that model, to be scored and ranked."
        parser.repeated("--answer-llm", text, f"[NAME=]{ENGINE}")
        parser.count("--reference-samples", "Each LLM gives N answers (1, greedy; more are sampled).", 1)
        text = "An answer has at most N tokens (%(default)s); what is cut off ends with its last whole sentence."
        parser.count("--max-tokens", text, TOKENS)
        parser.count("--pairs", "N IW/CO pairs are made for each question (%(default)s).", PAIRS)
        parser.count("--concurrency", "So many requests to each server are in flight (%(default)s).", CONCURRENCY)
        text = "Replies of language models are kept in this file (OUTPUT.cache.sqlite); if it is named, embeddings too."
        parser.file("--cache", text)
        parser.file("--agreement-png", "A plot shows with how many IW and CO answers each LLM agrees.")
    parser.cost()
    parser.pool("the reference LLMs")


def run_score(args: Args) -> int:
    calibration = _check_score(args)
    pool = scale.pool_of(args)
    llms = {"references": args.reference_llm, "answers": args.answer_llm}
    if pool is not None and not any(llms.values()):
        say("--distributed: there is no --reference-llm to ask, and one process computes the scores: this one does")
        pool = None
    how = {"samples": args.reference_samples, "tokens": args.max_tokens, "pairs": args.pairs}
    how |= {"seed": args.seed, "expertise": args.expertise}
    records, rejected = read_whole(args.input, check_record, args.output, "FEWL records")
    options = _options(args, records)  # all that can be wrong is found before anything is asked
    questions = [record["question"] for record in records]
    embedding, encode = models.load_encoder(args.embedding, questions, args.cache and args.cache_file())
    called, similarity = models.load_similarity(args.similarity, encode, calibration)
    with ExitStack() as stack:
        opened: dict[str, Engine] = {}
        refused = None
        if pool is not None:
            # The machines of a cluster cannot share an SQLite file, unless one is named that they can.
            cache = None if args.cache is None and pool.address is not None else args.cache_file()
            work = (cache, args.concurrency, pool, args.overwrite)
            records, asked, refused = scale.fill(args.input, args.output, llms, how, *work)
        else:
            where = (stack, opened, args.cache_file(), args.concurrency)
            references = models.open_named(args.reference_llm, "--reference-llm", *where)
            answers = models.open_named(args.answer_llm, "--answer-llm", *where)
            asked = models.fill(records, references, answers=answers, **how, tell=say)
        has_pairs = any(record.get("iw") and record.get("co") for record in records)
        if options.expertise == "similarity" and not has_pairs and args.expertise is None:
            say("no reply held an IW/CO pair that can be read: the reference LLMs weigh the same")
            options = replace(options, expertise="uniform")
        prompted = [one.prompted for one in asked] if options.expertise == "prompted" else None
        with usage():
            scored, report = score_records(
                records, similarity=similarity, encode=encode, options=options, prompted=prompted
            )
        write_lines(args.output, scored)
        summary: dict[str, Any] = {"similarity": called, "embedding": embedding, "fewl_options": asdict(options)}
        summary |= {"report": asdict(report), "pairs": None}
        if made := [one.pairs for one in asked if one.pairs is not None]:
            summary["pairs"] = pairs_report(made, args.pairs)
        if has_pairs:
            counts = agreement_counts(records, similarity)
            means = {name: np.mean(rows, axis=0).tolist() for name, rows in counts.items()}
            summary["agreement"] = {name: {"wrong": w, "corrected": c} for name, (w, c) in means.items()}
            if args.agreement_png is not None:
                _plot(plot_agreement, counts, args.agreement_png)
        elif args.agreement_png is not None:
            say("--agreement-png: no record has iw and co, so there is nothing to plot")
        summary["rejected_lines"] = rejected
        write_json(Path(f"{args.output}.run.json"), {**args.provenance(), **summary})
        if args.json:
            print_json({**summary, "output": str(args.output)})
        else:
            _print_scores(args.output, summary)
        if failed := models.failures(opened.values()) or refused:
            say(
                f"error: {failed}, and the scores lack what they would have brought: the same command with "
                "--overwrite asks only these again"
            )
            return FAILED
    if report.answers and not report.scored:
        say(f"error: none of {counted(report.answers, 'answer')} has a score: each lacks text or a reference answer")
        return FAILED
    return REJECTED if rejected else 0


def _check_score(args: Args) -> dict[str, Any]:
    """Refuse wrong options, and those without effect; the options of the annotator that compares answers."""
    annotator = models.check_similarity(args.similarity)
    if args.expertise == "prompted" and not args.reference_llm:
        raise UsageError("--expertise prompted asks the reference LLMs: give each as --reference-llm")
    references = models.check_named(args.reference_llm, "--reference-llm")
    llms = [*references.values(), *models.check_named(args.answer_llm, "--answer-llm").values()]
    servers = [engine for engine in llms if engine.startswith("openai:")]
    makes_pairs = references and models.wants_pairs(args.expertise)
    for option, given, used, what in (
        ("reference-samples", args.reference_samples > 1, references, "--reference-llm; the input's are all used"),
        ("pairs", args.pairs != PAIRS, makes_pairs, "--reference-llm, and with expertise similarity or prompted"),
        ("max-tokens", args.max_tokens != TOKENS, llms, "--reference-llm or --answer-llm"),
        ("concurrency", args.concurrency != CONCURRENCY, servers, "a server as --reference-llm or --answer-llm"),
    ):
        if given and not used:
            raise UsageError(f"--{option}: only with {what}")
    args.check_costs([*llms, *engines_in(annotator or "")])
    calibration = args.calibration_options(annotator)
    args.check_files()
    _check_plot(args.agreement_png, "--agreement-png")
    return ({"cache": args.cache_file()} if engines_in(annotator or "") else {}) | calibration


def _check_plot(path: Path | None, option: str) -> None:
    """Refuse a file that no plot can be written to."""
    if path is not None:
        if path.suffix.lower() not in PLOTS:
            raise UsageError(f"{option}: expected a file name that ends in {', '.join(PLOTS)}; got {path}")
        make_parent(path)


def _plot(plot: Callable[[Any, Path, str], None], shown: Any, path: Path) -> None:
    with whole_file(path) as part:
        plot(shown, part, path.suffix[1:].lower())


def _options(args: Args, records: Sequence[Record]) -> FewlOptions:
    """How these records are to be scored, checked against them."""
    read = [read_record(record) for record in records]
    if not args.reference_llm and not any(record.references for record in read):
        raise UsageError(f"{args.input}: no record has reference_answers; add some, or give --reference-llm")
    has_pairs = any(record.iw and record.co for record in read)
    given = {field.name: getattr(args, field.name) for field in fields(FewlOptions) if hasattr(args, field.name)}
    given["expertise"] = args.expertise or ("similarity" if has_pairs or args.reference_llm else "uniform")
    if args.expertise_scope == "dataset" and given["expertise"] in ("uniform", "discovered"):
        raise UsageError(f"--expertise-scope: {given['expertise']} expertise does not differ between questions")
    given["penalty"] = {"on": True, "off": False}.get(args.penalty)
    with usage("--"):
        options = FewlOptions(**given)
        check_options(read, options, list(models.check_named(args.reference_llm, "--reference-llm")))
    return options


def _print_scores(output: Path, summary: dict[str, Any]) -> None:
    out = console(100)
    report, options = summary["report"], summary["fewl_options"]
    out.print(
        f"FEWL, {options['aggregation']}, {options['divergence']}, expertise {options['expertise']}, "
        f"similarity {plain(summary['similarity'])}, embedding {plain(summary['embedding'])}"
    )
    counts = {name: n for name, n in report.items() if isinstance(n, int)}
    counts = {name: n for name, n in counts.items() if n or name in ("questions", "answers", "scored")}
    counts["rejected lines"] = summary["rejected_lines"]
    out.print(table(("what", "number"), ([name.replace("_", " "), f"{n:,}"] for name, n in counts.items())))
    rows = []
    for name, mean in report["mean_lambda"].items():
        agreed = summary.get("agreement", {}).get(name, {})
        shares = (figure(agreed.get(which), 1) for which in ("wrong", "corrected"))
        rows.append([plain(name), figure(mean), f"{report['missing_references'][name]:,}", *shares])
    heads = ("reference LLM", "mean λ", "questions without its answer", "agrees with wrong", "with corrected")
    out.print(table(heads, rows))
    if summary["pairs"] is not None:
        out.print(f"IW/CO pairs: {plain(json.dumps(summary['pairs'], ensure_ascii=False))}")
    out.print(f"scored: {plain(output)}   run: {plain(output)}.run.json")


# --- rank ---------------------------------------------------------------------------------------------------------


def check_scored(record: Record) -> list[Problem]:
    """Problems of a scored record."""
    if found := check_record(record):
        return found
    problems = []
    for place, answer in enumerate(record["answers"]):
        score = answer.get("score", "nothing")
        if isinstance(score, bool) or not isinstance(score, int | float | None):
            value = None if "score" not in answer else shown(score)
            problems.append(
                Problem(f"answers[{place}].score", value, "a number or null; run `mitigate fewl score` first")
            )
    return problems


def run_rank(args: Args) -> int:
    args.check_files()
    _check_plot(args.png, "--png")
    truth = None
    if args.truth not in (None, "labels"):
        with files(UsageError, f"--truth: cannot read {args.truth}"):
            truth, problems = parse_line(Path(args.truth).read_bytes(), _check_truth)
        if truth is None:
            raise UsageError(f'--truth: {args.truth}, as {{"model": number}}: {problems[0]}')
        truth = {model: float(value) for model, value in truth.items()}
    records, rejected = read_whole(args.input, check_scored, args.output, "scored records")
    with usage(f"{args.input}: "):
        ranking = rank_models(records, truth=truth, truth_from_labels=args.truth == "labels", seed=args.seed)
    result = {**asdict(ranking), "rejected_lines": rejected}
    if args.output is not None:
        write_json(args.output, {**args.provenance(), **result})
    if args.png is not None:
        _plot(plot_ranking, ranking, args.png)
    if args.json:
        print_json(result)
    else:
        _print_ranking(ranking)
        for name, path in (("ranking", args.output), ("plot", args.png)):
            if path is not None:
                print(f"{name}: {path}")
    return REJECTED if rejected else 0


def _check_truth(value: Record) -> list[Problem]:
    wrong = [name for name, v in value.items() if isinstance(v, bool) or not isinstance(v, int | float)]
    return [Problem.of(value, name, "a number") for name in wrong]


def _print_ranking(ranking: Ranking) -> None:
    out = console(140)
    rows = []
    for place, row in enumerate(ranking.models, 1):
        cells = [str(place), plain(row.model), figure(row.mean, 4)]
        cells += [f"{figure(row.low, 4)} to {figure(row.high, 4)}", str(row.n), str(row.missing)]
        rows.append([*cells, *([] if ranking.truth is None else [figure(ranking.truth.get(row.model))])])
    truth = [] if ranking.truth is None else ["truth"]
    out.print(table(("", "model", "mean", "95 % interval", "n", "no score", *truth), rows))
    if ranking.kendall is not None:
        k = ranking.kendall
        out.print(
            f"Kendall's τ with the truth: {figure(k['tau'])}, 95 % interval {figure(k['low'])} to "
            f"{figure(k['high'])}, {k['models']} models"
        )
    names = [row.model for row in ranking.models][:WIN_COLUMNS]
    wins = [[plain(name), *(figure(ranking.wins[name].get(other), 2) for other in names)] for name in names]
    out.print(table(("share of questions won", *map(plain, names)), wins))
    if ranking.unnamed:
        who = counted(ranking.unnamed, "answer names no model and is", "answers name no model and are")
        out.print(f"{who} not ranked")


# --- pick and build-benchmark -------------------------------------------------------------------------------------


def run_pick(args: Args) -> int:
    args.check_files()
    records, rejected = read_whole(args.input, check_scored, args.output, "scored records")
    if args.abstain_above is not None and (lacking := sum("entropy" not in record for record in records)):
        which = f"{lacking} of the {len(records)} records of {args.input} have no entropy"
        raise UsageError(f"--abstain-above: {which}; run `fewl score --same-from`")
    rows = pick_answers(records, args.abstain_above)
    write_lines(args.output, rows)
    picked, ties = sum(row["answer"] is not None for row in rows), sum(row["ties"] > 1 for row in rows)
    summary = {"records": len(rows), "picked": picked, "ties": ties, "rejected_lines": rejected}
    _print_summary(args, {**summary, "output": str(args.output)})
    return REJECTED if rejected else 0


def run_build(args: Args) -> int:
    args.check_files()
    check = partial(check_texts, question="text", short_answer="any", long_answer="any")
    records, rejected = read_whole(args.input, check, args.output, "questions with short and long answers")
    embedding, encode = models.load_encoder(args.embedding, [record["question"] for record in records])
    built, statistics = build_benchmark(records, encode, answers=args.answers, seed=args.seed)
    write_lines(args.output, built)
    statistics = {**statistics, "embedding": embedding, "rejected_lines": rejected, "output": str(args.output)}
    write_json(Path(f"{args.output}.run.json"), {**args.provenance(), "statistics": statistics})
    _print_summary(args, statistics)
    return REJECTED if rejected else 0


def _print_summary(args: Args, summary: dict[str, Any]) -> None:
    if args.json:
        print_json(summary)
        return
    out = console(100)
    parts = summary.pop("table", {})
    rows = [[k.replace("_", " "), plain(figure(v, 2) if isinstance(v, float) else v)] for k, v in summary.items()]
    out.print(table(("what", "number"), rows))
    if parts:
        means = ("words", "unique_words", "characters")
        kinds = [[k.replace("_", " "), str(v["n"]), *(figure(v[name], 2) for name in means)] for k, v in parts.items()]
        out.print(table(("answer", "n", "words", "unique words", "characters"), kinds))
