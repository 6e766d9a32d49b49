"""The figures of the FEWL benchmarks, by hand: a wrong figure would make every table wrong."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.fewl_common import (
    best_above_first_wrong,
    best_on_top,
    interval,
    labelled_pairs,
    length_adjusted,
    paired,
    remembered,
    shuffled,
)
from fewl.similarity import from_function


def answers(*rows):
    return {"answers": [{"text": t, "score": s, "label": label, "kind": kind} for t, s, label, kind in rows]}


def test_labelled_pairs_by_hand():
    record = answers(
        ("aaaa", 3.0, True, None), ("bb", 1.0, True, None), ("cccc", 2.0, False, None), ("dd", 1.0, False, None)
    )
    # pairs (true, false): 3>2, 3>1, 1<2, 1=1 → (1 + 1 + 0 + ½)/4
    assert labelled_pairs([record])[0] == pytest.approx(2.5 / 4)
    # of like length: aaaa-cccc (won) and bb-dd (tie)
    assert labelled_pairs([record], 1.2)[0] == pytest.approx(0.75)
    nothing = answers(("a", 1.0, True, None), ("b", None, False, None))
    assert np.isnan(labelled_pairs([nothing])).all()


def test_best_on_top_and_above_the_first_wrong():
    rows = [("b", 2.0, None, "best"), ("b", 2.0, None, "correct"), ("c", 1.0, None, "correct")]
    wrong = [("w", 1.5, None, "incorrect"), ("v", 2.0, None, "incorrect")]
    assert best_on_top([answers(*rows, wrong[0])])[0] == 1  # its own copy among the correct ones does not count
    assert best_on_top([answers(*rows, *wrong)])[0] == 0  # a tie is not on top
    assert best_above_first_wrong([answers(*rows, *wrong)])[0] == 1
    assert best_above_first_wrong([answers(*rows, *wrong[::-1])])[0] == 0.5
    assert np.isnan(best_on_top([answers(("b", None, None, "best"), wrong[0])])).all()


def test_length_adjusted_scores_keep_what_length_does_not_explain():
    rows = [
        answers(("a" * n, 2.0 * np.log(1 + n) + extra, None, None), ("a" * m, 2.0 * np.log(1 + m), None, None))
        for n, m, extra in ((3, 9, 0.0), (8, 2, 0.0), (5, 5, 1.0))
    ]
    # the slope is 2 (the pair that differs otherwise is of one length), so only the extra 1 is left
    gaps = [r["answers"][0]["score"] - r["answers"][1]["score"] for r in length_adjusted(rows)]
    assert gaps == pytest.approx([0.0, 0.0, 1.0])


def test_intervals_and_the_paired_test():
    generator = np.random.default_rng(0)
    base = generator.random(400)
    mean, low, high, n = interval(np.append(base, np.nan))
    assert n == 400
    assert (high - low) / 2 == pytest.approx(1.96 * base.std() / 20, rel=0.15)
    assert low < mean < high
    better = base + generator.normal(0.05, 0.1, 400)
    gap, gap_low, _, p = paired(better, base)
    assert gap == pytest.approx(0.05, abs=0.015)
    assert gap_low > 0
    assert p < 0.01
    assert paired(base + generator.normal(0, 0.1, 400), base)[3] > 0.05


def test_control_gives_every_question_anothers_references():
    records = [{"question": i, "reference_answers": {"m": i}} for i in range(20)]
    control = shuffled(records)
    assert sorted(r["reference_answers"]["m"] for r in control) == list(range(20))
    assert all(r["reference_answers"]["m"] != r["question"] for r in control)


def test_remembered_similarity_compares_once():
    asked = []

    def judge(candidates, references, questions):
        asked.extend(candidates)
        return [1.0] * len(candidates)

    similarity = remembered(from_function(judge))
    for _ in range(2):
        assert similarity(["a", "b", "q"])(np.array([[0, 1, 2]])).tolist() == [1.0]
    assert asked == ["a"]
