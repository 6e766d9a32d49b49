"""Label-free SFT in the pocket world (simulated): does training on FEWL's picks make a model hallucinate less?

    python -m benchmarks.label_free_sft --work out/label_free_sft

A pocket model draws eight answers to each question. Three other pocket models are the reference LLMs; each is an expert
in some kinds of things and guesses in others. Per question an answer is picked by FEWL, by the single-reference
baseline, at random, or by the oracle (the ceiling of picking); the model is fine-tuned on the picks and asked in new
wordings, on entities of the questions and on held-out ones. Each part is kept in --work as it is done; one CPU thread.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np

from annotators.records import Annotation, hallucination_rate
from benchmarks.common import Row, parser, row, save
from examples.pocket import Oracle, build_world, lm
from examples.pocket.texts import COPIES, Question, ask, flawed_answer, questions
from examples.pocket.world import Entity, World
from fewl.score import FewlOptions, score_records
from fewl.similarity import Similarity, cosine, each_once, new_words
from mitigate.recipes.data import best_scored

EXPERTS: dict[str, dict[str, float]] = {
    "expert in towns and novels": {"place": 0.97, "work": 0.97},
    "expert in machines": {"device": 0.97},
    "expert in animals": {"species": 0.97},
}
"""Probability that a claim in a reference model's training texts is true, by kind of entity; else GUESS."""
GUESS = 0.55
SINGLE = "expert in towns and novels"
ROUNDS, REFERENCE_ROUNDS = 26, 10
APART_SHARE = 0.2
ASKED, DRAWN = 2, 8  # questions an entity, answers a question
EPOCHS, RATE = 3, 6e-4
PER_KIND = 25
PICKS = ("random", "baseline", "fewl", "fewl new-words", "oracle")


def judge(oracle: Oracle, asked: Sequence[Question], answers: Sequence[Sequence[str]]) -> list[Annotation]:
    """Annotate the answers to each question, in order."""
    return oracle.annotate_batch(
        {"question": q.text, "reference": q.entity.document.text, "answer": text}
        for q, texts in zip(asked, answers, strict=True)
        for text in texts
    )


def rate(found: Sequence[Annotation]) -> dict[str, float | None]:
    """The share of hallucinated sentences in all answers together."""
    return {"hallucination_rate": hallucination_rate([s.label for one in found for s in one.sentences])}


def pairs_of(world: World, rounds: int, truth: Callable[[str], float], seed: int) -> list[tuple[str, str]]:
    """(question, answer) to train on; a claim is true with a probability that depends on the entity's kind."""
    rng = random.Random(f"mitigation texts {seed}")
    pairs = []
    for entity in world.entities:
        for _ in range(COPIES[entity.rarity] * rounds):
            question = ask(rng, entity, held_out=False)
            pairs.append((question.text, flawed_answer(rng, question, truth(entity.kind))))
    rng.shuffle(pairs)
    return pairs


def trained(folder: Path, world: World, rounds: int, truth: Callable[[str], float], seed: int, tokenizer: Any) -> Any:
    """A pocket model, trained the first time."""
    if not folder.is_dir():
        pairs = pairs_of(world, rounds, truth, seed)
        tokenizer = tokenizer or lm.build_tokenizer([text for pair in pairs[:3000] for text in pair])
        model = lm.build_model(tokenizer, seed=seed)
        losses = lm.train(model, tokenizer, pairs, seed=seed)
        print(f"{folder.name}: {len(pairs)} pairs, loss {losses[0]:.2f} to {losses[-1]:.2f}", flush=True)
        lm.save(model, tokenizer, folder)
    return lm.load(folder)


def divided(world: World, seed: int) -> tuple[list[Entity], list[Entity]]:
    """(asked about in training, held out): 80 and 20 % of the entities."""
    entities = list(world.entities)
    random.Random(f"mitigation split {seed}").shuffle(entities)
    apart = round(APART_SHARE * len(entities))
    return entities[apart:], entities[:apart]


def one_seed(seed: int, world: World, models: dict[str, Any], work: Path) -> dict[str, Any]:
    """All arms of a seed: true rates before and after."""
    oracle = Oracle(world)
    inside, apart = divided(world, seed)
    asked = questions(inside, ASKED, held_out=False, seed=seed)
    base, tokenizer = models["base"]
    drawn = lm.answer(base, tokenizer, [q.text for q in asked], n=DRAWN, seed=seed)
    references = {
        name: [texts[0] for texts in lm.answer(*models[name], [q.text for q in asked], temperature=0)]
        for name in EXPERTS
    }
    rates = [
        [one.hallucination_rate for one in judge(oracle, [q], [texts])] for q, texts in zip(asked, drawn, strict=True)
    ]
    picks = _picks(asked, drawn, references, rates, seed)
    out: dict[str, Any] = {"base": _asked(base, tokenizer, oracle, inside, apart, seed)}
    out["references"] = {
        name: rate(judge(oracle, asked, [[text] for text in texts])) for name, texts in references.items()
    }
    for name in PICKS:
        rows = [(q.text, texts[i]) for q, texts, i in zip(asked, drawn, picks[name], strict=True) if i is not None]
        model, _ = lm.load(work / "base")
        lm.train(model, tokenizer, rows, epochs=EPOCHS, learning_rate=RATE, seed=seed)
        known = [rates[q][i] for q, i in enumerate(picks[name]) if i is not None and rates[q][i] is not None]
        out[name] = {
            "picked_rate": float(np.mean([rate for rate in known if rate is not None])),
            **_asked(model, tokenizer, oracle, inside, apart, seed),
        }
        print(f"seed {seed}, {name}: {out[name]}", flush=True)
    rng = random.Random(f"true answers {seed}")
    model, _ = lm.load(work / "base")
    pairs = [(q.text, flawed_answer(rng, q, 1.0)) for q in asked]
    lm.train(model, tokenizer, pairs, epochs=EPOCHS, learning_rate=RATE, seed=seed)
    out["true answers"] = {"picked_rate": 0.0, **_asked(model, tokenizer, oracle, inside, apart, seed)}
    return out


