"""How a generative annotator works: protocol, prompts, window, retries; checked before any model loads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

from annotators.generative_windows import Mode
from annotators.prompts import PROTOCOLS, Chooser, Protocol, Template, load_templates


@dataclass(frozen=True)
class Options:
    """How a generative annotator works.

    Args:
        protocol: "tagged" (one turn; ANAH) or "three-turn" (ANAH-v2; no corrections).
        prompt: Wording, NAME or NAME/ORDER, or "random"; see ``annotators/prompts``.
        templates: File of templates to use instead of our own.
        window: What of the reference is shown: "sentence", "answer" or "whole"; see ``generative_windows.py``.
        window_tokens: Budget of a sentence's window, above 0; None for 400, and 540 where the reference is Chinese.
        max_retries: Further attempts after a reply that can't be read, ≥ 0.
        max_tokens: Limit of a reply; a model that thinks before it answers needs more.
        seed: Of random prompts and of further attempts, in 0 … 2³¹ − 1.
        logprobs: Whether to ask for log-probabilities, from which ``scores`` come.

    Raises:
        ValueError: A value is out of its range, the file of templates is wrong, or there is no such wording.
    """

    protocol: Protocol = "tagged"
    prompt: str = "plain"
    templates: str | Path | None = None
    window: Mode = "sentence"
    window_tokens: int | None = None
    max_retries: int = 2
    max_tokens: int = 768
    seed: int = 0
    logprobs: bool = True

    def __post_init__(self) -> None:
        for name, known in (("protocol", PROTOCOLS), ("window", get_args(Mode))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {getattr(self, name)!r}")
        for name, least in (("window_tokens", 1), ("max_retries", 0), ("max_tokens", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is None and name == "window_tokens":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
                raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
        self.chooser  # noqa: B018  (read and checked now, before any model loads)

    @cached_property
    def chooser(self) -> Chooser:
        """The prompts."""
        templates: list[Template] | None = None if self.templates is None else load_templates(self.templates)
        return Chooser(self.protocol, self.prompt, templates, self.seed)
