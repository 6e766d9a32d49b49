"""FEWL against labels: TruthfulQA, HalluQA, ChineseFactEval and CHALE, every figure beside its controls.

    python -m benchmarks.fewl --data ../shared/data [--cache FILE]
    python -m benchmarks.fewl --data ../shared/data --annotator embedded-fast  # entailment between answers, by itself
    python -m benchmarks.fewl --data ../shared/data --llms  # the paper's Table 5: the truer of two LLMs' answers

A figure says nothing without these controls, which are measured with the same setting: the references of another
question (what that reaches, the references did not bring), no references (the question stands in their place), and
length alone. Pairs of "like length" differ by at most 1.2 times; picks also say how many of them commit themselves.
An LLM is never a reference for itself. Half of the questions, by a hash of the text, choose a setting (the best mean
over the sets of true above false at like length); figures are of the other half, and there the setting is compared with
equal weights, question by question. haltt4llm's choices are left out, since always taking the first one is always right
there.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Row, fewl_rows, line, mean_row, parser, row, save, sentences_of
from benchmarks.common import shown as figure
from engines.cache import kept_vectors
from engines.embedding import Embedder
from fewl.ranking import pick_answers, rank_models
from fewl.score import FewlOptions, score_records
from fewl.similarity import Encode, OfPairs, Similarity, both_ways, char_tfidf, cosine, each_once, new_words
from mitigate.recipes.config import load_recipe
from mitigate.recipes.fewl import add_truths, as_record, wins

Values = NDArray[np.float64]
THREE = {
    "TruthfulQA": ("gemma-2-27b-it", "Llama-3.1-70B-Instruct", "Mistral-7B-Instruct-v0.2"),
    "HalluQA": ("qwen-14b-chat", "baichuan2-13b-chat", "chatglm_pro"),
    "ChineseFactEval": ("baichuan", "chatglm", "sensetime"), "CHALE": ("gold 0", "gold 1", "gold 2"),
}  # fmt: skip
"""Three reference LLMs of a set: each of another maker, chosen by size and kind, not by results."""
LIKE = 1.2
TRIPLES = 20
"""Random triples of reference LLMs that picks on HalluQA are spread over."""
EQ6, EQ4 = FewlOptions(penalty=True), FewlOptions(aggregation="paper")
NO_PENALTY = replace(EQ6, penalty=False)
EQUAL = "Eq. 6, no penalty"  # the weights are equal
# Only the JSON file has these.
NOT_SHOWN = "true above false|picks that commit themselves|best above first wrong|Kendall τ of the models".split("|")
SETTINGS = {
    "Eq. 4": EQ4,
    "Eq. 6": EQ6,
    EQUAL: NO_PENALTY,
    "discovered": replace(EQ6, expertise="discovered"),
    "discovered, random neighbours": replace(EQ6, expertise="discovered", neighbour_choice="random", neighbours=10),
    "discovered, no penalty": replace(NO_PENALTY, expertise="discovered"),
}
SHUFFLED, NOTHING = "with another question's references", "without references"
LENGTHS = {"the longest": 1.0, "the shortest": -1.0}
CHALE_KINDS = ("non_hallu", "half_hallu", "hallu")
SILENT = re.compile(
    r"no comment|n't know|not (?:know|sure)|unsure|no idea|can(?:'|no)t say|不(?:知道|清楚|确定)|无法", re.I
)


def truthfulqa(data: Path) -> list[Row]:
    """Questions with two official answers (``kind``) and human-labelled answers (``label``), and 15 references."""
    references: dict[str, dict[str, str]] = defaultdict(dict)
    for r in fewl_rows("truthfulqa_llm_answers", data):
        references[r["question_id"]][r["model"]] = r["answer"]
    labelled: dict[str, dict[str, bool]] = defaultdict(dict)
    for r in fewl_rows("truthfulqa_human_labelled", data):
        labelled[r["question_id"]][r["answer"]] = r["truth_label"]
    records = []
    for r in fewl_rows("truthfulqa", data):
        answers: list[Row] = [{"text": r["best_answer"], "kind": "best"}]
        answers += [{"text": text, "kind": "incorrect"} for text in r["incorrect_answers"][:1]]
        answers += [{"text": text, "label": truth} for text, truth in labelled[r["id"]].items()]
        records.append({"question": r["question"], "answers": answers, "reference_answers": references[r["id"]]})
    return records


def by_model(records: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """The records with only these reference LLMs."""
    kept = ({n: text for n, text in r["reference_answers"].items() if n in names} for r in records)
    return [{**r, "reference_answers": own} for r, own in zip(records, kept, strict=True)]


def each_other(question: str, answers: Sequence[Row]) -> Row:
    """A record whose models are judged by the other models' answers."""
    labelled = [{"text": a["answer"], "model": a["model"], "label": a["truth_label"]} for a in answers]
    references = {a["model"]: a["answer"] for a in answers}
    return {"question": question.strip(), "answers": labelled, "reference_answers": references}


