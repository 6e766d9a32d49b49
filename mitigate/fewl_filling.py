"""What FEWL records lack, asked from reference LLMs and put into the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fewl.generate import prompted_expertise, reference_answers
from fewl.iwco import Pairs, generate_pairs
from fewl.records import read_record
from fewl.score import Expertise
from mitigate.jsonl import Record
from mitigate.progress import counted

if TYPE_CHECKING:
    from engines.cache import CachedEngine
    from engines.types import Engine

Tell = Callable[[str], None]


@dataclass
class Asked:
    """What was asked about one record beside its reference answers.

    Attributes:
        pairs: How its IW/CO pairs were made; None where it had them, or none were wanted.
        prompted: r of each reference LLM that was asked about them.
    """

    pairs: Pairs | None = None
    prompted: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> Record:
        return {"pairs": self.pairs and vars(self.pairs), "prompted": self.prompted}

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> Asked:
        pairs = known["pairs"]
        return cls(pairs and Pairs(**{**pairs, "problems": Counter(pairs["problems"])}), known["prompted"])


def wants_pairs(expertise: Expertise | None) -> bool:
    """Whether a reference LLM makes the IW/CO pairs that records lack."""
    return expertise in (None, "similarity", "prompted")


def fill(
    records: Sequence[Record],
    engines: Sequence[Engine],
    *,
    samples: int,
    seed: int,
    expertise: Expertise | None,
    tell: Tell = lambda _: None,
) -> list[Asked]:
    """Ask reference LLMs what records lack: their answers, and what the expertise needs.

    Args:
        records: FEWL records; what they lack is put into them.
        engines: The reference LLMs; the first one makes IW/CO pairs.
        samples: Answers of each LLM.
        seed: The seed of drawn answers and pairs.
        expertise: Where λ is to come from; None for similarity, if there are pairs.
        tell: Called with a line about each thing asked.
    """
    asked = [Asked() for _ in records]
    for engine in engines:
        add_references(records, engine, samples, seed, tell)
    if engines and wants_pairs(expertise):
        lacking = [
            place for place, record in enumerate(records) if not (record.get("iw") and record.get("co"))
        ]
        found = add_pairs([records[place] for place in lacking], engines[0], seed, tell)
        for place, pairs in zip(lacking, found, strict=True):
            asked[place].pairs = pairs
    if expertise == "prompted":
        for one, row in zip(asked, ask_expertise(records, engines), strict=True):
            one.prompted = row
    return asked


def add_references(records: Sequence[Record], engine: Engine, samples: int, seed: int, tell: Tell) -> None:
    """Ask an LLM the questions that lack its answer."""
    lacking = [r for r in records if not read_record(r).references.get(engine.name)]
    tell(f"{engine.name}: answers {len(lacking):,} of {len(records):,} questions")
    found = reference_answers(engine, [r["question"] for r in lacking], samples=samples, seed=seed)
    for record, texts in zip(lacking, found, strict=True):
        if texts:
            record["reference_answers"] = {**(record.get("reference_answers") or {}), engine.name: texts}


def add_pairs(records: Sequence[Record], engine: Engine, seed: int, tell: Tell) -> list[Pairs]:
    """Have an LLM make IW/CO pairs for these records; returns them."""
    tell(f"{engine.name}: makes wrong and corrected answers to {counted(len(records), 'question')}")
    found = generate_pairs(engine, [r["question"] for r in records], seed=seed)
    for record, pairs in zip(records, found, strict=True):
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
