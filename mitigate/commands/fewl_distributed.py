"""`mitigate fewl score --distributed`; the work is in `mitigate/distributed_fewl.py`.

mitigate fewl score --distributed --input questions/ --output scored/ --workers 8
"""

from __future__ import annotations

import argparse

from fewl.score import FewlOptions
from mitigate.commands.pool import manifest_or_failure, pool_of, teller
from mitigate.errors import UsageError
from mitigate.jsonl import Record
from mitigate.progress import counted


def run(args: argparse.Namespace, options: FewlOptions) -> int:
    """Score a corpus; returns the exit code."""
    from engines.chat import parse_engine
    from mitigate.distributed_fewl import score_corpus
    from mitigate.fewl_corpus import Task

    for spec in args.reference_llm:
        try:
            parse_engine(spec)
        except ValueError as error:
            raise UsageError(f"--reference-llm: {error}") from error
    pool = pool_of(args)
    if options.expertise_scope == "dataset":
        raise UsageError(
            "--expertise-scope dataset needs every question's expertise before any score: leave out --distributed"
        )
    if args.agreement_png is not None or args.json:
        raise UsageError(
            "--agreement-png and --json do not go with --distributed, whose summary is OUTPUT/manifest.json"
        )
    output = str(args.output)
    task = Task(
        input=str(args.input),
        output=output,
        shard_rows=args.shard_size,
        options=options,
        expertise=args.expertise,
        similarity=args.similarity,
        embedding=args.embedding,
        llms=tuple(args.reference_llm),
        samples=args.reference_samples,
        cache=None if args.cache is None else str(args.cache),
        format=args.format,
    )

    def summary(manifest: Record) -> str:
        report = manifest["report"]
        return (
            f"{counted(report['questions'], 'question')}, "
            f"{report['scored']:,} of {report['answers']:,} answers scored, "
            f"{counted(manifest['rejected'], 'rejected line')} in {counted(len(manifest['shards']), 'shard')}: "
            f"{output}/manifest.json"
        )

    return manifest_or_failure(
        lambda: score_corpus(task, pool, teller("read", "records"), teller("scored", "records")), summary
    )
