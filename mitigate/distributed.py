"""Shards through a pool of workers on a Ray cluster (extra `ray`): a Ray Data pipeline of whole shards.

Each worker is an actor that loads once what it needs and works through shards (`mitigate/shards.py`), one by one. Ray
Data moves names of shards and counts only, so memory does not grow with the corpus, starts actors anew where a node
dies, and gives their shards to others. What is done with a shard: `distributed_annotate.py`, `distributed_fewl.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from mitigate.errors import UsageError
from mitigate.jsonl import Record
from mitigate.shards import Shard, check_apart, find_inputs, plan

OnShard = Callable[[Record, int], None]
"""Called with what a shard's worker returned and the number of shards in all."""


@dataclass(frozen=True)
class Pool:
    """How many workers of which size.

    Attributes:
        address: Of an existing cluster, "auto" for the one of this machine; None starts a local one.
        workers: Actors, each with a model of its own; 0 does the shards one by one in this process, without Ray.
        cpus: Of each worker.
        gpus: Of each worker, or a share of one.
    """

    address: str | None = None
    workers: int = 1
    cpus: float = 1.0
    gpus: float = 0.0


class Worker(ABC):
    """Works through shards; what goes wrong with one belongs to it, the others go on."""

    @abstractmethod
    def done(self, shard: Shard) -> Record:
        """Do a shard and return what its `.done.json` says."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[str]]:
        return {"result": [json.dumps(attempt(self, Shard(**json.loads(str(s))))) for s in batch["shard"]]}


def attempt(worker: Worker, shard: Shard) -> Record:
    """What the worker returns of a shard, or {"number", "error", "usage": whether it is a mistake of the user's}."""
    try:
        return worker.done(shard)
    except Exception as error:  # whatever it was
        why = " ".join(f"{type(error).__name__}: {error}".split())
        return {"number": shard.number, "error": why[:1000], "usage": isinstance(error, UsageError)}


def shards_of(place: str, output: str, rows: int, pool: Pool) -> tuple[list[str], list[Shard]]:
    """The files of an input and its shards.

    Raises:
        ImportError: Ray is not installed.
        UsageError: There is nothing to read, or results would come to lie among the inputs.
    """
    if pool.workers and find_spec("ray") is None:
        raise ImportError(
            "--distributed needs Ray: pip install 'hallucination-toolkit[ray]'; --workers 0 does the shards in this "
            "process without it"
        )
    sources = find_inputs(place)
    check_apart(place, sources, output)
    shards = plan(sources, rows)
    if not shards:
        raise UsageError(f"--input {place}: no lines in it")
    return sources, shards


def stamp_of(shards: Sequence[Shard], *what: object) -> str:
    """What two runs must have in common to share an output folder: the input's cuts and all options."""
    return hashlib.sha256(json.dumps([*what, [asdict(s) for s in shards]], default=str).encode()).hexdigest()


def run_shards(
    worker: type[Worker],
    arguments: Mapping[str, Any],
    left: Sequence[Shard],
    total: int,
    pool: Pool,
    on_shard: OnShard | None = None,
    *,
    uses_ray: bool = False,
) -> dict[int, Record]:
    """Have shards done; returns what was returned of each, by number.

    Args:
        worker: Made in every actor.
        arguments: What it is made with.
        left: What is to be done.
        total: Shards in all, for messages.
        pool: Where.
        on_shard: Told of each.
        uses_ray: The worker hands its work to the cluster by itself, and is made in this process.

    Raises:
        UsageError: Shards failed for a mistake of the user's.
        RuntimeError: Shards failed; run again to do only those.
    """
    if not left:
        return {}
    found: dict[int, Record] = {}
    failed: list[Record] = []

    def take(one: Record) -> None:
        if "error" in one:
            failed.append(one)
        else:
            found[one["number"]] = one
        if on_shard is not None:
            on_shard(one, total)

    if uses_ray:
        start_ray(pool)
    if uses_ray or pool.workers == 0:
        try:
            made = worker(**arguments)
        except (OSError, ValueError) as error:
            raise UsageError(str(error)) from error
        for shard in left:
            take(attempt(made, shard))
    else:
        ray = start_ray(pool)
        names = [{"shard": json.dumps(asdict(shard))} for shard in left]
        rows = ray.data.from_items(names, override_num_blocks=len(names)).map_batches(
            worker,
            batch_size=1,
            concurrency=min(pool.workers, len(left)),
            num_cpus=pool.cpus,
            num_gpus=pool.gpus or None,
            fn_constructor_kwargs=dict(arguments),
        )
        try:
            for row in rows.iter_rows():
                take(json.loads(row["result"]))
        except (
            ray.exceptions.RayError
        ) as error:  # a worker that could not load its model, or a cluster that is gone
            why = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise RuntimeError(
                f"{why[0]}; run the same command again to do the shards that are left"
            ) from error
        answered = {*found, *(one["number"] for one in failed)}
        for shard in left:
            if shard.number not in answered:
                take({"number": shard.number, "error": "it was lost with its worker", "usage": False})
    if failed:
        first = min(failed, key=lambda one: int(one["number"]))
        if all(one["usage"] for one in failed):
            raise UsageError(
                f"{len(failed)} of {total} shards: {first['error'].removeprefix('UsageError: ')}"
            )
        raise RuntimeError(
            f"{len(failed)} of {total} shards failed, first {first['number']}: {first['error']}; "
            "run the same command again to do only these"
        )
    return found


def start_ray(pool: Pool) -> Any:
    """Connect to the cluster, or start a local one, unless this process has done so; sends no usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1  # a lost shard is told by its absence; the others go on
    if ray.is_initialized():
        return ray
    # one CPU more than the workers take: Ray Data's own tasks need a place as well
    local = {"num_cpus": int(np.ceil(pool.workers * pool.cpus)) + 1, "include_dashboard": False}
    try:
        ray.init(logging_level="error", **({"address": pool.address} if pool.address is not None else local))
    except Exception as error:  # Ray raises bare Exceptions here
        where = (
            f"reach the Ray cluster at {pool.address}" if pool.address is not None else "start a local Ray"
        )
        raise RuntimeError(f"cannot {where}: {' '.join(str(error).split())[:300]}") from error
    return ray
