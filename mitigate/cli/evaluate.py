"""`mitigate evaluate`: how good an annotator is on labelled sentences.

    mitigate evaluate --input dev/*.jsonl --annotator embedded --fold test --output metrics.json
    mitigate evaluate --input unseen_*.jsonl --compare out/runs/a/annotator out/runs/b/annotator
    mitigate evaluate --input test.jsonl --protocol official --annotator generative:openai:MODEL@URL

Figures are by source, language and split (the rows' "split"). The protocol "official" scores raw replies as ANAH's
published program does (annotators/evaluation/official.py); it reads that program's test file or, with --replies, its
output. What an annotator says is kept beside the output until all is done, so the same command goes on after a kill.
"""

from __future__ import annotations

import importlib.util
import random
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from annotators.base import engine_in
from annotators.records import failed_share
from engines.packaged import sha256
from engines.usage import METER
from mitigate.cli.options import COSTS, ENGINE, GENERATIVE, Args, Subparsers, add_command, flags, print_json, tell_cost
from mitigate.io import (
    Line,
    Problem,
    Record,
    UsageError,
    check_paths,
    check_texts,
    parse_line,
    progress,
    read_lines,
    say,
    set_aside,
    usage,
    versions,
    write_json,
    write_lines,
)
from mitigate.models import Judgements, check_annotator, open_annotator, open_engine
from mitigate.report.terminal import console, figure, plain, table

if TYPE_CHECKING:
    from annotators.generative.prompts import Protocol

T = TypeVar("T")
WIDE = 140  # columns that the intervals need
HEADINGS = {
    "coverage": "checked", "balanced_accuracy": "balanced acc.", "auc": "AUC", "accuracy": "accuracy",
    "macro_f1": "F1", "ece": "ECE",
}  # fmt: skip
LEGEND = (
    "Balanced accuracy, AUC, ECE: supported against hallucinated, gold no_fact left out. "
    "Accuracy, macro-F1: four labels. Unchecked rows count as wrong; AUC and ECE take unsure ones by "
    "their scores, and leave out those without. "
    "[95 % interval over groups of rows] – = none."
)
TEXTS = {
    "rouge_l": "ROUGE-L", "bert_score": "BERTScore", "fragment_precision_3": "3-gram precision",
    "fragment_precision_4": "4-gram precision",
}  # fmt: skip
ASKED = ("concurrency", "cache", "max_tokens", "trust_remote_code", *COSTS)
NOT_OFFICIAL = (
    "calibration", "expected_rate", "fold", "without_reference", "disturbed_prompts", "texts",
    *(name for name in GENERATIVE if name not in (*ASKED, "seed")),
)  # fmt: skip
COMPARED = {key: HEADINGS[key] for key in ("accuracy", "macro_f1", "balanced_accuracy", "auc")}


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "evaluate", "Measure an annotator on labelled sentences.")
    parser.input("These JSON Lines files hold labelled sentences.", several=True)
    parser.output(required=False)
    with parser.group():
        parser.annotator(None, calibration=False)
        parser.option("--compare", "Both judge; differences have paired intervals.", ("A", "B"), nargs=2)
        parser.flag("--replies", "The rows have replies (prompt, reply, golden), for --protocol official.")
    parser.calibration()
    parser.option("--fold", "Rows of this fold are judged: test, dev, train, all, 0 to 4 (%(default)s).", default="all")
    parser.count("--limit", "N rows, drawn at random, are judged.")
    parser.seed("The rows of --limit, the intervals, random prompts and further attempts", None)
    parser.flag("--without-reference", "The annotator sees no reference; it shows what the model knows by itself.")
    parser.flag("--disturbed-prompts", "A generative annotator is asked in a wording that it was not trained on.")
    parser.flag("--texts", "Annotations are also compared as texts: ROUGE-L, n-gram precision.")
    text = "With --texts, BERTScore is computed too: by the paper's models, or by the packaged one."
    parser.option("--bertscore", text, choices=("paper", "packaged"))
    parser.file("--judgements", "What was said of each row goes here, as JSON Lines.")
    parser.max_failed()
    parser.generative(seed=False, protocols=("official",))
    parser.set_defaults(run=run)


