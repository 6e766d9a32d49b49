"""What the stages share: a job from one file of the run folder to the next, its LLM, how near texts are.

A stage is resumable twice over: rows already written are not made again (``mitigate/io.py``), and what an LLM has
said for a row that was not finished is in the response cache. An LLM that stops answering stops the stage, with all
that it did say kept; a single question that it can't answer stops nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engines.types import Chat, ChatResult, Engine, Sampling, check_asked
from mitigate.dataset.options import Asked
from mitigate.io import Check, Problem, Record, UsageError, open_job, progress, read_lines, rejected_path, write_lines
from mitigate.models import open_engine

if TYPE_CHECKING:
    from engines.embedding import Embedder

Process = Callable[[list[Record]], Sequence[Record]]
CACHE = "responses.sqlite"
_THOUGHT = re.compile(r"<think>.*?(</think>|\Z)", re.S)
_SHOWN = 10  # rejected rows that are printed; the file holds all of them


@dataclass
class LLM:
    """An engine and how a stage asks it."""

    engine: Engine
    asked: Asked

    def ask(self, chats: Sequence[Chat], turn: int = 0) -> list[ChatResult]:
        """The replies; later turns of the same question are drawn, since a greedy reply would only come again."""
        if not chats:
            return []
        temperature = self.asked.temperature if turn == 0 else max(self.asked.temperature, 0.7)
        results = self.engine.chat(chats, Sampling(self.asked.max_tokens, temperature, seed=turn))
        check_asked(results)
        return results


@contextmanager
def opened(asked: Asked, folder: Path) -> Iterator[LLM]:
    """The LLM of a stage behind the run's response cache."""
    name = asked.engine or ""
    options = {"concurrency": asked.concurrency} if name.startswith("openai:") else {}
    with closing(open_engine(name, "engine", folder / CACHE, **options)) as engine:
        yield LLM(engine, asked)


def text_of(result: ChatResult) -> str:
    """What an LLM said aloud: without its thinking, "" where there is nothing."""
    return _THOUGHT.sub("", result.text or "").strip()


def cut_off(result: ChatResult) -> bool:
    """Whether a reply ends where the token limit is."""
    return bool(result.samples) and result.samples[0].finish_reason == "length"


def extended(row: Record, **new: Any) -> Record:
    """A row with new keys; the long reference stays last, so that a line can be read from its beginning."""
    merged = {**row, **new}
    last = {"reference": merged.pop("reference")} if "reference" in merged else {}
    return merged | last


def run_stage(
    source: Path,
    output: Path,
    opening: Callable[[], AbstractContextManager[Process]],
    *,
    check: Check = lambda _: [],
    chunk_size: int = 16,
) -> int:
    """Turn the rows of one file into those of the next, going on where an earlier run was; returns the rejected ones.

    Each row of the output holds what its source row holds, and more. ``opening`` gives the function that turns rows
    into rows, and is entered only where something is left to do. ``check`` says why a row can't be taken further; such
    rows are told and go to ``<output>.rejected.jsonl``. UsageError says that the output was made from another source.
    """

    def matches(record: Record, written: Record) -> str | None:
        changed = [key for key, value in record.items() if key not in written or written[key] != value]
        return f"{changed[0]!r} differs" if changed else None

    try:
        opened_job = open_job(source, output, check=check, matches=matches)
    except UsageError as error:
        how, _, _ = str(error).partition("; choose another --output")
        raise UsageError(f"{how}; delete the files of this stage and of all later ones to make them again") from error
    with opened_job as job:
        tell_rejected(output)
        if job.done == job.valid:
            job.run(lambda _: [], chunk_size=1)  # cuts off a half-written line
            return job.rejected
        before = f", {job.done:,} of them done before" if job.done else ""
        say(f"{output.stem}: {job.valid:,} rows{before}")
        with opening() as process, progress(output.stem, job.valid, job.done) as shown:
            job.run(process, chunk_size=chunk_size, on_chunk=lambda _: shown(job.done))
        return job.rejected


def keep_rejected(output: Path, rows: Sequence[Record]) -> int:
    """Write ``<output>.rejected.jsonl``, or remove it where there is nothing to reject; tells and counts the rows."""
    if rows:
        write_lines(rejected_path(output), rows)
    else:
        rejected_path(output).unlink(missing_ok=True)
    return tell_rejected(output)


def tell_rejected(output: Path) -> int:
    """Say which rows went no further than this file and why; returns their number."""
    path = rejected_path(output)
    rows = read_rows(path) if path.is_file() else []
    for row in rows[:_SHOWN]:
        for problem in row["problems"]:
            say(f"{row['file']}:{row['line']}: {Problem(**problem)}")
    if len(rows) > _SHOWN:
        say(f"{len(rows) - _SHOWN:,} more rejected; see {path}")
    return len(rows)


def read_rows(path: Path) -> list[Record]:
    """All rows of a file that this toolkit wrote."""
    return [line.record for line in read_lines(path, lambda _: []) if line.record is not None]


def say(text: str) -> None:
    """A line to standard error, made safe to print."""
    print("mitigate: " + "".join(c if c.isprintable() else "\ufffd" for c in text), file=sys.stderr)


_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_ASKED = {
    name: re.compile(pattern, re.I)
    for name, pattern in {
        "time": r"\b(when|(what|which) (time|year|date|day|month|century))\b"
        r"|何时|什么时候|[哪何]一?[年天月]|什么年份|几[年月点号]",
        "place": r"\b(where|(what|which) place)\b|哪里|哪儿|何处|什么地方",
        "person": r"\b(who|whom|whose|(what|which) person)\b|谁|哪位|何人",
        "reason": r"\b(why|(what|which) reason|how come)\b|为什么|为何|什么原因",
        "amount": r"\bhow (many|much)\b|\bwhat number\b|多少|几[个次人位种座]",
    }.items()
}


def ask_apart(first: str, second: str) -> bool:
    """Whether two questions can't be the same: other numbers in them, or one asks when and the other where.

    Embeddings hardly see such a difference (docs/results/dataset.md).
    """
    if sorted(_NUMBER.findall(first)) != sorted(_NUMBER.findall(second)):
        return True
    a, b = ({name for name, pattern in _ASKED.items() if pattern.search(text)} for text in (first, second))
    return bool(a and b) and not a & b


# The packaged embedding model knows hardly any Chinese: there the cosine is of character TF-IDF over one call.


@lru_cache(maxsize=1)
def embedder(model: str | None) -> Embedder:
    """The embedding model, loaded once; None is the packaged one."""
    from engines.embedding import Embedder

    return Embedder(model, dtype="float32")  # the same figures on every machine


def reads(model: str | None, language: str) -> bool:
    """Whether a model can embed texts in a language ("en", "zh"); the packaged one reads no Chinese."""
    return language != "zh" or (model is not None and embedder(model).reads_chinese)


def vectors_of(texts: Sequence[str], language: str, model: str | None = None) -> np.ndarray:
    """(n, D) vectors of length 1 of all texts that are to be compared, in one language ("en", "zh")."""
    if reads(model, language):
        return embedder(model).encode(list(texts))
    from fewl.similarity import char_tfidf

    return np.asarray(char_tfidf()(list(texts)))


def head_of(text: str, characters: int) -> str:
    """The beginning of a text, cut at white space or after a Chinese stop where that is not far back."""
    if len(text) <= characters:
        return text
    head = text[:characters]
    cut = max(head.rfind(stop) + 1 for stop in (" ", "\n", "。", "！", "？"))
    return head[: cut if cut > characters // 2 else characters].rstrip()
