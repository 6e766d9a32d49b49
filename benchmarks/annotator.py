"""The embedded annotator beside simple baselines, on sentences that people labelled.

    python -m benchmarks.annotator --data ../shared/data
    python -m benchmarks.annotator --data ../shared/data --annotator embedded-zh --language zh
    python -m benchmarks.annotator --data ../shared/data --training-rows rows.jsonl  # then mitigate train
    python -m benchmarks.annotator --data ../shared/data --written embedded generative:transformers:DIR/annotator

Rows of fold 0, on which nothing was trained or chosen: of the trainable sources other documents were trained on, the
others were never seen. All baselines choose their thresholds on fold 1 of the trainable sources; the annotator
is compared by its own labels, without the operating point that it comes with; a cascade with those of both, unsure as
wrong. Then what that point flags, passes and leaves unsure, the curve of all such points, and in English the share of
hallucinated sentences in whole answers, and verdicts on ordinary.jsonl: documents of ordinary kinds and answers with
labels, written by a language model for this; one variant of pooling was refused by it. ``--written`` compares with gold
annotations, and with other references.
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_curve

from annotators import LABELS, Annotator, load_annotator
from annotators.base import OPEN, CascadeAnnotator
from annotators.evaluation.evaluate import evaluate, labelled, predict
from annotators.evaluation.metrics import (
    Floats,
    bootstrap,
    ece,
    mean_of,
    paired_difference,
    supported_score,
    two_way_gold,
    two_way_statistics,
)
from annotators.evaluation.splits import FOLD_NAMES
from annotators.evaluation.texts import gold_text
from annotators.operating import Calibration, codes_of, equal_weights, operating_table
from annotators.records import HALLUCINATED, SentenceAnnotation
from benchmarks import common
from benchmarks.common import TRAINABLE, Row, load_rows, mean_row, parser, row, save, sentences_of
from engines.embedding import Embedder
from mitigate.cli.calibrate import FIGURES
from mitigate.io import read_rows, write_lines

WHOLE = ("cliff", "lfqa_verification", "expertqa")  # sources with whole answers of models
PARTS = (("sources trained on", True), ("sources never seen", False))
FAST = "embedded-fast"
ORDINARY = common.ROOT / "benchmarks" / "ordinary.jsonl"
CURVE = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)  # shares of true sentences flagged
WRITTEN = (  # figures, of how many, and their names
    ("failed", "n", "not read"), ("accuracy", "n_four_way", "accuracy, four labels"),
    ("other", "n_four_way", "with other references"), ("macro_f1", "n_four_way", "macro F1"),
    ("rouge_l", "n_texts", "ROUGE-L"), ("fragment_precision_4", "n_fragments", "Pre4"),
    ("seconds", "n", "CPU-s a sentence"),
)  # fmt: skip
Judged = tuple[Floats, list["str | None"]]  # support (n,), labels; "unsupported" is hallucinated, of whichever kind


def predictions(annotator: Annotator, rows: Sequence[Mapping[str, Any]]) -> list[SentenceAnnotation]:
    """Judge rows in chunks, with progress."""
    out: list[SentenceAnnotation] = []
    for start in range(0, len(rows), 512):
        out += annotator.predict(rows[start : start + 512])
        print(f"{len(out)} of {len(rows)} rows", file=sys.stderr, flush=True)
    return out


def ngram_overlap(rows: Sequence[Row]) -> Floats:
    """Share of each sentence's distinct 1- to 3-grams that its reference has; NaN without words."""

    @cache
    def grams(text: str) -> frozenset[tuple[str, ...]]:
        words = re.findall(r"[\u3400-\u9fff]|[^\W_]+", text.lower())  # Chinese by characters
        return frozenset(tuple(words[i : i + n]) for n in (1, 2, 3) for i in range(len(words) - n + 1))

    both = ((grams(r["sentence"]), grams(r["reference"])) for r in rows)
    return np.array([len(own & known) / len(own) if own else np.nan for own, known in both])


