"""Recipes of the task that is for tests only (tests/helpers/example_task.py)."""

from pathlib import Path

import pytest
import yaml

from mitigate.recipes.config import TASKS
from tests.helpers.example_task import WriteRecipe


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteRecipe:
    """Writes a recipe with some options changed."""
    monkeypatch.setitem(TASKS, "example", "tests.helpers.example_task")

    def write(**options: object) -> Path:
        path = tmp_path / "recipe.yaml"
        header = {"task": "example", "about": "counts", "hardware": "any", "minutes": 1}
        path.write_text(yaml.safe_dump({**header, **options}))
        return path

    return write
