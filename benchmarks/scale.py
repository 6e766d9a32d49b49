"""Memory and cost of annotating many records, and two workers against one.

    OMP_NUM_THREADS=1 python -m benchmarks.scale --data ../shared/data [--workers]     # --workers needs the extra `ray`

Records are real answers with their documents. Each run is `mitigate annotate` in a process of its own; CPU-seconds and
the peak of its resident memory come from the kernel, and every output is read through: each record once and in order.
Costs are slopes between the smallest and the largest run, so that loading is left out. Workers: the same command with
`--distributed` and one or two workers, in turns. tests/mitigate/test_scale.py kills nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import documents, load_rows, parser, row, save

SIZES = (100, 400, 800)
ROUNDS = 3


def run(source: Path, output: Path, *options: str) -> dict[str, float]:
    """CPU-seconds, peak resident MiB and seconds of one run."""
    command = [sys.executable, "-m", "mitigate.cli", "annotate", "--input", str(source), "--output", str(output)]
    command += options
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(f"exit code {child.returncode}: {' '.join(command)}")
    return {"cpu": used.ru_utime + used.ru_stime, "mib": used.ru_maxrss / 1024, "seconds": time.monotonic() - begin}


def write(path: Path, records: list[dict[str, Any]]) -> None:
    """Records with a running number as id."""
    path.write_text("".join(json.dumps({**r, "id": i}) + "\n" for i, r in enumerate(records)), encoding="utf-8")


def main() -> None:
    """Measure and write the page."""
    made = parser(__doc__)
    made.add_argument("--workers", action="store_true", help="two workers against one, instead")
    args = made.parse_args()
    records = [r for group in documents(load_rows(args.data), 10**6) for r in group]
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name, "in.jsonl"), Path(name, "out.jsonl")
        if args.workers:
            write(source, records[:400])
            turns = [
                run(source, Path(name, f"{turn}"), "--distributed", "--workers", str(1 + turn % 2))
                for turn in range(2 * ROUNDS)
            ]
            ratios = sorted(turns[2 * i]["seconds"] / turns[2 * i + 1]["seconds"] for i in range(ROUNDS))
            what, limits = "two workers against one: times as fast, start included", (ratios[0], ratios[-1])
            rows = [row(what, 400, ratios[ROUNDS // 2], limits)]
            save("reliability", "scale", rows, tables={"turns": turns}, packages=["ray"])
            return
        found = []
        for n in SIZES:
            write(source, records[:n])
            output.unlink(missing_ok=True)
            found.append({"records": n, **run(source, output)})
            ids = [json.loads(line)["id"] for line in output.open(encoding="utf-8")]
            if ids != list(range(n)):
                raise RuntimeError(f"records lost, doubled or out of order: {ids}")
            print(found[-1], flush=True)
    first, last = found[0], found[-1]
    slope = (last["cpu"] - first["cpu"]) / (last["records"] - first["records"])
    rows = [
        row("annotating: CPU-milliseconds a record", last["records"], 1000 * slope),
        row("peak memory of the largest run, MiB", last["records"], last["mib"]),
        row("peak memory, largest against smallest run", last["records"], last["mib"] / first["mib"]),
    ]
    save("reliability", "scale", rows, tables={"runs": found})


if __name__ == "__main__":
    main()
