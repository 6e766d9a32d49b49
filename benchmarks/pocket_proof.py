"""Does a sentence reward make a language model hallucinate less? The pocket world's table (simulated).

    python -m benchmarks.pocket_proof --work out/pocket_proof --output docs/results/pocket-proof.md

Every trained arm is a run of examples/pocket/rlhf.yaml or mask_dpo.yaml with a few keys changed, from one starting
model, with as many sampled answers. The reward asks the oracle (five seeds), the embedded annotator as it
comes (three), or that annotator calibrated on labelled sentences of the starting model, with a KL penalty (three); the
truth is always the oracle's. Each arm and seed is a run folder, each figure a small JSON file: a command
that was killed goes on. `--only REWARD` and `--arms` do a part, `--page` writes the page of what is there. One thread.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from examples.pocket import Oracle, lm, load_world
from examples.pocket.make import make, write_questions
from examples.pocket.texts import Question, true_answer

SEEDS = {"oracle": 5, "embedded": 3, "calibrated": 3}
CALIBRATED_ON, CALIBRATED_BETA = 60, 0.2  # answers that are labelled; weight of the KL in GRPO arms
RLHF, MASK_DPO = "examples/pocket/rlhf.yaml", "examples/pocket/mask_dpo.yaml"
ARMS: dict[str, tuple[str, tuple[str, ...]]] = {  # name → recipe, what is changed
    "stock": (RLHF, ("trainer.credit=sequence",)),
    "gamma0": (RLHF, ()),
    "gamma1": (RLHF, ("trainer.gamma=1.0",)),
    "mask-dpo": (MASK_DPO, ()),
}
OTHERS = ("sft", "best-of-8")  # no recipes of these kinds: trained and chosen here
VARIANTS: dict[str, tuple[str, tuple[str, ...]]] = {  # what was tried beside: reward, what is changed in rlhf.yaml
    "kl": ("oracle", ("trainer.beta=0.2",)),
    "calibrated-no-kl": ("calibrated", ("trainer.beta=0.0",)),
    "wide": ("oracle", ()),
    "abstain": ("oracle", ("reward.label_rewards={no_fact: 0.0}",)),
    "kl-embedded": ("embedded", ("trainer.beta=0.2",)),
}
VARIANT_SEEDS = 1
BEST_OF = 8


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("out/pocket_proof"), help="where parts are kept")
    parser.add_argument("--output", type=Path, default=Path("docs/results/pocket-proof.md"))
    parser.add_argument("--only", choices=SEEDS, help="arms with this reward only")
    parser.add_argument("--arms", nargs="*", default=[*ARMS, *OTHERS, *VARIANTS])
    parser.add_argument("--seeds", type=int, nargs="*", help="these seeds only")
    parser.add_argument("--page", action="store_true", help="run nothing, write the page of what is there")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)
    if not args.page:
        once(args.work / "start.json", lambda: start(args.work))
        for reward in [args.only] if args.only else SEEDS:
            for seed in range(SEEDS[reward]) if args.seeds is None else args.seeds:
                for arm in args.arms:
                    part(args.work, arm, reward, seed)
    from benchmarks.pocket_proof_page import write_page

    write_page(args.work, args.output)


def once(path: Path, function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a function, computed and kept the first time, with the CPU time that it took."""
    if not path.is_file():
        print(f"{path.stem} …", flush=True)
        begin = time.process_time()
        result = {**function(), "cpu_seconds": time.process_time() - begin}
        half = path.with_suffix(".part")
        half.write_text(json.dumps(result), encoding="utf-8")
        half.replace(path)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def part(work: Path, arm: str, reward: str, seed: int) -> None:
    """One arm with one reward and seed."""
    name = f"{arm}-{reward}-{seed}"
    if arm in OTHERS:
        if arm == "sft" and reward != "oracle":  # asks no reward
            return
        function = {"sft": lambda: sft(work, seed), "best-of-8": lambda: best_of_n(work, reward, seed)}[arm]
    else:
        if arm in VARIANTS and (reward != VARIANTS[arm][0] or seed >= VARIANT_SEEDS):
            return
        recipe, changed = ARMS[arm] if arm in ARMS else (RLHF, VARIANTS[arm][1])
        beta = reward == "calibrated" and recipe == RLHF
        overrides = [*data_of(work, seed, recipe, 12 if arm == "wide" else 4), *asking(work, reward)]
        overrides += [*([f"trainer.beta={CALIBRATED_BETA}"] if beta else []), *changed]
        function = lambda: trained(work, name, recipe, overrides)  # noqa: E731
    once(work / f"{name}.json", function)


def data_of(work: Path, seed: int, recipe: str = RLHF, trained_per_kind: int = 4) -> list[str]:
    """The overrides that name the starting model and the questions of a seed, which are written here."""

    folder = work / f"questions-{trained_per_kind}-{seed}"
    folder.mkdir(exist_ok=True)
    write_questions(folder, load_world(work / "world"), seed=seed, trained_per_kind=trained_per_kind)
    data = folder / ("train.jsonl" if recipe == RLHF else "train_240.jsonl")
    sets = f"{{trained on: {folder}/trained_on.jsonl, kept apart: {folder}/held_out.jsonl}}"
    return [f"seed={seed}", f"model={start_model(work)}", f"data={data}", f"evaluation.data={sets}"]