def cosine(rows: Sequence[Row], embedder: Embedder) -> Floats:
    """Highest cosine of each sentence to a sentence of its reference; NaN where that is empty."""
    pieces = {reference: sentences_of(reference) for reference in {r["reference"] for r in rows}}
    texts = sorted({r["sentence"] for r in rows} | {text for some in pieces.values() for text in some})
    place = {text: i for i, text in enumerate(texts)}
    vectors = embedder.encode(texts)
    near = [vectors[[place[t] for t in pieces[r["reference"]]]] @ vectors[place[r["sentence"]]] for r in rows]
    return np.array([float(values.max()) if len(values) else np.nan for values in near])


def with_threshold(rows: Sequence[Row], support: Floats) -> Judged:
    """Labels by the threshold with the best mean balanced accuracy over the trainable sources on fold 1."""
    truth = two_way_gold([r["label"] for r in rows])
    chooses = np.array([r["fold"] in FOLD_NAMES["dev"] and r["source"] in TRAINABLE for r in rows])
    dev = np.flatnonzero(chooses & ~np.isnan(truth) & ~np.isnan(support))
    sizes = Counter((rows[i]["source"], truth[i]) for i in dev)
    both = [sizes[rows[i]["source"], 0.0] and sizes[rows[i]["source"], 1.0] for i in dev]
    weights = np.array([1 / sizes[rows[i]["source"], truth[i]] if b else 0.0 for i, b in zip(dev, both, strict=True)])
    if not weights.any():
        raise ValueError("expected rows of fold 1 of trainable sources, of both classes; got none")
    false, true, cuts = roc_curve(truth[dev] == 1, support[dev], sample_weight=weights, drop_intermediate=False)
    threshold = float(cuts[np.argmax(true - false)])
    return support, [None if np.isnan(s) else "supported" if s >= threshold else "unsupported" for s in support]


def beside_baselines(rows: Sequence[Row], found: Mapping[str, Judged]) -> tuple[list[Row], list[list[object]]]:
    """Mean AUC and balanced accuracy over sources with intervals, by judge; and a table by source."""
    parts: dict[str, list[int]] = {}
    for i, r in enumerate(rows):
        if r["fold"] == 0 and r["label"] != "no_fact":
            parts.setdefault(r["source"], []).append(i)
    parts = {s: at for s, at in sorted(parts.items()) if len({rows[i]["label"] == "supported" for i in at}) == 2}
    chosen = [i for at in parts.values() for i in at]
    place, groups = {i: n for n, i in enumerate(chosen)}, [rows[i]["group"] for i in chosen]
    gold = {s: [rows[i]["label"] for i in at] for s, at in parts.items()}
    keys, (first, second, *_) = {"auc": "AUC", "balanced_accuracy": "balanced accuracy"}, found
    heads = [f"{key}, {name}" for key in keys for name in found]
    out, table = [], [["source", "n", *heads, "interval of the first"]]
    figures = {
        (name, s): two_way_statistics(gold[s], [labels[i] for i in at], support=support[at])
        for name, (support, labels) in found.items()
        for s, at in parts.items()
    }
    for key, called in keys.items():
        means = {
            name: mean_of([(np.array([place[i] for i in at]), figures[name, s][key]) for s, at in parts.items()])
            for name in found
        }
        limits, ones = bootstrap(means, groups), np.ones(len(chosen))
        for name, mean in means.items():
            out.append(row(f"{name}: {called}, mean of {len(parts)} sources", len(chosen), mean(ones), limits[name]))
        gap = paired_difference(means[first], means[second], groups)
        out.append(row(f"{first} − {second}: {called}", len(chosen), gap["difference"], (gap["low"], gap["high"])))
    for s, at in parts.items():
        values = [figures[name, s][key](np.ones(len(at))) for key in keys for name in found]
        limits = bootstrap({"auc": figures[first, s]["auc"]}, [rows[i]["group"] for i in at])
        table.append([s, len(at), *values, limits["auc"]])
    return out, table


