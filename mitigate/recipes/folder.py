"""The folder of one run of a recipe: what was asked, with what, and what came out.

    config.yaml      the resolved recipe
    versions.json    Python, packages, git revision, machine, command, one entry a start
    metrics.jsonl    {"step": …, name: value, …}, one object a line
    samples.jsonl    annotated answers, {"when": "before" | "after", …record}
    done.json        the final figures; there only when the run is complete

A folder belongs to one resolved recipe: a second run continues it, and a run of another recipe is refused. A lock
keeps a second run away and dies with its process. Of several processes that a launcher started (RANK), the first
writes and the others only read.
Leaves out what a kind adds for itself (checkpoints/, curves.png, report.html).
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from mitigate.io import OutputError, UsageError, dump_line, whole_file
from mitigate.recipes.config import Section, dump

CONFIG = "config.yaml"
VERSIONS = "versions.json"
METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
DONE = "done.json"
LOCK = ".lock"
PACKAGES = (
    "hallucination-toolkit", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "sentence-transformers",
    "vllm", "deepspeed", "openai", "numpy",
)  # fmt: skip


class RunFolder:
    """An open run folder; see :func:`open_run`.

    Attributes:
        path: The folder.
        resumed: Whether an earlier start left something to go on from.
    """

    def __init__(self, path: Path, resumed: bool, lock: int | None) -> None:
        self.path = path
        self.resumed = resumed
        self._lock = lock  # None in a process that doesn't write

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def done(self) -> dict[str, Any] | None:
        """The final figures of a complete run, None of an incomplete one."""
        file = self.path / DONE
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    def log(self, step: int, **values: float | int | str | None) -> None:
        """Append one line to metrics.jsonl.

        Args:
            step: Training or work step, from 0.
            values: Figures of that step; None where there is none (NaN and infinities become None).
        """
        broken = {k for k, v in values.items() if isinstance(v, float) and not math.isfinite(v)}
        self.append(METRICS, [{"step": step, **{k: None if k in broken else v for k, v in values.items()}}])

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to a JSON Lines file of the folder, whole lines at once.

        Raises:
            OutputError: It can't be written; a line torn by that is cut when the run goes on.
        """
        data = b"".join(dump_line(dict(row)) for row in rows)
        if self._lock is None:
            return
        with _written(self.path / name), (self.path / name).open("ab") as file:
            file.write(data)

    def rows(self, name: str = METRICS) -> list[dict[str, Any]]:
        """The rows of a JSON Lines file of the folder."""
        return list(read_rows(self.path / name))

    def cut(self, step: int, name: str = METRICS) -> None:
        """Drop the rows after a step, so that a run resumed from its checkpoint writes them once."""
        self.write_rows(name, [row for row in self.rows(name) if row.get("step", 0) <= step])

    def write_rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> Path:
        """Write a whole JSON Lines file of the folder, as :meth:`write` does."""
        return self.write(name, b"".join(dump_line(dict(row)) for row in rows).decode())

    def write(self, name: str, text: str) -> Path:
        """Write a whole file of the folder, so that it is either the old or the new one; returns its path."""
        path = self.path / name
        if self._lock is None:
            return path
        with _written(path), whole_file(path) as part:
            part.write_text(text, encoding="utf-8")
        return path

    def finish(self, figures: Mapping[str, Any]) -> None:
        """Mark the run complete and keep its final figures."""
        self.write(DONE, json.dumps(dict(figures), indent=1, ensure_ascii=False) + "\n")

    def discard(self) -> None:
        """Remove a folder in which nothing was done yet, so that the same command can be given again."""
        if self._lock is not None and {file.name for file in self.path.iterdir()} <= {CONFIG, VERSIONS, LOCK}:
            for name in (CONFIG, VERSIONS, LOCK):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def close(self) -> None:
        """Let other processes have the folder."""
        if self._lock is not None:
            os.close(self._lock)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Turns what keeps a file from being written into an error that commands tell in one line."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON Lines file, none where it is not there; a half-written last line is left out."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def open_run(path: Path, options: Section, *, overwrite: bool = False) -> RunFolder:
    """Make a run folder, or open the one that an earlier run of the same recipe left.

    Args:
        path: The folder.
        options: The resolved recipe.
        overwrite: Delete what an earlier run left.

    Raises:
        UsageError: The folder holds another recipe or no run, belongs to a running process, or can't be written.
    """
    if os.environ.get("RANK", "0") != "0":
        return RunFolder(path, False, None)
    there = path.is_dir() and any(path.iterdir())
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
    except OSError as error:
        raise UsageError(f"cannot write to {path}: {error.strerror or error}") from error
    if overwrite and (path / CONFIG).is_file() and (path / VERSIONS).is_file():  # else it is no folder of ours
        for old in path.iterdir():
            if old.name != LOCK:
                shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        there = False
    folder = RunFolder(path, (path / CONFIG).is_file(), lock)
    try:
        text = dump(options)
        if folder.resumed:
            _same_config(path, text)
            for file in path.glob("*.jsonl"):
                _cut_torn_line(file)
        elif there and any(file.name != LOCK for file in path.iterdir()):
            raise UsageError(f"{path} is no run folder (it has no {CONFIG}): choose another --output")
        else:
            folder.write(CONFIG, text)
        starts = json.loads((path / VERSIONS).read_text()) if (path / VERSIONS).is_file() else []
        folder.write(VERSIONS, json.dumps([*starts, versions()], indent=1) + "\n")
    except OutputError as error:
        folder.close()
        raise UsageError(str(error)) from error
    except OSError as error:
        folder.close()
        raise UsageError(f"cannot write to {path}: {error.strerror or error}") from error
    except BaseException:
        folder.close()
        raise
    return folder


def _lock(path: Path) -> int:
    import fcntl

    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise UsageError(f"{path} is being written by another run: wait for it, or choose another --output") from error
    return lock


def _cut_torn_line(file: Path) -> None:
    """Drop a last line that was cut while it was written."""
    data = file.read_bytes()
    if not data.endswith(b"\n"):
        os.truncate(file, data.rfind(b"\n") + 1)


def _same_config(path: Path, text: str) -> None:
    import yaml

    was, now = yaml.safe_load((path / CONFIG).read_text(encoding="utf-8")), yaml.safe_load(text)
    changed = [key for key in {**was, **now} if was.get(key) != now.get(key)]
    if changed:
        parts = ", ".join(f"{key} was {was.get(key)!r} and is {now.get(key)!r}" for key in changed)
        raise UsageError(f"cannot continue {path}: {parts}; choose another --output, or start again with --overwrite")


def versions() -> dict[str, Any]:
    """What a result depends on: time, command, Python, packages, git revision, machine."""
    found: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "git": git_revision(),
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_revision() -> str | None:
    """The checkout's commit, with "+changes" where files differ from it; None outside a checkout."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(checkout)]
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=20)
        state = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + ("+changes" if state.stdout.strip() else "")
