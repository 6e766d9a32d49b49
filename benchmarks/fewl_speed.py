"""How fast FEWL is and how much memory it takes; vectors are generated, so nothing here says how good it is.

    python -m benchmarks.fewl_speed [--largest 100000]

CPU-seconds of one thread; each contender is measured in its own process, one after the other, on the same vectors (200
topics with noise, 384 numbers each). Extra memory is the peak of that process minus what it held before.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import parser, row, save
from fewl.neighbours import nearest
from fewl.score import FewlOptions, score_records
from fewl.similarity import cosine, each_once

DIMENSION, K = 384, 10


def measured(function: Callable[[], Any]) -> dict[str, Any]:
    """The result of a call, its CPU-seconds and its extra peak memory in GiB."""
    held = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    start = time.process_time()
    result = function()
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"result": result, "seconds": seconds, "gib": max(0, peak - held) / 2**30}


def vectors(n: int, seed: int = 0) -> np.ndarray:
    """Generated questions: each vector a topic plus noise, length 1."""
    generator = np.random.default_rng(seed)
    topics = generator.standard_normal((200, DIMENSION), dtype=np.float32)
    made = generator.standard_normal((n, DIMENSION), dtype=np.float32) + topics[generator.integers(0, 200, n)]
    return np.asarray(made / np.linalg.norm(made, axis=1, keepdims=True))


def ours(n: int) -> dict[str, Any]:
    """`fewl.neighbours.nearest`, exact, ties by input order."""
    return measured(partial(nearest, vectors(n), K))


def whole_matrix(n: int) -> dict[str, Any]:
    """The whole matrix at once, sorted."""
    made = vectors(n)

    def search() -> np.ndarray:
        np.fill_diagonal(matrix := made @ made.T, -2)
        return np.argsort(-matrix, axis=1, kind="stable")[:, :K]

    return measured(search)


def scoring(n: int) -> dict[str, Any]:
    """`score_records` with 2 answers a question, 3 reference LLMs and 10 neighbours."""
    seeds = iter(range(10**9))
    encode = each_once(lambda texts: vectors(len(texts), seed=next(seeds)))
    records = [
        {"question": f"q{i}", "answers": [{"text": f"a{i} {j}"} for j in range(2)],
         "reference_answers": {f"m{m}": f"r{i} {m}" for m in range(3)}}
        for i in range(n)
    ]  # fmt: skip
    options = FewlOptions(neighbours=K)
    return measured(lambda: score_records(records, similarity=cosine(encode), encode=encode, options=options)[0])


PARTS = {part.__name__: part for part in (ours, whole_matrix, scoring)}


def alone(part: str, n: int) -> dict[str, Any]:
    """One part in a process of its own, on one thread."""
    command = [sys.executable, "-m", "benchmarks.fewl_speed", "--part", part, "--largest", str(n)]
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    done = subprocess.run(command, env={**os.environ, **threads}, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    made = parser(__doc__, data=False)
    made.add_argument("--largest", type=int, default=100_000, help="questions of the large run")
    made.add_argument("--part", choices=PARTS, help="run one part and print JSON (used by the program itself)")
    args = made.parse_args()
    if args.part:
        torch.set_num_threads(1)
        found = PARTS[args.part](args.largest)
        sets = [] if args.part == "scoring" else [hash(tuple(sorted(near))) for near in found["result"].tolist()]
        print(json.dumps({**found, "result": sets}))
        return
    own, plain = (alone(name, 20_000) for name in ("ours", "whole_matrix"))
    whole, what = alone("scoring", args.largest), "FEWL, ten nearest of 20,000 questions, whole matrix"
    rows = [
        row(f"{what}: times ours", 20_000, plain["seconds"] / own["seconds"]),
        row(f"{what}: share of sets equal to ours", 20_000, float(np.equal(own["result"], plain["result"]).mean())),
        row("FEWL, whole scoring: CPU-seconds", args.largest, whole["seconds"]),
        row("FEWL, whole scoring: GiB of memory", args.largest, whole["gib"]),
    ]
    save("speed", "fewl_speed", rows)


if __name__ == "__main__":
    main()
