"""FEWL scoring of a corpus by many workers; see `mitigate/distributed.py`.

Three steps, since the laziness penalty compares an answer with reference answers to neighbour questions, which may be
anywhere: by shards, ask the reference LLMs what records lack and embed the questions; in this process, find neighbours
(`mitigate/fewl_corpus.py`); by shards, score. A shard is scored as the whole would be. Texts are embedded shard by
shard, which changes the last digits of their vectors (about 1e-7); without embeddings the bytes are those of one
process.
"""

from __future__ import annotations

import io
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from typing import Any

import fsspec
import numpy as np

from engines.cache import CachedEngine, ResponseCache
from engines.chat import load_engine
from fewl.iwco import report as pairs_report
from fewl.records import read_record
from fewl.score import FewlReport, score_records
from fewl.similarity import char_tfidf, is_chinese
from fewl.surroundings import Frequencies, Surroundings
from mitigate.commands.fewl_files import check_record
from mitigate.commands.fewl_similarity import TFIDF, called, load_embedder, load_similarity
from mitigate.distributed import OnShard, Pool, Worker, run_shards, shards_of, stamp_of
from mitigate.errors import UsageError
from mitigate.fewl_corpus import Task, filled_shard, gather, merged, resolved, surround
from mitigate.fewl_filling import add_pairs, add_references, ask_expertise, failures
from mitigate.jsonl import Record
from mitigate.shard_results import done_shards, held, read_whole, work, write_manifest, write_whole
from mitigate.shards import Shard


class Fill(Worker):
    """Asks what records lack and embeds their questions; engines and embedding model are loaded once."""

    def __init__(self, task: Task, stamp: str) -> None:
        self.task, self.stamp = task, stamp
        self.engines = [load_engine(spec) for spec in task.llms]
        self.embeds = task.options.penalty
        reads = self.embeds or task.similarity == "cosine"  # what it reads decides about TF-IDF
        self.embedder = load_embedder(task.embedding) if reads else None

    def done(self, shard: Shard) -> Record:
        vectors: list[np.ndarray] = []
        told: Record = {"chinese": False}

        def fill(records: list[Record]) -> list[Record]:
            with self._cached(shard) as engines:
                asked = self._ask(records, engines, told)
            questions = [read_record(record).question for record in records]
            told["chinese"] = any(map(is_chinese, questions))
            if self.embedder is not None and self.embeds:
                vectors.append(self.embedder.encode(questions))
            return [{"record": r, "prompted": p} for r, p in zip(records, asked, strict=True)]

        def tell() -> Record:
            if self.embedder is not None:
                told["embedding"] = called(self.embedder)
                told["reads_chinese"] = self.embedder.reads_chinese
                if self.embeds:
                    file = io.BytesIO()
                    np.save(
                        file, vectors[0] if vectors else np.zeros((0, self.embedder.dimension), np.float32)
                    )
                    write_whole(f"{self.task.filled}/{shard.name}.npy", file.getvalue())
            return told

        marks = {"stamp": self.stamp}
        return work(shard, fill, self.task.filled, self.task.shard_rows, marks, check=check_record, tell=tell)

    def _ask(self, records: list[Record], engines: list[CachedEngine], told: Record) -> list[Record]:
        task, seed = self.task, self.task.options.seed
        for engine in engines:
            add_references(records, engine, task.samples, seed)
        if task.wants_pairs:
            told["pairs"] = pairs_report(add_pairs(records, engines[0], seed))
        asked: list[Record] = [{}] * len(records)
        if task.expertise == "prompted":
            asked = [dict(row) for row in ask_expertise(records, engines)]
        if found := failures(engines):
            raise RuntimeError("; ".join(found))
        return asked

    @contextmanager
    def _cached(self, shard: Shard) -> Iterator[list[CachedEngine]]:
        """The engines with the shard's cache, so that a shard that is begun again asks only what is not known."""
        with ExitStack() as stack:
            path = self.task.cache
            if path is None and self.engines:
                system, folder = fsspec.core.url_to_fs(self.task.filled)
                if "file" not in system.protocol:
                    folder = stack.enter_context(tempfile.TemporaryDirectory())
                path = f"{folder}/{shard.name}.cache.sqlite"
            yield [
                CachedEngine(engine, stack.enter_context(closing(ResponseCache(str(path)))))
                for engine in self.engines
            ]


