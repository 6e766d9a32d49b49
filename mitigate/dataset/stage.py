"""What the stages share: the options of the task `build-dataset`, a stage's LLM, and how near texts are.

What an LLM has said is in the response cache of the run folder. An LLM that stops answering stops the stage, with all
that it did say kept; a single question that it can't answer stops nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field

from engines.embedding import Embedder
from engines.types import Chat, ChatResult, Engine, EngineError, Sampling, check_asked
from fewl.expertise import yes_or_no
from fewl.similarity import char_tfidf
from mitigate.dataset.prompts import parse_verdicts
from mitigate.io import Record, read_lines, usage
from mitigate.models import EngineName, ModelName
from mitigate.recipes.config import Recipe, Section, recipes_folder

CACHE = "responses.sqlite"
TURNS = 2
"""How often a verdict or a choice that can't be read is asked for."""
Key = TypeVar("Key")


class Asked(Section):
    """An LLM and how it is asked."""

    engine: EngineName | None = Field(default=None, description="KIND:MODEL[@BASE_URL]; null: the recipe's engine")
    temperature: float = Field(default=0.0, ge=0, le=2)
    max_tokens: int = Field(default=1024, ge=1, description="longest reply; thinking counts")
    concurrency: int = Field(default=16, ge=1, description="requests in flight (openai engines)")


class Matching(Asked):
    """Which document is a topic's."""

    judge: bool = Field(default=True, description="ask an LLM; false takes single exact titles only")
    candidates: int = Field(default=5, ge=1)
    max_tokens: int = Field(default=64, ge=1)


class Questions(Asked):
    """Questions to a document."""

    per_topic: int = Field(default=10, ge=1)
    rounds: int = Field(default=3, ge=1, description="times that missing questions are asked for")
    max_tokens: int = Field(default=2048, ge=1)


class Distinct(Section):
    """Cosine from which two questions of a topic are the same."""

    english: float = Field(default=0.9, gt=0, le=1)
    chinese: float = Field(default=0.6, gt=0, le=1)


class Filters(Asked):
    """Objective, with a definite answer; answerable from the document."""

    max_tokens: int = Field(default=256, ge=1)


class Selection(Asked):
    """The best questions of a topic."""

    keep: int = Field(default=3, ge=1)
    max_tokens: int = Field(default=64, ge=1)


class Answer(Asked):
    """A model that answers."""

    with_reference: bool = Field(description="shown the document, or from memory")
    max_tokens: int = Field(default=512, ge=1)


class Options(Recipe):
    task: Literal["build-dataset"]
    topics: Path = Field(description="JSON Lines: topic, category, domain, description, aliases, language")
    corpus: list[Path] = Field(min_length=1, description="JSON Lines (title, text) or folders of .md and .txt")
    engine: EngineName | None = Field(default=None, description="KIND:MODEL[@BASE_URL] for stages that name none")
    matching: Matching = Matching()
    questions: Questions = Questions()
    distinct: Distinct = Distinct()
    filters: Filters = Filters()
    selection: Selection = Selection()
    answers: list[Answer] = Field(min_length=1)
    annotator: str = Field(default="embedded", min_length=1, description="embedded, path, hub id, nli:ID, generative:…")
    annotator_options: dict[str, Any] = Field(default={}, description="of a generative one: protocol, prompt, window…")
    embedder: ModelName | None = Field(default=None, description="hub id, folder or packaged:NAME; null: MiniLM")
    document_characters: int = Field(
        default=24_000, ge=200, description="that LLMs see of a document; annotators read all"
    )
    chunk_size: int = Field(default=16, ge=1, description="topics, or answers to annotate, at once")
    max_failed: float = Field(default=0.1, ge=0, le=1, description="share of failed sentences above which a run fails")
    review: bool = Field(default=False, description="stop for a person after annotation")

    def files(self) -> tuple[Path, list[Path]]:
        """Topics and corpus; a path below `recipes/` that is not here is that of the installed recipes."""
        return _found(self.topics), [_found(path) for path in self.corpus]


