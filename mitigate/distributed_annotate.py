"""Annotation of a corpus by many workers; see `mitigate/distributed.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mitigate.distributed import OnShard, Pool, Worker, run_shards, shards_of, stamp_of
from mitigate.errors import UsageError
from mitigate.jsonl import Record, check_annotation_input
from mitigate.shard_results import Format, done_shards, held, work, write_manifest
from mitigate.shards import Shard

ADDED = ("sentences", "annotator", "hallucination_rate")


@dataclass(frozen=True)
class Task:
    """What is to be done.

    Attributes:
        annotator: Name, as for `load_annotator`.
        input: File, folder, glob, fsspec address or `hub:NAME[:CONFIGURATION][:SPLIT]`.
        output: Folder, local or at an fsspec address.
        shard_rows: Lines of a shard.
        chunk: Records annotated at once.
        options: Of `load_annotator`.
        format: Of the results.
    """

    annotator: str
    input: str
    output: str
    shard_rows: int = 1000
    chunk: int = 32
    options: Mapping[str, Any] = field(default_factory=dict)
    format: Format = "jsonl"


class Annotate(Worker):
    """Loads the annotator once, then annotates shard after shard."""

    def __init__(self, task: Task, stamp: str, fingerprint: str | None) -> None:
        from annotators import load_annotator

        self.task, self.stamp = task, stamp
        self.annotator: Any = load_annotator(task.annotator, **task.options)
        self.wrong = fingerprint not in (None, self.annotator.fingerprint)

    def done(self, shard: Shard) -> Record:
        if self.wrong:
            raise UsageError(
                f"finished shards in --output {self.task.output} were made by an annotator with another fingerprint; "
                "name another folder"
            )
        marks = {
            "stamp": self.stamp,
            "annotator": self.annotator.name,
            "fingerprint": self.annotator.fingerprint,
        }
        return work(shard, self._annotate, self.task.output, self.task.chunk, marks,
                    check=check_annotation_input, format=self.task.format)  # fmt: skip

    def _annotate(self, records: list[Record]) -> Sequence[Record]:
        inputs = [{k: v for k, v in record.items() if k not in ADDED} for record in records]
        return [annotation.to_dict() for annotation in self.annotator.annotate_batch(inputs)]


def annotate_corpus(task: Task, pool: Pool, on_shard: OnShard | None = None) -> Record:
    """Annotate what is not done yet and write `manifest.json`.

    Args:
        task: What.
        pool: Where.
        on_shard: Told of each shard.

    Returns:
        The manifest: totals, the inputs, every shard with its counts and sha256.

    Raises:
        ImportError: Ray is not installed.
        UsageError: Nothing to read, or an output folder that holds another job's shards, that another run holds or
            that can't be written.
        RuntimeError: Shards failed; run again to do only those.
    """
    sources, shards = shards_of(task.input, task.output, task.shard_rows, pool)
    options = sorted(map(str, task.options.items()))
    stamp = stamp_of(shards, task.annotator, task.chunk, options, task.format)
    with held(task.output):
        finished = done_shards(task.output, stamp)
        fingerprint = next((done["fingerprint"] for done in finished.values()), None)
        arguments = {"task": task, "stamp": stamp, "fingerprint": fingerprint}
        left = [shard for shard in shards if shard.number not in finished]
        uses_ray = task.annotator.startswith("generative:vllm-ray:")
        finished |= run_shards(Annotate, arguments, left, len(shards), pool, on_shard, uses_ray=uses_ray)
        about = {"input": task.input, "files": sources, "shard_rows": task.shard_rows, "stamp": stamp}
        return write_manifest(task.output, shards, finished, task.format, about)
