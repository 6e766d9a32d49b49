"""Annotators judge each sentence of an answer against a reference: supported, contradictory, unverifiable, no fact.

Importing this package loads no torch; heavy imports happen when a model is built.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from annotators.base import Annotator
from annotators.records import (
    HALLUCINATED,
    LABELS,
    Annotation,
    Edit,
    Fragment,
    Label,
    SentenceAnnotation,
    Span,
    Status,
    hallucination_rate,
)
from engines.checkpoint import not_partitioned

__all__ = [
    "HALLUCINATED",
    "LABELS",
    "Annotation",
    "Annotator",
    "Edit",
    "Fragment",
    "Label",
    "SentenceAnnotation",
    "Span",
    "Status",
    "hallucination_rate",
    "load_annotator",
]


@not_partitioned()
def load_annotator(
    name: str = "embedded",
    *,
    device: str | None = None,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    calibration: str | Path | None = None,
    **options: Any,
) -> Annotator:
    """Build the annotator that a name stands for.

    Args:
        name: "embedded", the path of a folder written by ``save_pretrained``, a hub id, or
            ``generative:KIND:MODEL[@BASE_URL]``, a language model behind an engine.
        device: "cpu", "cuda"…; None takes cuda where there is one.
        dtype: Data type of the weights; "auto" is bfloat16 where the hardware has it.
        calibration: File of `mitigate calibrate`, made for this annotator; a generative one has none.
        **options: For a generative annotator: ``cache`` and those of ``annotators.generative.protocols.Options``.

    Raises:
        OSError: There is no such annotator, or no such calibration.
        ValueError: It does not fit this version, an option is wrong, or the calibration is another annotator's.
        ImportError: The library behind an engine is not installed.
    """
    if not name.strip():
        raise ValueError("annotator: expected 'embedded', a folder or a hub id, got an empty name")
    if name.startswith("generative:"):
        if calibration is not None:
            raise ValueError(f"annotator {name!r}: expected no calibration, since it has no scores to calibrate")
        from annotators.generative.annotator import GenerativeAnnotator

        return GenerativeAnnotator.from_pretrained(name, device=device, dtype=dtype, **options)
    if options:
        raise ValueError(
            f"annotator {name!r}: {', '.join(options)}: for annotators named generative:KIND:MODEL[@BASE_URL] only"
        )
    from annotators.operating import Calibration
    from annotators.verifier.annotator import DiscriminativeAnnotator
    from annotators.verifier.causal import CausalAnnotator, recognises

    annotator: Annotator
    if name != "embedded" and recognises(name):
        annotator = CausalAnnotator.from_pretrained(name, device=device, dtype=dtype)
    else:
        annotator = DiscriminativeAnnotator.from_pretrained(name, device=device, dtype=dtype)
    return annotator if calibration is None else annotator.calibrated(Calibration.load(calibration))
