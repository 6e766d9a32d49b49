"""How much of the gold evidence the window holds: BM25, embedding, both; 400 tokens and the second pass.

    python -m benchmarks.window_recall --data ../shared/data --output docs/results/window-recall.md

Rows of fm2, wice and factcheckgpt with gold fragments and a reference over 400 tokens, each source apart. Prints and
writes the recall tables, the choices made on fold 1, what unrelated text around the reference changes, and how
much time BM25's postings save. No figure depends on trained weights of this toolkit.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from annotators.evaluation.metrics import bootstrap
from annotators.retrieval import passages as passages_module
from annotators.retrieval import window as window_module
from annotators.retrieval.bm25 import BM25, words
from annotators.retrieval.window import (
    ReferenceIndex,
    fuse,
    index_references,
    pack,
    second_pass,
    select,
    take,
    with_neighbours,
)
from annotators.text.words import FUNCTION_WORDS
from benchmarks.splits import DATA, load_rows
from engines.embedding import Embedder

SOURCES = ("fm2", "wice", "factcheckgpt")
FACTOR = 6
FOUND = 0.95
"""A fragment counts as found when this share of its characters is in the window."""
FUNCTION = frozenset(words(" ".join(FUNCTION_WORDS)))
Ranking = Callable[["Row"], np.ndarray]
FIRST, BM25_ALONE, EMBEDDING, BOTH = "first tokens", "BM25", "embedding", "both"


def content(text: str) -> set[str]:
    """The words that carry meaning, as BM25 sees them."""
    return set(words(text)) - FUNCTION


class Remembering:
    """An embedder that keeps what it has encoded, so that variants cost one encoding."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder, self.reads_chinese = embedder, embedder.reads_chinese
        self._known: dict[str, np.ndarray] = {}

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known |= zip(new, self.embedder.encode(new), strict=True)
        return np.stack([self._known[text] for text in texts]) if texts else self.embedder.encode([])


@dataclass(frozen=True)
class Row:
    """A labelled row with its reference ready to be searched and the scores of its passages, (1, P) each."""

    row: Mapping[str, Any]
    index: ReferenceIndex
    bm25: np.ndarray
    embedding: np.ndarray

    def recall(self, places: Iterable[int]) -> tuple[float, float, float, float]:
        """What of the fragments is in these passages: share of characters, all, any, share of shared words."""
        text = self.index.reference
        chosen = {self.index.passages[place].text for place in places}
        inside = np.zeros(len(text), dtype=bool)
        for passage in self.index.passages:
            if passage.text in chosen:  # an equal passage says the same
                inside[passage.start : passage.end] = True
        shares, lengths, seen = [], [], ""
        for fragment in self.row["fragments"]:
            solid = np.array([not char.isspace() for char in fragment])
            at = [i for i in range(len(text)) if text.startswith(fragment, i)]
            shares.append(max(float(inside[i : i + len(fragment)][solid].mean()) for i in at))
            lengths.append(solid.sum())
            for start in at:
                seen += "".join(text[i] if inside[i] else " " for i in range(start, start + len(fragment))) + "\n"
        found = [share >= FOUND for share in shares]
        shared = content(self.row["sentence"]) & content("\n".join(self.row["fragments"]))
        read = len(shared & content(seen)) / len(shared) if shared else np.nan
        return float(np.average(shares, weights=lengths)), float(all(found)), float(any(found)), read


def prepare(rows: Sequence[Mapping[str, Any]], embedder: Embedder, encoder: Remembering) -> list[Row]:
    """Index the rows' references and score their passages; rows whose reference fits the budget are left out."""
    indexes = index_references([row["reference"] for row in rows], embedder.tokenize, [encoder])
    long = [(row, index) for row, index in zip(rows, indexes, strict=True) if not index.fits]
    queries = encoder.encode([row["sentence"] for row, _ in long])
    return [
        Row(row, index, index.bm25.scores([words(row["sentence"])]), query[None] @ index.vectors[0].T)
        for (row, index), query in zip(long, queries, strict=True)
    ]


RANKINGS: dict[str, Ranking] = {
    FIRST: lambda row: -np.arange(len(row.index.passages), dtype=np.float32)[None],
    BM25_ALONE: lambda row: with_neighbours(fuse([row.bm25]), row.index),
    EMBEDDING: lambda row: with_neighbours(fuse([row.embedding]), row.index),
    BOTH: lambda row: with_neighbours(fuse([row.bm25, row.embedding]), row.index),
}


