"""FEWL on TruthfulQA: Table 3 both ways, human-labelled answers, weights, neighbours, divergences, Table 5, Figure 2.

python -m benchmarks.fewl_truthfulqa --output docs/results/fewl_truthfulqa.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fewl_common import (
    SINGLE,
    THREE,
    WEAK,
    best_above_first_wrong,
    best_on_top,
    by_model,
    encoder,
    environment,
    interval,
    labelled_pairs,
    length_adjusted,
    read,
    remembered,
    shown,
    shown_gap,
    shuffled,
    table,
    truthfulqa,
)
from benchmarks.splits import DATA
from fewl.core import DIVERGENCES
from fewl.neighbours import nearest
from fewl.score import FewlOptions, score_records
from fewl.similarity import Encode, Similarity, compare, cosine, new_words, rouge_l

Record = dict[str, Any]
Score = Callable[..., list[Record]]
BASE = "multi, no penalty"


def methods() -> dict[str, FewlOptions]:
    """The rows of the paper's Tables 1-3, and each aggregation and weighting that needs no LLM."""
    uniform = FewlOptions(expertise="uniform")
    rows = {
        "single, no penalty": replace(uniform, references=f"single:{SINGLE}", penalty=False, aggregation="eq6"),
        "single, penalty": replace(uniform, references=f"single:{SINGLE}", aggregation="eq6"),
        BASE: replace(uniform, penalty=False, aggregation="eq6"),
    }
    for aggregation in ("paper", "eq6"):
        for called, expertise in (("uniform", "uniform"), ("ideal", "similarity")):
            rows[f"FEWL {aggregation}, λ {called}"] = replace(uniform, aggregation=aggregation, expertise=expertise)
    return rows


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=Path("docs/results/fewl_truthfulqa.md"))
    parser.add_argument("--embedding-cache", type=Path, help="file that keeps embeddings between runs")
    args = parser.parse_args()
    encode = encoder(args.embedding_cache)
    records = truthfulqa(args.data)
    parts = [
        "# FEWL on TruthfulQA: tables",
        "Written by `python -m benchmarks.fewl_truthfulqa`; read `fewl.md` first. "
        f"{environment()}. {len(records)} questions; 95 % percentile bootstrap over questions (2,000 draws); "
        "p from 2,000 sign flips, two-sided.",
    ]
    for sim_name, similarity in similarities(encode).items():
        parts += tables_of(sim_name, similarity, encode, records)
    parts += ablations(similarities(encode)["cosine"], encode, records)
    parts += sample_level(encode, records, args.data)
    parts += figure_2(encode, records)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"written: {args.output}")


def similarities(encode: Encode) -> dict[str, Similarity]:
    return {"cosine": remembered(cosine(encode)), "rouge-l": remembered(rouge_l), "new-words": remembered(new_words)}


def tables_of(name: str, similarity: Similarity, encode: Encode, records: Sequence[Record]) -> list[str]:
    """Item 1: every method, three reference LLMs, and all fifteen for two of them."""
    three = by_model(records, THREE)
    found: dict[str, list[Record]] = {}
    for method, options in methods().items():
        found[method] = score_records(three, similarity=similarity, encode=encode, options=options)[0]
        print(name, method, flush=True)
    no_penalty = methods()[BASE]
    found["all 15, no penalty"] = score_records(records, similarity=similarity, encode=encode, options=no_penalty)[0]
    control = "control: references of another question"
    found[control] = score_records(shuffled(three), similarity=similarity, encode=encode, options=no_penalty)[0]
    eq6 = FewlOptions(aggregation="eq6")
    found[f"{control}, FEWL eq6"] = score_records(shuffled(three), similarity=similarity, encode=encode, options=eq6)[0]
    six, against = by_model(records, (*THREE, *WEAK)), replace(no_penalty, weak=WEAK)
    contrast = "three against three weak, no penalty (extension)"
    found[contrast] = score_records(six, similarity=similarity, encode=encode, options=against)[0]
    found[f"{contrast}, control"] = score_records(shuffled(six), similarity=similarity, encode=encode, options=against)[
        0
    ]
    for called in (BASE, "FEWL eq6, λ uniform", contrast, control, f"{contrast}, control"):
        found[f"{called}, length-adjusted"] = length_adjusted(found[called])
    base = labelled_pairs(found[BASE])
    rows = []
    for method, scored in found.items():
        top, first, labelled = best_on_top(scored), best_above_first_wrong(scored), labelled_pairs(scored)
        count = f"{int(np.nansum(top))} of {int((~np.isnan(top)).sum())}"
        gap = "" if method == BASE else shown_gap(labelled, base)
        like = shown(labelled_pairs(scored, 1.2))
        rows.append([method, count, shown(top), shown(first), shown(labelled), gap, like])
    head = [
        "method",
        "best on top",
        "best on top, %",
        "best above first wrong, %",
        "human-labelled: true above false, %",
        f"labelled, minus “{BASE}”",
        "labelled, lengths within a factor of 1.2, %",
    ]
    n, like = interval(base)[3], interval(labelled_pairs(found[BASE], 1.2))[3]
    note = f"Human-labelled pairs: {n} questions with both a true and a false answer ({like} of like length)."
    tests = [
        ("several references", BASE, "single, no penalty"),
        ("penalty, eq6", "FEWL eq6, λ uniform", BASE),
        ("penalty, paper", "FEWL paper, λ uniform", BASE),
        *((f"λ ideal, {a}", f"FEWL {a}, λ ideal", f"FEWL {a}, λ uniform") for a in ("paper", "eq6")),
        ("own references", BASE, control),
        ("weak LLMs", contrast, BASE),
        ("own references, against weak", contrast, f"{contrast}, control"),
    ]
    measures = (best_on_top, best_above_first_wrong, labelled_pairs)
    gaps = [[what, *(shown_gap(m(found[a]), m(found[b])) for m in measures)] for what, a, b in tests]
    paired_head = ["what it adds", "best on top", "best above first wrong", "human-labelled"]
    return [
        f"## Table 3 protocol, similarity {name}",
        table(head, rows),
        note,
        "Paired differences, in points:",
        table(paired_head, gaps),
    ]


