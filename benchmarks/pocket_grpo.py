"""Does credit by sentence teach a model to hallucinate less? The pocket world's answer (simulated).

    python -m benchmarks.pocket_grpo --work out/pocket --output docs/results/pocket-grpo.md

A language model of 1.1 million parameters learns an invented world from flawed texts. With the oracle as the
annotator of one and the same reward, SentenceGRPOTrainer is set against the stock GRPOTrainer, which sees the
reward's scalar; Mask-DPO and plain DPO get as many sampled answers. Last, the embedded annotator is compared with the
oracle. Every part is kept in the work folder as it is done: run the command again to go on. Runs on one CPU thread.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from benchmarks.pocket_page import agreement, write_page

ARMS = ("stock", "sentence", "dpo", "mask-dpo")
TRAINED_PER_KIND = 6  # entities that the methods see; the rest is kept apart
PROMPTS, GROUP = 8, 8  # prompts a step, answers a prompt
EVALUATED = 64  # entities of each side that are asked about
ASPECTS = {"factuality": 1.0, "length": 0.3}
DPO_EPOCHS = 2


def main() -> None:
    """Train what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("out/pocket"), help="where finished parts are kept")
    parser.add_argument("--output", type=Path, default=Path("docs/results/pocket-grpo.md"))
    parser.add_argument("--steps", type=int, default=30, help="GRPO steps of 8 prompts with 8 answers")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", nargs="*", default=list(ARMS), choices=ARMS)
    parser.add_argument(
        "--page", action="store_true", help="train nothing, write the page of what is finished"
    )
    args = parser.parse_args()
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    args.work.mkdir(parents=True, exist_ok=True)
    once(args.work / "lm.json", lambda: train_lm(args.work / "lm"))
    once(args.work / "start.json", lambda: evaluate_start(args.work))
    for seed in range(args.seeds):
        for arm in () if args.page else args.arms:
            once(
                args.work / f"{arm}-{seed}-{args.steps}.json",
                lambda arm=arm, seed=seed: run_arm(arm, seed, args.steps, args.work),
            )
    once(args.work / "agreement.json", lambda: agreement(args.work, sides()))
    setting = {
        "arms": ARMS,
        "steps": args.steps,
        "seeds": args.seeds,
        "prompts": PROMPTS,
        "group": GROUP,
        "trained": 4 * TRAINED_PER_KIND,
        "evaluated": EVALUATED,
        "aspects": ASPECTS,
        "epochs": DPO_EPOCHS,
    }
    write_page(args.work, args.output, setting)


def once(path: Path, function: Callable[[], Any]) -> Any:
    """The result of a function, computed and kept the first time."""
    if not path.is_file():
        print(f"{path.stem} …", flush=True)
        start = time.process_time()
        result = {**function(), "cpu_seconds": time.process_time() - start}
        part = path.with_suffix(".part")
        part.write_text(json.dumps(result), encoding="utf-8")
        part.replace(path)
        print(path.stem, json.dumps({k: v for k, v in result.items() if k != "curve"}), flush=True)
    return json.loads(path.read_text(encoding="utf-8"))


def sides() -> tuple[Any, list[Any], list[Any]]:
    """The world, the entities that methods train on, and those kept apart."""
    from mitigate.pocket import build_world

    world = build_world(0)
    seen = list(world.entities[: 4 * TRAINED_PER_KIND])
    return world, seen, list(world.entities[4 * TRAINED_PER_KIND :])


def train_lm(folder: Path) -> dict[str, Any]:
    from mitigate.pocket import lm
    from mitigate.pocket.texts import training_pairs

    world = sides()[0]
    pairs = training_pairs(world)
    tokenizer = lm.build_tokenizer([text for pair in pairs[:3000] for text in pair])
    model = lm.build_model(tokenizer)
    losses = lm.train(model, tokenizer, pairs, learning_rate=4e-3)
    lm.save(model, tokenizer, folder)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "pairs": len(pairs),
        "entities": len(world.entities),
        "first_loss": losses[0],
        "last_loss": sum(losses[-20:]) / 20,
    }


# --- evaluation ---------------------------------------------------------------------------------------------------


def evaluate(model: Any, tokenizer: Any, *, temperature: float = 1.0, seed: int = 0) -> dict[str, Any]:
    """Figures on held-out wordings, for trained entities and for those kept apart; one sampled answer a question."""
    from mitigate.pocket import Oracle, lm
    from mitigate.pocket.measure import judge, measure
    from mitigate.pocket.texts import questions

    world, seen, apart = sides()
    oracle = Oracle(world)
    out: dict[str, Any] = {}
    for name, entities in (("trained", seen), ("apart", apart[:EVALUATED])):
        asked = questions(entities, 4 if name == "trained" else 1, held_out=True, seed=1)
        answers = lm.answer(model, tokenizer, [q.text for q in asked], temperature=temperature, seed=seed)
        out[name] = measure(judge(oracle, asked, answers))
    return out