def start_model(work: Path) -> Path:
    """Where the starting model is."""
    return work / "world" / "model"


def oracle(work: Path) -> Oracle:
    return Oracle(load_world(work / "world"))


def asking(work: Path, reward: str) -> list[str]:
    """The overrides that say whom the reward asks."""
    if reward != "calibrated":
        return [f"reward.annotator={reward}"]
    return ["reward.annotator=embedded", f"reward.calibration={calibration(work)}"]


def calibration(work: Path) -> Path:
    """A file of `mitigate calibrate`, fitted to answers of the starting model that the oracle labelled."""
    from mitigate.cli.main import main as mitigate

    file, labelled = work / "calibration.json", work / "labelled.jsonl"
    if not file.is_file():
        _, questions = setting(work)
        network, tokenizer = lm.load(start_model(work))
        rows = questions.train[:CALIBRATED_ON]
        texts = lm.answer(network, tokenizer, [row["question"] for row in rows], max_new_tokens=64, seed=77)
        records = [
            {"question": r["question"], "reference": r["reference"], "answer": t[0]}
            for r, t in zip(rows, texts, strict=True)
        ]
        with labelled.open("w", encoding="utf-8") as out:
            for one in oracle(work).annotate_batch(records):
                for s in one.sentences:
                    out.write(json.dumps({**one.record, "sentence": s.text, "label": s.label}) + "\n")
        code = mitigate(["calibrate", "--data", str(labelled), "--output", str(file)])
        if code:
            raise SystemExit(code)
    return file


def setting(work: Path, *overrides: str, seed: int = 0) -> tuple[Any, Any]:
    """The options of the recipe and its questions."""
    from mitigate.recipes.config import load_recipe
    from mitigate.recipes.data import read_questions

    options: Any = load_recipe(RLHF, [*data_of(work, seed), *overrides], {"oracle": oracle(work)})[0]
    return options, read_questions(options, None)


def start(work: Path) -> dict[str, Any]:
    """The starting model, made once, and its figures."""
    begin = time.process_time()
    if not start_model(work).is_dir():
        make(work / "world")
    made = time.process_time() - begin
    return {"figures": evaluate(work, start_model(work)), "base_cpu_seconds": made, "agreement": agreement(work)}


def trained(work: Path, name: str, recipe: str, overrides: Sequence[str]) -> dict[str, Any]:
    """A run of a recipe, the curve of its training samples, and the figures of what it left."""
    from mitigate.cli.main import main as mitigate
    from mitigate.recipes.folder import DONE, METRICS, read_rows

    folder = work / "runs" / name
    if not (folder / DONE).is_file():
        code = mitigate(
            ["run", recipe, *overrides, "--output", str(folder)], annotators={"oracle": oracle(work)}
        )
        if code:
            raise SystemExit(f"{name}: exit code {code}; give the same command again to go on")
    keys = {
        "rate": "judge/hallucination_rate",
        "supported": "judge/supported",
        "by_reward": "factuality/hallucination_rate",
        "cpu_seconds": "cpu_seconds",
    }
    curve = [{"step": r["step"], **{k: r.get(m) for k, m in keys.items()}} for r in read_rows(folder / METRICS)]
    return {"figures": evaluate(work, folder / "model"), "curve": curve}


def evaluate(work: Path, model: Path) -> dict[str, Any]:
    """Figures of each set of questions, by the oracle and by the embedded annotator, and the KL to the start."""

    options, questions = setting(work)
    network, tokenizer = load(work, model)
    out = {}
    for name, rows in questions.evaluation.items():
        asked = [row["question"] for row in rows]
        answers = lm.answer(network, tokenizer, asked, n=2, max_new_tokens=64, seed=options.seed)
        pairs = [(row, text) for row, texts in zip(rows, answers, strict=True) for text in texts]
        out[name] = {**judged(work, pairs), "kl": kl(work, network, tokenizer, pairs)}
    return out


def load(work: Path, model: Path) -> tuple[Any, Any]:
    """A model, adapters put on the starting model."""

    if not (model / "adapter_config.json").is_file():
        return lm.load(model)
    from peft import PeftModel

    base, tokenizer = lm.load(start_model(work))
    return PeftModel.from_pretrained(base, model).merge_and_unload(), tokenizer


