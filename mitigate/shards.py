"""A corpus cut into shards, each read by itself: what `--distributed` hands to its workers.

Inputs are JSON Lines or Parquet files, folders and globs of them, on this machine or at any fsspec address, or
`hub:NAME[:CONFIGURATION][:SPLIT]` for a data set that `datasets` loads. Results are in `mitigate/shard_results.py`.
Knows nothing of Ray.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import fsspec
from fsspec.utils import glob_translate

from mitigate.errors import UsageError
from mitigate.jsonl import Check, Line, Problem, Record, dump_line, parse_line, shown

HUB = "hub:"
SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True)
class Shard:
    """A piece of one input.

    Attributes:
        number: Its place in the corpus, from 0.
        source: File or `hub:` name.
        start: First byte (JSON Lines) or row.
        end: Byte or row behind the last one.
        first: Number of its first line or row, from 1, for messages.
        digest: sha256 of its bytes, of a Parquet file that of what its end says of all rows; "" of a data set.
    """

    number: int
    source: str
    start: int
    end: int
    first: int
    digest: str = ""

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


def check_apart(place: str, sources: Sequence[str], output: str) -> None:
    """Refuse an output folder among the inputs.

    Args:
        place: As for ``find_inputs``.
        sources: What that found.
        output: Folder, local or at an fsspec address.

    Raises:
        UsageError: Results would be read as inputs the next time.
    """

    def address(place: str, option: str) -> str:
        try:
            system, path = fsspec.core.url_to_fs(place)
        except (ValueError, ImportError, OSError) as error:
            raise UsageError(f"{option} {place}: {error}") from error
        return str(system.unstrip_protocol(path)).rstrip("/") + "/"

    target = address(output, "--output")
    inside = False
    if not place.startswith(HUB):
        asked = address(place, "--input")
        pattern = re.compile(glob_translate(asked.rstrip("/")))
        inside = target.startswith(asked) or any(pattern.match(f"{target}part-00000{s}") for s in SUFFIXES)
    if inside or any(source.startswith(target) for source in sources):
        raise UsageError(
            f"--output {output}: results would lie among the files of --input {place} and be read as inputs the next "
            "time; name a folder elsewhere"
        )


def plan(sources: Sequence[str], rows: int) -> list[Shard]:
    """Cut the inputs into shards of at most `rows` lines; every input is looked through once, never held.

    Raises:
        UsageError: One can't be read.
    """
    _table.cache_clear()  # a file may be another one by now
    shards: list[Shard] = []
    for source in sources:
        try:
            for start, end, first, digest in _cuts(source, rows):
                shards.append(Shard(len(shards), source, start, end, first, digest))
        except OSError as error:
            raise UsageError(f"cannot read {source}: {error.strerror or error}") from error
    return shards


def _cuts(source: str, rows: int) -> Iterator[tuple[int, int, int, str]]:
    if not source.endswith(".jsonl"):
        table = _table(source)
        total = len(table)
        yield from ((a, min(a + rows, total), a + 1, table.digest) for a in range(0, total, rows))
        return
    start = at = first = 0
    digest = hashlib.sha256()
    with fsspec.open(source, "rb") as file:
        for number, raw in enumerate(file, start=1):
            at += len(raw)
            digest.update(raw)
            if number - first == rows:
                yield start, at, first + 1, digest.hexdigest()
                start, first, digest = at, number, hashlib.sha256()
    if at > start:
        yield start, at, first + 1, digest.hexdigest()


@lru_cache(maxsize=4)
def _table(source: str) -> _Parquet | _DataSet:
    """A Parquet file or a data set, on disk until its rows are read."""
    return _DataSet(source) if source.startswith(HUB) else _Parquet(source)


class _DataSet:
    digest = ""

    def __init__(self, source: str) -> None:
        from datasets import load_dataset

        name, *rest = re.split(r":(?![^\[]*\])", source.removeprefix(HUB))  # a split may be train[:100]
        if not name or len(rest) > 2:
            raise UsageError(f"--input {source}: expected hub:NAME[:CONFIGURATION][:SPLIT]")
        split = rest[-1] if rest else "train"
        try:
            self.rows = load_dataset(name, rest[0] if len(rest) == 2 else None, split=split)
        except (ValueError, OSError) as error:
            raise UsageError(f"--input {source}: {' '.join(str(error).split())[:300]}") from error

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, start: int, end: int) -> Iterator[Record]:
        yield from self.rows.select(range(start, end))


class _Parquet:
    """Read by row groups: memory holds one."""

    def __init__(self, source: str) -> None:
        self.source = source
        with fsspec.open(source, "rb") as file:
            groups = _parquet(source, file).metadata
            self.sizes = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
            self.digest = hashlib.sha256(repr(groups.to_dict()).encode()).hexdigest()

    def __len__(self) -> int:
        return sum(self.sizes)

    def select(self, start: int, end: int) -> Iterator[Record]:
        first = 0
        with fsspec.open(self.source, "rb") as file:
            table = _parquet(self.source, file)
            for group, size in enumerate(self.sizes):
                a, b = max(start - first, 0), min(end - first, size)
                if a < b:
                    yield from table.read_row_group(group).slice(a, b - a).to_pylist()
                first += size


def _parquet(source: str, file: Any) -> Any:
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(file)
    except ArrowInvalid as error:
        raise UsageError(f"--input {source}: {error}") from error


def read_shard(shard: Shard, check: Check) -> Iterator[Line]:
    """The lines of a shard, good or bad, as `mitigate.jsonl.read_lines` gives those of a file."""
    if not shard.source.endswith(".jsonl"):
        for number, row in enumerate(_table(shard.source).select(shard.start, shard.end), shard.first):
            try:
                raw = dump_line(row).rstrip(b"\n")
            except (TypeError, ValueError) as error:
                value = Problem("", shown(repr(row)), f"values that JSON can hold ({error})")
                yield Line(number, repr(row).encode("utf-8", "backslashreplace"), None, (value,))
                continue
            yield Line(number, raw, *parse_line(raw, check))
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
                yield Line(number, raw, *parse_line(raw, check))
            number += 1
