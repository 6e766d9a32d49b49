"""Does the annotator read the right part of a reference, and does its verdict stay when other text stands around it?

    python -m benchmarks.evidence --data ../shared/data

Window: rows of fm2, wice and factcheckgpt with gold fragments and a reference over 400 tokens; how much of the
fragments is in what is read, by BM25, embedding, both, or the first tokens; its constants were chosen on fold 1.
Verdicts: rows of fold 0 with a short reference are judged alone, then with 1, 3, 10 and 30 paragraphs of other
documents of the same source before, behind or around it, with the evidence moved from first to last among ten, and
with such a paragraph between each two of its sentences. About twenty minutes on one core.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, product
from random import Random
from typing import Any

import numpy as np

from annotators import Annotator, SentenceAnnotation, load_annotator
from annotators.evaluation.metrics import supported_score
from annotators.records import HALLUCINATED, JUDGED
from annotators.retrieval import ReferenceIndex, fuse, index_references, pack, take, with_neighbours, words
from benchmarks.common import english_rows, mean_row, parser, save, sentences_of
from engines.embedding import Embedder

SOURCES = ("fm2", "wice", "factcheckgpt")
FACTOR, FOUND = 6, 0.95  # of the second window; share of its characters in the window from which a fragment is found
Ranking = Callable[["Row"], np.ndarray]
BOTH = "both"


@dataclass(frozen=True)
class Row:
    """A labelled row with its reference ready to be searched and the scores of its passages, (1, P) each."""

    row: Mapping[str, Any]
    index: ReferenceIndex
    bm25: np.ndarray
    embedding: np.ndarray

    def recall(self, places: Iterable[int]) -> tuple[float, float, float]:
        """How much of the fragments is in these passages: share of characters; whether all, or any, is found."""
        text = self.index.reference
        chosen = {self.index.passages[place].text for place in places}
        inside = np.zeros(len(text), dtype=bool)
        for passage in self.index.passages:
            if passage.text in chosen:  # an equal passage says the same
                inside[passage.start : passage.end] = True
        shares, lengths = [], []
        for fragment in self.row["fragments"]:
            solid = np.array([not char.isspace() for char in fragment])
            at = [i for i in range(len(text)) if text.startswith(fragment, i)]
            shares.append(max(float(inside[i : i + len(fragment)][solid].mean()) for i in at))
            lengths.append(solid.sum())
        found = [share >= FOUND for share in shares]
        return float(np.average(shares, weights=lengths)), float(all(found)), float(any(found))


def prepare(rows: Sequence[Mapping[str, Any]], embedder: Embedder) -> list[Row]:
    """Index the rows' references and score their passages; rows whose reference fits the budget are left out."""
    indexes = index_references([row["reference"] for row in rows], embedder.tokenize, embedder)
    long = [(row, index) for row, index in zip(rows, indexes, strict=True) if not index.fits]
    queries = embedder.encode([row["sentence"] for row, _ in long])
    return [
        Row(row, index, index.bm25.scores([words(row["sentence"])]), query[None] @ index.vectors.T)
        for (row, index), query in zip(long, queries, strict=True)
    ]


RANKINGS: dict[str, Ranking] = {
    "first tokens": lambda row: -np.arange(len(row.index.passages), dtype=np.float32)[None],
    "BM25": lambda row: with_neighbours(fuse([row.bm25]), row.index),
    "embedding": lambda row: with_neighbours(fuse([row.embedding]), row.index),
    BOTH: lambda row: with_neighbours(fuse([row.bm25, row.embedding]), row.index),
}


def recalls(rows: Sequence[Row], ranking: Ranking, factor: int = 1) -> np.ndarray:
    """(n, 3) characters, all, any; of one window, or of the second pass if ``factor`` is more than 1."""
    found = []
    for row in rows:
        order = np.argsort(-ranking(row), axis=1, kind="stable")[0]
        places = take(row.index, order, row.index.budget * factor)
        if factor > 1:
            places = [place for part in pack(row.index, places, factor) for place in part]
        found.append(row.recall(places))
    return np.asarray(found).reshape(-1, 3)


def window_rows(rows: Sequence[Row]) -> tuple[list[Any], list[list[object]]]:
    """Recall of the window by source, and what both rankings together gain."""
    shown, table = [], [["source", "rows", "n", "read", "tokens", "characters", "all", "any"]]
    for source, part in product(SOURCES, ("all folds", "fold 0")):
        some = [r for r in rows if r.row["source"] == source and (part == "all folds" or r.row["fold"] == 0)]
        groups = [r.row["group"] for r in some]
        once = {name: recalls(some, ranking) for name, ranking in RANKINGS.items()}
        for name, ranking in RANKINGS.items():
            for tokens, values in ((400, once[name]), (2400, recalls(some, ranking, FACTOR))):
                table.append([source, part, len(some), name, tokens, *np.nanmean(values, axis=0).tolist()])
        if part == "fold 0":
            own = once.pop(BOTH)[:, 0]
            shown.append(mean_row(f"{source}: gold evidence in the window of 400 tokens", own, groups))
            for name, other in once.items():
                shown.append(mean_row(f"{source}: gain over {name}", own - other[:, 0], groups))
    return shown, table