def ablations(similarity: Similarity, encode: Encode, records: Sequence[Record]) -> list[str]:
    """Items 1 and 4: neighbours, K, scope, whose penalty, divergence; cosine, three references."""
    three = by_model(records, THREE)
    eq6 = FewlOptions(aggregation="eq6")
    settings = {
        "nearest, K 1": replace(eq6, neighbours=1),
        "nearest, K 5": replace(eq6, neighbours=5),
        "nearest, K 10": eq6,
        "nearest, K 25": replace(eq6, neighbours=25),
        "random ≤ 0.8, K 25": replace(eq6, neighbour_choice="random"),
        "no penalty": replace(eq6, penalty=False),
        "penalty of the reference": replace(eq6, penalty_of="reference"),
        "ideal λ per data set": replace(eq6, expertise="similarity", expertise_scope="dataset"),
        **{f"divergence {d}": replace(eq6, divergence=d) for d in DIVERGENCES},
        "paper, nearest, K 10": FewlOptions(),
        "paper, random ≤ 0.8, K 25": FewlOptions(neighbour_choice="random"),
    }
    scored = {n: score_records(three, similarity=similarity, encode=encode, options=o)[0] for n, o in settings.items()}
    base = labelled_pairs(scored["nearest, K 10"])
    rows = [
        [n, shown(best_on_top(s)), shown(labelled_pairs(s)), shown_gap(labelled_pairs(s), base)]
        for n, s in scored.items()
    ]
    head = ["setting (eq6, λ uniform unless said)", "best on top, %", "human-labelled, %", "minus K 10"]
    return ["## Neighbours (Table 9), scope, divergence: cosine, three references", table(head, rows)]


def sample_level(encode: Encode, records: Sequence[Record], data: Path) -> list[str]:
    """Item 3: which of two LLMs' answers is better, by one reference LLM, with and without penalty."""
    models = [m for m in records[0]["reference_answers"] if m != SINGLE]
    labels = {
        (row["question_id"], row["model"]): row["truth_label"]
        for row in read("truthfulqa_llm_answers", data)
        if row["truth_label"] is not None
    }
    asked = [
        {
            "question": r["question"],
            "reference_answers": {SINGLE: r["reference_answers"].get(SINGLE)},
            "answers": [{"text": r["reference_answers"].get(m, ""), "model": m} for m in models],
        }
        for r in records
    ]
    out = ["## Sample-level pairs (Table 5)"]
    sims = {"cosine": cosine(encode), "rouge-l": rouge_l, "new-words": new_words}
    scored = {
        (name, penalty): score_records(
            asked, similarity=sim, encode=encode, options=FewlOptions(aggregation="eq6", penalty=penalty)
        )[0]
        for name, sim in sims.items()
        for penalty in (False, True)
    }
    off = FewlOptions(aggregation="eq6", penalty=False)
    control = {
        name: score_records(shuffled(asked), similarity=sim, encode=encode, options=off)[0]
        for name, sim in sims.items()
    }
    metric = {name: tqa_metric(records, asked, sims[name]) for name in ("cosine", "rouge-l")}
    rows = []
    for (name, penalty), result in scored.items():
        human = _agreement(result, models, lambda q, m: labels.get((records[q]["id"], models[m])))
        other = "rouge-l" if name != "rouge-l" else "cosine"
        by_metric = _agreement(result, models, lambda q, m, o=other: metric[o][q, m])
        rows.append([name, "yes" if penalty else "no", *_cells(human), f"{shown(by_metric)} (metric by {other})"])
    for name, result in control.items():
        human = _agreement(result, models, lambda q, m: labels.get((records[q]["id"], models[m])))
        other = "rouge-l" if name != "rouge-l" else "cosine"
        by_metric = _agreement(result, models, lambda q, m, o=other: metric[o][q, m])
        called = f"{name}, control: reference to another question"
        rows.append([called, "no", *_cells(human), f"{shown(by_metric)} (metric by {other})"])
    out.append(table(["similarity", "penalty", "human labels, %", "questions", "TQA metric, %"], rows))
    for name in sims:
        truth = metric["rouge-l" if name != "rouge-l" else "cosine"]
        a, b = (_agreement(scored[name, p], models, lambda q, m, t=truth: t[q, m]) for p in (True, False))
        out.append(f"{name}: with minus without penalty on the TQA metric {shown_gap(a, b)}.")
    out.append(
        f"Reference LLM {SINGLE}; {len(models)} other LLMs, all {len(models) * (len(models) - 1) // 2} pairs of them, "
        "averaged within a question. Human labels: pairs where one answer is labelled true and the other false."
    )
    return out


