"""FEWL as pure functions over arrays: divergences, expertise, truthfulness, laziness, aggregation.

Source: Wei et al. 2024, "Measuring and Reducing LLM Hallucination without Gold-Standard Answers", Eq. 1-6 and
Algorithm 1. Leaves out texts, models and files; ``fewl/score.py`` brings those.

Dimension suffixes: ``_A`` answers to score, ``_Q`` questions, ``_N`` references (an LLM with several texts
holds several places), ``_K`` IW/CO pairs or neighbours, ``_D`` embedding. NaN means "not there" and never
counts as 0: a reference that is NaN is left out and the weights of the others are renormalised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float64]
Aggregation = Literal["paper", "eq6"]
Divergence = Literal["tv", "kl", "reverse-kl", "pearson", "hellinger", "js"]


def softplus(v: Float) -> Float:
    """log(1 + exp v) without overflow; NaN stays NaN, without a warning."""
    with np.errstate(invalid="ignore"):
        return np.logaddexp(0, v)


VARIATIONAL: dict[Divergence, tuple[Callable[[Float], Float], Callable[[Float], Float]]] = {
    "tv": (lambda v: 0.5 * np.tanh(v), lambda v: 0.5 * np.tanh(v)),  # f*(u) = u
    "kl": (lambda v: v, lambda v: np.exp(v - 1)),  # f*(u) = exp(u - 1)
    "reverse-kl": (lambda v: -np.exp(-v), lambda v: v - 1),  # f*(u) = -1 - log(-u)
    "pearson": (lambda v: v, lambda v: v * v / 4 + v),  # chi squared: f*(u) = u^2/4 + u
    "hellinger": (lambda v: -np.expm1(-v), np.expm1),  # squared: f*(u) = u/(1 - u)
    "js": (lambda v: np.log(2) - softplus(-v), lambda v: softplus(v) - np.log(2)),  # f*(u) = -log(2 - exp(u))
}
"""f-divergences in variational form: the output activation g*(v), increasing in v, and f*(g*(v)), written out so that
nothing overflows or leaves the domain of f*. Source: Nowozin et al. 2016, Table 6 and section 2.4."""


def expertise(co_QNK: Float, iw_QNK: Float) -> Float:
    """r_i(x) = max_k s(h_i(x), CO_k) - max_k s(h_i(x), IW_k), Algorithm 1, step 2; higher is better.

    The similarities of each reference to each CO and IW answer may differ in K; NaN pads ragged lists. r_QN is NaN
    where a reference has no similarity to any CO or any IW answer.
    """
    return nan_max(co_QNK) - nan_max(iw_QNK)


def expertise_weights(r_QN: Float) -> Float:
    """λ_i(x) = exp r_i(x) / Σ_j exp r_j(x) over the references that are there (Algorithm 1, step 2).

    Returns lambda_QN in [0, 1]: rows sum to 1, NaN where r is NaN (a row of NaN stays NaN).
    """
    exp_QN = np.exp(r_QN - nan_max(r_QN)[..., None])  # the largest exponent is 0: nothing overflows
    return exp_QN / np.nansum(exp_QN, axis=-1, keepdims=True)


def dataset_expertise(r_QN: Float) -> Float:
    """Expertise that is constant over questions (Assumption 3.1): r_N, the mean of r over questions. That of λ would
    not do, since λ of the others rises wherever a reference is missing."""
    return nan_mean(r_QN.T)


def discovered_expertise(agreement_QNN: Float, *, temperature: float = 0.1, rounds: int = 1000) -> tuple[Float, bool]:
    """Expertise from the agreement of the LLMs alone (an extension): the fixed point, from uniform w, of

        R_i = mean over x of Σ_{j≠i} w_j z_ij(x) / Σ_{j≠i} w_j          w_i = exp(R_i / T) / Σ_k exp(R_k / T)

    with z_ij(x) the similarity of h_i(x) and h_j(x), standardised over the pairs of one question (``agreement_QNN``;
    NaN where one did not answer and for i = j). A step goes half of the way, and less after each one that turned back,
    since two sides may take turns for ever otherwise. A small T > 0 trusts few LLMs. LLMs that agree equally, two LLMs,
    and pairs all alike have equal r; a majority that errs alike is taken for reliable, which nothing here can see.

    Returns r_N = R_i / T, of which :func:`expertise_weights` makes λ, NaN where an LLM shares no question with another;
    and whether it is the fixed point, to 1e-9. Source of the idea: peer prediction (Miller et al. 2005), spectral
    aggregation (Parisi et al. 2014).
    """
    q, n, _ = agreement_QNN.shape
    pairs_QP = agreement_QNN.reshape(q, n * n)
    centred_QP = pairs_QP - nan_mean(pairs_QP)[:, None]
    z_QNN = (centred_QP / np.maximum(np.sqrt(nan_mean(centred_QP**2)), 1e-9)[:, None]).reshape(q, n, n)
    r_N = np.where(np.isnan(z_QNN).all(axis=(0, 2)), np.nan, 0.0)
    last_N, share = np.zeros(n), 0.5
    for _ in range(rounds):
        weights_N = np.nan_to_num(expertise_weights(r_N))
        R_N = nan_mean(nan_sum(renormalise(weights_N, z_QNN) * z_QNN).T)
        gap_N = np.nan_to_num(R_N / temperature - r_N)
        if np.abs(gap_N).max(initial=0.0) <= 1e-9:
            return r_N, True
        share *= 0.9 if gap_N @ last_N < 0 else 1.0
        r_N, last_N = r_N + share * gap_N, gap_N
    return r_N, False


def meaning_entropy(same_QNN: NDArray[np.bool_], weights_QN: Float) -> Float:
    """Entropy in nats of what the LLMs mean: −Σ_c p_c log p_c with p_c = Σ_{i in c} λ_i over clusters c of one meaning.

    LLMs are in one cluster where ``same_QNN`` says that they mean the same, or a chain of such pairs joins them. 0
    where all mean the same, log N where N equal ones all differ, NaN where fewer than two have a λ. Source: semantic
    entropy (Farquhar et al. 2024), with LLMs in the place of one LLM's samples.
    """
    n = same_QNN.shape[-1]
    joined_QNN = same_QNN | np.eye(n, dtype=bool)
    for _ in range(n.bit_length()):  # chains of 1, 2, 4, … pairs
        joined_QNN = joined_QNN @ joined_QNN
    first_QNN = joined_QNN & (joined_QNN.cumsum(axis=-1) == 1)  # a cluster is known by its first LLM
    share_QN = (first_QNN * np.nan_to_num(weights_QN)[..., None]).sum(axis=-2)
    entropy_Q = -(share_QN * np.log(np.where(share_QN > 0, share_QN, 1.0))).sum(axis=-1) + 0.0
    return np.where((~np.isnan(weights_QN)).sum(axis=-1) < 2, np.nan, entropy_Q)


def truthfulness(s_AN: Float, weights_AN: Float) -> Float:
    """(A,) Σ_i λ_i s(y, h_i(x)), Eq. 1, over references with a similarity, λ renormalised; NaN where none is left."""
    return nan_sum(renormalise(weights_AN, s_AN) * s_AN)


def aggregate(
    s_AN: Float, weights_AN: Float, laziness_AN: Float | None, *, aggregation: Aggregation = "paper",
    divergence: Divergence = "tv",
) -> Float:  # fmt: skip
    """The FEWL score of each answer, higher is better; NaN where an answer has no usable reference.

    ``paper`` is Eq. 4, (1/N) Σ_i [g*(λ_i s_i) − f*(g*(L_i))]; ``eq6`` is Eq. 6 with Eq. 5 inside, Σ_i λ_i [g*(s_i) −
    f*(g*(L_i))]. In s_AN NaN means no reference; rows of λ (``weights_AN``) sum to 1 over the references that are
    there. Where L_i is NaN a reference has no neighbour's answer, and its penalty is left out of the mean of penalties.
    None for L switches the penalty off.
    """
    g, penalty = VARIATIONAL[divergence]
    lambda_AN = renormalise(weights_AN, s_AN)
    if aggregation == "eq6":
        share_AN, gain_AN = lambda_AN, g(s_AN)
    else:
        share_AN, gain_AN = renormalise(np.ones(s_AN.shape), lambda_AN), g(lambda_AN * s_AN)
    score_A = nan_sum(share_AN * gain_AN)
    if laziness_AN is None:
        return score_A
    cost_A = nan_sum(renormalise(share_AN, laziness_AN) * penalty(laziness_AN))
    return score_A - np.where(np.isnan(cost_A), 0.0, cost_A)  # no neighbour at all: the score without penalty


def renormalise(weights_AN: Float, there_AN: Float) -> Float:
    """Weights over the places where both are numbers, rows summing to 1 again; NaN elsewhere."""
    kept_AN = np.where(np.isnan(there_AN), np.nan, weights_AN)
    with np.errstate(invalid="ignore", divide="ignore"):
        return kept_AN / np.nansum(kept_AN, axis=-1, keepdims=True)


def nan_sum(values: Float) -> Float:
    """Sum over the last axis without NaN; NaN (not 0) where nothing is left."""
    return np.where(np.isnan(values).all(axis=-1), np.nan, np.nansum(values, axis=-1))


def nan_mean(values: Float) -> Float:
    """Mean over the last axis without NaN; NaN where nothing is left."""
    count = (~np.isnan(values)).sum(axis=-1)
    return np.where(count == 0, np.nan, np.nansum(values, axis=-1) / np.maximum(count, 1))


def nan_max(values: Float) -> Float:
    """Maximum over the last axis without NaN; NaN where nothing is left (also for an empty axis)."""
    filled = np.where(np.isnan(values), -np.inf, values)
    top = filled.max(axis=-1, initial=-np.inf)
    return np.where(np.isneginf(top), np.nan, top)
