"""The tab that opens a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from mitigate.demo.limits import Refusal
from mitigate.demo.parts import QUICK, views
from mitigate.demo.training import open_folder, read_run, run_folders
from mitigate.demo.training_view import run_view
from mitigate.demo.view import notice

EMPTY = (
    '<div class="empty"><p><b>Curves and answers of a training run appear here.</b></p><p>Choose a run folder, as '
    "<code>mitigate run RECIPE.yaml --output DIR</code> writes it.</p></div>"
)


def training_tab(runs: str, any_folder: bool) -> None:
    """Build the tab inside a Blocks context."""
    root = Path(runs)
    with gr.Row(equal_height=True, elem_classes="mt-actions"):
        folder = gr.Dropdown(
            run_folders(root),
            value=None,
            allow_custom_value=any_folder,
            label="Run folder",
            info=f"those in {root}, or any path" if any_folder else f"those in {root}",
            scale=4,
            elem_id="run-folder",
        )
        open_ = gr.Button("Open", variant="primary", scale=0, elem_id="run-open")
        again = gr.Button("Look for runs", scale=0)
    result = views(EMPTY, "trained")

    def show(name: str | None) -> str:
        try:
            return run_view(read_run(open_folder(root, name or "", any_folder)))
        except Refusal as error:
            return notice(str(error))

    settings: dict[str, Any] = {**QUICK, "queue": True}
    open_.click(show, folder, result, **settings)
    again.click(lambda: gr.update(choices=run_folders(root)), None, folder, **QUICK)