def _found(path: Path) -> Path:
    installed = recipes_folder().joinpath(*path.parts[1:])
    return installed if not path.exists() and path.parts[:1] == ("recipes",) and installed.exists() else path


@dataclass
class LLM:
    """An engine and how a stage asks it."""

    engine: Engine
    asked: Asked

    def ask(self, chats: Sequence[Chat], turn: int = 0) -> list[ChatResult]:
        """The replies; later turns of the same question are drawn, since a greedy reply would only come again.
        EngineError where a request failed for a reason that may pass: what depends on it would be lost for good.
        """
        if not chats:
            return []
        temperature = self.asked.temperature if turn == 0 else max(self.asked.temperature, 0.7)
        results = self.engine.chat(chats, Sampling(self.asked.max_tokens, temperature, seed=turn))
        check_asked(results)
        if lost := [result.error for result in results if result.error is not None and not result.refused]:
            told = f"{self.engine.name}: {len(lost)} of {len(results)} requests have no reply ({lost[0]})"
            raise EngineError(f"{told}; the same command asks only these again")
        return results


def fill_verdicts(llm: LLM, verdicts: dict[Key, bool | None], chats: Mapping[Key, Chat]) -> None:
    """Ask one by one for the verdicts that are None, at most ``TURNS`` times."""
    for turn in range(TURNS):
        open_ = [key for key, verdict in verdicts.items() if verdict is None]
        for key, result in zip(open_, llm.ask([chats[key] for key in open_], turn), strict=True):
            reply = text_of(result)
            (verdict,) = parse_verdicts(reply, 1)
            verdicts[key] = yes_or_no(reply) if verdict is None else verdict


def text_of(result: ChatResult) -> str:
    """What an LLM said aloud, "" where there is nothing."""
    return (result.text or "").strip()


def cut_off(result: ChatResult) -> bool:
    """Whether a reply ends where the token limit is."""
    return bool(result.samples) and result.samples[0].finish_reason == "length"


def extended(row: Record, **new: Any) -> Record:
    """A row with new keys; the long reference stays last, so that a line can be read from its beginning."""
    merged = {**row, **new}
    last = {"reference": merged.pop("reference")} if "reference" in merged else {}
    return merged | last


def read_rows(path: Path) -> list[Record]:
    """All rows of a file that this toolkit wrote."""
    return [line.record for line in read_lines(path, lambda _: []) if line.record is not None]


# The packaged embedding model knows hardly any Chinese: there the cosine is of character TF-IDF over one call.


@lru_cache(maxsize=1)
def embedder(model: str | None) -> Embedder:
    """The embedding model, loaded once; None is the packaged one. Raises UsageError: there is no such model."""
    with usage("embedder: ", (OSError, ValueError)):
        return Embedder(model, dtype="float32")  # the same figures on every machine


def reads(model: str | None, language: str) -> bool:
    """Whether a model can embed texts in a language ("en", "zh"); the packaged one reads no Chinese."""
    return language != "zh" or (model is not None and embedder(model).reads_chinese)


def vectors_of(texts: Sequence[str], language: str, model: str | None = None) -> np.ndarray:
    """(n, D) vectors of length 1 of all texts that are to be compared, in one language ("en", "zh")."""
    if reads(model, language):
        return embedder(model).encode(list(texts))
    return np.asarray(char_tfidf()(list(texts)))


def head_of(text: str, characters: int) -> str:
    """The beginning of a text, cut at white space or after a Chinese stop where that is not far back."""
    if len(text) <= characters:
        return text
    head = text[:characters]
    cut = max(head.rfind(stop) + 1 for stop in (" ", "\n", "。", "！", "？"))
    return head[: cut if cut > characters // 2 else characters].rstrip()
