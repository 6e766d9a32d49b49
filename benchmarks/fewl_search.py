"""Which similarity and aggregation put a right answer above a wrong one? Chosen on one half, reported on the other.

    python -m benchmarks.fewl_search --output docs/results/fewl_search.md

TruthfulQA, two sets of pairs: answers written by people (official correct above official wrong) and GPT-3-family
answers judged by people (true above false). Every score is run twice, with the question's own reference answers
and with another question's: what the second reaches, the references did not bring.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.fewl_common import (
    encoder,
    environment,
    half,
    paired,
    shown,
    shown_gap,
    shuffled,
    table,
    truthfulqa,
)
from benchmarks.splits import DATA
from fewl.core import nan_max, nan_mean
from fewl.similarity import Encode, Similarity, compare, cosine, new_words, rouge_l, words

Record = dict[str, Any]
Float = NDArray[np.float64]
NEGATION = re.compile(r"\b(no|not|never|none|nothing|nobody|neither|nor|cannot|without)\b|n['’]t\b", re.I)


def main() -> None:
    """Run everything and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=Path("docs/results/fewl_search.md"))
    parser.add_argument("--embedding-cache", type=Path, help="file that keeps embeddings between runs")
    args = parser.parse_args()
    encode = encoder(args.embedding_cache)
    records = truthfulqa(args.data)
    pairs = Pairs(records)
    sims = similarities(encode)
    own, other = (features(rows, pairs, sims) for rows in (records, shuffled(records)))
    alone = answer_only(records, pairs)
    scores = {name: (score, other[name]) for name, score in own.items()}
    parts = [
        "# FEWL: the search for a similarity and an aggregation",
        f"Written by `python -m benchmarks.fewl_search`; read `fewl.md` first. {environment()}. "
        f"{len(records)} questions; share of (right, wrong) pairs of a question with the right one above, "
        "%, averaged over questions, with 95 % bootstrap intervals over questions; chance is 50. “Strong”: the eight "
        "instruction-tuned reference LLMs; "
        "“weak”: the seven base models.",
    ]
    parts += [over_both(scores, pairs)]
    for name in ("official", "labelled"):
        parts += section(name, scores, alone, pairs)
    parts += fitted(own, other, alone, pairs)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"written: {args.output}")


