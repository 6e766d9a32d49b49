"""How fast FEWL is and how much memory it takes; vectors are generated, so nothing here says how good it is.

    python -m benchmarks.fewl_speed --output docs/results/fewl_speed.md

CPU-seconds of one thread (``time.process_time``). Ratios are within one run: each contender is measured in its
own process, one after the other, on the same vectors. Extra memory is the peak resident memory of that process
minus what it held once the vectors were there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DIMENSION = 384


def main() -> None:
    """Run the parts in processes of their own and write the page, or run one part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("docs/results/fewl_speed.md"))
    parser.add_argument("--part", help="run one part and print JSON (used by the program itself)")
    parser.add_argument("--largest", type=int, default=100_000, help="questions of the large run")
    args = parser.parse_args()
    if args.part:
        name, *numbers = args.part.split(",")
        print(json.dumps(PARTS[name](*map(int, numbers))))
        return
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_page(args.output, args.largest)


def measured(function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """The result of a call, its CPU-seconds and its extra peak memory in GiB."""
    before = resident()
    start = time.process_time()
    result = function()
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return result, {"seconds": seconds, "extra_gib": max(0, peak - before) / 2**30}


def resident() -> int:
    """Bytes this process holds now."""
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def vectors(n: int, seed: int = 0) -> np.ndarray:
    """Generated questions: 200 topics, each vector a topic plus noise, length 1."""
    generator = np.random.default_rng(seed)
    topics = generator.standard_normal((200, DIMENSION), dtype=np.float32)
    made = generator.standard_normal((n, DIMENSION), dtype=np.float32)
    made += topics[generator.integers(0, 200, n)]
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made


# --- neighbours --------------------------------------------------------------------------------------------------


def part_nearest(n: int, k: int) -> dict[str, Any]:
    from fewl.neighbours import nearest

    made = vectors(n)
    found, cost = measured(lambda: nearest(made, k))
    return {**cost, "sum": checksum(found)}


def part_full(n: int, k: int) -> dict[str, Any]:
    """The whole matrix at once, sorted."""
    made = vectors(n)

    def search() -> np.ndarray:
        matrix = made @ made.T
        np.fill_diagonal(matrix, -2)
        return np.argsort(-matrix, axis=1, kind="stable")[:, :k]

    found, cost = measured(search)
    return {**cost, "sum": checksum(found)}


def part_semantic(n: int, k: int) -> dict[str, Any]:
    """sentence-transformers' own search, with its defaults; it finds the question itself first."""
    import torch
    from sentence_transformers.util import semantic_search

    torch.set_num_threads(1)
    made = torch.from_numpy(vectors(n))
    hits, cost = measured(lambda: semantic_search(made, made, top_k=k + 1))
    found = np.array([[h["corpus_id"] for h in row if h["corpus_id"] != q][:k] for q, row in enumerate(hits)])
    return {**cost, "sum": checksum(found)}


def checksum(found: np.ndarray) -> int:
    """Equal for equal neighbour sets, whatever the order within a row."""
    return int((np.sort(found, axis=1).astype(object) * np.arange(1, found.shape[1] + 1)).sum())


# --- core ---------------------------------------------------------------------------------------------------------


def part_core(q: int, n: int, k: int) -> dict[str, Any]:
    """Similarities and scores of 3 answers a question from embeddings: arrays against plain loops."""
    from fewl import core
    from fewl.neighbours import pair_cosine

    generator = np.random.default_rng(0)
    made = vectors(q * (n + 3))
    answers, references = np.arange(q * 3), q * 3 + np.arange(q * n).reshape(q, n)
    near = generator.integers(0, q, (q, k))
    r = generator.uniform(-1, 1, (q, n))
    owner = np.repeat(np.arange(q), 3)

    def arrays() -> np.ndarray:
        left = np.broadcast_to(answers[:, None], (q * 3, n))
        s = pair_cosine(made, left.ravel(), references[owner].ravel(), exact=False).reshape(left.shape)
        others = np.moveaxis(references[near[owner]], -1, -2)
        left3 = np.broadcast_to(answers[:, None, None], others.shape)
        near_s = pair_cosine(made, left3.ravel(), others.ravel(), exact=False).reshape(others.shape)
        return core.aggregate(s, core.expertise_weights(r)[owner], core.laziness(near_s))

    def loops(cosine: Callable[[np.ndarray, np.ndarray], float]) -> np.ndarray:
        scores = []
        for a in range(q * 3):
            x = owner[a]
            total = sum(math.exp(r[x, i]) for i in range(n))
            score = 0.0
            for i in range(n):
                s = cosine(made[a], made[references[x, i]])
                lazy = sum(cosine(made[a], made[references[j, i]]) for j in near[x]) / k
                score += 0.5 * math.tanh(math.exp(r[x, i]) / total * s) - 0.5 * math.tanh(lazy)
            scores.append(score / n)
        return np.array(scores)

    import torch
    from sentence_transformers.util import cos_sim

    torch.set_num_threads(1)
    arrays()  # once to warm up
    fast, quick = measured(arrays)
    slow, dot = measured(lambda: loops(lambda u, v: float(np.dot(u, v))))
    _, norms = measured(lambda: loops(lambda u, v: float(np.dot(u, v) / (np.linalg.norm(u) * np.linalg.norm(v)))))
    _, util = measured(lambda: loops(lambda u, v: float(cos_sim(u, v))))
    return {
        "arrays": quick["seconds"],
        **{f"loop, {name}": cost["seconds"] for name, cost in (("dot", dot), ("norms", norms), ("cos_sim", util))},
        "difference": float(np.abs(fast - slow).max()),
    }


def part_whole(q: int, n: int, k: int) -> dict[str, Any]:
    """score_records on generated records: 2 answers a question, n LLMs, K neighbours; texts encoded and asked."""
    from fewl.score import FewlOptions, score_records
    from fewl.similarity import cosine, each_once

    encoded = asked = 0

    def encode(texts: Any) -> np.ndarray:
        nonlocal encoded
        encoded += len(texts)
        return vectors(len(texts), seed=encoded)

    remembering = each_once(encode)

    def counted(texts: Any) -> np.ndarray:
        nonlocal asked
        asked += len(texts)
        return remembering(texts)

    records = [
        {
            "question": f"q{i}",
            "answers": [{"text": f"a{i} {j}"} for j in range(2)],
            "reference_answers": {f"m{m}": f"r{i} {m}" for m in range(n)},
        }
        for i in range(q)
    ]
    options = FewlOptions(neighbours=k)
    (scored, _), cost = measured(
        lambda: score_records(records, similarity=cosine(counted), encode=counted, options=options)
    )
    texts = len({t for r in records for t in [r["question"], *r["reference_answers"].values()]}) + 2 * q
    pairs = 2 * q * n * (k + 1)
    return {**cost, "texts": texts, "encoded": encoded, "asked": asked, "pairs": pairs, "scored": len(scored)}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "nearest": part_nearest,
    "full": part_full,
    "semantic": part_semantic,
    "core": part_core,
    "whole": part_whole,
}


