"""The model that a run starts from: a chat model's folder or hub id, or the pocket model, made here from nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

from mitigate.progress import progress
from mitigate.runs.options import POCKET, Base

LEARNING_RATE = 4e-3


def base_model(options: Base, folder: Path) -> str:
    """Where the starting model is; the pocket model is trained into ``folder`` the first time (about a minute).

    Args:
        options: The recipe.
        folder: Of the pocket model.
    """
    if options.model != POCKET:
        return options.model
    if folder.is_dir():
        return str(folder)
    from mitigate.pocket import build_world, lm
    from mitigate.pocket.texts import training_pairs

    setting = options.pocket
    pairs = training_pairs(build_world(setting.seed, setting.per_kind), setting.rounds)
    tokenizer = lm.build_tokenizer([text for pair in pairs[:3000] for text in pair], setting.vocabulary)
    model = lm.build_model(tokenizer, width=setting.width, layers=setting.layers, seed=setting.seed)
    with progress("base model from flawed texts", max(1, round(len(pairs) / lm.BATCH))) as tell:
        lm.train(
            model, tokenizer, pairs, learning_rate=LEARNING_RATE, seed=setting.seed,
            on_step=lambda step, _, loss: tell(step, f"loss {loss:.2f}"),
        )  # fmt: skip
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    lm.save(model, tokenizer, part)
    part.rename(folder)
    return str(folder)
