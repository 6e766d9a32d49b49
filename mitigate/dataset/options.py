"""The options of the task `build-dataset`, one section per stage that has any."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mitigate.models import EngineName, ModelName
from mitigate.recipes.config import Recipe, Section, recipes_folder


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
        default=24_000, ge=200, description="of a document that LLMs are shown; the annotator reads all of it"
    )
    chunk_size: int = Field(default=16, ge=1, description="topics, or answers to annotate, at once")
    max_failed: float = Field(
        default=0.1, ge=0, le=1, description="share of failed sentences above which the run fails"
    )
    review: bool = Field(default=False, description="stop for a person after matching and after annotation")

    def files(self) -> tuple[Path, list[Path]]:
        """Topics and corpus; a path below `recipes/` that is not here is that of the installed recipes."""
        return _found(self.topics), [_found(path) for path in self.corpus]


def _found(path: Path) -> Path:
    installed = recipes_folder().parent / path
    return installed if not path.exists() and path.parts[:1] == ("recipes",) and installed.exists() else path
