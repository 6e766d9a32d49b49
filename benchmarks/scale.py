"""Memory and cost of annotating many records, and a cluster that loses a node while it annotates.

    OMP_NUM_THREADS=1 python -m benchmarks.scale [--embedded 16 64 256] [--window 200 1000]
    OMP_NUM_THREADS=1 python -m benchmarks.scale --cluster          # needs the extra `ray`
    OMP_NUM_THREADS=1 python -m benchmarks.scale --page

Records are generated from the pocket world: a question, a document of about 60 words, an answer of one to six
sentences. `embedded` is `mitigate annotate` as it is. `window` is the same job without the model: reading, checking,
splitting, BM25 over a reference of twelve such documents (tokens there are words), cutting the window out of it,
writing. Each run is a process of its own; CPU-seconds and the peak of its resident memory come from the kernel. Costs a
record are slopes between the smallest and the largest run, so that loading is left out; figures for a million
records are these slopes times a million, not runs.

The cluster is Ray's own cluster utility: three nodes on one host, two of them killed (as by power failure) one after
the other, each after some shards are done. Parts are kept in out/scale/; the page is written from what is there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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

ROOT = Path(__file__).parent.parent
WORK = ROOT / "out" / "scale"
PAGE = ROOT / "docs" / "results" / "scale.md"


def generate(path: Path, n: int, documents: int = 1) -> None:
    """Write ``n`` records with references of so many documents; the i-th is the same whatever ``n`` is."""
    from mitigate.pocket import build_world
    from mitigate.pocket.texts import flawed_answer, questions

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
    from annotators.passages import index_references
    from annotators.sentences import split_sentences
    from annotators.window import select
    from mitigate.jobs import open_job
    from mitigate.jsonl import Record, check_annotation_input

    def spans_of_words(texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        spans = [[m.span() for m in re.finditer(r"\w+|[^\w\s]", text)] for text in texts]
        return [(np.arange(len(row)), np.array(row).reshape(-1, 2)) for row in spans]

    def cut(record: Record) -> Record:
        (index,) = index_references([record["reference"]], spans_of_words)
        spans = split_sentences(record["answer"])
        windows = select([(index, record["answer"][a:b]) for a, b in spans])
        sentences = [
            {"start": a, "end": b, "places": w.places} for (a, b), w in zip(spans, windows, strict=True)
        ]
        return {**record, "sentences": sentences}

    with open_job(source, output, check=check_annotation_input, matches=lambda _, __: None) as job:
        job.run(lambda records: [cut(record) for record in records], chunk_size=32)
    return 0


def measured(kind: str, n: int) -> dict[str, float]:
    """CPU-seconds, peak resident MiB and seconds of one run over ``n`` records."""
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        generate(source, n, documents=12 if kind == "window" else 1)
        begin = time.monotonic()
        pid = os.spawnv(
            os.P_NOWAIT,
            sys.executable,
            [sys.executable, "-m", "benchmarks.scale", "--child", kind, str(source), str(output)],
        )
        _, status, used = os.wait4(pid, 0)
        if os.waitstatus_to_exitcode(status) != 0:
            raise RuntimeError(f"{kind} failed on {n} records")
        with output.open("rb") as file:
            sentences = sum(len(json.loads(line)["sentences"]) for line in file)
        return {
            "records": n,
            "sentences": sentences,
            "cpu": used.ru_utime + used.ru_stime,
            "mib": used.ru_maxrss / 1024,
            "seconds": time.monotonic() - begin,
        }


def child(kind: str, source: str, output: str) -> int:
    if kind == "window":
        return window_only(Path(source), Path(output))
    from mitigate.cli import main as mitigate

    sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # the summary
    return mitigate(["annotate", "--input", source, "--output", output])


def cluster(records: int) -> dict[str, Any]:
    """Annotate on three nodes, kill two of them, and compare with what one process writes."""
    import threading

    import ray
    from ray.cluster_utils import Cluster

    from mitigate.cli import main as mitigate
    from mitigate.distributed import Pool, Task, annotate_corpus

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


def keep(name: str, value: Any) -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    (WORK / f"{name}.json").write_text(json.dumps(value, indent=1), encoding="utf-8")


def kept(name: str) -> Any:
    path = WORK / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def plot(runs: dict[str, list[dict[str, float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, rows in runs.items():
        axes.plot([r["records"] for r in rows], [r["mib"] for r in rows], marker="o", label=name)
    axes.set(xscale="log", xlabel="records", ylabel="peak resident memory, MiB", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=120)


def page() -> str:
    runs = {kind: rows for kind in ("embedded", "window") if (rows := kept(kind))}
    plot(runs, PAGE.with_suffix(".png"))
    table, costs = [], []
    for kind, rows in runs.items():
        for r in rows:
            table.append(
                f"| {kind} | {r['records']:,.0f} | {r['sentences']:,.0f} | {r['cpu']:.1f} | {r['mib']:.0f} |"
            )
        first, last = rows[0], rows[-1]
        slope = (last["cpu"] - first["cpu"]) / (last["records"] - first["records"])
        growth = (last["mib"] - first["mib"]) / (last["records"] - first["records"]) * 1000
        costs.append(
            f"| {kind} | {1000 * slope:.2f} | {slope * 1e6 / 3600:.1f} | {slope * 1e6 / 7200:.1f} | {growth:+.3f} |"
        )
    found = kept("cluster")
    if found is None:
        lost = "Not run."
    else:
        lost = (
            f"{found['records']} records in {found['shards']} shards on three nodes, Ray {found['ray']}; two nodes "
            f"were killed, after {' and '.join(map(str, found['killed_after_shards']))} finished shards. Every row "
            f"once and in order: **{'yes' if found['every_row_once'] else 'NO'}**; the same bytes as one process "
            f"writes: **{'yes' if found['same_bytes_as_one_process'] else 'NO'}**; nodes left: {found['nodes_left']}."
        )
    about = (__doc__ or "").split("\n\n")[2:4]
    return f"""# Scale

`python -m benchmarks.scale`; `--cluster` and `--page` for the rest.

{(chr(10) * 2).join(about)}

Python {platform.python_version()}, torch {version("torch")}; one thread of a 2-core CPU machine that others used at
the same time, hence CPU-seconds and no wall-clock figures. Single runs. No GPU.

## Memory and cost

| path | records | sentences | CPU-seconds | peak MiB |
|---|---:|---:|---:|---:|
{chr(10).join(table)}

| path | CPU-ms a record | CPU-hours a million (extrapolated) | hours on two free cores | MiB per 1,000 more |
|---|---:|---:|---:|---:|
{chr(10).join(costs)}

![Peak memory](scale.png)

These runs are small: the memory of the first few hundred records includes what libraries allocate once, so they show
neither that memory is flat nor that it grows; `mitigate/jobs.py` holds one chunk at a time. Not measured: a run of a
million records, the speed-up of two workers (the cores were never free), a GPU.

## A cluster that loses nodes

{lost}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--embedded", type=int, nargs="*", default=[16, 64, 256], metavar="N")
    parser.add_argument("--window", type=int, nargs="*", default=[200, 1000], metavar="N")
    parser.add_argument("--cluster", action="store_true")
    parser.add_argument("--records", type=int, default=96, help="of the cluster")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(*args.child)
    if args.cluster:
        keep("cluster", cluster(args.records))
        print(kept("cluster"))
    elif not args.page:
        for kind in ("window", "embedded"):
            rows = []
            for n in getattr(args, kind):
                rows.append(measured(kind, n))
                print(kind, rows[-1], flush=True)
                keep(kind, rows)
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
