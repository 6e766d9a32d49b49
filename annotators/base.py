"""One string names an annotator: "embedded", a folder, a hub id, or a language model behind an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from annotators.records import Annotator
from engines.checkpoint import not_partitioned


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
        dtype: Of the encoder; "auto" is bfloat16 where the hardware has it.
        calibration: File of `mitigate calibrate`, made for this annotator; not of a generative one.
        **options: Of a generative annotator: ``cache`` and those of ``generative_options.Options``.

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
    if name != "embedded":
        from annotators.verifier.causal import CausalAnnotator, recognises

        if recognises(name):
            from annotators.operating import Calibration

            causal = CausalAnnotator.from_pretrained(name, device=device, dtype=dtype)
            return causal if calibration is None else causal.calibrated(Calibration.load(calibration))
    from annotators.verifier.annotator import DiscriminativeAnnotator

    return DiscriminativeAnnotator.from_pretrained(name, device=device, dtype=dtype, calibration=calibration)
