"""Stages 1 to 4: topics and documents as the user has them, and the document of each topic.

The corpus is JSON Lines files and folders of Markdown or text files, whose title is the first heading, or the file's
name. Leaves out other formats: convert them to text first. A topic is matched with its document from hard to soft:

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from annotators.retrieval import BM25, fuse, words
from annotators.text.language import language_of
from mitigate.dataset import prompts
from mitigate.dataset.stage import LLM, extended, fill_verdicts, head_of, reads, vectors_of
from mitigate.io import Line, Problem, Record, UsageError, check_texts, read_lines, set_aside, shown, write_lines

LANGUAGES = ("en", "zh")
SUFFIXES = (".md", ".markdown", ".txt")
HEAD = 1000
"""Characters of a document that are embedded and shown to the judge."""
_HEADING = re.compile(r"^\s{0,3}#{1,6}[ \t]+(.+?)[ \t#]*$", re.M)
_QUALIFIER = re.compile(r"\s*[(（][^()（）]*[)）]\s*$")


def folded_name(name: str) -> str:
    """A name to compare: compatibility forms, case and white space folded, underscores as spaces."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().replace("_", " ").split())


def bare_name(name: str) -> str:
    """A folded name without a qualifier in brackets at its end: "Mercury (planet)" → "mercury"."""
    return folded_name(_QUALIFIER.sub("", name)) or folded_name(name)


def check_topic(record: Record) -> list[Problem]:
    """Problems of {"topic", "category"?, "domain"?, "description"?, "aliases"?, "language"?}; extra keys are free."""
    problems = check_texts(record, topic="text", category="any?", domain="any?", description="any?")
    problems += _check_language(record)
    aliases = record.get("aliases")
    if aliases is not None and not (isinstance(aliases, list) and all(isinstance(a, str) for a in aliases)):
        problems.append(Problem.of(record, "aliases", "a list of strings"))
    if not problems and (language := _language(record, record["topic"])) not in LANGUAGES:
        problems.append(Problem("language", shown(language), f'one of {", ".join(LANGUAGES)} (set "language")'))
    return problems


def check_document(record: Record) -> list[Problem]:
    """Problems of {"title", "text", "id"?, "language"?}; extra keys are free."""
    problems = check_texts(record, title="text", text="text", id="id?") + _check_language(record)
    if not problems and (language := record.get("language") or language_of(record["text"])) not in LANGUAGES:
        problems.append(Problem("language", shown(language), f'one of {", ".join(LANGUAGES)} (set "language")'))
    return problems


def read_topics(path: Path, output: Path) -> tuple[int, int]:
    """Write the usable topics of a file, one of each name; returns the numbers of topics and of rejected lines."""
    good, bad = list[Record](), list[tuple[Path, Line]]()
    first: dict[str, int] = {}
    for line in read_lines(path, check_topic):
        if line.record is None:
            bad.append((path, line))
            continue
        name = " ".join(line.record["topic"].split())
        if (other := first.setdefault(folded_name(name), line.number)) != line.number:
            expected = f'a name of its own (line {other} has the same); tell them apart, for example "{name} (place)"'
            bad.append((path, replace(line, problems=(Problem("topic", shown(name), expected),))))
            continue
        said = {key: line.record.get(key) or None for key in ("category", "domain", "description")}
        aliases = line.record.get("aliases") or []
        good.append({"topic": name, "language": _language(line.record, name), **said, "aliases": aliases})
    set_aside(bad, output)
    write_lines(output, good)
    return len(good), len(bad)


