"""What the FEWL benchmarks share: the data as FEWL records, figures per question, intervals, paired tests.

Nothing here is a gold-free method; labels are used to judge scores, and where a setting is called "ideal".
"""

from __future__ import annotations

import json
import platform
import sys
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.splits import DATA
from engines.embedding import Embedder
from fewl.similarity import Encode, OfPairs, Similarity, each_once

Record = dict[str, Any]
THREE = ("gemma-2-27b-it", "Llama-3.1-70B-Instruct", "Mistral-7B-Instruct-v0.2")
"""The three reference LLMs of the main tables: one of each maker, chosen by size and kind, not by results."""
WEAK = ("gemma-2-27b", "Llama-3.1-70B", "Mistral-7B-v0.3")
"""Their base models (Mistral's of the next version, since 0.2 has none here), as weak LLMs."""
SINGLE = THREE[0]
RESAMPLES = 2000


def read(name: str, data: Path = DATA) -> list[Record]:
    """Rows of ``fewl/NAME.jsonl``."""
    path = data / "fewl" / f"{name}.jsonl"
    if not path.is_file():
        sys.exit(f"skipped: data not here (expected {path}; see --data)")
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def truthfulqa(data: Path = DATA) -> list[Record]:
    """Questions with official answers (``kind``) and human-labelled answers (``label``), and 15 references."""
    references: dict[str, dict[str, str]] = defaultdict(dict)
    for row in read("truthfulqa_llm_answers", data):
        references[row["question_id"]][row["model"]] = row["answer"]
    labelled: dict[str, dict[str, bool]] = defaultdict(dict)
    for row in read("truthfulqa_human_labelled", data):
        labelled[row["question_id"]][row["answer"]] = row["truth_label"]
    records = []
    for row in read("truthfulqa", data):
        official = [row["best_answer"], *row["correct_answers"], *row["incorrect_answers"]]
        kinds = ["best"] + ["correct"] * len(row["correct_answers"]) + ["incorrect"] * len(row["incorrect_answers"])
        answers = [{"text": t, "kind": k} for t, k in zip(official, kinds, strict=True)]
        answers += [{"text": t, "kind": "labelled", "label": truth} for t, truth in labelled[row["id"]].items()]
        records.append(
            {
                "id": row["id"],
                "question": row["question"],
                "answers": answers,
                "reference_answers": references[row["id"]],
                "co": row["correct_answers"],
                "iw": row["incorrect_answers"],
            }
        )
    return records


def by_model(records: Sequence[Record], names: Sequence[str]) -> list[Record]:
    """The records with only these reference LLMs."""
    return [
        {**r, "reference_answers": {n: t for n, t in r["reference_answers"].items() if n in names}} for r in records
    ]


def shuffled(records: Sequence[Record], seed: int = 0) -> list[Record]:
    """Control: every question gets the reference answers of another one."""
    order = np.random.default_rng(seed).permutation(len(records))
    turned = np.roll(order, 1)
    swap = dict(zip(order.tolist(), turned.tolist(), strict=True))
    return [{**r, "reference_answers": records[swap[q]]["reference_answers"]} for q, r in enumerate(records)]


def half(record: Mapping[str, Any]) -> int:
    """0 (to choose on) or 1 (to report on), by the question's text."""
    return zlib.crc32(record["question"].encode()) & 1


# --- figures per question, NaN where a question has nothing to compare ----------------------------------------


def labelled_pairs(scored: Sequence[Record], alike: float | None = None) -> NDArray[np.float64]:
    """Share of (true, false) answer pairs of a question with the true one above; ties half.

    With ``alike``, only pairs whose lengths differ by at most this factor, so that length cannot decide.
    """
    values = []
    for record in scored:
        known = [a for a in record["answers"] if a.get("label") is not None and a["score"] is not None]
        true = np.array([a["score"] for a in known if a["label"]])
        false = np.array([a["score"] for a in known if not a["label"]])
        won = (true[:, None] > false[None, :]) + 0.5 * (true[:, None] == false[None, :])
        if alike is not None:
            long = [np.log([len(a["text"]) for a in known if a["label"] is label]) for label in (True, False)]
            won = won[np.abs(long[0][:, None] - long[1][None, :]) <= np.log(alike)]
        values.append(won.mean() if won.size else np.nan)
    return np.array(values)


def best_on_top(scored: Sequence[Record]) -> NDArray[np.float64]:
    """1 where the best answer has a higher score than every other official answer, else 0."""
    values = []
    for record in scored:
        official = [a for a in record["answers"] if a.get("kind") in ("best", "correct", "incorrect")]
        best = next((a for a in official if a["kind"] == "best"), None)
        others = [a["score"] for a in official if best is not None and a["text"] != best["text"]]
        if best is None or best["score"] is None or None in others:
            values.append(np.nan)
        else:
            values.append(float(all(best["score"] > score for score in others)))
    return np.array(values)


