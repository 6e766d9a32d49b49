"""FEWL's score in plain floats and loops, None for "missing"; it shares nothing with ``fewl/core.py``."""

import math

import numpy as np

LOOP_G = {
    "tv": lambda v: 0.5 * math.tanh(v),
    "kl": lambda v: v,
    "reverse-kl": lambda v: -math.exp(-v),
    "pearson": lambda v: v,
    "hellinger": lambda v: 1 - math.exp(-v),
    "js": lambda v: math.log(2) - math.log(1 + math.exp(-v)),
}
LOOP_F = {
    "tv": lambda u: u,
    "kl": lambda u: np.exp(u - 1),
    "reverse-kl": lambda u: -1 - np.log(-u),
    "pearson": lambda u: u * u / 4 + u,
    "hellinger": lambda u: u / (1 - u),
    "js": lambda u: -np.log(2 - np.exp(u)),
}


def loop_score(similarity, expertise, neighbours, aggregation, divergence):
    """One answer's score: similarity and expertise of each reference, and a list of similarities to its neighbours."""
    g, f = LOOP_G[divergence], LOOP_F[divergence]
    there = [i for i, s in enumerate(similarity) if s is not None]
    if not there:
        return None
    total = sum(math.exp(expertise[i]) for i in there)
    weights = {i: math.exp(expertise[i]) / total for i in there}
    n = len(there)
    gain, cost, cost_weight = 0.0, 0.0, 0.0
    for i in there:
        if aggregation == "paper":
            gain += g(weights[i] * similarity[i]) / n
        else:
            gain += weights[i] * g(similarity[i])
        known = [s for s in neighbours[i] if s is not None]
        if known:
            share = weights[i] if aggregation == "eq6" else 1 / n
            cost += share * f(g(sum(known) / len(known)))
            cost_weight += share
    return gain - (cost / cost_weight if cost_weight else 0.0)
