"""What the commands with `--distributed` share: the options of a pool of workers, and what is printed on the way."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from mitigate.errors import UsageError
from mitigate.jsonl import Record

if TYPE_CHECKING:
    from mitigate.distributed import OnShard, Pool

REJECTED, FAILED = 3, 1


def place(text: str) -> Path | str:
    """A path; an address such as s3://… stays as it is, for --distributed."""
    return text if "://" in text or text.startswith("hub:") else Path(text)


def add_options(parser: argparse.ArgumentParser, per_worker: str) -> None:
    """The options of a pool of workers.

    Args:
        parser: Of the command.
        per_worker: What each worker loads.
    """
    pool = parser.add_argument_group("a corpus, by workers on a Ray cluster (extra `ray`)")
    pool.add_argument(
        "--distributed",
        action="store_true",
        help="INPUT is a file, folder, glob or address of *.jsonl or *.parquet, or "
        "hub:NAME[:CONFIGURATION][:SPLIT]; OUTPUT is a folder of shards with a manifest, continued shard by shard",
    )
    pool.add_argument(
        "--address", metavar="A", help="of the Ray cluster, or auto; a local one is started without"
    )
    pool.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help=f"each with {per_worker} of its own; 0 works in this process, without Ray (%(default)s)",
    )
    pool.add_argument("--cpus-per-worker", type=float, default=1.0, metavar="N", help="(%(default)s)")
    pool.add_argument(
        "--gpus-per-worker", type=float, default=0.0, metavar="N", help="1, or a share (%(default)s)"
    )
    pool.add_argument(
        "--shard-size", type=int, default=1000, metavar="N", help="lines of a shard (%(default)s)"
    )
    pool.add_argument(
        "--format", choices=("jsonl", "parquet"), default="jsonl", help="of the shards (%(default)s)"
    )


def pool_of(args: argparse.Namespace) -> Pool:
    """The pool that the options describe.

    Raises:
        UsageError: A number is too small.
    """
    from mitigate.distributed import Pool

    for name, least in (("workers", 0), ("shard_size", 1), ("cpus_per_worker", 0), ("gpus_per_worker", 0)):
        if getattr(args, name) < least:
            raise UsageError(
                f"--{name.replace('_', '-')}: expected {least} or more, got {getattr(args, name)}"
            )
    return Pool(args.address, args.workers, args.cpus_per_worker, args.gpus_per_worker)


def teller(what: str, unit: str) -> OnShard:
    """Prints a line for each shard: how many are done, how fast.

    Args:
        what: Is done with a shard.
        unit: Of speed, a count of the shard: "sentences", "records".
    """
    start, units, shards = perf_counter(), 0, 0

    def on_shard(found: Record, total: int) -> None:
        nonlocal units, shards
        units, shards = units + found.get(unit, 0), shards + 1
        print(
            f"mitigate: shard {found['number']} {what if 'error' not in found else 'failed'}, {shards} now of {total}, "
            f"{units / (perf_counter() - start):,.1f} {unit}/s",
            file=sys.stderr,
        )

    return on_shard


def manifest_or_failure(make: Callable[[], Record], summary: Callable[[Record], str]) -> int:
    """Do the work, print the summary of its manifest; returns the exit code."""
    try:
        manifest = make()
    except ImportError as error:
        raise UsageError(str(error)) from error
    except (RuntimeError, OSError) as error:
        print(f"mitigate: error: {error}", file=sys.stderr)
        return FAILED
    print(summary(manifest))
    return REJECTED if manifest["rejected"] else 0
