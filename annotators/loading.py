"""One string names an annotator: "embedded", a folder or a hub id."""

from __future__ import annotations

from typing import Literal

from annotators.records import Annotator


def load_annotator(
    name: str = "embedded",
    *,
    device: str | None = None,
    dtype: Literal["auto", "float32", "bfloat16"] = "auto",
) -> Annotator:
    """Build the annotator that a name stands for.

    Args:
        name: "embedded", the path of a folder written by ``save_pretrained``, or a hub id.
        device: "cpu", "cuda"…; None takes cuda where there is one.
        dtype: Of the encoder; "auto" is bfloat16 where the hardware has it.

    Raises:
        OSError: There is no such annotator.
        ValueError: It does not fit this version.
    """
    if not name.strip():
        raise ValueError("annotator: expected 'embedded', a folder or a hub id, got an empty name")
    if name.startswith("generative:"):
        raise ValueError(
            f"annotator {name!r}: generative annotators are not here yet; name 'embedded', a folder or a hub id"
        )
    if name != "embedded":
        from annotators.causal import CausalAnnotator, recognises

        if recognises(name):
            return CausalAnnotator.from_pretrained(name, device=device, dtype=dtype)
    from annotators.discriminative import DiscriminativeAnnotator

    return DiscriminativeAnnotator.from_pretrained(name, device=device, dtype=dtype)
