"""`mitigate` run several times in one process with one Ray, which would otherwise start anew each time.

python -m tests.distributed_runner  reads a JSON list of {"argv": […], "remove": [files to remove before]} and prints a
list of {"code": exit code, "said": standard error}.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path

from mitigate.cli import main

if __name__ == "__main__":
    found = []
    for step in json.load(sys.stdin):
        for path in step["remove"]:
            Path(path).unlink()
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            code = main(step["argv"])
        found.append({"code": code, "said": said.getvalue()})
    print(json.dumps(found))
