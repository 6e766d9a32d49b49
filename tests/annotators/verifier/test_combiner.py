"""The combiner: its loss by hand, its network beside torch, calibration and the decision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from annotators.verifier.combiner import UNSUPPORTED, Combiner, decide, multitask_loss, votes_of
from annotators.verifier.training import best_threshold, row_weights


def test_loss_by_hand() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.2, 0.2, 0.1], [0.1, 0.3, 0.4, 0.2]]))
    # row 0 is supported: −log 0.5, weight 1; row 1 "unsupported": −log(0.3 + 0.4), weight 3
    loss = multitask_loss(logits, torch.tensor([0, UNSUPPORTED]), torch.tensor([1.0, 3.0]))
    assert float(loss) == pytest.approx((-np.log(0.5) - 3 * np.log(0.7)) / 4, abs=1e-6)


def toy(n: int = 1200) -> tuple[np.ndarray, np.ndarray]:
    """Four clouds, one per label; half of the hallucinated rows say only "unsupported"."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, 4, n)
    x = rng.normal(size=(n, 3)) * 0.5 + np.eye(4)[label][:, :3] * 3
    target = np.where(np.isin(label, (1, 2)) & (rng.random(n) < 0.5), UNSUPPORTED, label)
    return x, target


def test_fit_learns_and_saves(tmp_path: Path) -> None:
    x, target = toy()
    weight = np.ones(len(x))
    combiner = Combiner.fit(x[:800], target[:800], weight[:800], members=2, epochs=30)
    calibrated = combiner.calibrated(x[800:1000], target[800:1000], weight[800:1000])
    p = calibrated.predict_proba(x[1000:])
    assert p.sum(1) == pytest.approx(np.ones(200))
    truth = target[1000:]
    known = truth != UNSUPPORTED
    assert (p.argmax(1)[known] == truth[known]).mean() > 0.9
    assert np.isin(p.argmax(1)[~known], (1, 2)).mean() > 0.9
    calibrated.save(tmp_path / "c.safetensors")
    assert np.array_equal(Combiner.load(tmp_path / "c.safetensors").predict_proba(x), calibrated.predict_proba(x))
    again = Combiner.fit(x[:800], target[:800], weight[:800], members=2, epochs=30)
    assert all(np.array_equal(again.tensors[k], combiner.tensors[k]) for k in combiner.tensors)


def test_noise_in_training_keeps_one_feature_from_being_sure() -> None:
    x, target = np.repeat([[1.0], [-1.0]], 400, axis=0), np.repeat([0, 3], 400)
    p = Combiner.fit(x, target, np.ones(800), members=2, epochs=60).predict_proba(np.array([[1.0], [0.5]]))
    # two normal clouds of variance 1 at +1 and −1: log P(+|x) / P(−|x) = 2x
    assert p[:, 0] == pytest.approx(1 / (1 + np.exp([-2.0, -1.0])), abs=0.04)


def test_unread_features_change_nothing(tmp_path: Path) -> None:
    x, target = toy(300)
    combiner = Combiner.fit(x, target, np.ones(len(x)), members=1, epochs=2, hidden=8, unread=[1])
    combiner.save(tmp_path / "c.safetensors")
    other = x.copy()
    other[:, 1] = 1e6
    for c in (combiner, Combiner.load(tmp_path / "c.safetensors")):
        assert np.array_equal(c.predict_proba(other), combiner.predict_proba(x))
    other[:, 0] += 1.0
    assert not np.allclose(combiner.predict_proba(other), combiner.predict_proba(x))


def test_network_equals_torch() -> None:
    x, target = toy(300)
    combiner = Combiner.fit(x, target, np.ones(len(x)), members=1, epochs=1, hidden=8)
    t = {k: torch.tensor(v) for k, v in combiner.tensors.items()}
    h = torch.tensor(np.clip((x - combiner.tensors["mean"]) / combiner.tensors["scale"], -5, 5), dtype=torch.float32)
    for k in "12":
        h = torch.nn.functional.gelu(h @ t[f"m0.w{k}"].T + t[f"m0.b{k}"], approximate="tanh")
    expected = (h @ t["m0.w3"].T + t["m0.b3"]).softmax(-1).numpy()
    assert combiner.predict_proba(x) == pytest.approx(expected, abs=1e-5)


def test_calibration_undoes_overconfidence() -> None:
    x, target = toy(600)
    weight = np.ones(len(x))
    combiner = Combiner.fit(x, target, weight, members=1, epochs=20)
    last = {name: combiner.tensors[name] * 20 for name in ("m0.w3", "m0.b3")}
    calm, sharp = (c.calibrated(x, target, weight) for c in (combiner, Combiner({**combiner.tensors, **last})))
    # logits 20 times as large need a temperature 20 times as high, and give the same probabilities
    assert float(sharp.tensors["temperature"]) == pytest.approx(20 * float(calm.tensors["temperature"]), rel=0.02)
    assert sharp.predict_proba(x) == pytest.approx(calm.predict_proba(x), abs=5e-3)


def test_votes_of_by_hand() -> None:
    p = np.array([[0.5, 0.3, 0.16, 0.04], [0.997, 0.001, 0.001, 0.001]])
    expected = [[*np.log([0.5, 0.3, 0.16]), -3.0], [np.log(0.997), -3.0, -3.0, -3.0]]  # log 0.04 = −3.2
    assert votes_of(np.log(p) + 7.0) == pytest.approx(np.array(expected))


def test_decision_by_hand() -> None:
    p = np.array([
        [0.5, 0.3, 0.1, 0.1],  # 0.5 / 0.9 = 0.556
        [0.1, 0.2, 0.3, 0.4],  # no fact is the most probable
        [0.3, 0.2, 0.4, 0.1],  # 0.333: unverifiable beats contradictory
        [0.3, 0.2, 0.2, 0.3],  # a tie with no fact is factual: 0.3 / 0.7 = 0.43
    ])  # fmt: skip
    assert decide(p, 0.5).tolist() == [0, 3, 2, 1]
    assert decide(p, 0.6).tolist() == [1, 3, 2, 1]
    assert decide(p, 0.4).tolist() == [0, 3, 2, 0]


def test_row_weights_by_hand() -> None:
    # source a: 4 rows, 1 supported, 3 hallucinated; source b: 1 supported. power ½: a cell weighs 4^½ / its rows
    weights = row_weights(["a", "a", "a", "a", "b"], np.array([0, 1, 2, UNSUPPORTED, 0]))
    raw = np.array([2 / 1, 2 / 3, 2 / 3, 2 / 3, 1.0])
    assert weights == pytest.approx(raw / raw.mean())


def test_best_threshold_balances_sources() -> None:
    # supported rows score 0.7, others 0.4 in both sources: any threshold in (0.4, 0.7] is perfect
    p = np.array([[0.7, 0.3, 0.0, 0.0], [0.4, 0.6, 0.0, 0.0]] * 2)
    chosen = best_threshold(p, np.array([0, 1, 0, 2]), ["a", "a", "b", "b"])
    assert 0.4 < chosen <= 0.7
