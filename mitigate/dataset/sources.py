"""Stages 2 and 3: the document of each topic, from hard to soft matching.

1. Hard: documents whose title is the topic's name or an alias, a qualifier in brackets aside.
2. Soft: all documents of the topic's language ranked by how near they are to name and description; those of the hard
   match come first, the best of the others fill up the list.
3. An LLM reads the beginning of the candidates in that order till it calls one the right one. Without an LLM only a
   single hard match is taken.

The ranking joins BM25 over whole documents with the embeddings of their beginnings, by reciprocal ranks; where the
embedding model does not read the language, it is BM25 alone. Source: ANAH §2.1; measured in docs/results/dataset.md.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from annotators.retrieval.bm25 import BM25, words
from annotators.retrieval.window import fuse
from annotators.text.language import language_of
from engines.types import Engine
from fewl.expertise import yes_or_no
from mitigate.dataset import prompts
from mitigate.dataset.stage import (
    Asked,
    Process,
    ask,
    extended,
    head_of,
    read_rows,
    reads,
    text_of,
    vectors_of,
    write_lines,
)
from mitigate.io import Line, Problem, Record, UsageError, check_text, read_lines, rejected_path, rejected_row, shown

# ----------------------------------------------------------------------------------------------------
# Stage 1: topics and documents as the user has them, read, checked and put into the run folder.
#
# Topics are JSON Lines: {"topic", "category"?, "domain"?, "description"?, "aliases"?, "language"?}. The corpus is any
# number of JSON Lines files ({"title", "text", "id"?, "language"?}) and folders of Markdown or text files, whose title is
# the first heading, or the file's name. What can't be used is told, kept in ``….rejected.jsonl`` with the reason, and
# stops nothing. Leaves out other formats: convert them to text first.

LANGUAGES = ("en", "zh")
SUFFIXES = (".md", ".markdown", ".txt")
_HEADING = re.compile(r"^\s{0,3}#{1,6}[ \t]+(.+?)[ \t#]*$", re.M)
_QUALIFIER = re.compile(r"\s*[(（][^()（）]*[)）]\s*$")


def folded_name(name: str) -> str:
    """A name to compare: compatibility forms, case and white space folded, underscores as spaces."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().replace("_", " ").split())


def bare_name(name: str) -> str:
    """A folded name without a qualifier in brackets at its end: "Mercury (planet)" → "mercury"."""
    return folded_name(_QUALIFIER.sub("", name)) or folded_name(name)


def check_topic(record: Record) -> list[Problem]:
    """Problems of a topic; extra keys are free."""
    problems = check_text(record, "topic", required=True)
    for name in ("category", "domain", "description"):
        problems += check_text(record, name, required=False, empty=True)
    problems += _check_language(record)
    aliases = record.get("aliases")
    if aliases is not None and not (isinstance(aliases, list) and all(isinstance(a, str) for a in aliases)):
        problems.append(Problem("aliases", shown(aliases), "a list of strings"))
    if not problems and (language := _language(record, record["topic"])) not in LANGUAGES:
        problems.append(Problem("language", shown(language), f'one of {", ".join(LANGUAGES)} (set "language")'))
    return problems


def check_document(record: Record) -> list[Problem]:
    """Problems of a document of a JSON Lines corpus; extra keys are free."""
    problems = check_text(record, "title", required=True) + check_text(record, "text", required=True)
    if isinstance(record.get("id"), (bool, float, list, dict)):
        problems.append(Problem("id", shown(record["id"]), "a string or a whole number"))
    return problems + _check_language(record)


def read_topics(path: Path, output: Path) -> tuple[int, int]:
    """Write the usable topics of a file, one of each name.

    Returns:
        Numbers of topics kept and of lines rejected.

    Raises:
        UsageError: The file can't be read.
    """
    good: list[Record] = []
    bad: list[Record] = []
    first: dict[str, int] = {}
    for line in read_lines(path, check_topic):
        if line.record is None:
            bad.append(rejected_row(path, line))
            continue
        name = " ".join(line.record["topic"].split())
        if (other := first.setdefault(folded_name(name), line.number)) != line.number:
            expected = f'a name of its own (line {other} has the same); tell them apart, for example "{name} (place)"'
            problem = Problem("topic", shown(name), expected)
            bad.append(rejected_row(path, Line(line.number, line.raw, None, (problem,))))
            continue
        good.append(
            {
                "topic": name,
                "language": _language(line.record, name),
                **{key: line.record.get(key) or None for key in ("category", "domain", "description")},
                "aliases": line.record.get("aliases") or [],
            }
        )
    return _keep(output, good, bad)


