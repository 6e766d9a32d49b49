"""What a worker writes of a shard, and how it is known to be whole.

    folder/part-00007.jsonl             results of shard 7, in the order of its records (or .parquet)
    folder/part-00007.rejected.jsonl    its bad lines, where there are any
    folder/part-00007.done.json         written last: the shard is whole; how many, sha256

A shard that is done twice is written twice with the same content, so that nothing is lost or doubled when a worker
dies. Until a file is whole it has a name of its own (`….part`), so that two workers never write into one file: a
worker that was given up for lost may still be at work.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import fsspec
from fsspec.implementations.local import LocalFileSystem

from mitigate.errors import UsageError
from mitigate.jsonl import Check, Record, dump_line, rejected_row
from mitigate.shards import Shard, read_shard

Format = Literal["jsonl", "parquet"]
FORMATS: tuple[Format, ...] = ("jsonl", "parquet")
Process = Callable[[list[Record]], Sequence[Record]]
_UNFINISHED = re.compile(r"(part-\d+|manifest|frequencies)\..*\.part")
FLOATS = ("hallucination_rate",)
"""Columns that hold numbers or nothing, also in a shard where all hold nothing."""


def work(
    shard: Shard,
    process: Process,
    output: str,
    chunk: int,
    marks: Record,
    *,
    check: Check,
    format: Format = "jsonl",
    tell: Callable[[], Mapping[str, Any]] = dict,
) -> Record:
    """Turn a shard's records into results and write its files; returns what its `.done.json` says.

    Args:
        shard: Which.
        process: Records in, results out, in the same order.
        output: Folder, local or at an fsspec address.
        chunk: Records handed over at once.
        marks: What tells this job's shards from another's; put into `.done.json`.
        check: Finds what is wrong with a record.
        format: Of the results.
        tell: Called when all results are there; what it returns is put into `.done.json`.
    """
    system, folder = fsspec.core.url_to_fs(output)
    base = f"{folder}/{shard.name}"
    good_part, bad_part = (f"{base}.{kind}.{uuid4().hex[:8]}.part" for kind in (format, "rejected.jsonl"))
    counts = {"records": 0, "rejected": 0, "sentences": 0}
    pending: list[Record] = []
    rows: list[Record] = []  # for Parquet only, which is written whole
    digest = hashlib.sha256()
    with _deleted_if_it_fails(system, good_part, bad_part):
        with system.open(good_part, "wb") as good, system.open(bad_part, "wb") as bad:

            def write(data: bytes) -> None:
                digest.update(data)
                good.write(data)

            def flush() -> None:
                found = process(pending) if pending else ()
                if len(found) != len(pending):
                    raise RuntimeError(f"{len(pending)} records went in and {len(found)} results came out")
                for row in found:
                    counts["records"] += 1
                    counts["sentences"] += len(row.get("sentences", ()))
                    write(dump_line(row)) if format == "jsonl" else rows.append(row)
                pending.clear()

            for line in read_shard(shard, check):
                if line.record is None:
                    bad.write(dump_line({**rejected_row(Path(), line), "file": shard.source}))
                    counts["rejected"] += 1
                    continue
                pending.append(line.record)
                if len(pending) == chunk:
                    flush()
            flush()
            if format == "parquet":
                write(parquet_bytes(rows))
        told = tell()
        system.mv(good_part, f"{base}.{format}")
        if counts["rejected"]:
            system.mv(bad_part, f"{base}.rejected.jsonl")
        else:
            system.rm(bad_part)
    done = {**asdict(shard), **marks, **counts, **told, "sha256": digest.hexdigest()}
    write_whole(f"{output}/{shard.name}.done.json", dump_line(done))
    return done


@contextmanager
def _deleted_if_it_fails(system: Any, *paths: str) -> Iterator[None]:
    """Unfinished files do not outlive an error inside."""
    try:
        yield
    except BaseException:
        for path in paths:
            with suppress(Exception):  # it is gone, or that fails too: the error inside is the one to tell
                system.rm(path)
        raise


def write_whole(address: str, data: bytes) -> None:
    """Write a file whole or not at all, as far as the file system moves files in one step."""
    system, path = fsspec.core.url_to_fs(address)
    part = f"{path}.{uuid4().hex[:8]}.part"
    with _deleted_if_it_fails(system, part):
        with system.open(part, "wb") as file:
            file.write(data)
        system.mv(part, path)  # on an object store a copy, which needs room of its own


def read_whole(address: str) -> Any:
    """The value of a JSON file.

    Raises:
        UsageError: It holds none.
    """
    with fsspec.open(address, "rb") as file:
        data = file.read()
    try:
        return json.loads(data)
    except ValueError as error:
        raise UsageError(f"{address} is damaged: delete it and run the same command again") from error


@contextmanager
def held(output: str) -> Iterator[None]:
    """The output folder for this run alone, made where there is none; at the end what dead workers left is deleted.

    At an address other runs are not noticed.

    Raises:
        UsageError: It can't be a folder that is written to, or another run holds it.
    """
    import fcntl  # POSIX only, so not at the top

    try:
        system, folder = fsspec.core.url_to_fs(output)
        system.makedirs(folder, exist_ok=True)
    except (OSError, ValueError, ImportError) as error:
        raise UsageError(f"--output {output}: {error}") from error
    if not isinstance(system, LocalFileSystem):
        yield
        return
    if not os.access(folder, os.W_OK):
        raise UsageError(f"--output {output}: permission denied; name a folder that you may write to")
    place = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a network file system may know no locks
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(
                    f"--output {output} is being written by another run: wait for it, or name another folder"
                ) from error
        yield
        for left in Path(folder).rglob("*.part"):
            if _UNFINISHED.fullmatch(left.name):
                left.unlink(missing_ok=True)
    finally:
        os.close(place)


def done_shards(output: str, stamp: str) -> dict[int, Record]:
    """What the `.done.json` files in the output folder say, by number; the folder is made where there is none.

    A shard whose results are gone does not count.

    Raises:
        UsageError: They are another job's.
    """
    system, folder = fsspec.core.url_to_fs(output)
    system.makedirs(folder, exist_ok=True)
    there = {path.rsplit("/", 1)[-1] for path in system.glob(f"{folder}/part-*")}
    names = sorted(name for name in there if name.endswith(".done.json"))
    found = {name: read_whole(system.unstrip_protocol(f"{folder}/{name}")) for name in names}
    if any(done["stamp"] != stamp for done in found.values()):
        raise UsageError(
            f"--output {output}: it holds shards of another input, shard size or options; name another folder"
        )
    results = {name: {f"{name.removesuffix('.done.json')}.{kind}" for kind in FORMATS} for name in names}
    return {done["number"]: done for name, done in found.items() if results[name] & there}


def write_manifest(
    output: str, shards: Sequence[Shard], done: Mapping[int, Record], format: Format, more: Record
) -> Record:
    """Write `manifest.json`: totals, and every shard with its file; returns it."""
    found = [done[shard.number] for shard in shards]
    manifest = {
        **more,
        "format": format,
        **{name: sum(one[name] for one in found) for name in ("records", "rejected", "sentences")},
        "shards": [{**one, "file": f"{s.name}.{format}"} for one, s in zip(found, shards, strict=True)],
    }
    write_whole(
        f"{output}/manifest.json",
        json.dumps(manifest, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace"),
    )
    return manifest


def parquet_bytes(rows: Sequence[Record]) -> bytes:
    """Rows as a Parquet file, one column for each key.

    Texts, numbers and truth values keep their types. Lists, objects and columns of several types are JSON text, so that
    the parts of a corpus have the same columns whatever is in them. A key that a row lacks is null.
    """
    import pyarrow as pa
    from pyarrow import parquet

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: _column(name, [row.get(name) for row in rows]) for name in names})
    file = io.BytesIO()
    parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def _column(name: str, values: list[Any]) -> Any:
    import pyarrow as pa

    kinds = {type(value) for value in values if value is not None}
    if name in FLOATS or kinds == {int, float}:
        return pa.array(values, pa.float64())
    if not kinds:
        return pa.array(values, pa.string())
    if len(kinds) == 1 and not kinds & {list, dict}:
        try:
            return pa.array(values)
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):  # too large for int64; half a character
            pass
    return pa.array([None if v is None else _json(v) for v in values], pa.string())


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