def _picks(
    asked: Sequence[Question], drawn: Sequence[Sequence[str]], references: dict[str, list[str]],
    rates: Sequence[Sequence[float | None]], seed: int,
) -> dict[str, list[int | None]]:  # fmt: skip
    from engines.embedding import Embedder

    records = [
        {
            "id": str(i),
            "question": q.text,
            "answers": [{"text": text} for text in texts],
            "reference_answers": {name: answers[i] for name, answers in references.items()},
        }
        for i, (q, texts) in enumerate(zip(asked, drawn, strict=True))
    ]
    encode = each_once(Embedder().encode)

    def by(similarity: Similarity, **options: Any) -> list[int | None]:
        setting = FewlOptions(aggregation="eq6", penalty=False, **options)
        scored, _ = score_records(records, similarity=similarity, encode=encode, options=setting)
        return [best_scored(record["answers"]) for record in scored]

    rng = random.Random(f"random picks {seed}")
    return {
        "random": [rng.randrange(DRAWN) for _ in asked],
        "baseline": by(cosine(encode), references=f"single:{SINGLE}"),
        "fewl": by(cosine(encode)),
        "fewl new-words": by(new_words),
        "oracle": [min(range(DRAWN), key=lambda i: (row[i] is None, row[i] or 0.0, i)) for row in rates],
    }


def _asked(
    model: Any, tokenizer: Any, oracle: Oracle, inside: Sequence[Entity], apart: Sequence[Entity], seed: int
) -> dict[str, Any]:
    """Figures on new wordings, entities of the training questions and held-out entities."""
    out = {}
    for name, entities in (("inside", inside), ("held out", apart)):
        asked = questions(entities, 1, held_out=True, seed=1000 + seed)
        answers = lm.answer(model, tokenizer, [q.text for q in asked], seed=seed)
        out[name] = rate(judge(oracle, asked, answers))
    return out


def results(found: dict[str, Any], seeds: int) -> list[Row]:
    """Means over seeds with the lowest and highest seed, and paired differences."""

    def over_seeds(what: str, values: Sequence[float]) -> Row:
        return row(what, f"{seeds} seeds", float(np.mean(values)), (min(values), max(values)))

    rate = {
        (name, side): np.array([found[str(s)][name][side]["hallucination_rate"] for s in range(seeds)])
        for name in ("base", *PICKS, "true answers")
        for side in ("inside", "held out")
    }
    rows = [
        over_seeds(f"label-free SFT on {name}: hallucination rate, {side}", values.tolist())
        for (name, side), values in rate.items()
    ]
    for first, second in (("fewl", "random"), ("fewl new-words", "baseline"), ("oracle", "fewl")):
        gap = rate[first, "inside"] - rate[second, "inside"]
        rows.append(over_seeds(f"label-free SFT, {first} − {second}: hallucination rate, inside", gap.tolist()))
    return rows


def main() -> None:
    """Train what is missing, then write the page."""
    made = parser(__doc__, data=False)
    made.add_argument("--work", type=Path, default=Path("out/label_free_sft"))
    made.add_argument("--seeds", type=int, default=5)
    args = made.parse_args()
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    work = args.work
    work.mkdir(parents=True, exist_ok=True)
    world = build_world(seed=0, n_per_kind=PER_KIND)
    base = trained(work / "base", world, ROUNDS, lambda kind: 0.85, 0, None)
    models = {"base": base}
    for i, (name, sure) in enumerate(EXPERTS.items(), 1):
        truth = lambda kind, sure=sure: sure.get(kind, GUESS)  # noqa: E731
        models[name] = trained(work / f"reference{i}", world, REFERENCE_ROUNDS, truth, i, base[1])
    kept = work / "seeds.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    for seed in range(args.seeds):
        if str(seed) not in found:
            found[str(seed)] = one_seed(seed, world, models, work)
            kept.write_text(json.dumps(found))
    about = "Simulated: truth is the oracle's; brackets are the lowest and highest seed."
    save("mitigation", "label_free_sft", results(found, args.seeds), tables={"seeds": found}, about=about)


if __name__ == "__main__":
    main()