def halluqa(data: Path) -> list[Row]:
    """HalluQA (Chinese): 24 models, labels by GPT-4."""
    answers: dict[str, list[Row]] = defaultdict(list)
    for r in fewl_rows("halluqa_zh_llm_answers", data):
        answers[r["question_id"]].append(r)
    questions = {r["id"]: r["question"] for r in fewl_rows("halluqa_zh", data)}
    return [each_other(questions[name], some) for name, some in answers.items()]


def chinese_fact_eval(data: Path) -> list[Row]:
    """ChineseFactEval: 7 models, labels by people."""
    rows = fewl_rows("chinesefacteval_zh_llm_answers", data)
    return [each_other(question, answers) for question, answers in {r["question"]: r["answers"] for r in rows}.items()]


def chale(data: Path) -> list[Row]:
    """CHALE, whose references are up to five sentences of the long answer that are in no candidate."""
    records = []
    for r in fewl_rows("chale", data):
        candidates = " ".join(r[kind] for kind in CHALE_KINDS)
        other = [s for s in sentences_of(r["long_answer"]) if s not in candidates][:5]
        if r["half_hallu"].strip() != r["hallu"].strip() and len(other) >= 2:
            labels = (True, None, False)
            answers = [{"text": r[kind], "label": label} for kind, label in zip(CHALE_KINDS, labels, strict=True)]
            gold = {f"gold {i}": text for i, text in enumerate(other)}
            records.append({"question": r["question"], "answers": answers, "reference_answers": gold})
    return records


SETS: dict[str, Callable[[Path], list[Row]]] = {
    "TruthfulQA": truthfulqa, "HalluQA": halluqa, "ChineseFactEval": chinese_fact_eval, "CHALE": chale,
}  # fmt: skip


def shuffled(records: Sequence[Row]) -> list[Row]:
    """Control: every question gets the reference answers of another one."""
    order = np.random.default_rng(0).permutation(len(records))
    swap = dict(zip(order.tolist(), np.roll(order, 1).tolist(), strict=True))
    return [{**r, "reference_answers": records[swap[q]]["reference_answers"]} for q, r in enumerate(records)]


def asked_only(records: Sequence[Row]) -> list[Row]:
    """Control: the question itself stands in the place of every reference answer."""
    return [{**r, "reference_answers": dict.fromkeys(r["reference_answers"], r["question"])} for r in records]


def by_length(records: Sequence[Row], sign: float) -> list[Row]:
    """Control: the length of an answer is its score, or its negative."""
    return [{**r, "answers": [{**a, "score": sign * len(a["text"])} for a in r["answers"]]} for r in records]


def half(record: Mapping[str, Any]) -> int:
    """0 (to choose on) or 1 (to report on), by the question's text."""
    return zlib.crc32(record["question"].encode()) & 1


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


def best_above_first_wrong(scored: Sequence[Row]) -> Values:
    """1 where the best answer has a higher score than the first wrong one, ½ for a tie."""
    values = []
    for record in scored:
        first = {answer.get("kind"): answer["score"] for answer in reversed(record["answers"])}
        best, wrong = first.get("best"), first.get("incorrect")
        values.append(np.nan if best is None or wrong is None else (best > wrong) + 0.5 * (best == wrong))
    return np.array(values, dtype=float)


def picked(scored: Sequence[Row]) -> list[Row | None]:
    """The answer with the best score of each question with answers of both labels; None for other questions."""
    chosen: list[Row | None] = []
    for record in scored:
        known = [a for a in record["answers"] if a.get("label") is not None]
        place = pick_answers([{"answers": known}])[0]["index"] if len({bool(a["label"]) for a in known}) == 2 else None
        chosen.append(None if place is None else known[place])
    return chosen


