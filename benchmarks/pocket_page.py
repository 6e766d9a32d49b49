"""The page of ``benchmarks/pocket_grpo.py``: tables, curves, and the embedded annotator beside the oracle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

NAMES = {
    "start": "before",
    "stock": "GRPO, scalar (stock TRL)",
    "sentence": "GRPO, sentences (ours)",
    "dpo": "DPO",
    "mask-dpo": "Mask-DPO",
}
COLOURS = {"stock": "tab:gray", "sentence": "tab:blue", "dpo": "tab:olive", "mask-dpo": "tab:red"}


def agreement(work: Path, sides: tuple[Any, list[Any], list[Any]]) -> dict[str, Any]:
    """The embedded annotator against the oracle on sentences that the language model wrote."""
    from annotators import load_annotator
    from annotators.intervals import bootstrap
    from annotators.metrics import statistics
    from annotators.records import LABELS
    from mitigate.pocket import Oracle, lm
    from mitigate.pocket.measure import judge
    from mitigate.pocket.texts import questions

    world, _, apart = sides
    model, tokenizer = lm.load(work / "lm")
    asked = questions(apart, 1, held_out=True, seed=2)
    judged = judge(Oracle(world), asked, lm.answer(model, tokenizer, [q.text for q in asked], seed=2))
    rows, gold, groups = [], [], []
    for question, one in zip(asked, judged, strict=True):
        for sentence in one.sentences:
            rows.append({**one.record, "sentence": sentence.text})
            gold.append(str(sentence.label))
            groups.append(question.entity.name)
    found = load_annotator("embedded").predict(rows)
    predicted, scores = [s.label for s in found], [s.scores for s in found]
    figures = statistics(gold, predicted, scores, [False] * len(rows))
    intervals = bootstrap(figures, groups)
    import numpy as np

    ones = np.ones(len(rows))
    return {
        "sentences": len(rows),
        "answers": len(asked),
        "gold": {label: gold.count(label) for label in sorted(set(gold))},
        "confusion": {
            label: {
                other: sum((g, p) == (label, other) for g, p in zip(gold, predicted, strict=True))
                for other in LABELS
            }
            for label in LABELS
        },
        "majority": max(gold.count(label) for label in set(gold)) / len(gold),
        "figures": {name: [f(ones), intervals[name]] for name, f in figures.items()},
    }


def write_page(work: Path, output: Path, setting: dict[str, Any]) -> None:
    """Write the page and its curves from the finished parts in ``work``."""
    from benchmarks.fewl_common import environment, table
    from mitigate.pocket.texts import P_TRUE

    steps, seeds, sampled = setting["steps"], setting["seeds"], setting["prompts"] * setting["group"]
    read = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in work.glob("*.json")}
    runs = {
        arm: [read[k] for s in range(seeds) if (k := f"{arm}-{s}-{steps}") in read] for arm in setting["arms"]
    }
    runs = {arm: rows for arm, rows in runs.items() if rows}
    plot(runs, read["start"], output.with_suffix(".png"))
    base, agreed = read["lm"], read["agreement"]
    sections = [
        "# Sentence-level GRPO against scalar GRPO in the pocket world (simulated)",
        f"Command: `python -m benchmarks.pocket_grpo --steps {steps} --seeds {seeds}`. {environment()}, trl "
        f"{version('trl')}; one CPU thread. Everything here is simulated: the world is invented, the judge of the "
        "reward is the oracle that invented it, and the model is tiny. Nothing here says how large any effect is on a "
        "real model.",
        f"**Model.** {base['parameters']:,} parameters, trained from scratch on {base['pairs']:,} flawed answers about "
        f"{base['entities']} entities ({base['cpu_seconds']:.0f} CPU-seconds; loss {base['first_loss']:.2f} → "
        f"{base['last_loss']:.2f} nats a token). A claim in them is true with probability {P_TRUE}; documents leave "
        "out one of six attributes, so about one claim in six is unverifiable whatever it says.",
        f"**Budget.** {steps} steps of {setting['prompts']} questions × {setting['group']} answers "
        f"({steps * sampled:,} sampled answers) about {setting['trained']} entities, the same questions "
        "for all arms of a seed. The reward of both GRPO arms is one object: `SentenceReward(Oracle(world), "
        f"aspects={setting['aspects']})`; β = 0, learning rate 1e-3. DPO arms sample the same number of answers "
        f"from the starting model and pair best against worst: {setting['epochs']} epochs, losses "
        "sigmoid_norm + sft, β = 1, learning rate 5e-4.",
        "**Questions asked** are in wordings that no training used. *Trained*: the entities of the budget above. "
        f"*Kept apart*: {setting['evaluated']} entities that the methods never saw (the starting model knows them). "
        f"Answers are sampled at temperature 1. Mean over the {seeds} seeds, or as many as the table says, in "
        "brackets the lowest and highest. *True sentences* counts distinct wordings, so the same fact said in two ways "
        "counts twice.",
        table(
            ["arm", "seeds", "hallucinated, trained", "hallucinated, kept apart", "true sentences an answer, trained",
             "sentences an answer, trained", "no fact, trained"],
            [row("start", [read["start"]]), *(row(arm, rows) for arm, rows in runs.items())],
        ),
        f"![Curves]({output.with_suffix('.png').name})",
        "Greedy answers (temperature 0):",
        table(
            ["arm", "seeds", "hallucinated, trained", "hallucinated, kept apart", "true sentences an answer, trained",
             "sentences an answer, trained", "no fact, trained"],
            [row("start", [read["start"]], "greedy"), *(row(a, r, "greedy") for a, r in runs.items())],
        ),
        "CPU-seconds a run, evaluations included: "
        + ", ".join(
            f"{NAMES[arm]} {sum(r['cpu_seconds'] for r in rows) / len(rows):.0f}"
            for arm, rows in runs.items()
        )
        + ".",
        "## Differences",
        differences(runs),
        "## The embedded annotator against the oracle",
        f"{agreed['sentences']:,} sentences of {agreed['answers']} answers of the starting model; the oracle calls "
        + ", ".join(f"{n} {label}" for label, n in agreed["gold"].items())
        + f" (always the commonest label: {agreed['majority']:.2f}). Bootstrap over entities, 95 %.",
        table(
            ["figure", "value", "interval"],
            [
                [name, f"{value:.3f}", f"{ends[0]:.3f}–{ends[1]:.3f}" if ends else ""]
                for name, (value, ends) in agreed["figures"].items()
                if value is not None
            ],
        ),
        "How often each oracle label (rows) was called what by the embedded annotator (columns):",
        table(
            ["oracle", *agreed["confusion"]],
            [[label, *counts.values()] for label, counts in agreed["confusion"].items()],
        ),
    ]  # fmt: skip
    output.parent.mkdir(parents=True, exist_ok=True)
    kept = ""
    if output.is_file():  # what people wrote below the marker stays
        kept = output.read_text(encoding="utf-8").partition(MARKER)[2]
    output.write_text("\n\n".join(sections) + f"\n\n{MARKER}{kept or chr(10)}", encoding="utf-8")
    print(f"written: {output}")


MARKER = "<!-- written by hand from here -->"


def row(arm: str, rows: Sequence[dict[str, Any]], how: str = "sampled") -> list[str]:
    cells = [NAMES[arm], str(len(rows)) if arm != "start" else ""]
    for side, figure in (
        ("trained", "hallucination_rate"),
        ("apart", "hallucination_rate"),
        ("trained", "supported"),
        ("trained", "sentences"),
        ("trained", "no_fact"),
    ):
        values = [r[how][side][figure] for r in rows if r[how][side][figure] is not None]
        digits = 2 if figure in {"supported", "sentences"} else 3
        cells.append(
            f"{sum(values) / len(values):.{digits}f}"
            + (f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else "")
            if values
            else "–"
        )
    return cells


def differences(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Paired by seed: ours minus the control, for each pair of arms."""
    lines = []
    for ours, control in (("sentence", "stock"), ("mask-dpo", "dpo")):
        if ours not in runs or control not in runs:
            continue
        for side, words in (("trained", "trained entities"), ("apart", "entities kept apart")):
            gaps = [
                a["sampled"][side]["hallucination_rate"] - b["sampled"][side]["hallucination_rate"]
                for a, b in zip(runs[ours], runs[control], strict=False)  # finished in order of seeds
            ]
            lines.append(
                f"- {NAMES[ours]} minus {NAMES[control]}, hallucination rate, {words}, seed by seed: "
                + ", ".join(f"{gap:+.3f}" for gap in gaps)
            )
    return "\n".join(lines) or "Not all arms were run."


def plot(runs: dict[str, list[dict[str, Any]]], start: dict[str, Any], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = (
        ("trained", "hallucination_rate", "hallucination rate, trained entities"),
        ("apart", "hallucination_rate", "hallucination rate, kept apart"),
        ("trained", "supported", "true sentences an answer, trained"),
    )
    for place, (side, name, title) in enumerate(panels, 1):
        axes = figure.add_subplot(1, 3, place)
        for arm, rows in runs.items():
            for seed, run in enumerate(rows):
                points = [(0.0, start["sampled"]), *((p["share"], p) for p in run["curve"])]
                axes.plot(
                    [x for x, _ in points],
                    [p[side][name] for _, p in points],
                    color=COLOURS[arm],
                    alpha=0.8,
                    label=NAMES[arm] if seed == 0 else None,
                )
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("share of the run")
        axes.set_ylim(bottom=0)
    figure.axes[0].legend(fontsize=7)
    figure.suptitle("Pocket world (simulated), one line a seed", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
