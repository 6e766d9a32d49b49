"""Kills, a full disk, a dead server, Ctrl-C: what is left, and whether the same command then finishes as usual.

    OMP_NUM_THREADS=1 python -m benchmarks.faults [--kills 30] [--records 60]
    OMP_NUM_THREADS=1 python -m benchmarks.faults --scale --data ../shared/data      # memory and cost of many records
    OMP_NUM_THREADS=1 python -m benchmarks.faults --workers --data ../shared/data    # two against one; needs Ray

A process is killed (SIGKILL) at a random moment, started again, killed again, until it ends; then anew, until
so many kills have hit. After each kill the output must be the beginning of the undisturbed one, at each end its equal.
The LLM is a scripted server that counts what it is asked. The small file system needs root.
Many records are real answers with their documents. CPU-seconds and peak memory of each run come from the kernel; costs
are slopes between the smallest and the largest, without loading. tests/mitigate/test_scale.py kills nodes.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.common import Row, parser, row, save, whole_answers
from mitigate.io import write_lines

IN_FLIGHT = 16  # requests that a kill may lose, at most
WORDS = "the a river hill town was built in old stone bridge north of opened and".split()


def expect(right: bool, what: str) -> None:
    if not right:
        raise RuntimeError(what)


ASKED: Counter[str] = Counter()  # how often the server was asked each question


class Handler(BaseHTTPRequestHandler):
    """A chat server whose replies depend on the question only."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        digest = hashlib.sha256(repr(body["messages"]).encode()).hexdigest()
        ASKED[digest] += 1
        time.sleep(0.02)
        text = " ".join(WORDS[int(c, 16) % len(WORDS)] for c in digest[:24]) + "."
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        data = json.dumps({"object": "chat.completion", "choices": [choice]}).encode()
        self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data))

    def log_message(self, format: str, *args: Any) -> None: ...


