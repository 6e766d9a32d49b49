"""What selection and demonstrations gain on labelled data, and what a real model's answers gain at inference.

    python -m benchmarks.mitigation --data ../shared/data [--only selection icl]
    make run && python -m benchmarks.mitigation --run out/answers

Selection: the share of true answers among those picked. Demonstrations: how true the answers are that FEWL and the
single-reference baseline would show to a model. Labels judge choices only. Fine-tuning on picks is measured by
benchmarks/label_free_sft.py. A run of recipes/inference/example.yaml has SmolLM2's first, chosen and given answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from annotators import load_annotator
from benchmarks.common import Row, mean_row, parser, row, save
from benchmarks.fewl import (
    CHALE_KINDS,
    EQ4,
    EQ6,
    SINGLE,
    THREE,
    Values,
    by_model,
    chale,
    english_encoder,
    half,
    halluqa,
    truthfulqa,
)
from fewl.score import FewlOptions, score_records
from fewl.similarity import Encode, Similarity, char_tfidf, cosine, new_words, rouge_l
from mitigate.icl import candidate_pool, demonstrations
from mitigate.recipes.data import best_scored

Picks = list["int | None"]
Scores = list[list["float | None"]]
NO_PENALTY = replace(EQ6, penalty=False)
REFERENCES = ("gpt-4-0613", "ernie_bot", "baichuan53b")
"""Three reference LLMs of HalluQA, one of each maker, by size and kind, not by results; no candidates then."""
HUMAN, MADE = ("sentences/factcheckgpt", "binary/expertqa"), ("binary/summedits",)
SPANS = ("spans/cliff", "spans/wice_tokens")


# --- selection -------------------------------------------------------------------------------------------------------


def truth(records: Sequence[Row], picks: Picks) -> Values:
    """1 where the picked answer is labelled true, 0 where false, NaN where nothing was picked."""
    labels = [None if pick is None else r["answers"][pick]["label"] for r, pick in zip(records, picks, strict=True)]
    return np.array([np.nan if label is None else float(bool(label)) for label in labels])


def picked(scores: Scores) -> Picks:
    """The first answer with the highest score of each question."""
    return [best_scored([{"score": score} for score in some]) for some in scores]


def fewl_scores(records: Sequence[Row], similarity: Similarity, encode: Encode, options: FewlOptions) -> Scores:
    """FEWL's score of each answer; it does not depend on the other answers to the question."""
    scored, _ = score_records(records, similarity=similarity, encode=encode, options=options)
    return [[answer["score"] for answer in record["answers"]] for record in scored]


def annotator_scores(records: Sequence[Row], annotator: Any) -> Scores:
    """Support of each answer by all reference answers of its question as one document; None where nothing was judged.

    P(supported) / (1 − P(no fact)), mean over sentences: rates of one-sentence answers are mostly 0 or 1 and tie.
    """
    rows = [
        {"question": r["question"], "reference": "\n\n".join(r["reference_answers"].values()), "answer": a["text"]}
        for r in records
        for a in r["answers"]
    ]
    found = iter(annotator.annotate_batch(rows))

    def support() -> float | None:
        scores = [s.scores for s in next(found).sentences if s.scores]
        return float(np.mean([s["supported"] / max(1 - s["no_fact"], 1e-9) for s in scores])) if scores else None

    return [[support() for _ in record["answers"]] for record in records]


def truthfulqa_questions(data: Path) -> list[Row]:
    """Questions with human-labelled answers, at least one true and one false, and three reference LLMs."""
    records = []
    for r in by_model(truthfulqa(data), THREE):
        answers = [{**a, "label": bool(a["label"])} for a in r["answers"] if a.get("label") is not None]
        if len({a["label"] for a in answers}) == 2 and len(r["reference_answers"]) == len(THREE):
            records.append({k: v for k, v in r.items() if k not in ("co", "iw")} | {"answers": answers})
    return records


def halluqa_questions(data: Path) -> list[Row]:
    """HalluQA with the answers of LLMs that are no references."""
    records = []
    for r in by_model(halluqa(data), REFERENCES):
        found = [
            a for a in r["answers"] if a["model"] not in REFERENCES and a["label"] is not None and a["text"].strip()
        ]
        if len({bool(a["label"]) for a in found}) == 2 and r["reference_answers"]:
            records.append({**r, "answers": found})
    return records


def best_model(records: Sequence[Row]) -> str:
    """The model with the highest share of true answers."""
    by: dict[str, list[bool]] = {}
    for answer in (a for r in records for a in r["answers"]):
        by.setdefault(answer["model"], []).append(bool(answer["label"]))
    return max(sorted(by), key=lambda name: float(np.mean(by[name])))


def selection(data: Path, encode: Encode) -> list[Row]:
    """Share of true answers among those picked."""
    records = truthfulqa_questions(data)
    sims: dict[str, Similarity] = {"cosine": cosine(encode), "new-words": new_words, "rouge-l": rouge_l}
    ways = {"the annotator against reference answers": lambda: picked(annotator_scores(records, load_annotator()))}
    shown = chosen_rows("TruthfulQA", records, ways_of(records, sims, encode, SINGLE) | ways)
    every = halluqa_questions(data)
    chinese, model = char_tfidf(), best_model([r for r in every if half(r) == 0])
    second = [r for r in every if half(r) == 1]
    own: Picks = [next((i for i, a in enumerate(r["answers"]) if a["model"] == model), None) for r in second]
    found = ways_of(second, {"tf-idf cosine": cosine(chinese), "rouge-l": rouge_l}, chinese, REFERENCES[0])
    return shown + chosen_rows("HalluQA", second, {"the best single model of the other half": lambda: own} | found)


