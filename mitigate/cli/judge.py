"""`mitigate judge`: baseline against method, answer by answer.

    mitigate judge --input pairs.jsonl --output judged.jsonl --engine openai:MODEL@URL --cache replies.sqlite
    mitigate judge --input pairs.jsonl --output judged.jsonl --annotator embedded

The judge's rules and the form of pairs are in `mitigate/inference/judge.py`. With an engine the cost is estimated
first.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from functools import partial

from annotators.base import engines_in
from annotators.records import failed_share
from engines.types import EngineError
from engines.usage import METER
from mitigate.cli.options import Args, Subparsers, add_command, print_json
from mitigate.io import FAILED, UsageError, check_texts, read_whole, say, write_lines
from mitigate.models import failures, open_annotator, open_engine
from mitigate.report.totals import percent


def add_parser(subparsers: Subparsers) -> None:
    more = (
        'Pairs are {"question", "baseline", "method", "reference"?}. The result is the '
        "shares of all pairs and the win rate of decided pairs with its 95 % interval."
    )
    text = "Compare two answers to each question by a language model or an annotator."
    parser = add_command(subparsers, "judge", text, more)
    parser.input("This JSON Lines file holds the pairs of answers.")
    parser.output()
    with parser.group():
        parser.engine("This language model judges each pair in both orders.")
        parser.annotator(None, calibration=False)
    parser.calibration()
    parser.max_failed()
    parser.cache()
    parser.cost()
    parser.set_defaults(run=run)


def run(args: Args) -> int:
    from mitigate.inference.judge import by_annotator, by_engine, estimate, tally, with_silence

    args.check_engine()
    options = args.calibration_options(args.annotator)
    args.check_files()
    check = partial(check_texts, question="text", baseline="any", method="any", reference="any?")  # empty answers lose
    pairs, rejected = read_whole(args.input, check, args.output, "pairs of answers")
    failed: str | None = None
    if args.engine is None:
        if missing := sum(not pair.get("reference") for pair in pairs):
            raise UsageError(f"--annotator: {missing} of {len(pairs)} pairs have no reference to judge against")
        if engines_in(args.annotator):
            options = {"cache": args.cache_file(), **options}
        judged = with_silence(pairs, partial(by_annotator, annotator=open_annotator(args.annotator, options)))
    else:
        cost = estimate(pairs)
        tokens = METER.foreseen(cost["prompt_tokens"], cost["reply_tokens"])
        say(f"{cost['requests']:,} requests to {args.engine}: {tokens} (fewer where replies are in the cache)")
        cache = args.cache_file()
        with closing(open_engine(args.engine, "--engine", cache)) as engine:
            try:
                judged, failed = with_silence(pairs, partial(by_engine, engine=engine)), failures([engine])
            except EngineError as error:
                raise EngineError(f"{error}; the same command continues from {cache}") from error
    write_lines(args.output, ({**p, "outcome": o, **more} for p, (o, more) in zip(pairs, judged, strict=True)))
    result = tally([outcome for outcome, _ in judged])
    statuses = sum((Counter(more.get("statuses", {})) for _, more in judged), Counter[str]())
    if args.json:
        print_json({**result, "rejected_lines": rejected, "output": str(args.output)})
    else:
        shares = ", ".join(f"{name} {percent(share)}" for name, share in result["shares"].items())
        print(f"{result['n']} pairs: {shares} ({result['unsure']} of the ties unsure or inconsistent)")
        if result["win_rate"] is None:
            print("win rate: no pair was decided")
        else:
            print(
                f"win rate of the method over decided pairs: {percent(result['win_rate'])} [{percent(result['low'])}, "
                f"{percent(result['high'])}], n = {result['method'] + result['baseline']}"
            )
        print(f"output: {args.output}")
    if failed:
        say(f"error: {failed}; their pairs count as unsure: the same command with --overwrite asks only these again")
        return FAILED
    return args.exit_code(failed_share(statuses), rejected)
