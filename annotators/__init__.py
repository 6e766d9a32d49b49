"""Annotators judge each sentence of an answer against a reference: supported, contradictory, unverifiable, no fact.

Importing this package loads no torch; heavy imports happen when a model is built.
"""

from annotators.base import load_annotator
from annotators.records import (
    HALLUCINATED,
    LABELS,
    STATUSES,
    Annotation,
    Annotator,
    Edit,
    Fragment,
    Label,
    SentenceAnnotation,
    Span,
    Status,
    hallucination_rate,
)

__all__ = [
    "HALLUCINATED",
    "LABELS",
    "STATUSES",
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
