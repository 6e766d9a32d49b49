"""Guards of a run against its own reward: an adaptive weight of the KL, and an alarm when a held-out judge disagrees.

    trainer.add_callback(Control(trainer, kl_target=0.05, on_gap="raise-kl"))

Both read what the trainer logs, so they go on where a resumed run stopped. The first needs GRPO's `beta` above 0 (TRL
keeps no reference model without it), the second ``JudgeLog`` among the reward functions.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from transformers import TrainerCallback

logger = logging.getLogger(__name__)
OnGap = Literal["warn", "stop", "raise-kl"]
JUDGED = "judge/hallucination_rate"


def adapted(beta: float, kl: float, target: float) -> float:
    """β (1 + 0.1 · clip(KL / target − 1, −0.2, 0.2)) (Ziegler et al. 2019, "Fine-Tuning … from Human Preferences")."""
    return beta * (1 + 0.1 * min(0.2, max(-0.2, kl / target - 1)))


def gap(rewards: Sequence[float], rates: Sequence[float]) -> bool:
    """Whether the reward rose from the first to the second half while the judge's hallucination rate did not fall.

    Both have one value for each reading, at least two a half. The reward rose where the means differ by more than two
    standard errors (Welch).
    """
    half = len(rewards) // 2
    if half < 2:
        return False
    early, late = rewards[:half], rewards[-half:]
    error = ((statistics.variance(early) + statistics.variance(late)) / half) ** 0.5
    rose = statistics.fmean(late) - statistics.fmean(early) > 2 * error
    return rose and statistics.fmean(rates[-half:]) >= statistics.fmean(rates[:half])


class JudgeLog:
    """A reward function that scores nothing: at every so many steps a held-out judge logs what it finds in the answers
    that are learned, which come before continuations of them.

        reward_funcs=[reward, JudgeLog(SentenceReward(other, name="judge"), every=10)]  # reward_weights=[1.0, 0.0]
    """

    __name__ = "judge"
    SHOWN = ("hallucination_rate", "share_supported", "share_unsure", "judged_share")
    """Its other figures are of the text, and the reward logs them."""

    def __init__(self, judge: Callable[..., Any], every: int) -> None:
        self.judge, self.every, self.last = judge, every, -1

    def ended_by(self, eos_token_ids: Sequence[int]) -> None:
        if tell := getattr(self.judge, "ended_by", None):
            tell(eos_token_ids)

    def __call__(
        self, completions: Sequence[Any], log_metric: Callable[[str, float], None], trainer_state: Any, **arguments: Any
    ) -> list[None]:
        """None for each completion: a number, even of weight 0, would make TRL count unscored answers as 0."""

        def log(name: str, value: float) -> None:
            if name.removeprefix("judge/") in self.SHOWN:
                log_metric(name, value)

        step = trainer_state.global_step
        # Not the steps that it divides: answers may come every few steps, and a run that goes on begins anywhere.
        if self.last < 0 or step - self.last >= self.every:  # every batch would have to fill the columns of log_extra
            self.last = step
            self.judge(completions=completions, **arguments | {"log_metric": log, "log_extra": None})
        return [None] * len(completions)


class Control(TrainerCallback):
    """Sets the trainer's ``beta`` after every logged step, and looks for a gap after every reading of the judge.

    Args:
        trainer: A GRPO trainer; ValueError where its β is 0 and should be changed.
        kl_target: KL to the starting model that β is steered to, as the trainer logs it; None: β stays.
        on_gap: What follows a gap: a warning, the end of training after it, or one with β doubled after it.
        readings: Of the judge, the last ones, that are compared; after an alarm as many new ones are waited for.
    """

    def __init__(
        self, trainer: Any, *, kl_target: float | None = None, on_gap: OnGap = "warn", readings: int = 20
    ) -> None:
        if trainer.beta == 0 and (kl_target is not None or on_gap == "raise-kl"):
            raise ValueError("beta: expected a number above 0 to start from, since KL is to be controlled, got 0")
        self.trainer, self.kl_target, self.on_gap, self.readings = trainer, kl_target, on_gap, readings
        self._seen: list[tuple[float, float]] = []
        self._logged = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take up what an interrupted run had logged."""
        for row in state.log_history:
            self._step(row)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """One logged step."""
        if "reward" in (logs or {}):  # and not of an evaluation
            if self.on_gap != "warn" and not self._logged and JUDGED not in logs:
                logger.warning("on_gap=%r: nothing logs %s: reward_funcs needs a JudgeLog", self.on_gap, JUDGED)
            self._logged = True
        if self._step(logs or {}):
            logger.warning(
                "step %d: the reward rises and the judge's hallucination rate does not fall (%s)",
                state.global_step, self.on_gap,
            )  # fmt: skip
            control.should_training_stop |= self.on_gap == "stop"

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """β joins what the trainer logs."""
        if self.trainer.beta:
            self.trainer._metrics["train"]["beta"].append(self.trainer.beta)

    def _step(self, row: Mapping[str, Any]) -> bool:
        """Whether these figures complete a gap. TRL logs None where no answer of a step had a reward."""
        row = {name: value for name, value in row.items() if value is not None}
        if self.kl_target is not None and "kl" in row:
            self.trainer.beta = adapted(self.trainer.beta, row["kl"], self.kl_target)
        if not {"reward", JUDGED} <= row.keys():
            return False
        self._seen = [*self._seen[1 - self.readings :], (row["reward"], row[JUDGED])]
        found = len(self._seen) == self.readings and gap(*zip(*self._seen, strict=True))
        if found:
            self._seen = []
            self.trainer.beta *= 2 if self.on_gap == "raise-kl" else 1
        return found
