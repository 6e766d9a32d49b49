"""Does a sentence reward make a language model hallucinate less? The pocket world (simulated), arms over seeds.

    python -m examples.pocket make
    python -m benchmarks.pocket_proof [--rewards oracle] [--arms stock gamma0] [--seeds 0 1]
    python -m benchmarks.pocket_proof --sft

Every arm is a run of a recipe of examples/pocket with a few keys changed, from one starting model, with as many sampled
answers. The reward asks the oracle, the embedded annotator as it comes, or that annotator calibrated on labelled
sentences of the starting model, with a KL penalty; the truth is always the oracle's. A run that is done is not done
again, one that was stopped goes on. Two CPU-minutes a run with the oracle, four with the annotator.

Label-free SFT: three other pocket models are the reference LLMs, each an expert in some kinds of things that guesses in
others. Of eight answers to each question one is picked by FEWL, by the single-reference baseline, at random, or by the
oracle (the ceiling of picking); the model is fine-tuned on the picks and asked in new wordings, about entities of the
questions and held-out ones.
"""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np

from annotators.records import Annotation, hallucination_rate
from benchmarks.common import ROOT, Row, parser, row, save, write_rows
from examples.pocket import Oracle, build_world, lm
from examples.pocket.texts import COPIES, Question, ask, flawed_answer, questions
from examples.pocket.world import World
from fewl.similarity import cosine, each_once, new_words
from mitigate.io import read_rows
from mitigate.recipes.data import Scoring, picks

RUN = (sys.executable, "-m", "examples.pocket", "run")
ARMS: dict[str, tuple[str, str, tuple[str, ...]]] = {  # name → what it is, recipe, what is changed
    "stock": ("GRPO, scalar (stock TRL)", "rlhf", ("trainer.credit=sequence",)),
    "gamma0": ("GRPO, sentences, γ = 0", "rlhf", ()),
    "gamma1": ("GRPO, sentences, γ = 1", "rlhf", ("trainer.gamma=1.0",)),
    "mask-dpo": ("Mask-DPO", "mask_dpo", ()),
}
SEEDS = {"oracle": 5, "embedded": 3, "calibrated": 3}
BETA = 0.2  # weight of the KL in the GRPO arms of the calibrated annotator
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, two-sided 95 %, n − 1 degrees of freedom
SMOOTHED = 5
SETS = ("trained on", "held-out")


def run(folder: Path, recipe: str, *changes: str) -> Path:
    """The folder of a run, made or gone on with where it is not done."""
    if not (folder / "done.json").is_file():
        command = [*RUN, f"examples/pocket/{recipe}.yaml", *changes, "--output", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True)
    return folder


def calibration(work: Path) -> Path:
    """A file of `mitigate calibrate`, fitted to answers of the starting model that the oracle labelled."""
    file, labelled = work / "calibration.json", work / "labelled.jsonl"
    if not file.is_file():
        answers = read_rows(run(work / "gamma0-oracle-0", "rlhf", "seed=0") / "samples.jsonl")
        rows = [
            {"question": r["question"], "reference": r["reference"], "sentence": s["text"], "label": s["label"]}
            for r in answers
            if (r["set"], r["when"]) == ("trained on", "before")
            for s in r["sentences"]
        ]
        write_rows(labelled, rows)
        command = [sys.executable, "-m", "mitigate.cli", "calibrate", "--input", str(labelled), "--output", str(file)]
        subprocess.run(command, cwd=ROOT, check=True)
    return file


def one(work: Path, arm: str, reward: str, seed: int) -> dict[str, Any]:
    """Final table and curve of one arm with one reward and seed."""
    _, recipe, changed = ARMS[arm]
    asked = [f"reward.annotator={'oracle' if reward == 'oracle' else 'embedded'}", f"seed={seed}", *changed]
    asked += ["uncalibrated=true"] if reward == "embedded" else []
    if reward == "calibrated":
        asked += [f"reward.calibration={calibration(work)}"]
        asked += [f"trainer.beta={BETA}"] if recipe == "rlhf" else []
    folder = run(work / f"{arm}-{reward}-{seed}", recipe, *asked)
    table = {(r["set"], r["when"]): r for r in json.loads((folder / "done.json").read_text())["table"]}
    curve = [r.get("judge/hallucination_rate") for r in read_rows(folder / "metrics.jsonl")]
    return {
        "rates": {name: [table[name, when]["rate"] for when in ("before", "after")] for name in SETS},
        "supported": table["trained on", "after"]["supported"],
        "by_reward": (table["trained on", "after"].get("by_reward") or {}).get("rate"),
        "curve": [rate for rate in curve if rate is not None],
    }


