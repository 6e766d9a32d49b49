"""Work by many machines (`--distributed`, extra `ray`): annotation, and what FEWL asks its reference LLMs.

    OUTPUT.parts/part-00007-3f2a9c0d11e84b72.jsonl    results of the eighth part of the input, in its order

Ray Data hands parts of N good lines to workers, actors that load their models once and work as one process would. A
part's file appears in one step, and its name carries a digest of its lines and of the settings: a second run skips what
is there and does again what died with its worker, node or run. When all are there, the command writes OUTPUT of them.

Leaves out machines without a common file system. FEWL's scores need all questions, so one process computes them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

import numpy as np

from mitigate import models
from mitigate.io import (
    Check,
    Job,
    Process,
    Record,
    UsageError,
    check_record,
    dump_line,
    files,
    parse_line,
    processed,
    say,
    usage,
    without_results,
)

LIMITS = ("max_cost", "requests_per_minute", "tokens_per_minute")
"""Options of ``engines.usage.METER``, which counts what its own process asks."""
Prepare = Callable[[], Process]
"""Loads the models and returns the function that does the work; called once in every worker."""


class PartsError(RuntimeError):
    """Some parts are not done. Those that are stay, and the same command does the rest."""


@dataclass(frozen=True)
class Pool:
    """How many workers of which size, and how many records they get at once; see `mitigate/cli/options.py`."""

    address: str | None = None
    workers: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    part_size: int = 1000


def pool_of(args: argparse.Namespace) -> Pool | None:
    """The pool that the options describe; None without `--distributed`. Raises UsageError: Ray is not installed,
    workers are described but not asked for, or a limit was given that they cannot keep together.
    """
    pool = Pool(args.address, args.workers, args.cpus_per_worker, args.gpus_per_worker, args.part_size)
    if not args.distributed and pool != Pool():
        raise UsageError("--address, --workers, --part-size and sizes of workers belong to --distributed: give it, too")
    limits = [name for name in LIMITS if args.distributed and args.workers and getattr(args, name) is not None]
    if limits:
        given = ", ".join("--" + name.replace("_", "-") for name in limits)
        raise UsageError(f"{given}: limits hold in one process; leave --distributed out, or give it --workers 0")
    if args.distributed and args.workers and find_spec("ray") is None:
        install = "pip install 'hallucination-toolkit[ray]'"
        raise UsageError(f"--distributed needs Ray: {install}; --workers 0 works in this process without it")
    return pool if args.distributed else None


@dataclass(frozen=True)
class Part:
    """A piece of the input: the bytes from ``start`` to ``end`` hold ``records`` good lines."""

    number: int
    start: int
    end: int
    records: int
    digest: str


@dataclass(frozen=True)
class Task:
    """An input, the folder for the files of its parts, and ``settings``: all else that their content depends on."""

    source: Path
    folder: Path
    check: Check
    settings: str

    @classmethod
    def of(cls, source: Path, output: Path, check: Check, settings: Mapping[str, Any]) -> Task:
        return cls(source.resolve(), folder_of(output), check, json.dumps(settings, sort_keys=True, default=str))

    def cut(self, size: int) -> list[Part]:
        """Cut the input into parts of ``size`` good lines, holding no more than one line."""
        parts: list[Part] = []
        start, end, records, digest = 0, 0, 0, self.digest()
        with self.source.open("rb") as file:
            for line in file:
                records += len(self._records(line, end))
                end += len(line)
                digest.update(line)
                if records == size:
                    parts.append(Part(len(parts), start, end, records, digest.hexdigest()))
                    start, records, digest = end, 0, self.digest()
        if records:
            parts.append(Part(len(parts), start, end, records, digest.hexdigest()))
        return parts

    def digest(self, data: bytes = b"") -> hashlib._Hash:
        """A digest of the settings and of these lines, which more lines may be added to."""
        return hashlib.sha256(self.settings.encode() + data)

    def path(self, part: Part) -> Path:
        return self.folder / f"part-{part.number:05d}-{part.digest[:16]}.jsonl"

    def do(self, part: Part, process: Process) -> None:
        """Do one part and write its file in one step."""
        with self.source.open("rb") as file:
            file.seek(part.start)
            data = file.read(part.end - part.start)
        if self.digest(data).hexdigest() != part.digest:
            raise UsageError(f"{self.source} changed after it was cut into parts: run the same command again")
        rows = processed(process, self._records(data, part.start))
        path = self.path(part)
        # A name of its own: a worker that Ray gave up for lost may still be writing the same part.
        unfinished = path.with_name(f"{path.name}.{uuid4().hex[:8]}.part")
        try:
            with unfinished.open("wb") as file:
                file.writelines(dump_line(row) for row in rows)
                file.flush()
                os.fsync(file.fileno())  # else a power failure could leave an empty file under the final name
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def rows(self, parts: Sequence[Part]) -> Iterator[Record]:
        """The results of these parts, one after the other. Raises PartsError: a file does not hold what was written."""
        for part in parts:
            path = self.path(part)
            try:
                rows = [json.loads(line) for line in path.read_bytes().splitlines()]
            except ValueError:
                rows = []
            if len(rows) != part.records:
                raise PartsError(f"{path} is damaged: delete it and run the same command again")
            yield from rows

    def _records(self, data: bytes, start: int) -> list[Record]:
        """The good lines among bytes that stand at ``start`` in the input."""
        data = data.removeprefix(b"\xef\xbb\xbf") if start == 0 else data
        found = (parse_line(line, self.check)[0] for line in data.split(b"\n") if line.strip())
        return [record for record in found if record is not None]


def folder_of(output: Path) -> Path:
    """Where the files of an output's parts lie until it is whole."""
    return output.with_name(output.name + ".parts").resolve()


