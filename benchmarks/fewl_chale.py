"""FEWL on CHALE with gold-derived references, and the statistics of our own builder on the same questions.

    python -m benchmarks.fewl_chale --output docs/results/fewl_chale.md

CHALE comes without reference LLMs' answers. Sentences of the long answer that are in no candidate stand in for
them, so these figures show what the equations do with good references; they are not the paper's Table 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from annotators.text.sentences import split_sentences
from benchmarks.fewl_common import encoder, environment, read, remembered, shown, shown_gap, table
from benchmarks.splits import DATA
from fewl.chale import build_benchmark
from fewl.score import FewlOptions, score_records
from fewl.similarity import Encode, Similarity, cosine, new_words, rouge_l

Record = dict[str, Any]
KINDS = ("non_hallu", "half_hallu", "hallu")


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=Path("docs/results/fewl_chale.md"))
    parser.add_argument("--embedding-cache", type=Path, help="file that keeps embeddings between runs")
    args = parser.parse_args()
    encode = encoder(args.embedding_cache)
    rows = read("chale", args.data)
    records, equal, few = gold_derived(rows)
    parts = [
        "# FEWL on CHALE: tables",
        f"Written by `python -m benchmarks.fewl_chale`; read `fewl.md` first. {environment()}. {len(rows)} rows, of "
        f"which {equal} have equal half- and hallucinated answers and {few} have fewer than two other sentences; "
        f"{len(records)} are used. **Gold-derived references**: up to five sentences of the long answer that are in "
        "no candidate. 95 % percentile bootstrap over questions; p from sign flips.",
    ]
    sims: dict[str, Similarity] = {"cosine": cosine(encode), "rouge-l": rouge_l, "new-words": new_words}
    for name, similarity in sims.items():
        parts += tables_of(name, remembered(similarity), encode, records)
    parts += builder(rows, encode)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"written: {args.output}")


def gold_derived(rows: Sequence[Record]) -> tuple[list[Record], int, int]:
    """Records whose references are sentences of the long answer; how many were equal, how many too short."""
    records, equal, few = [], 0, 0
    for row in rows:
        if row["half_hallu"].strip() == row["hallu"].strip():
            equal += 1
            continue
        candidates = " ".join(row[kind] for kind in KINDS)
        sentences = [row["long_answer"][a:b] for a, b in split_sentences(row["long_answer"])]
        other = [s for s in sentences if s not in candidates][:5]
        if len(other) < 2:
            few += 1
            continue
        records.append(
            {
                "question": row["question"],
                "answers": [{"text": row[kind]} for kind in KINDS],
                "reference_answers": {"gold": other},
            }
        )
    return records, equal, few


def tables_of(name: str, similarity: Similarity, encode: Encode, records: Sequence[Record]) -> list[str]:
    """Tables 1, 2 and 9 as far as they can be had."""
    first = [{**r, "reference_answers": {"gold": r["reference_answers"]["gold"][:1]}} for r in records]
    eq6, paper = FewlOptions(aggregation="eq6"), FewlOptions()
    settings = {
        "single, no penalty": (first, replace(eq6, penalty=False)),
        "single, penalty": (first, eq6),
        "multi, no penalty": (records, replace(eq6, penalty=False)),
        "FEWL paper, λ uniform": (records, paper),
        "FEWL eq6, λ uniform": (records, eq6),
        "FEWL eq6, random neighbours": (records, replace(eq6, neighbour_choice="random")),
        "FEWL paper, random neighbours": (records, replace(paper, neighbour_choice="random")),
    }
    found = {}
    for method, (asked, options) in settings.items():
        scored = score_records(asked, similarity=similarity, encode=encode, options=options)[0]
        s = np.array([[a["score"] for a in r["answers"]] for r in scored], dtype=float)
        found[method] = [(s[:, 0] > s[:, k]) + 0.5 * (s[:, 0] == s[:, k]) for k in (1, 2)]
        print(name, method, flush=True)
    base = found["multi, no penalty"]
    rows = [[method, shown(half), shown(whole), shown_gap(whole, base[1])] for method, (half, whole) in found.items()]
    head = [
        "method",
        "non- above half-hallucinated, %",
        "non- above hallucinated, %",
        "the latter minus “multi, no penalty”",
    ]
    return [f"## Similarity {name}", table(head, rows)]


def builder(rows: Sequence[Record], encode: Encode) -> list[str]:
    """Our builder on the same questions: statistics as in Table 8."""
    built, statistics = build_benchmark(rows, encode)
    columns = ("words", "unique_words", "characters")
    body = [[kind, row["n"], *(f"{row[c]:.2f}" for c in columns)] for kind, row in statistics["table"].items()]
    return [
        "## `mitigate fewl build-benchmark` on the same questions (Table 8)",
        f"{len(built)} of {len(rows)} questions kept; dropped: {statistics['dropped']}. Usable sentences per answer "
        f"{statistics['sentences_per_answer']:.2f} (paper 8.74), usable neighbours per question "
        f"{statistics['usable_neighbours_per_question']:.2f} (paper 4.83, of about 100,000 questions). Swapped part of "
        f"the halves: {statistics['swapped']}.",
        table(["answer", "n", *columns], body),
    ]


if __name__ == "__main__":
    main()