class Listener(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 64

    def handle_error(self, *_: Any) -> None: ...  # connections of processes that were killed


def serve(port: int = 0) -> Listener:
    """A server that answers until it is closed, at a free port where none is given."""
    listener = Listener(("127.0.0.1", port), Handler)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    return listener


class Job:
    """A command that writes one output, and what it writes when nothing disturbs it."""

    def __init__(self, folder: Path, *argv: str) -> None:
        self.argv, self.output, self.log = argv, folder / "out.jsonl", folder / "log.txt"
        begin = time.monotonic()
        expect(self.start().wait() == 0, self.log.read_text())
        self.seconds, self.whole = time.monotonic() - begin, self.output.read_bytes()

    def start(self, output: Path | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mitigate.cli", *self.argv, "--output", str(output or self.output)]
        return subprocess.Popen(command, stdout=self.log.open("wb"), stderr=subprocess.STDOUT)

    def clear(self) -> None:
        """Remove the output and what is kept beside it."""
        for path in self.output.parent.glob("out.jsonl*"):
            path.unlink()

    def check(self, output: Path | None = None, *, finished: bool) -> None:
        """The output is the beginning of the undisturbed one, or all of it."""
        path = output or self.output
        found = path.read_bytes() if path.exists() else b""
        expect(found == self.whole if finished else self.whole.startswith(found), f"{path} is not as without a fault")

    def interrupted(self, wait: float, number: signal.Signals) -> int:
        """Exit code of a run that gets a signal after so many seconds, where it has not ended by then."""
        run = self.start()
        try:
            return run.wait(wait)
        except subprocess.TimeoutExpired:
            run.send_signal(number)
            return run.wait()

    def finish(self, output: Path | None = None) -> None:
        """The same command ends with the undisturbed output."""
        expect(self.start(output).wait() == 0, self.log.read_text())
        self.check(output, finished=True)

    def fails(self, code: int, output: Path | None = None) -> None:
        """The command ends with this code and a message."""
        found, said = self.start(output).wait(), self.log.read_text()
        expect(found == code and "Traceback" not in said and "mitigate: error: " in said, f"exit code {found}: {said}")


def soak(job: Job, kills: int, seed: int) -> int:
    """Kill the job so often and check after each kill and each end; how many runs ended."""
    rng, hits, ends = random.Random(seed), 0, 0
    while hits < kills:
        job.clear()
        while True:
            code = job.interrupted(rng.uniform(0, job.seconds), signal.SIGKILL)
            job.check(finished=code == 0)
            expect(code in (0, -signal.SIGKILL), job.log.read_text())
            ends, hits = ends + (code == 0), hits + (code != 0)
            if code == 0:
                break
    return ends


def run(records: list[Row], *options: str) -> dict[str, float]:
    """CPU-seconds, peak resident MiB and seconds of annotating records."""
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name, "in.jsonl"), Path(name, "out.jsonl")
        write_lines(source, [r | {"id": i} for i, r in enumerate(records)])
        asked = ["--input", str(source), "--output", str(output), *options]
        begin = time.monotonic()
        child = subprocess.Popen([sys.executable, "-m", "mitigate.cli", "annotate", *asked], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(child.pid, 0)
        seconds, code = time.monotonic() - begin, os.waitstatus_to_exitcode(status)
        expect(code == 0, f"exit code {code}: mitigate annotate {' '.join(asked)}")
        ids = [json.loads(line)["id"] for line in output.read_bytes().splitlines()]  # a torn end is no JSON
    expect(ids == list(range(len(records))), f"records lost, doubled or out of order: {ids}")
    return {"records": len(records), "cpu": used.ru_utime + used.ru_stime, "mib": used.ru_maxrss / 1024,
            "seconds": seconds}  # fmt: skip


def scale(data: Path, workers: bool) -> None:
    """Measure many records, or two workers against one, and write the page."""
    records = whole_answers(data, 10**6)
    if workers:
        turns = [run(records[:400], "--distributed", "--workers", str(1 + turn % 2)) for turn in range(6)]
        ratios = sorted(turns[2 * i]["seconds"] / turns[2 * i + 1]["seconds"] for i in range(3))
        what = "two workers against one: times as fast, start included"
        rows = [row(what, 400, ratios[1], (ratios[0], ratios[-1]))]
        save("reliability", "faults", rows, tables={"turns": turns}, packages=["ray"], part="workers")
        return
    found = [run(records[:n]) for n in (100, 400, 800)]
    first, last = found[0], found[-1]
    slope = (last["cpu"] - first["cpu"]) / (last["records"] - first["records"])
    rows = [
        row("annotating: CPU-milliseconds a record", last["records"], 1000 * slope),
        row("peak memory of the largest run, MiB", last["records"], last["mib"]),
        row("peak memory, largest against smallest run", last["records"], last["mib"] / first["mib"]),
    ]
    save("reliability", "faults", rows, tables={"runs": found}, part="scale")


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--kills", type=int, default=30, help="of each command (%(default)s)")
    made.add_argument("--records", type=int, default=60)
    made.add_argument("--scale", action="store_true", help="measure many records instead")
    made.add_argument("--workers", action="store_true", help="measure two workers against one instead")
    args = made.parse_args()
    if args.scale or args.workers:
        scale(args.data, args.workers)
        return
    server = serve()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        for called in ("annotate", "fewl score"):
            folder = Path(name, called.split()[0])
            folder.mkdir()
            source = folder / "in.jsonl"
            texts = [f"Tower {i} was built in {1800 + i} near the old bridge." for i in range(args.records)]
            records: list[Row] = [{"id": i, "question": f"When was tower {i} built?"} for i in range(len(texts))]
            for r, text in zip(records, texts, strict=True):
                r |= {"reference": text, "answer": text} if called == "annotate" else {"answers": [{"text": text}]}
            write_lines(source, records)
            llm = ["--reference-llm", f"openai:plain@http://127.0.0.1:{server.server_port}/v1"]
            fewl = ["--embedding", "tfidf", "--expertise", "uniform", *llm]
            options = ["--chunk-size", "4"] if called == "annotate" else fewl
            job = Job(folder, *called.split(), "--input", str(source), *options)
            ASKED.clear()
            ends = soak(job, args.kills, seed=1)
            again = sum(ASKED.values()) - ends * len(ASKED)
            expect(again <= args.kills * IN_FLIGHT, f"{again} questions were asked again")
            what = f"`mitigate {called}` killed: outputs lost, doubled or cut"
            rows.append(row(what, f"{args.kills} kills, {ends} ends", 0))
            job.clear()
            code = job.interrupted(job.seconds / 2, signal.SIGINT)
            expect(code in (0, 130, -signal.SIGINT), f"exit code {code}: {job.log.read_text()}")
            job.finish()
            rows.append(row(f"`mitigate {called}`, Ctrl-C, then the same command: other bytes", 1, 0))
            disk = folder / "disk"
            disk.mkdir()
            small = f"size={max(8, len(job.whole) // 2048)}k"
            subprocess.run(["mount", "-t", "tmpfs", "-o", small, "tmpfs", str(disk)], check=True)
            try:
                job.fails(1, disk / "out.jsonl")
                subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
                job.finish(disk / "out.jsonl")
            finally:
                subprocess.run(["umount", str(disk)], check=True)
            rows.append(row(f"`mitigate {called}`, disk full, then with room: other bytes", 1, 0))
        job.clear()  # of `fewl score`
        server.shutdown()
        server.server_close()
        job.fails(1)
        serve(server.server_port)
        job.finish()
        rows.append(row("`mitigate fewl score`, server gone, then back: other bytes", 1, 0))
    save("reliability", "faults", rows)


if __name__ == "__main__":
    main()
