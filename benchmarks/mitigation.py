"""What selection and demonstrations gain on labelled data, without an LLM at hand.

    python -m benchmarks.mitigation selection      # and: icl; each writes its part
    python -m benchmarks.mitigation page           # docs/results/mitigation.md from the parts

Parts are JSON files below --parts, so that they can be made on their own. Labels are used to judge choices only, and
where a row is called "oracle" or "best model". `benchmarks/mitigation_sft.py` writes the part on fine-tuning.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.fewl_common import (
    SINGLE,
    THREE,
    by_model,
    encoder,
    environment,
    half,
    read,
    shown,
    shown_gap,
    table,
    truthfulqa,
)
from benchmarks.splits import DATA
from fewl.score import FewlOptions, score_records
from fewl.similarity import Encode, Similarity, char_tfidf, cosine, new_words, rouge_l
from mitigate.icl import candidate_pool, demonstrations
from mitigate.recipes.data import best_scored

Record = dict[str, Any]
Picks = list["int | None"]
Scores = list[list["float | None"]]
Way = Callable[[Sequence[Record]], Scores]
Values = NDArray[np.float64]
SIZES = (1, 2, 4, 8)
DRAWS = 20
HALLUQA_REFERENCES = ("gpt-4-0613", "ernie_bot", "baichuan53b")
"""Three reference LLMs of HalluQA, one of each maker, by size and kind, not by results; no candidates then."""


# --- selection ----------------------------------------------------------------------------------------------


def truth(records: Sequence[Record], picks: Sequence[int | None]) -> Values:
    """1 where the picked answer is labelled true, 0 where false, NaN where nothing was picked."""
    return np.array(
        [
            np.nan if pick is None else float(bool(record["answers"][pick]["label"]))
            for record, pick in zip(records, picks, strict=True)
        ]
    )


def random_truth(records: Sequence[Record]) -> Values:
    """The expected truth of an answer drawn at random."""
    return np.array([np.mean([bool(a["label"]) for a in r["answers"]]) for r in records], dtype=float)


def fewl_scores(records: Sequence[Record], similarity: Similarity, encode: Encode, options: FewlOptions) -> Scores:
    """FEWL's score of each answer; it does not depend on the other answers to the question."""
    scored, _ = score_records(records, similarity=similarity, encode=encode, options=options)
    return [[answer["score"] for answer in record["answers"]] for record in scored]


def annotator_scores(records: Sequence[Record], annotator: Any) -> Scores:
    """Support of each answer by all reference answers of its question as one document.

    P(supported) / (1 − P(no fact)), mean over sentences: rates of one-sentence answers are mostly 0 or 1 and tie. None
    where no sentence was judged.
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


def picked(scores: Scores) -> Picks:
    """The first answer with the highest score of each question."""
    return [best_scored([{"score": score} for score in row]) for row in scores]


def truthfulqa_questions(data: Path) -> list[Record]:
    """Questions with human-labelled answers, at least one true and one false, and three reference LLMs."""
    records = []
    for record in by_model(truthfulqa(data), THREE):
        answers = [{**a, "label": bool(a["label"])} for a in record["answers"] if a.get("label") is not None]
        if len({a["label"] for a in answers}) == 2 and len(record["reference_answers"]) == len(THREE):
            kept = {k: v for k, v in record.items() if k not in ("co", "iw")}
            records.append({**kept, "answers": answers})
    return records


def halluqa_questions(data: Path) -> list[Record]:
    """HalluQA with the answers of LLMs that are no references, labelled by GPT-4."""
    answers: dict[str, list[Record]] = {}
    references: dict[str, dict[str, str]] = {}
    for row in read("halluqa_zh_llm_answers", data):
        if row["model"] in HALLUQA_REFERENCES:
            references.setdefault(row["question_id"], {})[row["model"]] = row["answer"]
        elif row["truth_label"] is not None and row["answer"].strip():
            one = {"text": row["answer"], "model": row["model"], "label": bool(row["truth_label"])}
            answers.setdefault(row["question_id"], []).append(one)
    records = []
    for row in read("halluqa_zh", data):
        found, known = answers.get(row["id"], []), references.get(row["id"], {})
        if len({a["label"] for a in found}) == 2 and known:
            records.append({"id": row["id"], "question": row["question"], "answers": found, "reference_answers": known})
    return records


def best_model(records: Sequence[Record]) -> str:
    """The model with the highest share of true answers."""
    by: dict[str, list[bool]] = {}
    for record in records:
        for answer in record["answers"]:
            by.setdefault(answer["model"], []).append(answer["label"])
    return max(sorted(by), key=lambda name: float(np.mean(by[name])))


def of_model(records: Sequence[Record], name: str) -> Picks:
    """That model's answers."""
    return [next((i for i, a in enumerate(r["answers"]) if a["model"] == name), None) for r in records]


