"""Questions about the pocket world and the flawed answers that its language model learns from (simulated).

The answers are why the model hallucinates: each claim is true with a fixed probability only, rare entities occur
in few answers, and now and then an answer says that it does not know.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from examples.pocket.phrases import ABOUT, ABSTENTIONS, ANSWERS, HELD_OUT_QUESTIONS, INTRODUCTIONS, QUESTIONS
from examples.pocket.world import ATTRIBUTES, NOUNS, POOLS, Entity, World, fill

COPIES = {"common": 8, "middling": 4, "rare": 1}
P_TRUE = 0.85  # of a claim in a training answer
P_ABSTAIN = 0.08  # of a sentence that could have been a claim
P_INTRODUCTION = 0.1


@dataclass(frozen=True)
class Question:
    """A question about one entity, maybe about one of its attributes above all."""

    text: str
    entity: Entity
    about: str | None


def ask(rng: random.Random, entity: Entity, *, held_out: bool) -> Question:
    """A question about an entity in a random wording; ``held_out`` ones never occur in training texts."""
    template = rng.choice(HELD_OUT_QUESTIONS if held_out else QUESTIONS)
    about = rng.choice(ATTRIBUTES[entity.kind]) if "{about}" in template else None
    return Question(_worded(template, entity.name, about), entity, about)


def flawed_answer(rng: random.Random, question: Question, p_true: float = P_TRUE) -> str:
    """An answer of three to six sentences as a bad training text has it.

    A claim is true with probability ``p_true``; the attribute that the question is about comes first.
    """
    entity = question.entity
    attributes = [a for a in ATTRIBUTES[entity.kind] if a != question.about]
    rng.shuffle(attributes)
    if question.about is not None:
        attributes.insert(0, question.about)
    attributes = attributes[: rng.randint(3, 6)]
    sentences: list[str] = []
    if len(attributes) < 6 and rng.random() < P_INTRODUCTION:
        sentences.append(_worded(rng.choice(INTRODUCTIONS), entity.name, None))
    for attribute in attributes:
        subject = "it" if sentences and rng.random() < 0.6 else entity.name
        if sentences and subject != "it" and rng.random() < 0.5:
            subject = f"the {NOUNS[entity.kind]}"
        if rng.random() < P_ABSTAIN:
            sentences.append(_worded(rng.choice(ABSTENTIONS), subject, attribute))
        else:
            value = entity.facts[attribute]
            if rng.random() >= p_true:
                value = rng.choice([other for other in POOLS[attribute] if other != value])
            sentences.append(fill(rng.choice(ANSWERS[attribute]), subject, {attribute: value}))
    return " ".join(sentences)


def training_pairs(world: World, rounds: int) -> list[tuple[str, str]]:
    """(question, flawed answer) pairs, all written anew: ``COPIES`` of an entity a round, shuffled."""
    rng = random.Random("pocket texts 0")
    pairs = []
    for entity in world.entities:
        for _ in range(COPIES[entity.rarity] * rounds):
            question = ask(rng, entity, held_out=False)
            pairs.append((question.text, flawed_answer(rng, question)))
    rng.shuffle(pairs)
    return pairs


def _worded(template: str, subject: str, about: str | None) -> str:
    return fill(template, subject, {"about": ABOUT[about]} if about is not None else {})