def picks(scored: Sequence[Row], committed: bool = False) -> Values:
    """1 where the picked answer is true (with ``committed``: where it does not say that it does not know), else 0."""
    good: Callable[[Row], bool] = (lambda a: not SILENT.search(a["text"])) if committed else (lambda a: a["label"])
    return np.array([np.nan if answer is None else float(good(answer)) for answer in picked(scored)])


MEASURES: dict[str, Callable[[Sequence[Row]], Values]] = {
    "true above false": labelled_pairs,
    "true above false, like length": partial(labelled_pairs, alike=LIKE),
    "true picks": picks,
    "picks that commit themselves": partial(picks, committed=True),
}


def measured(where: str, scored: Sequence[Row]) -> list[Row]:
    found = [mean_row(f"{where}: {name}", measure(scored), unit="%") for name, measure in MEASURES.items()]
    if any(a.get("kind") == "best" for r in scored for a in r["answers"]):
        found.append(mean_row(f"{where}: best above first wrong", best_above_first_wrong(scored), unit="%"))
    if any(a.get("model") for r in scored for a in r["answers"]):
        k = rank_models(scored, truth_from_labels=True, resamples=200).kendall or {"tau": None}
        limits = None if k["tau"] is None else (k["low"], k["high"])
        found.append(row(f"{where}: Kendall τ of the models", len(scored), k["tau"], limits))
    return found


def english_encoder(cache: Path | None = None) -> Encode:
    """The packaged MiniLM in float32; each text is encoded once."""
    embedder = Embedder(dtype="float32")
    return each_once(kept_vectors(embedder.encode, cache, embedder.fingerprint) if cache else embedder.encode)


def chinese_encoder(records: Sequence[Row]) -> Encode:
    """Character TF-IDF with the document frequencies of all texts of these records; MiniLM can't read Chinese."""
    encode = each_once(char_tfidf())
    encode(list(dict.fromkeys(texts_of(records))))
    return encode


def texts_of(records: Sequence[Row]) -> list[str]:
    """The questions and answers of a set whose LLMs judge each other."""
    return [*(r["question"] for r in records), *(a["text"] for r in records for a in r["answers"])]


def looked_up(encode: Encode, records: Sequence[Row]) -> Similarity:
    """Cosine from one product of all texts with all, which is faster than pair by pair for these few long vectors."""
    every = {text: i for i, text in enumerate(dict.fromkeys(texts_of(records)))}
    vectors = encode(list(every))
    product = vectors @ vectors.T

    def prepare(texts: Sequence[str]) -> OfPairs:
        place = np.array([every[text] for text in texts], dtype=np.int64)
        return lambda pairs_P3: product[place[pairs_P3[:, 0]], place[pairs_P3[:, 1]]].astype(np.float64)

    return prepare


def remembered(similarity: Similarity) -> Similarity:
    """A similarity that prepares equal texts once, for runs that differ in their options only."""
    last: list[tuple[Sequence[str], OfPairs]] = []

    def prepare(texts: Sequence[str]) -> OfPairs:
        if not last or last[0][0] != texts:
            last[:] = [(texts, similarity(texts))]
        return last[0][1]

    return prepare


def controlled(records: Sequence[Row]) -> dict[str, Sequence[Row]]:
    """The records, and both controls of their references, by name."""
    return {"": records, SHUFFLED: shuffled(records), NOTHING: asked_only(records)}