def ways_to_score(sims: Mapping[str, Similarity], encode: Encode, single: str, annotator: Any) -> dict[str, Way]:
    """Each way to score answers, by name."""

    def fewl(similarity: Similarity, options: FewlOptions) -> Way:
        return lambda records: fewl_scores(records, similarity, encode, options)

    found: dict[str, Way] = {}
    for name, similarity in sims.items():
        one = FewlOptions(aggregation="eq6", penalty=False, references=f"single:{single}")
        found[f"baseline: {single}, no penalty ({name})"] = fewl(similarity, one)
        found[f"FEWL without penalty ({name})"] = fewl(similarity, FewlOptions(aggregation="eq6", penalty=False))
        found[f"FEWL, Eq. 6 ({name})"] = fewl(similarity, FewlOptions(aggregation="eq6"))
    first = next(iter(sims))
    found[f"FEWL, literal Eq. 4 ({first})"] = fewl(sims[first], FewlOptions())
    if annotator is not None:
        found["annotator against the reference answers"] = lambda records: annotator_scores(records, annotator)
    return found


def selection(data: Path, encode: Encode) -> list[str]:
    """Share of true answers among those picked, and by the number of candidates."""
    from annotators import load_annotator

    annotator = load_annotator()
    out = ["## 1. Selection: share of true answers among those picked"]
    records = truthfulqa_questions(data)
    sims: dict[str, Similarity] = {"cosine": cosine(encode), "new-words": new_words, "rouge-l": rouge_l}
    counts = [len(r["answers"]) for r in records]
    out.append(
        f"**TruthfulQA**, {len(records)} questions with {np.mean(counts):.1f} human-labelled answers each (at least "
        f"one true and one false; their models are not named). References: {', '.join(THREE)}. Annotator: "
        f"{annotator.name} {annotator.fingerprint}."
    )
    out += _selection_tables(records, ways_to_score(sims, encode, SINGLE, annotator), None)
    records = halluqa_questions(data)
    names = sorted({a["model"] for r in records for a in r["answers"]})
    chinese = char_tfidf()
    sims = {"character TF-IDF": cosine(chinese), "rouge-l": rouge_l}
    chosen = best_model([r for r in records if half(r) == 0])
    records = [r for r in records if half(r) == 1]
    out.append(
        f"**HalluQA** (Chinese), {len(records)} questions (the half that the best model was not chosen on), answers of "
        f"{len(names)} LLMs, labelled by GPT-4. References: {', '.join(HALLUQA_REFERENCES)}. The annotator was not "
        "asked: it reads English."
    )
    out += _selection_tables(records, ways_to_score(sims, chinese, HALLUQA_REFERENCES[0], None), chosen)
    return out


def _selection_tables(records: Sequence[Record], ways: Mapping[str, Way], model: str | None) -> list[str]:
    scores = {name: way(records) for name, way in ways.items()}
    chance = random_truth(records)
    rows = [["an answer at random", shown(chance), "–"]]
    if model is not None:
        values = truth(records, of_model(records, model))
        rows.append([f"best single model on the other half ({model})", shown(values), shown_gap(values, chance)])
    for name, found in scores.items():
        values = truth(records, picked(found))
        rows.append([name, shown(values), shown_gap(values, chance)])
    rows.append(["oracle", shown(np.ones(len(records))), "–"])
    kept = [name for name in scores if name.startswith(("baseline", "FEWL without", "annotator"))]
    sizes = [[name, *(shown(by_size(records, scores[name], n)) for n in SIZES)] for name in kept]
    sizes.append(["oracle", *(shown(oracle_by_size(records, n)) for n in SIZES)])
    return [
        table(["picked by", "true, % [95 %]", "minus random, points"], rows),
        f"Best of n, n answers drawn at random ({DRAWS} draws), % true:",
        table(["picked by", *(f"n = {n}" for n in SIZES)], sizes),
    ]


def _drawn(records: Sequence[Record], n: int, draw: int) -> list[list[int]]:
    """For each question the numbers of n candidates, at random; all where there are fewer."""
    generator = np.random.default_rng(draw)
    return [sorted(generator.permutation(len(r["answers"]))[:n].tolist()) for r in records]


def by_size(records: Sequence[Record], scores: Scores, n: int) -> Values:
    """Mean truth over the draws, per question."""
    draws = []
    for draw in range(DRAWS):
        places = _drawn(records, n, draw)
        part = [{**r, "answers": [r["answers"][i] for i in kept]} for r, kept in zip(records, places, strict=True)]
        of_part = [[row[i] for i in kept] for row, kept in zip(scores, places, strict=True)]
        draws.append(truth(part, picked(of_part)))
    return np.asarray(np.nanmean(draws, axis=0))


def oracle_by_size(records: Sequence[Record], n: int) -> Values:
    """1 where a true answer is among n drawn ones, mean over the draws."""
    return np.mean(
        [
            [
                float(any(r["answers"][i]["label"] for i in kept))
                for r, kept in zip(records, _drawn(records, n, d), strict=True)
            ]
            for d in range(DRAWS)
        ],
        axis=0,
    )


# --- in-context examples --------------------------------------------------------------------------------------


