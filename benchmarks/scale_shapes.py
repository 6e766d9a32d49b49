"""What the embedded annotator's memory rises by: `--kernels` of `benchmarks/scale.py`.

One layer of a MiniLM with random weights reads batches of sixty different shapes, then the same sixty again. What
memory rises by in the first round only, it rises by for every shape that is new.
"""

from __future__ import annotations

import multiprocessing
import os
import random
from multiprocessing.connection import Connection
from pathlib import Path

SHAPES = 60
CASES = (("bfloat16", 1024), ("bfloat16", 1), ("float32", 1024))


def resident() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def rise(dtype: str, places: int, told: Connection) -> None:
    """Resident MiB after the first shape, all, and all again; ``places`` in oneDNN's own cache."""
    os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] = str(places)  # read at the first product of two matrices
    import torch
    from transformers import BertConfig, BertModel

    torch.set_num_threads(1)
    config = BertConfig(vocab_size=2000, hidden_size=384, num_hidden_layers=1, num_attention_heads=12,
                        intermediate_size=1536)  # fmt: skip
    model = BertModel._from_config(config, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
    shapes = [(max(1, 512 // t), t) for t in random.Random(0).sample(range(8, 200), SHAPES)]
    sizes = []
    for _ in range(2):
        for rows, length in shapes:
            ids = torch.ones((rows, length), dtype=torch.long)
            mask = torch.ones_like(ids)
            mask[0, length // 2 :] = 0
            with torch.inference_mode():
                model(input_ids=ids, attention_mask=mask)
            sizes.append(resident())
    told.send([sizes[0], sizes[SHAPES - 1], sizes[-1]])


def kernels() -> list[list[object]]:
    """[dtype, places, MiB after the first shape, after all, after all again] of each case, in a process each."""
    import torch  # noqa: F401  # once, for all
    import transformers  # noqa: F401

    found: list[list[object]] = []
    context = multiprocessing.get_context("fork")
    for dtype, places in CASES:
        ours, theirs = context.Pipe()
        process = context.Process(target=rise, args=(dtype, places, theirs))
        process.start()
        theirs.close()
        found.append([dtype, places, *ours.recv()])
        process.join()
        print(*found[-1], flush=True)
    return found