def named(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def on_set(
    name: str, records: Sequence[Row], similarity: Similarity, encode: Encode | None,
    settings: Mapping[str, FewlOptions],
) -> tuple[list[Row], dict[str, Values]]:  # fmt: skip
    """The rows of the half that is reported, and true above false at like length of each setting and question."""
    rows: list[Row] = []
    alike: dict[str, Values] = {}
    for control, some in controlled(records).items():
        kept = remembered(similarity)
        for called, options in settings.items():
            scored = score_records(some, similarity=kept, encode=encode, options=options)[0]
            rows += measured(named(name, called, control), [r for r in scored if half(r)])
            if not control:
                alike[called] = labelled_pairs(scored, LIKE)
        print(name, control, flush=True)
    return rows, alike


def triples(records: Sequence[Row], similarity: Similarity) -> list[Row]:
    """How far picks on HalluQA depend on which three LLMs are the references; these are no candidates then."""
    names = sorted({name for r in records for name in r["reference_answers"]})
    generator, kept = np.random.default_rng(0), remembered(similarity)
    shares: dict[str, list[float]] = {"": [], SHUFFLED: []}
    for _ in range(TRIPLES):
        three = generator.choice(names, 3, replace=False).tolist()
        theirs = by_model(records, three)
        some = [{**r, "answers": [a for a in r["answers"] if a["model"] not in three]} for r in theirs]
        for control, asked in (("", some), (SHUFFLED, shuffled(some))):
            scored = score_records(asked, similarity=kept, options=NO_PENALTY)[0]
            shares[control].append(100 * float(np.nanmean(picks([r for r in scored if half(r)]))))
    where = f"HalluQA, {TRIPLES} random triples of references, Eq. 6, no penalty"
    return [
        row(f"{named(where, control)}: true picks, mean [lowest, highest]", sum(map(half, some)), float(np.mean(found)),
            (min(found), max(found)), "%")
        for control, found in shares.items()
    ]  # fmt: skip


def meaning(data: Path, name: str) -> None:
    """Write the part of the page on entailment, both ways, by an annotator: on sets of its language, three references.

    The half that is reported is measured, and whether the entropy of what the three mean says when to abstain.
    """
    from annotators import load_annotator
    from mitigate.models import annotator_similarity

    annotator, called = load_annotator(name), "entailment, three references"
    shown, tables = [], {}
    for where in ("HalluQA", "ChineseFactEval") if "zh" in (annotator.languages or ()) else ("TruthfulQA", "CHALE"):
        similarity = remembered(both_ways(annotator_similarity(annotator)))
        records = [r for r in by_model(SETS[where](data), THREE[where]) if half(r)]
        scored = score_records(records, similarity=similarity, options=replace(NO_PENALTY, same_from=0.5))[0]
        true, entropy = picks(scored), np.array([r["entropy"] for r in scored], dtype=float)
        tables[where] = on_set(where, records, similarity, None, {called: NO_PENALTY})[0]
        shown += beside(tables[where], called)[:1]  # like length
        for what, there in (("mean the same", entropy == 0), ("differ in meaning", entropy > 0)):
            if there.any():
                who = f"{where}, {called}: true picks where they {what}"
                tables[where].append(mean_row(who, true[there], unit="%"))
    about = f"Entailment by {annotator.name} {annotator.fingerprint[:12]}."
    save("fewl", "fewl", shown, tables=tables, about=about, part=f"entailment {annotator.name}")


def compared(data: Path) -> None:
    """Write the part of the page on pairs of LLMs: whether the answer nearer to the official true ones scores higher.

    Reference and LLMs were chosen by maker and size. The truth is of the same encoder as the scores.
    """
    llms, encode = ("Mistral-7B-v0.3", "Mistral-7B-Instruct-v0.2", "Llama-3.1-70B-Instruct"), english_encoder()
    pairs = [[llms[0], llms[2]], [llms[1], llms[2]], [llms[0], llms[1]]]
    keys = [f"data={data / 'fewl' / 'truthfulqa.jsonl'}", "reference_llms={}", "answer_llms={}"]
    options: Any = load_recipe("fewl/table5", [*keys, f"compared={json.dumps(pairs)}"])[0]
    said = {r["question"]: r["reference_answers"] for r in truthfulqa(data) if r["reference_answers"]}
    records = [as_record(r) for r in fewl_rows("truthfulqa", data) if r["question"] in said]
    for r in records:
        texts = said[r["question"]]
        r["answers"] += [{"text": texts[llm], "model": llm} for llm in llms]
        r["reference_answers"] = {THREE["TruthfulQA"][0]: texts[THREE["TruthfulQA"][0]]}
    add_truths(records, encode)
    similarity, table = remembered(cosine(encode)), []

    def add(where: str, scored: Sequence[Row]) -> None:
        each = [list(wins([r], options).values()) for r in scored]  # at most one value in each list
        values_QP = np.array([[own[0] if own else np.nan for own in r] for r in each])
        values = {" or ".join(pair): own for pair, own in zip(pairs, values_QP.T, strict=True)}
        values["three pairs of LLMs"] = np.array([np.mean([v for own in r for v in own] or [np.nan]) for r in each])
        for what, own in values.items():
            table.append(mean_row(f"Table 5, {where}: {what}, the truer above", own, unit="%"))

    for called, method in options.methods.items():
        for control, some in controlled(records).items():
            how: Any = {"similarity": similarity, "encode": encode, "options": method.options(0)}
            add(named(called, control), score_records(some, **how)[0])
    for length, sign in LENGTHS.items():
        add(length, by_length(records, sign))
    pooled = [r for r in table if ": three" in r["what"]]
    shown = [r for called in options.methods for r in beside(pooled, called)]
    about = f"Table 5: {', '.join(llms)}, judged by {THREE['TruthfulQA'][0]}."
    save("fewl", "fewl", shown, tables={"llms": table}, about=about, part="llms")


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--annotator", help="measure entailment by this annotator as similarity instead")
    made.add_argument("--llms", action="store_true", help="measure pairs of LLMs' answers instead (Table 5)")
    made.add_argument("--cache", type=Path, help="keeps embeddings for the next time")
    args = made.parse_args()
    if args.annotator:
        return meaning(args.data, args.annotator)
    if args.llms:
        return compared(args.data)
    english = english_encoder(args.cache)
    found: dict[str, list[Row]] = {}
    halves: dict[str, Values] = {}  # of the questions of a set
    alike: dict[str, dict[str, Values]] = {}
    for name, read in SETS.items():
        records = read(args.data)
        chinese = read in (halluqa, chinese_fact_eval)
        encode = chinese_encoder(records) if chinese else english
        similarity = looked_up(encode, records) if chinese else cosine(encode)
        found[name], alike[name] = on_set(name, records, similarity, encode, SETTINGS)
        halves[name] = np.array([half(record) for record in records])
        found[name] += on_set(name, records, new_words, encode, {f"new-words, {EQUAL}": NO_PENALTY})[0]
        for length, sign in LENGTHS.items():
            found[name] += measured(f"{name}, {length}", [r for r in by_length(records, sign) if half(r)])
        if read is halluqa:
            found[name] += triples(records, similarity)
        if read is truthfulqa:
            three = by_model(records, THREE[name])
            found[name] += on_set(name, three, similarity, encode, {f"three references, {EQUAL}": NO_PENALTY})[0]
    mean = {
        side: {c: float(np.mean([np.nanmean(alike[n][c][halves[n] == side]) for n in SETS])) for c in SETTINGS}
        for side in (0, 1)
    }
    best = max(mean[0], key=lambda called: mean[0][called])
    rows = []
    for side, which in enumerate(("that chooses", "that is reported")):
        tried = ", ".join(f"{called} {figure(100 * value, '%')}" for called, value in mean[side].items())
        rows.append(row(f"like length, mean over sets of the half {which}", len(SETS), tried))
    equal = "Eq. 6" if SETTINGS[best].penalty else EQUAL
    for name in SETS:
        gain = (alike[name][best] - alike[name][equal])[halves[name] == 1]
        rows.append(mean_row(f"{name}: {best} − {equal}, like length", gain, unit="%"))
    rows += [one for some in found.values() for one in beside(some, best)]
    save("fewl", "fewl", rows, tables=found, packages=["sentence-transformers"])


def beside(table: Sequence[Row], best: str) -> list[Row]:
    """Rows of the page: figures with controls; picks and ranks of the chosen setting only (the JSON file has all)."""
    value = {one["what"]: one for one in table}
    rows = []
    for what, one in value.items():
        where, _, measure = what.rpartition(": ")
        if where.endswith((SHUFFLED, NOTHING, *LENGTHS)) or measure in NOT_SHOWN:
            continue
        name, _, setting = where.partition(", ")
        brief = setting == EQUAL
        if setting == best or (brief and "like length" in measure) or "triples" in setting:
            controls = (f"{where}, {SHUFFLED}", f"{where}, {NOTHING}", *(f"{name}, {length}" for length in LENGTHS))
            found = [value.get(f"{control}: {measure}", {"value": None}) for control in controls]
            others = ", ".join(figure(other["value"], one.get("unit", "")) for other in found)
            shown = f"{line(one).rpartition(' | ')[2]}; {others}"
            rows.append({"what": what.replace("true above false, ", ""), "n": one["n"], "value": shown})
    return rows


if __name__ == "__main__":
    main()