COUNTS = (1, 3, 10, 30)
MOVED, MAX_WORDS, MIN_WORDS = 10, 250, 20
PARAGRAPH = (20, 70)  # words of one that is put around
GAP = "\n\n"
VARIANTS = ("alone", *(f"{n} added" for n in COUNTS), "first of ten", "last of ten", "sentences apart")


def paragraphs(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Pieces of whole sentences of the rows' references, one of each distinct reference, in a random order."""
    found = []
    for reference in sorted({row["reference"] for row in rows}):
        piece: list[str] = []  # words
        for sentence in sentences_of(reference[:2000]):
            piece += sentence.split()
            if len(piece) >= PARAGRAPH[0]:
                break
        if PARAGRAPH[0] <= len(piece) <= PARAGRAPH[1]:
            found.append(" ".join(piece))
    Random(0).shuffle(found)
    return found


def variants(reference: str, others: Sequence[str], number: int) -> dict[str, str]:
    """The reference as it is and in all its surroundings, of at least 30 unrelated paragraphs.

    The ``number`` of the row decides where these go: before, behind or around.
    """
    out = {"alone": reference}
    for n in COUNTS:
        before = (n, 0, n // 2)[number % 3]
        out[f"{n} added"] = GAP.join([*others[:before], reference, *others[before:n]])
    out["first of ten"] = GAP.join([reference, *others[:MOVED]])
    out["last of ten"] = GAP.join([*others[:MOVED], reference])
    pairs = zip(sentences_of(reference), cycle(others), strict=False)
    out["sentences apart"] = GAP.join([*chain.from_iterable(pairs)][:-1])
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
        found[row["source"]].append(row)
    return {source: rows[:per_source] for source, rows in sorted(found.items())}


def judge(
    annotator: Annotator, rows: Sequence[Mapping[str, Any]], others: Sequence[str]
) -> list[dict[str, SentenceAnnotation]]:
    """The judgement of each row in every surrounding."""
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
    """(n,) each: 1 where the verdict (flagged or not; or "unsure"), or label, differs; |ΔP(supported | factual)|."""
    pairs = [(j[first], j[second]) for j in judged]
    two = [(a.label in HALLUCINATED) != (b.label in HALLUCINATED) for a, b in pairs]
    three = [flagged or (a.label is None) != (b.label is None) for flagged, (a, b) in zip(two, pairs, strict=True)]
    share = [supported_score([a.scores, b.scores]) for a, b in pairs]
    labels, shifts = [a.label != b.label for a, b in pairs], [abs(a - b) for a, b in share]
    found = {"two-way": two, "three-way": three, "label": labels, "shift": shifts}
    return {name: np.array(values, float) for name, values in found.items()}


def verdict_rows(
    annotator: Annotator, everything: Sequence[Mapping[str, Any]], per_source: int
) -> tuple[list[Any], list[list[object]]]:
    """Share of verdicts that change between hallucinated and not, and of labels that change."""
    judged: list[dict[str, SentenceAnnotation]] = []
    rows: list[Mapping[str, Any]] = []
    for source, some in chosen(everything, per_source).items():
        own = {r["group"] for r in some}
        others = paragraphs([r for r in everything if r["source"] == source and r["group"] not in own])
        if len(others) >= max(COUNTS):
            judged += judge(annotator, some, others)
            rows += some
            print(source, len(some), file=sys.stderr, flush=True)
    kept = [i for i, j in enumerate(judged) if all(s.status in JUDGED for s in j.values())]
    judged, groups = [judged[i] for i in kept], [rows[i]["group"] for i in kept]
    shown, table = [], [["change", "two-way", "three-way", "label", "shift of P(supported)"]]
    pairs = [("alone", name) for name in (*VARIANTS[1:5], VARIANTS[-1])] + [("first of ten", "last of ten")]
    for before, after in pairs:
        found = changes(judged, before, after)
        table.append([f"{before} → {after}", *(float(values.mean()) for values in found.values())])
        shown.append(mean_row(f"verdicts that change, {before} → {after}", found["two-way"], groups, "%"))
        what = f"… or become or stop being unsure, {before} → {after}"
        shown += [mean_row(what, found["three-way"], groups, "%")] if after == VARIANTS[4] else []
    return shown, table


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--annotator", default="embedded")
    made.add_argument("--rows", type=int, default=20, help="rows of a source whose verdicts are tried (default 20)")
    args = made.parse_args()
    everything, annotator = english_rows(args.data), load_annotator(args.annotator)
    more, verdicts = verdict_rows(annotator, everything, args.rows)
    about = f"Annotator {annotator.name}, fingerprint {annotator.own_fingerprint}."
    if args.annotator != "embedded":  # the window is the same
        shown = [one | {"what": f"{args.annotator}: {one['what']}"} for one in more if f"{COUNTS[-1]} a" in one["what"]]
        save("evidence", "evidence", shown, tables={"verdicts": verdicts}, about=about, part=args.annotator)
        return
    files = {f"sentences/{source}" for source in SOURCES}
    embedder = Embedder()
    long = prepare([r for r in everything if r["file"] in files and r["fragments"]], embedder)
    shown, window = window_rows(long)
    about += f" Embedder {embedder.name}."
    save("evidence", "evidence", shown + more, tables={"window": window, "verdicts": verdicts}, about=about)


if __name__ == "__main__":
    main()
