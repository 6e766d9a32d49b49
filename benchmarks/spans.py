"""Which words of a hallucinated sentence are unsupported: character-level figures beside simple baselines.

    python -m benchmarks.spans --data ../shared/data

Gold: every file of spans/ (people marked the words), and, where people or a model corrected a sentence, the words that
the correction changed (summedits, expertqa, factcheckgpt). Two settings: on the sentences that gold says are wrong
(whatever the annotator calls them), and end to end (only where it calls a sentence hallucinated, right answers among
them). Writes docs/results/spans.md; about five minutes on one core.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from annotators.evaluation.metrics import bootstrap
from annotators.records import HALLUCINATED, LABELS
from annotators.text.normalise import clean, original_span
from annotators.text.sentences import split_sentences
from annotators.text.words import stem_set, words_of
from annotators.verifier.annotator import DiscriminativeAnnotator
from annotators.verifier.judging import Item, Judge
from annotators.verifier.spans import BRIDGE, ENCODER_SHARE, NEAREST, UNBACKED, unsupported_spans
from benchmarks.splits import DATA, TRAINABLE, load_rows

PAGE = Path(__file__).parent.parent / "docs" / "results" / "spans.md"
CORRECTED = ("expertqa", "factcheckgpt", "summedits")
METHODS = ("spans", "whole sentence", "words not in the reference", "nothing")
CHUNK = 64
Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class Sentence:
    """A sentence of an answer with its gold spans, and what the annotator makes of it."""

    source: str
    row: Mapping[str, Any]
    text: str
    gold: Spans


def changed(sentence: str, correction: str) -> Spans:
    """The stretches of a sentence that its correction replaces or leaves out, as wholes of words and signs."""
    pieces = [m.span() for m in re.finditer(r"\w+|[^\w\s]", sentence)]
    other = re.findall(r"\w+|[^\w\s]", correction)
    matcher = SequenceMatcher(None, [sentence[a:b] for a, b in pieces], other, autojunk=False)
    return [(pieces[i][0], pieces[j - 1][1]) for op, i, j, _, _ in matcher.get_opcodes() if op in ("replace", "delete")]


def sentences(rows: Sequence[Mapping[str, Any]], limit: int) -> list[Sentence]:
    """Sentences of spans/, and at most ``limit`` corrected ones of each other source."""
    found = []
    corrected: dict[str, list[Sentence]] = {}
    for row in rows:
        if row["file"].startswith("spans/"):
            for start, end in split_sentences(row["answer"]):
                gold = [
                    (max(start, e["start"]) - start, min(end, e["end"]) - start)
                    for e in row["errors"]
                    if e["start"] < end and e["end"] > start
                ]
                found.append(Sentence(row["source"], row, row["answer"][start:end], gold))
        elif row["source"] in CORRECTED and row["lang"] == "en" and row.get("correction"):
            gold = changed(row["sentence"], row["correction"]) if row["label"] != "supported" else []
            if gold:
                name = f"{row['source']} (corrections)"
                corrected.setdefault(name, []).append(Sentence(name, row, row["sentence"], gold))
    for some in corrected.values():
        found += Random(0).sample(some, min(limit, len(some)))
    return found


def predicted(annotator: DiscriminativeAnnotator, items: Sequence[Sentence]) -> list[tuple[str, dict[str, Spans]]]:
    """Of each sentence its label, and what each method would mark in it."""
    judge = Judge(annotator.combiner, annotator.idf, annotator.embedder, encoder=annotator.encoder)
    out: list[tuple[str, dict[str, Spans]]] = [("", {})] * len(items)
    order = sorted(range(len(items)), key=lambda i: items[i].row["reference"])
    for first in range(0, len(order), CHUNK):
        chunk = order[first : first + CHUNK]
        asked = [Item(clean(items[i].text)[0], items[i].row["reference"]) for i in chunk]
        with judge.memory():
            verdicts = judge(asked)
        for i, item, verdict in zip(chunk, asked, verdicts, strict=True):
            text = items[i].text
            origin = clean(text)[1]
            known = stem_set(clean(item.reference)[0])
            words = words_of(item.sentence)
            lost = [
                (words.starts[k], words.ends[k])
                for k in range(len(words))
                if words.content[k] and words.stems[k] not in known
            ]
            own = unsupported_spans(item.sentence, verdict.matched, verdict.weight, verdict.token_scores)
            out[i] = (
                LABELS[verdict.label],
                {
                    "spans": [original_span(text, origin, a, b) for a, b in own],
                    "whole sentence": [(0, len(text))],
                    "words not in the reference": [original_span(text, origin, a, b) for a, b in lost],
                    "nothing": [],
                },
            )
        print(f"{first + len(chunk)} of {len(items)}", file=sys.stderr, flush=True)
    return out


def character_counts(length: int, gold: Spans, found: Spans) -> tuple[int, int, int]:
    """Characters marked rightly, wrongly, and missed."""
    a, b = np.zeros(length, bool), np.zeros(length, bool)
    for start, end in gold:
        a[start:end] = True
    for start, end in found:
        b[start:end] = True
    return int((a & b).sum()), int((b & ~a).sum()), int((a & ~b).sum())


def figures(counts: np.ndarray, weight: np.ndarray) -> tuple[float, float, float, float]:
    """Precision, recall and F1 over all characters, and the mean F1 of the rows that have gold.

    Args:
        counts: (n, 3) of ``character_counts``.
        weight: (n,) how often each row counts.
    """
    right, wrong, missed = (weight @ counts).tolist()
    has = (counts[:, 0] + counts[:, 2] > 0) & (weight > 0)
    own = 2 * counts[has, 0] / (2 * counts[has, 0] + counts[has, 1] + counts[has, 2])
    return (
        right / (right + wrong) if right + wrong else 0.0,
        right / (right + missed) if right + missed else 0.0,
        2 * right / (2 * right + wrong + missed) if right + wrong + missed else 0.0,
        float(own @ weight[has] / weight[has].sum()) if has.any() else 0.0,
    )


def lines(items: Sequence[Sentence], found: Sequence[tuple[str, dict[str, Spans]]], end_to_end: bool) -> list[str]:
    """Markdown rows by source and method."""
    out = []
    for source in sorted({item.source for item in items}):
        for part in ("other folds", "fold 0"):
            at = [
                i
                for i, item in enumerate(items)
                if item.source == source and (end_to_end or item.gold) and (item.row["fold"] == 0) == (part == "fold 0")
            ]
            if len(at) < 5:
                continue
            groups = [items[i].row["group"] for i in at]
            for method in METHODS:
                counts = np.array(
                    [
                        character_counts(
                            len(items[i].text),
                            items[i].gold,
                            found[i][1][method] if not end_to_end or found[i][0] in HALLUCINATED else [],
                        )
                        for i in at
                    ]
                )
                p, r, f, mean = figures(counts, np.ones(len(at)))
                statistics = {"f": lambda w, c=counts: figures(c, w)[2], "m": lambda w, c=counts: figures(c, w)[3]}
                limits = bootstrap(statistics, groups)
                shown = [f"{v:.3f}" + (f" [{x[0]:.3f}, {x[1]:.3f}]" if x else "")
                         for v, x in ((f, limits["f"]), (mean, limits["m"]))]  # fmt: skip
                out.append(f"| {source} | {part} | {len(at)} | {method} | {p:.3f} | {r:.3f} | {' | '.join(shown)} |")
    return out


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--annotator", default="embedded")
    parser.add_argument("--limit", type=int, default=150, help="corrected sentences of a source (default 150)")
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    annotator = DiscriminativeAnnotator.from_pretrained(args.annotator)
    items = sentences(load_rows(args.data), args.limit)
    found = predicted(annotator, items)
    head = [
        "| source | rows of | n | method | precision | recall | F1 | mean F1 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    newline = "\n"
    trained = ", ".join(sorted({i.source for i in items if i.source.split()[0] in TRAINABLE}))
    page = f"""# Unsupported words

Character level, against words that people marked (cliff, wice_tokens) or that a correction changed (the others, at
most {args.limit} sentences each; of summedits it is a model's edit that is undone). Constants of `annotators/verifier/spans.py`
(the {NEAREST} nearest passages, doubt from {UNBACKED}, the pair encoder's share {ENCODER_SHARE}, at most {BRIDGE} words
bridged) were chosen on folds 1 to 4 of wice_tokens and the corrections; fold 0 of these and all of cliff are kept
apart. "Mean F1" is over sentences with gold; in brackets 95 % intervals over groups. How much beside a wrong word
people mark differs, so no method comes near 1.

    python -m benchmarks.spans --data ../shared/data

Annotator {annotator.name}, fingerprint {annotator.fingerprint}. Python {platform.python_version()}, torch
{version("torch")}; 2-core CPU machine. Of sources that the weights were trained on (other folds): {trained}.

## On sentences that gold says are wrong

{newline.join([*head, *lines(items, found, end_to_end=False)])}

## End to end

All sentences, those without gold spans too; marked only where the annotator calls the sentence hallucinated.

{newline.join([*head, *lines(items, found, end_to_end=True)])}
"""
    args.output.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
