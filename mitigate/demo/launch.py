"""Serves the page: bound to loopback, silent towards everywhere else, with system fonts only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gradio as gr
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from annotators.verifier.annotator import SHIPPED
from mitigate.demo.limits import Limits
from mitigate.report.html import STYLE

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei")
MONO = ("ui-monospace", "Cascadia Mono", "Menlo", "Consolas")


def theme() -> gr.themes.Base:
    """Fonts of the system, so that there is nothing to fetch; other colours and sizes are in ``page.css``."""
    base = gr.themes.Base(
        primary_hue=gr.themes.colors.sky,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_lg,
        font=[*map(gr.themes.Font, FONTS), gr.themes.Font("sans-serif")],
        font_mono=[*map(gr.themes.Font, MONO), gr.themes.Font("monospace")],
    )
    return base.set(  # used before the style sheet is there
        body_background_fill="#f5f7f9",
        body_background_fill_dark="#14171b",
        body_text_color="#1b1f24",
        body_text_color_dark="#e8eaed",
    )


DRAINED = 64 * 2**20  # bytes read and dropped so that a client that only reads its answer afterwards gets one


class BodyLimit:
    """ASGI middleware: answers 413 to a request body of more than ``most`` bytes and 411 to one of unknown length.

    Uploads pass: they have a limit of their own.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self.app = app
        self.most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http" and scope["method"] == "POST" and not scope["path"].endswith("/upload"):
            headers = Headers(scope=scope)
            length = headers.get("content-length", "")
            if not length.isdigit() and "transfer-encoding" in headers:
                app = _refusal(411, "The request does not say how long it is.")
            elif length.isdigit() and int(length) > self.most:
                app = _refusal(413, f"The request has {int(length):,} bytes; this page takes {self.most:,}.")
                dropped, more = 0, True
                while more and dropped < DRAINED:
                    message = await receive()
                    dropped += len(message.get("body", b""))
                    more = message.get("more_body", False)
        await app(scope, receive, send)


def _refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"detail": message, "error": message}, status, {"connection": "close"})


def _card(request: Request) -> FileResponse:
    """How a shipped annotator was made and measured."""
    return FileResponse(SHIPPED[Path(request.url.path).name] / "README.md", media_type="text/plain")


def launch(
    page: gr.Blocks,
    limits: Limits,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    auth: Sequence[tuple[str, str]] = (),
    share: bool = False,
    block: bool = True,
) -> str:
    """Serve a page made by ``page.build``; returns its address, with ``block`` only when interrupted.

    Without a port it takes a free one from 7860 on. ``auth`` are names and passwords; none lets everybody in who
    reaches it. With ``share`` Gradio tunnels the page to a public address. OSError where it can't listen there.
    """
    _, local, public = page.launch(
        server_name=host,
        server_port=port,
        share=share,
        auth=list(auth) or None,
        quiet=True,
        max_file_size=limits.file_bytes,
        run_history=False,  # else the browser keeps every input
        footer_links=["api"],
        mcp_server=False,
        ssr_mode=False,
        pwa=False,
        enable_monitoring=False,
        app_kwargs={
            "middleware": [Middleware(BodyLimit, most=limits.request_bytes)],
            "routes": [Route(f"/measured/{name}", _card) for name in SHIPPED],
        },
        theme=theme(),
        css_paths=[STYLE, Path(__file__).with_name("page.css")],
        prevent_thread_lock=True,
    )
    if block:
        print(f"open {public or local}", flush=True)
        page.block_thread()
    return str(public or local)
