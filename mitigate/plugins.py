"""Rewards that TRL's command line takes by their dotted name, without any code:

    trl grpo --reward_funcs mitigate.plugins.factuality --model_name_or_path … --dataset_name …

The data set needs a column ``reference``; ``question`` and ``points`` are read where they are there.
``MITIGATE_REWARD_CONFIG=FILE`` names a YAML (``reward_config.py``); it is checked when the plugin is looked up, which
TRL does before it loads a model. The annotator is loaded at the first call.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mitigate.reward_config import RewardFile, build_reward, read_config

if TYPE_CHECKING:
    from mitigate.rewards import SentenceReward
    from mitigate.segments import SentenceScore

    factuality: LazyReward

CONFIG_VARIABLE = "MITIGATE_REWARD_CONFIG"


class LazyReward:
    """A `SentenceReward` that is built when it is first called.

    Args:
        name: Its `__name__`, which trainers log it under.
        config: A checked configuration.
    """

    def __init__(self, name: str, config: RewardFile) -> None:
        self.__name__ = name
        self.config = config
        self._reward: SentenceReward | None = None

    @property
    def reward(self) -> SentenceReward:
        """The reward itself; asking for it loads the annotator."""
        if self._reward is None:
            self._reward = build_reward(self.config, self.__name__)
        return self._reward

    def __call__(self, completions: Sequence[Any], **arguments: Any) -> list[SentenceScore | None]:
        """As `SentenceReward.__call__`."""
        return self.reward(completions, **arguments)


def __getattr__(name: str) -> LazyReward:
    """`factuality`, made from the environment at the first look-up and kept.

    Raises:
        UsageError: MITIGATE_REWARD_CONFIG names a file that is missing or wrong.
        AttributeError: There is no such plugin.
    """
    if name != "factuality":
        raise AttributeError(f"module {__name__!r} has no plugin {name!r}; there is 'factuality'")
    path = os.environ.get(CONFIG_VARIABLE)
    plugin = LazyReward(name, read_config(path) if path else RewardFile())
    globals()[name] = plugin
    return plugin