def best_above_first_wrong(scored: Sequence[Record]) -> NDArray[np.float64]:
    """1 where the best answer has a higher score than the first wrong one, ½ for a tie."""
    values = []
    for record in scored:
        first = {}
        for answer in record["answers"]:
            first.setdefault(answer.get("kind"), answer["score"])
        best, wrong = first.get("best"), first.get("incorrect")
        values.append(np.nan if best is None or wrong is None else (best > wrong) + 0.5 * (best == wrong))
    return np.array(values, dtype=float)


def length_adjusted(scored: Sequence[Record]) -> list[Record]:
    """Scores without what length explains: residuals of one slope on log length, within questions; no labels."""
    logs = [np.log(1 + np.array([len(a["text"]) for a in r["answers"]], dtype=float)) for r in scored]
    scores = [np.array([a["score"] for a in r["answers"]], dtype=float) for r in scored]
    known = [~np.isnan(s) for s in scores]
    x = [log[k] - log[k].mean() for log, k in zip(logs, known, strict=True) if k.any()]
    y = [s[k] - s[k].mean() for s, k in zip(scores, known, strict=True) if k.any()]
    slope = np.dot(np.concatenate(x), np.concatenate(y)) / np.dot(np.concatenate(x), np.concatenate(x))
    return [
        {
            **r,
            "answers": [
                {**a, "score": None if a["score"] is None else a["score"] - slope * (float(value) - float(log.mean()))}
                for a, value in zip(r["answers"], log, strict=True)
            ],
        }
        for r, log in zip(scored, logs, strict=True)
    ]


# --- intervals and tests ----------------------------------------------------------------------------------------


def interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float, float, int]:
    """Mean, 95 % percentile bootstrap over questions, and n."""
    kept = values[~np.isnan(values)]
    generator = np.random.default_rng(seed)
    means = [kept[generator.integers(0, len(kept), len(kept))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(kept.mean()), float(low), float(high), len(kept)


def paired(a: NDArray[np.float64], b: NDArray[np.float64], seed: int = 0) -> tuple[float, float, float, float]:
    """Mean of a − b over common questions, its 95 % bootstrap interval, and a sign-flip p (two-sided)."""
    gap = a - b
    gap = gap[~np.isnan(gap)]
    mean, low, high, n = interval(gap, seed)
    generator = np.random.default_rng(seed)
    flips = np.array([(gap * generator.choice([-1, 1], n)).mean() for _ in range(RESAMPLES)])
    p = (1 + (np.abs(flips) >= abs(mean) - 1e-12).sum()) / (1 + RESAMPLES)
    return mean, low, high, float(p)


def shown(values: NDArray[np.float64], percent: bool = True) -> str:
    mean, low, high, _ = interval(values)
    return f"{100 * mean:.1f} [{100 * low:.1f}, {100 * high:.1f}]" if percent else f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def shown_gap(a: NDArray[np.float64], b: NDArray[np.float64]) -> str:
    mean, low, high, p = paired(a, b)
    return f"{100 * mean:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] (p {p:.3f})"


# --- encoders and caching ----------------------------------------------------------------------------------------


def encoder(cache: Path | None) -> Encode:
    """The packaged MiniLM in float32; with a cache file, texts encoded in an earlier run are read from there."""
    if cache is None:
        return each_once(Embedder(dtype="float32").encode)
    known: dict[str, NDArray[np.float32]] = {}
    if cache.is_file():
        with np.load(cache, allow_pickle=False) as stored:
            known = dict(zip(json.loads(str(stored["texts"])), stored["vectors"], strict=True))
    model: list[Embedder] = []

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            model[:] = model or [Embedder(dtype="float32")]
            known.update(zip(new, model[0].encode(new), strict=True))
            cache.parent.mkdir(parents=True, exist_ok=True)
            np.savez(cache, texts=json.dumps(list(known)), vectors=np.stack(list(known.values())))
        return np.stack([known[text] for text in texts])

    return encode


def remembered(similarity: Similarity) -> Similarity:
    """A similarity that keeps what it compared, for runs that differ in weights and aggregation only."""
    prepared: dict[int, OfPairs] = {}
    known: dict[tuple[int, bytes], NDArray[np.float64]] = {}

    def prepare(texts: Sequence[str]) -> OfPairs:
        key = hash(tuple(texts))
        if key not in prepared:
            prepared[key] = similarity(texts)

        def of_pairs(pairs_P3: NDArray[np.int64]) -> NDArray[np.float64]:
            place = (key, pairs_P3.tobytes())
            if place not in known:
                known[place] = prepared[key](pairs_P3)
            return known[place]

        return of_pairs

    return prepare


def environment() -> str:
    """Versions and hardware, in a line."""
    names = ("torch", "sentence-transformers", "transformers", "numpy")
    with Path("/proc/cpuinfo").open() as info:
        cpu = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "CPU")
    return f"Python {platform.python_version()}, " + ", ".join(f"{n} {version(n)}" for n in names) + f"; {cpu}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)])
