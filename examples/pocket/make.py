"""Write a pocket world as files that any recipe takes (simulated; about a minute on one CPU thread).

world.json         what the world is built from; `load_world` reads it, and the oracle judges by it
model/             the flawed language model, an ordinary transformers folder
train.jsonl        training questions about the trained entities, eight about each
train_240.jsonl    the same with fifteen about each, for Mask-DPO
trained_on.jsonl   evaluation questions about the trained entities, in wordings that no training text has
held_out.jsonl     evaluation questions about all other entities
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from examples.pocket import lm
from examples.pocket.texts import ask, training_pairs
from examples.pocket.world import Entity, World, build_world
from mitigate.io import progress, write_json, write_lines

WORLD = "world.json"
LEARNING_RATE = 4e-3  # of the language model


def make(
    folder: Path,
    *,
    per_kind: int = 16,
    trained_per_kind: int = 4,
    rounds: int = 60,
    width: int = 96,
    layers: int = 3,
    vocabulary: int = 1024,
) -> None:
    """Write a world's questions and its language model; world.json comes last, so that it marks a complete folder.

    A world has ``per_kind`` entities of each of four kinds, and training asks about ``trained_per_kind`` of them. The
    model learns from about seventeen flawed texts an entity in each of ``rounds``; ``width``, ``layers`` and
    ``vocabulary`` are its sizes.
    """
    from transformers import logging

    logging.disable_progress_bar()
    world = build_world(0, per_kind)
    folder.mkdir(parents=True, exist_ok=True)
    write_questions(folder, world, trained_per_kind)
    pairs = training_pairs(world, rounds)
    tokenizer = lm.build_tokenizer([text for pair in pairs[:3000] for text in pair], vocabulary)
    model = lm.build_model(tokenizer, width=width, layers=layers)
    with progress("base model from flawed texts", lm.steps_of(pairs)) as tell:
        lm.train(
            model, tokenizer, pairs, learning_rate=LEARNING_RATE,
            on_step=lambda step, loss: tell(step, f"loss {loss:.2f}"),
        )  # fmt: skip
    for part in (model, tokenizer):
        part.save_pretrained(folder / "model")
    write_json(folder / WORLD, {"seed": world.seed, "n_per_kind": per_kind})


def load_world(folder: str | Path) -> World:
    """The world of a folder that ``make`` wrote; OSError where there is none."""
    return build_world(**json.loads((Path(folder) / WORLD).read_text(encoding="utf-8")))


def write_questions(folder: Path, world: World, trained_per_kind: int) -> None:
    cut = 4 * trained_per_kind
    trained, others = world.entities[:cut], world.entities[cut:]
    for name, each in (("train", 8), ("train_240", 15)):
        rows = rows_of(trained, each * cut, held_out=False, seed=100)
        random.Random(0).shuffle(rows)
        write_lines(folder / f"{name}.jsonl", rows)
    for name, entities in (("trained_on", trained), ("held_out", others)):
        write_lines(folder / f"{name}.jsonl", rows_of(entities, 64, held_out=True, seed=1))


def rows_of(entities: Sequence[Entity], n: int, *, held_out: bool, seed: int) -> list[dict[str, str]]:
    """Rows of ``n`` questions, about each entity in turn."""
    rng, rounds = random.Random(f"pocket questions {seed} {held_out}"), -(-n // len(entities))
    found = [[ask(rng, entity, held_out=held_out) for _ in range(rounds)] for entity in entities]
    in_turn = [questions[turn] for turn in range(rounds) for questions in found]
    return [{"id": q.entity.name, "question": q.text, "reference": q.entity.document.text} for q in in_turn[:n]]
