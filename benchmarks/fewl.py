"""FEWL against labels: TruthfulQA, HalluQA, ChineseFactEval and CHALE, with the two controls without which it misleads.

    python -m benchmarks.fewl --data ../shared/data [--only truthfulqa halluqa chinesefacteval chale]

Two controls go with every figure. "Control": the same scores with the reference answers of another question; what it
reaches, the references did not bring. "Like length": only pairs of answers whose lengths differ by at most 1.2 times.
An LLM is never a reference for itself. Labels judge scores; no setting is fitted to them.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import DATA, Row, fewl_rows, mean_row, parser, row, save, sentences_of
from engines.embedding import Embedder
from fewl.ranking import rank_models
from fewl.score import FewlOptions, score_records
from fewl.similarity import Encode, OfPairs, Similarity, char_tfidf, cosine, each_once, new_words, rouge_l

Values = NDArray[np.float64]
THREE = ("gemma-2-27b-it", "Llama-3.1-70B-Instruct", "Mistral-7B-Instruct-v0.2")
"""The three reference LLMs of TruthfulQA: one of each maker, chosen by size and kind, not by results."""
WEAK = ("gemma-2-27b", "Llama-3.1-70B", "Mistral-7B-v0.3")
"""Their base models (Mistral's of the next version, since 0.2 has none here), as weak LLMs."""
SINGLE = THREE[0]
LIKE = 1.2
EQ6, EQ4 = FewlOptions(aggregation="eq6"), FewlOptions(aggregation="paper")
SETTINGS = {"no penalty": replace(EQ6, penalty=False), "Eq. 6": EQ6, "literal Eq. 4": EQ4}
SHOWN = (
    "ChineseFactEval, new-words, Eq. 6: true above false",
    "ChineseFactEval, new-words, Eq. 6, control: true above false",
    "ChineseFactEval, length alone: true above false",
    "TruthfulQA, cosine, no penalty: human-labelled, true above false",
    "TruthfulQA, cosine, no penalty: the same, like length",
    "TruthfulQA, cosine, control: the same, like length",
    "TruthfulQA, cosine, no penalty: best on top",
    "TruthfulQA, cosine, Eq. 6: best on top",
    "TruthfulQA, cosine, literal Eq. 4: best on top",
    "TruthfulQA, new-words, no penalty: human-labelled, true above false",
    "TruthfulQA, new-words, control: human-labelled, true above false",
    "TruthfulQA, rouge-l, no penalty: best above first wrong",
    "TruthfulQA, rouge-l, against weak LLMs: best above first wrong",
    "TruthfulQA, rouge-l, against weak LLMs, control: best above first wrong",
    "HalluQA, length alone: Kendall τ of the models",
    "HalluQA, tf-idf cosine, no penalty: Kendall τ of the models",
    "HalluQA, tf-idf cosine, literal Eq. 4: Kendall τ of the models",
    "HalluQA, new-words, Eq. 6: the same, like length",
    "HalluQA, new-words, Eq. 6, control: the same, like length",
    "CHALE, cosine, no penalty: right above hallucinated",
    "CHALE, cosine, literal Eq. 4: right above hallucinated",
)
"""Rows of the page; the JSON file has all."""
CHALE_KINDS = ("non_hallu", "half_hallu", "hallu")


# --- records -------------------------------------------------------------------------------------------------------


def truthfulqa(data: Path = DATA) -> list[Row]:
    """Questions with official answers (``kind``) and human-labelled answers (``label``), and 15 references."""
    references: dict[str, dict[str, str]] = defaultdict(dict)
    for r in fewl_rows("truthfulqa_llm_answers", data):
        references[r["question_id"]][r["model"]] = r["answer"]
    labelled: dict[str, dict[str, bool]] = defaultdict(dict)
    for r in fewl_rows("truthfulqa_human_labelled", data):
        labelled[r["question_id"]][r["answer"]] = r["truth_label"]
    records = []
    for r in fewl_rows("truthfulqa", data):
        answers: list[Row] = [{"text": r["best_answer"], "kind": "best"}]
        answers += [{"text": t, "kind": k} for k in ("correct", "incorrect") for t in r[f"{k}_answers"]]
        answers += [{"text": t, "kind": "labelled", "label": truth} for t, truth in labelled[r["id"]].items()]
        ideal = {"co": r["correct_answers"], "iw": r["incorrect_answers"]}
        known = {"answers": answers, "reference_answers": references[r["id"]], **ideal}
        records.append({"id": r["id"], "question": r["question"], **known})
    return records


def by_model(records: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The records with only these reference LLMs."""
    return [
        {**r, "reference_answers": {n: t for n, t in r["reference_answers"].items() if n in names}} for r in records
    ]


def each_other(answers: Mapping[str, Sequence[Row]], questions: Mapping[str, str]) -> list[Row]:
    """Records whose models are judged by the other models' answers."""
    return [
        {"question": questions[q], "answers": list(some), "reference_answers": {a["model"]: a["text"] for a in some}}
        for q, some in answers.items()
    ]


def halluqa(data: Path = DATA) -> list[Row]:
    """HalluQA (Chinese): 24 models, labels by GPT-4."""
    answers: dict[str, list[Row]] = defaultdict(list)
    for r in fewl_rows("halluqa_zh_llm_answers", data):
        answers[r["question_id"]].append({"text": r["answer"], "model": r["model"], "label": r["truth_label"]})
    return each_other(answers, {r["id"]: r["question"] for r in fewl_rows("halluqa_zh", data)})


def chinese_fact_eval(data: Path = DATA) -> list[Row]:
    """ChineseFactEval: 7 models, labels by people."""
    rows = fewl_rows("chinesefacteval_zh_llm_answers", data)
    answers = {
        r["question"]: [{"text": a["answer"], "model": a["model"], "label": a["truth_label"]} for a in r["answers"]]
        for r in rows
    }
    return each_other(answers, {question: question for question in answers})


def chale(data: Path = DATA) -> list[Row]:
    """CHALE, whose references are up to five sentences of the long answer that are in no candidate."""
    records = []
    for r in fewl_rows("chale", data):
        candidates = " ".join(r[kind] for kind in CHALE_KINDS)
        other = [s for s in sentences_of(r["long_answer"]) if s not in candidates][:5]
        if r["half_hallu"].strip() != r["hallu"].strip() and len(other) >= 2:
            answers = [{"text": r[kind]} for kind in CHALE_KINDS]
            records.append({"question": r["question"], "answers": answers, "reference_answers": {"gold": other}})
    return records


def shuffled(records: Sequence[Row], seed: int = 0) -> list[Row]:
    """Control: every question gets the reference answers of another one."""
    order = np.random.default_rng(seed).permutation(len(records))
    swap = dict(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))
    return [{**r, "reference_answers": records[swap[q]]["reference_answers"]} for q, r in enumerate(records)]


def half(record: Mapping[str, Any]) -> int:
    """0 (to choose on) or 1 (to report on), by the question's text."""
    return zlib.crc32(record["question"].encode()) & 1


# --- figures per question, NaN where a question has nothing to compare ------------------------------------------------


def labelled_pairs(scored: Sequence[Row], alike: float | None = None) -> Values:
    """Share of (true, false) answer pairs of a question with the true one above; ties half.

    With ``alike``, only pairs whose lengths differ by at most this factor, so that length cannot decide.
    """
    values = []
    for record in scored:
        known = [a for a in record["answers"] if a.get("label") is not None and a["score"] is not None]
        true = np.array([a["score"] for a in known if a["label"]])
        false = np.array([a["score"] for a in known if not a["label"]])
        won = (true[:, None] > false[None, :]) + 0.5 * (true[:, None] == false[None, :])
        if alike is not None:
            long = [np.log([len(a["text"]) for a in known if bool(a["label"]) is label]) for label in (True, False)]
            won = won[np.abs(long[0][:, None] - long[1][None, :]) <= np.log(alike)]
        values.append(won.mean() if won.size else np.nan)
    return np.array(values)


def best_on_top(scored: Sequence[Row]) -> Values:
    """1 where the best answer has a higher score than every other official answer, else 0."""
    values = []
    for record in scored:
        official = [a for a in record["answers"] if a.get("kind") in ("best", "correct", "incorrect")]
        best = next((a for a in official if a["kind"] == "best"), None)
        others = [a["score"] for a in official if best is not None and a["text"] != best["text"]]
        missing = best is None or best["score"] is None or None in others
        values.append(np.nan if missing else float(all(best["score"] > score for score in others)))
    return np.array(values)


def best_above_first_wrong(scored: Sequence[Row]) -> Values:
    """1 where the best answer has a higher score than the first wrong one, ½ for a tie."""
    values = []
    for record in scored:
        first: dict[Any, Any] = {}
        for answer in record["answers"]:
            first.setdefault(answer.get("kind"), answer["score"])
        best, wrong = first.get("best"), first.get("incorrect")
        values.append(np.nan if best is None or wrong is None else (best > wrong) + 0.5 * (best == wrong))
    return np.array(values, dtype=float)


# --- encoders and similarities ----------------------------------------------------------------------------------------


def english_encoder() -> Encode:
    """The packaged MiniLM in float32; each text is encoded once."""
    return each_once(Embedder(dtype="float32").encode)


def chinese_encoder(records: Sequence[Row]) -> Encode:
    """Character TF-IDF with the document frequencies of all texts of these records; MiniLM can't read Chinese."""
    encode = each_once(char_tfidf())
    encode(list(dict.fromkeys([r["question"] for r in records] + [a["text"] for r in records for a in r["answers"]])))
    return encode


def remembered(similarity: Similarity) -> Similarity:
    """A similarity that keeps what it compared, for runs that differ in weights and aggregation only."""
    prepared: dict[int, OfPairs] = {}
    known: dict[tuple[int, bytes], Values] = {}

    def prepare(texts: Sequence[str]) -> OfPairs:
        key = hash(tuple(texts))
        if key not in prepared:
            prepared[key] = similarity(texts)

        def of_pairs(pairs_P3: NDArray[np.int64]) -> Values:
            place = (key, pairs_P3.tobytes())
            if place not in known:
                known[place] = prepared[key](pairs_P3)
            return known[place]

        return of_pairs

    return prepare


# --- parts ------------------------------------------------------------------------------------------------------------


def on_truthfulqa(data: Path, encode: Encode) -> list[Row]:
    """The paper's Table 3 protocol, and human-labelled pairs; three reference LLMs."""
    records = truthfulqa(data)
    three, six = by_model(records, THREE), by_model(records, (*THREE, *WEAK))
    none = SETTINGS["no penalty"]
    settings = {
        "single, no penalty": (three, replace(none, references=f"single:{SINGLE}")),
        **{name: (three, options) for name, options in SETTINGS.items()},
        "Eq. 6, ideal λ": (three, replace(EQ6, expertise="similarity")),
        "Eq. 6, random neighbours": (three, replace(EQ6, neighbour_choice="random")),
        "control": (shuffled(three), none),
        "against weak LLMs": (six, replace(none, weak=WEAK)),
        "against weak LLMs, control": (shuffled(six), replace(none, weak=WEAK)),
    }
    shown = []
    sims: dict[str, Similarity] = {"cosine": cosine(encode), "rouge-l": rouge_l, "new-words": new_words}
    for name, similarity in sims.items():
        kept = remembered(similarity)
        for called, (asked, options) in settings.items():
            scored = score_records(asked, similarity=kept, encode=encode, options=options)[0]
            where = f"TruthfulQA, {name}, {called}"
            shown += [
                mean_row(f"{where}: best on top", best_on_top(scored), unit="%"),
                mean_row(f"{where}: best above first wrong", best_above_first_wrong(scored), unit="%"),
                mean_row(f"{where}: human-labelled, true above false", labelled_pairs(scored), unit="%"),
                mean_row(f"{where}: the same, like length", labelled_pairs(scored, LIKE), unit="%"),
            ]
            print(where, flush=True)
    return shown


def on_rankings(name: str, records: Sequence[Row]) -> list[Row]:
    """Every model judged by the others: Kendall's τ with the share of true answers, and pairs."""
    encode = chinese_encoder(records)
    shown = []
    scored_by: dict[str, list[Row]] = {
        "length alone": [
            {**r, "answers": [{**a, "score": float(len(a["text"]))} for a in r["answers"]]} for r in records
        ]
    }
    for sim_name, similarity in {"tf-idf cosine": cosine(encode), "new-words": new_words}.items():
        kept = remembered(similarity)
        for called, options in SETTINGS.items():
            scored_by[f"{sim_name}, {called}"] = score_records(
                records, similarity=kept, encode=encode, options=options
            )[0]
        for called in ("no penalty", "Eq. 6"):
            off = score_records(shuffled(records), similarity=similarity, encode=encode, options=SETTINGS[called])[0]
            scored_by[f"{sim_name}, {called}, control"] = off
    for called, scored in scored_by.items():
        k = rank_models(scored, truth_from_labels=True).kendall or {"tau": None, "low": 0, "high": 0}
        shown += [
            row(f"{name}, {called}: Kendall τ of the models", len(records), k["tau"], (k["low"], k["high"])),
            mean_row(f"{name}, {called}: true above false", labelled_pairs(scored), unit="%"),
            mean_row(f"{name}, {called}: the same, like length", labelled_pairs(scored, LIKE), unit="%"),
        ]
        print(name, called, flush=True)
    return shown


def on_chale(data: Path, encode: Encode) -> list[Row]:
    """What the equations do with good references; not comparable with the paper's Table 1."""
    records, shown = chale(data), []
    sims: dict[str, Similarity] = {"cosine": cosine(encode), "rouge-l": rouge_l, "new-words": new_words}
    for name, similarity in sims.items():
        kept, base = remembered(similarity), np.zeros(0)
        for called, options in SETTINGS.items():
            scored = score_records(records, similarity=kept, encode=encode, options=options)[0]
            s = np.array([[a["score"] for a in r["answers"]] for r in scored], dtype=float)
            won = (s[:, 0] > s[:, 2]) + 0.5 * (s[:, 0] == s[:, 2])
            shown.append(mean_row(f"CHALE, {name}, {called}: right above hallucinated", won, unit="%"))
            if len(base):
                shown.append(mean_row(f"CHALE, {name}, {called} − no penalty", won - base, unit="%"))
            base = base if len(base) else won
    return shown


def main() -> None:
    """Measure and write the page."""
    made = parser(__doc__)
    names = ("truthfulqa", "halluqa", "chinesefacteval", "chale")
    made.add_argument("--only", nargs="*", choices=names, default=names)
    args = made.parse_args()
    english = english_encoder()
    parts: dict[str, Callable[[], list[Row]]] = {
        "truthfulqa": lambda: on_truthfulqa(args.data, english),
        "halluqa": lambda: on_rankings("HalluQA", halluqa(args.data)),
        "chinesefacteval": lambda: on_rankings("ChineseFactEval", chinese_fact_eval(args.data)),
        "chale": lambda: on_chale(args.data, english),
    }
    found = {name: parts[name]() for name in args.only}
    rows = [one for some in found.values() for one in some if one["what"] in SHOWN]
    save("fewl", "fewl", rows, tables=found, packages=["sentence-transformers"])


if __name__ == "__main__":
    main()
