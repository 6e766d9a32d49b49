"""The guards of a run: the controller's equation, the alarm by hand, and both after an interruption."""

from types import SimpleNamespace

import pytest

pytest.importorskip("trl")

from mitigate.rl.control import Control, adapted, gap

RISING = [0.1, 0.2, 0.1, 0.2, 0.5, 0.6, 0.5, 0.6]


def test_controller_and_gap_by_hand():
    # KL twice the target: the error 1 is cut to 0.2, times 0.1; 10 % below it: −0.1 · 0.1.
    assert adapted(0.5, kl=0.2, target=0.1) == pytest.approx(0.51)
    assert adapted(0.5, kl=0.09, target=0.1) == pytest.approx(0.495)
    assert gap(RISING, [0.3] * 8)
    assert not gap(RISING, [0.3] * 7 + [0.1])  # the judge agrees
    assert not gap(RISING[:4], [0.3] * 4)  # 0.15 and 0.15: the reward did not rise
    assert not gap([0.0, 1.0], [0.3, 0.3])  # too few to tell


@pytest.mark.parametrize(
    ("on_gap", "beta", "stops"), [("warn", 0.2, False), ("stop", 0.2, True), ("raise-kl", 0.4, False)]
)
def test_alarm_acts_once_and_survives_resuming(on_gap, beta, stops, caplog):
    rows = [{"reward": r, "judge/hallucination_rate": 0.3} for r in [*RISING, *RISING[:4]]]
    logged = {"beta": list[float]()}
    trainer = SimpleNamespace(beta=0.2, _metrics={"train": logged})
    flow = SimpleNamespace(should_training_stop=False)
    guard = Control(trainer, on_gap=on_gap, readings=8)
    for i, row in enumerate(rows):
        guard.on_log(None, SimpleNamespace(global_step=i), flow, row)
    guard.on_step_end(None, None, flow)
    assert (trainer.beta, flow.should_training_stop, logged["beta"]) == (beta, stops, [beta])
    assert caplog.text.count("step 7: the reward rises") == 1
    nothing = {"reward": None, "kl": None, "judge/hallucination_rate": 0.3}  # as TRL logs a step without a reward
    Control(trainer, kl_target=0.1, readings=1).on_log(None, SimpleNamespace(global_step=12), flow, nothing)
    again = SimpleNamespace(beta=0.2)
    Control(again, on_gap=on_gap, readings=8).on_train_begin(None, SimpleNamespace(log_history=rows), flow)
    assert again.beta == beta
    blind = Control(trainer, on_gap=on_gap, readings=8)
    blind.on_log(None, SimpleNamespace(global_step=0), flow, {"eval_reward": 1.0})
    assert "nothing logs" not in caplog.text
    for step in range(2):
        blind.on_log(None, SimpleNamespace(global_step=step), flow, {"reward": 1.0})
    assert caplog.text.count("nothing logs judge/hallucination_rate") == (on_gap != "warn")
    with pytest.raises(ValueError, match="beta: expected a number above 0 to start from"):
        Control(SimpleNamespace(beta=0), kl_target=0.1)