def icl(data: Path, encode: Encode) -> list[str]:
    """Pool sizes, and how true the demonstrations are."""
    from benchmarks.fewl_chale import KINDS, gold_derived

    chale, _, _ = gold_derived(read("chale", data))
    chale = [
        {
            **r,
            "id": str(i),
            "answers": [{**a, "label": k == "non_hallu"} for a, k in zip(r["answers"], KINDS, strict=True)],
            "reference_answers": {f"gold {j}": text for j, text in enumerate(r["reference_answers"]["gold"])},
        }
        for i, r in enumerate(chale)
    ]
    official = []
    for r in by_model(truthfulqa(data), THREE):
        answers = [{**a, "label": a["kind"] != "incorrect"} for a in r["answers"] if a["kind"] != "labelled"]
        official.append({**{k: v for k, v in r.items() if k not in ("co", "iw")}, "answers": answers})
    out = ["## 2. In-context examples: pool sizes, and truth of what is shown"]
    rows = []
    for name, records, single in (("CHALE", chale, "gold 0"), ("TruthfulQA", official, SINGLE)):
        for sim_name, similarity in (("cosine", cosine(encode)), ("new-words", new_words)):
            for called, options in (
                ("without penalty", FewlOptions(aggregation="eq6", penalty=False)),
                ("Eq. 6", FewlOptions(aggregation="eq6")),
                ("Eq. 4", FewlOptions()),
            ):
                rows.append([name, sim_name, called, *_demonstrations(records, single, similarity, encode, options)])
    head = ["data", "similarity", "FEWL", "questions", "pool", "true: FEWL's picks, %", "true: baseline's, %",
            "difference, points", "demonstrations a question", "their mean cosine"]  # fmt: skip
    out.append(
        "Pool: questions for which FEWL and the baseline (single reference, no penalty) pick different answers. Every "
        "question gets its five nearest pool questions, itself and near-copies left out. CHALE's references are "
        "sentences of the long answer (no LLM answers are in the data), its true answer is the non-hallucinated one; "
        "TruthfulQA's answers are the official ones. Truth is counted over the demonstrations as they are shown."
    )
    return [*out, table(head, rows)]


def _demonstrations(
    records: Sequence[Record], single: str, similarity: Similarity, encode: Encode, options: FewlOptions
) -> list[object]:
    base = FewlOptions(aggregation="eq6", penalty=False, references=f"single:{single}")
    usable = [r for r in records if single in r["reference_answers"]]
    fewl = picked(fewl_scores(usable, similarity, encode, options))
    first = picked(fewl_scores(usable, similarity, encode, base))
    pool = candidate_pool(usable, fewl, first)
    label = {
        (r["id"], a["text"]): bool(a["label"]) for r in usable for a in reversed(r["answers"])
    }  # of equal texts the first counts
    shown_to = demonstrations([r["question"] for r in usable], pool, encode, 5)
    values = [
        np.array(
            [
                np.mean([label[n.example.id, getattr(n.example, side)] for n in found]) if found else np.nan
                for found in shown_to
            ]
        )
        for side in ("fewl", "baseline")
    ]
    near = [n.similarity for found in shown_to for n in found]
    return [
        len(usable), len(pool), shown(values[0]), shown(values[1]), shown_gap(values[0], values[1]),
        f"{np.mean([len(found) for found in shown_to]):.2f}", f"{np.mean(near):.2f}",
    ]  # fmt: skip


# --- the page -------------------------------------------------------------------------------------------------


PARTS: dict[str, Callable[[Path, Encode], list[str]]] = {"selection": selection, "icl": icl}


def main() -> None:
    """Make one part, or the page of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=(*PARTS, "page"))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--parts", type=Path, default=Path("out/mitigation"))
    parser.add_argument("--output", type=Path, default=Path("docs/results/mitigation.md"))
    parser.add_argument("--embedding-cache", type=Path, help="file that keeps embeddings between runs")
    args = parser.parse_args()
    args.parts.mkdir(parents=True, exist_ok=True)
    if args.part != "page":
        lines = PARTS[args.part](args.data, encoder(args.embedding_cache))
        (args.parts / f"{args.part}.json").write_text(json.dumps([*lines, f"({environment()})"], ensure_ascii=False))
        print("\n\n".join(lines))
        return
    text = [
        "# What mitigation gains on labelled data",
        "Written by `python -m benchmarks.mitigation` (parts `selection`, `icl`, then `page`) and "
        "`python -m benchmarks.mitigation_sft`. No LLM was at hand: the effect is shown where answers are labelled "
        "already, and for fine-tuning in the pocket world. 95 % percentile bootstrap over questions or rows.",
    ]
    for name in ("selection", "icl", "sft"):
        path = args.parts / f"{name}.json"
        text += json.loads(path.read_text()) if path.is_file() else [f"## {name}: not run"]
    args.output.write_text("\n\n".join(text) + "\n", encoding="utf-8")
    print(f"written: {args.output}")


if __name__ == "__main__":
    main()
