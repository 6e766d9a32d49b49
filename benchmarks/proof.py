"""Does training with sentence rewards make a real language model hallucinate less? SmolLM2 on real articles, six arms.

    python -m benchmarks.proof --data ../shared/data        # questions, runs of the arms, figures, sentences to label
    python -m benchmarks.proof --labels out/proof/blind.jsonl               # the page, once these have their labels

Questions are made by program, about the title of an article or about something that its text does not tell; the text
stands in the prompt. Every arm is a run of a recipe with a few keys changed; two controls are the starting model as it
samples and at its likeliest. A run that is done is not done again, one that was stopped (also by kill -9) goes on.
``REWARD`` judges in training and picks the best of eight; ``JUDGE``, of another base, judges the held-out answers,
beside a lexical measure and labels by hand. These are given blind: blind.jsonl has 200 sentences of all arms in mixed
order; whose they are is in key.jsonl, not to be opened before. ``--set`` changes keys of the recipes that train, such
as trainer.steps=2; ``--arms`` takes some arms only.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from annotators import load_annotator
from annotators.records import HALLUCINATED, LABELS
from annotators.text.sentences import split_sentences
from annotators.text.words import stem_set, words_of
from benchmarks.common import ROOT, Row, line, mean_row, parser, save, write_rows
from mitigate.recipes.folder import read_rows
from mitigate.rewards.inputs import Answer, reference_of, specifics
from mitigate.rewards.reward import cannot_tell

# --- questions -------------------------------------------------------------------------------------------------------

HELD_OUT, UNANSWERABLE = 300, 0.25
LONGEST, SHORTEST = 600, 300  # characters of a document: the first whole sentences of an article
SAID = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def questions(data: Path) -> list[Row]:
    """A question to each usable document, in a fixed random order, with the chat that asks it."""
    path = data / "documents" / "wikipedia_2024.jsonl"
    if not path.is_file():
        sys.exit(f"skipped: data not here (expected {path}; see --data)")
    found = []
    for article in read_rows(path):
        ends = [end for _, end in split_sentences(article["text"]) if end <= LONGEST]
        text, title = article["text"][: max(ends, default=0)], re.sub(r" \(.*\)$", "", article["title"])
        # A title whose words the text doesn't have may be about something else.
        if len(text) >= SHORTEST and stem_set(title) <= stem_set(text):
            found.append((article["id"], title, text))
    rng = random.Random("proof")
    rng.shuffle(found)
    rows = []
    for i, (name, title, text) in enumerate(found):
        question, other = rng.choice(SAID["open"]).format(title=title), found[i - 1][1]
        answerable = rng.random() >= UNANSWERABLE
        if not answerable:
            told = {q: rf"(?<!\w)({'|'.join(words.split())})" for q, words in SAID["absent"].items()}
            absent = [q.format(title=title) for q, words in told.items() if not re.search(words, text, re.I)]
            if specifics(other).keys().isdisjoint(specifics(text)):
                absent += [q.format(title=other) for q in SAID["open"]]
            answerable = not absent
            question = rng.choice(absent or [question])
        chat = [{"role": "user", "content": SAID["prompt"].format(reference=text, question=question)}]
        rows.append({"id": name, "question": question, "reference": text, "prompt": chat, "answerable": answerable})
    return rows


# --- the arms --------------------------------------------------------------------------------------------------------

REWARD, JUDGE, MODEL, TEMPERATURE = "embedded-fast", "embedded", "packaged:smollm2", 0.7
ARMS: dict[str, Row] = SAID["arms"]


def run(work: Path, arm: str, seed: int, changed: Sequence[str]) -> Path:
    """The folder of an arm's run, made or gone on with where it is not done."""
    how, name = ARMS[arm], "best of 8" if arm == "base" else arm
    folder = work / f"{re.sub('[^a-z0-9]+', '-', name.lower())}-{seed}"
    if not (folder / "done.json").is_file():
        asked = [f"data={work / how['data']}", f"seed={seed}", *how["keys"], *how.get("own", [])]
        if how["data"] == "train.jsonl":
            asked += [f"evaluation.data={{held-out: {work / 'held_out.jsonl'}}}", f"evaluation.questions={HELD_OUT}"]
            asked += [f"evaluation.annotator={JUDGE}", f"evaluation.temperature={TEMPERATURE}", *changed]
        command = [sys.executable, "-m", "mitigate.cli", "run", how["recipe"], *asked, "--output", str(folder)]
        started, times = time.time(), work / "seconds.jsonl"
        try:
            subprocess.run(command, cwd=ROOT, check=True)
        finally:
            write_rows(times, [*read_rows(times), {"run": folder.name, "seconds": round(time.time() - started)}])
    return folder


