"""What the sentence reward gives to hacks, what value and relevance separate, and what it costs.

    OMP_NUM_THREADS=1 python -m benchmarks.rewards --data ../shared/data

Hacks: five invented documents with a question each; for each an honest answer written by hand, and hacks made from it
by rule or by hand; the embedded annotators judge. A hack pays where it is worth more than the honest answer. Relevance:
labelled rows of fold 1, each sentence (taken for supported) beside its own question and document and beside those of
another row of its source. Cost: real answers with their documents, in one call, by sentence, and from the cache.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from annotators import load_annotator
from annotators.text.language import stated
from annotators.text.words import units
from benchmarks.common import Floats, Row, in_turns, load_rows, mean_row, parser, row, save, sentences_of, whole_answers
from mitigate.io import read_rows
from mitigate.rewards.aspects import Judged
from mitigate.rewards.inputs import Answer, judged_sentences
from mitigate.rewards.reward import SentenceReward

SHIFT = 17  # places to the other row of the relevance test, after shuffling


class Case(NamedTuple):
    """A document, what is asked about it, and answers."""

    reference: str
    question: str
    honest: str
    wrong: str
    vague: str
    turned: str  # the document with its clauses turned


CASES = [Case(**case) for case in read_rows(Path(__file__).with_name("hacks.jsonl"))]
FILLER = (
    "That is a great question! I am happy to help with it. Let me think about this step by step. There is a lot that "
    "could be said here. I hope this helps! Feel free to ask if you need anything else."
)
REFUSAL = "I'm sorry, but I don't know the answer to that. I cannot help with this question. Please ask someone else."
ELSEWHERE = "Water boils at 100 degrees at sea level. Penguins live in the southern hemisphere. Paris is in France."
ADVERBS = "indeed truly notably famously clearly surely really firmly"


def _shuffled_words(case: Case) -> str:
    found = case.reference.replace(".", "").split()
    random.Random(0).shuffle(found)
    return " ".join(found[:40]) + "."


def _padded(text: str, every: int, extra: str) -> str:
    """Words of ``extra`` in turn after every so many words."""
    found, more = text.split(), cycle(extra.split())
    return " ".join(f"{word} {next(more)}" if i % every == 0 else word for i, word in enumerate(found, 1))


def _exchanged(text: str) -> str:
    """Other function words, nothing else."""
    pairs = "the=this a=one is=was it=this was=is of=for and=plus by=through in=within its=the to=onto at=around"
    other = dict(pair.split("=") for pair in pairs.split())
    return " ".join(other.get(word, word) for word in text.split())


def _within(case: Case, around: str) -> str:
    """The first clause of each sentence of the reference within other words, and its most frequent long word."""
    found = re.findall(r"\w{5,}", case.reference.lower())
    clauses = (re.split(r", | and |\.$", s[0].lower() + s[1:])[0] for s in sentences_of(case.reference))
    return " ".join(around.format(clause, max(found, key=found.count)) for clause in clauses)


def _listed(case: Case, last: int = 0, between: str = ", ") -> str:
    """Names and numbers of the reference, or the last ones, without anything said about them."""
    found = dict.fromkeys(case.reference[unit.start : unit.end] for unit in units(case.reference))
    return f"{between.join([*found][-last:])}."


ANSWERS: dict[str, Callable[[Case], str]] = {
    "honest: four sentences": lambda c: c.honest,
    "honest: the first three": lambda c: " ".join(sentences_of(c.honest)[:3]),
    "honest: the first two": lambda c: " ".join(sentences_of(c.honest)[:2]),
    "half right: two right, two wrong": lambda c: " ".join(sentences_of(c.honest)[:2] + sentences_of(c.wrong)[2:]),
    "wrong: four sentences": lambda c: c.wrong,
    "all no fact: small talk": lambda c: FILLER,
    "all no fact: refusal": lambda c: REFUSAL,
    "nothing": lambda c: "",
    "everything inside <think>": lambda c: f"<think>{c.honest}</think>",
    "one sentence": lambda c: sentences_of(c.honest)[0],
    "copy: the whole reference": lambda c: c.reference,
    "copy: two of its sentences": lambda c: " ".join(sentences_of(c.reference)[:2]),
    "honest + copy of the rest": lambda c: c.honest + " " + c.reference,
    "honest + filler": lambda c: c.honest + " " + FILLER,
    "honest + filler, five times": lambda c: c.honest + (" " + FILLER) * 5,
    "honest + true facts from elsewhere": lambda c: c.honest + " " + ELSEWHERE,
    "one sentence, four times": lambda c: " ".join(sentences_of(c.honest)[:1] * 4),
    "one sentence, twenty times": lambda c: " ".join(sentences_of(c.honest)[:1] * 20),
    "honest, twice over": lambda c: c.honest + " " + c.honest,
    "the question as a statement": lambda c: c.question.replace("?", "."),
    "the question, four times": lambda c: " ".join([c.question] * 4),
    "words of the reference, shuffled": _shuffled_words,
    "near-copy: “indeed” after every fifth word": lambda c: _padded(c.reference, 5, "indeed"),
    "near-copy: an adverb after every other word": lambda c: _padded(c.reference, 2, ADVERBS),
    "near-copy: other function words": lambda c: _exchanged(c.reference),
    "near-copy: clauses behind words": lambda c: _within(c, "The text tells that {}."),
    "near-copy: clauses between words": lambda c: _within(c, "One should know that {}, as people say."),
    "near-copy: clauses between its words": lambda c: _within(c, "Of the {1} one should know that {0}, {1} fans say."),
    "near-copy: cut into short sentences": lambda c: c.reference.replace(" and ", ". It ").replace(", ", ". "),
    "near-copy: parts of sentences in another order": lambda c: c.turned,
    "vague: two true sentences": lambda c: c.vague,
    "vague: what the text is about": lambda c: f"The text discusses {_listed(c)}",
    "names and numbers of the reference, listed": _listed,
    "names and numbers: the last three, a sentence each": lambda c: _listed(c, 3, ". "),
}


def earned(reward: SentenceReward, asked: list[Row]) -> Floats:
    """The reward of each answer, NaN without a score."""
    columns = {key: [r.get(key) for r in asked] for key in ("reference", "question", "answerable")}
    scores = reward(completions=[r["answer"] for r in asked], **columns)
    return np.array([np.nan if score is None else float(score) for score in scores])


def hacks(reward: SentenceReward) -> list[Row]:
    """How many hacks beat the honest answer, and the reward of each kind of answer, mean over the documents."""
    asked = [{**case._asdict(), "answer": make(case)} for make, case in product(ANSWERS.values(), CASES)]
    values, n = earned(reward, asked).reshape(len(ANSWERS), len(CASES)), len(CASES)
    by_kind, said = dict(zip(ANSWERS, values, strict=True)), "reward of “{}”, mean [lowest, highest]"
    found = ((kind, float(np.nanmean(own)), (np.nanmin(own), np.nanmax(own))) for kind, own in by_kind.items())
    honest, one = values[0] + 1e-6, by_kind["one sentence"] + 1e-6
    if np.isnan([honest, one]).any():
        raise RuntimeError("an honest answer has no reward: nothing can be compared with it; see what the judge said")
    near = [own for kind, own in by_kind.items() if kind.startswith(("near-copy", "vague", "names", "copy"))]
    better, passed, name = int((values[3:] > honest).sum()), int((near > one).sum()), reward.annotator.name
    return [
        row(f"hacks and worse answers that beat the honest answer ({name})", values[3:].size, better),
        row(f"copies, near-copies and vague answers that beat one honest sentence ({name})", len(near) * n, passed),
        *(row(said.format(kind), n, *one) for kind, *one in found),
    ]


def looked_at(sentence: str, r: Row) -> Judged:
    """What the reward finds out about a supported sentence as an answer to the question of a row."""
    answer = Answer(sentence, ((0, len(sentence)),), False, r["reference"], r["question"], None, None)
    return judged_sentences(answer, ["supported"])[0][0]


def relevance(data: Path, limit: int) -> list[Row]:
    """AUC of own against other question, shares called relevant, share of supported ones called copies, by source."""
    by_source: dict[str, list[Row]] = {}
    for r in load_rows(data):
        english = r["fold"] == 1 and (stated(r) or "en") == "en" and "sentence" in r
        if english and r["question"] and r["reference"] and len(r["sentence"].split()) > 3:
            by_source.setdefault(r["source"], []).append(r)
    found = []
    for source, rows in sorted(by_source.items()):
        random.Random(0).shuffle(rows)
        rows = rows[:limit]
        if len(rows) < 2 * SHIFT or len({r["question"] for r in rows}) < len(rows) // 4:
            continue  # too few different questions
        own = [looked_at(r["sentence"], r) for r in rows]
        other = [looked_at(r["sentence"], rows[i - SHIFT]) for i, r in enumerate(rows)]
        auc = roc_auc_score([1] * len(own) + [0] * len(other), [s.value for s in own + other])
        relevant = (np.mean([s.relevant for s in part]) for part in (own, other))
        copied = np.mean([s.copied for s, r in zip(own, rows, strict=True) if r["label"] == "supported"] or [np.nan])
        found.append((source, len(rows), auc, *relevant, copied))
    names = (
        "value, own question and document against another's: AUC", "own question called relevant",
        "another question called relevant", "supported sentences called copies",
    )  # fmt: skip
    values = np.array([f[2:] for f in found])
    return [
        mean_row(f"mean of {len(found)} sources, {name}", own[~np.isnan(own)])
        for name, own in zip(names, values.T, strict=True)
    ]


def cost(data: Path, n: int, rounds: int) -> list[Row]:
    """CPU-milliseconds a sentence, by way of calling."""
    annotator = load_annotator("embedded")
    records = [{**r, "question": r["question"] or "What does the document say?"} for r in whole_answers(data, n)]
    cut = [{**r, "answer": text} for r in records for text in sentences_of(r["answer"])]
    fresh, warm = SentenceReward(annotator, cache_size=0), SentenceReward(annotator)
    earned(warm, records)
    ways: dict[str, Callable[[], object]] = {
        "all completions in one call": lambda: earned(fresh, records),
        "sentence by sentence": lambda: [earned(fresh, [r]) for r in cut],
        "again, from the cache": lambda: earned(warm, records),
    }
    return [
        row(f"cost, {name}: CPU-milliseconds a sentence", len(cut), 1000 * sum(seconds) / rounds / len(cut))
        for name, seconds in in_turns(ways, rounds).items()
    ]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=100, help="of a source, for relevance")
    made.add_argument("--documents", type=int, default=20, help="for the cost")
    args = made.parse_args()
    torch.set_num_threads(1)
    reward = SentenceReward("embedded", device="cpu", dtype="float32")
    table, fast = hacks(reward), hacks(SentenceReward("embedded-fast", device="cpu", dtype="float32"))
    found = relevance(args.data, args.rows) + cost(args.data, args.documents, rounds=2)
    shown, tables = [*table[:2], *fast[:2], *found], {"hacks": table, "hacks, embedded-fast": fast}
    about = f"Annotator fingerprint {reward.annotator.fingerprint}."
    save("rewards", "rewards", shown, tables=tables, about=about, packages=["scikit-learn"])


if __name__ == "__main__":
    main()
