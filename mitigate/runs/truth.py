"""What is true of the answers that training samples in the pocket world, logged beside the reward (simulated).

The oracle knows every sentence's truth; a reward that an annotator gives may part from it. With weight 0 this
function changes nothing about training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mitigate.pocket.measure import measure
from mitigate.pocket.oracle import Oracle
from mitigate.reward_texts import completion_text


class Truth:
    """A reward function that measures and rewards nothing.

    Args:
        oracle: Of the world that is asked about.
    """

    __name__ = "truth"

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    def __call__(
        self,
        completions: Sequence[Any],
        reference: Sequence[str],
        log_metric: Callable[[str, float], None] | None = None,
        **_: Any,
    ) -> list[float]:
        """Log figures of all completions together; return zeros."""
        texts = map(completion_text, completions)
        found = self.oracle.annotate_batch(
            {"reference": r, "answer": a} for r, a in zip(reference, texts, strict=True)
        )
        for name, value in measure(found).items():
            if log_metric is not None and value is not None:
                log_metric(f"truth/{name}", value)
        return [0.0] * len(completions)