def run(part: str, *numbers: int) -> dict[str, Any]:
    """One part in a process of its own, on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.fewl_speed", "--part", ",".join([part, *map(str, numbers)])]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(part, numbers, result, flush=True)
    return result


def write_page(path: Path, largest: int) -> None:
    from benchmarks.fewl_common import environment, table

    core_rows = []
    for n in (1, 4, 15):
        r = run("core", 940, n, 10)
        ratios = [f"{r[f'loop, {loop}'] / r['arrays']:.0f} ×" for loop in ("dot", "norms", "cos_sim")]
        core_rows.append([n, f"{r['arrays']:.3f}", *ratios, f"{r['difference']:.1e}"])
    small = {name: run(name, 20_000, 10) for name in ("nearest", "full", "semantic")}
    large = run("nearest", largest, 10)
    base = small["nearest"]["seconds"]
    near_rows = [
        [
            label,
            20_000,
            f"{small[name]['seconds']:.1f}",
            f"{small[name]['seconds'] / base:.1f} ×",
            f"{small[name]['extra_gib']:.2f}",
        ]
        for name, label in (
            ("nearest", "`fewl.neighbours.nearest`"),
            ("full", "whole matrix, sorted"),
            ("semantic", "sentence-transformers `semantic_search`"),
        )
    ]
    near_rows.append(
        ["`fewl.neighbours.nearest`", f"{largest:,}", f"{large['seconds']:.1f}", "", f"{large['extra_gib']:.2f}"]
    )
    same = len({r["sum"] for r in small.values()}) == 1
    whole = {
        "N": [(n, run("whole", 2000, n, 10)) for n in (1, 2, 4, 8, 16)],
        "K": [(k, run("whole", 2000, 4, k)) for k in (1, 5, 10, 25, 50)],
        "Q": [(q, run("whole", q, 4, 10)) for q in (1000, 3000, 10_000, 30_000)],
    }
    plot(whole, path.with_suffix(".png"))
    big = run("whole", largest, 3, 10)
    cost_rows = [
        [
            f"{name} = {value:,}",
            f"{r['seconds']:.2f}",
            f"{1e6 * r['seconds'] / r['pairs']:.2f}",
            f"{r['extra_gib']:.2f}",
        ]
        for name, rows in whole.items()
        for value, r in rows
    ]
    text = [
        "# FEWL: speed and memory",
        f"Command: `python -m benchmarks.fewl_speed`. {environment()}; one thread. The machine was shared, so only "
        "ratios within this run mean something. All vectors are generated (200 topics with noise, 384 numbers each).",
        "## Equations: arrays against a plain loop",
        "940 questions, 3 answers each, K = 10: similarities from embeddings, λ, laziness, Eq. 4. The loops take one "
        "pair at a time, with `numpy.dot` of unit vectors, with a cosine that normalises, and with "
        "`sentence_transformers.util.cos_sim`.",
        table(["N", "arrays, CPU-seconds", "dot loop", "cosine loop", "cos_sim loop", "largest difference"], core_rows),
        "## Exact nearest neighbours, K = 10",
        table(["what", "questions", "CPU-seconds", "against ours", "extra memory, GiB"], near_rows),
        f"All three find the same neighbours at 20,000: {'yes' if same else 'NO'}. Ours is exact and breaks ties by "
        "input order; the whole matrix at the larger size would need "
        f"{largest**2 * 4 / 2**30:.0f} GiB.",
        "## Whole scoring (`score_records`) against N, K and Q",
        f"2 answers a question; 2,000 questions, N = 4, K = 10 where not varied. "
        f"![cost]({path.with_suffix('.png').name})",
        table(["setting", "CPU-seconds", "µs per similarity", "extra memory, GiB"], cost_rows),
        f"{largest:,} questions, N = 3, K = 10, {big['pairs']:,} similarities: {big['seconds']:.0f} CPU-seconds with "
        f"the neighbour search, {big['extra_gib']:.1f} GiB (the embeddings of {big['texts']:,} texts among them). "
        f"{big['encoded']:,} texts were encoded, {big['texts']:,} are distinct.",
    ]
    path.write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print(f"written: {path}")


def plot(whole: dict[str, list[tuple[int, dict[str, Any]]]], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (name, rows) in enumerate(whole.items(), 1):
        axes = figure.add_subplot(1, 3, place)
        axes.plot([v for v, _ in rows], [r["seconds"] for _, r in rows], marker="o")
        axes.set_xlabel({"N": "N, reference LLMs", "K": "K, neighbours", "Q": "Q, questions"}[name])
        axes.set_ylabel("CPU-seconds")
        axes.set_ylim(bottom=0)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
