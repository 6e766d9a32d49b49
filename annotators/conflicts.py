"""Signs that a sentence says something else than its evidence, where both speak of the same: the conflict features.

An absent number may just be unmentioned; an absent number whose place in the evidence holds another one is a
contradiction. The same for names, for words with an opposite, and for two names that changed places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from annotators.lexical import Unit, Words, units, words_of
from annotators.wordlists import NEGATIONS, OPPOSITES

CONFLICT_FEATURES = (
    "swap_number", "swap_number_near", "swap_name", "swap_name_near", "opposite", "disorder", "name_disorder",
    "negation_parity", "unit_differs",
)  # fmt: skip


def conflict_features(sentence: str, evidence: Sequence[str]) -> np.ndarray:
    """Signs of a conflict between a sentence and the passages that speak of the same.

    Args:
        sentence: The judged sentence.
        evidence: The one to three passages that meet it best, the best one first; may be empty.

    Returns:
        (len(CONFLICT_FEATURES),) float64: numbers and names whose place in the evidence another one holds (and
        those with the same neighbouring word), opposites, share of word pairs in another order than in the best
        passage (all content words; names and numbers), 1 where one side is negated and the other is not, and
        numbers before another unit.
    """
    if not evidence:
        return np.zeros(len(CONFLICT_FEATURES))
    found = counterparts(sentence, evidence)
    number = [near for unit, _, near in found if unit.kind != "name"]
    name = [near for unit, _, near in found if unit.kind == "name"]
    own, best = words_of(sentence), words_of(evidence[0])
    lower, there = set(own.lower), set(best.lower)
    opposite = sum(
        word in OPPOSITES and word not in there and OPPOSITES[word] in there and OPPOSITES[word] not in lower
        for word in lower
    )
    entity = [n or value is not None for n, value in zip(own.names, own.numbers, strict=True)]
    values = (
        len(number), sum(number), len(name), sum(name), opposite,
        disorder(own, best, own.content), disorder(own, best, entity),
        bool(lower & NEGATIONS) != bool(there & NEGATIONS), unit_differs(own, best),
    )  # fmt: skip
    return np.array(values, dtype=np.float64)


def _counterpart(unit: Unit, others: Sequence[tuple[Unit, str]]) -> tuple[str, bool] | None:
    """The text of the same kind that alone could stand in the unit's place; None where there is none or several.

    Of several, the one with the same neighbouring word before or after decides, if only one has it.

    Returns:
        (text, whether a neighbouring word is the same).
    """
    texts = {text for other, text in others if other.kind == unit.kind}
    near = {
        text
        for other, text in others
        if other.kind == unit.kind
        and ((other.after and other.after == unit.after) or (other.before and other.before == unit.before))
    }
    if len(near) == 1:
        return near.pop(), True
    return (texts.pop(), False) if len(texts) == 1 and not near else None


def counterparts(sentence: str, fragments: Sequence[str]) -> list[tuple[Unit, str, bool]]:
    """Each number, year, month or name that the fragments lack, with its unambiguous counterpart there.

    Returns:
        (unit of the sentence, text of the counterpart, whether a neighbouring word is the same).
    """
    own = units(sentence)
    known = {stem for fragment in fragments for stem in words_of(fragment).stems}
    own_stems = {stem for unit in own for stem in unit.key}
    others = [
        (unit, fragment[unit.start : unit.end])
        for fragment in fragments
        for unit in units(fragment)
        if not set(unit.key) <= own_stems
    ]
    found = [
        (unit, *match)
        for unit in own
        if not set(unit.key) <= known and (match := _counterpart(unit, others)) is not None
    ]
    kept = []
    for unit, target, near in found:
        rivals = [rival for other, text, rival in found if other is not unit and text == target]
        if not rivals or (near and not any(rivals)):  # one text, one place
            kept.append((unit, target, near))
    return kept


def unit_differs(own: Words, other: Words) -> int:
    """How many numbers stand on both sides, each time before another content word that the other side lacks."""
    count = 0
    for i, value in enumerate(own.numbers[:-1]):
        if value is None or not own.content[i + 1] or own.stems[i + 1] in other.stems:
            continue
        behind = {other.stems[j + 1] for j in range(len(other) - 1) if other.stems[j] == own.stems[i]}
        count += bool(behind) and not behind & set(own.stems)
    return count


def disorder(own: Words, other: Words, use: Sequence[bool]) -> float:
    """Share in [0, 1] of pairs of common words that stand in the other order: (1 − Kendall's τ) / 2.

    Only words that occur once on both sides count; 0 with fewer than two of them.
    """
    first = {s: i for i, s in enumerate(own.stems) if use[i] and own.stems.count(s) == 1}
    places = [other.stems.index(s) for s in first if other.stems.count(s) == 1]
    n = len(places)
    if n < 2:
        return 0.0
    array = np.array(places)
    later = np.triu(array[:, None] > array[None, :], 1)
    return float(later.sum() / (n * (n - 1) / 2))
