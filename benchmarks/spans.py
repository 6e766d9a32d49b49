"""Which words of a hallucinated sentence are unsupported: character-level figures beside simple baselines.

    python -m benchmarks.spans --data ../shared/data

Gold: every file of spans/ (people marked the words), and, where people or a model corrected a sentence, the words that
the correction changed (summedits, expertqa, factcheckgpt). Two settings: on the sentences that gold says are wrong
(whatever the annotator calls them), and end to end (only where it calls a sentence hallucinated, right answers among
them). About five minutes on one core.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from itertools import product
from random import Random
from typing import Any, NamedTuple

import numpy as np

from annotators.base import Sentence as Judged
from annotators.evaluation.metrics import bootstrap
from annotators.records import HALLUCINATED, LABELS
from annotators.text.normalise import clean, original_span
from annotators.text.sentences import split_sentences
from annotators.text.words import stem_set, words_of
from annotators.verifier.annotator import DiscriminativeAnnotator, unsupported_spans
from benchmarks.common import Row, figure, load_rows, parser, row, save

CORRECTED = ("expertqa", "factcheckgpt", "summedits")
METHODS = ("spans", "whole sentence", "words not in the reference")
CHUNK = 512
Spans = list[tuple[int, int]]


class Sentence(NamedTuple):
    """A sentence of an answer with its gold spans."""

    source: str
    row: Row
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
    for r in rows:
        if r["file"].startswith("spans/"):
            for start, end in split_sentences(r["answer"]):
                cut = [(max(start, e["start"]) - start, min(end, e["end"]) - start) for e in r["errors"]]
                found.append(Sentence(r["source"], r, r["answer"][start:end], [(a, b) for a, b in cut if a < b]))
        elif r["source"] in CORRECTED and r["lang"] == "en" and r.get("correction"):
            gold = changed(r["sentence"], r["correction"]) if r["label"] != "supported" else []
            if gold:
                name = f"{r['source']} (corrections)"
                corrected.setdefault(name, []).append(Sentence(name, r, r["sentence"], gold))
    for some in corrected.values():
        found += Random(0).sample(some, min(limit, len(some)))
    return found


def predicted(annotator: DiscriminativeAnnotator, items: Sequence[Sentence]) -> list[tuple[str, dict[str, Spans]]]:
    """Each sentence's label, and what each method would mark in it."""
    out: list[tuple[str, dict[str, Spans]]] = []
    for first in range(0, len(items), CHUNK):
        chunk = items[first : first + CHUNK]
        verdicts = annotator.verdicts([Judged(item.text, 0, item.text, item.row) for item in chunk])
        for item, verdict in zip(chunk, verdicts, strict=True):
            own, origin = clean(item.text)
            known = stem_set(clean(item.row["reference"])[0])
            words = words_of(own)
            places = zip(words.starts, words.ends, words.content, words.stems, strict=True)
            lost = [(a, b) for a, b, content, stem in places if content and stem not in known]
            marked = unsupported_spans(own, verdict.tokens, [p.text for p in verdict.window.passages])
            ours, lacking = ([original_span(item.text, origin, a, b) for a, b in some] for some in (marked, lost))
            marks = dict(zip(METHODS, (ours, [(0, len(item.text))], lacking), strict=True))
            out.append((LABELS[int(verdict.probabilities.argmax())], marks))
        print(f"{len(out)} of {len(items)}", file=sys.stderr, flush=True)
    return out


def character_counts(gold: Spans, found: Spans) -> tuple[int, int, int]:
    """Characters marked rightly, wrongly, and missed."""
    wanted, marked = ({i for start, end in spans for i in range(start, end)} for spans in (gold, found))
    return len(wanted & marked), len(marked - wanted), len(wanted - marked)


def figures(counts: np.ndarray, weight: np.ndarray) -> tuple[float, float, float, float]:
    """Precision, recall and F1 over all characters, and the mean F1 of the rows that have gold.

    ``counts`` is (n, 3), of ``character_counts``; ``weight`` (n,) says how often each row counts.
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


def results(items: Sequence[Sentence], found: Sequence[tuple[str, dict[str, Spans]]]) -> tuple[list[Row], list[Any]]:
    """Rows for fold 0 and all of cliff on sentences that gold says are wrong; a table of every setting."""
    heads = "setting|source|rows of|n|method|precision|recall|F1|low|high|mean F1".split("|")
    shown, table = [], [heads]
    sources = sorted({item.source for item in items})
    for setting, source, part in product(("wrong sentences", "end to end"), sources, ("fold 0", "other folds")):
        wrong = setting == "wrong sentences"
        at = [
            (item, label, marks)
            for item, (label, marks) in zip(items, found, strict=True)
            if item.source == source and (item.gold or not wrong) and (item.row["fold"] == 0) == (part == "fold 0")
        ]
        if len(at) < 5:
            continue
        groups, values = [item.row["group"] for item, *_ in at], list[Row]()
        for method in METHODS:
            kept = [marks[method] if wrong or label in HALLUCINATED else [] for _, label, marks in at]
            counts = np.array([character_counts(item.gold, own) for (item, *_), own in zip(at, kept, strict=True)])
            p, r, f, mean = figures(counts, np.ones(len(at)))
            limits = bootstrap({"f": lambda w, c=counts: figures(c, w)[2]}, groups)["f"]
            table.append([setting, source, part, len(at), method, p, r, f, *(limits or (None, None)), mean])
            values.append(row(f"{source}, {part}, {method}: F1 of characters", len(at), f, limits))
        if wrong and (part == "fold 0" or source == "cliff"):
            told = "; ".join(figure(one, limits=one is values[0]) for one in values)
            shown.append(row(f"{source}, {part}", len(at), told))
    return shown, table


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--annotator", default="embedded")
    made.add_argument("--limit", type=int, default=150, help="corrected sentences of a source (default 150)")
    args = made.parse_args()
    annotator = DiscriminativeAnnotator.from_pretrained(args.annotator)
    items = sentences(load_rows(args.data), args.limit)
    shown, table = results(items, predicted(annotator, items))
    about = f"Annotator {annotator.name}, fingerprint {annotator.fingerprint}."
    save("spans", "spans", shown, tables={"all settings": table}, about=about)


if __name__ == "__main__":
    main()
