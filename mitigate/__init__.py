"""Uses the signals of annotators and FEWL: rewards, correction, recipes, the command line.

The public names are imported when they are first asked for, so that importing this package stays light.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "annotators": ("load_annotator",),
    "engines": ("load_engine",),
    "fewl": ("pick_answers", "rank_models", "score_records"),
    "mitigate.cli.main": ("main",),
    "mitigate.icl": ("candidate_pool", "demonstrations"),
    "mitigate.inference.correct": ("best_of", "correct", "with_engine"),
    "mitigate.models": ("annotator_similarity",),
    "mitigate.rewards.reward": ("SentenceReward", "factuality"),  # which is for `trl grpo --reward_funcs`
    "mitigate.rl.control": ("Control", "JudgeLog"),
    "mitigate.rl.credit": ("Credit",),
    "mitigate.rl.dpo": ("MASK_DPO", "MaskDPOCollator"),
    "mitigate.rl.grpo": ("SentenceGRPOTrainer",),
    "mitigate.rl.preferences": ("build_pairs",),
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