def tqa_metric(records: Sequence[Record], asked: Sequence[Record], similarity: Similarity) -> np.ndarray:
    """max similarity to the correct minus max to the incorrect official answers, question × model."""
    left, right, place = [], [], []
    for q, (record, row) in enumerate(zip(records, asked, strict=True)):
        for m, answer in enumerate(row["answers"]):
            if answer["text"].strip():
                for sign, texts in ((1, record["co"]), (0, record["iw"])):
                    left += [answer["text"]] * len(texts)
                    right += texts
                    place += [(q, m, sign)] * len(texts)
    values = compare(similarity, left, right, ["?"] * len(left))
    best = np.full((len(records), len(asked[0]["answers"]), 2), -np.inf)
    np.maximum.at(best, tuple(np.array(place).T), values)
    gap = best[..., 1] - best[..., 0]
    return np.where(np.isfinite(gap), gap, np.nan)


def _agreement(scored: Sequence[Record], models: Sequence[str], truth: Callable[[int, int], Any]) -> np.ndarray:
    """Per question, the share of model pairs ordered as the truth orders them; ties of the score half."""
    values = []
    for q, record in enumerate(scored):
        known = [(m, truth(q, m), a["score"]) for m, a in enumerate(record["answers"])]
        known = [(m, t, s) for m, t, s in known if t is not None and t == t and s is not None]
        right = [
            (s1 > s2) == (t1 > t2) if s1 != s2 else 0.5
            for (_, t1, s1), (_, t2, s2) in combinations(known, 2)
            if t1 != t2
        ]
        values.append(np.mean(right) if right else np.nan)
    return np.array(values, dtype=float)


def _cells(values: np.ndarray) -> tuple[str, int]:
    return shown(values), int((~np.isnan(values)).sum())


def figure_2(encode: Encode, records: Sequence[Record]) -> list[str]:
    """Are a question's ten neighbours' best answers right for it? By likeness, without a judge."""
    questions = [r["question"] for r in records]
    near = nearest(encode(questions), 10, texts=questions)
    chosen = np.sort(np.random.default_rng(0).choice(len(records), 100, replace=False))
    vectors = {t: v for r in records for t in [r["answers"][0]["text"], *r["co"], *r["iw"]] for v in [None]}
    vectors = dict(zip(vectors, encode(list(vectors)), strict=True))
    rows = []
    for limit in (0.7, 0.8, 0.9):
        right, wrong = [], []
        for q in chosen:
            co = np.stack([vectors[t] for t in records[q]["co"]])
            iw = np.stack([vectors[t] for t in records[q]["iw"]])
            best = np.stack([vectors[records[j]["answers"][0]["text"]] for j in near[q]])
            to_co, to_iw = (best @ co.T).max(1), (best @ iw.T).max(1)
            right.append(((to_co >= limit) & (to_co > to_iw)).mean())
            wrong.append(((to_iw >= limit) & (to_iw >= to_co)).mean())
        rows.append([limit, shown(np.array(right)), shown(np.array(wrong))])
    head = ["same answer from cosine", "neighbours' best answers that are a right answer, %", "that are a wrong one, %"]
    return ["## Figure 2: 100 questions, ten neighbours each", table(head, rows)]


if __name__ == "__main__":
    main()
