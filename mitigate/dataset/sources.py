"""Stage 1: topics and documents as the user has them, read, checked and put into the run folder.

Topics are JSON Lines: {"topic", "category"?, "domain"?, "description"?, "aliases"?, "language"?}. The corpus is any
number of JSON Lines files ({"title", "text", "id"?, "language"?}) and folders of Markdown or text files, whose title is
the first heading, or the file's name. What can't be used is told, kept in ``….rejected.jsonl`` with the reason, and
stops nothing. Leaves out other formats: convert them to text first.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from annotators.language import language_of
from mitigate.dataset.stage import write_lines
from mitigate.errors import UsageError
from mitigate.jobs import rejected_path
from mitigate.jsonl import Line, Problem, Record, check_text, read_lines, rejected_row, shown

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
        problems.append(
            Problem("language", shown(language), f'one of {", ".join(LANGUAGES)} (set "language")')
        )
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
    files = sorted(
        f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES and (f.is_file() or f.is_symlink())
    )
    if not files:
        raise UsageError(f"corpus: {folder} holds no file that ends in {', '.join(SUFFIXES)}")
    for file in files:
        name = file.relative_to(folder).as_posix()
        try:
            raw = file.read_bytes()
            text = raw.decode("utf-8-sig")
        except OSError as error:
            yield (
                file,
                Line(1, b"", None, (Problem("", error.strerror or str(error), "a file that can be read"),)),
            )
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