def trained_and_unseen(
    everything: Sequence[Row], rows: Sequence[Row], answers: Sequence[SentenceAnnotation]
) -> list[Row]:
    """Means over the trainable and over the other sources, and calibration error of all rows together."""
    whole = labelled(everything, [r["file"] for r in everything], [r["group"] for r in everything])
    part_of = {(r["id"], r["file"]): part for r, part in zip(everything, whole, strict=True)}
    truth, support = two_way_gold([r["label"] for r in rows]), supported_score([a.scores for a in answers])
    out = []
    for called, keep in PARTS:
        at = [i for i, r in enumerate(rows) if (r["source"] in TRAINABLE) == keep]
        found = evaluate([part_of[rows[i]["id"], rows[i]["file"]] for i in at], [answers[i] for i in at])
        n = int((~np.isnan(truth[at])).sum())  # "no_fact" is in neither figure
        for key, name in (("auc", "AUC"), ("balanced_accuracy", "balanced accuracy")):
            mean = found["mean_over_sources"][key]
            out.append(row(f"{called}: {name}", n, mean["value"], mean["interval"]))
        known = [i for i in at if not np.isnan(truth[i]) and not np.isnan(support[i])]
        out.append(row(f"{called}: calibration error (ECE)", len(known), ece(support[known], truth[known])))
    return out


def at_operating_points(
    rows: Sequence[Row], answers: Sequence[SentenceAnnotation], calibration: Calibration | None
) -> tuple[list[Row], list[list[object]]]:
    """What the annotator's operating point does, and the curve: share of true sentences flagged → of false ones.

    Every source weighs the same; ``answers`` are without calibration, and what they call "no_fact" is never flagged.
    """
    truth, support = two_way_gold([r["label"] for r in rows]), supported_score([a.scores for a in answers])
    support[[a.label == "no_fact" for a in answers]] = 2
    shown: list[Row] = []
    columns: list[list[object]] = [["flagged, of supported", *CURVE]]
    for called, keep in PARTS:
        seen = np.array([(r["source"] in TRAINABLE) == keep for r in rows])
        at = np.flatnonzero(seen & ~np.isnan(truth + support)).tolist()
        weights = equal_weights([rows[i]["source"] for i in at])
        false, true, _ = roc_curve(truth[at] == 0, -support[at], sample_weight=weights)
        columns.append([f"flagged, of hallucinated: {called}", *np.interp(CURVE, false, true).tolist()])
        if calibration is not None:
            codes = codes_of(calibration.apply([answers[i] for i in at]))
            gold, groups = [rows[i]["label"] for i in at], [rows[i]["group"] for i in at]
            for name, one in operating_table(codes, gold, weights, groups).items():
                if name in FIGURES:
                    shown.append(row(f"{called}: {FIGURES[name]}", len(at), one["value"], one["interval"]))
    return shown, [list(line) for line in zip(*columns, strict=True)]


def whole_answers(annotator: Annotator, everything: Sequence[Row]) -> list[Row]:
    """Share of hallucinated sentences of whole answers, by people and by the annotator."""
    out = []
    for source in WHOLE:
        rows = [r for r in everything if r["source"] == source and r["answer"] and r["fold"] == 0]
        groups = [r["group"] for r in rows]
        people = np.array([float(r["label"] in (*HALLUCINATED, "unsupported")) for r in rows])
        labels = [s.label for s in predictions(annotator, rows)]
        own = np.array([np.nan if label in (None, "no_fact") else float(label in HALLUCINATED) for label in labels])
        people[np.isnan(own)] = np.nan
        out.append(mean_row(f"{source}: hallucinated, by people, where the annotator is sure", people, groups, "%"))
        out.append(mean_row(f"{source}: the same sentences, by the annotator", own, groups, "%"))
    return out


