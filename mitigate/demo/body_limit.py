"""Requests larger than any input may be are dropped as they come; uploads have a limit of their own."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
App = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
UPLOAD = "/upload"
DRAINED = 64 * 2**20
"""Bytes that are read and dropped so that a client that only reads its answer afterwards gets one."""


class BodyLimit:
    """ASGI middleware: answers 413 to a request body over the limit and 411 to one of unknown length.

    Args:
        app: What is behind it.
        most: Bytes.
    """

    def __init__(self, app: App, most: int) -> None:
        self.app = app
        self.most = most

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and not scope["path"].endswith(UPLOAD):
            headers = dict(scope["headers"])
            length = headers.get(b"content-length", b"")
            if not length.isdigit() and b"transfer-encoding" in headers:
                return await _refuse(send, 411, "The request does not say how long it is.")
            if length.isdigit() and int(length) > self.most:
                told = f"The request has {int(length):,} bytes; this page takes {self.most:,}. Shorten the texts."
                await _drain(receive)
                return await _refuse(send, 413, told)
        await self.app(scope, receive, send)


async def _drain(receive: Any) -> None:
    dropped, more = 0, True
    while more and dropped < DRAINED:
        message = await receive()
        dropped += len(message.get("body", b""))
        more = message.get("more_body", False)


async def _refuse(send: Any, status: int, message: str) -> None:
    body = json.dumps({"detail": message, "error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
