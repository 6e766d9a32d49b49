"""`mitigate annotate --distributed`: its options and what it prints; the work is in `mitigate/distributed.py`.

mitigate annotate --distributed --input 'corpus/*.jsonl' --output annotated/ --workers 8
mitigate annotate --distributed --input s3://b/corpus --output s3://b/out --address auto --gpus-per-worker 1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from mitigate.errors import UsageError
from mitigate.jsonl import Record

REJECTED, FAILED = 3, 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a pool of workers."""
    pool = parser.add_argument_group("a corpus, by workers on a Ray cluster (extra `ray`)")
    pool.add_argument(
        "--distributed",
        action="store_true",
        help="INPUT is a file, folder, glob or address of *.jsonl or *.parquet, or hub:NAME[:SPLIT]; OUTPUT is a "
        "folder of shards with a manifest, continued shard by shard",
    )
    pool.add_argument(
        "--address", metavar="A", help="of the Ray cluster, or auto; a local one is started without"
    )
    pool.add_argument("--workers", type=int, default=1, metavar="N", help="annotators at work (%(default)s)")
    pool.add_argument("--cpus-per-worker", type=float, default=1.0, metavar="N", help="(%(default)s)")
    pool.add_argument(
        "--gpus-per-worker", type=float, default=0.0, metavar="N", help="1, or a share (%(default)s)"
    )
    pool.add_argument(
        "--shard-size", type=int, default=1000, metavar="N", help="lines of a shard (%(default)s)"
    )


def run(args: argparse.Namespace, options: Mapping[str, Any]) -> int:
    """Annotate a corpus; returns the exit code."""
    from mitigate.distributed import Pool, Task, annotate_corpus

    for name, least in (("workers", 1), ("shard_size", 1), ("cpus_per_worker", 0), ("gpus_per_worker", 0)):
        if getattr(args, name) < least:
            raise UsageError(
                f"--{name.replace('_', '-')}: expected {least} or more, got {getattr(args, name)}"
            )
    if args.html is not None or args.overwrite:
        raise UsageError(
            "--html and --overwrite do not go with --distributed; name a new --output to start again"
        )
    task = Task(
        args.annotator, str(args.input), str(args.output), args.shard_size, args.chunk_size, dict(options)
    )
    pool = Pool(args.address, args.workers, args.cpus_per_worker, args.gpus_per_worker)
    start, sentences, shards = perf_counter(), 0, 0

    def on_shard(found: Record, total: int) -> None:
        nonlocal sentences, shards
        sentences, shards = sentences + found.get("sentences", 0), shards + 1
        speed = sentences / (perf_counter() - start)
        print(
            f"mitigate: shard {found['number']}, {shards} done now of {total}, {speed:,.1f} sentences/s",
            file=sys.stderr,
        )

    try:
        manifest = annotate_corpus(task, pool, on_shard)
    except ImportError as error:
        raise UsageError(str(error)) from error
    except RuntimeError as error:
        print(f"mitigate: error: {error}", file=sys.stderr)
        return FAILED
    print(
        f"{manifest['records']:,} records, {manifest['sentences']:,} sentences, {manifest['rejected']:,} rejected "
        f"lines in {len(manifest['shards'])} shards: {task.output}/manifest.json"
    )
    return REJECTED if manifest["rejected"] else 0
