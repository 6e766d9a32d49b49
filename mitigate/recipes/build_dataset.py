"""Kind `build-dataset`: topics and documents → questions → answers → an annotated data set (docs/dataset.md)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from engines.chat import parse_engine
from mitigate.dataset.stage import Asked
from mitigate.io import UsageError
from mitigate.models import EngineName
from mitigate.recipes.config import Recipe, Section, recipes_folder
from mitigate.recipes.folder import RunFolder


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
    kind: Literal["build-dataset"]
    topics: Path = Field(description="JSON Lines: topic, category, domain, description, aliases, language")
    corpus: list[Path] = Field(min_length=1, description="JSON Lines (title, text) or folders of .md and .txt")
    engine: EngineName | None = Field(default=None, description="KIND:MODEL[@BASE_URL] for stages that name none")
    matching: Matching = Matching()
    questions: Questions = Questions()
    distinct: Distinct = Distinct()
    filters: Filters = Filters()
    selection: Selection = Selection()
    answers: list[Answer] = Field(min_length=1)
    annotator: str = Field(default="embedded", min_length=1, description="embedded, path, hub id, generative:…")
    annotator_options: dict[str, Any] = Field(default={}, description="of a generative one: protocol, prompt, window…")
    embedder: str | None = Field(default=None, description="hub id or folder; null: the packaged MiniLM")
    document_characters: int = Field(
        default=24_000, ge=200, description="of a document that LLMs are shown; the annotator reads all of it"
    )
    chunk_size: int = Field(default=16, ge=1, description="topics, or answers to annotate, at once")
    review: bool = Field(default=False, description="stop for a person after matching and after annotation")

    def files(self) -> tuple[Path, list[Path]]:
        """Topics and corpus; a path below `recipes/` that is not here is that of the installed recipes."""
        return _found(self.topics), [_found(path) for path in self.corpus]


def _found(path: Path) -> Path:
    installed = recipes_folder().parent / path
    return installed if not path.exists() and path.parts[:1] == ("recipes",) and installed.exists() else path


def check(options: Options) -> None:
    """Refuse what can't work; loads no model.

    Raises:
        UsageError: A file is not there, a stage has no engine, or a package is missing.
    """
    topics, corpus = options.files()
    if not topics.is_file():
        raise UsageError(f"topics: no such file {topics}")
    for path in corpus:
        if not path.exists():
            raise UsageError(f"corpus: no such file or folder {path}")
    asked = {
        "questions": options.questions,
        "filters": options.filters,
        "selection": options.selection,
        **({"matching": options.matching} if options.matching.judge else {}),
        **{f"answers.{place}": answer for place, answer in enumerate(options.answers)},
    }
    if options.engine is None and (without := [name for name, stage in asked.items() if stage.engine is None]):
        raise UsageError(f"{', '.join(without)}: no engine; give each one, or `engine:` for all")
    _check_annotator(options)
    if find_spec("datasets") is None:
        raise UsageError("build-dataset writes Parquet with datasets: pip install 'hallucination-toolkit[data]'")


def _check_annotator(options: Options) -> None:
    if not options.annotator.startswith("generative:"):
        if options.annotator_options:
            raise UsageError(f"annotator_options: for generative:KIND:MODEL[@BASE_URL] only, not {options.annotator}")
        return
    from annotators.generative.protocols import Options as Generative

    try:
        parse_engine(options.annotator.removeprefix("generative:"))
        Generative(**options.annotator_options)
    except (ValueError, TypeError, OSError) as error:
        raise UsageError(f"annotator_options: {error}") from error


def run(options: Options, folder: RunFolder) -> int:
    """Build the data set, or go on with it; 3 where input or replies could not all be used."""
    from mitigate.dataset.pipeline import build

    figures = build(options, folder.path)
    if figures is None:
        return 0
    folder.finish(figures)
    print(f"{figures}\nstatistics: {folder / 'statistics.md'}")
    return 3 if figures["rejected"] else 0
