"""Write a pocket world as files that any recipe takes (simulated; about a minute on one CPU thread).

world.json         what the world is built from; `load_world` reads it, and the oracle judges by it
model/             the flawed language model, an ordinary transformers folder
train.jsonl        training questions about the trained entities, eight about each
train_240.jsonl    the same with fifteen about each, for Mask-DPO
trained_on.jsonl   evaluation questions about the trained entities, in wordings that no training text has
held_out.jsonl   evaluation questions about all other entities
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from examples.pocket import lm
from examples.pocket.texts import questions, training_pairs
from examples.pocket.world import Entity, World, build_world
from mitigate.io import progress

WORLD = "world.json"
LEARNING_RATE = 4e-3  # of the language model


def make(
    folder: Path,
    *,
    seed: int = 0,
    per_kind: int = 16,
    trained_per_kind: int = 4,
    rounds: int = 60,
    width: int = 96,
    layers: int = 3,
    vocabulary: int = 1024,
) -> None:
    """Write a world's questions and its language model.

    Args:
        folder: Where to; world.json is written last, so that it marks a complete folder.
        seed: Draws the world, the model and the questions.
        per_kind: Entities of each of four kinds.
        trained_per_kind: Those of them that training asks about.
        rounds: Flawed texts for the model, about seventeen an entity and round.
        width: Width of the model's residual stream.
        layers: Number of its layers.
        vocabulary: Tokens of the model.
    """
    from transformers import logging

    logging.disable_progress_bar()
    world = build_world(seed, per_kind)
    folder.mkdir(parents=True, exist_ok=True)
    write_questions(folder, world, seed=seed, trained_per_kind=trained_per_kind)
    pairs = training_pairs(world, rounds)
    tokenizer = lm.build_tokenizer([text for pair in pairs[:3000] for text in pair], vocabulary)
    model = lm.build_model(tokenizer, width=width, layers=layers, seed=seed)
    with progress("base model from flawed texts", max(1, round(len(pairs) / lm.BATCH))) as tell:
        lm.train(
            model, tokenizer, pairs, learning_rate=LEARNING_RATE, seed=seed,
            on_step=lambda step, _, loss: tell(step, f"loss {loss:.2f}"),
        )  # fmt: skip
    lm.save(model, tokenizer, folder / "model")
    (folder / WORLD).write_text(json.dumps({"seed": seed, "n_per_kind": per_kind}), encoding="utf-8")


def load_world(folder: str | Path) -> World:
    """The world of a folder that ``make`` wrote.

    Raises:
        OSError: There is none.
    """
    return build_world(**json.loads((Path(folder) / WORLD).read_text(encoding="utf-8")))


def write_questions(folder: Path, world: World, *, seed: int = 0, trained_per_kind: int = 4) -> None:
    """Write the four files of questions; ``seed`` draws those of training."""
    cut = 4 * trained_per_kind
    trained, others = world.entities[:cut], world.entities[cut:]
    for name, each in (("train", 8), ("train_240", 15)):
        rows = ask(trained, each * cut, held_out=False, seed=100 + seed)
        random.Random(seed).shuffle(rows)
        write(folder / f"{name}.jsonl", rows)
    write(folder / "trained_on.jsonl", ask(trained, 64, held_out=True, seed=1))
    write(folder / "held_out.jsonl", ask(others, 64, held_out=True, seed=1))


def ask(entities: Sequence[Entity], n: int, *, held_out: bool, seed: int) -> list[dict[str, str]]:
    """Rows of ``n`` questions, about each entity in turn."""
    rounds = -(-n // len(entities))
    found = questions(entities, rounds, held_out=held_out, seed=seed)
    in_turn = [found[e * rounds + r] for r in range(rounds) for e in range(len(entities))]
    return [{"id": q.entity.name, "question": q.text, "reference": q.entity.document.text} for q in in_turn[:n]]


def write(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write rows as JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
