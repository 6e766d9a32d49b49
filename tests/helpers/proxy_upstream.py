"""What the tests of the proxy share: an application on a free port, and the endpoint behind the proxy."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.helpers.rule_annotator import LOST, WRONG

PAUSE = 0.05
MESSAGES: Any = [{"role": "system", "content": "s"}, {"role": "user", "content": "How high?"}]


@contextmanager
def running(app: Starlette) -> Iterator[str]:
    """Serve an application on a free port of loopback; gives its base URL."""
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [free]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        free.close()


class Upstream:
    """The endpoint behind: answers with what `texts` says, piece by piece where it is asked to stream.

    With a gate, a stream goes on behind its first word once the gate is open; `opened` is whether it did within a
    minute.
    """

    def __init__(self) -> None:
        self.texts = [f"{WRONG} {LOST}"]
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200
        self.done = True
        self.gate: threading.Event | None = None
        self.opened = True

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/models", self.models, methods=["GET"]),
            ]
        )

    async def models(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        return JSONResponse(
            {"object": "list", "data": [{"id": "m", "object": "model"}], "query": str(request.url.query)}
        )

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.seen.append(body)
        self.headers.append(dict(request.headers))
        if self.status != 200:
            return JSONResponse({"error": {"message": "overloaded"}}, self.status)
        if body.get("stream"):
            return StreamingResponse(self.pieces(), media_type="text/event-stream")
        choices = [
            {"index": i, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            for i, text in enumerate(self.texts)
        ]
        return JSONResponse({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": choices})

    async def pieces(self) -> AsyncIterator[str]:
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}

        def chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> str:
            choice = {"index": index, "delta": delta, "finish_reason": finish}
            return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"

        for i, text in enumerate(self.texts):
            yield chunk(i, {"role": "assistant", "content": ""})
            for word in text.split(" "):
                await asyncio.sleep(PAUSE)
                yield chunk(i, {"content": f"{word} " if word != text.split(" ")[-1] else word})
                if self.gate is not None:
                    self.opened &= await asyncio.to_thread(self.gate.wait, 60)
            yield chunk(i, {}, "stop")
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n"
        if self.done:
            yield "data: [DONE]\n\n"
