"""``transformers serve`` on a checkpoint, a real OpenAI-compatible server, as a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Served:
    """The checkpoint, its server's base URL without the path, and the process."""

    folder: Path
    host: str
    process: subprocess.Popen[bytes]

    @property
    def name(self) -> str:
        """The engine's name."""
        return f"openai:{self.folder}@{self.host}/v1"


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Serve a checkpoint on a free port until the block ends.

    This server draws only where the checkpoint's own defaults draw, and takes over the rest of them.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder.parent / "serve.log"
    command = f"serve {folder} --device cpu --dtype float32 --host 127.0.0.1 --port {port}".split()
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(Path(sys.executable).parent / "transformers"), *command],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    try:
        for _ in range(480):
            time.sleep(0.5)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                assert process.poll() is None, log.read_text()
        else:
            pytest.fail(f"the server did not come up:\n{log.read_text()}")
        yield Served(folder, f"http://127.0.0.1:{port}", process)
    finally:
        process.terminate()
        process.wait()
