"""The folder of one run of a recipe: what was asked, with what, and what came out.

    config.yaml      the resolved recipe
    versions.json    Python, packages, git revision, machine, command, one entry per start
    metrics.jsonl    {"step": …, name: value, …}, one object per line
    samples.jsonl    annotated answers, {"when": "before" | "after", …record}
    done.json        the final figures; there only when the run is complete
    inputs.json      digests of the data files, and the exit code of a complete run

A folder belongs to one resolved recipe: a second run of it goes on where the first one stopped, a run of another
recipe is refused. A lock keeps a second process away and dies with its process. Of several processes that a launcher
started (RANK), the first one writes and the others only read. Leaves out what a task adds (checkpoints/, model/).
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mitigate.io import OutputError, UsageError, dump_line, files, open_locked, read_rows, usage, versions, write_bytes
from mitigate.recipes.config import Section, dump

CONFIG = "config.yaml"
VERSIONS = "versions.json"
METRICS = "metrics.jsonl"
SAMPLES = "samples.jsonl"
REJECTED = "rejected.jsonl"
DONE, INPUTS = "done.json", "inputs.json"
LOCK = ".lock"
PACKAGES = (
    "torch", "transformers", "trl", "peft", "accelerate", "datasets", "sentence-transformers",
    "vllm", "deepspeed", "openai", "numpy",
)  # fmt: skip


class RunFolder(AbstractContextManager["RunFolder"]):
    """An open run folder; :func:`open_run` makes it."""

    def __init__(self, path: Path, lock: FileIO | None = None, *, writes: bool = True) -> None:
        self.path = path
        self.writes = writes  # whether this process writes into it
        self._lock = lock

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def done(self) -> dict[str, Any] | None:
        """The final figures of a complete run, None of an incomplete one."""
        file = self.path / DONE
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None

    def log(self, step: int, **values: float | int | str | None) -> None:
        """Append the figures of a step, from 0, to metrics.jsonl; NaN and infinities become None."""
        broken = {k for k, v in values.items() if isinstance(v, float) and not math.isfinite(v)}
        self.append(METRICS, [{"step": step, **values, **dict.fromkeys(broken)}])

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to a JSON Lines file of the folder; a line that is cut off is dropped when the run goes on."""
        data = b"".join(dump_line(dict(row)) for row in rows)
        if self.writes:
            with files(OutputError, f"cannot write {self / name}"), (self / name).open("ab") as file:
                file.write(data)

    def rows(self, name: str = METRICS) -> list[dict[str, Any]]:
        return list(read_rows(self / name))

    def cut(self, step: int) -> None:
        """Drop the metrics after a step, so that a run resumed from its checkpoint writes them once."""
        self.write_rows(METRICS, [row for row in self.rows() if row.get("step", 0) <= step])

    def write_rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.write(name, b"".join(dump_line(dict(row)) for row in rows).decode())

    def write(self, name: str, text: str) -> None:
        if self.writes:
            write_bytes(self / name, text.encode())

    def keep_inputs(self, digests: Mapping[str, str], code: int = 0) -> None:
        """Write what the files are that a run is made of, and its exit code."""
        self.write(INPUTS, json.dumps({"sha256": dict(digests), "exit_code": code}, indent=1) + "\n")

    def exit_code(self, digests: Mapping[str, str]) -> int:
        """That of a complete run; UsageError where a file that the run was made of has changed."""
        file = self / INPUTS
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if changed := [name for name, digest in digests.items() if kept.get("sha256", {}).get(name, digest) != digest]:
            raise UsageError(
                f"{self.path} is {'complete' if self.done else 'begun'}, and {', '.join(changed[:5])} changed since "
                "then: begin anew with --overwrite, or choose another --output"
            )
        return int(kept.get("exit_code", 0))

    def finish(self, figures: Mapping[str, Any]) -> None:
        self.write(DONE, json.dumps(dict(figures), indent=1, ensure_ascii=False) + "\n")

    def discard(self) -> None:
        """Remove a folder in which nothing was done yet, so that the command can be mended; what was rejected stays."""
        files = {file.name: file for file in self.path.iterdir()}
        if self.writes and files.keys() <= {CONFIG, VERSIONS, REJECTED, LOCK, INPUTS}:
            for name in files.keys() - {REJECTED}:
                files[name].unlink()
            if REJECTED not in files:
                self.path.rmdir()

    def close(self) -> None:
        """Let other processes have the folder."""
        if self._lock is not None:
            self._lock.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def open_run(path: Path, options: Section, *, overwrite: bool = False) -> RunFolder:
    """Make a run folder, or open the one that an earlier run of the same resolved recipe left.

    With ``overwrite`` the run begins anew: all that is in the run folder is deleted. Raises UsageError: the folder
    holds another recipe or something else than a run, belongs to a running process, or can't be written.
    """
    if os.environ.get("RANK", "0") != "0":
        return RunFolder(path, writes=False)
    with files(UsageError, f"cannot write to {path}"):
        path.mkdir(parents=True, exist_ok=True)
    folder = RunFolder(path, open_locked(path / LOCK, path))
    try:
        with usage(kinds=OutputError):
            _begin(folder, options, overwrite)
    except BaseException:
        folder.close()
        raise
    return folder


