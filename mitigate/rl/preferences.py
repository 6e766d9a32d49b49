"""Preference pairs from annotated samples: for each question the best answer against the worst.

Pure functions without TRL. A pair keeps its judged sentences, so that a trainer can leave out what the preference
is not about (``dpo.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from annotators.records import HALLUCINATED, hallucination_rate

KEPT = {"chosen": frozenset({"supported"}), "rejected": HALLUCINATED}
"""Labels of the sentences that count on each side in our variant of Mask-DPO."""
LEFT_OUT = {"chosen": HALLUCINATED, "rejected": frozenset({"supported"})}
"""Labels of the sentences that the paper leaves out on each side (Gu et al. 2025); all else counts."""


def best_against_worst(samples: Sequence[Mapping[str, Any]], *, min_gap: float = 0.0) -> dict[str, Any] | None:
    """The pair of one question, or None where its samples do not differ.

    Answers are ranked by hallucination rate (hallucinated / judged factual sentences). Among the best that with most
    supported sentences is chosen, then the first; among the worst the first is rejected. Samples without a judged
    factual sentence take no part, nor do pairs of which one side would be empty under the mask.

    Args:
        samples: Annotated records of one question.
        min_gap: Smallest difference of the two rates, in [0, 1]; a difference of 0 is a tie and never makes a pair.

    Returns:
        {"prompt", "chosen", "rejected"} as chats, "reference", "chosen_sentences", "rejected_sentences",
        "chosen_rate", "rejected_rate".
    """
    rated = []
    for sample in samples:
        labels = [sentence["label"] for sentence in sample["sentences"]]
        rate = hallucination_rate(labels)
        if rate is not None:
            rated.append((rate, -sum(label in KEPT["chosen"] for label in labels), sample))
    if len(rated) < 2:
        return None
    best = min(rated, key=lambda row: row[:2])
    worst = max(rated, key=lambda row: row[0])
    if worst[0] - best[0] <= 0 or worst[0] - best[0] < min_gap or best[1] == 0:
        return None
    chosen, rejected = best[2], worst[2]
    return {
        "prompt": [{"role": "user", "content": chosen["question"]}],
        "chosen": [{"role": "assistant", "content": chosen["answer"]}],
        "rejected": [{"role": "assistant", "content": rejected["answer"]}],
        "reference": chosen["reference"],
        **{
            f"{side}_sentences": [{name: s[name] for name in ("start", "end", "label")} for s in sample["sentences"]]
            for side, sample in (("chosen", chosen), ("rejected", rejected))
        },
        "chosen_rate": best[0],
        "rejected_rate": worst[0],
    }


def build_pairs(samples: Iterable[Mapping[str, Any]], *, min_gap: float = 0.0) -> list[dict[str, Any]]:
    """One pair for each (question, reference) whose samples differ, in order of first appearance."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for sample in samples:
        groups.setdefault((sample["question"], sample["reference"]), []).append(sample)
    pairs = (best_against_worst(group, min_gap=min_gap) for group in groups.values())
    return [pair for pair in pairs if pair is not None]