def run(args: Args) -> int:
    if args.judgements:
        check_paths(args.input, args.judgements, overwrite=args.overwrite)
        if args.output is not None and args.output.resolve() == args.judgements.resolve():
            raise UsageError(f"--judgements: expected another file than --output, got {args.judgements} for both")
    if args.bertscore and importlib.util.find_spec("bert_score") is None:
        raise UsageError("--bertscore needs bert-score: pip install 'hallucination-toolkit[bertscore]'")
    if args.protocol == "official":
        return run_official(args)
    if args.replies:
        raise UsageError("--replies: expected --protocol official beside it; other figures need an --annotator")
    from annotators.evaluation.evaluate import compare, evaluate, judgement_lines, predict
    from annotators.evaluation.texts import bert_scores
    from mitigate.labels import read_labelled

    folds, paths, options, asking = _checked(args)
    seed = args.seed or 0
    files = read_labelled(paths, folds)
    set_aside(files.rejected, args.output)
    if files.fold_files:
        folders = ", ".join(sorted({str(file.parent) for file in files.fold_files}))
        say(
            f"fold {args.fold}: {len(files.rows)} of {files.n_valid} rows; "
            f"folds computed over {len(files.fold_files)} files of {folders}"
        )
    if not files.rows:
        where = f" in fold {args.fold}" if files.n_valid else ""
        raise UsageError(f"--input: expected labelled sentences; found none{where}")
    rows = _drawn(files.rows, args)
    names = args.compare or [args.annotator]
    results, answers = [], []
    target = args.output or args.judgements
    kept = Judgements(target and target.with_name(target.name + ".judged"))
    for name in names:
        own = {} if engine_in(name) is None else dict(asking)
        if args.disturbed_prompts:
            own |= untrained_wording(name, args.protocol)
        annotator = open_annotator(name, {**options, **own})
        with closing(annotator):
            tell_cost(annotator, (row.shown(parametric=args.without_reference) for row in rows), given=True)
            with progress("judging", len(rows)) as tell:
                ask = kept.asking(name, annotator)
                judged = predict(annotator, rows, tell, parametric=args.without_reference, ask=ask)
            similarity: list[float | None] | None = None
            models: dict[str, str] = {}
            if args.bertscore:
                with usage("--bertscore: ", (ImportError, OSError)):
                    similarity, models = bert_scores([row.row for row in rows], judged, args.bertscore)
        made = {  # what would be needed to run it again, and on what it ran
            "command": shlex.join(["mitigate", *args.words]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "annotator": {"name": annotator.name, "fingerprint": annotator.fingerprint},
            "data": [{"file": str(path), "sha256": sha256(path)} for path in paths],
            "fold": args.fold,
            "limit": args.limit,
            "seed": seed,
            **({"parametric": True} if args.without_reference else {}),
            "versions": versions("torch", "transformers"),
            **({"bert_score_models": models} if models else {}),
        }
        figures = evaluate(rows, judged, seed=seed, texts=args.texts, similarity=similarity)
        results.append({"run": made, "n_rejected": len(files.rejected), **figures})
        answers.append(judged)
    if args.judgements:
        pairs = zip(names, answers, strict=True)
        parts = (judgement_lines(rows, judged, name, args.without_reference) for name, judged in pairs)
        write_lines(args.judgements, chain.from_iterable(parts))
        say(f"judgements: {args.judgements}")
    result: dict[str, Any] = results[0]
    if args.compare:
        result = {"first": results[0], "second": results[1], "difference": compare(rows, *answers, seed=seed)}
    if METER.requests:
        result |= {"asked": METER.to_dict()}
    if args.json:
        print_json(result)
    else:
        _print_all(result, results, args)
    if args.output:
        write_json(args.output, result)
        say(f"figures: {args.output}")
    kept.delete()
    return args.exit_code(max(failed_share(found["statuses"]) for found in results), len(files.rejected))


def _checked(args: Args) -> tuple[tuple[int, ...] | None, list[Path], dict[str, Any], dict[str, Any]]:
    """Fold numbers, input files, the annotator's options and those of asking a language model, all checked."""
    from mitigate.labels import parse_fold

    with usage("--fold: "):
        folds = parse_fold(args.fold)
    if args.bertscore and not args.texts:
        raise UsageError("--bertscore: expected --texts beside it")
    names = args.compare or [args.annotator]
    asking = args.generative_options(names)
    if args.disturbed_prompts and (args.prompt or args.templates):
        raise UsageError("--disturbed-prompts chooses the wording: leave out --prompt and --templates")
    for name in names:
        if args.without_reference and engine_in(name) is None:
            raise UsageError(f"--without-reference: {name} judges against a reference; expected generative:KIND:MODEL")
        if args.disturbed_prompts and engine_in(name) is None:
            raise UsageError(f"--disturbed-prompts: {name} is asked in no words; expected generative:KIND:MODEL")
        check_annotator(name, "--compare" if args.compare else "--annotator")
    args.check_files()
    if args.output and args.judgements == args.output.with_name(args.output.name + ".judged"):
        raise UsageError(f"--judgements: expected another file than {args.judgements}, which goes when the run is done")
    paths = list({path.resolve(): path for path in args.input}.values())
    if any(engine_in(name) is not None for name in names) and (cache := _kept(args)):
        asking["cache"] = cache
    return folds, paths, args.calibration_options(args.annotator), asking


def _kept(args: Args) -> Path | None:
    """The file in which replies survive whatever stops this run."""
    if args.cache or args.output:
        return args.cache_file()
    if args.max_cost is not None:
        raise UsageError("--max-cost: expected --output or --cache beside it, so that nothing paid for is lost")
    return None


def _drawn(rows: list[T], args: Args) -> list[T]:
    """The rows of --limit, in their order; all of them without it."""
    if args.limit is None or args.limit >= len(rows):
        return rows
    numbers = random.Random(args.seed or 0).sample(range(len(rows)), args.limit)
    return [rows[i] for i in sorted(numbers)]


def untrained_wording(name: str, protocol: Protocol | None = None) -> dict[str, str]:
    """Its protocol and a wording, NAME/ORDER, that a generative annotator was not trained on (unknown: the default)."""
    from annotators.generative.annotator import trained_as
    from annotators.generative.prompts import names_of
    from engines import parse_engine

    trained = trained_as(parse_engine(engine_in(name) or "").model)
    protocol = protocol or trained.protocol
    others = [prompt for prompt in names_of(protocol, "en") if prompt not in (trained.prompts or ["plain"])]
    if not others:
        raise UsageError("--disturbed-prompts: it was trained on every wording; give one of your own with --templates")
    return {"protocol": protocol, "prompt": f"{others[-1]}/question-first"}


# --- ANAH's published scorer --------------------------------------------------------------------------------------


def run_official(args: Args) -> int:
    """Score raw replies, asked for where there are none, as ANAH's program does."""
    from annotators.evaluation.official import scores
    from engines.types import Sampling, check_asked

    args.protocol = None  # it is none of those in which annotators ask
    name = None if args.replies else engine_in(args.annotator or "")
    if name is None and not args.replies:
        raise UsageError(f"--protocol official: expected --annotator generative:{ENGINE}, or --replies")
    if args.bertscore not in (None, "paper"):
        raise UsageError(f"--bertscore: expected `paper` with --protocol official, got {args.bertscore}")
    if wrong := flags(option for option in NOT_OFFICIAL if getattr(args, option) not in (None, False, "all")):
        raise UsageError(f"{wrong}: no part of --protocol official, which sends prompts as they are; leave it out")
    if name is None and (unused := flags(option for option in ASKED if getattr(args, option) is not None)):
        raise UsageError(f"{unused}: nothing is asked where the rows have --replies; leave it out")
    asking = {} if name is None else args.generative_options()
    args.check_files()
    rows, rejected = _official_rows(args)
    rows = _drawn(rows, args)
    if name is not None:
        options = {key: asking[key] for key in ("concurrency", "trust_remote_code") if key in asking}
        chats = [[{"role": "user", "content": row["prompt"]}] for row in rows]
        prompts, reply = sum(len(row["prompt"].encode("utf-8", "replace")) for row in rows), args.max_tokens or 768
        say(f"{len(rows):,} requests: {METER.foreseen(prompts // 4, reply * len(rows))}")
        with closing(open_engine(name, "--annotator", _kept(args), **options)) as engine:
            results = engine.chat(chats, Sampling(reply))
        check_asked(results)
        rows = [{**row, "reply": result.text} for row, result in zip(rows, results, strict=True)]
    if args.judgements:  # first: what was paid for
        write_lines(args.judgements, rows)
    answered = [row for row in rows if row["reply"] is not None]
    failed = len(rows) - len(answered)
    if not answered:
        say(f"none of {len(rows):,} rows has a reply, so there is nothing to score")
        return 1
    figures = scores(answered, bertscore=args.bertscore is not None) | {"n_failed": failed}
    shown = {key: value for key, value in figures.items() if isinstance(value, dict)}
    if METER.requests:
        figures |= {"asked": METER.to_dict()}
    if args.output:
        write_json(args.output, figures)
    if args.json:
        print_json(figures)
    else:
        cells = ([key, *(figure(value[part]) for part in ("all", "zh", "en"))] for key, value in shown.items())
        title = f"ANAH's published figures, {figures['n']} rows; weighted F1 {figure(figures['f1'])}"
        title += f"; {failed} without a reply are left out" if failed else ""
        console(WIDE).print(table(("percent", "all", "zh", "en"), cells, right=True, title=title))
    return args.exit_code(failed / len(rows), rejected)


def _official_rows(args: Args) -> tuple[list[Record], int]:
    """The rows of the published program, or of its test file with turns [user, assistant], and how many were bad."""
    from annotators.evaluation.official import language_of, type_of

    def row_of(record: Record) -> Record:
        turns = record.get("turns")
        if isinstance(turns, list) and len(turns) > 1 and all(isinstance(turn, dict) for turn in turns):
            return {"prompt": turns[0].get("content"), "golden": turns[1].get("content")}
        return {key: record[key] for key in ("prompt", "reply", "golden") if key in record}

    def check(record: Record) -> list[Problem]:
        row = row_of(record)
        needed = args.replies and row.get("reply", "") is not None  # null: the request failed
        problems = check_texts(row, prompt="text", golden="text", reply="any" if needed else "any?")
        if not problems and language_of(row["prompt"]) is None:
            problems.append(Problem("prompt", None, "words of ANAH's prompts: annotate, Reference, 标注 or 参考文档"))
        if not problems and type_of(row["golden"]) is None:
            problems.append(Problem("golden", None, "an annotation with a type, such as <No Fact>"))
        return problems

    rows, bad = [], []
    for path, line in ((source, line) for source in args.input for line in read_lines(source, lambda _: [])):
        raw = b'{"turns":%b}' % line.raw if line.record is None else line.raw  # turns are a list
        record, problems = parse_line(raw, check)
        if record is None:
            bad.append((path, Line(line.number, line.raw, None, problems)))
        else:
            rows.append(row_of(record))
    set_aside(bad, args.output)
    if not rows:
        raise UsageError("--input: expected rows of prompt and golden, or of two turns; found none")
    return rows, len(bad)


# --- tables -------------------------------------------------------------------------------------------------------


def _print_all(result: Mapping[str, Any], results: Sequence[Mapping[str, Any]], args: Args) -> None:
    out = console(WIDE)
    for found in results:
        out.print(figures_table(found, wide=out.width >= WIDE))
        columns = ("supported", "contradictory", "unverifiable", "no_fact", "unchecked")
        became = (
            [name, str(row["n"]), figure(row["recall"]), *(str(row["predicted"].get(column, 0)) for column in columns)]
            for name, row in found["labels"].items()
        )
        out.print(table(("gold", "n", "right", *columns), became, right=True, title="What became of each gold label"))
        out.print(LEGEND, markup=False, style="dim")
        if args.texts:
            models = found["run"].get("bert_score_models") or {}
            caption = "BERTScore: " + ", ".join(f"{k} {plain(v)}" for k, v in models.items()) if models else None
            rows = (
                [plain(name), str(part["texts"]["n_texts"]), *(figure(part["texts"][key]) for key in TEXTS)]
                for name, part in {"all": found["overall"], **_parts(found)}.items()
            )
            out.print(
                table(("rows", "n", *TEXTS.values()), rows, right=True, title="Annotations as texts", caption=caption)
            )
    if args.compare:
        title = f"{plain(args.compare[0])} minus {plain(args.compare[1])}"
        rows = (
            [plain(part), str(figures["n"]), *(_difference(figures[key]) for key in COMPARED)]
            for part, figures in result["difference"].items()
        )
        title += " (paired, 95 % intervals over groups of rows)"
        out.print(table(("rows", "n", *COMPARED.values()), rows, right=True, title=title))


def _parts(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The figures of each language and split by what a table calls them."""
    parts = {f"language {name}": part for name, part in result["languages"].items()}
    return parts | {f"split {name}": part for name, part in result.get("splits", {}).items()}


def figures_table(result: Mapping[str, Any], *, wide: bool) -> Any:
    """The figures of all rows and of each part, with intervals where there is room."""
    run, means = result["run"], result["mean_over_sources"]
    title = f"{run['annotator']['name']}, fold {run['fold']}, {result['overall']['n']} rows"
    shown = table(("rows", "n", *HEADINGS.values()), (), right=True, title=plain(title))

    def add(name: str, n: str, values: Mapping[str, Any], intervals: Mapping[str, Any]) -> None:
        cells = []
        for key in HEADINGS:
            limits = intervals.get(key) if wide and values[key] is not None else None
            cells.append(figure(values[key]) + (f" \\[{limits[0]:.3f}, {limits[1]:.3f}]" if limits else ""))
        shown.add_row(plain(name), n, *cells, end_section=not n)

    overall = result["overall"]
    add("all", str(overall["n"]), overall, overall["intervals"])
    values, intervals = ({k: mean[what] for k, mean in means.items()} for what in ("value", "interval"))
    add(f"mean of {len(result['sources'])} sources", "", values, intervals)
    for name, part in {**result["sources"], **_parts(result)}.items():
        if len(result["languages"]) > 1 or not name.startswith("language "):  # one language says what all rows say
            add(name, str(part["n"]), part, part["intervals"])
    return shown


def _difference(found: Mapping[str, Any]) -> str:
    limits = f" \\[{found['low']:+.3f}, {found['high']:+.3f}]" if found["low"] is not None else ""
    return "–" if found["difference"] is None else f"{found['difference']:+.3f}{limits}"
