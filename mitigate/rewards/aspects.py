"""What sentence judgements are worth: the aspects of a reward as pure functions of given labels.

Aspects follow Wu et al. 2023, "Fine-Grained Human Feedback Gives Better Rewards for Language Model Training" (§4):
relevance with repetition, factuality, completeness; length is ours. Their figures (±0.5, ±0.3) became weights.

Guard against reward hacking: one set, the *credited* sentences (supported, relevant, new, in the answer's own words),
is all that ever raises a total, each by the specifics of the reference that it states: its *credit*. Every other
sentence leaves each aspect as it was or lowers it. Two consequences hold for any labels
(tests/mitigate/rewards/test_aspects.py):

- a further supported sentence that is credited, inside the length budget, never lowers the total;
- filler, repeats, sentences copied from the reference and sentences without a specific never raise it.

Needs no model. Dimension suffix: _P points of a reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from annotators.records import HALLUCINATED, LABELS, Label
from mitigate.recipes.config import nearest

DEFAULT_WEIGHTS = {"factuality": 1.0, "relevance": 0.3, "completeness": 0.3, "length": 0.3}
ASPECTS = tuple(DEFAULT_WEIGHTS)
DEFAULT_LABEL_REWARDS: dict[Label, float | None] = {
    "supported": 1.0, "contradictory": -1.0, "unverifiable": -1.0, "no_fact": None,
}  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """One sentence of an answer with what was found out about it."""

    label: Label | None  # None where it was not judged
    words: int
    relevant: bool = True  # it bears on the question; also where relevance is not looked at
    repeat: bool = False  # it says again what an earlier sentence said
    copied: bool = False  # its words stand in the reference in this order
    value: float = 1.0  # in [0, 1]: how much of a full sentence's specifics it states, new in the answer
    support: float | None = None  # P(supported) of a sentence without a label, of which the annotator is unsure

    @property
    def credited(self) -> bool:
        """Whether it may raise the reward: supported, relevant, new, specific and in the answer's own words."""
        own = self.relevant and not self.repeat and not self.copied
        return (self.label == "supported" or bool(self.support)) and own and self.value > 0

    @property
    def credit(self) -> float:
        """Its value where it is credited, times P(supported) where that is unsure; else 0."""
        return self.value * (1.0 if self.support is None else self.support) if self.credited else 0.0


def check_label_rewards(rewards: Mapping[str, float | None]) -> dict[Label, float | None]:
    """The rewards of all four labels; those left out are the defaults.

    Raises ValueError: an unknown label, one worth more than "supported", or no reward for hallucinations.
    """
    if unknown := sorted(set(rewards) - set(LABELS)):
        raise ValueError(f"label_rewards: unknown label {unknown[0]!r}{nearest(unknown[0], LABELS)}")
    full: dict[Label, float | None] = {label: rewards.get(label, DEFAULT_LABEL_REWARDS[label]) for label in LABELS}
    top = full["supported"]
    if top is None or any(value is not None and value > top for value in full.values()):
        raise ValueError(
            f"label_rewards: expected 'supported' to be worth the most, got {full}; otherwise a model learns to "
            "write something else"
        )
    if all(full[label] is None for label in LABELS if label in HALLUCINATED):
        raise ValueError("label_rewards: expected a reward for 'contradictory' or 'unverifiable', both are None")
    return full


def worth(rewards: Mapping[Label, float | None]) -> tuple[float, float]:
    """The lowest and the highest label reward; the highest is that of "supported"."""
    values = [value for value in rewards.values() if value is not None]
    return min(values), max(values)


def feared(rewards: Mapping[Label, float | None]) -> float:
    """The lower reward of the two kinds of hallucination, of which one at least has a number."""
    return min(value for label, value in rewards.items() if label in HALLUCINATED and value is not None)


def sentence_reward(sentence: Judged, rewards: Mapping[Label, float | None]) -> float | None:
    """Factuality of one sentence: the reward of its label; None where it is not judged or earns nothing.

    A supported sentence has its reward times its value, so that a vague one earns less. One that is not credited gets
    None, as a sentence without a fact does by default: no reason to write it, and none against it beyond the other
    aspects. An unsure one has what is to be expected: P(supported) of the one reward, and the rest of the worse kind
    of hallucination's.
    """
    if sentence.support is not None:
        return sentence.credit * worth(rewards)[1] + (1 - sentence.support) * feared(rewards)
    if sentence.label is None or (sentence.label == "supported" and not sentence.credited):
        return None
    reward = rewards[sentence.label]
    return reward * sentence.value if sentence.credited and reward is not None and reward > 0 else reward


