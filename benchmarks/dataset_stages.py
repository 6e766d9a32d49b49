"""Two stages of the data set pipeline on real texts: finding a topic's document, and leaving out repeated questions.

    python -m benchmarks.dataset_stages --data ../shared/data --output docs/results/dataset.md

Reference matching: real documents and the names, headlines, sentences and questions that belong to them; the rank of
the right document under every ranking. Question de-duplication: real questions, each with rewordings and with minimal
pairs made by fixed rules (labelled by construction), the threshold chosen on the questions whose hash is odd, the
figures on the others. No LLM takes part: its judgement comes after the ranking.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from annotators.evaluation.metrics import bootstrap
from annotators.retrieval.bm25 import BM25, words
from benchmarks.question_rewrites import MINIMAL, REWORDED
from benchmarks.splits import DATA, load_rows
from fewl.expertise import folded
from fewl.similarity import char_tfidf, each_once
from mitigate.dataset.sources import HEAD, folded_name, hard_match, rank
from mitigate.dataset.stage import ask_apart, embedder, head_of
from mitigate.dataset.options import Distinct
from mitigate.report.totals import table

Row = Mapping[str, Any]
META = re.compile(r"\A(?:\(meta data\).*\n)+")
QUALIFIED = re.compile(r"^(.+?)(?:的[^：的]{1,12})?：")


@dataclass
class Task:
    """Queries, documents, and which documents are right for each query."""

    name: str
    language: str
    queries: list[str] = field(default_factory=list)
    right: list[set[int]] = field(default_factory=list)
    titles: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def add(self, queries: Sequence[str], title: str, text: str) -> None:
        """A document with the queries that it answers; equal queries share their right documents."""
        self.titles.append(title)
        self.texts.append(text)
        for query in queries:
            if query not in self.queries:
                self.queries.append(query)
                self.right.append(set())
            self.right[self.queries.index(query)].add(len(self.texts) - 1)


def tasks(rows: Sequence[Row]) -> list[Task]:
    """The five ways in which the data has texts that belong to a document."""
    names = Task("KdConv: names of films, musicians, sights → their entries", "zh")
    hidden = Task("KdConv, titles hidden", "zh")
    headlines = Task("UHGEval: headline → news without it", "zh")
    titles = Task("WiCE: page title → page without it", "en")
    claims = Task("WiCE: Wikipedia sentence → the page that it cites", "en")
    questions = Task("LFQA: question → the documents found for it", "en")
    entries: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        if row["source"] == "kdconv":
            for line in row["reference"].splitlines():
                if found := QUALIFIED.match(line):
                    entries[found[1]][line] = None
    for title, lines in entries.items():
        name, text = re.sub(r"[（(].*$", "", title) or title, "\n".join(lines)
        names.add([name], title, text)
        hidden.add([name], "", text.replace(title, "它"))
    pages: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["file"] == "sentences/wice" and META.match(row["reference"]):
            pages[row["reference"]].append(row["sentence"])
    for page, sentences in pages.items():
        body = META.sub("", page)
        claims.add(list(dict.fromkeys(sentences)), "", body)
        if found := re.match(r"\(meta data\) TITLE: (.+)", page):
            titles.add([re.split(r" [|–—-] ", found[1])[0].strip()], "", body)
    for source, task in (("uhgeval", headlines), ("lfqa_verification", questions)):
        pairs = dict.fromkeys((row["question"], row["reference"]) for row in rows if row["source"] == source)
        for question, reference in pairs:
            task.add([question], "", reference)
    return [names, hidden, headlines, titles, claims, questions]


def rankings(task: Task) -> dict[str, np.ndarray]:
    """(Q, D) scores by ranking; those above −∞ only can be found."""
    documents = [f"{a}\n{b}" for a, b in zip(task.titles, task.texts, strict=True)]
    queries = [words(query) for query in task.queries]
    heads = [head_of(text, HEAD) for text in documents]
    found = {
        "BM25, whole document": BM25([words(t) for t in documents]).scores(queries),
        f"BM25, first {HEAD} characters": BM25([words(t) for t in heads]).scores(queries),
    }
    if task.language == "zh":
        vectors = char_tfidf()([*task.queries, *heads])
        name = f"character TF-IDF, first {HEAD} characters"
    else:
        vectors = embedder(None).encode([*task.queries, *heads])
        name = f"MiniLM, first {HEAD} characters"
    found[name] = vectors[: len(queries)] @ vectors[len(queries) :].T
    used = rank(task.queries, task.titles, task.texts, task.language)
    if not any(task.titles):
        return {**found, "used here: soft": used}
    folded_titles = [folded_name(title) for title in task.titles]
    exact = np.array([[t == folded_name(q) for t in folded_titles] for q in task.queries])
    hard = np.array([hard_match({"topic": q, "aliases": []}, task.titles) for q in task.queries])
    return {
        **found,
        "exact title alone": np.where(exact, 1.0, -np.inf),
        "used here: hard alone": np.where(hard, used, -np.inf),
        "used here: soft alone": used,
        "used here: hard, then soft": used + 10.0 * hard,
    }


def reciprocal_and_hits(scores_QD: np.ndarray, right: Sequence[set[int]]) -> np.ndarray:
    """(Q, 3): right document first, among the first five, 1 / its rank; ties count against it, −∞ is never found."""
    figures = np.zeros((len(right), 3))
    for row, (scores, good) in enumerate(zip(scores_QD, right, strict=True)):
        best = max(scores[place] for place in good)
        if best > -np.inf:
            others = np.delete(scores, sorted(good))
            place = 1 + int((others >= best).sum())
            figures[row] = place == 1, place <= 5, 1 / place
    return figures


def with_interval(values: np.ndarray, groups: Sequence[Any]) -> str:
    """A mean in percent with its 95 % interval."""

    def mean(weights: np.ndarray) -> float | None:
        return float(weights @ values / weights.sum()) if weights.sum() else None

    limits = bootstrap({"": mean}, groups)[""]
    low, high = limits or (float("nan"), float("nan"))
    return f"{100 * values.mean():.1f} ({100 * low:.1f} to {100 * high:.1f})"


def matching_section(rows: Sequence[Row]) -> list[str]:
    lines = []
    for task in tasks(rows):
        lines += ["", f"### {task.name}", ""]
        lines += [f"{len(task.queries):,} queries, {len(task.texts):,} documents.", ""]
        body = []
        for name, scores in rankings(task).items():
            figures = reciprocal_and_hits(scores, task.right)
            shown = [with_interval(figures[:, column], range(len(figures))) for column in range(2)]
            body.append([name, *shown, f"{figures[:, 2].mean():.3f}"])
        print(task.name, flush=True)
        lines += table(["ranking", "recall@1, %", "recall@5, %", "mean reciprocal rank"], body)
    return lines


# --- questions --------------------------------------------------------------------------------------------


def questions_of(data: Path, rows: Sequence[Row]) -> dict[str, list[str]]:
    """Distinct real questions per language."""

    def lines(name: str) -> list[Row]:
        with (data / "fewl" / name).open(encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    english = [row["question"] for row in lines("truthfulqa.jsonl")]
    for source in ("lfqa_verification", "expertqa", "halueval_qa", "healthver"):
        english += [row["question"] for row in rows if row["source"] == source]
    chinese = [row["question"] for row in lines("halluqa_zh.jsonl")]
    chinese += [row["question"] for row in rows if row["source"] == "rgb_fact" and row["lang"] == "zh"]
    clean: dict[str, list[str]] = {}
    for language, texts in (("en", english), ("zh", chinese)):
        kept = {
            folded(t): " ".join(t.split()) for t in texts if t and t.strip().endswith(("?", "？")) and len(t) <= 200
        }
        clean[language] = sorted(kept.values())
    return clean


@dataclass(frozen=True)
class Pair:
    """A question and another one: its number, the rule, and whether both ask the same."""

    question: int
    other: str
    rule: str
    same: bool


def pairs_of(questions: Sequence[str], language: str) -> list[Pair]:
    """Every rewording and minimal pair that a rule gives for a question."""
    found = []
    for same, rules in ((True, REWORDED), (False, MINIMAL)):
        for rule, make in rules[language].items():
            for number, question in enumerate(questions):
                other = make(question)
                if other is not None and folded(other) != folded(question):
                    found.append(Pair(number, other, rule, same))
    return found


def cosines(
    questions: Sequence[str], pairs: Sequence[Pair], encode: Callable[[Sequence[str]], np.ndarray], *, sets: bool
) -> np.ndarray:
    """(P,) cosine of each pair.

    Args:
        questions: All questions.
        pairs: Each with the number of its question.
        encode: Texts to vectors of length 1.
        sets: Whether vectors depend on the other texts: a pair is then encoded with the nine questions that follow, as
            the pipeline has about ten questions of a topic before it.
    """
    if not sets:
        vectors = encode([*questions, *(pair.other for pair in pairs)])
        return np.array([vectors[p.question] @ v for p, v in zip(pairs, vectors[len(questions) :], strict=True)])
    found = []
    for pair in pairs:
        around = [questions[(pair.question + step) % len(questions)] for step in range(10)]
        vectors = encode([pair.other, *around])
        found.append(float(vectors[0] @ vectors[1]))
    return np.array(found)


def odd(text: str) -> bool:
    """Whether a question is of the half that thresholds are chosen on."""
    return hashlib.sha256(text.encode()).digest()[0] % 2 == 1


def best_threshold(cosine_P: np.ndarray, same_P: np.ndarray) -> float:
    """The threshold, in steps of 0.01, with most rewordings and fewest minimal pairs at or above it."""
    grid = np.arange(0.3, 1.0, 0.01)
    gain = [(cosine_P[same_P] >= t).mean() - (cosine_P[~same_P] >= t).mean() for t in grid]
    return round(float(grid[int(np.argmax(gain))]), 2)


def auc(cosine_P: np.ndarray, same_P: np.ndarray) -> float:
    """Chance that a rewording is nearer than a minimal pair; equal ones count half."""
    places = rankdata(cosine_P)
    n, m = int(same_P.sum()), int((~same_P).sum())
    return float((places[same_P].sum() - n * (n + 1) / 2) / (n * m))


def questions_section(questions: Sequence[str], language: str) -> list[str]:
    """What each similarity drops of rewordings and of minimal pairs, on the even half."""
    pairs = pairs_of(questions, language)
    same = np.array([pair.same for pair in pairs])
    apart = np.array([ask_apart(questions[pair.question], pair.other) for pair in pairs])
    chosen = np.array([odd(questions[pair.question]) for pair in pairs])
    test = [pair for pair, dev in zip(pairs, chosen, strict=True) if not dev]
    groups = [pair.question for pair in test]
    minilm = cosines(questions, pairs, embedder(None).encode, sets=False)
    tfidf = cosines(questions, pairs, char_tfidf(), sets=language == "zh")
    used, here = (minilm, Distinct().english) if language == "en" else (tfidf, Distinct().chinese)
    variants = [
        ("MiniLM", minilm, best_threshold(minilm[chosen], same[chosen]), False),
        ("character TF-IDF", tfidf, best_threshold(tfidf[chosen], same[chosen]), False),
        ("used here without its second rule", used, here, False),
        ("used here", used, here, True),
    ]
    body = []
    for name, cosine, threshold, guard in variants:
        dropped = ((cosine >= threshold) & ~(apart & guard))[~chosen].astype(float)
        marks = same[~chosen]
        shown = [
            with_interval(dropped[side], [g for g, s in zip(groups, side, strict=True) if s])
            for side in (marks, ~marks)
        ]
        area = "" if guard else f"{auc(cosine[~chosen], marks):.3f}"
        body.append([name, f"{threshold:.2f}", *shown, area])
    body.insert(0, ["equal but for case and marks", "–", *["0.0"] * 2, ""])
    lines = [
        f"{len(questions):,} questions, {same.sum():,} rewordings and {(~same).sum():,} minimal pairs; figures on the "
        f"{len(test):,} pairs of the even half.",
        "",
        *table(["similarity", "threshold", "rewordings dropped, %", "minimal pairs dropped, %", "AUC"], body),
        "",
        "By rule, used here:",
        "",
    ]
    rules = dict.fromkeys((pair.same, pair.rule) for pair in test)
    body = []
    for kind, rule in rules:
        at = np.array([(p.same, p.rule) == (kind, rule) for p in test])
        dropped = ((used >= here) & ~apart)[~chosen][at]
        body.append(["rewording" if kind else "minimal pair", rule, int(at.sum()), f"{100 * dropped.mean():.1f}"])
    return [*lines, *table(["kind", "rule", "pairs", "dropped, %"], body)]


def main() -> None:
    """Measure both stages, print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows = load_rows(args.data)
    model = embedder(None)
    model.encode = each_once(model.encode)  # type: ignore[method-assign]
    names = ("sentence-transformers", "torch", "numpy", "rank-bm25", "jieba")
    lines = [
        "# Finding documents and repeated questions", "",
        "`python -m benchmarks.dataset_stages --data ../shared/data --output docs/results/dataset.md`; 2-core CPU "
        f"machine; Python {platform.python_version()}, {', '.join(f'{n} {version(n)}' for n in names)}. "
        "Intervals: 95 %, 1,000 bootstrap draws of queries (questions).", "",
        "## Reference matching: the ranking before an LLM judges", "",
        "Ties count against a ranking. The ranking used here was chosen after looking at these tasks; it has no "
        "fitted numbers of its own. Real documents, but no namesakes: those are only in the example of the recipe.",
        *matching_section(rows), "",
        "## Question de-duplication", "",
        "Real questions (TruthfulQA, ELI5, ExpertQA, HotpotQA, HealthVer; HalluQA, RGB). What counts as the same is "
        "made by fixed rules (`benchmarks/question_rewrites.py`), not judged by people; the same hand wrote the second "
        "rule of the pipeline (other numbers, other question word), so its gain on those two rules is no surprise. "
        "Thresholds: best difference of the two shares on the questions whose hash is odd.", "",
    ]  # fmt: skip
    for language, name in (("en", "English"), ("zh", "Chinese")):
        questions = questions_of(args.data, rows)[language]
        lines += [f"### {name}", "", *questions_section(questions, language), ""]
    page = "\n".join(lines)
    print(page)
    if args.output:
        args.output.write_text(page.rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
