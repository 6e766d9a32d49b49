"""What FEWL records lack, asked from reference LLMs and put into the records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fewl.generate import prompted_expertise, reference_answers
from fewl.iwco import Pairs, generate_pairs
from fewl.records import read_record
from mitigate.jsonl import Record
from mitigate.progress import counted

if TYPE_CHECKING:
    from engines.cache import CachedEngine
    from engines.types import Engine

Tell = Callable[[str], None]


def add_references(
    records: Sequence[Record], engine: Engine, samples: int, seed: int, tell: Tell = lambda _: None
) -> None:
    """Ask an LLM the questions that lack its answer."""
    lacking = [r for r in records if not read_record(r).references.get(engine.name)]
    tell(f"{engine.name}: answers {len(lacking):,} of {len(records):,} questions")
    found = reference_answers(engine, [r["question"] for r in lacking], samples=samples, seed=seed)
    for record, texts in zip(lacking, found, strict=True):
        if texts:
            record["reference_answers"] = {**(record.get("reference_answers") or {}), engine.name: texts}


def add_pairs(
    records: Sequence[Record], engine: Engine, seed: int, tell: Tell = lambda _: None
) -> list[Pairs]:
    """Have an LLM make the IW/CO pairs of the records that lack them; returns these."""
    lacking = [r for r in records if not (r.get("iw") and r.get("co"))]
    tell(f"{engine.name}: makes wrong and corrected answers to {counted(len(lacking), 'question')}")
    found = generate_pairs(engine, [r["question"] for r in lacking], seed=seed)
    for record, pairs in zip(lacking, found, strict=True):
        record["iw"], record["co"] = pairs.iw, pairs.co
    return found


def ask_expertise(records: Sequence[Record], engines: Sequence[Engine]) -> list[dict[str, float]]:
    """r of each reference LLM by asking it, {LLM: r} for each record."""
    read = [read_record(record) for record in records]
    rows: list[dict[str, float]] = [{} for _ in records]
    for engine in engines:
        for row, r in zip(rows, prompted_expertise(engine, engine.name, read), strict=True):
            if r is not None:
                row[engine.name] = r
    return rows


def failures(engines: Sequence[Engine]) -> list[str]:
    """Of each LLM that left requests without an answer: how many, and why the last one."""
    from engines.cache import CachedEngine

    failing: list[CachedEngine] = [e for e in engines if isinstance(e, CachedEngine) and e.failed]
    return [
        f"{engine.name}: {counted(engine.failed, 'request')} failed ({engine.last_error})"
        for engine in failing
    ]
