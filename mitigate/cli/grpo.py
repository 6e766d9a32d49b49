"""`mitigate grpo`: `trl grpo`, its options and its YAML, with the trainer that credits sentences.

    mitigate grpo --model_name_or_path … --dataset_name … --reward_funcs mitigate.factuality --gamma 0.5 --output_dir …
    accelerate launch --config_file recipes/accelerate/zero2.yaml -m mitigate.cli grpo …

The fields of ``Credit`` (mitigate/rl/credit.py) are options too. TRL's own script runs, with another trainer in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from mitigate.cli.options import Subparsers, add_command
from mitigate.io import usage


def add_parser(subparsers: Subparsers) -> None:
    """Add the command to the list; TRL's parser reads its options."""
    more = (
        "All options are those of `trl grpo`, with --gamma, --sequence_share, --eos, --thinking, --baseline, --clip "
        "and --rollouts for the credit of sentences; `mitigate grpo --help` lists them where TRL is installed."
    )
    parser = add_command(subparsers, "grpo", "Run TRL's GRPO script with token credit from sentences.", more, "")
    parser.set_defaults(run=lambda args: run(["--help"]))


def run(words: Sequence[str]) -> int:
    from unittest import mock

    with usage("grpo needs TRL, pip install 'hallucination-toolkit[trl]': ", ImportError):
        import trl
        from trl.scripts import grpo

        from mitigate.rl.grpo import SentenceGRPOTrainer
    from mitigate.rl.credit import Credit

    kinds: Any = (grpo.GRPOScriptArguments, trl.GRPOConfig, trl.ModelConfig, trl.DatasetMixtureConfig, Credit)
    parser = trl.TrlParser(kinds, prog="mitigate grpo")
    with usage("grpo: ", (OSError, ValueError)):
        *given, credit = parser.parse_args_and_config(list(words))
    with mock.patch.object(trl, "GRPOTrainer", partial(SentenceGRPOTrainer, credit=credit)):
        grpo.main(*given)
    return 0
