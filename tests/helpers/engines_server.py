"""OpenAI-compatible servers for tests: a scripted one, an engine in this process, ``transformers serve``, the proxy."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from engines.types import ChatResult, Sample, Sampling


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


class Scripted:
    """An engine that answers with a function of a chat's last message and the number of the call; None is a failure."""

    def __init__(self, reply: Callable[[str, int], str | None], name: str = "scripted:test") -> None:
        self.reply, self.name, self.identity = reply, name, {"engine": name}
        self.asked: list[tuple[str, Sampling | None]] = []
        self.closed = False

    def chat(self, chats: Any, sampling: Sampling | None = None, *, on_result: Any = None) -> list[ChatResult]:
        results = []
        for index, chat in enumerate(chats):
            self.asked.append((chat[-1]["content"], sampling))
            text = self.reply(chat[-1]["content"], len(self.asked))
            samples = (Sample(text or "", "stop"),) * (sampling.n if sampling else 1)
            results.append(ChatResult(error="gone") if text is None else ChatResult(samples, 3, 2))
            if on_result is not None:
                on_result(index, results[-1])
        return results

    def close(self) -> None:
        self.closed = True


@dataclass
class Reply:
    """What to send: a status with JSON, or other bytes; ``delay`` seconds late; cut after ``cut`` bytes."""

    body: Any = None
    status: int = 200
    raw: bytes | None = None
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    cut: int | None = None


def completion(*texts: str | None, finish: str = "stop", logprobs: Any = None) -> Reply:
    shared = {"finish_reason": finish, "logprobs": logprobs}
    choices = [{"index": i, "message": {"role": "assistant", "content": t}, **shared} for i, t in enumerate(texts)]
    usage = {"prompt_tokens": 7, "completion_tokens": 3 * len(texts), "total_tokens": 7 + 3 * len(texts)}
    head = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return Reply({**head, "choices": choices, "usage": usage})


def error(status: int, message: str = "no", *, code: str | None = None, retry_ms: int = 5) -> Reply:
    return Reply({"error": {"message": message, "code": code}}, status, headers={"retry-after-ms": str(retry_ms)})


class Server:
    def __init__(self, script: Callable[[dict[str, Any]], Reply]) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        self.url = ""

    def take(self, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            reply = self.script(body)
            time.sleep(reply.delay)
            return reply
        finally:
            with self._lock:
                self._now -= 1


@contextmanager
def serving(script: Callable[[dict[str, Any]], Reply]) -> Iterator[Server]:
    server = Server(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            reply = server.take(body, {key.lower(): value for key, value in self.headers.items()})
            data = reply.raw if reply.raw is not None else json.dumps(reply.body).encode()
            try:
                self.send_response(reply.status)
                self.send_header("content-type", reply.content_type)
                self.send_header("content-length", str(len(data)))
                for key, value in reply.headers.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(data[: reply.cut])
            except OSError:  # the client has given up waiting
                self.close_connection = True
            self.close_connection = self.close_connection or reply.cut is not None

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64  # with the usual 5 the sixth connection of a batch waits a second

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), OSError):  # a client that went away is not worth a line
                super().handle_error(request, client_address)

    http = Listener(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@contextmanager
def told_url(command: list[str], log: Path) -> Iterator[str]:
    """Run a server as a process of its own until the end of the block; yields the URL that its output tells."""
    with log.open("wb") as out:
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        told, deadline = None, time.monotonic() + 240
        while told is None and time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
            told = re.search(r"(?:running on|base URL:) (http://127\.0\.0\.1:\d+\S*)", log.read_text())
        assert told is not None, f"the server did not come up:\n{log.read_text()}"
        yield told[1]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def transformers_serve(folder: Path, log: Path) -> Iterator[str]:
    """Serve a checkpoint on a free port, which the server takes itself; yields the base URL."""
    options = f"serve {folder} --device cpu --dtype float32 --host 127.0.0.1 --port 0".split()
    with told_url([str(Path(sys.executable).parent / "transformers"), *options], log) as url:
        yield f"{url}/v1"