class Pairs:
    """All answers in one row, and which are right and wrong in which set."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.half_Q = np.array([half(r) for r in records])
        self.owner_A = np.array([q for q, r in enumerate(records) for _ in r["answers"]])
        self.text_A = [a["text"] for r in records for a in r["answers"]]
        kind_A = [a["kind"] for r in records for a in r["answers"]]
        label_A = [a.get("label") for r in records for a in r["answers"]]
        self.right_A: dict[str, NDArray[np.bool_]] = {
            "official": np.array([k in ("best", "correct") for k in kind_A]),
            "labelled": np.array([label is True for label in label_A]),
        }
        self.wrong_A: dict[str, NDArray[np.bool_]] = {
            "official": np.array([k == "incorrect" for k in kind_A]),
            "labelled": np.array([label is False for label in label_A]),
        }

    def length_adjusted(self, score_A: Float) -> Float:
        """Residuals of one slope on log length, within questions; no labels."""
        log_A = np.log(1 + np.array([len(text) for text in self.text_A], dtype=float))
        known_A = ~np.isnan(score_A)
        count_Q = np.bincount(self.owner_A[known_A], minlength=len(self.half_Q))

        def centred(values_A: Float) -> Float:
            sum_Q = np.bincount(self.owner_A[known_A], values_A[known_A], minlength=len(count_Q))
            return values_A - (sum_Q / np.maximum(count_Q, 1))[self.owner_A]

        x_A, y_A = centred(log_A), centred(score_A)
        slope = float(x_A[known_A] @ y_A[known_A] / (x_A[known_A] @ x_A[known_A]))
        return score_A - slope * x_A

    def accuracy(self, name: str, score_A: Float) -> Float:
        """Per question; NaN where it has no pair."""
        values = np.full(len(self.half_Q), np.nan)
        known_A = ~np.isnan(score_A)
        for q in range(len(values)):
            mine_A = (self.owner_A == q) & known_A
            right, wrong = score_A[mine_A & self.right_A[name]], score_A[mine_A & self.wrong_A[name]]
            gap = right[:, None] - wrong[None, :]
            if gap.size:
                values[q] = ((gap > 0) + 0.5 * (gap == 0)).mean()
        return values


def similarities(encode: Encode) -> dict[str, Similarity]:
    return {
        "cosine": cosine(encode),
        "cosine × polarity": polarity(cosine(encode)),
        "polarity": polarity(None),
        "rouge-l F1": rouge_l,
        "new-words": new_words,
        "idf words, F1": idf_overlap,
    }


def polarity(similarity: Similarity | None) -> Similarity:
    """+s where both texts deny something or neither does, −s otherwise; a reference by its first sentence."""

    def prepare(texts: Sequence[str]) -> Any:
        denies = np.array([bool(NEGATION.search(text)) for text in texts])
        denies_first = np.array([bool(NEGATION.search(re.split(r"[.!?\n]", text)[0])) for text in texts])
        inner = similarity(texts) if similarity is not None else None

        def of_pairs(pairs_P3: NDArray[np.int64]) -> Float:
            sign = np.where(denies[pairs_P3[:, 0]] == denies_first[pairs_P3[:, 1]], 1.0, -1.0)
            return sign if inner is None else sign * inner(pairs_P3)

        return of_pairs

    return prepare


def idf_overlap(texts: Sequence[str]) -> Any:
    """F1 of the words beyond the question, weighted by inverse document frequency."""
    bags = [frozenset(words(text)) for text in texts]
    seen = Counter(word for bag in bags for word in bag)
    weight = {word: math.log((1 + len(texts)) / (1 + n)) for word, n in seen.items()}

    def of_pairs(pairs_P3: NDArray[np.int64]) -> Float:
        values = np.zeros(len(pairs_P3))
        for p, (candidate, reference, question) in enumerate(pairs_P3.tolist()):
            left, right = bags[candidate] - bags[question], bags[reference] - bags[question]
            total = sum(weight[w] for w in left) + sum(weight[w] for w in right)
            values[p] = 2 * sum(weight[w] for w in left & right) / total if total else 0.0
        return values

    return of_pairs


def features(records: Sequence[Record], pairs: Pairs, sims: Mapping[str, Similarity]) -> dict[str, Float]:
    """Each similarity in each aggregation, one number per answer."""
    names = list(dict.fromkeys(m for r in records for m in r["reference_answers"]))
    strong = np.array(["Instruct" in m or m.endswith("-it") for m in names])
    found: dict[str, Float] = {}
    for sim_name, similarity in sims.items():
        triples = [
            (a, i, text, records[q]["reference_answers"][names[i]], records[q]["question"])
            for a, (q, text) in enumerate(zip(pairs.owner_A.tolist(), pairs.text_A, strict=True))
            for i in range(len(names))
            if text.strip() and (records[q]["reference_answers"].get(names[i]) or "").strip()
        ]
        s_AN = np.full((len(pairs.text_A), len(names)), np.nan)
        values = compare(similarity, *([t[column] for t in triples] for column in (2, 3, 4)))
        s_AN[[t[0] for t in triples], [t[1] for t in triples]] = values
        mean, top = nan_mean(s_AN[:, strong]), nan_max(s_AN[:, strong])
        found[f"{sim_name}: mean of strong"] = mean
        found[f"{sim_name}: best of strong"] = top
        weak_mean, weak_top = nan_mean(s_AN[:, ~strong]), nan_max(s_AN[:, ~strong])
        found[f"{sim_name}: mean of all"] = nan_mean(s_AN)
        found[f"{sim_name}: mean of strong − mean of weak"] = mean - weak_mean
        found[f"{sim_name}: mean of strong − ½ best of weak"] = mean - 0.5 * weak_top
        found[f"{sim_name}: mean of strong − best of weak"] = mean - weak_top
        print(sim_name, flush=True)
    adjusted = {
        f"{n}, length-adjusted": pairs.length_adjusted(s) for n, s in found.items() if " of all" not in n
    }
    return found | adjusted


def answer_only(records: Sequence[Record], pairs: Pairs) -> dict[str, Float]:
    """Scores that never look at a reference."""
    questions = [frozenset(words(r["question"])) for r in records]
    bags = [words(text) for text in pairs.text_A]
    new = [len(set(bag) - questions[q]) for bag, q in zip(bags, pairs.owner_A.tolist(), strict=True)]
    return {
        "answer alone: fewer words": -np.array([len(bag) for bag in bags], dtype=float),
        "answer alone: fewer new words": -np.array(new, dtype=float),
        "answer alone: denies something": np.array([float(bool(NEGATION.search(t))) for t in pairs.text_A]),
    }


def over_both(scores: Mapping[str, tuple[Float, Float]], pairs: Pairs) -> str:
    """The scores that are most often right, and gain most over their control, on both sets of the first half."""
    first, second = pairs.half_Q == 0, pairs.half_Q == 1
    values = {
        (set_, n): (pairs.accuracy(set_, own), pairs.accuracy(set_, other))
        for set_ in pairs.right_A
        for n, (own, other) in scores.items()
    }

    def right(n: str) -> float:
        return float(sum(np.nanmean(values[s, n][0][first]) for s in pairs.right_A))

    def gain(n: str) -> float:
        return float(sum(np.nanmean((values[s, n][0] - values[s, n][1])[first]) for s in pairs.right_A))

    rows = []
    for why, best in (("most right", max(scores, key=right)), ("most over control", max(scores, key=gain))):
        for s in pairs.right_A:
            own, other = values[s, best]
            cells = [shown(own[first]), shown(own[second]), shown(other[second])]
            rows.append([why, best, s, *cells, shown_gap(own[second], other[second])])
    head = [
        "chosen for",
        "score",
        "pairs",
        "half to choose on",
        "half to report on",
        "control there",
        "own − control",
    ]
    return "\n\n".join(["## One score for both sets of pairs, chosen on the first half", table(head, rows)])


def section(
    name: str, scores: Mapping[str, tuple[Float, Float]], alone: Mapping[str, Float], pairs: Pairs
) -> list[str]:
    """All scores on one set of pairs, the two choices marked."""
    own = {n: pairs.accuracy(name, s) for n, (s, _) in scores.items()}
    control = {n: pairs.accuracy(name, s) for n, (_, s) in scores.items()}
    first, second = pairs.half_Q == 0, pairs.half_Q == 1
    by_accuracy = max(own, key=lambda n: np.nanmean(own[n][first]))
    by_gain = max(own, key=lambda n: np.nanmean((own[n] - control[n])[first]))
    rows = []
    for n in own:
        mark = ", ".join(
            w for w, c in (("most right", by_accuracy), ("most over control", by_gain)) if c == n
        )
        gap = shown_gap(own[n][second], control[n][second])
        cells = [shown(own[n][first]), shown(own[n][second]), shown(control[n][second]), gap]
        rows.append([n, *cells, f"**{mark}**" if mark else ""])
    for n, score in alone.items():
        value = pairs.accuracy(name, score)
        rows.append([n, shown(value[first]), shown(value[second]), "", "", ""])
    head = [
        "score",
        "half to choose on",
        "half to report on",
        "control there",
        "own minus control there",
        "chosen",
    ]
    known = ~np.isnan(own[by_gain])
    counts = f"{int((known & first).sum())} and {int((known & second).sum())} questions."
    title = {
        "official": "Official answers: correct above wrong",
        "labelled": "Human-labelled answers: true above false",
    }
    return [f"## {title[name]}", counts, table(head, rows)]


def fitted(
    own: Mapping[str, Float], other: Mapping[str, Float], alone: Mapping[str, Float], pairs: Pairs
) -> list[str]:
    """A logistic regression of the scores, fitted on the labels of one half: how much the references can bring."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    def stack(values: Mapping[str, Float]) -> Float:
        return np.nan_to_num(np.stack(list(values.values()), axis=1))

    inputs = {
        "answer alone": stack(alone),
        "answer + another question's references (control)": np.hstack([stack(alone), stack(other)]),
        "answer + own references": np.hstack([stack(alone), stack(own)]),
        "own references only": stack(own),
    }
    rows, results = [], {}
    for name in ("official", "labelled"):
        known_A = pairs.right_A[name] | pairs.wrong_A[name]
        for called, values in inputs.items():
            score_A = np.full(len(known_A), np.nan)
            for fold in (0, 1):
                inside_A = pairs.half_Q[pairs.owner_A] == fold
                scaler = StandardScaler().fit(values[known_A & ~inside_A])
                model = LogisticRegression(C=0.1, max_iter=5000)
                model.fit(
                    scaler.transform(values[known_A & ~inside_A]), pairs.right_A[name][known_A & ~inside_A]
                )
                score_A[inside_A] = model.decision_function(scaler.transform(values[inside_A]))
            results[name, called] = pairs.accuracy(name, score_A)
        control = results[name, "answer + another question's references (control)"]
        for called in inputs:
            value = results[name, called]
            same = called.startswith("answer + another")
            rows.append([name, called, shown(value), "" if same else shown_gap(value, control)])
    mean, low, high, p = paired(
        results["labelled", "answer + own references"],
        results["labelled", "answer + another question's references (control)"],
    )
    print(f"labelled, own minus control: {mean:.3f} [{low:.3f}, {high:.3f}] p {p:.4f}")
    return [
        "## Fitted: logistic regression on all scores above",
        "Fitted on the labels of one half of the questions, tried on the other, both ways. It needs labels, so it is "
        "no FEWL; it shows how much about truth these similarities hold at all.",
        table(["pairs", "inputs", "right above wrong, %", "minus control"], rows),
    ]


if __name__ == "__main__":
    main()