def z_scores(row: Row) -> np.ndarray:
    """The other usual fusion: the sum of standardised scores."""
    parts = [(s - s.mean()) / max(float(s.std()), 1e-9) for s in (row.bm25, row.embedding)]
    return np.asarray(parts[0] + parts[1] - min(map(float, (parts[0] + parts[1])[0])))


def across_lines(share: float) -> Ranking:
    """As built, and neighbours across a line break lend a share of their support, too."""

    def ranking(row: Row) -> np.ndarray:
        support = fuse([row.bm25, row.embedding])
        lent = np.zeros_like(support)
        lent[:, 1:] = share * support[:, :-1]
        lent[:, :-1] = np.maximum(lent[:, :-1], share * support[:, 1:])
        return support + np.maximum(with_neighbours(support, row.index) - support, lent)

    return ranking


def order(ranking: Ranking, row: Row) -> np.ndarray:
    return np.argsort(-ranking(row), axis=1, kind="stable")[0]


def recalls(rows: Sequence[Row], ranking: Ranking, factor: int = 1) -> np.ndarray:
    """(n, 4) characters, all, any, words; of one window, or of the second pass if ``factor`` is more than 1."""
    found = []
    for row in rows:
        places = take(row.index, order(ranking, row), row.index.budget * factor)
        if factor > 1:
            places = [place for part in pack(row.index, places, factor) for place in part]
        found.append(row.recall(places))
    return np.asarray(found).reshape(-1, 4)


def interval(values_N: np.ndarray, groups: Sequence[str], sign: str = "") -> str:
    """ "mean [low, high]" with the 95 % bootstrap interval over groups."""
    limits = bootstrap({"mean": lambda w: float(np.average(values_N, weights=w))}, groups)["mean"]
    low, high = limits or (np.nan, np.nan)
    return f"{values_N.mean():{sign}.3f} [{low:{sign}.3f}, {high:{sign}.3f}]"


def recall_table(rows: Sequence[Row]) -> list[str]:
    """One line per source, ranking and amount."""
    lines = [
        "| source | n | groups | read | characters, 400 tokens | all | any | words "
        "| characters, 2,400 tokens | all | any | words |",
        "|" + "---|" * 12,
    ]
    for source in SOURCES:
        chosen = [row for row in rows if row.row["source"] == source]
        groups = [row.row["group"] for row in chosen]
        for name, ranking in RANKINGS.items():
            once, more = recalls(chosen, ranking), recalls(chosen, ranking, FACTOR)
            cells = [interval(once[:, 0], groups), *(f"{v:.3f}" for v in np.nanmean(once[:, 1:], axis=0))]
            cells += [interval(more[:, 0], groups), *(f"{v:.3f}" for v in np.nanmean(more[:, 1:], axis=0))]
            lines.append(f"| {source} | {len(chosen)} | {len(set(groups))} | {name} | " + " | ".join(cells) + " |")
    return lines


def difference_table(rows: Sequence[Row]) -> list[str]:
    """What both rankings together gain over each, in characters and rows with any fragment, paired by row."""
    lines = ["| source | n | both minus | characters | any fragment |", "|---|---|---|---|---|"]
    for source in SOURCES:
        chosen = [row for row in rows if row.row["source"] == source]
        groups = [row.row["group"] for row in chosen]
        both = recalls(chosen, RANKINGS[BOTH])
        for name in (FIRST, BM25_ALONE, EMBEDDING):
            other = recalls(chosen, RANKINGS[name])
            cells = [interval(both[:, column] - other[:, column], groups, "+") for column in (0, 2)]
            lines.append(f"| {source} | {len(chosen)} | {name} | " + " | ".join(cells) + " |")
    return lines


def choice_table(rows: Sequence[Row], again: Callable[[], list[Row]]) -> list[str]:
    """The variants looked at on fold 1."""
    lines = ["| variant | " + " | ".join(f"{s}" for s in SOURCES) + " |", "|---|" + "---|" * len(SOURCES)]

    def add(name: str, ranking: Ranking, rows: Sequence[Row] = rows) -> None:
        cells = []
        for source in SOURCES:
            found = np.nanmean(recalls([r for r in rows if r.row["source"] == source], ranking), axis=0)
            cells.append(", ".join(f"{value:.3f}" for value in found))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")

    both = RANKINGS[BOTH]
    add("**as built**: reciprocal ranks, k = 5, ¾ of the best neighbour in its line", both)
    add("no neighbours", lambda row: fuse([row.bm25, row.embedding]))
    add("standardised scores, no neighbours", z_scores)
    add("standardised scores, with neighbours", lambda row: with_neighbours(z_scores(row), row.index))
    for share in (0.25, 0.5):
        add(f"and {share} of the best neighbour across a line break", across_lines(share))
    for name, value in (
        *(("RANK_OFFSET", k) for k in (2, 10, 20, 60)),
        *(("LINE_SHARE", share) for share in (0.5, 1.0)),
        *(("LINE_TOKENS", tokens) for tokens in (0, 64, 256)),
    ):
        with setting(window_module, name, value):
            add(f"`{name}` = {value}", both)
    for tokens in (48, 80):
        with setting(passages_module, "PASSAGE_TOKENS", tokens):
            add(f"`PASSAGE_TOKENS` = {tokens}", both, again())
    return lines