def steps_to_half(curve: Sequence[float], first: float) -> int | None:
    """The first step at which the mean over SMOOTHED steps is at most half of ``first``; None where it is not."""
    means = [statistics.mean(curve[i - SMOOTHED : i]) for i in range(SMOOTHED, len(curve) + 1)]
    return next((i + SMOOTHED for i, mean in enumerate(means) if mean <= first / 2), None)


def over_seeds(what: str, values: Sequence[float]) -> Row:
    """The mean over seeds with its 95 % interval (Student's t)."""
    n, mean = len(values), statistics.mean(values)
    half = T_95[n] * statistics.stdev(values) / math.sqrt(n) if n in T_95 else None
    return row(what, f"{n} seeds", mean, None if half is None else (mean - half, mean + half))


# --- label-free SFT ---------------------------------------------------------------------------------------------------

EXPERTS: dict[str, dict[str, float]] = {
    "expert in towns and novels": {"place": 0.97, "work": 0.97},
    "expert in machines": {"device": 0.97},
    "expert in animals": {"species": 0.97},
}
GUESS = 0.55  # probability that a claim in a reference model's training texts is true; EXPERTS has others, by kind
SINGLE = "expert in towns and novels"
ROUNDS, REFERENCE_ROUNDS, APART_SHARE = 26, 10, 0.2
ASKED, DRAWN = 2, 8  # questions an entity, answers a question
EPOCHS, RATE = 3, 6e-4
PICKS = ("random", "baseline", "fewl", "fewl new-words", "oracle")
Texts = Sequence[Sequence[str]]


def judge(oracle: Oracle, asked: Sequence[Question], answers: Texts) -> list[Annotation]:
    """Annotate the answers to each question, in order."""
    return oracle.annotate_batch(
        {"question": q.text, "reference": q.entity.document.text, "answer": text}
        for q, texts in zip(asked, answers, strict=True)
        for text in texts
    )


def trained(folder: Path, world: World, rounds: int, truth: Callable[[str], float], seed: int, tokenizer: Any) -> Any:
    """A pocket model, trained the first time; a claim that it reads is true by a probability of the entity's kind."""
    if not folder.is_dir():
        rng = random.Random(f"mitigation texts {seed}")
        pairs = []
        for entity in world.entities:
            for _ in range(COPIES[entity.rarity] * rounds):
                question = ask(rng, entity, held_out=False)
                pairs.append((question.text, flawed_answer(rng, question, truth(entity.kind))))
        rng.shuffle(pairs)
        tokenizer = tokenizer or lm.build_tokenizer([text for pair in pairs[:3000] for text in pair])
        model = lm.build_model(tokenizer, seed=seed)
        lm.train(model, tokenizer, pairs, seed=seed)
        lm.save(model, tokenizer, folder)
    return lm.load(folder)


