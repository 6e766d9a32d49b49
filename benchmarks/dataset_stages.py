"""Two stages of the data set pipeline on real texts: finding a topic's document, and leaving out repeated questions.

    python -m benchmarks.dataset_stages --data ../shared/data

Reference matching: real documents and the names, headlines, sentences and questions that belong to them; whether the
right document is among the first five, which an LLM then reads, by the ranking used here and by BM25. De-duplication:
real questions, each with rewordings and with minimal pairs made by fixed rules (labelled by construction). No LLM takes
part.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from annotators.retrieval import BM25, words
from benchmarks.common import Row, fewl_rows, load_rows, mean_row, parser, save
from fewl.expertise import folded
from fewl.similarity import char_tfidf, each_once
from mitigate.dataset.questions import ask_apart
from mitigate.dataset.sources import hard_match, rank
from mitigate.dataset.stage import Distinct, embedder

META = re.compile(r"\A(?:\(meta data\).*\n)+")
QUALIFIED = re.compile(r"^(.+?)(?:的[^：的]{1,12})?：")


@dataclass
class Task:
    """Queries, each with the places of its right documents, and the titles and texts of the documents."""

    name: str
    language: str
    right: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    titles: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def add(self, queries: Sequence[str], title: str, text: str) -> None:
        """A document with the queries that it answers; equal queries share their right documents."""
        self.titles.append(title)
        self.texts.append(text)
        for query in queries:
            self.right[query].add(len(self.texts) - 1)


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


def first_five(scores_QD: np.ndarray, right: Collection[set[int]]) -> np.ndarray:
    """(Q,) whether a right document is among the first five; ties count against it."""
    pairs = [(scores, sorted(good)) for scores, good in zip(scores_QD, right, strict=True)]
    return np.array([float((np.delete(own, good) >= own[good].max()).sum() < 5) for own, good in pairs])


def matching(rows: Sequence[Row]) -> list[Row]:
    """Recall among the first five by the ranking of the pipeline and by BM25 over whole documents."""
    shown = []
    for task in tasks(rows):
        documents = [words(f"{title}\n{text}") for title, text in zip(task.titles, task.texts, strict=True)]
        queries = list(task.right)
        plain = BM25(documents).scores([words(query) for query in queries])
        hard = np.array([hard_match({"topic": query, "aliases": []}, task.titles) for query in queries])
        used = rank(queries, task.titles, task.texts, task.language) + 10.0 * hard
        for name, scores in (("ranking used here", used), ("BM25", plain)):
            found = first_five(scores, task.right.values())
            shown.append(mean_row(f"{task.name}, {name}: among the first five", found, unit="%"))
        print(task.name, flush=True)
    return shown


# --- questions -------------------------------------------------------------------------------------------------------

RULES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def changed(question: str, rules: Mapping[str, str]) -> str | None:
    """The question with the first pattern that it holds replaced, or its first number made one larger."""
    for pattern, target in (*rules.items(), (r"\d+", lambda m: str(int(m[0]) + 1))):
        new, n = re.subn(pattern, target, question, count=1)
        if n:
            return new
    return None


def questions_of(data: Path, rows: Sequence[Row]) -> dict[str, list[str]]:
    """Distinct real questions by language."""
    sources = {"en": ("lfqa_verification", "expertqa", "halueval_qa", "healthver"), "zh": ("rgb_fact",)}
    files = {"en": "truthfulqa", "zh": "halluqa_zh"}
    found = {}
    for language, names in sources.items():
        texts = [r["question"] for r in fewl_rows(files[language], data)]
        texts += [r["question"] for r in rows if r["source"] in names and r["lang"] == language]
        asked = [" ".join(t.split()) for t in texts if t and t.strip().endswith(("?", "？")) and len(t) <= 200]
        found[language] = sorted({folded(t): t for t in asked}.values())
    return found


def repeated(questions: Sequence[str], language: str) -> list[Row]:
    """Share of rewordings and of minimal pairs that the pipeline would drop as repeated."""
    shown = []
    limit = Distinct().english if language == "en" else Distinct().chinese
    english: Callable[[Sequence[str]], Any] = each_once(embedder(None).encode)
    kinds = {"rewordings dropped": RULES["same"], "questions that ask something else, dropped": RULES["other"]}
    for called, rules in kinds.items():
        made = [(i, changed(q, rules[language])) for i, q in enumerate(questions)]
        pairs = [(i, new) for i, new in made if new is not None]
        if language == "en":
            english([*questions, *(new for _, new in pairs)])  # in large batches
        dropped = []
        for i, new in pairs:
            # about ten questions of a topic come before one in the pipeline; TF-IDF depends on them
            around = [questions[(i + step) % len(questions)] for step in range(10)]
            vectors = (english if language == "en" else char_tfidf())([new, *around])
            dropped.append(float(vectors[0] @ vectors[1] >= limit and not ask_apart(questions[i], new)))
        shown.append(mean_row(f"questions, {language}: {called}", np.array(dropped), unit="%"))
    return shown


def main() -> None:
    args = parser(__doc__).parse_args()
    rows = [r for r in load_rows(args.data) if "label" in r]
    shown = matching(rows)
    for language, questions in questions_of(args.data, rows).items():
        shown += repeated(questions, language)
    save("dataset", "dataset_stages", shown, packages=["sentence-transformers", "rank-bm25", "jieba"])


if __name__ == "__main__":
    main()