def read_corpus(paths: Sequence[Path], output: Path) -> tuple[int, int]:
    """Write the usable documents of all files and folders; returns the numbers of documents and of those rejected."""
    good, bad, seen = list[Record](), list[tuple[Path, Line]](), dict[str, Path]()  # whose ids those are
    for path in paths:
        for file, line in _documents(path):
            if line.record is None:
                bad.append((file, line))
                continue
            given = line.record.get("id")
            if (name := "" if given is None else str(given)) == "":
                short = file.relative_to(path) if path.is_dir() else Path(file.name)
                place = "" if path.is_dir() else f":{line.number}"
                name = f"{short.as_posix()}{place}"
                if seen.get(name, file.resolve()) != file.resolve():  # another folder has a file of that name
                    name = f"{file.as_posix()}{place}"
            if name in seen:
                problem = Problem("id", shown(name), "an id that no other document has")
                bad.append((file, replace(line, problems=(problem,))))
                continue
            seen[name] = file.resolve()
            title, text = " ".join(line.record["title"].split()), line.record["text"].strip()
            language = line.record.get("language") or language_of(text)
            good.append({"document": name, "title": title, "language": language, "text": text})
    set_aside(bad, output)
    write_lines(output, good)
    return len(good), len(bad)


def files_below(folder: Path, suffixes: Sequence[str] = SUFFIXES) -> list[Path]:
    """The files below a folder that are documents by their names, sorted; some may not be readable."""
    return sorted(f for f in folder.rglob("*") if f.suffix.lower() in suffixes and (f.is_file() or f.is_symlink()))


def _documents(path: Path) -> Iterator[tuple[Path, Line]]:
    """Each line of a JSON Lines file, or each Markdown and text file below a folder, sorted, as one line."""
    if not path.is_dir():
        try:
            yield from ((path, line) for line in read_lines(path, check_document))
        except UsageError as error:
            yield path, Line(1, b"", None, (Problem("", str(error), "a file that can be read"),))
        return
    files = files_below(path)
    if not files:
        raise UsageError(f"corpus: {path} holds no file that ends in {', '.join(SUFFIXES)}")
    for file in files:
        raw, record = b"", None
        try:
            raw = file.read_bytes()
            text = raw.decode("utf-8-sig")
        except OSError as error:
            problems = [Problem("", error.strerror or str(error), "a file that can be read")]
        except UnicodeDecodeError as error:
            problems = [Problem("", f"a byte at {error.start + 1} that is not", "UTF-8 text")]
        else:
            heading = _HEADING.search(text) if file.suffix.lower() != ".txt" else None
            title = heading[1] if heading else file.stem.replace("_", " ")
            body = text[: heading.start()] + text[heading.end() :] if heading else text
            record = {"title": title, "text": body}
            problems = check_document(record)
        yield file, Line(1, raw, None if problems else record, tuple(problems))


def _check_language(record: Record) -> list[Problem]:
    if record.get("language") in (None, *LANGUAGES):
        return []
    return [Problem.of(record, "language", f"one of {', '.join(LANGUAGES)}")]


def _language(record: Record, name: str) -> str:
    """The language of a topic: as given, else by its name and description."""
    found = record.get("language") or language_of(f"{name} {record.get('description') or ''}")
    return "en" if found == "none" else str(found)