def evaluate_start(work: Path) -> dict[str, Any]:
    from mitigate.pocket import lm

    model, tokenizer = lm.load(work / "lm")
    return {
        "sampled": evaluate(model, tokenizer),
        "greedy": evaluate(model, tokenizer, temperature=0.0),
    }


# --- training -----------------------------------------------------------------------------------------------------


def run_arm(arm: str, seed: int, steps: int, work: Path) -> dict[str, Any]:
    """Train one arm with one seed."""
    from transformers import TrainerCallback

    from mitigate.pocket import lm

    model, tokenizer = lm.load(work / "lm")
    curve: list[dict[str, Any]] = []

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in {-(-state.max_steps * k // 3) for k in (1, 2, 3)}:
                was = model.training
                found = evaluate(model, tokenizer, seed=seed)
                curve.append({"share": state.global_step / state.max_steps, **found})
                model.train(was)

    common: dict[str, Any] = {
        "output_dir": str(work / "trainer"),
        "seed": seed,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": max(1, steps // 3),
        "dataloader_pin_memory": False,
        "lr_scheduler_type": "constant",
    }
    train = train_dpo if arm.endswith("dpo") else train_grpo
    details = train(arm, seed, steps, model, tokenizer, common, Watch())
    return {
        "curve": curve,
        "sampled": {side: curve[-1][side] for side in ("trained", "apart")},
        "greedy": evaluate(model, tokenizer, temperature=0.0),
        **details,
    }


def asked_of(seed: int, n: int) -> list[Any]:
    """The first ``n`` training questions of a seed, going round the trained entities."""
    from mitigate.pocket.texts import questions

    seen = sides()[1]
    rounds = -(-n // len(seen))
    by_entity = questions(seen, rounds, held_out=False, seed=100 + seed)
    return [by_entity[e * rounds + r] for r in range(rounds) for e in range(len(seen))][:n]


def train_grpo(
    arm: str, seed: int, steps: int, model: Any, tokenizer: Any, common: dict[str, Any], watch: Any
) -> dict[str, Any]:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from mitigate.grpo import SentenceGRPOTrainer
    from mitigate.pocket import Oracle
    from mitigate.rewards import SentenceReward

    reward = SentenceReward(Oracle(sides()[0]), aspects=ASPECTS, eos_token_ids=tokenizer.eos_token_id)
    rows = [
        {
            "prompt": [{"role": "user", "content": q.text}],
            "question": q.text,
            "reference": q.entity.document.text,
        }
        for q in asked_of(seed, PROMPTS * steps)
    ]
    config = GRPOConfig(
        **common,
        max_steps=steps,
        per_device_train_batch_size=PROMPTS * GROUP,
        num_generations=GROUP,
        max_completion_length=96,
        learning_rate=1e-3,
        temperature=1.0,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="group",
        importance_sampling_level="token",
        remove_unused_columns=False,
    )
    trainer = {"stock": GRPOTrainer, "sentence": SentenceGRPOTrainer}[arm](
        model,
        reward,
        config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[watch],
    )
    trainer.train()
    return {"answers": steps * PROMPTS * GROUP}


def train_dpo(
    arm: str, seed: int, steps: int, model: Any, tokenizer: Any, common: dict[str, Any], watch: Any
) -> dict[str, Any]:
    """DPO on pairs of as many sampled answers as GRPO sees, all sampled before training."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    from mitigate.dpo import MASK_DPO, MaskedPreferenceCollator
    from mitigate.pocket import Oracle, lm
    from mitigate.pocket.measure import judge
    from mitigate.preferences import build_pairs

    asked = asked_of(seed, PROMPTS * steps)
    answers = lm.answer(model, tokenizer, [q.text for q in asked], n=GROUP, seed=seed)
    pairs = build_pairs(one.to_dict() for one in judge(Oracle(sides()[0]), asked, answers))
    config = DPOConfig(
        **common,
        **MASK_DPO,
        num_train_epochs=DPO_EPOCHS,
        per_device_train_batch_size=16,
        learning_rate=5e-4,
        beta=1.0,
        max_length=None,
    )
    DPOTrainer(
        model,
        args=config,
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer,
        data_collator=MaskedPreferenceCollator(tokenizer) if arm == "mask-dpo" else None,
        callbacks=[watch],
    ).train()
    return {"answers": len(asked) * GROUP, "pairs": len(pairs)}


if __name__ == "__main__":
    main()
