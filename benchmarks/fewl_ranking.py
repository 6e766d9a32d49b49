"""FEWL as a ranking of models: HalluQA (24 models, the main result), TruthfulQA, haltt4llm, ChineseFactEval.

    python -m benchmarks.fewl_ranking --output docs/results/fewl_ranking.md

Every model is judged by the other models' answers where no separate reference LLMs are at hand (an LLM is never a
reference for itself). Choices are made on one half of the questions and reported on the other.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fewl_common import (
    THREE,
    by_model,
    encoder,
    environment,
    half,
    labelled_pairs,
    length_adjusted,
    read,
    remembered,
    shown,
    shuffled,
    table,
    truthfulqa,
)
from benchmarks.splits import DATA
from fewl.ranking import Ranking, plot_ranking, rank_models
from fewl.score import FewlOptions, score_records
from fewl.similarity import Encode, Similarity, char_tfidf, cosine, each_once, new_words, rouge_l

Record = dict[str, Any]
BASE_MODELS = (
    *("baichuan-7b-base", "baichuan-13b-base", "baichuan2-7b-base", "baichuan2-13b-base"),
    *("qwen-7b", "qwen-14b", "xverse-7b", "xverse-13b"),
)
"""The models of HalluQA that were not tuned to follow instructions."""
ALIKE = 1.2
PAIR_COLUMNS = ("true above false, %", "the same, lengths within a factor of 1.2, %")
SETTINGS = {
    "no penalty": FewlOptions(aggregation="eq6", penalty=False),
    "paper (Eq. 4)": FewlOptions(aggregation="paper"),
    "eq6": FewlOptions(aggregation="eq6"),
    "eq6, random neighbours": FewlOptions(aggregation="eq6", neighbour_choice="random"),
}


def main() -> None:
    """Run everything and write the page and the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=Path("docs/results/fewl_ranking.md"))
    parser.add_argument("--embedding-cache", type=Path, help="file that keeps embeddings between runs")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    english = encoder(args.embedding_cache)
    parts = [
        "# FEWL as a ranking of models: tables",
        "Written by `python -m benchmarks.fewl_ranking`; read `fewl.md` first. " + environment() + ". Kendall's τ-b of "
        "mean score and share of true answers; 95 % percentile bootstrap over questions, scores and labels resampled "
        "together.",
    ]
    parts += halluqa(args.data, args.output.with_name("fewl_halluqa.png"))
    parts += chinese_fact_eval(args.data)
    parts += multiple_choice(args.data, english)
    parts += truthfulqa_models(args.data, english)
    args.output.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"written: {args.output}")


def chinese_encoder(records: Sequence[Record]) -> Encode:
    """Character TF-IDF with the document frequencies of all texts of these records."""
    encode = each_once(char_tfidf())
    texts = [r["question"] for r in records] + [a["text"] for r in records for a in r["answers"]]
    encode(list(dict.fromkeys(texts)))
    return encode