def judged(work: Path, pairs: Sequence[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    """Truth, and what the embedded annotator says of the same answers, as it comes and calibrated."""
    from annotators import load_annotator
    from annotators.operating import Calibration
    from annotators.records import hallucination_rate
    from mitigate.recipes.results import figures

    records = [{"question": r["question"], "reference": r["reference"], "answer": text} for r, text in pairs]
    truth = [one.to_dict() for one in oracle(work).annotate_batch(records)]
    annotator = load_annotator("embedded")
    seen = [s for one in annotator.annotate_batch(records) for s in one.sentences]
    fitted = Calibration.load(calibration(work))
    labels = [s["label"] for row in truth for s in row["sentences"]]
    return {
        **figures(truth),
        "abstentions": labels.count("no_fact") / max(len(labels), 1),
        "words": sum(len(text.split()) for _, text in pairs) / max(len(pairs), 1),
        "by_embedded": hallucination_rate(s.label for s in seen),
        "by_calibrated": hallucination_rate(fitted.apply(s).label for s in seen),
        "embedded": annotator.fingerprint,
    }


def kl(work: Path, network: Any, tokenizer: Any, pairs: Sequence[tuple[dict[str, Any], str]]) -> float:
    """KL(model ‖ start) in nats an answer, estimated on the model's own answers: mean of Σ_t log π(t) − log π₀(t)."""
    import torch

    start, _ = lm.load(start_model(work))
    total = 0.0
    for row, text in pairs:
        prompt = tokenizer(f"<|user|>{row['question']}<|assistant|>")["input_ids"]
        ids = torch.tensor([prompt + tokenizer(f"{text}<|end|>")["input_ids"]])
        with torch.inference_mode():
            new, old = (
                model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1).gather(1, ids[0, len(prompt) :, None])
                for model in (network, start)
            )
        total += float((new - old).sum())
    return total / max(len(pairs), 1)


def sft(work: Path, seed: int) -> dict[str, Any]:
    """What labelled answers would give: as many true answers as the other arms sample, about the same entities."""
    import random

    options, questions = setting(work, seed=seed)
    network, tokenizer = lm.load(start_model(work))
    world = load_world(work / "world")
    rng = random.Random(seed)
    n = options.trainer.steps * options.trainer.prompts * options.trainer.group
    texts = []
    for i in range(n):
        row = questions.train[i % len(questions.train)]
        entity = world.by_name[row["id"]]
        texts.append((row["question"], true_answer(rng, Question(row["question"], entity, None, False))))
    lm.train(network, tokenizer, texts, learning_rate=1e-3, seed=seed)
    lm.save(network, tokenizer, work / "runs" / f"sft-oracle-{seed}" / "model")
    return {"figures": evaluate(work, work / "runs" / f"sft-oracle-{seed}" / "model")}


def best_of_n(work: Path, reward: str, seed: int) -> dict[str, Any]:
    """Nothing trained: of eight answers of the starting model the one that the reward's annotator likes best."""
    from mitigate.inference.correct import best_of

    options, questions = setting(work, *asking(work, reward))
    network, tokenizer = lm.load(start_model(work))
    judge = options.load_annotator(options.reward.annotator)
    out = {}
    for name, rows in questions.evaluation.items():
        asked = [row["question"] for row in rows]
        answers = lm.answer(network, tokenizer, asked, n=BEST_OF, max_new_tokens=64, seed=100 + seed)
        chosen = []
        for row, texts in zip(rows, answers, strict=True):
            found = judge.annotate_batch({"reference": row["reference"], "answer": text} for text in texts)
            chosen.append((row, texts[best_of(found) or 0]))
        out[name] = judged(work, chosen)
    return {"figures": out}


def agreement(work: Path) -> dict[str, Any]:
    """The embedded annotator against the oracle on sentences that the starting model wrote."""
    from annotators import load_annotator
    from annotators.operating import Calibration

    _, questions = setting(work)
    network, tokenizer = lm.load(start_model(work))
    rows, gold, groups = [], [], []
    for asked in questions.evaluation.values():
        answers = lm.answer(network, tokenizer, [row["question"] for row in asked], max_new_tokens=64, seed=2)
        records = [{"reference": r["reference"], "answer": t[0]} for r, t in zip(asked, answers, strict=True)]
        for row, one in zip(asked, oracle(work).annotate_batch(records), strict=True):
            rows += [{**one.record, "question": row["question"], "sentence": s.text} for s in one.sentences]
            gold += [str(s.label) for s in one.sentences]
            groups += [row["id"]] * len(one.sentences)
    annotator = load_annotator("embedded")
    plain = annotator.predict(rows)
    fitted = Calibration.load(calibration(work))
    return {
        "sentences": len(rows),
        "fingerprint": annotator.fingerprint,
        "plain": compared(gold, plain, groups),
        "calibrated": compared(gold, [fitted.apply(s) for s in plain], groups),
    }


def compared(gold: Sequence[str], found: Sequence[Any], groups: Sequence[str]) -> dict[str, Any]:
    """Confusion and figures of judgements beside the oracle's labels."""
    import numpy as np

    from annotators.evaluation.metrics import bootstrap, statistics
    from annotators.records import LABELS

    predicted = [s.label for s in found]
    measured = statistics(gold, predicted, [s.scores for s in found], [False] * len(gold))
    ends = bootstrap(measured, groups)
    both = list(zip(gold, predicted, strict=True))
    return {
        "confusion": {one: {other: both.count((one, other)) for other in LABELS} for one in LABELS},
        "figures": {name: [f(np.ones(len(gold))), ends[name]] for name, f in measured.items()},
    }


if __name__ == "__main__":
    main()
