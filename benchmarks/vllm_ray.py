"""The vllm-ray engine against the transformers engine on one tiny checkpoint: equal greedy texts, equal prompts.

    python -m benchmarks.vllm_ray            # on a node with a GPU; needs the extras ray and vllm
    python -m benchmarks.vllm_ray --cpu      # with vLLM's CPU build (see benchmarks/vllm_engines.py)

Exit code 1 where something differs. `benchmarks.scale --page` puts what was found on its page.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.kept import keep
from benchmarks.scale_page import PAGE
from benchmarks.tiny_chat import build_tiny_chat
from engines import Sampling, load_engine

CONTEXT = 512


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--cpu", action="store_true", help="vLLM's CPU build: a replica takes one CPU and no GPU"
    )
    args = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    options: dict[str, Any] = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": CONTEXT,
        "batch_size": 8,
    }
    if args.cpu:
        options["placement"] = {"bundle_per_worker": {"CPU": 1}}
    with tempfile.TemporaryDirectory() as work:
        folder = build_tiny_chat(Path(work, "tiny"), context=CONTEXT)
        chats = [[{"role": "user", "content": f"Is the river longer than {i} jugs?"}] for i in range(24)]
        chats.append([{"role": "user", "content": "the river " * CONTEXT}])  # too long
        sampling = Sampling(max_tokens=8, logprobs=True)
        came = load_engine(f"vllm-ray:{folder}", **options).chat(chats, sampling)
        right = load_engine(f"transformers:{folder}", device="cpu", dtype="float32").chat(
            chats[:-1], sampling
        )
    checks = {
        "greedy texts": [r.text for r in came[:-1]] == [r.text for r in right],
        "prompt tokens": [r.prompt_tokens for r in came[:-1]] == [r.prompt_tokens for r in right],
        "log-probabilities within 1e-3": all(
            abs(a.logprob - b.logprob) < 1e-3
            for one, two in zip(came[:-1], right, strict=True)
            for a, b in zip(one.samples[0].logprobs or (), two.samples[0].logprobs or (), strict=True)
        ),
        "a chat that is too long fails alone": came[-1].error is not None,
    }
    kept = {
        "checks": checks,
        "chats": len(chats),
        "on": "CPU" if args.cpu else "GPU",
        "versions": [f"{name} {version(name)}" for name in ("ray", "vllm-cpu" if args.cpu else "vllm")],
    }
    keep(PAGE, "vllm_ray", kept)
    for name, holds in checks.items():
        print(f"{'ok  ' if holds else 'FAIL'} {name}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
