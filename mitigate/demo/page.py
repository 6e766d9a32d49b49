"""The page as one Gradio Blocks: four tabs and two named endpoints, `/annotate` and `/fewl`."""

from __future__ import annotations

import os
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before the import: nothing is sent anywhere

import gradio as gr

from mitigate.demo.files import private_folder
from mitigate.demo.limits import Refusal
from mitigate.demo.parts import judging
from mitigate.demo.service import Service
from mitigate.demo.tab_annotate import annotate_tab
from mitigate.demo.tab_batch import batch_tab
from mitigate.demo.tab_compare import compare_tab
from mitigate.demo.tab_training import training_tab

TITLE = "Hallucination toolkit"
HEAD = (
    f'<div class="mt-head"><h1>{TITLE}</h1><p>Which sentences of an answer does its reference support? Judged on this '
    "machine.</p></div>"
)


def build(service: Service, *, runs: str = "runs", any_folder: bool = False) -> gr.Blocks:
    """The page.

    Args:
        service: What it calls.
        runs: Folder whose run folders the Training tab offers.
        any_folder: Whether other folders may be named there; for a page that only its owner reaches.
    """
    private_folder()
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 7200)) as page:
        gr.HTML(HEAD, apply_default_css=False, elem_classes="mt")
        with gr.Tab("Annotate", id="annotate"):
            annotate_tab(service)
        with gr.Tab("Compare", id="compare"):
            compare_tab(service)
        with gr.Tab("Batch", id="batch"):
            batch_tab(service)
        with gr.Tab("Training", id="training"):
            training_tab(runs, any_folder)
        _endpoints(service)
    page.queue(max_size=service.limits.queue, default_concurrency_limit=service.limits.at_once)
    return page


def _endpoints(service: Service) -> None:
    """The named endpoints; everything else that the page calls is private to it."""

    def annotate(question: str, reference: str, answer: str, annotator: str = "") -> dict[str, Any]:
        """Judge each sentence of an answer against its reference; returns the annotated record."""
        try:
            return service.annotate(question, reference, answer, annotator)
        except Refusal as error:
            raise gr.Error(str(error), print_exception=False) from error

    def fewl(
        record: dict[str, Any],
        neighbours: list[dict[str, Any]] | None = None,
        aggregation: str = "eq6",
        similarity: str = "cosine",
    ) -> dict[str, Any]:
        """Score the answers of one FEWL record by its reference answers; returns the scored record."""
        try:
            return service.fewl(
                record, neighbours=neighbours or [], aggregation=aggregation, similarity=similarity
            )
        except Refusal as error:
            raise gr.Error(str(error), print_exception=False) from error

    settings = {k: v for k, v in judging(service.limits).items() if k.startswith("concurrency")}
    gr.api(annotate, api_name="annotate", **settings)
    gr.api(fewl, api_name="fewl", **settings)
