"""Does a sentence reward make a language model hallucinate less? The pocket world (simulated), arms over seeds.

    python -m examples.pocket make
    python -m benchmarks.pocket_proof [--rewards oracle] [--arms stock gamma0] [--seeds 0 1]

Every arm is a run of a recipe of examples/pocket with a few keys changed, from one starting model, with as many sampled
answers. The reward asks the oracle, the embedded annotator as it comes, or that annotator calibrated on labelled
sentences of the starting model, with a KL penalty; the truth is always the oracle's. A run that is done is not done
again, one that was stopped goes on. Two CPU-minutes a run with the oracle, four with the annotator.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from scipy.stats import sem, t

from benchmarks.common import ROOT, Row, command, parser, row, save
from mitigate.io import read_rows, write_lines

ARMS: dict[str, tuple[str, str, tuple[str, ...]]] = {  # name → what it is, recipe, what is changed
    "stock": ("GRPO, scalar (stock TRL)", "rlhf", ("trainer.credit=sequence",)),
    "gamma0": ("GRPO, sentences, γ = 0", "rlhf", ()),
    "gamma1": ("GRPO, sentences, γ = 1", "rlhf", ("trainer.gamma=1.0",)),
    "mask-dpo": ("Mask-DPO", "mask_dpo", ()),
}
SEEDS = {"oracle": 5, "embedded": 3, "calibrated": 3}
BETA = 0.2  # weight of the KL in the GRPO arms of the calibrated annotator
SMOOTHED = 5
SETS = ("trained on", "held-out")


def run(folder: Path, recipe: str, *changes: str) -> Path:
    """The folder of a run, made or gone on with where it is not done."""
    if not (folder / "done.json").is_file():
        command("examples.pocket", "run", f"examples/pocket/{recipe}.yaml", *changes, "--output", str(folder))
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
        write_lines(labelled, rows)
        command("mitigate.cli", "calibrate", "--input", str(labelled), "--output", str(file))
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
    steps = range(SMOOTHED, len(curve) + 1)
    return next((i for i in steps if statistics.mean(curve[i - SMOOTHED : i]) <= first / 2), None)


def over_seeds(what: str, values: Sequence[float]) -> Row:
    """The mean over seeds with its 95 % interval (Student's t)."""
    n, mean = len(values), statistics.mean(values)
    half = t.ppf(0.975, n - 1) * sem(values) if n > 1 else None
    return row(what, f"{n} seeds", mean, None if half is None else (mean - half, mean + half))


def main() -> None:
    made = parser(__doc__, data=False)
    made.add_argument("--work", type=Path, default=ROOT / "out" / "pocket_proof", help="where runs are kept")
    made.add_argument("--rewards", nargs="*", choices=SEEDS, default=list(SEEDS))
    made.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    made.add_argument("--seeds", type=int, nargs="*", help="these seeds only")
    args = made.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    shown, runs = [], {}
    for reward, arm in product(args.rewards, args.arms):
        found = [one(args.work, arm, reward, seed) for seed in args.seeds or range(SEEDS[reward])]
        runs[f"{arm}, {reward}"] = found
        where = f"reward by the {reward}{'' if reward == 'oracle' else ' annotator'}, {ARMS[arm][0]}"
        for name in SETS:
            shown.append(over_seeds(f"{where}: hallucinated, entities {name}", [r["rates"][name][1] for r in found]))
        halves = [steps_to_half(r["curve"], r["rates"]["trained on"][0]) for r in found]
        said = ", ".join("more than 40" if step is None else str(step) for step in halves)
        shown.append(row(f"{where}: steps to half the rate, by seed", f"{len(found)} seeds", said))
    save("proof", "pocket_proof", shown, tables={"runs": runs}, packages=["trl"])


if __name__ == "__main__":
    main()