def one_seed(seed: int, world: World, models: dict[str, Any], work: Path) -> dict[str, Any]:
    """All arms of a seed: true rates before and after; four fifths of the entities are asked about in training."""
    oracle, entities = Oracle(world), list(world.entities)
    random.Random(f"mitigation split {seed}").shuffle(entities)
    apart = round(APART_SHARE * len(entities))
    asked = questions(entities[apart:], ASKED, held_out=False, seed=seed)
    base, tokenizer = models["base"]
    drawn = lm.answer(base, tokenizer, [q.text for q in asked], n=DRAWN, seed=seed)
    references = {
        name: [texts[0] for texts in lm.answer(*models[name], [q.text for q in asked], temperature=0)]
        for name in EXPERTS
    }
    rates = [
        [one.hallucination_rate for one in judge(oracle, [q], [texts])] for q, texts in zip(asked, drawn, strict=True)
    ]

    def figures(model: Any) -> dict[str, Any]:
        """Figures on new wordings, entities of the training questions and held-out entities."""
        out = {}
        for name, own in (("inside", entities[apart:]), ("held out", entities[:apart])):
            new = questions(own, 1, held_out=True, seed=1000 + seed)
            said = lm.answer(model, tokenizer, [q.text for q in new], seed=seed)
            labels = [s.label for one in judge(oracle, new, said) for s in one.sentences]
            out[name] = {"hallucination_rate": hallucination_rate(labels)}
        return out

    def tuned(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
        model, _ = lm.load(work / "base")
        lm.train(model, tokenizer, pairs, epochs=EPOCHS, learning_rate=RATE, seed=seed)
        return figures(model)

    out: dict[str, Any] = {"base": figures(base)}
    for name, taken in picked(asked, drawn, references, rates, seed).items():
        rows = [(q.text, texts[i]) for q, texts, i in zip(asked, drawn, taken, strict=True) if i is not None]
        known = [r for r in (rates[q][i] for q, i in enumerate(taken) if i is not None) if r is not None]
        out[name] = {"picked_rate": float(np.mean(known)), **tuned(rows)}
        print(f"seed {seed}, {name}: {out[name]}", flush=True)
    rng = random.Random(f"true answers {seed}")
    out["true answers"] = {"picked_rate": 0.0, **tuned([(q.text, flawed_answer(rng, q, 1.0)) for q in asked])}
    return out


def picked(
    asked: Sequence[Question], drawn: Texts, references: dict[str, list[str]],
    rates: Sequence[Sequence[float | None]], seed: int,
) -> dict[str, list[int | None]]:  # fmt: skip
    """The number of the answer to each question that each of PICKS takes."""
    from engines.embedding import Embedder

    records = [
        {"id": str(i), "question": q.text, "answers": [{"text": text} for text in texts],
         "reference_answers": {name: answers[i] for name, answers in references.items()}}
        for i, (q, texts) in enumerate(zip(asked, drawn, strict=True))
    ]  # fmt: skip
    encode, rng = each_once(Embedder().encode), random.Random(f"random picks {seed}")
    how: Any = {"scoring": Scoring(aggregation="eq6", penalty=False), "baseline": SINGLE, "encode": encode}
    return {
        "random": [rng.randrange(DRAWN) for _ in asked],
        "baseline": picks(records, "baseline", similarity=cosine(encode), **how),
        "fewl": picks(records, "fewl", similarity=cosine(encode), **how),
        "fewl new-words": picks(records, "fewl", similarity=new_words, **how),
        "oracle": [min(range(DRAWN), key=lambda i: (row[i] is None, row[i] or 0.0, i)) for row in rates],
    }


def sft(work: Path, seeds: int) -> None:
    """Train what is missing, then write the page: means over seeds with the lowest and highest seed, differences."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    world = build_world(seed=0, n_per_kind=25)
    models = {"base": trained(work / "base", world, ROUNDS, lambda kind: 0.85, 0, None)}
    for i, (name, sure) in enumerate(EXPERTS.items(), 1):
        truth = lambda kind, sure=sure: sure.get(kind, GUESS)  # noqa: E731
        models[name] = trained(work / f"reference{i}", world, REFERENCE_ROUNDS, truth, i, models["base"][1])
    kept = work / "seeds.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    for seed in range(seeds):
        if str(seed) not in found:
            found[str(seed)] = one_seed(seed, world, models, work)
            kept.write_text(json.dumps(found))
    values = {
        f"{name}: hallucination rate, {side}": [found[str(s)][name][side]["hallucination_rate"] for s in range(seeds)]
        for side in ("inside", "held out")
        for name in ("base", *PICKS, "true answers")
    }
    for pair in (("fewl", "random"), ("fewl new-words", "baseline"), ("oracle", "fewl")):
        first, second = (np.array(values[f"{name}: hallucination rate, inside"]) for name in pair)
        values[f"{' − '.join(pair)}: hallucination rate, inside"] = (first - second).tolist()
    rows = [
        row(f"label-free SFT, {what}", f"{seeds} seeds", float(np.mean(own)), (min(own), max(own)))
        for what, own in values.items()
    ]
    about = "Simulated: truth is the oracle's; brackets are the lowest and highest seed."
    save("mitigation", "pocket_proof", rows, tables={"seeds": found}, about=about, part="label_free_sft")


def main() -> None:
    """Run what is missing, then write the page."""
    made = parser(__doc__, data=False)
    made.add_argument("--work", type=Path, default=ROOT / "out" / "pocket_proof", help="where runs are kept")
    made.add_argument("--rewards", nargs="*", choices=SEEDS, default=list(SEEDS))
    made.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    made.add_argument("--seeds", type=int, nargs="*", help="these seeds only")
    made.add_argument("--sft", action="store_true", help="label-free SFT instead, five seeds")
    args = made.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.sft:
        sft(args.work, 5)
        return
    shown, runs = [], {}
    for reward in args.rewards:
        for arm in args.arms:
            found = [one(args.work, arm, reward, seed) for seed in args.seeds or range(SEEDS[reward])]
            runs[f"{arm}, {reward}"] = found
            where = f"reward by the {reward} annotator" if reward != "oracle" else "reward by the oracle"
            for name in SETS:
                rates = [r["rates"][name][1] for r in found]
                shown.append(over_seeds(f"{where}, {ARMS[arm][0]}: hallucinated, entities {name}", rates))
            halves = [steps_to_half(r["curve"], r["rates"]["trained on"][0]) for r in found]
            said = ", ".join("more than 40" if step is None else str(step) for step in halves)
            shown.append(row(f"{where}, {ARMS[arm][0]}: steps to half the rate, by seed", f"{len(found)} seeds", said))
    save("pocket-proof", "pocket_proof", shown, tables={"runs": runs}, packages=["trl"])


if __name__ == "__main__":
    main()
