"""Annotation of a corpus by a pool of workers on a Ray cluster (extra `ray`): a Ray Data pipeline over shards.

Each worker is an actor that holds one annotator and works through whole shards (`mitigate/shards.py`). Ray Data moves
names of shards and counts only, so memory does not grow with the corpus, starts actors anew where a node dies, and
gives their shards to others. Leaves out vLLM inside workers: name a server as the annotator's engine instead.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import fsspec
import numpy as np

from mitigate.errors import UsageError
from mitigate.jsonl import Record
from mitigate.shards import Shard, done_shards, find_inputs, plan, work

ADDED = ("sentences", "annotator", "hallucination_rate")


@dataclass(frozen=True)
class Pool:
    """How many workers of which size.

    Attributes:
        address: Of an existing cluster, "auto" for the one of this machine; None starts a local one.
        workers: Actors, each with an annotator of its own.
        cpus: Of each worker.
        gpus: Of each worker, or a share of one.
    """

    address: str | None = None
    workers: int = 1
    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class Task:
    """What is to be done.

    Attributes:
        annotator: Name, as for `load_annotator`.
        input: File, folder, glob, fsspec address or `hub:NAME[:SPLIT]`.
        output: Folder, local or at an fsspec address.
        shard_rows: Lines of a shard.
        chunk: Records annotated at once.
        options: Of `load_annotator`.
    """

    annotator: str
    input: str
    output: str
    shard_rows: int = 1000
    chunk: int = 32
    options: Mapping[str, Any] = field(default_factory=dict)


class Worker:
    """An actor: loads the annotator once, then annotates shard after shard."""

    def __init__(self, task: Task, stamp: str, fingerprint: str | None) -> None:
        from annotators import load_annotator

        self.task, self.stamp = task, stamp
        self.annotator: Any = load_annotator(task.annotator, **task.options)
        self.wrong = fingerprint not in (None, self.annotator.fingerprint)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[str]]:
        results = []
        for text in batch["shard"]:
            shard = Shard(**json.loads(str(text)))
            try:
                results.append(json.dumps(self._done(shard)))
            except Exception as error:  # whatever went wrong belongs to this shard, the others go on
                results.append(
                    json.dumps({"number": shard.number, "error": f"{type(error).__name__}: {error}"})
                )
        return {"result": results}

    def _done(self, shard: Shard) -> Record:
        if self.wrong:
            raise UsageError("finished shards were made by an annotator with another fingerprint")
        marks = {
            "stamp": self.stamp,
            "annotator": self.annotator.name,
            "fingerprint": self.annotator.fingerprint,
        }
        return work(shard, self._annotate, self.task.output, self.task.chunk, marks)

    def _annotate(self, records: list[Record]) -> Sequence[Record]:
        inputs = [{k: v for k, v in record.items() if k not in ADDED} for record in records]
        return [annotation.to_dict() for annotation in self.annotator.annotate_batch(inputs)]


def annotate_corpus(task: Task, pool: Pool, on_shard: Callable[[Record, int], None] | None = None) -> Record:
    """Annotate what is not done yet and write `manifest.json`.

    Args:
        task: What.
        pool: Where.
        on_shard: Called with what a shard's worker returned and the number of shards in all.

    Returns:
        The manifest: totals, the inputs, every shard with its counts and sha256.

    Raises:
        ImportError: Ray is not installed.
        UsageError: Nothing to read, or the output folder holds another job's shards.
        RuntimeError: Shards failed; run again to do only those.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ImportError("--distributed needs Ray: pip install 'hallucination-toolkit[ray]'") from error
    sources = find_inputs(task.input)
    shards = plan(sources, task.shard_rows)
    if not shards:
        raise UsageError(f"--input {task.input}: no lines in it")
    stamp = stamp_of(task, shards)
    system, folder = fsspec.core.url_to_fs(task.output)
    system.makedirs(folder, exist_ok=True)
    finished = {done["number"]: done for done in done_shards(task.output)}
    if any(done["stamp"] != stamp for done in finished.values()):
        raise UsageError(
            f"--output {task.output}: it holds shards of another input, shard size or options; name another folder"
        )
    fingerprint = next((done["fingerprint"] for done in finished.values()), None)
    left = [shard for shard in shards if shard.number not in finished]
    failed: list[Record] = []
    if left:
        start_ray(ray, pool)
        names = [{"shard": json.dumps(asdict(shard))} for shard in left]
        rows = ray.data.from_items(names, override_num_blocks=len(names)).map_batches(
            Worker,
            batch_size=1,
            concurrency=min(pool.workers, len(left)),
            num_cpus=pool.cpus,
            num_gpus=pool.gpus or None,
            fn_constructor_kwargs={"task": task, "stamp": stamp, "fingerprint": fingerprint},
        )
        for row in rows.iter_rows():
            found = json.loads(row["result"])
            if "error" in found:
                failed.append(found)
            else:
                finished[found["number"]] = found
            if on_shard is not None:
                on_shard(found, len(shards))
    if failed:
        raise RuntimeError(
            f"{len(failed)} of {len(shards)} shards failed, first {shards[failed[0]['number']].name}: "
            f"{failed[0]['error']}; run the same command again to do only these"
        )
    done = [finished[shard.number] for shard in shards]
    manifest = {
        "input": task.input,
        "files": sources,
        "shard_rows": task.shard_rows,
        "stamp": stamp,
        **{name: sum(one[name] for one in done) for name in ("records", "rejected", "sentences")},
        "shards": [{**one, "file": f"{shard.name}.jsonl"} for one, shard in zip(done, shards, strict=True)],
    }
    with system.open(f"{folder}/manifest.json.part", "w") as file:
        json.dump(manifest, file, ensure_ascii=False, indent=1)
    system.mv(f"{folder}/manifest.json.part", f"{folder}/manifest.json")
    return manifest


def stamp_of(task: Task, shards: Sequence[Shard]) -> str:
    """What two runs must have in common to share an output folder: the input's cuts, the annotator's name, options."""
    what = [
        task.annotator,
        task.chunk,
        sorted(map(str, task.options.items())),
        [asdict(shard) for shard in shards],
    ]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def start_ray(ray: Any, pool: Pool) -> None:
    """Connect to the cluster, or start a local one, unless this process has done so; sends no usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.data.DataContext.get_current().enable_progress_bars = False
    if ray.is_initialized():
        return
    # one CPU more than the workers take: Ray Data's own tasks need a place as well
    local = {"num_cpus": int(np.ceil(pool.workers * pool.cpus)) + 1, "include_dashboard": False}
    try:
        ray.init(logging_level="error", **({"address": pool.address} if pool.address is not None else local))
    except Exception as error:  # Ray raises bare Exceptions here
        where = (
            f"reach the Ray cluster at {pool.address}" if pool.address is not None else "start a local Ray"
        )
        raise RuntimeError(f"cannot {where}: {' '.join(str(error).split())[:300]}") from error
