"""How true the demonstrations are that FEWL would show to a model, and what SmolLM2's answers gain at inference.

    python -m benchmarks.mitigation --data ../shared/data
    make run && python -m benchmarks.mitigation --run out/answers out/trained out/labels.jsonl
    python -m benchmarks.mitigation --data ../shared/data --engine transformers:packaged:smollm2
    python -m benchmarks.mitigation --data ../shared/data --sft out/sft

Demonstrations are the answers that FEWL and the single-reference baseline pick where the two differ; the control is the
same with another question's references. With ``--engine`` a model answers TruthfulQA's questions after others with the
answer of an LLM that FEWL picks, or a control; with ``--sft`` SmolLM2 is tuned on such answers to half of them. Labels
are of all sentences of `make run`'s training, mixed with those of a run without calibration, by readers who do not know
the arm: {"arm": "before training", "after" or other, "id", "sentence", "label", "second"} a line.
The annotator judges beside the official true answers, and MiniLM says whether the one most like it is a true one.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from annotators import load_annotator
from annotators.records import HALLUCINATED, LABELS
from benchmarks.common import Row, command, fewl_rows, mean_row, parser, row, save
from benchmarks.fewl import THREE, by_model, chale, english_encoder, half, shuffled, truthfulqa
from benchmarks.proof import apart
from engines import load_engine
from engines.types import Sampling
from fewl.ranking import pick_answers
from fewl.score import score_records
from fewl.similarity import Encode, cosine
from mitigate.icl import Example, candidate_pool, chat, demonstrations
from mitigate.io import read_rows, write_lines
from mitigate.recipes.data import Scoring, picks


def icl(data: Path, encode: Encode) -> list[Row]:
    """How true FEWL's demonstrations and the baseline's are, beside the control."""
    official = []
    for i, r in enumerate(by_model(truthfulqa(data), THREE["TruthfulQA"])):
        answers = [{**a, "label": a["kind"] == "best"} for a in r["answers"] if "kind" in a]
        official.append({**r, "id": f"{i}", "answers": answers})
    gold = [{**r, "id": str(i)} for i, r in enumerate(chale(data))]
    rows = []
    for name, records, single in (("CHALE", gold, "gold 0"), ("TruthfulQA", official, THREE["TruthfulQA"][0])):
        usable = [r for r in records if single in r["reference_answers"]]
        label = {(r["id"], a["text"]): bool(a["label"]) for r in usable for a in reversed(r["answers"])}
        how: Any = {"scoring": Scoring(), "baseline": single, "similarity": cosine(encode), "encode": encode}
        for control, asked in (("", usable), (", another question's references", shuffled(usable))):
            where = f"{name} demonstrations, cosine{control}"
            pool = candidate_pool(usable, *(picks(asked, by, **how) for by in ("fewl", "baseline")))
            shown = demonstrations([r["question"] for r in usable], pool, encode, 5)
            true = {}
            for side in ("fewl", "baseline"):
                labels = ([label[n.example.id, getattr(n.example, side)] for n in s] for s in shown)
                true[side] = np.array([np.mean(own or np.nan) for own in labels])
            rows.append(mean_row(f"{where} (pool {len(pool)}): true by FEWL", true["fewl"], unit="%"))
            rows.append(mean_row(f"{where}: true, FEWL − baseline", true["fewl"] - true["baseline"], unit="%"))
    return rows


def chosen(data: Path, encode: Encode) -> tuple[list[Row], dict[str, list[Row]]]:
    """TruthfulQA's questions with answers of LLMs, true and false ones, and the answer to each that each way picks."""
    records = by_model(truthfulqa(data), THREE["TruthfulQA"])
    records = [{**r, "answers": [a for a in r["answers"] if "label" in a]} for r in records]
    records = [r for r in records if len({a["label"] for a in r["answers"]}) == 2]  # else no pick matters
    rng, ways = random.Random(0), defaultdict[str, list[Row]](list)
    for r in score_records(records, similarity=cosine(encode), encode=encode)[0]:
        found, texts = r["answers"], encode([a["text"] for a in r["answers"]])
        ways["random"].append(rng.choice(found))
        ways["FEWL's"].append(found[pick_answers([r])[0]["index"] or 0])
        ways["longest"].append(max(found, key=lambda a: len(a["text"])))
        ways["most like the others"].append(found[int((texts @ texts.T).sum(0).argmax())])
        ways["true"].append(next(a for a in found if a["label"]))
    return records, ways