def ordinary_answers(name: str, annotator: Annotator) -> list[Row]:
    """What the operating point makes of whole answers about documents of ordinary kinds, which are written for this."""
    records = list(read_rows(ORDINARY))
    judged = [s for one in annotator.annotate_batch(records) for s in one.sentences]
    gold = [label for record in records for label in record["expected"]]
    groups = [record["id"] for record in records for _ in record["expected"]]
    if len(judged) != len(gold):
        raise ValueError(f"{ORDINARY}: expected a label for each of {len(judged)} sentences, got {len(gold)}")
    facts = [i for i, label in enumerate(gold) if label != "no_fact"]
    gold, groups, judged = ([many[i] for i in facts] for many in (gold, groups, judged))
    area = two_way_statistics(gold, [None] * len(gold), support=supported_score([s.scores for s in judged]))["auc"]
    out = [row(f"{name}: AUC", len(gold), area(np.ones(len(gold))), bootstrap({"auc": area}, groups)["auc"])]
    of = {"true": gold.count("supported"), "false": len(gold) - gold.count("supported")}
    for key, one in operating_table(codes_of(judged), gold, np.ones(len(gold)), groups).items():
        if key in FIGURES and "precision" not in key:
            n = of.get(key.partition("_")[0], len(gold))
            out.append(row(f"{name}: {FIGURES[key]}", n, one["value"], one["interval"]))
    return out


