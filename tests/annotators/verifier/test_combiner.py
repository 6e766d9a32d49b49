"""The combiner: its loss by hand, its network beside torch, calibration and the decision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from annotators.verifier.combiner import SHARE, UNSUPPORTED, Combiner, decide, multitask_loss, votes_of


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


def test_votes_of_the_encoder_are_added() -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, 4, 400)
    x = rng.normal(size=(400, 3))  # says nothing
    beside = 2.0 * np.eye(4)[target] + rng.normal(size=(400, 4)) * 0.3
    combiner = Combiner.fit(x, target, np.ones(400), members=1, epochs=1, hidden=8)
    votes = votes_of(beside)
    calibrated = combiner.calibrated(x, target, np.ones(400), votes)
    assert (calibrated.predict_proba(x, votes).argmax(1) == target).mean() > 0.95
    t = calibrated.tensors
    z = (calibrated.logits(x) + SHARE * votes) / t["temperature"] + t["bias"]
    expected = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    assert calibrated.predict_proba(x, votes) == pytest.approx(expected, abs=1e-5)