def _begin(folder: RunFolder, options: Section, overwrite: bool) -> None:
    """Compare the folder's recipe with this one, or write it; drop lines that were cut off; note this start."""
    others = [file for file in folder.path.iterdir() if file.name not in (LOCK, REJECTED)]
    # Any folder may hold a config.yaml: with --overwrite, only one with versions.json beside it is deleted as ours.
    if others and not ((folder / CONFIG).is_file() and (not overwrite or (folder / VERSIONS).is_file())):
        raise UsageError(f"{folder.path} is no run folder (it has no {CONFIG}): choose another folder with --output")
    with files(OutputError, f"cannot write {folder.path}"):
        if overwrite:
            # Last what marks a run folder, so that a killed deletion can be gone on with, and is no complete run.
            marks = CONFIG, VERSIONS, INPUTS
            for file in sorted(others, key=lambda file: (file.name in marks, file.name != DONE)):
                shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()
        elif others:
            _same_recipe(folder, options)
            for file in folder.path.glob("*.jsonl"):
                if file.stem.endswith("_reviewed"):  # a person's
                    continue
                data = file.read_bytes()
                if last := data.rpartition(b"\n")[2]:
                    try:  # whole where a person's editor wrote it
                        json.loads(last)
                        with file.open("ab") as end:
                            end.write(b"\n")
                    except ValueError:
                        os.truncate(file, len(data) - len(last))
        starts = json.loads((folder / VERSIONS).read_text()) if (folder / VERSIONS).is_file() else []
    folder.write(CONFIG, dump(options))
    folder.write(VERSIONS, json.dumps([*starts, _start()], indent=1) + "\n")


def _same_recipe(folder: RunFolder, options: Section) -> None:
    was, now = yaml.safe_load((folder / CONFIG).read_text(encoding="utf-8")), options.model_dump(mode="json")
    with suppress(ValidationError):  # an option that came after that run has its default
        was = type(options).model_validate(was).model_dump(mode="json")
    told = {"about", "hardware", "minutes"}  # which change no result, and change between releases
    if changed := [key for key in {**was, **now} if key not in told and was.get(key) != now.get(key)]:
        parts = ", ".join(f"{key} was {was.get(key)!r} and is {now.get(key)!r}" for key in changed)
        raise UsageError(
            f"{folder.path} holds a run of another recipe: {parts}; choose another folder with --output, or add "
            "--overwrite to delete that run"
        )


def _start() -> dict[str, Any]:
    """What a result depends on: time, command, machine, git revision, Python, packages."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"), "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores", "git": git_revision(),
        **{name: version for name, version in versions(*PACKAGES).items() if version is not None},
    }  # fmt: skip


def git_revision() -> str | None:
    """The checkout's commit, with "+changes" where files differ from it; None outside a checkout."""
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return None
    try:
        commit, changes = (
            subprocess.run(["git", "-C", str(checkout), *asked], capture_output=True, text=True, check=True, timeout=20)
            for asked in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return commit.stdout.strip() + ("+changes" if changes.stdout.strip() else "")
