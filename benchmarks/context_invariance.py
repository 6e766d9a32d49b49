"""Does a verdict stay when unrelated paragraphs are put around its evidence?

    python -m benchmarks.context_invariance --data ../shared/data

Rows of fold 0 with a short reference are judged alone, then with paragraphs of other documents of the same source added
(1, 3, 10 and 30 of them: before, behind and around in turn), with the evidence moved from first to last among ten, and
with its sentences torn apart, one such paragraph between each two. Reports how often the verdict changes. Writes
docs/results/context-invariance.md; about fifteen minutes on one core.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from annotators import Annotator, SentenceAnnotation, load_annotator
from annotators.evaluation.metrics import bootstrap, supported_score
from annotators.records import HALLUCINATED
from annotators.text.sentences import split_sentences
from benchmarks.baselines import english_rows
from benchmarks.splits import DATA, TRAINABLE

PAGE = Path(__file__).parent.parent / "docs" / "results" / "context-invariance.md"
COUNTS = (1, 3, 10, 30)
MOVED = 10
MAX_WORDS, MIN_WORDS = 250, 20
PARAGRAPH = (20, 70)
"""Words of a paragraph that is put around."""
GAP = "\n\n"
VARIANTS = ("alone", *(f"{n} added" for n in COUNTS), "first of ten", "last of ten", "torn apart")


def paragraphs(rows: Sequence[Mapping[str, Any]], seed: int) -> list[str]:
    """Pieces of whole sentences of the rows' references, one of each distinct reference, in a random order."""
    found = []
    for reference in sorted({row["reference"] for row in rows}):
        piece: list[str] = []
        for start, end in split_sentences(reference[:2000]):
            piece.append(" ".join(reference[start:end].split()))
            if sum(len(s.split()) for s in piece) >= PARAGRAPH[0]:
                break
        if PARAGRAPH[0] <= sum(len(s.split()) for s in piece) <= PARAGRAPH[1]:
            found.append(" ".join(piece))
    Random(seed).shuffle(found)
    return found


