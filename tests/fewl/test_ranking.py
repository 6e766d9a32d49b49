"""Ranking models and picking answers: by hand, with gaps and ties."""

import numpy as np
import pytest

from fewl.ranking import kendall_tau, pick_answers, rank_models


def record(scores, labels=None):
    labels = labels or {}
    answers = [{"text": m, "model": m, "score": s, "label": labels.get(m)} for m, s in scores.items()]
    return {"id": 1, "question": "q", "answers": answers}


def test_ranking_by_hand():
    rows = {"a": 1.0, "b": 2.0, "c": None}, {"a": 3.0, "b": 2.0, "c": 9.0}, {"a": 2.0, "b": 2.0}
    scored = [record(row) for row in rows]
    ranking = rank_models(scored)
    rows = [(r.model, r.mean, r.n, r.missing) for r in ranking.models]
    assert rows == [("c", 9.0, 1, 1), ("a", 2.0, 3, 0), ("b", 2.0, 3, 0)]
    assert ranking.wins["a"]["b"] == pytest.approx(0.5)  # lost, won, tied: (0 + 1 + ½)/3
    assert ranking.common["a"]["c"] == 1
    assert ranking.wins["c"]["a"] == 1.0


def test_intervals_match_the_standard_error():
    generator = np.random.default_rng(0)
    values = generator.normal(size=400)
    row = rank_models([record({"a": v}) for v in values], resamples=4000).models[0]
    # the standard error of a mean of 400 is 1/20; 1.96 of it on either side
    assert row.low == pytest.approx(values.mean() - 1.96 * values.std() / 20, abs=0.01)
    assert row.high == pytest.approx(values.mean() + 1.96 * values.std() / 20, abs=0.01)
    assert row == rank_models([record({"a": v}) for v in values], resamples=4000).models[0]


def test_kendall_tau_by_hand_with_ties():
    # pairs of 1 2 2 3 against 1 3 2 4: five agree, one is tied in x: τ-b = 5/√(5·6)
    assert kendall_tau(np.array([1.0, 2, 2, 3]), np.array([1.0, 3, 2, 4])) == pytest.approx(5 / 30**0.5)
    assert kendall_tau(np.ones(4), np.arange(4.0)) is None
    assert kendall_tau(np.array([1.0, np.nan]), np.arange(2.0)) is None


def test_kendall_of_ranking_has_an_interval():
    scored = [record({"a": 3.0 + i % 2, "b": 2.0, "c": 1.0 - i % 3}) for i in range(30)]
    kendall = rank_models(scored, truth={"a": 0.9, "b": 0.5, "c": 0.1, "other": 1}, resamples=200).kendall
    assert kendall == {"tau": 1.0, "low": 1.0, "high": 1.0, "models": 3}
    upside_down = rank_models(scored, truth={"a": 0.1, "b": 0.5, "c": 0.9}, resamples=200).kendall
    assert upside_down["tau"] == -1.0
    with pytest.raises(ValueError, match="at least two of the ranked models"):
        rank_models(scored, truth={"other": 1})


def test_truth_from_labels():
    scored = [record({"a": 1.0, "b": 0.0}, {"a": True, "b": i % 2 == 0}) for i in range(20)]
    ranking = rank_models(scored, truth_from_labels=True, resamples=200)
    assert ranking.truth == {"a": 1.0, "b": 0.5}
    assert ranking.kendall["tau"] == 1.0


def test_answers_without_model_are_counted():
    scored = [record({"a": 1.0}), {"question": "q", "answers": [{"text": "x", "score": 1.0}]}]
    assert rank_models(scored).unnamed == 1
    with pytest.raises(ValueError, match='expected a "model"'):
        rank_models(scored[1:])


def test_model_without_score_comes_last():
    ranking = rank_models([record({"z": None, "a": -5.0})])
    assert [(r.model, r.mean, r.low) for r in ranking.models] == [("a", -5.0, -5.0), ("z", None, None)]
    assert ranking.wins["z"]["a"] is None


def test_pick_takes_first_of_the_best():
    scored = [record({"a": 1.0, "b": 3.0, "c": 3.0}), record({"a": None})]
    first, second = pick_answers(scored)
    assert first == {"id": 1, "question": "q", "answer": "b", "model": "b", "score": 3.0, "index": 1, "ties": 2}
    assert second == {"id": 1, "question": "q", "answer": None, "model": None, "score": None, "index": None, "ties": 0}


def test_pick_abstains_from_unknown_entropy():
    rows = [{**record({"a": 1.0}), **more} for more in ({"entropy": 0.5}, {"entropy": 0.6}, {"entropy": None}, {})]
    assert [row["answer"] for row in pick_answers(rows, abstain_above=0.5)] == ["a", None, None, None]
    assert [row["answer"] for row in pick_answers(rows)] == ["a"] * 4