def factuality(sentences: Sequence[Judged], rewards: Mapping[Label, float | None]) -> float | None:
    """Mean reward of the sentences that state facts, supported ones weighted by their credit, in [floor, supported].

        F = (Σ_c v r(supported) + Σ_h r(label) + m floor) / (Σ_c v + |h| + m),  m = max(0, 1 − Σ_c v − |h|)

    of credited sentences c with their values v and new hallucinated ones h, where r is a number. What an answer lacks
    of one full sentence (m) counts as the floor, the lowest label reward: between saying nothing and one specific true
    sentence it rises evenly, so that vagueness pays as little as it says. The other sentences that have a reward
    (repeats of hallucinations, sentences without a fact) are then counted in as long as they lower F, lowest first:
    they can never lift a bad answer. An unsure sentence is in part a credited one and in part a hallucination of the
    worse kind, by its P(supported).

    Returns:
        F, higher is better. None where no sentence could be judged. The floor where nothing was said or nothing that
        was judged counts.

    Source: ours; the mean over sentences is the non-hallucination rate of ANAH (Ji et al. 2024) stretched to [-1, 1].
    """
    if sentences and all(s.label is None and s.support is None for s in sentences):
        return None
    floor, top = worth(rewards)
    said = sum(s.credit for s in sentences)
    total = said * top
    rest: list[float] = []
    for s in sentences:
        if s.support is not None and not s.repeat:  # the part of it that is to be feared
            total, said = total + (1 - s.support) * feared(rewards), said + 1 - s.support
        value = None if s.label in (None, "supported") else sentence_reward(s, rewards)
        if value is None:
            continue
        if s.label in HALLUCINATED and not s.repeat:
            total, said = total + value, said + 1
        else:
            rest.append(value)
    if said < 1:
        total, said = total + (1 - said) * floor, 1.0
    for value in sorted(rest):
        if value * said >= total:
            break
        total, said = total + value, said + 1
    return total / said


def relevance_reward(sentence: Judged) -> float | None:
    """+1 for a credited sentence, −1 for one off the question or a repeat, else None (Wu et al. §4.1, R_φ1)."""
    if not sentence.relevant or sentence.repeat:
        return -1.0
    return 1.0 if sentence.credited else None


def relevance(sentences: Sequence[Judged]) -> float:
    """R = (c − o) / max(1, c + o) in [−1, 1], of the credit c and o sentences off the question or repeated."""
    said, off = sum(s.credit for s in sentences), sum(relevance_reward(s) == -1.0 for s in sentences)
    return (said - off) / max(1.0, said + off)


def completeness(stated: Mapping[str, float], points_P: Sequence[Mapping[str, float]]) -> float:
    """Share of the points' specifics that credited sentences state, in [0, 1]; higher is better.

        C = (1/_P) Σ_p Σ_{u ∈ p} w_u o_u / Σ_{u ∈ p} w_u

    ``stated`` says of the specifics of credited sentences how much these are in words of their own, o in [0, 1];
    ``points_P`` has the weights w > 0 of each point's specifics; points without any are left out.

    Source: ROUGE's recall (Lin 2004) of weighted words, of sentences that a judge holds supported only.
    """
    shares = [sum(w * stated.get(u, 0.0) for u, w in p.items()) / sum(p.values()) for p in points_P if p]
    return sum(shares) / len(shares) if shares else 0.0


def length(sentences: Sequence[Judged], target_sentences: int, max_words: int) -> float:
    """How near an answer comes to its length, in [−1, 1]; higher is better.

        L = max(−1, (min(c, target) − d) / target − min(1, max(0, w − max_words) / max_words))

    c is the credit, d counts repeated sentences, w the words (characters of Chinese) of all. A repeat takes away what a
    credited sentence brings: else it would be free where relevance is not in use.
    """
    said, repeated = sum(s.credit for s in sentences), sum(s.repeat for s in sentences)
    excess = max(0, sum(s.words for s in sentences) - max_words) / max_words
    earned = (min(said, target_sentences) - repeated) / target_sentences
    return max(-1.0, earned - min(1.0, excess))


def aspect_values(
    sentences: Sequence[Judged],
    rewards: Mapping[Label, float | None],
    complete: float,
    *,
    target_sentences: int,
    max_words: int,
) -> dict[str, float] | None:
    """All four aspects of one answer, of which ``complete`` is given; None where no sentence could be judged."""
    if (fact := factuality(sentences, rewards)) is None:
        return None
    return {
        "factuality": fact,
        "relevance": relevance(sentences),
        "completeness": complete,
        "length": length(sentences, target_sentences, max_words),
    }


def total(values: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Weighted mean of the aspects that have a weight: Σ_a w_a v_a / Σ_a w_a."""
    return sum(weight * values[name] for name, weight in weights.items()) / sum(weights.values())