def answers(folder: Path, arm: str) -> list[Row]:
    """The answers to the held-out questions, each row of these with its "answer"."""
    if ARMS[arm]["data"] == "train.jsonl":
        return [r for r in read_rows(folder / "samples.jsonl") if r["when"] == "after"]
    stage = "first" if arm == "base" else "chosen"
    return [{**r, "answer": r["stages"][stage]["answer"] or ""} for r in read_rows(folder / "results.jsonl")]


# --- what is measured -------------------------------------------------------------------------------------------------


def counted(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """What each answer has; a sentence that says that the text does not tell states nothing, whatever a judge says.

    ``specifics``: distinct numbers, names and dates of the document in sentences that JUDGE finds supported.
    ``copied``: mean density of its sentences, 1 for a copy. ``in document``: share of its content words.
    """
    labels = {name: load_annotator(name).annotate_batch(rows) for name in (JUDGE, REWARD)}
    found: list[dict[str, Any]] = []
    for i, r in enumerate(rows):
        said, reference, kinds = labels[JUDGE][i].sentences, reference_of(r["reference"]), {}
        spans = tuple((s.start, s.end) for s in said)
        answer = Answer(r["answer"], spans, False, r["reference"], r["question"], None, None)
        silent = [cannot_tell(answer, s.text) for s in said]
        for name, judged in labels.items():
            both = zip(judged[i].sentences, silent, strict=True)
            kinds[name] = ["no_fact" if quiet else s.label for s, quiet in both]
        own, words = kinds[JUDGE], words_of(r["answer"])
        told = [specifics(s.text) for s, kind in zip(said, own, strict=True) if kind == "supported"]
        known, stems = stem_set(r["reference"]), zip(words.stems, words.content, strict=True)
        content = [stem in known for stem, kept in stems if kept]
        found.append({
            "id": r["id"], "answer": r["answer"], "answerable": r["answerable"], "kinds": own, "sentences": len(said),
            "hallucinated": sum(kind in HALLUCINATED for kind in own), "supported": own.count("supported"),
            "hallucinated by the reward's annotator": sum(kind in HALLUCINATED for kind in kinds[REWARD]),
            "specifics": len({u for one in told for u, weight in one.items() if weight > 1 and u in reference.all}),
            "copied": float(np.mean([reference.density(s.text) for s in said])) if said else None,
            "in document": float(np.mean(content)) if content else None, "words": len(words),
            "abstained": bool(said) and all(silent),
        })  # fmt: skip
    return found


def divergence(folder: Path, rows: Sequence[Row], n: int = 100) -> list[float]:
    """log π(answer) − log π_base(answer), in nats, of the first ``n`` answers, which π drew: KL(π ‖ π_base) on average.

    Both at TEMPERATURE. Answers are tokenised anew, and their end is left out.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from engines.checkpoint import locate, prompt_ids

    base, tokenizer = locate(MODEL), AutoTokenizer.from_pretrained(locate(MODEL))
    chats = {r["id"]: r["prompt"] for r in read_rows(folder.parent / "held_out.jsonl")}
    sums = np.zeros((2, min(n, len(rows))))
    for own, where in zip(sums, (folder / "model", base), strict=True):
        model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32).eval()
        for i, r in enumerate(rows[:n]):
            asked, said = prompt_ids(tokenizer, chats[r["id"]]), tokenizer(r["answer"])["input_ids"]
            with torch.inference_mode():
                logits_TV = model(torch.tensor([asked + said])).logits[0, len(asked) - 1 : -1] / TEMPERATURE
            own[i] = logits_TV.log_softmax(-1)[range(len(said)), said].sum() if said else 0.0
    return list((sums[0] - sums[1]).round(4))


def measured(work: Path, arm: str, seed: int, changed: Sequence[str]) -> list[dict[str, Any]]:
    """What is counted in an arm's answers, kept beside its run."""
    folder = run(work, arm, seed, changed)
    kept = folder / f"counted-{arm.replace(' ', '-')}.jsonl"
    if not kept.is_file():
        rows = answers(folder, arm)
        found = counted(rows)
        if (folder / "model").is_dir():
            for one, nats in zip(found, divergence(folder, rows), strict=False):
                one["KL"] = nats
        write_rows(kept, found)
    return list(read_rows(kept))


# --- labels by hand, and the page -------------------------------------------------------------------------------------


PAGE = "blind|: (hallucinated|supported|specifics|copied|words|KL) an|abstained"  # the tables of its JSON have all


def blind(work: Path, found: dict[str, list[Row]], n: int) -> None:
    """Write ``n`` sentences to label, as many of each arm, and apart whose they are."""
    rng, texts, drawn = random.Random("blind"), {r["id"]: r for r in read_rows(work / "held_out.jsonl")}, []
    for arm, rows in found.items():
        said = [(arm, r, a, b) for r in rows for a, b in split_sentences(r["answer"])]
        drawn += rng.sample(said, min(len(said), n // len(found) + 1))
    rng.shuffle(drawn)
    key = [
        {"number": i, "arm": arm, "id": r["id"], "before": r["answer"][:a], "sentence": r["answer"][a:b]}
        for i, (arm, r, a, b) in enumerate(drawn[:n])
    ]
    hidden = [{"reference": texts[r["id"]]["reference"], "question": texts[r["id"]]["question"], **r} for r in key]
    write_rows(work / "key.jsonl", key)
    write_rows(work / "blind.jsonl", ({k: v for k, v in r.items() if k != "arm"} | {"label": None} for r in hidden))
    print(f"to label ({', '.join(LABELS)}): {work / 'blind.jsonl'}; then --labels with that file")


def labelled(work: Path, path: Path) -> list[Row]:
    """Labels with their arms; stops where one is missing, unknown or of another sentence."""
    given, key = list(read_rows(path)), {r["number"]: r for r in read_rows(work / "key.jsonl")}
    for r in given:
        if r["label"] not in LABELS or r["sentence"] != key.get(r["number"], {}).get("sentence"):
            wanted = f"expected one of {', '.join(LABELS)} for the sentence that was drawn"
            sys.exit(f"{path}: number {r['number']}: {wanted}, got {r['label']!r} for {r['sentence'][:60]!r}")
    if sorted(r["number"] for r in given) != sorted(key):
        sys.exit(f"{path}: expected {len(key)} labels, one of each number, got {len(given)}")
    return [{**key[r["number"]], "label": r["label"]} for r in given]


def results(found: dict[str, list[list[Row]]], labels: Sequence[Row]) -> list[Row]:
    """Rows of the page: means over held-out questions, of the mean over seeds."""
    shown = []
    for arm, seeds in found.items():
        own = [r for r in labels if r["arm"] == arm and r["label"] != "no_fact"]
        wrong = np.array([float(r["label"] in HALLUCINATED) for r in own])
        if own:
            shown.append(mean_row(f"{arm}: hallucinated by blind labels", wrong, [r["id"] for r in own], "%"))
        for name in [k for k, v in seeds[0][0].items() if not isinstance(v, str | list | bool)]:
            table = np.array([[np.nan if r.get(name) is None else r[name] for r in rows] for rows in seeds], float)
            shown.append(mean_row(f"{arm}: {name} an answer", table.mean(axis=0)))
        for what, wanted in (("rightly (of what the text does not tell)", False), ("wrongly", True)):
            table = np.array([[float(r["abstained"]) for r in rows if r["answerable"] == wanted] for rows in seeds])
            shown.append(mean_row(f"{arm}: abstained {what}", table.mean(axis=0), unit="%"))
    return shown


def main() -> None:
    """Run what is missing and measure; with labels, write the page."""
    made = parser(__doc__)
    made.add_argument("--work", type=Path, default=ROOT / "out" / "proof", help="where runs are kept")
    made.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    made.add_argument("--seeds", type=int, nargs="*", choices=range(3), help="most arms have seed 0 only")
    made.add_argument("--held-out", type=int, default=HELD_OUT, help="documents; fewer to try the program")
    made.add_argument("--train", type=int, default=400, help="questions to train on")
    made.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="of the recipes that train")
    made.add_argument("--labels", type=Path, help="blind.jsonl with its labels: write the page")
    args = made.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if not (args.work / "train.jsonl").is_file():
        asked = questions(args.data)
        write_rows(args.work / "held_out.jsonl", asked[: args.held_out])
        write_rows(args.work / "train.jsonl", asked[args.held_out :][: args.train])
    found = {
        arm: [measured(args.work, arm, s, args.set) for s in range(ARMS[arm]["seeds"]) if s in (args.seeds or range(3))]
        for arm in args.arms
    }
    labels = labelled(args.work, args.labels) if args.labels else []
    rows = results(found, labels)
    if labels:
        about = f"Judge {JUDGE} (base SmolLM2, as the policy's), reward {REWARD} (base MiniLM)."
        shown = [one for one in rows if re.search(PAGE, one["what"])]
        tables = {"all": rows, "labels": labels, "seconds": list(read_rows(args.work / "seconds.jsonl"))}
        save("mitigation", "proof", shown, tables=tables, about=about, packages=["trl", "peft"])
        return
    print("\n".join(map(line, rows)))
    if not (args.work / "blind.jsonl").is_file() and set(found) == set(ARMS):
        blind(args.work, {arm: seeds[0] for arm, seeds in found.items()}, 200)


if __name__ == "__main__":
    main()
