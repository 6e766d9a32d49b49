"""Models that judge stay whole while DeepSpeed ZeRO-3 divides the model that is trained in the same process.

transformers divides every model that is loaded while a ZeRO-3 configuration is alive, and a divided one can't be run
outside DeepSpeed ("'weight' must be 2-D").
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undivided() -> Iterator[None]:
    """Inside, models are loaded whole; imports neither transformers nor DeepSpeed."""
    module = sys.modules.get("transformers.integrations.deepspeed")
    if module is None or not module.is_deepspeed_zero3_enabled():
        yield
        return
    config = module._hf_deepspeed_config_weak_ref()  # there is a way to set and to unset it, none to read it
    module.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        module.set_hf_deepspeed_config(config)
