"""What SentenceGRPOTrainer relies on in TRL. Run it with every TRL that pyproject.toml allows:

    .ci/overlay .venv-trl trl==VERSION
    .venv-trl/bin/python -m pytest tests/mitigate/rl/test_grpo_contract.py

A failure here means that TRL moved its hook, not that the credit is wrong; each message says which promise broke.
"""

import inspect
from typing import Any

import pytest
import torch

from mitigate.rl.grpo import SentenceGRPOTrainer
from tests.helpers.grpo_common import config, dataset, tiny_model, tiny_tokenizer, vowel_reward

pytestmark = pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")


def moved(what):
    import trl

    return (
        f"trl {trl.__version__}: {what}. SentenceGRPOTrainer (mitigate/rl/grpo.py) replaces `advantages` in what "
        "GRPOTrainer._generate_and_score_completions returns and counts on this; adapt it or narrow the range in "
        "pyproject.toml."
    )


class Probe(SentenceGRPOTrainer):
    """Keeps the outputs of TRL's hook before and after the override."""

    stock: dict[str, Any]
    ours: dict[str, Any]

    def _generate_and_score_completions(self, inputs):
        self.ours = super()._generate_and_score_completions(inputs)
        return self.ours

    def _token_advantages(self, shared_B, ids_BT):
        self.stock = {"advantages": shared_B, "completion_ids": ids_BT}
        return super()._token_advantages(shared_B, ids_BT)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """After one step; tests may compute gradients anew, but take no step."""
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    args = config(tmp_path_factory.mktemp("run"), max_steps=1)
    trainer = Probe(model, vowel_reward, args, train_dataset=dataset(), processing_class=tokenizer)
    trainer.train()
    return trainer


def test_the_hook_exists_with_its_signature():
    from trl import GRPOTrainer

    hook = getattr(GRPOTrainer, "_generate_and_score_completions", None)
    assert hook is not None, moved("the method _generate_and_score_completions is gone")
    assert list(inspect.signature(hook).parameters) == ["self", "inputs"], moved("the hook takes other arguments")
    given = list(inspect.signature(GRPOTrainer._calculate_rewards).parameters)
    assert given == ["self", "inputs", "prompts", "completions", "completion_ids_list"], moved("rewards take others")
    for name in ("_prepare_inputs", "_compute_loss"):
        assert hasattr(GRPOTrainer, name), moved(f"the method {name} is gone")


def test_outputs_and_attributes_that_are_read(trainer):
    assert trainer.stock["advantages"].dim() == 1, moved("its advantages are no longer (B,)")
    shape = trainer.ours["completion_ids"].shape
    assert trainer.ours["advantages"].shape == shape, moved("completion_ids are no longer (B, T)")
    assert {"completion_mask", "prompt_ids", "prompt_mask"} <= trainer.ours.keys(), moved("the output lost its masks")
    for name in (
        "num_generations", "num_generations_eval", "scale_rewards", "reward_weights", "reward_func_names",
        "eos_token_ids", "multi_objective_aggregation", "_tokenizer",
    ):  # fmt: skip
        assert hasattr(trainer, name), moved(f"the attribute {name} is gone")
    assert trainer.scale_rewards in ("group", "batch", "none"), moved("scale_rewards has other values")
    assert "sentences/credited_tokens" in trainer.state.log_history[0], moved("_metrics no longer reaches the log")


def loss_and_gradient(trainer, advantages):
    """Loss of the last batch and gradient of the output layer."""
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, {**trainer.ours, "advantages": advantages})
    loss.backward()
    return float(loss.detach()), trainer.model.lm_head.weight.grad.clone()


def test_the_loss_takes_token_advantages(trainer):
    """(B,) and the same numbers spread over (B, T) give one loss and one gradient."""
    trainer.model.train()
    advantages = torch.linspace(-1, 1, len(trainer.ours["completion_ids"]))
    spread = advantages[:, None].expand(trainer.ours["completion_ids"].shape).contiguous()
    stock, stock_gradient = loss_and_gradient(trainer, advantages)
    ours, our_gradient = loss_and_gradient(trainer, spread)
    assert ours == pytest.approx(stock, abs=1e-6), moved("_compute_loss treats (B, T) advantages differently")
    assert torch.allclose(our_gradient, stock_gradient, atol=1e-7), moved("_compute_loss mixes tokens of (B, T)")


def test_an_advantage_reaches_its_own_token_only(trainer):
    """∂loss of an advantage at one token = −A · ∂logp(token) / normaliser, computed here from the logits."""
    trainer.model.train()
    batch = trainer.ours
    b, t, value = 1, 5, 2.5
    advantages = torch.zeros(batch["completion_ids"].shape)
    advantages[b, t] = value
    _, gradient = loss_and_gradient(trainer, advantages)

    model = trainer.model
    model.zero_grad()
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    hidden = model.model(input_ids=ids, attention_mask=mask).last_hidden_state
    at = batch["prompt_ids"].shape[1] + t
    logits = hidden[b, at - 1] @ model.lm_head.weight.T / trainer.args.temperature
    logp = logits.log_softmax(-1)[ids[b, at]]
    (-value * logp / batch["completion_mask"].sum()).backward()  # dapo: one sum over all tokens
    assert gradient.abs().max() > 0, moved("a token's advantage has no effect")
    assert torch.allclose(gradient, model.lm_head.weight.grad, atol=1e-6), moved("credit leaks to other tokens")


def test_a_hook_that_moved_is_named(trainer, monkeypatch):
    """The trainer itself notices at the first batch, and says so."""
    from trl import GRPOTrainer

    fine = dict(trainer.ours, advantages=trainer.stock["advantages"])
    rows = [{"prompt": "x"}] * len(fine["advantages"])
    for broken in ({"completion_ids": fine["completion_ids"]}, {**fine, "advantages": trainer.ours["advantages"]}):
        monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", lambda self, inputs, out=broken: dict(out))
        with pytest.raises(RuntimeError, match=r"trl .* moved the hook.*holds no `advantages` \(B,\)"):
            trainer._generate_and_score_completions(rows)
