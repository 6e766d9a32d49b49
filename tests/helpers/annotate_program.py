"""`mitigate annotate` with the stand-in annotator as a process of its own, and records for it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.helpers.jsonl import write_rows

ROOT = Path(__file__).parents[2]
ANSWERS = ["The sky is blue.", "It has 3 moons. Thanks!", "Nobody knows. The sky is blue."]
REFERENCE = "The sky is blue. It has 2 moons."


def start(*args: str | Path, env: dict[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR")}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.standin", "annotate", *map(str, args)], cwd=ROOT, text=True,
        env={**environment, "COLUMNS": "200", **(env or {})}, encoding="utf-8",
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )  # fmt: skip


def mitigate(*args: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    process = start(*args, env=env)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def write_records(path: Path, n: int) -> Path:
    rows = ({"id": i, "reference": REFERENCE, "answer": ANSWERS[i % 3], "note": [i]} for i in range(n))
    return write_rows(path, rows)