class Score(Worker):
    """Scores filled shards; the similarity is loaded once."""

    def __init__(self, task: Task, stamp: str, tfidf: bool, filled: Mapping[int, Record]) -> None:
        self.task, self.stamp, self.filled = task, stamp, filled
        frequencies = None
        if task.counts(tfidf) is not None:
            known = read_whole(f"{task.filled}/frequencies.json")
            frequencies = Frequencies(known["texts"], Counter(known["items"]))
        encode = char_tfidf(frequencies=frequencies)
        if task.similarity == "cosine" and not tfidf:
            embedder: Any = load_embedder(task.embedding)
            encode = embedder.encode
        self.called, self.similarity = load_similarity(task.similarity, encode, frequencies)

    def done(self, shard: Shard) -> Record:
        before = self.filled[shard.number]
        told: Record = {
            name: before[name] for name in ("source", "start", "end", "first", "digest", "rejected")
        }
        told |= {"similarity": self.called, "pairs": before.get("pairs")}
        told |= {"report": asdict(FewlReport()), "lambda": {}}  # of a shard without a good line

        def score(rows: list[Record]) -> list[Record]:
            around = read_whole(f"{self.task.filled}/{shard.name}.around.json")
            scored, report = score_records(
                [row["record"] for row in rows],
                similarity=self.similarity,
                options=self.task.options,
                prompted=[row["prompted"] for row in rows],
                surroundings=Surroundings(**around),
            )
            told["report"] = asdict(report)
            shares = {
                n: [row["lambda"][n] for row in scored if n in row["lambda"]] for n in report.mean_lambda
            }
            told["lambda"] = {name: [math.fsum(found), len(found)] for name, found in shares.items() if found}
            return scored

        return work(
            shard, score, self.task.output, self.task.shard_rows, {"stamp": self.stamp},
            check=lambda _: [], format=self.task.format, tell=lambda: told,
        )  # fmt: skip


def score_corpus(
    task: Task, pool: Pool, on_filled: OnShard | None = None, on_scored: OnShard | None = None
) -> Record:
    """Score what is not done yet and write `manifest.json`.

    Args:
        task: What.
        pool: Where.
        on_filled: Told of each shard that was read, filled and embedded.
        on_scored: Told of each shard that was scored.

    Returns:
        The manifest: totals, the inputs, FEWL's report, every shard with its counts and sha256.

    Raises:
        ImportError: Ray is not installed.
        UsageError: Nothing to read, options that the corpus does not allow, or another job's output folder.
        RuntimeError: Shards failed; run again to do only those.
    """
    sources, shards = shards_of(task.input, task.output, task.shard_rows, pool)
    stamp = stamp_of(shards, sorted((k, v) for k, v in asdict(task).items() if k not in ("output", "cache")))
    with held(task.output):
        scored, filled = done_shards(task.output, stamp), done_shards(task.filled, stamp)
        left = [shard for shard in shards if shard.number not in filled]
        uses_ray = any(spec.startswith("vllm-ray:") for spec in task.llms)
        made_with = {"task": task, "stamp": stamp}
        filled |= run_shards(Fill, made_with, left, len(shards), pool, on_filled, uses_ray=uses_ray)
        unread = any(done["chinese"] and not done.get("reads_chinese", True) for done in filled.values())
        tfidf = task.embedding == "tfidf" or (task.embedding == "auto" and unread)
        whole, vectors = gather(task, shards, tfidf)
        task = resolved(task, whole)
        left = [shard for shard in shards if shard.number not in scored]
        try:
            surround(task, left, whole, vectors)
        except ValueError as error:
            raise UsageError(str(error)) from error
        parts = [filled_shard(task, shard) for shard in left]
        arguments = {"task": task, "stamp": stamp, "tfidf": tfidf, "filled": filled}
        scored |= run_shards(Score, arguments, parts, len(shards), pool, on_scored)
        first = filled[0]
        about = {
            "input": task.input,
            "files": sources,
            "shard_rows": task.shard_rows,
            "stamp": stamp,
            "llms": list(task.llms),
            "similarity": scored[0]["similarity"],
            "embedding": TFIDF if tfidf else first.get("embedding"),
            "fewl_options": asdict(task.options),
            "report": merged([scored[shard.number] for shard in shards], whole),
        }
        return write_manifest(task.output, shards, scored, task.format, about)
