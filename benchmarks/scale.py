"""Memory and cost of annotating many records, two workers against one, and a cluster that loses nodes.

    OMP_NUM_THREADS=1 python -m benchmarks.scale [--embedded [N …]] [--window [N …]] [--long [N …]]
    OMP_NUM_THREADS=1 python -m benchmarks.scale --cluster          # needs the extra `ray`
    OMP_NUM_THREADS=1 python -m benchmarks.scale --speedup          # the same
    OMP_NUM_THREADS=1 python -m benchmarks.scale --kernels          # memory by shapes of batches
    OMP_NUM_THREADS=1 python -m benchmarks.scale --page             # from what docs/results/scale.json holds

Records are generated from the pocket world: a question, a document of about 60 words, an answer of one to six
sentences. `embedded` is `mitigate annotate` as it is. `window` is the same job without the model: reading, checking,
splitting, choosing the window (a document of 60 words is its own), writing. `long` is that with a reference of twelve
such documents, which BM25 ranks and the window is cut out of (tokens there are words). Each run is a process of its
own; CPU-seconds and the peak of its resident memory come from the kernel, and every output is read through: each record
once and in order. Costs a record are slopes between the smallest and the largest run, so that loading is left out; a
million records are that slope times a million where the largest run has fewer.

Two workers: `mitigate annotate --distributed` with one and with two of them, in turns, in one Ray with two CPUs and
more; the clock starts when as many shards are done as there are workers. What a worker has begun by then counts for it,
so ratios come out somewhat high.

The cluster is Ray's own cluster utility: three nodes on one host, two of them killed (as by power failure) one after
the other, each after some shards are done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kept import keep
from benchmarks.scale_page import DOCUMENTS, PAGE, write
from benchmarks.scale_shapes import kernels

SIZES = {"embedded": [400, 1600, 3200], "window": [1000, 10**4, 10**5, 10**6], "long": [1000, 4000]}  # records, by path


def generate(path: Path, n: int, documents: int = 1) -> None:
    """Write ``n`` records with references of so many documents; the i-th is the same whatever ``n`` is."""
    from examples.pocket import build_world
    from examples.pocket.texts import flawed_answer, questions

    asked = questions(build_world(0).entities, 5, held_out=False)
    with path.open("w", encoding="utf-8") as file:
        for i in range(n):
            q = asked[i % len(asked)]
            others = [asked[(i + 7 * k) % len(asked)].entity.document.text for k in range(1, documents)]
            reference = "\n".join([q.entity.document.text, *others])
            answer = flawed_answer(random.Random(i), q)
            row = {"id": i, "question": q.text, "reference": reference, "answer": answer}
            file.write(json.dumps(row) + "\n")


def window_only(source: Path, output: Path) -> int:
    """The job of `mitigate annotate` with windows in place of judgements."""
    from annotators.retrieval.passages import index_references
    from annotators.retrieval.window import select
    from annotators.text.sentences import split_sentences
    from mitigate.io import Record, check_annotation_input, open_job

    def spans_of_words(texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        spans = [[m.span() for m in re.finditer(r"\w+|[^\w\s]", text)] for text in texts]
        return [(np.arange(len(row)), np.array(row).reshape(-1, 2)) for row in spans]

    def cut(record: Record) -> Record:
        (index,) = index_references([record["reference"]], spans_of_words)
        spans = split_sentences(record["answer"])
        windows = select([(index, record["answer"][a:b]) for a, b in spans])
        sentences = [{"start": a, "end": b, "places": w.places} for (a, b), w in zip(spans, windows, strict=True)]
        return {**record, "sentences": sentences}

    with open_job(source, output, check=check_annotation_input, matches=lambda _, __: None) as job:
        job.run(lambda records: [cut(record) for record in records], chunk_size=32)
    return 0


def measured(kind: str, n: int) -> dict[str, Any]:
    """CPU-seconds, peak resident MiB and seconds of one run over ``n`` records, each of which must come out once."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        generate(source, n, documents=DOCUMENTS[kind])
        begin = time.monotonic()
        pid = os.spawnv(
            os.P_NOWAIT,
            sys.executable,
            [sys.executable, "-m", "benchmarks.scale", "--child", kind, str(source), str(output)],
        )
        _, status, used = os.wait4(pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise RuntimeError(f"{kind} failed on {n} records")
        seconds, sentences, expected = time.monotonic() - begin, 0, 0
        row: dict[str, Any] = {}
        with output.open("rb") as file:
            for line in file:
                row = json.loads(line)
                if row["id"] != expected:
                    raise RuntimeError(f"{kind}: record {row['id']} in place of {expected}")
                expected, sentences = expected + 1, sentences + len(row["sentences"])
        if expected != n:
            raise RuntimeError(f"{kind}: {expected} records came out of {n}")
        return {
            "annotator": row.get("annotator"),
            "records": n,
            "sentences": sentences,
            "cpu": used.ru_utime + used.ru_stime,
            "mib": used.ru_maxrss / 1024,
            "seconds": seconds,
        }


def child(kind: str, source: str, output: str) -> int:
    if kind != "embedded":
        return window_only(Path(source), Path(output))
    from mitigate.cli.main import main as mitigate

    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # the summary
    return mitigate(["annotate", "--input", source, "--output", output])


def cluster(records: int) -> dict[str, Any]:
    """Annotate on three nodes, kill two of them, and compare with what one process writes."""
    import threading

    import ray
    from mitigate.distributed import Pool
    from mitigate.distributed_annotate import Task, annotate_corpus
    from ray.cluster_utils import Cluster

    from mitigate.cli.main import main as mitigate

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        source, one, output = Path(folder, "in.jsonl"), Path(folder, "one.jsonl"), Path(folder, "out")
        generate(source, records)
        if mitigate(["annotate", "--input", str(source), "--output", str(one), "--chunk-size", "8"]) != 0:
            raise RuntimeError("the single process failed")
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        workers = [nodes.add_node(num_cpus=1) for _ in range(2)]
        ray.init(address=nodes.address, logging_level="error")
        killed: list[int] = []

        def done() -> int:
            return len(list(output.glob("*.done.json")))

        def kill() -> None:
            for node in workers:
                goal = done() + 2
                while done() < goal:
                    time.sleep(0.05)
                nodes.remove_node(node, allow_graceful=False)
                killed.append(done())

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        task = Task("embedded", str(source), str(output), shard_rows=8, chunk=8)
        manifest = annotate_corpus(task, Pool(nodes.address, workers=2, cpus=0.9))
        killer.join(60)
        alive = sum(node["Alive"] for node in ray.nodes())
        ray.shutdown()
        nodes.shutdown()
        parts = b"".join(p.read_bytes() for p in sorted(output.glob("part-?????.jsonl")))
        ids = [json.loads(line)["id"] for line in parts.splitlines()]
        return {
            "records": records,
            "shards": len(manifest["shards"]),
            "killed_after_shards": killed,
            "nodes_left": alive,
            "every_row_once": ids == list(range(records)),
            "same_bytes_as_one_process": parts == one.read_bytes(),
            "ray": version("ray"),
        }


def speedup(records: int, rounds: int) -> dict[str, Any]:
    """Sentences a second of one worker and of two, in turns; shards of 16 records."""
    import ray
    from mitigate.distributed import Pool
    from mitigate.distributed_annotate import Task, annotate_corpus

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "in.jsonl")
        generate(source, records)
        ray.init(num_cpus=3, include_dashboard=False, logging_level="error")
        found: dict[int, list[float]] = {1: [], 2: []}
        load = []
        for turn in range(2 * rounds):
            workers = 1 + turn % 2
            output = Path(folder, f"out{turn}")
            annotate_corpus(Task("embedded", str(source), str(output), shard_rows=16, chunk=16), Pool(None, workers))
            done = sorted((p.stat().st_mtime, p) for p in output.glob("*.done.json"))
            # the clock starts when every worker has finished a shard
            sentences = sum(json.loads(p.read_text())["sentences"] for _, p in done[workers:])
            found[workers].append(sentences / (done[-1][0] - done[workers - 1][0]))
            load.append(os.getloadavg()[0])
            print(workers, found[workers][-1], load[-1], flush=True)
        ray.shutdown()
    ratios = [two / one for one, two in zip(found[1], found[2], strict=True)]
    return {"records": records, "one": found[1], "two": found[2], "ratios": ratios, "load": load,
            "ray": version("ray")}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    for kind, sizes in SIZES.items():
        parser.add_argument(f"--{kind}", type=int, nargs="*", metavar="N", help=f"records; {sizes}")
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--speedup", action="store_true")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--records", type=int, default=96, help="of the cluster, and of each turn of --speedup")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(*args.child)
    if args.cluster:
        keep(PAGE, "cluster", cluster(args.records))
    elif args.kernels:
        keep(PAGE, "kernels", kernels())
    elif args.speedup:
        keep(PAGE, "speedup", speedup(args.records, rounds=3))
    elif not args.page:
        asked = {kind: getattr(args, kind) for kind in SIZES if getattr(args, kind) is not None}
        for kind, sizes in (asked or SIZES).items():
            rows = []
            for n in sizes or SIZES[kind]:
                rows.append(measured(kind, n))
                print(kind, rows[-1], flush=True)
                keep(PAGE, kind, rows)
    write(__doc__ or "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