def read_corpus(paths: Sequence[Path], output: Path) -> tuple[int, int]:
    """Write the usable documents of all files and folders.

    Returns:
        Numbers of documents kept and of those rejected.

    Raises:
        UsageError: A folder holds no document at all.
    """
    good: list[Record] = []
    bad: list[Record] = []
    seen: set[str] = set()
    for path in paths:
        for file, line in _folder(path) if path.is_dir() else _lines(path):
            if line.record is None:
                bad.append(rejected_row(file, line))
                continue
            name = str(line.record.get("id") or f"{file.name}:{line.number}")
            if name in seen:
                problem = Problem("id", shown(name), "an id that no other document has")
                bad.append(rejected_row(file, Line(line.number, line.raw, None, (problem,))))
                continue
            seen.add(name)
            title, text = " ".join(line.record["title"].split()), line.record["text"].strip()
            language = line.record.get("language") or language_of(text)
            good.append({"document": name, "title": title, "language": language, "text": text})
    return _keep(output, good, bad)


def _lines(path: Path) -> Iterator[tuple[Path, Line]]:
    """Every line of a JSON Lines file; one that can't be read is one bad line."""
    try:
        yield from ((path, line) for line in read_lines(path, check_document))
    except UsageError as error:
        yield path, Line(1, b"", None, (Problem("", str(error), "a file that can be read"),))


def _folder(folder: Path) -> Iterator[tuple[Path, Line]]:
    """Every Markdown and text file below a folder, sorted, as a line with a record or with a problem."""
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES and (f.is_file() or f.is_symlink()))
    if not files:
        raise UsageError(f"corpus: {folder} holds no file that ends in {', '.join(SUFFIXES)}")
    for file in files:
        name = file.relative_to(folder).as_posix()
        try:
            raw = file.read_bytes()
            text = raw.decode("utf-8-sig")
        except OSError as error:
            yield (file, Line(1, b"", None, (Problem("", error.strerror or str(error), "a file that can be read"),)))
            continue
        except UnicodeDecodeError as error:
            problem = Problem("", f"a byte at {error.start + 1} that is not", "UTF-8 text")
            yield file, Line(1, raw, None, (problem,))
            continue
        heading = _HEADING.search(text) if file.suffix.lower() != ".txt" else None
        title = heading[1] if heading else file.stem.replace("_", " ")
        body = text[: heading.start()] + text[heading.end() :] if heading else text
        record = {"id": name, "title": title, "text": body}
        problems = check_document(record)
        yield file, Line(1, raw, None if problems else record, tuple(problems))


def _check_language(record: Record) -> list[Problem]:
    language = record.get("language")
    if language is None or language in LANGUAGES:
        return []
    return [Problem("language", shown(language), f"one of {', '.join(LANGUAGES)}")]


def _language(record: Record, name: str) -> str:
    """The language of a topic: as given, else by its name and description."""
    found = record.get("language") or language_of(f"{name} {record.get('description') or ''}")
    return "en" if found == "none" else str(found)


def _keep(output: Path, good: Sequence[Record], bad: Sequence[Record]) -> tuple[int, int]:
    write_lines(output, good)
    if bad:
        write_lines(rejected_path(output), bad)
    else:
        rejected_path(output).unlink(missing_ok=True)
    return len(good), len(bad)


HEAD = 1000
"""Characters of a document that are embedded and shown to the judge."""
TURNS = 2
"""How often a verdict that can't be read is asked for."""


def hard_match(topic: Record, titles: Sequence[str]) -> list[bool]:
    """Whether each title is the topic's name or an alias, exactly or but for a qualifier in brackets.

    A topic that has a qualifier itself ("Mercury (planet)") meets that very title, and titles without qualifier.
    """
    names = [topic["topic"], *topic["aliases"]]
    exact = {folded_name(name) for name in names}
    plain = {name for name in exact if bare_name(name) == name}
    bare = {bare_name(name) for name in names}
    return [
        folded_name(t) in exact | bare if bare_name(t) == folded_name(t) else
        folded_name(t) in exact or bare_name(t) in plain
        for t in titles
    ]  # fmt: skip


def query_of(topic: Record) -> str:
    """What the documents are compared with."""
    return ". ".join(topic[key] for key in ("topic", "description", "category", "domain") if topic[key])


def order(hard: Sequence[bool], scores_D: np.ndarray, wanted: int) -> list[int]:
    """Places of the candidates: hard matches, best first, then the others, best first; ``wanted`` in all."""
    places = np.lexsort((-scores_D, ~np.asarray(hard, dtype=bool)))
    return [int(place) for place in places[:wanted]]