def halluqa(data: Path, plot: Path) -> list[str]:
    """Item 2, main result."""
    answers: dict[str, list[Record]] = defaultdict(list)
    for row in read("halluqa_zh_llm_answers", data):
        answers[row["question_id"]].append({"text": row["answer"], "model": row["model"], "label": row["truth_label"]})
    records = [
        {
            "question": r["question"],
            "answers": answers[r["id"]],
            "reference_answers": {a["model"]: a["text"] for a in answers[r["id"]]},
        }
        for r in read("halluqa_zh", data)
    ]
    encode = chinese_encoder(records)
    sims: dict[str, Similarity] = {
        "tf-idf cosine": remembered(cosine(encode)),
        "rouge-l": remembered(rouge_l),
        "new-words": remembered(new_words),
    }
    scored_by: dict[str, list[Record]] = {}
    for name, similarity in sims.items():
        settings = SETTINGS if name != "rouge-l" else {"no penalty": SETTINGS["no penalty"]}
        for called, options in settings.items():
            scored_by[f"{name}, {called}"] = score_records(
                records, similarity=similarity, encode=encode, options=options
            )[0]
            print(name, called, flush=True)
        for called in [c for c in ("no penalty", "eq6") if c in settings]:
            off = score_records(shuffled(records), similarity=similarity, encode=encode, options=SETTINGS[called])[0]
            row = f"{name}, {called}"
            scored_by[f"{row}, control: answers to another question"] = off
            scored_by[f"{row}, length-adjusted (extension)"] = length_adjusted(scored_by[row])
            scored_by[f"{row}, length-adjusted, control"] = length_adjusted(off)
        against = replace(SETTINGS["no penalty"], weak=BASE_MODELS)
        contrast = score_records(records, similarity=similarity, encode=encode, options=against)[0]
        scored_by[f"{name}, no penalty, base models weak (extension)"] = contrast
        off = score_records(shuffled(records), similarity=similarity, encode=encode, options=against)[0]
        scored_by[f"{name}, no penalty, base models weak, control"] = off
    for called, sign in (("length alone: longer is better", 1), ("length alone: shorter is better", -1)):
        scored_by[called] = [
            {**r, "answers": [{**a, "score": float(sign * len(a["text"]))} for a in r["answers"]]} for r in records
        ]
    figures = {
        row: {
            "τ, all": scored,
            "τ, half to choose on": [r for r in scored if half(r) == 0],
            "τ, half to report on": [r for r in scored if half(r) == 1],
            "τ, 16 tuned models only": tuned_only(scored),
        }
        for row, scored in scored_by.items()
    }
    columns = list(next(iter(figures.values())))
    rows = [
        [
            row,
            *(tau(rank_models(figures[row][c], truth_from_labels=True)) for c in columns),
            *(shown(labelled_pairs(scored, alike)) for alike in (None, ALIKE)),
        ]
        for row, scored in scored_by.items()
    ]
    eligible = [row for row in scored_by if "control" not in row and "length alone" not in row]

    def first_tau(row: str) -> float:
        k = rank_models(figures[row]["τ, half to choose on"], truth_from_labels=True, resamples=100).kendall
        return -2.0 if k is None or k["tau"] is None else float(k["tau"])

    by_tau = max(eligible, key=first_tau)
    by_pairs = max(eligible, key=lambda r: np.nanmean(labelled_pairs(figures[r]["τ, half to choose on"], ALIKE)))
    choices = [
        [why, row, tau(rank_models(second, truth_from_labels=True)), shown(labelled_pairs(second)), like]
        for why, row in (("highest τ", by_tau), ("most pairs of like length right", by_pairs))
        for second in [figures[row]["τ, half to report on"]]
        for like in [shown(labelled_pairs(second, ALIKE))]
    ]
    chosen = rank_models(scored_by[by_pairs], truth_from_labels=True)
    plot_ranking(chosen, plot)
    order = [[r.model, f"{r.mean:.4f}", f"{100 * (chosen.truth or {})[r.model]:.1f}", r.n] for r in chosen.models]
    return [
        f"## HalluQA: {len(records)} questions, 24 models, each judged by the other 23",
        "Labels are GPT-4's judgements, not people's. “Control”: scored with the answers to another question.",
        table(["similarity, setting", *columns, *PAIR_COLUMNS], rows),
        "Chosen on the first half, reported on the second:",
        table(["chosen for", "score", "τ", *PAIR_COLUMNS], choices),
        f"The second of these on all questions: ![plot]({plot.name})",
        table(["model", "mean score", "true answers, %", "n"], order),
    ]


def tuned_only(scored: Sequence[Record]) -> list[Record]:
    """The records without the answers of base models."""
    return [{**r, "answers": [a for a in r["answers"] if a["model"] not in BASE_MODELS]} for r in scored]


def tau(ranking: Ranking) -> str:
    k = ranking.kendall
    if k is None or k["tau"] is None:
        return "–"
    return f"{k['tau']:+.2f} [{k['low']:+.2f}, {k['high']:+.2f}]"


def chinese_fact_eval(data: Path) -> list[str]:
    """Seven LLMs, human labels."""
    records = []
    for row in read("chinesefacteval_zh_llm_answers", data):
        answers = [{"text": a["answer"], "model": a["model"], "label": a["truth_label"]} for a in row["answers"]]
        references = {a["model"]: a["text"] for a in answers}
        records.append({"question": row["question"], "answers": answers, "reference_answers": references})
    encode = chinese_encoder(records)
    return [
        f"## ChineseFactEval: {len(records)} questions, 7 models, each judged by the other 6, human labels",
        *_ranked(records, {"tf-idf cosine": cosine(encode), "new-words": new_words}, encode),
    ]


