"""A corpus cut into shards, each worked through by itself: what `mitigate annotate --distributed` hands to its workers.

    folder/part-00007.jsonl             results of shard 7, in the order of its records
    folder/part-00007.rejected.jsonl    its bad lines, where there are any
    folder/part-00007.done.json         written last: the shard is whole; how many, sha256

Inputs are JSON Lines or Parquet files, folders and globs of them, on this machine or at any fsspec address, or
`hub:NAME[:SPLIT]` for a data set that `datasets` loads. Knows nothing of Ray. A shard that is done twice is written
twice with the same content, so that nothing is lost or doubled when a worker dies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import fsspec

from mitigate.errors import UsageError
from mitigate.jsonl import (
    Line,
    Problem,
    Record,
    check_annotation_input,
    dump_line,
    parse_line,
    rejected_row,
    shown,
)

HUB = "hub:"
SUFFIXES = (".jsonl", ".parquet")
Annotate = Callable[[list[Record]], Sequence[Record]]


@dataclass(frozen=True)
class Shard:
    """A piece of one input.

    Attributes:
        number: Its place in the corpus, from 0.
        source: File or `hub:` name.
        start: First byte (JSON Lines) or row.
        end: Byte or row behind the last one.
        first: Number of its first line or row, from 1, for messages.
    """

    number: int
    source: str
    start: int
    end: int
    first: int

    @property
    def name(self) -> str:
        return f"part-{self.number:05d}"


def find_inputs(place: str) -> list[str]:
    """The files that an address, folder or glob stands for, sorted; a `hub:` name stands for itself.

    Raises:
        UsageError: There are none, or one is neither JSON Lines nor Parquet.
    """
    if place.startswith(HUB):
        return [place]
    try:
        system, path = fsspec.core.url_to_fs(place)
        if system.isdir(path):
            found = [f for f in system.find(path) if f.endswith(SUFFIXES)]
        else:
            found = (
                system.glob(path) if any(c in path for c in "*?[") else [path] if system.exists(path) else []
            )
    except (ValueError, ImportError, OSError) as error:
        raise UsageError(f"--input {place}: {error}") from error
    if not found:
        raise UsageError(f"--input {place}: no such file, or no *.jsonl or *.parquet in that folder")
    for file in found:
        if not str(file).endswith(SUFFIXES):
            raise UsageError(f"--input {place}: expected files named *.jsonl or *.parquet, got {file}")
    return sorted(system.unstrip_protocol(str(file)) for file in found)


def plan(sources: Sequence[str], rows: int) -> list[Shard]:
    """Cut the inputs into shards of at most `rows` lines; every input is looked through once, never held."""
    shards: list[Shard] = []
    for source in sources:
        for start, end, first in _cuts(source, rows):
            shards.append(Shard(len(shards), source, start, end, first))
    return shards


def _cuts(source: str, rows: int) -> Iterator[tuple[int, int, int]]:
    if not source.endswith(".jsonl"):
        total = len(_table(source))
        yield from ((a, min(a + rows, total), a + 1) for a in range(0, total, rows))
        return
    start = at = first = 0
    with fsspec.open(source, "rb") as file:
        for number, raw in enumerate(file, start=1):
            at += len(raw)
            if number - first == rows:
                yield start, at, first + 1
                start, first = at, number
    if at > start:
        yield start, at, first + 1


def _table(source: str) -> Any:
    """A Parquet file's or a data set's rows, on disk until they are read."""
    if source.startswith(HUB):
        from datasets import load_dataset

        name, _, split = source.removeprefix(HUB).rpartition(":")
        name, split = (name, split) if name else (split, "train")
        return load_dataset(name, split=split)
    from pyarrow import dataset

    system, path = fsspec.core.url_to_fs(source)
    return _Parquet(dataset.dataset(path, format="parquet", filesystem=system))


@dataclass
class _Parquet:
    """The two things that are asked of rows."""

    dataset: Any

    def __len__(self) -> int:
        return int(self.dataset.count_rows())

    def select(self, places: range) -> Iterator[Record]:
        yield from self.dataset.take(list(places)).to_pylist()


def read_shard(shard: Shard) -> Iterator[Line]:
    """The lines of a shard, good or bad, as `mitigate.jsonl.read_lines` gives those of a file."""
    if not shard.source.endswith(".jsonl"):
        for number, row in enumerate(_table(shard.source).select(range(shard.start, shard.end)), shard.first):
            try:
                raw = dump_line(row).rstrip(b"\n")
            except (TypeError, ValueError) as error:
                value = Problem("", shown(repr(row)), f"values that JSON can hold ({error})")
                yield Line(number, repr(row).encode("utf-8", "backslashreplace"), None, (value,))
                continue
            yield Line(number, raw, *parse_line(raw, check_annotation_input))
        return
    with fsspec.open(shard.source, "rb") as file:
        file.seek(shard.start)
        at, number = shard.start, shard.first
        while at < shard.end and (raw := file.readline()):
            at += len(raw)
            raw = raw.removesuffix(b"\n")
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if raw.strip():
                yield Line(number, raw, *parse_line(raw, check_annotation_input))
            number += 1


def work(shard: Shard, annotate: Annotate, output: str, chunk: int, marks: Record) -> Record:
    """Annotate a shard and write its files; returns what its `.done.json` says.

    Args:
        shard: Which.
        annotate: Records in, annotated records out, in the same order.
        output: Folder, local or at an fsspec address.
        chunk: Records annotated at once.
        marks: What tells this job's shards from another's; put into `.done.json`.
    """
    system, folder = fsspec.core.url_to_fs(output)
    base = f"{folder}/{shard.name}"
    digest, counts = hashlib.sha256(), {"records": 0, "rejected": 0, "sentences": 0}
    pending: list[Record] = []
    with (
        system.open(f"{base}.jsonl.part", "wb") as good,
        system.open(f"{base}.rejected.jsonl.part", "wb") as bad,
    ):

        def flush() -> None:
            for row in annotate(pending) if pending else ():
                data = dump_line(row)
                digest.update(data)
                good.write(data)
                counts["records"] += 1
                counts["sentences"] += len(row["sentences"])
            pending.clear()

        for line in read_shard(shard):
            if line.record is None:
                bad.write(dump_line({**rejected_row(Path(), line), "file": shard.source}))
                counts["rejected"] += 1
                continue
            pending.append(line.record)
            if len(pending) == chunk:
                flush()
        flush()
    system.mv(f"{base}.jsonl.part", f"{base}.jsonl")
    if counts["rejected"]:
        system.mv(f"{base}.rejected.jsonl.part", f"{base}.rejected.jsonl")
    else:
        system.rm(f"{base}.rejected.jsonl.part")
    done = {**asdict(shard), **marks, **counts, "sha256": digest.hexdigest()}
    with system.open(f"{base}.done.json.part", "wb") as file:
        file.write(dump_line(done))
    system.mv(f"{base}.done.json.part", f"{base}.done.json")
    return done


def done_shards(output: str) -> list[Record]:
    """What the `.done.json` files in the output folder say."""
    system, folder = fsspec.core.url_to_fs(output)
    found = []
    for path in sorted(system.glob(f"{folder}/part-*.done.json")):
        with system.open(path, "rb") as file:
            found.append(json.loads(file.read()))
    return found
