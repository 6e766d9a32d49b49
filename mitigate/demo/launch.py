"""Serving the page: bound to loopback, silent towards everywhere else, with system fonts only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from mitigate.demo.body_limit import BodyLimit
from mitigate.demo.limits import Limits
from mitigate.demo.theme import theme

HERE = Path(__file__).parent


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
        page: Of ``page.build``.
        limits: Of files.
        host: Address to listen on.
        port: Port; None takes a free one from 7860 on.
        auth: Names and passwords; none lets everybody in who reaches it.
        share: Whether Gradio tunnels the page to a public address.
        block: Whether to return only when interrupted.

    Returns:
        The address.
    """
    options: dict[str, Any] = {
        "server_name": host,
        "server_port": port,
        "share": share,
        "auth": list(auth) or None,
        "quiet": True,
        "inbrowser": False,
        "show_error": False,
        "max_file_size": limits.file_bytes,
        "run_history": False,  # else the browser keeps every input
        "footer_links": ["api"],
        "mcp_server": False,
        "ssr_mode": False,
        "pwa": False,
        "enable_monitoring": False,
        "app_kwargs": {"middleware": [Middleware(BodyLimit, most=limits.request_bytes)]},
        "theme": theme(),
        "css_paths": [HERE / "page.css"],
        "prevent_thread_lock": True,
    }
    _, local, public = page.launch(**options)
    if block:
        print(f"open {public or local}", flush=True)
        page.block_thread()
    return str(public or local)