def judged(data: Path, encode: Encode, asked: Sequence[str], said: Sequence[str]) -> dict[str, np.ndarray]:
    """Of each answer: the share of its sentences that the annotator calls supported, and what MiniLM says of it."""
    official = {r["question"]: (r["correct_answers"], r["incorrect_answers"]) for r in fewl_rows("truthfulqa", data)}
    true, false = zip(*(official[q] for q in asked), strict=True)
    both = list(zip(asked, true, said, strict=True))
    records = [{"question": q, "reference": "\n".join(t), "answer": a} for q, t, a in both]
    found = load_annotator("embedded").annotate_batch(records)
    supported = [[s.scores["supported"] for s in r.sentences if s.scores] for r in found]
    nearest = [[(encode([a]) @ encode(t).T).max() for t, a in zip(s, said, strict=True)] for s in (true, false)]
    return {
        "words": np.array([len(a.split()) for a in said], dtype=float),
        "supported, says the annotator": np.array([np.mean(own or np.nan) for own in supported]),
        "most like a true answer": np.greater(*nearest).astype(float),
    }


def compared(values: dict[str, dict[str, np.ndarray]], name: str) -> list[Row]:
    """The mean of each figure of each way, and its difference from the random picks'."""
    rows = []
    for how, own in values.items():
        for what, value in own.items():
            unit = "" if what == "words" else "%"
            rows.append(mean_row(f"{name.format(how)}: {what}", value, unit=unit))
            rows.append(mean_row(f"{name.format(how)} − random: {what}", value - values["random"][what], unit=unit))
    return rows


def taught(data: Path, encode: Encode, name: str, most: int) -> list[Row]:
    """What demonstrations picked in several ways change in a model's answers to the half that nothing was chosen on."""
    records, ways = chosen(data, encode)
    asked = [r["question"] for r in records if half(r)][:most]
    pool = [Example(str(i), r["question"], "", "") for i, r in enumerate(records)]
    near = [[int(n.example.id) for n in some] for some in demonstrations(asked, pool, encode, 5)]
    values = {}
    with closing(load_engine(name)) as engine:
        for how, shown in (ways | {"no": []}).items():
            pairs = [[(records[i]["question"], shown[i]["text"]) for i in some if shown] for some in near]
            chats = [chat(q, some)[0] for q, some in zip(asked, pairs, strict=True)]
            said = [r.texts[0].strip().partition("\n")[0] for r in engine.chat(chats, Sampling(max_tokens=48))]
            true = [np.mean([shown[i]["label"] for i in some if shown] or np.nan) for some in near]
            values[how] = {"demonstrations true": np.array(true), **judged(data, encode, asked, said)}
    return compared(values, "SmolLM2 after {} demonstrations")


def tuned(data: Path, encode: Encode, work: Path) -> list[Row]:
    """What SFT on answers picked in several ways changes in SmolLM2's answers to the other half of the questions."""
    records, ways = chosen(data, encode)
    values, rows = dict[str, dict[str, np.ndarray]](), []
    for how, shown in ways.items():
        folder, one = work / how, work / f"{how}.jsonl"
        both = enumerate(zip(records, shown, strict=True))
        write_lines(one, [r | {"id": str(i), "answers": [a | {"label": True}]} for i, (r, a) in both])
        keys = [f"data={one}", "pick=labels", f"baseline={THREE['TruthfulQA'][0]}", "test_share=0.5"]
        keys += ["model=packaged:smollm2", "answer_tokens=64", "--output", str(folder)]
        command("mitigate.cli", "run", "sft/small-instruct", *keys)
        said, learned = list(read_rows(folder / "answers.jsonl")), {r["id"] for r in read_rows(folder / "train.jsonl")}
        true = [float(a["label"]) for i, a in enumerate(shown) if str(i) in learned]
        rows.append(mean_row(f"{how} answers to train on: true", np.array(true), unit="%"))
        for name, key in (("no", "untuned"), (how, "tuned")):
            if name not in values:
                asked = [r["question"] for r in said]
                values[name] = judged(data, encode, asked, [r[key] or "" for r in said])
    return rows + compared(values, "SmolLM2 tuned on {} answers")


