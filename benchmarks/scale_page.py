"""The page of `benchmarks/scale.py`, written from what docs/results/scale.json keeps.

What it concludes is worked out from the numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kept import RESULTS, Part, parts, provenance

DOCUMENTS = {"embedded": 1, "window": 1, "long": 12}  # of a reference, by path
PAGE = RESULTS / "scale.md"
FLAT = 0.02
"""Memory is called flat where the largest run's peak is at most so much, relatively, above that of the run before."""


def plot(runs: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, rows in runs.items():
        axes.plot([r["records"] for r in rows], [r["mib"] for r in rows], marker="o", label=name)
    axes.set(xscale="log", xlabel="records", ylabel="peak resident memory, MiB", ylim=(0, None))
    axes.grid(alpha=0.3)
    if runs:
        axes.legend()
    figure.savefig(path, dpi=120, metadata={"Software": None})


def write(about: str) -> None:
    """Write the page and its picture; ``about`` is the program's docstring."""
    kept = parts(PAGE)
    plot({kind: kept[kind]["found"] for kind in DOCUMENTS if kind in kept}, PAGE.with_suffix(".png"))
    PAGE.write_text(page(about, kept), encoding="utf-8")


def page(about: str, kept: dict[str, Part]) -> str:
    sections = {
        "Memory and cost": memory(kept),
        "Memory by shapes of batches": kernels(kept.get("kernels")),
        "Two workers": speedup(kept.get("speedup")),
        "A cluster that loses nodes": cluster(kept.get("cluster")),
        "vLLM through Ray Data": vllm_ray(kept.get("vllm_ray")),
    }
    text = [
        "# Scale",
        "`python -m benchmarks.scale`; `--kernels`, `--speedup`, `--cluster` and `--page` for the rest, and "
        "`python -m benchmarks.vllm_ray`.",
        *about.strip().split("\n\n")[2:5],
        "A 2-core CPU machine that others used at the same time, one thread, hence CPU-seconds for costs. Single runs. "
        "No GPU, and never more than one machine.",
        provenance(kept),
        *(f"## {title}\n\n{body or 'Not measured.'}" for title, body in sections.items()),
    ]
    return "\n\n".join(text) + "\n"


def memory(kept: dict[str, Part]) -> str:
    runs = {kind: kept[kind]["found"] for kind in DOCUMENTS if kind in kept}
    table, costs = [], []
    for kind, rows in runs.items():
        for r in rows:
            table.append(f"| {kind} | {r['records']:,.0f} | {r['sentences']:,.0f} | {r['cpu']:,.1f} | {r['mib']:.0f} |")
        first, last = rows[0], rows[-1]
        if len(rows) > 1:
            slope = (last["cpu"] - first["cpu"]) / (last["records"] - first["records"])
            known = "measured" if last["records"] >= 1_000_000 else "extrapolated"
            costs.append(f"| {kind} | {1000 * slope:.2f} | {slope * 1e6 / 3600:.2f}, {known} | {growth(rows)} |")
    who = sorted({row["annotator"]["fingerprint"] for row in runs.get("embedded", [])})
    return "\n\n".join(
        [
            "\n".join(["| path | records | sentences | CPU-seconds | peak MiB |", "|---|---:|---:|---:|---:|", *table]),
            "\n".join(
                [
                    "| path | CPU-ms a record | CPU-hours a million | peak of the largest run |",
                    "|---|---:|---:|---|",
                    *costs,
                ]
            ),
            f"Flat: at most {FLAT:.0%} above that of the run before. Embedded annotator {', '.join(who) or '–'}.",
            "![Peak memory](scale.png)",
        ]
    )


def growth(rows: list[dict[str, Any]]) -> str:
    """How the peak of the largest run compares with that of the run before it."""
    before, last = rows[-2], rows[-1]
    rise = last["mib"] / before["mib"] - 1
    more = last["records"] / before["records"]
    name = "flat" if rise <= FLAT else "**not flat**"
    return f"{name}: {rise:+.1%} for {more:g} times the records"


def kernels(part: Part | None) -> str:
    if part is None:
        return ""
    rows, said, again_share = [], [], []
    for dtype, places, first, every, again in part["found"]:
        rows.append(f"| {dtype} | {places:,} | {first:.0f} | {every:.0f} | {again:.0f} |")
        again_share.append((again - every) / (every - first))
        said.append(f"{every - first:+.0f} and {again - every:+.0f} MiB in {dtype} with {places:,}")
    return (
        "One layer of the embedded annotator's size with random weights; sixty shapes of batches (rows × length), then "
        "the same sixty again. oneDNN keeps compiled matrix products in a cache of so many places "
        "(`ONEDNN_PRIMITIVE_CACHE_CAPACITY`). Resident MiB:\n\n"
        "| | places | after the first shape | after all | after all again |\n|---|---:|---:|---:|---:|\n"
        + "\n".join(rows)
        + f"\n\nThe first round and the second add {'; '.join(said)}: shapes that come again add at most "
        f"{max(0.0, *again_share):.0%} of what new ones add."
    )


def speedup(part: Part | None) -> str:
    if part is None:
        return ""
    found = part["found"]
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


def answer(holds: bool) -> str:
    return "**yes**" if holds else "**NO**"


def cluster(part: Part | None) -> str:
    if part is None:
        return ""
    found = part["found"]
    killed = found["killed_after_shards"]
    return (
        f"{found['records']} records in {found['shards']} shards on three nodes, Ray {found['ray']}; nodes killed: "
        f"{len(killed)}, after {' and '.join(map(str, killed)) or 'no'} finished shards; nodes left: "
        f"{found['nodes_left']}. Every row once and in order: {answer(found['every_row_once'])}; the same bytes as one "
        f"process writes: {answer(found['same_bytes_as_one_process'])}."
    )


def vllm_ray(part: Part | None) -> str:
    if part is None:
        return ""
    found = part["found"]
    return (
        f"The `vllm-ray` engine against the `transformers` engine on one tiny checkpoint with random weights, "
        f"{found['chats']} chats; {', '.join(found['versions'])}, on {found['on']}.\n\n| | |\n|---|---|\n"
        + "\n".join(f"| {name} | {answer(holds)} |" for name, holds in found["checks"].items())
    )
