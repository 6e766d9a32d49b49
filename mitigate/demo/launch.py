"""Serves the page: bound to loopback, silent towards everywhere else, with system fonts only."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from mitigate.demo.limits import Limits
from mitigate.report.html import STYLE

FONTS = ("system-ui", "-apple-system", "Segoe UI", "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei")
MONO = ("ui-monospace", "Cascadia Mono", "Menlo", "Consolas")
COLOURS = {  # (light, dark) → Gradio's names; the colours of annotated text are in report/style.css
    ("#f5f7f9", "#14171b"): "body_background_fill background_fill_secondary",
    ("#1b1f24", "#e8eaed"): "body_text_color button_secondary_text_color",
    ("#ffffff", "#1d2127"): "background_fill_primary block_background_fill",
    ("#dde2e9", "#343a43"): "border_color_primary block_border_color",
    ("#3f4751", "#c6ccd4"): "block_title_text_color",
    ("#59626e", "#a3abb7"): "block_info_text_color",
    ("#ffffff", "#171a1f"): "input_background_fill",
    ("#d3d9e1", "#3c434d"): "input_border_color button_secondary_border_color",
    ("#0b6e99", "#6cc5ee"): "input_border_color_focus",
    ("#0b6e99", "#19779f"): "button_primary_background_fill",
    ("#095b7f", "#2289b4"): "button_primary_background_fill_hover",
    ("#ffffff", "#ffffff"): "button_primary_text_color",
    ("#ffffff", "#242930"): "button_secondary_background_fill",
    ("#eef1f5", "#2d333b"): "button_secondary_background_fill_hover",
}
SAME = {
    "color_accent": "#0b6e99",
    "block_title_text_weight": "550",
    "block_shadow": "none",
    "input_border_width": "1px",
    "input_shadow": "none",
    "button_border_width": "1px",
    "button_medium_padding": "0.5rem 1rem",
    "button_large_padding": "0.55rem 1.1rem",
    "button_large_text_size": "0.98rem",
    "button_large_text_weight": "550",
    "layout_gap": "0.9rem",
}


def theme() -> gr.themes.Base:
    """Calm greys, one blue, fonts of the system: nothing to fetch."""
    base = gr.themes.Base(
        primary_hue=gr.themes.colors.sky,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_lg,
        font=[*map(gr.themes.Font, FONTS), gr.themes.Font("sans-serif")],
        font_mono=[*map(gr.themes.Font, MONO), gr.themes.Font("monospace")],
    )
    colours = {}
    for (light, dark), names in COLOURS.items():
        for name in names.split():
            colours |= {name: light, f"{name}_dark": dark}
    return base.set(**SAME, **colours)


Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]
DRAINED = 64 * 2**20  # bytes read and dropped so that a client that only reads its answer afterwards gets one


class BodyLimit:
    """ASGI middleware: answers 413 to a request body of more than ``most`` bytes and 411 to one of unknown length.

    Uploads pass: they have a limit of their own.
    """

    def __init__(self, app: App, most: int) -> None:
        self.app = app
        self.most = most

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and not scope["path"].endswith("/upload"):
            headers = dict(scope["headers"])
            length = headers.get(b"content-length", b"")
            if not length.isdigit() and b"transfer-encoding" in headers:
                return await _refuse(send, 411, "The request does not say how long it is.")
            if length.isdigit() and int(length) > self.most:
                told = f"The request has {int(length):,} bytes; this page takes {self.most:,}. Shorten the texts."
                dropped, more = 0, True
                while more and dropped < DRAINED:
                    message = await receive()
                    dropped += len(message.get("body", b""))
                    more = message.get("more_body", False)
                return await _refuse(send, 413, told)
        await self.app(scope, receive, send)


async def _refuse(send: Any, status: int, message: str) -> None:
    body = json.dumps({"detail": message, "error": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


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
    """Serve a page.

    Args:
        page: Made by ``page.build``.
        limits: Of files.
        host: Address to listen on.
        port: Port; None takes a free one from 7860 on.
        auth: Names and passwords; none lets everybody in who reaches it.
        share: Whether Gradio tunnels the page to a public address.
        block: Whether to return only when interrupted.

    Returns:
        The address.
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
        app_kwargs={"middleware": [Middleware(BodyLimit, most=limits.request_bytes)]},
        theme=theme(),
        css_paths=[STYLE, Path(__file__).with_name("page.css")],
        prevent_thread_lock=True,
    )
    if block:
        print(f"open {public or local}", flush=True)
        page.block_thread()
    return str(public or local)
