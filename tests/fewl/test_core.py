"""FEWL's equations against numbers worked out by hand and against an independent loop."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewl import core
from tests.helpers.fewl_loop import LOOP_F, LOOP_G, loop_score

NAN = float("nan")
TOLERANCE = 1e-12


def to_array(values):
    return np.array([NAN if v is None else v for v in values])


maybe = st.one_of(st.none(), st.floats(-1, 1))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), n=st.integers(1, 4), k=st.integers(1, 3))
@pytest.mark.parametrize("divergence", core.VARIATIONAL)
@pytest.mark.parametrize("aggregation", ["paper", "eq6"])
def test_aggregate_equals_the_loop(data, n, k, divergence, aggregation):
    similarity = data.draw(st.lists(maybe, min_size=n, max_size=n))
    expertise = data.draw(st.lists(st.floats(-2, 2), min_size=n, max_size=n))
    neighbours = data.draw(st.lists(st.lists(maybe, min_size=k, max_size=k), min_size=n, max_size=n))
    got = core.aggregate(
        to_array(similarity)[None],
        core.expertise_weights(np.array([expertise])),
        core.nan_mean(np.array([[to_array(row) for row in neighbours]])),
        aggregation=aggregation,
        divergence=divergence,
    )[0]
    want = loop_score(similarity, expertise, neighbours, aggregation, divergence)
    assert math.isnan(got) if want is None else got == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("divergence", core.VARIATIONAL)
def test_penalty_is_the_conjugate_of_g(divergence):
    v = np.linspace(-1.5, 0.6, 50)  # log 2 bounds the domain of squared Hellinger's and JS's f*
    g, penalty = core.VARIATIONAL[divergence]
    np.testing.assert_allclose(penalty(v), [LOOP_F[divergence](LOOP_G[divergence](x)) for x in v], atol=1e-12)
    assert np.all(np.diff(g(v)) > 0)


@pytest.mark.parametrize("divergence", core.VARIATIONAL)
def test_large_values_do_not_overflow(divergence):
    for function in core.VARIATIONAL[divergence]:
        assert np.isfinite(function(np.array([-50.0, 50.0]))).all()


def test_both_aggregations_by_hand():
    # two LLMs, r = (log 3, 0): λ = (3/4, 1/4); s = (0.4, 0.8); L = (0.2, 0.6)
    # Pearson: g* = v, f*(g*(v)) = v²/4 + v; penalties: 0.01 + 0.2 = 0.21 and 0.09 + 0.6 = 0.69
    weights = core.expertise_weights(np.array([[math.log(3), 0.0]]))
    np.testing.assert_allclose(weights, [[0.75, 0.25]], atol=TOLERANCE)
    s, lazy = np.array([[0.4, 0.8]]), np.array([[0.2, 0.6]])
    by_name = {
        name: core.aggregate(s, weights, lazy, aggregation=name, divergence="pearson")[0] for name in ("paper", "eq6")
    }
    # paper: ½[(0.3 − 0.21) + (0.2 − 0.69)] = ½(0.09 − 0.49) = −0.2
    # eq6: 0.75(0.4 − 0.21) + 0.25(0.8 − 0.69) = 0.1425 + 0.0275 = 0.17
    assert by_name == {"paper": pytest.approx(-0.2), "eq6": pytest.approx(0.17)}
    # Eq. 1: 0.75·0.4 + 0.25·0.8 = 0.5
    assert core.truthfulness(s, weights)[0] == pytest.approx(0.5)


def test_expertise_by_hand_with_ragged_pairs():
    # LLM 0: max CO 0.9, max IW 0.5 → 0.4; LLM 1: CO only 0.1 (the rest is padding), IW 0.7 → −0.6
    co = np.array([[[0.2, 0.9], [0.1, NAN]]])
    iw = np.array([[[0.5, -0.2, 0.1], [0.7, NAN, NAN]]])
    np.testing.assert_allclose(core.expertise(co, iw), [[0.4, -0.6]], atol=TOLERANCE)
    assert np.isnan(core.expertise(co, np.full((1, 2, 3), NAN))).all()
    assert np.isnan(core.expertise(np.empty((1, 2, 0)), iw)).all()
    # per dataset: means over questions, 0.3 and 0.6
    np.testing.assert_allclose(core.dataset_expertise(np.array([[0.2, 0.6], [0.4, NAN]])), [0.3, 0.6])


def test_weights_are_stable_and_renormalised():
    np.testing.assert_allclose(core.expertise_weights(np.array([[1000.0, 1000.0]])), [[0.5, 0.5]])
    weights = core.expertise_weights(np.array([[0.0, NAN, math.log(4)]]))
    np.testing.assert_allclose(weights, [[0.2, NAN, 0.8]], atol=TOLERANCE)
    assert np.isnan(core.expertise_weights(np.full((1, 2), NAN))).all()


def test_truthfulness_leaves_missing_references_out():
    weights = np.array([[0.5, 0.5]])
    assert core.truthfulness(np.array([[0.8, NAN]]), weights)[0] == pytest.approx(0.8)
    assert np.isnan(core.truthfulness(np.full((1, 2), NAN), weights)).all()


def loop_agreement(agreement, weights):
    """R_i of discovered expertise: for each question the weighted mean of standardised agreement, then their mean."""
    rows = [[] for _ in weights]
    for table in agreement:
        pairs = [value for row in table for value in row if not math.isnan(value)]
        mean = sum(pairs) / len(pairs) if pairs else 0.0
        spread = math.sqrt(sum((value - mean) ** 2 for value in pairs) / len(pairs)) if pairs else 1.0
        for i, row in enumerate(table):
            there = [j for j, value in enumerate(row) if not math.isnan(value)]
            total = sum(weights[j] for j in there)
            if there:
                rows[i].append(sum(weights[j] * (row[j] - mean) / max(spread, 1e-9) for j in there) / total)
    return [sum(row) / len(row) if row else NAN for row in rows]


def test_discovered_expertise_is_the_fixed_point():
    generator = np.random.default_rng(0)
    agreement = generator.random((12, 5, 5)) * 0.3
    agreement[:, :3, :3] += 0.4  # three that agree with each other
    agreement[generator.random((12, 5, 5)) < 0.1] = NAN
    # Half steps jump between two sides of this table for ever, by 10 each time.
    table = np.random.default_rng(93).random((1, 5, 5))
    table = (table + table.transpose(0, 2, 1)) / 2
    found = []
    for one in (agreement, table):
        one[:, range(5), range(5)] = NAN
        r, settled = core.discovered_expertise(one)
        assert settled
        found.append(core.expertise_weights(r))
        assert r == pytest.approx([v / 0.1 for v in loop_agreement(one.tolist(), found[-1].tolist())], abs=1e-6)
    assert found[0][:3].sum() > 0.99
    assert not core.discovered_expertise(table, rounds=9)[1]


def test_meaning_entropy_by_hand():
    same = np.zeros((4, 4, 4), dtype=bool)
    same[0, [0, 1, 1, 2], [1, 0, 2, 1]] = True  # a chain joins the first three: clusters 3/4 and 1/4
    same[2] = True
    weights = np.array([[0.25] * 4, [0.5, 0.5, NAN, NAN], [NAN] * 4, [1, NAN, NAN, NAN]])
    # −¾ log ¾ − ¼ log ¼ = 0.215762 + 0.346574; two equal ones that differ: log 2; nobody there; one alone
    np.testing.assert_allclose(core.meaning_entropy(same, weights), [0.562335, math.log(2), NAN, NAN], atol=1e-6)


def test_discovered_expertise_without_any_difference():
    two = np.array([[[NAN, 0.7], [0.7, NAN]], [[NAN, 0.1], [0.1, NAN]]])
    assert core.discovered_expertise(two)[0] == pytest.approx([0, 0])  # two LLMs agree equally with each other
    alike = np.where(np.eye(3, dtype=bool), NAN, 0.5)[None]
    assert core.discovered_expertise(alike)[0] == pytest.approx([0, 0, 0])
    alone = np.full((2, 3, 3), NAN)
    alone[0, 0, 1] = alone[0, 1, 0] = 0.5
    np.testing.assert_allclose(core.discovered_expertise(alone)[0], [0, 0, NAN])  # nobody to agree with
    assert core.discovered_expertise(np.empty((0, 0, 0)))[0].shape == (0,)
