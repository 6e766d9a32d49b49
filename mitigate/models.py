"""What FEWL records lack, asked from reference LLMs and put into the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from annotators.base import Annotator
from annotators.records import SentenceAnnotation
from annotators.text.sentences import split_sentences
from engines.cache import CachedEngine
from engines.chat import load_engine, parse_engine
from engines.types import Engine
from fewl.expertise import Pairs, generate_pairs
from fewl.generate import prompted_expertise, reference_answers
from fewl.records import read_record
from fewl.score import Expertise
from fewl.similarity import (
    Encode,
    Similarity,
    char_tfidf,
    cosine,
    each_once,
    from_function,
    is_chinese,
    new_words,
    rouge_l,
)
from mitigate.io import Record, UsageError, counted

if TYPE_CHECKING:
    from engines.cache import CachedEngine
    from engines.types import Engine


# ----------------------------------------------------------------------------------------------------
# Language models as commands and recipes use them: named, opened, and told about where requests failed.
#
# Replies are kept in a cache (`engines/cache.py`), so that whatever is run again asks only what has no answer yet.

EngineName = Annotated[str, AfterValidator(lambda text: str(parse_engine(text)))]
"""An option of a recipe: KIND:MODEL[@BASE_URL]."""


def open_engine(name: str, option: str, cache: Path | None = None, **options: Any) -> Engine:
    """The engine of a name, to be closed by the caller.

    Args:
        name: KIND:MODEL[@BASE_URL].
        option: What the user gave the name as, for the message.
        cache: File of the reply cache; None asks afresh every time.
        options: Handed to the engine, see `engines.load_engine`.

    Raises:
        UsageError: There is no such engine, or it can't be loaded.
        CacheError: The cache file is damaged.
    """
    try:
        return load_engine(name, cache=cache, **options)
    except (ValueError, ImportError, OSError) as error:
        raise UsageError(f"{option}: {error}") from error


def open_annotator(name: str, options: Mapping[str, Any] | None = None) -> Annotator:
    """The annotator of that name; what is wrong with the name is a usage error."""
    from rich.console import Console

    from annotators import load_annotator

    try:
        with Console(stderr=True).status("loading the annotator"):  # shown on a terminal only
            return load_annotator(name, **(options or {}))
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(f"--annotator {name}: {error}") from error


def failures(engines: Iterable[Engine]) -> str | None:
    """Which engines with a cache left requests without an answer, how many and why; None where none did."""
    failing = [engine for engine in engines if isinstance(engine, CachedEngine) and engine.failed]
    said = [f"{e.name}: {counted(e.failed, 'request')} failed, the last: {e.last_error}" for e in failing]
    return "; ".join(said) or None


# ----------------------------------------------------------------------------------------------------
# Similarities and encoders by name; here FEWL and the annotators meet.

TFIDF = "character TF-IDF"
NAMES = "cosine, rouge-l, new-words or annotator:NAME"


def check_similarity(name: str) -> None:
    """Refuse an unknown name before anything is loaded.

    Raises:
        UsageError: With the names there are.
    """
    kind, _, rest = name.partition(":")
    if name not in ("cosine", "rouge-l", "new-words") and not (kind == "annotator" and rest):
        raise UsageError(f"--similarity: expected {NAMES}, got {name!r}")


def load_encoder(name: str, texts: Sequence[str]) -> tuple[str, Encode]:
    """The encoder of that name, which encodes each text once, and what it is called.

    Args:
        name: ``auto``, ``tfidf``, or a folder or hub id of a sentence-transformers model.
        texts: The questions, to see whether they are Chinese.

    Raises:
        UsageError: There is no such model.
    """
    if name == "tfidf":
        return TFIDF, char_tfidf()
    from engines.embedding import Embedder

    try:
        embedder = Embedder(None if name == "auto" else name, dtype="float32")
    except (OSError, ValueError) as error:
        raise UsageError(f"--embedding {name}: {error}") from error
    if name == "auto" and any(is_chinese(text) for text in texts) and not embedder.reads_chinese:
        return f"{TFIDF} ({embedder.name} cannot read Chinese)", char_tfidf()
    return f"{embedder.name} {embedder.fingerprint[:12]}", each_once(embedder.encode)


def load_similarity(name: str, encode: Encode) -> tuple[str, Similarity]:
    """The similarity of that name and what it is called.

    Raises:
        UsageError: There is no such annotator.
    """
    if name.startswith("annotator:"):
        from annotators import load_annotator

        try:
            annotator = load_annotator(name.partition(":")[2])
        except (OSError, ValueError, ImportError) as error:
            raise UsageError(f"--similarity {name}: {error}") from error
        return f"annotator {annotator.name} {annotator.fingerprint[:12]}", annotator_similarity(annotator)
    return name, {"cosine": cosine(encode), "rouge-l": rouge_l, "new-words": new_words}[name]


def annotator_similarity(annotator: Annotator) -> Similarity:
    """How far a reference answer supports an answer, in [0, 1], judged by an annotator.

    Σ P(supported) / Σ (1 − P(no_fact)) over the sentences of the answer, each judged against the reference answer:
    the expected share of supported among factual sentences. For one sentence it is P(supported)/(1 − P(no_fact)).
    Sentences that could not be judged are left out; None where none is left.
    """

    def judge(candidates: list[str], references: list[str], questions: list[str]) -> list[float | None]:
        rows, owners = [], []
        for owner, (candidate, reference, question) in enumerate(zip(candidates, references, questions, strict=True)):
            for start, end in split_sentences(candidate):
                rows.append({"sentence": candidate[start:end], "reference": reference, "question": question})
                owners.append(owner)
        supported, factual = [0.0] * len(candidates), [0.0] * len(candidates)
        for owner, judged in zip(owners, annotator.predict(rows), strict=True):
            if (parts := _parts(judged)) is not None:
                supported[owner] += parts[0]
                factual[owner] += parts[1]
        return [s / f if f > 0 else None for s, f in zip(supported, factual, strict=True)]

    return from_function(judge)


def _parts(judged: SentenceAnnotation) -> tuple[float, float] | None:
    """P(supported) and P(a fact) of a judged sentence."""
    if judged.status != "checked" or judged.scores is None:
        return None
    return judged.scores["supported"], 1.0 - judged.scores["no_fact"]


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
        lacking = [place for place, record in enumerate(records) if not (record.get("iw") and record.get("co"))]
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


def fewl_filling_failures(engines: Sequence[Engine]) -> list[str]:
    """Of each LLM that left requests without an answer: how many, and why the last one."""
    from engines.cache import CachedEngine

    failing: list[CachedEngine] = [e for e in engines if isinstance(e, CachedEngine) and e.failed]
    return [f"{engine.name}: {counted(engine.failed, 'request')} failed ({engine.last_error})" for engine in failing]
