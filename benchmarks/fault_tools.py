"""For `benchmarks/faults.py`: commands in forked processes that can be killed, and a server of scripted replies.

Children are forked from a process that has loaded the libraries, so that a hundred short runs cost minutes. They are
real processes: SIGKILL takes them away in the middle of whatever they are doing.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LATE = 0.02  # seconds that the server takes over a reply


CONCURRENT = 16  # requests in flight at once that a kill may lose, at most


def expect(right: bool, what: str) -> None:
    """Raise where something is not as it should be."""
    if not right:
        raise RuntimeError(what)


def preload() -> None:
    """Load what the commands load, but for weights."""
    import datasets  # noqa: F401
    import openai
    import py3langid
    import sentence_transformers  # noqa: F401
    import torch

    import annotators.verifier.annotator  # noqa: F401
    import mitigate.cli.main
    import mitigate.dataset.pipeline
    import mitigate.models
    import mitigate.recipes.build_dataset  # noqa: F401
    from annotators.text.words import chinese_words

    torch.set_num_threads(1)
    assert openai.AsyncOpenAI(api_key="none").chat.completions
    chinese_words("热身")
    py3langid.rank("warm up")


def write_records(path: Path, n: int) -> None:
    """Records for `mitigate annotate` from the pocket world."""
    from examples.pocket import build_world
    from examples.pocket.texts import flawed_answer, questions

    rng = random.Random(0)
    asked = questions(build_world(0).entities, 2, held_out=False)[:n]
    with path.open("w", encoding="utf-8") as file:
        for i, q in enumerate(asked):
            row = {"id": i, "question": q.text, "reference": q.entity.document.text, "answer": flawed_answer(rng, q)}
            file.write(json.dumps(row) + "\n")  # fmt: skip


def write_questions(path: Path, n: int) -> None:
    """Records for `mitigate fewl score` that lack reference answers."""
    with path.open("w", encoding="utf-8") as file:
        for i in range(n):
            answers = [{"text": f"It was built in {1900 + i} near the old bridge.", "model": "a"},
                       {"text": f"It is a hill of {i} stones.", "model": "b"}]  # fmt: skip
            row = {"id": i, "question": f"When was tower number {i} of the town opened?", "answers": answers}
            file.write(json.dumps(row) + "\n")


def remove(*paths: Path) -> None:
    for path in paths:
        for found in path.parent.glob(path.name + "*"):
            shutil.rmtree(found) if found.is_dir() else found.unlink()


@dataclass
class Run:
    """A command in a process of its own."""

    pid: int
    log: Path
    code: int | None = None

    def wait(self, seconds: float | None = None) -> int | None:
        """Exit code (negative: the signal), or None when it still runs after ``seconds``."""
        end = None if seconds is None else time.monotonic() + seconds
        while self.code is None:
            pid, status = os.waitpid(self.pid, 0 if end is None else os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
            elif end is not None and time.monotonic() >= end:
                return None
            else:
                time.sleep(0.001)
        return self.code

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def start(work: Callable[[], int], log: Path) -> Run:
    """Fork and do ``work`` there, with what it prints in ``log``."""
    pid = os.fork()
    if pid:
        return Run(pid, log)
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = work()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(*argv: str) -> Callable[[], int]:
    """`mitigate ARGV` as work."""

    def work() -> int:
        from mitigate.cli.main import main

        return main(argv)

    return work


@dataclass
class Soak:
    """What a soak found: kills that hit, rounds that ended, seconds of an uninterrupted run."""

    kills: int = 0
    rounds: int = 0
    seconds: float = 0.0


def soak(
    work: Callable[[], int],
    log: Path,
    *,
    kills: int,
    seed: int,
    fresh: Callable[[], None],
    after_kill: Callable[[], None],
    at_end: Callable[[], None],
) -> Soak:
    """Start the work again and again, kill it at random moments, and check after each kill and at each end.

    Args:
        work: What is run; a second run goes on where the first was killed.
        log: Where it prints to.
        kills: How many SIGKILL must have hit.
        seed: Of the moments.
        fresh: Removes every trace of earlier rounds.
        after_kill: Raises where what is left is not what a killed run may leave.
        at_end: Raises where the finished result is not the right one.
    """
    rng, found = random.Random(seed), Soak()
    fresh()
    begin = time.monotonic()
    whole = start(work, log)
    if whole.wait() != 0:
        raise RuntimeError(f"the uninterrupted run failed: {whole.said[-2000:]}")
    found.seconds = time.monotonic() - begin
    at_end()
    longest = found.seconds
    while found.kills < kills:
        fresh()
        while True:
            run = start(work, log)
            code = run.wait(rng.uniform(0, longest))
            if code is None:
                run.send(signal.SIGKILL)
                if run.wait() != -signal.SIGKILL:
                    code = run.code
            if code is not None:
                if code != 0:
                    raise RuntimeError(f"exit code {code} instead of 0: {run.said[-2000:]}")
                at_end()
                found.rounds += 1
                break
            found.kills += 1
            after_kill()
    return found


def row(what: str, found: Soak, asked: int | None) -> str:
    """A row of the table; a soak that found something wrong has raised before."""
    return f"| {what} | {found.kills} | {found.rounds} | {'–' if asked is None else asked} |"


# --- the server ---------------------------------------------------------------------------------------------------


def reply_to(body: dict[str, Any]) -> str:
    """What the scripted LLM says: the data set's player for model "player", else words drawn from the message."""
    prompt = body["messages"][-1]["content"]
    if body["model"] == "player":
        from tests.helpers.dataset_llm import good

        return good(prompt)
    digest = hashlib.sha256(repr(body["messages"]).encode()).hexdigest()
    words = "the a river hill town was built in old stone bridge north of opened and".split()
    return " ".join(words[int(c, 16) % len(words)] for c in digest[:24]).capitalize() + "."


def serve(port: int, asked: Path) -> None:
    """Answer on a port until killed; each request is a line of ``asked``."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from tests.helpers.engines_server import completion

    file = os.open(asked, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
            os.write(file, key.encode() + b"\n")
            time.sleep(LATE)
            data = json.dumps(completion(reply_to(body)).body).encode()
            try:
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:  # whoever asked was killed
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # connections of processes that were killed

    Listener(("127.0.0.1", port), Handler).serve_forever()


class Server:
    """The scripted server in a process of its own, at one port for good."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.asked = folder / "asked.txt"
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        code = f"from benchmarks.fault_tools import *; serve({self.port}, Path({str(self.asked)!r}))"
        self.process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)

    def down(self) -> None:
        """Dies as by power failure."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def count(self) -> Counter[str]:
        return Counter(self.asked.read_text().split()) if self.asked.exists() else Counter()

    def forget(self) -> None:
        self.asked.write_text("")


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Callable[[str], None]]:
    """A file system of so many kilobytes at ``folder`` (needs root); yields a function that remounts it."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], check=True, capture_output=True
    )

    def remount(options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True, capture_output=True)

    try:
        yield remount
    finally:
        subprocess.run(["umount", str(folder)], check=True, capture_output=True)
