"""The combiner: a small ensemble of two-layer networks from alignment features to the four labels, calibrated.

Trained on four-way and two-way labels at once: a row labelled only "unsupported" asks for P(contradictory) +
P(unverifiable), whichever way they share it. Stored as safetensors. Knows nothing of text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from annotators.records import LABELS

if TYPE_CHECKING:
    import torch


SUPPORTED, CONTRADICTORY, UNVERIFIABLE, NO_FACT, UNSUPPORTED = range(len(LABELS) + 1)
"""Positions in LABELS; UNSUPPORTED is the target of a row known only to be contradictory or unverifiable."""
TARGET: dict[str, int] = {**{str(label): i for i, label in enumerate(LABELS)}, "unsupported": UNSUPPORTED}
"""The target of each label of a data file."""
NOISE = 1.0
"""Standard deviation of the noise on standardised features in training: no single feature makes a network sure."""
DOUBT, SHARE = 3.0, 0.2
"""The pair encoder's log-probabilities count down to −DOUBT and SHARE times, since on new sources it is often sure and
wrong (docs/LOG.md). So its vote is often known to be without effect before it is asked (``judging.foregone``)."""


def log_chances(logits_N4: torch.Tensor) -> torch.Tensor:
    """(N, 5) log-probabilities of the four labels and, last, of "contradictory or unverifiable"."""
    import torch

    log_p = logits_N4.log_softmax(-1)
    return torch.cat([log_p, torch.logsumexp(log_p[:, 1:3], -1, keepdim=True)], -1)


def multitask_loss(logits_B4: torch.Tensor, target_B: torch.Tensor, weight_B: torch.Tensor) -> torch.Tensor:
    """Weighted mean cross-entropy; targets are int64 in 0 … 4, weights ≥ 0, logits in the order of LABELS."""
    log_p_B = log_chances(logits_B4).gather(-1, target_B[:, None])[:, 0]
    return -(log_p_B * weight_B).sum() / weight_B.sum()


class Combiner:
    """Features (n, F) → probabilities (n, 4).

    Args:
        tensors: "mean", "scale" (F,); per member m "m.w1" (H, F), "m.b1", "m.w2" (H, H), "m.b2", "m.w3" (4, H),
            "m.b3"; "temperature" () > 0 and "bias" (4,) are the calibration; "encoder" () weighs the pair encoder's
            votes beside the members' logits; "threshold" (), see ``decide``.
    """

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.tensors = {name: np.asarray(value, dtype=np.float32) for name, value in tensors.items()}
        self.members = sorted({name.split(".")[0] for name in tensors if "." in name})

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Mean logits of the members before calibration, (n, 4)."""
        t = self.tensors
        x = np.clip((features.astype(np.float32) - t["mean"]) / t["scale"], -5.0, 5.0)
        total = np.zeros((len(x), len(LABELS)), np.float32)
        for m in self.members:
            h = _gelu(x @ t[f"{m}.w1"].T + t[f"{m}.b1"])
            h = _gelu(h @ t[f"{m}.w2"].T + t[f"{m}.b2"])
            total += h @ t[f"{m}.w3"].T + t[f"{m}.b3"]
        return total / len(self.members)

    def predict_proba(self, features: np.ndarray, votes: np.ndarray | None = None) -> np.ndarray:
        """Calibrated probabilities, (n, 4) in the order of LABELS, float64, rows sum to 1.

        ``votes``, (n, 4) or (4,) in [−DOUBT, 0], are the pair encoder's (``votes_of``); None without one.
        """
        z = self._combined(features, votes) / self.tensors["temperature"] + self.tensors["bias"]
        z = np.exp(z - z.max(1, keepdims=True))
        return z / z.sum(1, keepdims=True)

    def _combined(self, features: np.ndarray, votes: np.ndarray | None) -> np.ndarray:
        z = self.logits(features).astype(np.float64)
        return z if votes is None else z + self.tensors["encoder"] * votes

    def decide(self, probabilities: np.ndarray) -> np.ndarray:
        """Positions in LABELS, (n,): see :func:`decide`."""
        return decide(probabilities, float(self.tensors["threshold"]))

    @classmethod
    def fit(
        cls, features: np.ndarray, target: np.ndarray, weight: np.ndarray, *, members: int = 5, hidden: int = 64,
        epochs: int = 30, seed: int = 0, unread: Sequence[int] = (),
    ) -> Combiner:  # fmt: skip
        """Train the members, each from its own seed, on features (n, F), targets (n,) in LABELS or UNSUPPORTED, weights
        ≥ 0.

        Calibration is neutral until ``calibrated``; ``unread`` columns of the features are left out by an infinite
        scale.
        """
        mean, scale = features.mean(0), features.std(0) + 1e-6
        scale[list(unread)] = np.inf
        tensors: dict[str, np.ndarray] = {
            "mean": mean, "scale": scale, "temperature": np.array(1.0), "bias": np.zeros(len(LABELS)),
            "encoder": np.array(SHARE), "threshold": np.array(0.5),
        }  # fmt: skip
        x = np.clip((features - mean) / scale, -5.0, 5.0)
        for m in range(members):
            tensors |= _fit_member(x, target, weight, hidden, epochs, seed + m, f"m{m}")
        return cls(tensors)

    def calibrated(
        self, features: np.ndarray, target: np.ndarray, weight: np.ndarray, votes: np.ndarray | None = None
    ) -> Combiner:
        """Fit temperature and class biases on held-out rows; arguments as for ``fit`` and ``predict_proba``.

        Source: between temperature and vector scaling of Guo et al. 2017, §4.2.
        """
        import torch

        logits = torch.tensor(self._combined(features, votes))
        log_t = torch.zeros((), dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(len(LABELS), dtype=torch.float64, requires_grad=True)
        targets, weights = torch.tensor(target), torch.tensor(weight, dtype=torch.float64)
        optimizer = torch.optim.LBFGS([log_t, bias], max_iter=200, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = multitask_loss(logits / log_t.exp() + bias, targets, weights) + 1e-3 * bias.square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return Combiner({**self.tensors, "temperature": log_t.exp().detach().numpy(), "bias": bias.detach().numpy()})

    def with_threshold(self, threshold: float) -> Combiner:
        """The same with another threshold for "supported"."""
        return Combiner({**self.tensors, "threshold": np.array(threshold)})

    def save(self, path: Path) -> None:
        """Write one safetensors file."""
        from safetensors.numpy import save_file

        save_file({name: np.array(value, order="C") for name, value in self.tensors.items()}, path)

    @classmethod
    def load(cls, path: Path) -> Combiner:
        """Read what ``save`` wrote."""
        from safetensors.numpy import load_file

        return cls(load_file(path))


def votes_of(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities (n, 4) of the pair encoder's logits, none below −DOUBT; float64."""
    z = logits.astype(np.float64)
    z -= z.max(1, keepdims=True)
    return np.asarray(np.maximum(z - np.log(np.exp(z).sum(1, keepdims=True)), -DOUBT))


def decide(probabilities: np.ndarray, threshold: float) -> np.ndarray:
    """(n,) positions in LABELS: no_fact where it is the most probable, else supported or the likelier hallucination.

    Among factual labels "supported" needs P(supported) / (1 − P(no_fact)) ≥ threshold.
    """
    p = np.asarray(probabilities)
    share = p[:, 0] / np.maximum(1.0 - p[:, 3], 1e-9)
    wrong = 1 + p[:, 1:3].argmax(1)
    return np.where(p[:, 3] > p[:, :3].max(1), 3, np.where(share >= threshold, 0, wrong))


def _gelu(x: np.ndarray) -> np.ndarray:
    """GELU, tanh form (Hendrycks & Gimpel 2016)."""
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def _fit_member(
    x: np.ndarray, target: np.ndarray, weight: np.ndarray, hidden: int, epochs: int, seed: int, name: str
) -> dict[str, np.ndarray]:
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(seed)  # rows and noise
    torch.manual_seed(seed)  # initial weights and dropout
    net = nn.Sequential(
        nn.Linear(x.shape[1], hidden), nn.GELU("tanh"), nn.Dropout(0.4),
        nn.Linear(hidden, hidden), nn.GELU("tanh"), nn.Dropout(0.4), nn.Linear(hidden, len(LABELS)),
    )  # fmt: skip
    inputs, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(target)
    weights = torch.tensor(weight, dtype=torch.float32)
    read = inputs.abs().amax(0) > 0  # features left out get no noise either
    batch = min(256, len(x))
    steps = max(1, epochs * (len(x) // batch))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(steps):
        rows = torch.randint(0, len(x), (batch,), generator=generator)
        noise = NOISE * torch.randn(batch, x.shape[1], generator=generator) * read
        loss = multitask_loss(net(inputs[rows] + noise), targets[rows], weights[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    arrays = [p.detach().numpy().copy() for p in net.parameters()]
    return dict(zip((f"{name}.{k}" for k in ("w1", "b1", "w2", "b2", "w3", "b3")), arrays, strict=True))