def delete_parts(folder: Path, names: str = "part-*") -> None:
    """Delete the files of parts, and the folder if it is then empty."""
    for path in folder.glob(names):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


class Worker:
    """What Ray keeps in every actor: it loads the models once, then does part after part."""

    def __init__(self, task: Task, prepare: Prepare) -> None:
        self.task, self.process = task, prepare()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[str]]:
        return {"done": [json.dumps(self.attempt(Part(**json.loads(str(one))))) for one in batch["part"]]}

    def attempt(self, part: Part) -> Record:
        """Do a part and say how it went. An error concerns this part only: the worker goes on with others."""
        try:
            self.task.do(part, self.process)
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:1000]
            return {"part": part.number, "error": why, "usage": isinstance(error, UsageError)}
        return {"part": part.number}


def do_parts(task: Task, prepare: Prepare, parts: Sequence[Part], pool: Pool, tell: models.Tell = say) -> None:
    """Have those of these parts done that have no file yet; ``tell`` is called with a line about every part. Raises
    PartsError where parts failed or were lost, UsageError where all failures are mistakes of the user's.
    """
    left = {part.number: part for part in parts if not task.path(part).exists()}
    if not left:
        return
    with files(UsageError, f"cannot make the folder {task.folder}"):
        task.folder.mkdir(exist_ok=True)
    do = _on_ray if pool.workers else _in_this_process
    begin, records, failed = perf_counter(), 0, []
    for done in do(task, prepare, list(left.values()), pool):
        part = left.pop(done["part"])
        failed += [done] if "error" in done else []
        records += 0 if "error" in done else part.records
        tell(
            f"part {part.number + 1} {'failed' if 'error' in done else 'done'}, {len(left) + len(failed):,} left, "
            f"{records / (perf_counter() - begin):,.1f} records/s"
        )
    failed += [{"part": number, "error": "it was lost with its worker", "usage": False} for number in left]
    if failed:
        first = min(failed, key=lambda done: int(done["part"]))
        if all(done["usage"] for done in failed):
            raise UsageError(first["error"].removeprefix("UsageError: "))
        raise PartsError(
            f"{len(failed)} of {len(parts)} parts failed, first part {first['part'] + 1}: {first['error']}; "
            "run the same command again to do only these"
        )
    delete_parts(task.folder, "part-*.part")  # of workers that were killed while they wrote


def _in_this_process(task: Task, prepare: Prepare, left: list[Part], _: Pool) -> Iterator[Record]:
    with usage("", (OSError, ValueError, ImportError)):
        worker = Worker(task, prepare)
    yield from map(worker.attempt, left)