def rank(
    queries: Sequence[str], titles: Sequence[str], texts: Sequence[str], language: str, model: str | None = None
) -> np.ndarray:
    """(Q, D) how near documents are to queries of the same language, higher is nearer.

    Args:
        queries: Q texts.
        titles: D titles.
        texts: D whole documents; embedded are title and the first ``HEAD`` characters.
        language: "en" or "zh".
        model: Embedding model; None is the packaged one.
    """
    documents = [f"{title}\n{text}" for title, text in zip(titles, texts, strict=True)]
    if not documents or not queries:
        return np.zeros((len(queries), len(documents)), np.float32)
    scores = [BM25([words(text) for text in documents]).scores([words(query) for query in queries])]
    if reads(model, language):
        vectors = vectors_of([*queries, *(head_of(text, HEAD) for text in documents)], language, model)
        scores.append(vectors[: len(queries)] @ vectors[len(queries) :].T)
    return fuse(scores)


@contextmanager
def finding(topics: Path, documents: Path, wanted: int, model: str | None = None) -> Iterator[Process]:
    """Topics in, topics with ranked candidates out.

    Args:
        topics: File of all topics.
        documents: File of all documents; held in memory.
        wanted: Candidates per topic.
        model: Embedding model; None is the packaged one.
    """
    rows, queries = read_rows(documents), read_rows(topics)
    found = {}
    for language in dict.fromkeys(topic["language"] for topic in queries):
        here = [row for row in rows if row["language"] == language]
        asked = [topic for topic in queries if topic["language"] == language]
        titles = [row["title"] for row in here]
        scores_QD = rank([query_of(t) for t in asked], titles, [row["text"] for row in here], language, model)
        for topic, scores in zip(asked, scores_QD, strict=True):
            hard = hard_match(topic, titles)
            found[topic["topic"]] = [
                {
                    "document": here[place]["document"],
                    "title": titles[place],
                    "match": "title" if hard[place] else "similar",
                    "score": round(float(scores[place]), 4),
                }
                for place in order(hard, scores, wanted)
            ]
    yield lambda batch: [extended(topic, candidates=found[topic["topic"]]) for topic in batch]


@contextmanager
def judging(documents: Path, asked: Asked, engine: Engine | None) -> Iterator[Process]:
    """Topics with candidates in, topics with their document out.

    Adds ``judged`` ({"document", "verdict": "yes" | "no" | "unclear"} in the order asked), ``document``, ``title`` and
    ``reference``, which are null where no candidate was confirmed.
    """
    texts = {row["document"]: row["text"] for row in read_rows(documents)}

    def process(topics: list[Record]) -> list[Record]:
        judged: list[list[Record]] = [[] for _ in topics]
        chosen: list[Record | None] = [None] * len(topics)
        if engine is None:
            for n, topic in enumerate(topics):
                hard = [c for c in topic["candidates"] if c["match"] == "title"]
                chosen[n] = hard[0] if len(hard) == 1 else None
        else:
            _judge(engine, asked, topics, texts, judged, chosen)
        return [
            extended(
                topic,
                judged=verdicts,
                document=document and document["document"],
                title=document and document["title"],
                reference=document and texts[document["document"]],
            )
            for topic, verdicts, document in zip(topics, judged, chosen, strict=True)
        ]

    yield process


def _judge(
    engine: Engine,
    asked: Asked,
    topics: Sequence[Record],
    texts: dict[str, str],
    judged: list[list[Record]],
    chosen: list[Record | None],
) -> None:
    """Ask about the first candidate of every topic at once, then about the second of those left, and so on."""
    for rank in range(max((len(topic["candidates"]) for topic in topics), default=0)):
        open_ = [n for n, t in enumerate(topics) if chosen[n] is None and rank < len(t["candidates"])]
        verdicts: dict[int, bool | None] = dict.fromkeys(open_)
        for turn in range(TURNS):
            unclear = [n for n in open_ if verdicts[n] is None]
            chats = []
            for n in unclear:
                candidate = topics[n]["candidates"][rank]
                text = head_of(texts[candidate["document"]], HEAD)
                chats.append(prompts.judge_document(topics[n], candidate["title"], text))
            for n, result in zip(unclear, ask(engine, chats, asked, turn=turn), strict=True):
                verdicts[n] = yes_or_no(text_of(result))
        for n in open_:
            candidate = topics[n]["candidates"][rank]
            word = {True: "yes", False: "no", None: "unclear"}[verdicts[n]]
            judged[n].append({"document": candidate["document"], "verdict": word})
            if verdicts[n]:
                chosen[n] = candidate


def check_reference(row: Record) -> list[Problem]:
    """A topic goes on when it has a document."""
    if row["document"] is not None:
        return []
    seen = ", ".join(c["title"] for c in row["candidates"]) or "none"
    expected = (
        f"a document for the topic {row['topic']!r} (candidates: {seen}); add one to the corpus, an alias to the "
        "topic, or name it in the review"
    )
    return [Problem("document", None, expected)]