def written(names: Sequence[str], everything: Sequence[Row], n: int) -> list[Row]:
    """Labels and texts of annotators beside gold on ``n`` rows of fold 0 with four labels, and without the evidence."""
    whole = labelled(everything, [r["file"] for r in everything], [r["group"] for r in everything])
    there = [one for one in whole if one.row["fold"] == 0 and not one.two_way and gold_text(one.row) is not None]
    chosen = random.Random(0).sample(there, min(n, len(there)))
    far = [one.row["reference"] for one in chosen[len(chosen) // 2 :] + chosen[: len(chosen) // 2]]
    mixed = [replace(one, row={**one.row, "reference": text}) for one, text in zip(chosen, far, strict=True)]
    [(label, most)] = Counter(one.row["label"] for one in chosen).most_common(1)
    out = [row(f"always {label!r}: accuracy, four labels", len(chosen), most / len(chosen))]
    for name in names:
        annotator, start = load_annotator(name).calibrated(None), time.process_time()
        answers = predict(annotator, chosen)
        spent = (time.process_time() - start) / len(chosen)
        found = evaluate(chosen, answers, texts=True)["overall"]
        found |= found["texts"] | {"failed": 1 - found["coverage"], "seconds": spent}
        found["other"] = evaluate(mixed, predict(annotator, mixed))["overall"]["accuracy"]
        annotator.close()
        name = Path(name).parent.name if name.endswith("/annotator") else name  # that of its run folder
        for key, count, what in WRITTEN:
            n, limits = found.get(count, len(chosen)), found["intervals"].get(key)
            out.append(row(f"{name}: {what}", n, found[key], limits))
    return out


def in_a_line(rows: Sequence[Row]) -> list[Row]:
    """The rows of :func:`written`, one for each annotator: its accuracy, and after it the other figures."""
    accuracy = WRITTEN[1][2]
    out = []
    for one in (r for r in rows if r["what"].endswith(accuracy)):
        name = one["what"].partition(": ")[0]
        own = {r["what"].removeprefix(f"{name}: "): common.shown(r["value"]) for r in rows}
        others = "".join(f"; {what} {own[what]}" for _, _, what in WRITTEN if what in own and what != accuracy)
        out.append({"what": one["what"], "n": one["n"], "value": common.line(one).rpartition(" | ")[2] + others})
    return out


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--annotator", default="embedded")
    made.add_argument("--language", default="en")
    made.add_argument("--written", nargs="+", help="compare annotations of these as texts, and nothing else")
    made.add_argument("--rows", type=int, default=300, help="of --written")
    made.add_argument("--training-rows", type=Path, help="write the rows to train on there; those with texts beside")
    args = made.parse_args()
    labelled_rows = [r for r in load_rows(args.data) if "label" in r and r["lang"] == args.language]
    if not labelled_rows:
        made.error(f"--language: expected a language of the labelled rows in --data, got {args.language}")
    if args.training_rows:
        kept = [r for r in labelled_rows if r["source"] in TRAINABLE and r["fold"] in FOLD_NAMES["train"]]
        texts = [r for r in kept if r["label"] in LABELS[1:] or r["fragments"]]
        write_lines(args.training_rows, kept)
        write_lines(args.training_rows.with_suffix(".texts.jsonl"), texts)
        return
    if args.written:
        found = written(args.written, labelled_rows, args.rows)
        save("llm-annotators", "annotator", in_a_line(found), tables={"written": found}, part="written")
        return
    rows = [r for r in labelled_rows if r["fold"] == 0 or (r["fold"] in FOLD_NAMES["dev"] and r["source"] in TRAINABLE)]
    annotator = load_annotator(args.annotator)
    judges = f"{annotator.name} (fingerprint {annotator.own_fingerprint})"
    test = [i for i, r in enumerate(rows) if r["fold"] == 0]
    tested = [rows[i] for i in test]

    def uncalibrated(one: Annotator) -> list[SentenceAnnotation]:
        point = one.calibration
        answers = predictions(one.calibrated(None), tested)
        one.calibrated(point)
        return answers

    def judged(answers: Sequence[SentenceAnnotation]) -> Judged:
        support, of = np.full(len(rows), np.nan), dict(zip(test, answers, strict=True))
        support[test] = supported_score([a.scores for a in answers])
        return support, [of[i].label if i in of else None for i in range(len(rows))]

    tables: dict[str, Any] = {}
    found: dict[str, Judged] = {
        "annotator": judged(answers := uncalibrated(annotator)),
        "n-gram overlap": with_threshold(rows, ngram_overlap(rows)),
        "MiniLM cosine": with_threshold(rows, cosine(rows, Embedder())),
    }
    ordinary: list[Row] = []
    if args.annotator == "embedded":
        fast: Any = load_annotator(FAST)
        found[FAST] = judged(quick := uncalibrated(fast))
        both = CascadeAnnotator(fast, annotator)
        opened = np.mean([a.status in OPEN for a in fast.calibration.apply(quick)])
        found[f"{both.name}, {opened:.0%} asked"] = judged(predictions(both, tested))
        tables[FAST] = trained_and_unseen(labelled_rows, tested, quick)
        tables[FAST] += at_operating_points(tested, quick, fast.calibration)[0]
        ordinary = ordinary_answers("ordinary texts", annotator) + ordinary_answers(f"ordinary texts, {FAST}", fast)[:3]
        judges += f", {FAST} (fingerprint {fast.own_fingerprint})"
    shown, by_source = beside_baselines(rows, found)
    shown += ordinary
    shown += trained_and_unseen(labelled_rows, tested, answers)
    points, curve = at_operating_points(tested, answers, annotator.calibration)
    shown += points + (whole_answers(annotator, labelled_rows) if args.language == "en" else [])
    pairs = Counter((r["label"], a.label) for r, a in zip(tested, answers, strict=True))
    confusion = [[gold, *(pairs[gold, said] for said in LABELS)] for gold in (*LABELS, "unsupported")]
    part = "" if args.annotator == "embedded" else re.sub(r".*/(?=[^/]+/annotator$)|/annotator$", "", args.annotator)
    shown = [one | {"what": f"{part}, {one['what']}" if part else one["what"]} for one in shown]
    tables |= {"all": shown, "by source": by_source, "operating points, every source alike": curve}
    tables["confusion (gold, then predicted)"] = [["gold", *LABELS], *confusion]
    if part and args.language == "zh":  # of a few sources
        what, flagged = "{}, {}: AUC (n-gram overlap {:.3f})", [one for one in shown if "seen: fl" in one["what"]]
        shown = [row(what.format(part, s, by), n, own, ends) for s, n, own, by, *_, ends in by_source[1:]] + flagged
    elif part:
        shown = [one for one in shown if re.search("(on|seen): AUC", one["what"])]
    left_out = "balanced accuracy|where 15%|ECE|by people|same sentences"  # they are in the tables
    shown = [one for one in shown if not re.search(left_out, one["what"])]
    save("annotator", "annotator", shown, tables=tables, about=f"Without operating point: {judges}.", part=part)


if __name__ == "__main__":
    main()
