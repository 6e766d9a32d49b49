"""Annotators judge each sentence of an answer against a reference: supported, contradictory, unverifiable, no fact.

Importing this package loads no torch; heavy imports happen when a model is built.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from annotators.base import Annotator, CascadeAnnotator, EnsembleAnnotator, engines_in, parts_of
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
    "HALLUCINATED", "LABELS", "Annotation", "Annotator", "Edit", "Fragment", "Label", "SentenceAnnotation", "Span",
    "Status", "hallucination_rate", "load_annotator",
]  # fmt: skip


@not_partitioned()
def load_annotator(
    name: str = "embedded", *, device: str | None = None, dtype: Literal["auto", "float32", "bfloat16"] = "auto",
    calibration: str | Path | None = None, expected_rate: float | None = None, **options: Any,
) -> Annotator:  # fmt: skip
    """Build the annotator of a name: "embedded", "embedded-fast", "embedded-zh", a folder, a hub id, a published
    detector (``nli:ID``, ``minicheck:ID``, ``hhem:ID``, ``lettucedetect:ID``), ``generative:KIND:MODEL[@BASE_URL]``,
    ``cascade:FIRST+SECOND`` of two, or ``ensemble:HOW:FIRST+SECOND+…`` joined by min, mean or vote.

    ``device`` None takes cuda where there is one; ``dtype`` "auto" is bfloat16 where the hardware has it;
    ``calibration`` is a file of `mitigate calibrate`, made for this annotator, in place of the operating point that it
    comes with; ``expected_rate`` in (0, 1) is the share of hallucinated sentences for which probabilities are to hold;
    ``options`` are those of ``annotators.generative.protocols.Options``, ``cache`` and ``trust_remote_code`` for a
    generative annotator, ``labels`` for ``nli:ID``; of several annotators the first one gets the calibration and the
    rate, and the generative ones the options, which can't be ``units`` or a ``preset``. OSError where there is no such
    annotator or calibration; ValueError where one does not fit or an option is wrong; ImportError where the library
    behind an engine is missing.
    """
    if not name.strip():
        raise ValueError(
            "annotator: expected 'embedded', 'embedded-fast', 'embedded-zh', a folder or a hub id, got an empty name"
        )
    if name.startswith(("cascade:", "ensemble:")):
        parts = parts_of(name)
        if options.get("units") or options.get("preset"):
            raise ValueError(
                f"annotator {name!r}: expected no preset and no units, which cut answers as ANAH did: there all "
                f"judge the same sentences; take {parts[-1]} alone, or its protocol and templates without the preset"
            )
        operating: Any = {"calibration": calibration, "expected_rate": expected_rate}
        asked = [one for one in parts if engines_in(one)] or parts[-1:]
        labelled = [one for one in parts if one.startswith("nli:")] or parts[-1:]
        loaded = [
            load_annotator(one, device=device, dtype=dtype, **(operating if not n else {}),
                           **{k: v for k, v in options.items() if one in (labelled if k == "labels" else asked)})
            for n, one in enumerate(parts)
        ]  # fmt: skip
        if name.startswith("cascade:"):
            return CascadeAnnotator(*loaded)
        return EnsembleAnnotator(loaded, name.split(":")[1])  # type: ignore[arg-type]  # parts_of has checked it
    if name.startswith("generative:"):
        if calibration is not None or expected_rate is not None:
            raise ValueError(
                f"annotator {name!r}: expected no calibration and no expected rate, since it has no scores to calibrate"
            )
        from annotators.generative.annotator import GenerativeAnnotator

        return GenerativeAnnotator.from_pretrained(name, device=device, dtype=dtype, **options)
    from annotators.operating import Calibration
    from annotators.published import KINDS, load_published
    from annotators.verifier.annotator import SHIPPED, DiscriminativeAnnotator
    from annotators.verifier.causal import CausalAnnotator, recognises

    published = name.startswith(tuple(f"{kind}:" for kind in KINDS))
    if wrong := sorted({*options} - ({"labels"} if published else set())):
        raise ValueError(
            f"annotator {name!r}: {', '.join(wrong)}: expected device, dtype, calibration or expected_rate; others are "
            "for annotators named generative:KIND:MODEL[@BASE_URL] (labels: for nli:ID)"
        )
    annotator: Annotator
    if published:
        annotator = load_published(name, device=device, dtype=dtype, **options)
    elif name not in SHIPPED and recognises(name):
        annotator = CausalAnnotator.from_pretrained(name, device=device, dtype=dtype)
    else:
        annotator = DiscriminativeAnnotator.from_pretrained(name, device=device, dtype=dtype)
    if calibration is not None:
        annotator.calibrated(Calibration.load(calibration))
    if expected_rate is not None:
        if (found := annotator.calibration) is None:
            raise ValueError(
                f"expected_rate: expected an annotator with an operating point, {name!r} comes without one; fit one "
                "with `mitigate calibrate`, or leave the rate out"
            )
        annotator.calibrated(replace(found, point=found.point.at(expected_rate)))
    return annotator
