"""Score the answers of whole records with FEWL: the equations of ``fewl/core.py`` applied to texts.

    scored, report = score_records(records, similarity=cosine(embedder.encode), encode=embedder.encode)

Decided, where the paper is silent (each is counted in the report):

- A reference LLM without an answer to a question is left out there and λ renormalised over the others.
- An LLM is no reference for its own answers (``answer.model`` equal to its name), which it would confirm.
- An empty answer, and an answer without any usable reference, get null, never 0.
- A question is known by its text without outer white space. Rows of one text are one question of the pool,
  with the first reference answer that any of them has; equal texts are never each other's neighbours.
- Without neighbours (a single question) the score is the one without penalty and ``laziness`` is null.
- Where a question has no IW/CO pairs, its references weigh the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fewl import core
from fewl.core import Aggregation, Divergence, Float
from fewl.neighbours import nearest, random_dissimilar
from fewl.records import FewlRecord, read_record
from fewl.similarity import Encode, OfPairs, Similarity, checked

Ints = NDArray[np.int64]
Expertise = Literal["similarity", "prompted", "discovered", "uniform", "ideal"]
CHOICES: dict[str, tuple[str, ...]] = {
    "aggregation": get_args(Aggregation), "divergence": get_args(Divergence), "expertise": get_args(Expertise),
    "expertise_scope": ("question", "dataset"), "neighbour_choice": ("nearest", "random"),
}  # fmt: skip
DEFAULT_NEIGHBOURS = {"nearest": 10, "random": 25}
BLOCK_PAIRS = 1_000_000
"""Pairs compared at once."""
AGREEMENT_QUESTIONS = 1000
"""Reliability is discovered on at most so many questions: their mean is known well then."""


@dataclass(frozen=True)
class FewlOptions:
    """How to score; the defaults did best on questions that they were not chosen on (docs/results/fewl.md)."""

    aggregation: Aggregation = "eq6"  # Eq. 6; "paper" is Eq. 4, whose penalty outweighs the rest with several LLMs
    divergence: Divergence = "tv"  # which g* and f*
    # Where r comes from: similarity to the record's IW/CO pairs; prompted (handed in as ``prompted``); discovered (the
    # LLMs' agreement with each other); uniform; ideal (the record's labelled answers stand in for IW and CO).
    expertise: Expertise = "uniform"
    expertise_scope: Literal["question", "dataset"] = "question"  # "dataset": its mean over them (Assumption 3.1)
    neighbours: int | None = None  # K; None takes 10 nearest or 25 random ones
    neighbour_choice: Literal["nearest", "random"] = "nearest"  # "random": with similarity of at most 0.8
    penalty: bool | None = None  # whether laziness counts; None: with "paper", or where neighbours are asked for
    references: str = "all"  # or "single:NAME"
    # Reference LLMs whose answers are at least so alike, both ways, mean the same; a record then gets the ``entropy``
    # of what they mean (an extension), which says when to abstain. None: it is not computed.
    same_from: float | None = None
    seed: int = 0  # of the random neighbours, and of the questions that reliability is discovered on

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {getattr(self, name)!r}")
        asked = self.neighbours is not None or self.neighbour_choice == "random"
        if asked and self.penalty is False:
            raise ValueError("penalty: expected it on, or no neighbours and no neighbour_choice, which only it reads")
        if self.penalty is None:
            object.__setattr__(self, "penalty", self.aggregation == "paper" or asked)


@dataclass
class FewlReport:
    """What was counted on the way; every missing thing is here."""

    questions: int = 0
    distinct_questions: int = 0
    answers: int = 0
    scored: int = 0
    empty_answers: int = 0
    answers_without_reference: int = 0
    questions_without_reference: int = 0
    questions_without_neighbours: int = 0
    questions_without_expertise: int = 0
    reliability_not_settled: int = 0  # 1: the rounds of discovered expertise ended before its fixed point
    own_references_left_out: int = 0
    pairs_not_compared: int = 0
    missing_references: dict[str, int] = field(default_factory=dict)
    mean_lambda: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """The texts of records once each, and arrays of text numbers that say who answered what; −1 where nobody did.

    Suffixes are those of ``fewl/core.py``; here ``_Q`` counts records and ``_P`` distinct questions.
    """

    texts: list[str]  # distinct texts of answers, references, questions and pairs
    slots: list[str]  # the LLM behind each place n; an LLM with several samples has several places
    questions: list[str]  # distinct question texts
    distinct_Q: Ints  # the question of each record, a place in questions
    asked_Q: Ints  # the question of each record, a place in texts
    answer_A: Ints  # the text of each answer; −1 for an empty one
    question_A: Ints  # the record of each answer
    own_AN: NDArray[np.bool_]  # whether place n is the model that gave the answer
    reference_QN: Ints  # the text of each reference answer
    pool_PN: Ints  # the same for each distinct question: the first that any of its records has
    pairs: tuple[Ints, Ints]  # (co_QK, iw_QK) of the records
    ideal: tuple[Ints, Ints]  # the same made of answers labelled true and false


def lay_out(records: Sequence[FewlRecord], names: Sequence[str]) -> Layout:
    """Number the texts of the records; only the reference LLMs named are laid out."""
    number: dict[str, int] = {}

    def numbers(texts: Iterable[str]) -> list[int]:
        return [number.setdefault(text, len(number)) if text.strip() else -1 for text in texts]

    def ragged(rows: Iterable[Iterable[str]]) -> Ints:
        numbered = [numbers(row) for row in rows]
        padded = np.full((len(numbered), max(map(len, numbered), default=0)), -1, dtype=np.int64)
        for row, values in zip(padded, numbered, strict=True):
            row[: len(values)] = values
        return padded

    given = [ragged(record.references.get(name, ()) for record in records) for name in names]
    slots = [name for name, given_QK in zip(names, given, strict=True) for _ in given_QK.T]
    reference_QN = np.concatenate([np.empty((len(records), 0), dtype=np.int64), *given], axis=1)
    questions = list(dict.fromkeys(record.question for record in records))
    place = {question: p for p, question in enumerate(questions)}
    distinct_Q = np.array([place[record.question] for record in records], dtype=np.int64)
    pool_PN = np.full((len(questions), len(slots)), -1, dtype=np.int64)
    for q in reversed(range(len(records))):  # backwards, so that the first record of a question has the last word
        there_N = reference_QN[q] >= 0
        pool_PN[distinct_Q[q], there_N] = reference_QN[q, there_N]
    answers = [(q, answer) for q, record in enumerate(records) for answer in record.answers]
    answer_A = np.array(numbers(answer.text for _, answer in answers), dtype=np.int64)
    asked_Q = np.array(numbers(r.question for r in records), dtype=np.int64)
    pairs = ragged(r.co for r in records), ragged(r.iw for r in records)
    true, false = ([[a.text for a in r.answers if a.label is label] for r in records] for label in (True, False))
    ideal = ragged(true), ragged(false)
    question_A = np.array([q for q, _ in answers], dtype=np.int64)
    own = [[answer.model == name for name in slots] for _, answer in answers]
    own_AN = np.array(own, dtype=bool).reshape(len(answers), len(slots))
    return Layout(
        texts=list(number), slots=slots, questions=questions, distinct_Q=distinct_Q, asked_Q=asked_Q, answer_A=answer_A,
        question_A=question_A, own_AN=own_AN, reference_QN=reference_QN, pool_PN=pool_PN, pairs=pairs, ideal=ideal,
    )  # fmt: skip


def score_records(
    records: Sequence[Mapping[str, Any]], *, similarity: Similarity, encode: Encode | None = None,
    options: FewlOptions | None = None, prompted: Sequence[Mapping[str, float]] | None = None,
) -> tuple[list[dict[str, Any]], FewlReport]:  # fmt: skip
    """Score every answer of every record (``fewl/records.py``).

    ``encode`` embeds the questions, to find neighbours; it may be None without penalty. ``prompted``, for
    ``expertise="prompted"``, holds r of each LLM, one mapping per record. Returns the report, after the records with
    ``score``, ``truthfulness`` (Σ λ_i s_i, Eq. 1) and ``laziness`` (mean of L_i, Eq. 3) added to each answer, higher
    score is better, null where there is none; and ``lambda`` ({LLM: λ_i}, summing to 1 over the LLMs that answered; an
    LLM's samples together). Raises ValueError: a record or an option is not as expected.
    """
    options = options or FewlOptions()
    read = [read_record(record) for record in records]
    layout = lay_out(read, check_options(read, options))
    report = FewlReport(questions=len(read), distinct_questions=len(layout.questions), answers=len(layout.answer_A))
    of_pairs = similarity(layout.texts)
    neighbours_QK = _neighbours(layout, encode, options)
    if options.penalty:
        alone_Q = np.asarray((neighbours_QK < 0).all(axis=1))[layout.distinct_Q]
        report.questions_without_neighbours = int(alone_Q.sum())

    answer_A1, reference_AN = layout.answer_A[:, None], layout.reference_QN[layout.question_A]
    s_AN = _pairs(of_pairs, answer_A1, reference_AN, layout.asked_Q[layout.question_A])
    report.pairs_not_compared = int(np.isnan(s_AN[(answer_A1 >= 0) & (reference_AN >= 0)]).sum())
    report.own_references_left_out = int((layout.own_AN & ~np.isnan(s_AN)).sum())
    s_AN[layout.own_AN] = np.nan

    weights_QN = _weights(of_pairs, layout, options, prompted, report)
    weights_AN = weights_QN[layout.question_A]
    laziness_AN = _laziness(of_pairs, layout, neighbours_QK) if options.penalty else None
    score_A = core.aggregate(
        s_AN, weights_AN, laziness_AN, aggregation=options.aggregation, divergence=options.divergence
    )
    entropy_Q = np.full(len(read), np.nan)
    if options.same_from is not None:
        given_QN = layout.reference_QN
        alike_QNN = _pairs(of_pairs, given_QN[:, :, None], given_QN[:, None, :], layout.asked_Q) >= options.same_from
        entropy_Q = core.meaning_entropy(alike_QNN & alike_QNN.transpose(0, 2, 1), weights_QN)
    lazy_AN = np.full(s_AN.shape, np.nan) if laziness_AN is None else np.where(np.isnan(s_AN), np.nan, laziness_AN)
    _count(report, layout, score_A, weights_QN)

    values_A3 = np.stack([score_A, core.truthfulness(s_AN, weights_AN), core.nan_mean(lazy_AN)], axis=1)
    values = ([None if np.isnan(value) else value for value in row] for row in values_A3.tolist())
    rows = []
    for record, weights_N, entropy in zip(records, weights_QN.tolist(), entropy_Q.tolist(), strict=True):
        answers = [
            {**answer, **dict(zip(("score", "truthfulness", "laziness"), next(values), strict=True))}
            for answer in record["answers"]
        ]
        shares: Counter[str] = Counter()
        for name, weight in zip(layout.slots, weights_N, strict=True):
            if not np.isnan(weight):
                shares[name] += weight
        row = {**record, "answers": answers, "lambda": dict(shares)}
        row.pop("entropy", None)  # of an earlier scoring
        rows.append(row if options.same_from is None else row | {"entropy": None if np.isnan(entropy) else entropy})
    return rows, report


def check_options(records: Sequence[FewlRecord], options: FewlOptions, asked: Sequence[str] = ()) -> list[str]:
    """Names of the reference LLMs to use, in the order in which they appear.

    ``asked`` are LLMs whose reference answers and IW/CO pairs are still to come. Raises ValueError: an LLM that is not
    there is named, or the expertise has nothing to come from in any record.
    """
    names = list(dict.fromkeys([*(name for record in records for name in record.references), *asked]))
    has_pairs = any(record.iw and record.co for record in records)
    if records and options.expertise == "similarity" and not has_pairs and not asked:
        raise ValueError("expertise similarity: no record has iw and co; add them, or take another expertise")
    labels = {answer.label for record in records for answer in record.answers}
    if records and options.expertise == "ideal" and not {True, False} <= labels:
        raise ValueError("expertise ideal: expected answers labelled true and false, found no such labels")
    if options.references == "all":
        return names
    kind, _, name = options.references.partition(":")
    if kind != "single" or name not in names:
        known, got = ", ".join(names) or "none", options.references
        raise ValueError(f"references: expected all or single:NAME with NAME one of {known}, got {got!r}")
    return [name]


def _neighbours(layout: Layout, encode: Encode | None, options: FewlOptions) -> Ints:
    """neighbours_PK of the distinct questions; no column without a penalty."""
    if not options.penalty or not layout.questions:
        return np.empty((len(layout.questions), 0), dtype=np.int64)
    if encode is None:
        raise ValueError("encode: expected an encoder, since neighbours are found by embeddings; got None")
    vectors = encode(layout.questions)
    k = DEFAULT_NEIGHBOURS[options.neighbour_choice] if options.neighbours is None else options.neighbours
    if options.neighbour_choice == "random":
        return random_dissimilar(vectors, k, seed=options.seed)
    return nearest(vectors, k)


def _pairs(of_pairs: OfPairs, left: Ints, right: Ints, asked: Ints) -> Float:
    """Similarity of broadcast text numbers, NaN where one is −1 (missing); ``asked``: the question of each row."""
    left, right = np.broadcast_arrays(left, right)
    asked = np.broadcast_to(asked.reshape(-1, *[1] * (left.ndim - 1)), left.shape)
    there = (left >= 0) & (right >= 0)
    values = np.full(left.shape, np.nan)
    values[there] = checked(of_pairs, np.stack([left[there], right[there], asked[there]], axis=1))
    return values


def _laziness(of_pairs: OfPairs, layout: Layout, neighbours_PK: Ints) -> Float:
    """L_i(x) = (1/K) Σ_k s(y, h_i(x_k)), Eq. 3, over the neighbours that are there; in blocks to keep memory small."""
    n = layout.reference_QN.shape[1]
    answered_PN = np.concatenate([layout.pool_PN, np.full((1, n), -1)])  # the last row is that of no neighbour, −1
    lazy_AN = np.empty((len(layout.answer_A), n))
    step = max(1, BLOCK_PAIRS // max(1, n * neighbours_PK.shape[1]))
    for start in range(0, len(lazy_AN), step):
        block = slice(start, start + step)
        question_B = layout.question_A[block]
        right_BNK = np.moveaxis(answered_PN[neighbours_PK[layout.distinct_Q[question_B]]], -1, -2)
        s_BNK = _pairs(of_pairs, layout.answer_A[block][:, None, None], right_BNK, layout.asked_Q[question_B])
        lazy_AN[block] = core.nan_mean(s_BNK)
    return lazy_AN


def _weights(
    of_pairs: OfPairs, layout: Layout, options: FewlOptions, prompted: Sequence[Mapping[str, float]] | None,
    report: FewlReport,
) -> Float:  # fmt: skip
    """λ_QN by the chosen expertise."""
    there_QN = layout.reference_QN >= 0
    if options.expertise == "uniform":
        r_QN = np.zeros(there_QN.shape)
    elif options.expertise == "prompted":
        if prompted is None or len(prompted) != len(layout.reference_QN):
            raise ValueError("prompted: expected one mapping of LLM name to r per record")
        rows = [[row.get(name, np.nan) for name in layout.slots] for row in prompted]
        r_QN = np.array(rows, dtype=np.float64).reshape(there_QN.shape)
    elif options.expertise == "discovered":
        r_N, settled = _discovered(of_pairs, layout, options.seed)
        r_QN = np.broadcast_to(r_N, there_QN.shape)
        report.reliability_not_settled = int(not settled)
    else:
        to_CO, to_IW = (
            _pairs(of_pairs, layout.reference_QN[:, :, None], texts_QK[:, None, :], layout.asked_Q)
            for texts_QK in (layout.ideal if options.expertise == "ideal" else layout.pairs)
        )
        r_QN = core.expertise(to_CO, to_IW)
    r_QN = np.where(there_QN, r_QN, np.nan)
    if options.expertise_scope == "dataset" and len(r_QN):
        r_QN = np.where(there_QN, core.dataset_expertise(r_QN)[None, :], np.nan)
    # A question without any r weighs its references equally; beside known ones an unknown r is their mean.
    unknown_Q = np.isnan(r_QN).all(axis=1) & there_QN.any(axis=1)
    report.questions_without_expertise = int(unknown_Q.sum())
    mean_Q = np.nan_to_num(core.nan_mean(r_QN))
    return core.expertise_weights(np.where(there_QN & np.isnan(r_QN), mean_Q[:, None], r_QN))


def _discovered(of_pairs: OfPairs, layout: Layout, seed: int) -> tuple[Float, bool]:
    """r_N from the agreement of the LLMs' answers to the distinct questions, and whether it settled.

    One LLM's samples are not compared with each other.
    """
    n = len(layout.questions)
    some = np.random.default_rng(seed).permutation(n)[:AGREEMENT_QUESTIONS]
    asked_P = np.empty(n, dtype=np.int64)
    asked_P[layout.distinct_Q] = layout.asked_Q
    given_PN = layout.pool_PN[some]
    agreement_PNN = _pairs(of_pairs, given_PN[:, :, None], given_PN[:, None, :], asked_P[some])
    slots_N = np.array(layout.slots)
    agreement_PNN[:, slots_N[:, None] == slots_N] = np.nan
    return core.discovered_expertise(agreement_PNN)


def _count(report: FewlReport, layout: Layout, score_A: Float, weights_QN: Float) -> None:
    report.scored = int((~np.isnan(score_A)).sum())
    report.empty_answers = int((layout.answer_A < 0).sum())
    report.answers_without_reference = report.answers - report.scored - report.empty_answers
    report.questions_without_reference = int((layout.reference_QN < 0).all(axis=1).sum())
    for name in dict.fromkeys(layout.slots):
        columns = [i for i, slot in enumerate(layout.slots) if slot == name]
        report.missing_references[name] = int((layout.reference_QN[:, columns] < 0).all(axis=1).sum())
        mean = float(core.nan_mean(core.nan_sum(weights_QN[:, columns])))
        report.mean_lambda[name] = None if np.isnan(mean) else mean
