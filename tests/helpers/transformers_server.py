"""``transformers serve`` on a checkpoint, a real OpenAI-compatible server, as a process of its own."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Served:
    """The checkpoint, its server's base URL without the path, the process, and the engine's name."""

    folder: Path
    host: str
    process: subprocess.Popen[bytes]
    name: str


@contextmanager
def served(folder: Path) -> Iterator[Served]:
    """Serve a checkpoint until the block ends, on a free port that the server takes itself and tells.

    This server draws only where the checkpoint's own defaults draw, and takes over the rest of them.
    """
    log = folder.parent / "serve.log"
    command = f"serve {folder} --device cpu --dtype float32 --host 127.0.0.1 --port 0".split()
    program, env = Path(sys.executable).parent / "transformers", {**os.environ, "HF_HUB_OFFLINE": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen([str(program), *command], stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        for _ in range(480):
            time.sleep(0.5)
            assert process.poll() is None, log.read_text()
            if told := re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text()):
                break
        else:
            pytest.fail(f"the server did not come up:\n{log.read_text()}")
        urllib.request.urlopen(f"{told[1]}/health", timeout=60).close()
        yield Served(folder, told[1], process, f"openai:{folder}@{told[1]}/v1")
    finally:
        process.terminate()
        process.wait()
