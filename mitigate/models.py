"""Models by the names that commands and recipes take, and what FEWL records lack, asked from language models.

Here FEWL and the annotators meet: an annotator becomes one of FEWL's similarities. Replies of language models are kept
in a cache (`engines/cache.py`), so that whatever runs again asks only what has no answer yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from annotators.base import Annotator
from annotators.records import SentenceAnnotation
from annotators.text.sentences import split_sentences
from annotators.text.words import is_chinese
from engines import packaged
from engines.cache import CachedEngine
from engines.chat import load_engine, parse_engine
from engines.types import Engine
from fewl.expertise import Pairs, generate_pairs, prompted_expertise, reference_answers
from fewl.records import read_record
from fewl.score import Expertise
from fewl.similarity import Encode, Similarity, char_tfidf, cosine, each_once, from_function, new_words, rouge_l
from mitigate.io import Record, UsageError, counted

EngineName = Annotated[str, AfterValidator(lambda text: str(parse_engine(text)))]
"""An option of a recipe: KIND:MODEL[@BASE_URL]."""
ModelName = Annotated[str, Field(min_length=1), AfterValidator(lambda text: packaged.checked(text))]
"""An option of a recipe: a folder, a hub id or packaged:NAME."""
TFIDF = "character TF-IDF"
Tell = Callable[[str], None]


def open_engine(name: str, option: str, cache: Path | None = None, **options: Any) -> Engine:
    """The engine of a name, to be closed by the caller.

    ``option`` is what the user gave the name as; without a ``cache`` file every request is asked afresh.

    Raises:
        UsageError: There is no such engine, or it can't be loaded.
        CacheError: The cache file is damaged.
    """
    try:
        return load_engine(name, cache=cache, **options)
    except (ValueError, ImportError, OSError) as error:
        raise UsageError(f"{option}: {error}") from error


def failures(engines: Iterable[Engine]) -> str | None:
    """Which engines with a cache left requests without an answer, how many and why; None where none did."""
    failing = [engine for engine in engines if isinstance(engine, CachedEngine) and engine.failed]
    said = [f"{e.name}: {counted(e.failed, 'request')} failed, the last: {e.last_error}" for e in failing]
    return "; ".join(said) or None


def open_annotator(name: str, options: Mapping[str, Any] | None = None, option: str = "--annotator") -> Annotator:
    """The annotator of that name, as `load_annotator` gives it; what is wrong with the name is a usage error."""
    from rich.console import Console

    from annotators import load_annotator

    try:
        with Console(stderr=True).status("loading the annotator"):  # shown on a terminal only
            return load_annotator(name, **(options or {}))
    except (ValueError, OSError, ImportError) as error:
        raise UsageError(f"{option} {name}: {error}") from error


# --- similarities and encoders ------------------------------------------------------------------------------------


def check_similarity(name: str) -> None:
    """Refuse an unknown name before anything is loaded. Raises UsageError with the names there are."""
    kind, _, rest = name.partition(":")
    if name not in ("cosine", "rouge-l", "new-words") and not (kind == "annotator" and rest):
        raise UsageError(f"--similarity: expected cosine, rouge-l, new-words or annotator:NAME, got {name!r}")


def load_similarity(name: str, encode: Encode, options: Mapping[str, Any] | None = None) -> tuple[str, Similarity]:
    """What the similarity of that name is called, and the similarity; an annotator is loaded with these options.

    Raises UsageError: there is no such annotator.
    """
    if name.startswith("annotator:"):
        annotator = open_annotator(name.partition(":")[2], options, "--similarity annotator:")
        return f"annotator {annotator.name} {annotator.fingerprint[:12]}", annotator_similarity(annotator)
    return name, {"cosine": cosine(encode), "rouge-l": rouge_l, "new-words": new_words}[name]


def load_encoder(name: str, texts: Sequence[str]) -> tuple[str, Encode]:
    """What the encoder of that name is called, and the encoder, which encodes each text once.

    ``auto`` and ``tfidf`` are known names, others a folder or hub id of a sentence-transformers model. ``texts`` show
    whether the questions are Chinese. Raises UsageError: there is no such model.
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
        judged: SentenceAnnotation
        for owner, judged in zip(owners, annotator.predict(rows), strict=True):
            if judged.scores is not None:
                supported[owner] += judged.scores["supported"]
                factual[owner] += 1.0 - judged.scores["no_fact"]
        return [s / f if f > 0 else None for s, f in zip(supported, factual, strict=True)]

    return from_function(judge)


# --- what FEWL records lack ---------------------------------------------------------------------------------------


@dataclass
class Asked:
    """What was asked about one record beside its reference answers."""

    pairs: Pairs | None = None  # how its IW/CO pairs were made; None where it had them, or none were wanted
    prompted: dict[str, float] = field(default_factory=dict)  # r of each reference LLM that was asked about them

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
    """Ask reference LLMs what FEWL records lack, put their answers in, and return what the expertise needs.

    Each LLM gives ``samples`` answers; the first one makes IW/CO pairs. ``expertise`` says where λ is to come from
    (None: similarity, if there are pairs). ``tell`` is called with a line about each thing asked.
    """
    asked = [Asked() for _ in records]
    for engine in engines:
        lacking = [record for record in records if not read_record(record).references.get(engine.name)]
        tell(f"{engine.name}: answers {len(lacking):,} of {len(records):,} questions")
        found = reference_answers(engine, [record["question"] for record in lacking], samples=samples, seed=seed)
        for record, texts in zip(lacking, found, strict=True):
            if texts:
                record["reference_answers"] = {**(record.get("reference_answers") or {}), engine.name: texts}
    if engines and wants_pairs(expertise):
        bare = [place for place, record in enumerate(records) if not (record.get("iw") and record.get("co"))]
        tell(f"{engines[0].name}: makes wrong and corrected answers to {counted(len(bare), 'question')}")
        made = generate_pairs(engines[0], [records[place]["question"] for place in bare], seed=seed)
        for place, pairs in zip(bare, made, strict=True):
            records[place]["iw"], records[place]["co"] = pairs.iw, pairs.co
            asked[place].pairs = pairs
    if expertise == "prompted":
        read = [read_record(record) for record in records]
        for engine in engines:
            for one, r in zip(asked, prompted_expertise(engine, engine.name, read), strict=True):
                if r is not None:
                    one.prompted[engine.name] = r
    return asked
