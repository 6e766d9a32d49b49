"""The data set pipeline run on the example with a scripted LLM and the stand-in annotator."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import annotators
from mitigate.cli.main import main
from tests.helpers.dataset_llm import EXAMPLE
from tests.helpers.engines_server import Reply, serving
from tests.helpers.jsonl import read_rows, write_rows
from tests.helpers.standin import ExactAnnotator


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotators, "load_annotator", lambda name: ExactAnnotator())


def recipe(folder: Path, url: str, **options: Any) -> Path:
    path = folder / "recipe.yaml"
    config = {
        "task": "build-dataset", "about": "a test", "hardware": "any", "engine": f"openai:m@{url}",
        "topics": str(EXAMPLE / "topics.jsonl"),
        "corpus": [str(EXAMPLE / "documents"), str(EXAMPLE / "documents.zh.jsonl")],
        "answers": [{"with_reference": True}, {"with_reference": False}],
    }  # fmt: skip
    path.write_text(yaml.safe_dump({**config, **options}, allow_unicode=True))
    return path


def build(folder: Path, script: Callable[[dict[str, Any]], Reply], *args: str, **options: Any) -> tuple[int, Path]:
    out = folder / "run"
    with serving(script) as server:
        code = main(["run", str(recipe(folder, server.url, **options)), "--output", str(out), *args])
    return code, out


def some_topics(folder: Path, *names: str) -> str:
    kept = (row for row in read_rows(EXAMPLE / "topics.jsonl") if row["topic"] in names)
    return str(write_rows(folder / "some.jsonl", kept))
