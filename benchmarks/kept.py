"""What was measured for a page, kept as JSON beside it, by part: a part that is measured again leaves the others."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"

Part = dict[str, Any]
"""{"by": versions and commit, "found": what was measured}."""


def parts(page: Path) -> dict[str, Part]:
    path = page.with_suffix(".json")
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def keep(page: Path, name: str, found: Any) -> None:
    """Keep a part, with the versions and the commit that it was measured at."""
    commit, changed = (
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", "*.py"])
    )
    if changed:
        commit += " with changes"
    by = f"Python {platform.python_version()}, torch {version('torch')}, commit {commit or 'unknown'}"
    kept = {**parts(page), name: {"by": by, "found": found}}
    page.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def provenance(kept: dict[str, Part]) -> str:
    """A line for each set of versions: the parts that were measured with it."""
    by: dict[str, list[str]] = {}
    for name, part in kept.items():
        by.setdefault(part["by"], []).append(f"`{name}`")
    return "\n".join(f"- {', '.join(names)}: {how}" for how, names in by.items())
