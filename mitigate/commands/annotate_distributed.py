"""`mitigate annotate --distributed`; the work is in `mitigate/distributed_annotate.py`.

mitigate annotate --distributed --input 'corpus/*.jsonl' --output annotated/ --workers 8
mitigate annotate --distributed --input s3://b/corpus --output s3://b/out --address auto --gpus-per-worker 1
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from mitigate.commands.pool import manifest_or_failure, pool_of, teller
from mitigate.errors import UsageError
from mitigate.jsonl import Record
from mitigate.progress import counted


def run(args: argparse.Namespace, options: Mapping[str, Any]) -> int:
    """Annotate a corpus; returns the exit code."""
    from mitigate.distributed_annotate import Task, annotate_corpus

    pool = pool_of(args)
    if args.html is not None or args.overwrite:
        raise UsageError(
            "--html and --overwrite do not go with --distributed; name a new --output to start again"
        )
    output = str(args.output)
    task = Task(
        args.annotator, str(args.input), output, args.shard_size, args.chunk_size, dict(options), args.format
    )

    def summary(manifest: Record) -> str:
        return (
            f"{counted(manifest['records'], 'record')}, {counted(manifest['sentences'], 'sentence')}, "
            f"{counted(manifest['rejected'], 'rejected line')} in {counted(len(manifest['shards']), 'shard')}: "
            f"{output}/manifest.json"
        )

    return manifest_or_failure(lambda: annotate_corpus(task, pool, teller("annotated", "sentences")), summary)
