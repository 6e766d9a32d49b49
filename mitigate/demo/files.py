"""Files that the page hands out or takes in: in a folder of this process that goes with it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def private_folder() -> Path:
    """A folder that only this user can read, removed at the end of the process; Gradio keeps uploads in it too."""
    folder = Path(tempfile.mkdtemp(prefix="mitigate-demo-"))
    os.environ["GRADIO_TEMP_DIR"] = str(folder / "gradio")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def work_folder() -> Path:
    """A new folder for the files of one call."""
    return Path(tempfile.mkdtemp(dir=private_folder()))


def write_download(name: str, lines: Iterable[bytes]) -> str:
    """Write a file to hand out; returns its path."""
    path = work_folder() / name
    path.write_bytes(b"".join(lines))
    return str(path)