def _on_ray(task: Task, prepare: Prepare, left: list[Part], pool: Pool) -> Iterator[Record]:
    """Ray Data starts actors anew where a node dies, and gives what they had not finished to others."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1  # a lost part is known by its absence; the others go on
    where: dict[str, Any] = {"address": pool.address}
    if pool.address is None:  # one CPU more than the workers take: Ray Data's own tasks need a place as well
        where = {"num_cpus": math.ceil(pool.workers * pool.cpus) + 1, "include_dashboard": False}
    try:
        ray.init(logging_level="error", ignore_reinit_error=True, **where)
    except Exception as error:  # Ray raises bare Exceptions here
        what = "start a local Ray" if pool.address is None else f"reach the Ray cluster at {pool.address}"
        raise PartsError(f"cannot {what}: {' '.join(str(error).split())[:300]}") from error
    names = [{"part": json.dumps(asdict(part))} for part in left]
    rows = ray.data.from_items(names, override_num_blocks=len(names))  # a block each: a part that fails fails alone
    actors = ray.data.ActorPoolStrategy(size=min(pool.workers, len(left)))
    size = {"compute": actors, "num_cpus": pool.cpus, "num_gpus": pool.gpus or None}
    done = rows.map_batches(Worker, batch_size=1, fn_constructor_args=(task, prepare), **size)
    try:
        for row in done.iter_rows():
            yield json.loads(row["done"])
    except ray.exceptions.RayError as error:  # models that cannot be loaded, or a cluster that is gone
        why = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise PartsError(f"{why[0]}; run the same command again to do the parts that are left") from error


def annotate(
    job: Job, name: str, options: Mapping[str, Any], chunk: int, pool: Pool, known: Set[str]
) -> Iterator[Record]:
    """Annotate the records that have no result in a job's output yet; returns their results, in order.

    One process may have begun the output; ``known`` are the fingerprints of the annotators that wrote what is in it.
    ``chunk`` records are judged at once. UsageError: finished work is another annotator's; PartsError: parts failed.
    """
    different = {k: v for k, v in options.items() if k not in ("cache", "concurrency")}
    settings = {"annotator": name, "chunk": chunk, **different}
    task = Task.of(job.source, job.output, job.check, settings)
    # Whole chunks: results whose last digits depend on what is judged together are then those of one process.
    parts, before = task.cut(math.ceil(pool.part_size / chunk) * chunk), 0
    while parts and before + parts[0].records <= job.done:  # the output has them already
        before += parts.pop(0).records
    # Where nothing is left, a worker gets an empty part to see that the annotator is the one that did the others.
    todo = parts if job.done < job.valid else [Part(0, 0, 0, 0, task.digest().hexdigest())]

    def fingerprints() -> Set[str]:
        """Those of the annotators that did what is done."""
        done = [next(task.rows([part])) for part in parts if task.path(part).exists()]
        return known | {str(row["annotator"]["fingerprint"]) for row in done}

    do_parts(task, partial(_annotator, name, options, chunk, fingerprints()), todo, pool)
    if len(by := fingerprints()) > 1:
        raise UsageError(
            f"{task.folder} holds results of annotators with fingerprints {', '.join(sorted(by))}: see that all "
            "nodes have the same annotator, delete that folder and run the same command again"
        )
    return islice(task.rows(parts), job.done - before, None)


def _annotator(name: str, options: Mapping[str, Any], chunk: int, known: Set[str]) -> Process:
    from annotators import load_annotator

    annotator = load_annotator(name, **options)

    def process(records: list[Record]) -> list[Record]:
        if others := known - {annotator.fingerprint}:
            raise UsageError(
                f"finished records are by an annotator with fingerprint {min(others)}, and {name} has "
                f"{annotator.fingerprint}; choose another --output, or start again with --overwrite"
            )
        inputs = [without_results(record) for record in records]
        chunks = (inputs[start : start + chunk] for start in range(0, len(inputs), chunk))
        return [annotation.to_dict() for one in chunks for annotation in annotator.annotate_batch(one)]

    return process


def fill(
    source: Path, output: Path, llms: Mapping[str, Sequence[str]], how: Mapping[str, Any], cache: Path | None,
    concurrency: int, pool: Pool, again: bool,
) -> tuple[list[Record], list[models.Asked], str | None]:  # fmt: skip
    """Ask LLMs what the FEWL records of a file lack; returns what `mitigate.models.fill` makes of them, and which
    requests were refused.

    ``llms`` holds ``references`` and ``answers``, each a list of ``[NAME=]KIND:MODEL[@BASE_URL]``. Each worker has so
    many requests (``concurrency``) in flight at a server. ``cache`` holds the replies for all workers; None has each
    remember its own. The files of the parts stay: the same records are scored in another way without asking again,
    except, if ``again``, for what was refused.
    """
    task = Task.of(source, output, check_record, {"llms": llms, **how})
    parts = task.cut(pool.part_size)
    for part in parts if again else ():
        if task.path(part).exists() and any(row["refused"] for row in task.rows([part])):
            task.path(part).unlink()
    do_parts(task, partial(_filler, llms, how, cache, concurrency), parts, pool)
    rows = list(task.rows(parts))
    refused = "; ".join(dict.fromkeys(row["refused"] for row in rows if row["refused"]))
    return [row["record"] for row in rows], [models.Asked.from_dict(row["asked"]) for row in rows], refused or None


def _filler(llms: Mapping[str, Sequence[str]], how: Mapping[str, Any], cache: Path | None, concurrency: int) -> Process:
    opened: dict[str, Any] = {}  # closed with their worker; a model that has both roles is loaded once
    where = (ExitStack(), opened, cache or Path(":memory:"), concurrency)
    references, answers = (models.open_named(llms[role], role, *where) for role in ("references", "answers"))

    def process(records: list[Record]) -> list[Record]:
        for engine in opened.values():
            engine.errors.clear()
        asked = models.fill(records, references, answers=answers, **how)
        if failed := models.failures(opened.values(), refused=False):
            raise RuntimeError(failed)
        refused = models.failures(opened.values())
        return [{"record": r, "asked": a.to_dict(), "refused": refused} for r, a in zip(records, asked, strict=True)]

    return process