def variants(reference: str, others: Sequence[str], number: int) -> dict[str, str]:
    """The reference as it is and in all its surroundings.

    Args:
        reference: With the evidence.
        others: At least 30 unrelated paragraphs.
        number: Of the row; decides where the paragraphs go: before, behind or around.
    """
    out = {"alone": reference}
    for n in COUNTS:
        before = (n, 0, n // 2)[number % 3]
        out[f"{n} added"] = GAP.join([*others[:before], reference, *others[before:n]])
    out["first of ten"] = GAP.join([reference, *others[:MOVED]])
    out["last of ten"] = GAP.join([*others[:MOVED], reference])
    sentences = [reference[a:b] for a, b in split_sentences(reference)]
    torn: list[str] = []
    for i, sentence in enumerate(sentences):
        torn += [sentence, others[i % len(others)]]
    out["torn apart"] = GAP.join(torn[:-1])
    return out


def chosen(everything: Sequence[Mapping[str, Any]], per_source: int) -> dict[str, list[Mapping[str, Any]]]:
    """By source, rows of fold 0 whose reference is short, at most one of a group."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    by_group = {
        row["group"]: row
        for row in Random(0).sample(list(everything), len(everything))
        if row["fold"] == 0 and MIN_WORDS <= len(row["reference"].split()) <= MAX_WORDS and row["label"] != "no_fact"
    }
    for row in by_group.values():
        if len(found[row["source"]]) < per_source:
            found[row["source"]].append(row)
    return dict(sorted(found.items()))


def judge(
    annotator: Annotator, rows: Sequence[Mapping[str, Any]], others: Sequence[str]
) -> list[dict[str, SentenceAnnotation]]:
    """Of each row its judgement in every surrounding."""
    asked = [
        (i, name, {"reference": reference, "sentence": row["sentence"], "question": row["question"] or ""})
        for i, row in enumerate(rows)
        for name, reference in variants(row["reference"], others, i).items()
    ]
    out: list[dict[str, SentenceAnnotation]] = [{} for _ in rows]
    for (i, name, _), judged in zip(asked, annotator.predict([row for *_, row in asked]), strict=True):
        out[i][name] = judged
    return out


def changes(judged: Sequence[Mapping[str, SentenceAnnotation]], first: str, second: str) -> dict[str, np.ndarray]:
    """(n,) each: 1 where the two-way verdict and where the label differs, and |ΔP(supported | factual)|."""
    pairs = [(j[first], j[second]) for j in judged]
    two = [(a.label in HALLUCINATED) != (b.label in HALLUCINATED) for a, b in pairs]
    share = [supported_score([a.scores, b.scores]) for a, b in pairs]
    return {
        "two-way": np.array(two, float),
        "label": np.array([a.label != b.label for a, b in pairs], float),
        "shift": np.array([abs(s[0] - s[1]) for s in share]),
    }


def line(title: str, found: Mapping[str, np.ndarray], groups: Sequence[str]) -> str:
    """One row of the table, with 95 % intervals over groups."""

    def mean(values: np.ndarray):  # type: ignore[no-untyped-def]
        return lambda w: float(values @ w / w.sum()) if w.sum() else None

    limits = bootstrap({name: mean(values) for name, values in found.items()}, groups)
    cells = []
    for name, values in found.items():
        low, high = limits[name] or (float("nan"),) * 2
        cells.append(f"{values.mean():.3f} [{low:.3f}, {high:.3f}]")
    return f"| {title} | {len(groups)} | {' | '.join(cells)} |"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--annotator", default="embedded")
    parser.add_argument("--rows", type=int, default=20, help="rows of a source (default 20)")
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    everything = english_rows(args.data)
    annotator = load_annotator(args.annotator)
    judged: list[dict[str, SentenceAnnotation]] = []
    rows: list[Mapping[str, Any]] = []
    for source, some in chosen(everything, args.rows).items():
        own = {row["group"] for row in some}
        pool = [r for r in everything if r["source"] == source and r["group"] not in own]
        others = paragraphs(pool, seed=0)
        if len(others) < max(COUNTS):
            print(f"{source}: too few paragraphs", file=sys.stderr)
            continue
        judged += judge(annotator, some, others)
        rows += some
        print(source, len(some), file=sys.stderr, flush=True)
    kept = [i for i, j in enumerate(judged) if all(s.status == "checked" for s in j.values())]
    judged, rows = [judged[i] for i in kept], [rows[i] for i in kept]
    groups = [row["group"] for row in rows]
    lines = [line(f"alone → {name}", changes(judged, "alone", name), groups) for name in VARIANTS[1:5]]
    lines.append(line("first of ten → last of ten", changes(judged, "first of ten", "last of ten"), groups))
    lines.append(line("alone → torn apart", changes(judged, "alone", "torn apart"), groups))
    kinds: Counter[str] = Counter()
    for j in judged:
        for name in VARIANTS[1:5]:
            kinds[f"{j['alone'].label} → {j[name].label}"] += j["alone"].label != j[name].label
    by_source = []
    for source in sorted({row["source"] for row in rows}):
        at = [i for i, row in enumerate(rows) if row["source"] == source]
        rates = [changes([judged[i] for i in at], "alone", name)["two-way"].mean() for name in VARIANTS[1:5]]
        mark = "" if source in TRAINABLE else " (evaluation only)"
        by_source.append(f"| {source}{mark} | {len(at)} | {' | '.join(f'{rate:.3f}' for rate in rates)} |")
    newline = "\n"
    page = f"""# Context invariance

A verdict should rest on the evidence, not on what else stands in the reference. Rows of fold 0, one of a group, whose
reference has {MIN_WORDS} to {MAX_WORDS} words, at most {args.rows} a source. The paragraphs put around
({PARAGRAPH[0]} to {PARAGRAPH[1]} words) are from other documents of the same source: they speak of like things, and now
and then may bear on a sentence. "Two-way" counts verdicts that change between hallucinated and not, "label" any change
of label; "shift" is the mean |ΔP(supported | factual)|. Goal: two-way at most 0.03. In brackets: 95 % intervals over
groups.

    python -m benchmarks.context_invariance --data ../shared/data --rows {args.rows}

Annotator {annotator.name}, fingerprint {annotator.fingerprint}. Python {platform.python_version()}, torch
{version("torch")}; 2-core CPU machine.

| change | rows | two-way | label | shift |
|---|---|---|---|---|
{newline.join(lines)}

Changes of label when paragraphs are added: {", ".join(f"{k} {v}" for k, v in kinds.most_common() if v) or "none"}.

## Two-way changes by source

| source | rows | {" | ".join(VARIANTS[1:5])} |
|---|---|---|---|---|---|
{newline.join(by_source)}
"""
    args.output.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