def multiple_choice(data: Path, encode: Encode) -> list[str]:
    """Table 4: five models' choices, judged by three real reference LLMs."""
    references = {r["question"]: r["reference_answers"] for r in by_model(truthfulqa(data), THREE)}
    by_question: dict[str, list[Record]] = defaultdict(list)
    for row in read("truthfulqa_haltt4llm_mc", data):
        text = row["correct"][0] if row["status"] == "correct" else _choice(row)
        by_question[row["question"]].append({"text": text, "model": row["model"], "label": row["status"] == "correct"})
    records = [
        {"question": q, "answers": answers, "reference_answers": references.get(q, {})}
        for q, answers in by_question.items()
    ]
    return [
        f"## haltt4llm multiple choice (Table 4): {len(records)} questions, 5 models, references {', '.join(THREE)}",
        "The right choice is always A, so the truth itself is distorted by position bias: a model that likes A is "
        "“right” more often.",
        *_ranked(records, {"cosine": cosine(encode), "new-words": new_words}, encode),
    ]


def _choice(row: Record) -> str:
    """The text of the choice a raw answer names by its letter, else the raw answer."""
    raw = str(row["raw_answer"]).strip()
    letter = raw[:1].upper()
    if letter in "ABCDE" and raw[1:2] in (".", ")", ":", ""):
        return str(row["choices"]["ABCDE".index(letter)])
    return raw


def truthfulqa_models(data: Path, encode: Encode) -> list[str]:
    """The models of the 15 with human labels, judged by the others."""
    labels = {(r["question_id"], r["model"]): r["truth_label"] for r in read("truthfulqa_llm_answers", data)}
    named = sorted({m for (_, m), label in labels.items() if label is not None})
    records = [
        {
            "question": r["question"],
            "reference_answers": r["reference_answers"],
            "answers": [
                {"text": t, "model": m, "label": labels[r["id"], m]}
                for m, t in r["reference_answers"].items()
                if m in named and labels[r["id"], m] is not None
            ],
        }
        for r in truthfulqa(data)
    ]
    n = sum(len(r["answers"]) for r in records)
    return [
        f"## TruthfulQA models with human labels: {len(named)} models, {n} labelled answers, 14 references",
        *_ranked(records, {"cosine": cosine(encode), "new-words": new_words}, encode),
    ]


def _ranked(records: Sequence[Record], sims: dict[str, Similarity], encode: Encode) -> list[str]:
    scored_by = {}
    for name, similarity in sims.items():
        kept = remembered(similarity)
        for called in ("no penalty", "paper (Eq. 4)", "eq6", "eq6, random neighbours"):
            scored_by[f"{name}, {called}"] = score_records(
                records, similarity=kept, encode=encode, options=SETTINGS[called]
            )[0]
        for called in ("no penalty", "eq6"):
            row = f"{name}, {called}"
            off = score_records(shuffled(records), similarity=similarity, encode=encode, options=SETTINGS[called])[0]
            scored_by[f"{row}, control: references of another question"] = off
            scored_by[f"{row}, length-adjusted (extension)"] = length_adjusted(scored_by[row])
            scored_by[f"{row}, length-adjusted, control"] = length_adjusted(off)
    scored_by["length alone: longer is better"] = [
        {**r, "answers": [{**a, "score": float(len(a["text"]))} for a in r["answers"]]} for r in records
    ]
    rows = []
    for called, scored in scored_by.items():
        ranking = rank_models(scored, truth_from_labels=True)
        order = " > ".join(r.model for r in ranking.models)
        pairs, like = labelled_pairs(scored), labelled_pairs(scored, ALIKE)
        counts = f"{int((~np.isnan(pairs)).sum())}, {int((~np.isnan(like)).sum())}"
        rows.append([called, tau(ranking), shown(pairs), shown(like), counts, order])
    truth = sorted((ranking.truth or {}).items(), key=lambda item: -item[1])
    said = ", ".join(f"{m} {100 * t:.1f} %" for m, t in truth)
    return [
        table(["similarity, setting", "Kendall τ", "true above false, %", "questions with both", "order"], rows),
        f"Truth: {said}.",
    ]


if __name__ == "__main__":
    main()
