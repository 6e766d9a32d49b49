"""Preference pairs from annotated samples: for each question the best answer against the worst.

Pure functions without TRL. A pair keeps its judged sentences, so that a trainer can leave out what the preference
is not about (``dpo.py``), in our form and in that of Mask-DPO's program: a side's "…_item" has "sents", slices of the
answer, and their "type", "hallucination" or "no_hallucination"; any other word leaves a sentence in on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from annotators.evaluation.anah import named_spans
from annotators.evaluation.metrics import UNSUPPORTED
from annotators.records import HALLUCINATED, LABELS, hallucination_rate
from mitigate.rewards.inputs import copied

FALSE = HALLUCINATED | {UNSUPPORTED}  # a pair of Mask-DPO does not say which of the two
KEPT = {"chosen": frozenset({"supported"}), "rejected": FALSE}
"""Labels of the sentences that count on each side in our variant of Mask-DPO."""
LEFT_OUT = {"chosen": FALSE, "rejected": frozenset({"supported"})}
"""Labels of the sentences that the paper leaves out on each side (Gu et al. 2025); all else counts."""


def best_against_worst(
    samples: Sequence[Mapping[str, Any]], *, min_gap: float = 0.0, copy_gap: float | None = None
) -> dict[str, Any] | None:
    """The pair of one question, or None where its samples do not differ.

    Answers are ranked by hallucination rate (hallucinated / judged factual sentences). Among the best that with most
    supported sentences is chosen, then the first; among the worst the first is rejected. Samples without a judged
    factual sentence take no part.

    True sentences are often copies, so that a policy learns to copy. With ``copy_gap`` a pair differs less in copying:
    of the best the one whose supported sentences are copied least is chosen, of the worst the one whose hallucinated
    ones are copied most is rejected, and their difference is bounded.

    Args:
        samples: Annotated records of one question.
        min_gap: Smallest difference of the two rates, in [0, 1]; a difference of 0 is a tie and never makes a pair.
        copy_gap: Largest difference of :func:`copied` of these sentences, chosen − rejected, in [-1, 1].

    Returns:
        {"prompt", "chosen", "rejected"} as chats, "reference", "chosen_sentences", "rejected_sentences",
        "chosen_item", "rejected_item", "chosen_rate", "rejected_rate"; "chosen_cut_off" and "rejected_cut_off": whether
        the answer did not end by itself.
    """
    rates = [hallucination_rate([sentence["label"] for sentence in sample["sentences"]]) for sample in samples]
    known = [rate for rate in rates if rate is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if high == low or high - low < min_gap - 1e-9:  # 1 − 0.8 is less than 0.2 in floats
        return None
    best, worst = ([s for s, rate in zip(samples, rates, strict=True) if rate == end] for end in (low, high))
    if copy_gap is None:
        chosen, rejected = max(best, key=lambda one: sum(s["label"] == "supported" for s in one["sentences"])), worst[0]
    else:
        least, _, chosen = min((copied(one, KEPT["chosen"]) or 0.0, i, one) for i, one in enumerate(best))
        most, _, rejected = max((copied(one, FALSE) or 0.0, -i, one) for i, one in enumerate(worst))
        if least - most > copy_gap + 1e-9:
            return None
    sides = {"chosen": chosen, "rejected": rejected}
    kept = ("start", "end", "label")
    return {
        "prompt": [{"role": "user", "content": chosen["question"]}],
        **{side: [{"role": "assistant", "content": one["answer"]}] for side, one in sides.items()},
        "reference": chosen["reference"],
        **{f"{side}_sentences": [{k: s[k] for k in kept} for s in one["sentences"]] for side, one in sides.items()},
        **{f"{side}_item": published_item(one["answer"], one["sentences"]) for side, one in sides.items()},
        **{f"{side}_cut_off": bool(one.get("cut_off")) for side, one in sides.items()},
        "chosen_rate": low,
        "rejected_rate": high,
    }


def build_pairs(
    samples: Iterable[Mapping[str, Any]], *, min_gap: float = 0.0, copy_gap: float | None = None
) -> list[dict[str, Any]]:
    """One pair for each (question, reference) whose samples differ, in order of first appearance."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for sample in samples:
        groups.setdefault((sample["question"], sample["reference"]), []).append(sample)
    pairs = (best_against_worst(group, min_gap=min_gap, copy_gap=copy_gap) for group in groups.values())
    return [pair for pair in pairs if pair is not None]


def published_item(answer: str, sentences: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Judged sentences for Mask-DPO's program: it counts tokens from the start, so the slices leave no gap."""
    edges = [0, *(sentence["start"] for sentence in sentences[1:]), len(answer)]
    types = {None: "unchecked", "supported": "no_hallucination"} | dict.fromkeys(FALSE, "hallucination")
    return {
        "sents": [answer[a:b] for a, b in pairwise(edges)],
        "type": [types.get(sentence["label"], sentence["label"]) for sentence in sentences],
    }


def sentences_of(pair: Mapping[str, Any], side: str, answer: str) -> list[dict[str, Any]]:
    """The judged sentences of a side, "chosen" or "rejected", of a pair in our form or in Mask-DPO's.

    Raises ValueError: it has neither, or not a type for each sentence, a sentence outside the answer, a label that is
    none.
    """
    if (known := pair.get(f"{side}_sentences")) is not None:
        if not isinstance(known, list) or not all(is_judged(one, len(answer), (*LABELS, UNSUPPORTED)) for one in known):
            raise ValueError(
                f"{side}_sentences: expected a list of {{start, end, label}} with 0 <= start < end <= {len(answer)} "
                f"and a label of {', '.join((*LABELS, UNSUPPORTED))} or null, got {str(known)[:200]}"
            )
        return list(known)
    name, item = f"{side}_item", pair.get(f"{side}_item")
    if item is None:
        raise ValueError(
            f"expected a column {side}_sentences or {name}, got {sorted(pair)}: make pairs with "
            "`mitigate build-preferences` and set remove_unused_columns=False"
        )
    lists: list[Any] = [item.get(key) for key in ("sents", "type")] if isinstance(item, Mapping) else []
    if not lists or not all(isinstance(x, list) and x and all(isinstance(text, str) for text in x) for x in lists):
        raise ValueError(f"{name}: expected `sents` and `type`, lists of texts, got {str(item)[:80]}")
    sents, types = lists
    if len(sents) != len(types):
        raise ValueError(f"{name}: expected a type for each of {len(sents)} sentences, got {len(types)}")
    labels = {"hallucination": UNSUPPORTED, "no_hallucination": "supported"}
    rows = [(text, labels.get(kind)) for text, kind in zip(sents, types, strict=True) if text.strip()]
    spans = named_spans(answer, [text for text, _ in rows])
    if not spans:
        raise ValueError(f"{name}: expected sentences that stand in the answer, one after the other: {answer[:80]!r}")
    return [{"start": a, "end": b, "label": label} for (a, b), (_, label) in zip(spans, rows, strict=True)]


def is_judged(one: object, length: int, labels: Sequence[str]) -> bool:
    """Whether a sentence has start and end inside an answer of that length, and one of the labels, or null."""
    if not isinstance(one, Mapping):
        return False
    start, end, label = one.get("start"), one.get("end"), one.get("label")
    within = type(start) is type(end) is int and 0 <= start < end <= length
    return within and "label" in one and label in (*labels, None)
