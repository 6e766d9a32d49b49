"""The page of ``benchmarks/pocket_proof.py``: tables over seeds, steps to half the rate, curves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.fewl_common import environment, table
from benchmarks.pocket_proof import (
    ARMS,
    BEST_OF,
    CALIBRATED_BETA,
    CALIBRATED_ON,
    SEEDS,
    VARIANT_SEEDS,
    VARIANTS,
    oracle,
    setting,
    start_model,
)

NAMES = {
    "stock": "GRPO, scalar (stock TRL)",
    "gamma0": "GRPO, sentences, γ = 0",
    "gamma1": "GRPO, sentences, γ = 1",
    "mask-dpo": "Mask-DPO",
    "best-of-8": f"best of {BEST_OF} (nothing trained)",
    "sft": "SFT on true answers",
    "kl": "β = 0.2",
    "wide": "48 trained entities instead of 16, so only the other 16 are kept apart",
    "abstain": "no_fact worth 0 instead of nothing",
    "kl-embedded": "β = 0.2",
    "calibrated-no-kl": "β = 0",
}
COLOURS = {"stock": "tab:gray", "gamma0": "tab:blue", "gamma1": "tab:green"}
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, two-sided 95 %, n − 1 degrees of freedom
SMOOTHED = 5
MARKER = "<!-- written by hand from here -->"
Part = dict[str, Any]


def write_page(work: Path, output: Path) -> None:
    """Write the page and its curves from the parts in ``work``; what is missing is said."""
    parts = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(work.glob("*.json"))}
    begin = parts.pop("start")
    options, questions = setting(work)
    found = {
        reward: {arm: runs for arm in (*ARMS, "best-of-8", "sft") if (runs := of(parts, arm, reward))}
        for reward in SEEDS
    }
    first = begin["figures"]["trained on"]["rate"]
    plot(found, output.with_suffix(".png"))
    trainer = options.trainer
    known, about = (len({row["id"] for row in rows}) for rows in questions.evaluation.values())
    answers = trainer.steps * trainer.prompts * trainer.group
    apart = len(questions.evaluation["kept apart"]) * 2
    labelled = sum(1 for _ in (work / "labelled.jsonl").open(encoding="utf-8"))
    sections = [
        "# Does a sentence reward make a model hallucinate less? The pocket world (simulated)",
        f"Command: `python -m benchmarks.pocket_proof`. {environment()}, trl {version('trl')}; one thread of a 2-core "
        f"CPU machine. Everything here is simulated: the world is invented, the model has {parameters(work):,} "
        "parameters. Nothing here says how large an effect is on a real model. Not run on a GPU.",
        f"**Setting.** The starting model learned {known + about} entities from flawed texts. Training asks "
        f"about {known} of them (*trained on*); the model knows the others too, but no method "
        f"asks about them (*kept apart*). All trained arms see {answers:,} answers: GRPO {trainer.steps} steps of "
        f"{trainer.prompts} questions × {trainer.group} answers, Mask-DPO the same number sampled before training, SFT "
        f"as many true answers. GRPO arms differ in credit only: reward `{options.reward.aspects}`, learning rate "
        f"{trainer.learning_rate:g}, β = {trainer.beta:g}. Learning rates of 5e-4 and 1e-3 were tried with seed 0 on "
        "another starting model; 5e-4 was better for the scalar and is used for all. *Calibrated*: the embedded "
        f"annotator after `mitigate calibrate` on the {labelled} sentences of {CALIBRATED_ON} answers of the starting "
        "model about entities trained on, labelled by the oracle; its GRPO arms have "
        f"β = {CALIBRATED_BETA:g}. Evaluation asks in wordings that no training used, at temperature 1; the truth of "
        "every sentence is the oracle's.",
        f"**Reading the tables.** Mean over seeds ± half of its 95 % interval (Student's t over seeds; {apart} answers "
        "a set and seed). *Hallucinated*: contradictory or unverifiable, of factual sentences. *Supported*: true and "
        "distinct sentences an answer. *Abstains*: sentences that claim nothing. *KL*: to the starting model, nats an "
        "answer.",
    ]
    for reward, arms in found.items():
        sections += [f"## The reward asks the {title(reward, begin)}", missing(arms, reward)]
        for side in ("trained on", "kept apart"):
            rows = [result_row("before", [begin], side), *(result_row(NAMES[a], r, side) for a, r in arms.items())]
            sections.append(table(head(side), rows))
        if timed := [
            timing_row(arm, runs, first) for arm, runs in arms.items() if runs[0].get("curve") and arm in COLOURS
        ]:
            sections.append(table(TIMING, timed))
    sections += [
        f"Steps to half: first step at which the mean over {SMOOTHED} steps of the true rate of the training samples "
        f"is at most half of {first:.3f}, the starting model's rate on the same entities.",
        f"![Curves]({output.with_suffix('.png').name})",
        "## What the reward sees and what is true",
        gaps(found, begin),
        "## Broken language",
        "Share of sentences that are none of this world's language, which the oracle calls unverifiable (answers of "
        "the run folders, one a question).",
        table(
            ["reward", "arm", "trained on, before", "after", "kept apart, before", "after"],
            [
                [reward, NAMES[arm], *broken_cells(work, arm, reward)]
                for reward in SEEDS
                for arm in (*ARMS, *VARIANTS)
                if of(parts, arm, reward)
            ],
        ),
        "## Tried beside (γ = 0, seed 0)",
        missing({arm: of(parts, arm, VARIANTS[arm][0]) for arm in VARIANTS}, "variants"),
        table(VARIED, varied(parts, found)),
        "## The embedded annotator against the oracle",
        agreement(begin["agreement"]),
    ]
    kept = output.read_text(encoding="utf-8").partition(MARKER)[2] if output.is_file() else ""
    text = "\n\n".join(section for section in sections if section)
    output.write_text(f"{text}\n\n{MARKER}{kept or chr(10)}", encoding="utf-8")
    print(f"written: {output}")


def of(parts: dict[str, Part], arm: str, reward: str) -> list[Part]:
    """The parts of an arm in order of seeds, those that are there."""
    names = (f"{arm}-{reward}-{seed}" for seed in range(max(SEEDS.values())))
    return [parts[name] for name in names if name in parts]


def parameters(work: Path) -> int:
    from examples.pocket import lm

    return sum(p.numel() for p in lm.load(start_model(work))[0].parameters())


def title(reward: str, begin: Part) -> str:
    if reward == "oracle":
        return "oracle"
    name = f"embedded annotator (fingerprint {begin['agreement']['fingerprint']})"
    return name if reward == "embedded" else f"{name}, calibrated, with KL"


def missing(arms: dict[str, list[Part]], reward: str) -> str:
    """Which seeds are not there, "" where none is missing."""
    planned = VARIANT_SEEDS if reward == "variants" else SEEDS[reward]
    every = list(VARIANTS) if reward == "variants" else [*ARMS, "best-of-8", *(["sft"] if reward == "oracle" else [])]
    short = [f"{NAMES[arm]} {len(arms.get(arm, []))} of {planned}" for arm in every if len(arms.get(arm, [])) < planned]
    return f"Seeds that were not run for lack of time: {'; '.join(short)}." if short else ""


def spread(values: Sequence[float | None], digits: int = 3) -> str:
    """Mean ± half of the 95 % interval over seeds."""
    known = [v for v in values if v is not None]
    if not known:
        return "–"
    mean, n = sum(known) / len(known), len(known)
    if n < 2:
        return f"{mean:.{digits}f}"
    deviation = math.sqrt(sum((v - mean) ** 2 for v in known) / (n - 1))
    return f"{mean:.{digits}f} ± {T_95[n] * deviation / math.sqrt(n):.{digits}f}"


def head(side: str) -> list[str]:
    return [f"entities {side}", "seeds", "hallucinated", "supported", "sentences", "words", "abstains", "KL"]


def result_row(name: str, runs: Sequence[Part], side: str) -> list[str]:
    sides = [run["figures"][side] for run in runs]
    figures = (("rate", 3), ("supported", 2), ("sentences", 2), ("words", 1), ("abstentions", 3), ("kl", 1))
    return [
        name,
        "" if name == "before" else str(len(runs)),
        *(spread([one.get(figure) for one in sides], digits) for figure, digits in figures),
    ]


TIMING = ["arm", "seeds that reach half the rate", "steps to half", "CPU-seconds to half", "CPU-seconds a step"]


def smoothed(run: Part) -> list[tuple[int, float]]:
    """(step, mean of the true rate over the last SMOOTHED steps), from the first whole mean on."""
    rates = [(row["step"], row["rate"]) for row in run["curve"] if row["rate"] is not None]
    return [
        (rates[i][0], sum(rate for _, rate in rates[i - SMOOTHED + 1 : i + 1]) / SMOOTHED)
        for i in range(SMOOTHED - 1, len(rates))
    ]


def steps_to_half(run: Part, first: float) -> int | None:
    """The step at which half the first rate is reached, None where it is not."""
    return next((step for step, rate in smoothed(run) if rate <= first / 2), None)


def timing_row(arm: str, runs: Sequence[Part], first: float) -> list[str]:
    last = runs[0]["curve"][-1]["step"]
    reached = [steps_to_half(run, first) for run in runs]
    each = [sum(row["cpu_seconds"] for row in run["curve"]) / len(run["curve"]) for run in runs]
    shown = ", ".join(str(step) if step is not None else f"more than {last}" for step in reached)
    seconds = ", ".join(
        f"{step * one:.0f}" if step is not None else "–" for step, one in zip(reached, each, strict=True)
    )
    return [
        NAMES[arm],
        f"{sum(s is not None for s in reached)} of {len(runs)}",
        shown,
        seconds,
        f"{sum(each) / len(each):.2f}",
    ]


def gaps(found: dict[str, dict[str, list[Part]]], begin: Part) -> str:
    """By the embedded annotator, and in truth."""
    head = [
        "reward",
        "arm",
        "by the annotator, trained on",
        "in truth",
        "gap",
        "by the annotator, kept apart",
        "in truth",
        "gap",
    ]
    rows = [[f"– ({by})", "before", *gap_cells([begin], by)] for by in ("embedded", "calibrated")]
    rows += [
        [reward, NAMES[arm], *gap_cells(runs, reward)] for reward, arms in found.items() for arm, runs in arms.items()
    ]
    note = (
        "Gap: the rate by the embedded annotator, calibrated where the reward is, minus the true one. A policy that "
        "learns to please the annotator "
        "rather than to be right would push it below the gap of the arms that the oracle rewards."
    )
    return note + "\n\n" + table(head, rows)


def gap_cells(runs: Sequence[Part], reward: str) -> list[str]:
    cells, key = [], "by_calibrated" if reward == "calibrated" else "by_embedded"
    for side in ("trained on", "kept apart"):
        pairs = [(run["figures"][side][key], run["figures"][side]["rate"]) for run in runs]
        cells += [spread([a for a, _ in pairs]), spread([b for _, b in pairs])]
        cells.append(spread([a - b for a, b in pairs if a is not None and b is not None]))
    return cells


def broken_cells(work: Path, arm: str, reward: str) -> list[str]:
    """For each set, before and after, over the seeds that are there."""
    from mitigate.recipes.folder import DONE, SAMPLES, read_rows

    claims = oracle(work).claims
    shares: dict[tuple[str, str], list[float]] = {}
    for folder in sorted((work / "runs").glob(f"{arm}-{reward}-[0-9]*")):
        rows = list(read_rows(folder / SAMPLES)) if (folder / DONE).is_file() else []
        for key in {(row["set"], row["when"]) for row in rows}:
            texts = [s["text"] for row in rows if (row["set"], row["when"]) == key for s in row["sentences"]]
            shares.setdefault(key, []).append(sum(claims(text) is None for text in texts) / len(texts))
    keys = [(name, when) for name in ("trained on", "kept apart") for when in ("before", "after")]
    return [spread(shares.get(key, [])) for key in keys]


VARIED = ["reward", "change", "hallucinated, trained on", "kept apart", "supported, trained on", "kept apart", "KL"]


def varied(parts: dict[str, Part], found: dict[str, dict[str, list[Part]]]) -> list[list[str]]:
    rows = []
    for reward in SEEDS:
        rows.append([reward, "none", *varied_cells(found[reward].get("gamma0", [])[:1])])
        for arm, (own, _) in VARIANTS.items():
            if own == reward and (runs := of(parts, arm, reward)):
                rows.append([reward, NAMES[arm], *varied_cells(runs)])
    return rows


def varied_cells(runs: Sequence[Part]) -> list[str]:
    sides = ("trained on", "kept apart")
    cells = [(side, figure, digits) for figure, digits in (("rate", 3), ("supported", 2)) for side in sides]
    return [
        spread([run["figures"][side].get(figure) for run in runs], digits)
        for side, figure, digits in [*cells, ("trained on", "kl", 1)]
    ]


def agreement(agreed: Part) -> str:
    """Figures and confusions of the annotator as it comes and calibrated."""
    kinds = {"as it comes": agreed["plain"], "calibrated": agreed["calibrated"]}
    cells = {
        kind: {
            name: f"{value:.3f}" + (f" ({ends[0]:.3f}–{ends[1]:.3f})" if ends else "")
            for name, (value, ends) in one["figures"].items()
            if value is not None
        }
        for kind, one in kinds.items()
    }
    names = list(cells["as it comes"])
    figures = table(["figure", *kinds], [[name, *(cells[kind][name] for kind in kinds)] for name in names])
    confusions = [
        f"{kind.capitalize()}:\n\n"
        + table(["oracle", *one["confusion"]], [[k, *v.values()] for k, v in one["confusion"].items()])
        for kind, one in kinds.items()
    ]
    return (
        f"{agreed['sentences']:,} sentences of the starting model, entities trained on and kept apart; embedded "
        f"annotator of fingerprint {agreed['fingerprint']}; 95 % intervals over entities.\n\n{figures}\n\nHow often "
        "each label of the oracle (rows) was called what by the annotator (columns).\n\n" + "\n\n".join(confusions)
    )


def plot(found: dict[str, dict[str, list[Part]]], path: Path) -> None:
    """The true rate of training samples, and true distinct sentences, step by step; one line a seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels: list[tuple[str, str, Callable[[Part], list[tuple[int, float]]]]] = [
        (reward, f"hallucinated in truth, reward: {reward}", smoothed) for reward in SEEDS
    ]
    panels += [(reward, f"supported an answer, reward: {reward}", supported) for reward in SEEDS]
    for place, (reward, name, points) in enumerate(panels, 1):
        axes = figure.add_subplot(2, len(SEEDS), place)
        for arm, colour in COLOURS.items():
            for seed, run in enumerate(found[reward].get(arm, [])):
                axes.plot(*zip(*points(run), strict=True), color=colour, alpha=0.75, label=None if seed else NAMES[arm])
        axes.set_title(name, fontsize=8)
        axes.set_xlabel("step")
        axes.set_ylim(bottom=0)
    figure.axes[0].legend(fontsize=7)
    figure.suptitle(f"Pocket world (simulated): answers sampled in training, means over {SMOOTHED} steps", fontsize=9)
    figure.savefig(path, dpi=130)


def supported(run: Part) -> list[tuple[int, float]]:
    rows = run["curve"]
    return [
        (rows[i]["step"], sum(row["supported"] for row in rows[i - SMOOTHED + 1 : i + 1]) / SMOOTHED)
        for i in range(SMOOTHED - 1, len(rows))
    ]