def hard_match(topic: Record, titles: Sequence[str]) -> list[bool]:
    """Whether each title is the topic's name or an alias, exactly or but for a qualifier in brackets. A topic that has
    a qualifier itself ("Mercury (planet)") matches that very title, and titles without qualifier.
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


def order(hard: Sequence[bool], scores_D: np.ndarray, wanted: int) -> list[int]:
    """Places of the candidates: hard matches, best first, then the others, best first; ``wanted`` in all."""
    places = np.lexsort((-scores_D, ~np.asarray(hard, dtype=bool)))
    return [int(place) for place in places[:wanted]]


def rank(
    queries: Sequence[str], titles: Sequence[str], texts: Sequence[str], language: str, model: str | None = None
) -> np.ndarray:
    """(Q, D) how near documents are to queries of the same language ("en", "zh"), higher is nearer. BM25 reads whole
    documents, the embedding model (None: the packaged one) title and first ``HEAD`` characters.
    """
    documents = [f"{title}\n{text}" for title, text in zip(titles, texts, strict=True)]
    if not documents or not queries:
        return np.zeros((len(queries), len(documents)), np.float32)
    scores = [BM25([words(text) for text in documents]).scores([words(query) for query in queries])]
    if reads(model, language):
        vectors = vectors_of([*queries, *(head_of(text, HEAD) for text in documents)], language, model)
        scores.append(vectors[: len(queries)] @ vectors[len(queries) :].T)
    return fuse(scores)


def find(
    topics: Sequence[Record], documents: Sequence[Record], wanted: int, model: str | None = None
) -> dict[str, list[Record]]:
    """The ranked candidates of each topic, by its name; all topics and documents are ranked at once."""
    found: dict[str, list[Record]] = {}
    for language in dict.fromkeys(topic["language"] for topic in topics):
        here = [row for row in documents if row["language"] == language]
        asked = [topic for topic in topics if topic["language"] == language]
        titles = [row["title"] for row in here]
        about = ("topic", "description", "category", "domain")
        queries = [". ".join(topic[key] for key in about if topic[key]) for topic in asked]
        scores_QD = rank(queries, titles, [row["text"] for row in here], language, model)
        for topic, scores in zip(asked, scores_QD, strict=True):
            hard = hard_match(topic, titles)
            found[topic["topic"]] = []
            for place in order(hard, scores, wanted):
                name = {key: here[place][key] for key in ("document", "title")}
                how = {"match": "title" if hard[place] else "similar", "score": round(float(scores[place]), 4)}
                found[topic["topic"]].append(name | how)
    return found


def judge(topics: Sequence[Record], texts: Mapping[str, str], llm: LLM | None) -> list[Record]:
    """Choose the document of topics that have candidates; without an LLM a single hard match.

    Adds ``judged`` ({"document", "verdict": "yes" | "no" | "unclear"} in the order asked), ``document``, ``title`` and
    ``reference``, which are null where no candidate was confirmed. ``texts`` are those of all documents, by name.
    """
    judged: list[list[Record]] = [[] for _ in topics]
    chosen: list[Record | None] = [None] * len(topics)
    if llm is None:
        for n, topic in enumerate(topics):
            hard = [c for c in topic["candidates"] if c["match"] == "title"]
            chosen[n] = hard[0] if len(hard) == 1 else None
    else:  # the first candidates of all topics are asked about at once, then the second ones of the topics left, …
        for column in zip_longest(*(topic["candidates"] for topic in topics)):
            candidates = {n: c for n, c in enumerate(column) if c is not None and chosen[n] is None}
            heads = {n: (c["title"], head_of(texts[c["document"]], HEAD)) for n, c in candidates.items()}
            chats = {n: prompts.judge_document(topics[n], *head) for n, head in heads.items()}
            verdicts: dict[int, bool | None] = dict.fromkeys(candidates)
            fill_verdicts(llm, verdicts, chats)
            for n, verdict in verdicts.items():
                word = {True: "yes", False: "no", None: "unclear"}[verdict]
                judged[n].append({"document": candidates[n]["document"], "verdict": word})
                if verdict:
                    chosen[n] = candidates[n]
    rows = []
    for topic, said, document in zip(topics, judged, chosen, strict=True):
        taken = {key: document and document[key] for key in ("document", "title")}
        rows.append(extended(topic, judged=said, **taken, reference=document and texts[document["document"]]))
    return rows


def check_reference(row: Record) -> list[Problem]:
    """A topic goes on when it has a document, the text of which may have been put in by hand."""
    if row["document"] is not None:
        return check_texts(row, reference="text")
    said = {one["document"]: f": {one['verdict']}" for one in row["judged"]}  # by the LLM, in the order asked
    seen = ", ".join(f"{c['title']}{said.get(c['document'], '')}" for c in row["candidates"]) or "none"
    advice = "add one to the corpus, or an alias to the topic"
    return [Problem("document", None, f"a document for the topic {row['topic']!r} (candidates: {seen}); {advice}")]