def ways_of(
    records: Sequence[Row], sims: Mapping[str, Similarity], encode: Encode, single: str
) -> dict[str, Callable[[], Picks]]:
    """Each way to pick with FEWL, by name."""
    options = {
        "FEWL without penalty": NO_PENALTY, "FEWL, Eq. 6": EQ6, "FEWL, literal Eq. 4": EQ4,
        "a single reference": replace(NO_PENALTY, references=f"single:{single}"),
    }  # fmt: skip
    return {
        f"{called}, {name}": lambda s=similarity, o=option: picked(fewl_scores(records, s, encode, o))
        for name, similarity in sims.items()
        for called, option in options.items()
    }


def chosen_rows(name: str, records: Sequence[Row], ways: Mapping[str, Callable[[], Picks]]) -> list[Row]:
    """A row for chance, and for each way."""
    chance = np.array([np.mean([bool(a["label"]) for a in r["answers"]]) for r in records])
    return [
        mean_row(f"{name}, true answers, picked at random", chance, unit="%"),
        *(mean_row(f"{name}, picked by {called}", truth(records, way()), unit="%") for called, way in ways.items()),
    ]


# --- in-context examples --------------------------------------------------------------------------------------------


def icl(data: Path, encode: Encode) -> list[Row]:
    """How true the demonstrations are: FEWL's picks and the baseline's, where the two pick different answers."""
    gold = [
        {**r, "id": str(i),
         "answers": [{**a, "label": k == "non_hallu"} for a, k in zip(r["answers"], CHALE_KINDS, strict=True)],
         "reference_answers": {f"gold {j}": text for j, text in enumerate(r["reference_answers"]["gold"])}}
        for i, r in enumerate(chale(data))
    ]  # fmt: skip
    official = []
    for r in by_model(truthfulqa(data), THREE):
        answers = [{**a, "label": a["kind"] != "incorrect"} for a in r["answers"] if a["kind"] != "labelled"]
        official.append({k: v for k, v in r.items() if k not in ("co", "iw")} | {"answers": answers})
    shown = []
    for name, records, single in (("CHALE", gold, "gold 0"), ("TruthfulQA", official, SINGLE)):
        usable = [r for r in records if single in r["reference_answers"]]
        label = {(r["id"], a["text"]): bool(a["label"]) for r in usable for a in reversed(r["answers"])}
        for sim_name, similarity in (("cosine", cosine(encode)), ("new-words", new_words)):
            base = picked(fewl_scores(usable, similarity, encode, replace(NO_PENALTY, references=f"single:{single}")))
            for called, options in (("without penalty", NO_PENALTY), ("Eq. 6", EQ6), ("literal Eq. 4", EQ4)):
                pool = candidate_pool(usable, picked(fewl_scores(usable, similarity, encode, options)), base)
                asked = demonstrations([r["question"] for r in usable], pool, encode, 5)
                true = {}
                for side in ("fewl", "baseline"):
                    found = ([label[n.example.id, getattr(n.example, side)] for n in some] for some in asked)
                    true[side] = np.array([np.mean(labels) if labels else np.nan for labels in found])
                where = f"{name} demonstrations, {sim_name}, FEWL {called} (pool {len(pool)})"
                shown += [
                    mean_row(f"{where}: true", true["fewl"], unit="%"),
                    mean_row(f"{where}: minus the baseline's", true["fewl"] - true["baseline"], unit="%"),
                ]
    return shown


def answers_of_run(folder: Path) -> list[Row]:
    """Rows of a complete run of the recipe `inference`."""
    done = json.loads((folder / "done.json").read_text(encoding="utf-8"))
    shown = []
    for stage in ("first", "given"):
        one = done[stage]
        name = "SmolLM2, {} answers, hallucinated ({hallucinated}; supported {supported}, not sure {unsure})"
        limits = one["interval"] and [100 * limit for limit in one["interval"]]
        shown.append(row(name.format(stage, **one), one["factual"], 100 * one["rate"], limits, "%"))
    for key, what in (("rate", "hallucinated"), ("in_document", "content words in the document")):
        value, *limits = (100 * done["difference"][key][name] for name in ("difference", "low", "high"))
        shown.append(row(f"given − first: {what}", done["questions"], value, limits, "%"))
    return shown


PARTS = {"selection": selection, "icl": icl}
SHOWN = ("picked by FEWL without penalty", "picked at random", "picked by the", "cosine, FEWL without penalty")


def main() -> None:
    """Measure and write the page."""
    made = parser(__doc__)
    made.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    made.add_argument("--run", type=Path, help="folder of a run of inference/example, measured instead")
    args = made.parse_args()
    if args.run:
        save("mitigation", "mitigation", answers_of_run(args.run), part="answers")
        return
    encode = english_encoder()
    found = {name: PARTS[name](args.data, encode) for name in args.only}
    rows = [one for some in found.values() for one in some if any(part in one["what"] for part in SHOWN)]
    save("mitigation", "mitigation", rows, tables=found, packages=["sentence-transformers"])


if __name__ == "__main__":
    main()