class setting:
    """A module's constant, changed for a while."""

    def __init__(self, module: Any, name: str, value: float) -> None:
        self.module, self.name, self.value = module, name, value

    def __enter__(self) -> None:
        self.before = getattr(self.module, self.name)
        setattr(self.module, self.name, self.value)

    def __exit__(self, *_: object) -> None:
        setattr(self.module, self.name, self.before)


def context_table(rows: Sequence[Row], embedder: Embedder, encoder: Remembering) -> list[str]:
    """Recall with an unrelated reference of the same source before and after the own one, as new paragraphs."""
    lines = [
        "| source | n | characters alone | characters in context | own passages kept |", "|---|---|---|---|---|"
    ]  # fmt: skip
    for source in SOURCES:
        chosen = [row for row in rows if row.row["source"] == source]
        groups = [row.row["group"] for row in chosen]
        texts, starts = [], []
        for n, row in enumerate(chosen):
            others = [other for other in chosen[n + 1 :] + chosen[:n] if other.row["group"] != groups[n]]
            before, after = (others[len(others) // 3].index.reference, others[2 * len(others) // 3].index.reference)
            texts.append("\n\n".join([before, row.index.reference, after]))
            starts.append(len(before) + 2)
        queries = [row.row["sentence"] for row in chosen]
        indexes = index_references(texts, embedder.tokenize, [encoder])
        windows = select(list(zip(indexes, queries, strict=True)))
        alone = select([(row.index, query) for row, query in zip(chosen, queries, strict=True)])
        without, within, kept = [], [], []
        for row, start, window, own in zip(chosen, starts, windows, alone, strict=True):
            at = {(p.start - start, p.end - start) for p in window.passages}
            places = [i for i, p in enumerate(row.index.passages) if (p.start, p.end) in at]
            within.append(row.recall(places)[0])
            without.append(row.recall(own.places)[0])
            kept.append(len(set(places) & set(own.places)) / len(own.places))
        cells = [interval(np.asarray(values), groups) for values in (without, within, kept)]
        lines.append(f"| {source} | {len(chosen)} | " + " | ".join(cells) + " |")
    return lines


def speed_lines(rows: Sequence[Row], embedder: Embedder) -> list[str]:
    """CPU-seconds, as ratios within this run."""
    text = ""
    for row in rows:
        if row.row["source"] == "wice" and len(text) < 200_000:
            text += row.index.reference + "\n\n"
    text = text[:200_000]
    queries = [words(row.row["sentence"]) for row in rows][:100]
    spent: dict[str, float] = {}

    def measure(name: str, work: Callable[[], Any]) -> Any:
        begin = time.process_time()
        result = work()
        spent[name] = time.process_time() - begin
        return result

    index = measure("cut", lambda: index_references([text], embedder.tokenize)[0])
    documents = [words(passage.text) for passage in index.passages]
    bm25: BM25 = measure("build", lambda: BM25(documents))
    measure("postings", lambda: bm25.scores(queries))
    from rank_bm25 import BM25Plus

    plain = BM25Plus(documents)
    measure("get_scores", lambda: [plain.get_scores(query) for query in queries])
    sentences = [row.row["sentence"] for row in rows][:100]
    measure("select", lambda: select([(index, sentence) for sentence in sentences]))
    measure("embed", lambda: embedder.encode([passage.text for passage in index.passages]))
    return [
        f"One reference of 200,000 characters ({len(index.passages):,} passages), {len(queries)} queries, CPU-seconds "
        "relative to cutting the reference into passages (= 1): "
        + ", ".join(f"{name} {spent[key] / spent['cut']:.2g}" for name, key in (
            ("building BM25", "build"), ("its 100 queries by postings", "postings"),
            ("the same by `rank_bm25.get_scores`", "get_scores"), ("`select` by BM25 alone, all in all", "select"),
            ("embedding all passages once", "embed"),
        )) + f". Postings are {spent['get_scores'] / spent['postings']:.0f}× faster than `get_scores`.",
    ]  # fmt: skip


def page(rows: Sequence[Row], raw: Sequence[Mapping[str, Any]], embedder: Embedder, encoder: Remembering) -> str:
    """The result page."""
    of_fold = {fold: [row for row in rows if row.row["fold"] == fold] for fold in (0, 1)}
    tokens = {s: [sum(p.tokens for p in r.index.passages) for r in rows if r.row["source"] == s] for s in SOURCES}
    pairs = [(row.index, row.row["sentence"]) for row in rows]
    windows, more = select(pairs), second_pass(pairs)
    for row, window in zip(rows, windows, strict=True):  # the tables below are about what `select` returns
        assert set(window.places) == set(take(row.index, order(RANKINGS[BOTH], row), row.index.budget))
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "sentence-transformers", "rank-bm25"))
    dev = [row for row in raw if row["fold"] == 1]
    n_dev = [str(sum(row.row["source"] == source for row in of_fold[1])) for source in SOURCES]
    return "\n".join([
        "# Evidence recall of the window",
        "",
        "Made by `python -m benchmarks.window_recall --data ../shared/data --output docs/results/window-recall.md`"
        f" with {versions}; embedder {embedder.name} in {embedder.dtype}, tokens are its own; "
        f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s), Python {platform.python_version()}.",
        "",
        f"Rows with gold fragments whose reference is over 400 tokens: {len(rows)} of the {len(raw)} rows with "
        "fragments. Tokens of these references (median, largest): "
        + "; ".join(f"{s} {np.median(t):,.0f}, {max(t):,}" for s, t in tokens.items()) + ".",
        "",
        "*characters*: share of the gold fragments' characters (white space aside) in what is read, mean over rows, "
        "with 95 % bootstrap intervals over groups (1,000 draws). *all*, *any*: share of rows with every, or at least "
        f"one, fragment found, that is with {FOUND:.0%} of its characters inside. *words*: of the sentence's content "
        "words that the gold fragments have, the share read in these fragments. A passage equal to a chosen one "
        "counts as chosen. *first tokens* reads the reference from its beginning. BM25, embedding and both all pass "
        "a share of a passage's rank on to its neighbours, and all take whole passages.",
        "",
        "The constants were chosen on fold 1 only; nothing here was trained, so no weights have seen any source. "
        f"The second pass used {np.mean([len(w) for w in more]):.1f} windows and "
        f"{np.mean([sum(x.tokens for x in w) for w in more]):,.0f} tokens a row on average.",
        "",
        "What to know when reading the tables:",
        "",
        "- fm2's references are sentences in shuffled order, mostly just over 400 tokens: nearly all of them fits, and "
        "no sentence has its context beside it. Among unrelated text (below) many of its sentences (\"He …\") cannot "
        "be told from others.",
        "- factcheckgpt's gold fragments are whole paragraphs of about 117 tokens, of which three fit; reading from "
        "the beginning gets whole paragraphs, choosing sentences gets pieces of more of them. There *any* and *all* "
        "say little, *words* more.",
        "- wice is what the window is for: long web pages, gold fragments of single sentences.",
        "",
        "## Fold 0 (test)", "", *recall_table(of_fold[0]), "",
        "## All folds", "", *recall_table(rows), "",
        "Paired differences over all folds, 400 tokens:", "", *difference_table(rows), "",
        "## Choices, on fold 1 (development)", "",
        "The window of 400 tokens; characters, all, any, words. Neighbouring values differ by a few rows of "
        + " and ".join([", ".join(n_dev[:-1]), n_dev[-1]]) + ", so none of these choices is sharp.", "",
        *choice_table(of_fold[1], lambda: prepare(dev, embedder, encoder)), "",
        "## Unrelated text around the reference (fold 0)", "",
        "Each reference between two others of its source, with blank lines between; *own passages kept*: share of the "
        "passages chosen without context that are still chosen.", "",
        *context_table(of_fold[0], embedder, encoder), "",
        "## Time", "", *speed_lines(rows, embedder), "",
    ])  # fmt: skip


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--output", type=Path, default=Path("docs/results/window-recall.md"))
    options = parser.parse_args()
    files = {f"sentences/{source}" for source in SOURCES}
    raw = [row for row in load_rows(options.data) if row["file"] in files and row["fragments"]]
    embedder = Embedder()
    encoder = Remembering(embedder)
    text = page(prepare(raw, embedder, encoder), raw, embedder, encoder)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, encoding="utf-8")
    print(text)
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