def of_run(done: Row) -> list[Row]:
    """Rows of the figures of a run that `make run` starts: one that answers and mends, or one that trains."""
    trained = "table" in done
    shown = []
    for one in done["table"] if trained else [done[stage] for stage in ("first", "chosen", "given")]:
        name = f"{one['when']} {'training' if trained else 'answers'}"
        told = f"SmolLM2, {name}, hallucinated ({one['hallucinated']}; not sure {one['unsure']})"
        shown.append(row(told, one["factual"], 100 * one["rate"], [100 * end for end in one["interval"]], "%"))
        shown.append(row(f"{name}: supported sentences", one["answers"], round(one["answers"] * one["supported"])))
        shown += [row(f"{name}: copied", one["answers"], 100 * one["copied"], unit="%")] if trained else []
    for key, one in done.get("difference", {}).items():
        value, *limits = (100 * one[name] for name in ("difference", "low", "high"))
        what = f"given − first: {'hallucinated' if key == 'rate' else key}"
        shown.append(row(what, done["questions"], value, limits, "%"))
    return shown


ARMS, KEPT = ("before training", "after"), ("arm", "id", "sentence", "label", "second")


def by_readers(labels: list[Row]) -> list[Row]:
    """What readers who did not know the arm found hallucinated of each arm's factual sentences, and how far apart."""
    rows, arms = [], list(dict.fromkeys(r["arm"] for r in labels))
    for arm in arms:
        own = [r for r in labels if r["arm"] == arm]
        for who, name in (("label", "blind labels"), ("second", "a second reader")):
            wrong = [np.nan if r[who] == "no_fact" else float(r[who] in HALLUCINATED) for r in own]
            rows.append(mean_row(f"{arm}: hallucinated by {name}", np.array(wrong), [r["id"] for r in own], "%"))
        rows.append(
            row(f"{arm}: supported sentences by blind labels", len(own), [r["label"] for r in own].count("supported"))
        )
    same = [pair for pair in combinations(arms, 2) if len({arm.rpartition(": ")[0] for arm in pair}) == 1]  # of one run
    return rows + [apart(arm, other, labels) for other, arm in same]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--run", type=Path, nargs=3, help="both folders of `make run` and labels, measured instead")
    made.add_argument("--sft", type=Path, help="folder of runs: measure what label-free SFT changes in SmolLM2 instead")
    made.add_argument("--engine", help="measure what demonstrations change in its answers to 200 questions instead")
    args = made.parse_args()
    if args.run:
        runs = [json.loads((folder / "done.json").read_text(encoding="utf-8")) for folder in args.run[:2]]
        judge = next(read_rows(args.run[0] / "results.jsonl"))["annotator"]
        labels, said = list(read_rows(args.run[2])), list(read_rows(args.run[1] / "samples.jsonl"))
        wanted = Counter((a, s["text"]) for r in said for s in r["sentences"] for a in ARMS if a.startswith(r["when"]))
        given = Counter((r["arm"], r["sentence"]) for r in labels if r["arm"] in ARMS)
        wrong: list[Any] = [r for r in labels if not {r["label"], r["second"]} <= {*LABELS}]
        if wrong := [*wrong, *(given - wanted), *(wanted - given)]:
            sys.exit(f"{args.run[2]}: expected one label of each sentence of {args.run[1]}, look at {wrong[0]}")
        rows = [r for done in runs for r in of_run(done)] + by_readers(labels)
        about = f"Judged by {judge['name']} ({judge['fingerprint']}); training by {'; '.join(runs[1]['judges'])}."
        shown = [r for r in rows if "second reader" not in r["what"]]
        tables = {"all": rows, "labels": [[r[k] for k in KEPT] for r in labels]}
        save("mitigation", "mitigation", shown, tables=tables, part="answers", about=about)
        return
    if args.engine:
        rows, part = taught(args.data, english_encoder(), args.engine, 200), "icl"
        pattern = "FEWL's demonstrations −|true demonstrations − random: [sm]"
    elif args.sft:
        rows, part = tuned(args.data, english_encoder(), args.sft), "label_free_sft"
        pattern = "FEWL's answers( to| − random: m)|(FEWL's|others|true) answers − random: s"
    else:
        rows, part, pattern = icl(args.data, english_encoder()), "", "baseline"
    shown = [r for r in rows if re.search(pattern, r["what"])]
    save("mitigation", "mitigation", shown, tables={"all": rows}, part=part)


if __name__ == "__main__":
    main()
