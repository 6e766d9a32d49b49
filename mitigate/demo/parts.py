"""What the tabs share: the settings of their events, the box that names the annotator, the element that shows views."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import gradio as gr

from mitigate.demo.limits import Limits
from mitigate.demo.shelf import Shelf

HERE = Path(__file__).parent
QUICK: dict[str, Any] = {"api_visibility": "private", "queue": False, "show_progress": "hidden"}
"""For events that ask no model."""


def judging(limits: Limits) -> dict[str, Any]:
    """For events that ask a model: queued, and as many at once as the limits say."""
    return {
        "api_visibility": "private",
        "show_progress": "hidden",
        "concurrency_limit": limits.at_once,
        "concurrency_id": "model",
    }


@lru_cache(maxsize=1)
def _examples() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads((HERE / "examples.json").read_text(encoding="utf-8"))
    return found


def examples(tab: str) -> list[dict[str, Any]]:
    """The examples of a tab."""
    return _examples()[tab]


def annotator_box(shelf: Shelf) -> gr.Dropdown:
    """The choice of annotator."""
    return gr.Dropdown(
        list(shelf.names),
        value=shelf.names[0],
        allow_custom_value=shelf.open_choice,
        label="Annotator",
        info="embedded, a folder, a hub id, or generative:KIND:MODEL[@URL]" if shelf.open_choice else None,
        scale=2,
        min_width=260,
        elem_classes="mt-annotator",
    )


def views(value: str, name: str) -> gr.HTML:
    """An element that shows views, with the script that lets sentences be chosen.

    The template stays "${value}": Gradio evaluates a template, and inserts a value as it is.
    """
    return gr.HTML(
        value,
        js_on_load=(HERE / "page.js").read_text(encoding="utf-8"),
        apply_default_css=False,
        elem_id=name,
        elem_classes="mt",
    )
