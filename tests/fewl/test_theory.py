"""Proposition B.1 and Theorem 3.4 on made-up distributions: with the optimal g*, FEWL is the f-divergence.

Answers are one of a few classes. h is a noisy copy of the best answer A*, and A a garbled copy of A* that
depends on h only through A* (Assumption 3.3). P is the joint distribution of answer and reference, Q the product
of its margins.
"""

import numpy as np
import pytest

from fewl.core import DIVERGENCES, VARIATIONAL
from tests.fewl.test_core import LOOP_F

# The optimal critic g*(t) = f'(t), t = P/Q (Nowozin et al. 2016, Table 5, up to the scale of f used in core.py)
OPTIMAL = {
    "tv": lambda t: 0.5 * np.sign(t - 1),
    "kl": lambda t: 1 + np.log(t),
    "reverse-kl": lambda t: -1 / t,
    "pearson": lambda t: 2 * (t - 1),
    "hellinger": lambda t: 1 - 1 / np.sqrt(t),
    "js": lambda t: np.log(2 * t / (1 + t)),
}
# The divergences themselves, written out without f: the thing that has to come out
DIVERGENCE = {
    "tv": lambda p, q: 0.5 * np.abs(p - q).sum(),
    "kl": lambda p, q: (p * np.log(p / q)).sum(),
    "reverse-kl": lambda p, q: (q * np.log(q / p)).sum(),
    "pearson": lambda p, q: ((p - q) ** 2 / q).sum(),
    "hellinger": lambda p, q: ((np.sqrt(p) - np.sqrt(q)) ** 2).sum(),
    "js": lambda p, q: (p * np.log(2 * p / (p + q)) + q * np.log(2 * q / (p + q))).sum(),
}


def channel(generator, n, noise):
    """A row-stochastic matrix near the identity."""
    matrix = (1 - noise) * np.eye(n) + noise * generator.dirichlet(np.ones(n), size=n)
    return matrix / matrix.sum(axis=1, keepdims=True)


def joint(prior, reference, answer):
    """P(answer, h): h and the answer both come from A*, independently of each other given it."""
    return np.einsum("s,sa,sh->ah", prior, answer, reference)


def fewl(p, critic, name):
    """Eq. 5 with a critic: E_P[g] − E_Q[f*(g)]."""
    q = p.sum(axis=1, keepdims=True) * p.sum(axis=0, keepdims=True)
    return (p * critic).sum() - (q * LOOP_F[name](critic)).sum()


@pytest.mark.parametrize("name", DIVERGENCES)
def test_optimal_critic_gives_the_divergence(name):
    generator = np.random.default_rng(0)
    for _ in range(20):
        prior = generator.dirichlet(np.ones(5))
        p = joint(prior, channel(generator, 5, 0.5), channel(generator, 5, 0.4))
        q = p.sum(axis=1, keepdims=True) * p.sum(axis=0, keepdims=True)
        best = fewl(p, OPTIMAL[name](p / q), name)
        assert best == pytest.approx(DIVERGENCE[name](p, q), abs=1e-9)
        for _ in range(20):  # any other critic in the range of g*
            critic = VARIATIONAL[name].g(generator.normal(scale=0.5, size=p.shape))
            assert fewl(p, critic, name) <= best + 1e-12


@pytest.mark.parametrize("name", DIVERGENCES)
def test_best_model_scores_highest(name):
    generator = np.random.default_rng(1)
    for _ in range(20):
        prior, reference = generator.dirichlet(np.ones(5)), channel(generator, 5, 0.6)
        scores = []
        for noise in (0.0, 0.3, 0.9):
            p = joint(prior, reference, channel(np.random.default_rng(2), 5, noise))
            scores.append(fewl(p, OPTIMAL[name](p / np.outer(p.sum(axis=1), p.sum(axis=0))), name))
        assert scores[0] >= scores[1] >= scores[2] - 1e-12  # Theorem 3.4: garbling never helps
