"""Runs the contract of the TRL hook, and the trainer's tests, on several TRL versions.

    python -m benchmarks.trl_versions [VERSION ...]      default: 1.10.0 1.16.0

Each version is laid over .venv in an environment of its own (`.ci/overlay`), which is kept in .venv-trl-VERSION. Exit
code 1 where one fails. CI runs the contract and the equations on the oldest version (`.ci/run`); this runs everything.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = [
    "tests/mitigate/rl/test_grpo_contract.py",
    "tests/mitigate/rl/test_grpo.py",
    "tests/mitigate/rl/test_dpo.py",
    "tests/mitigate/rewards/test_rewards_trl.py",
]


def run(version: str) -> bool:
    """Tests on one version; what pytest says goes to standard output."""
    directory = f".venv-trl-{version}"
    # old versions import requests without asking for it
    subprocess.run([".ci/overlay", directory, f"trl=={version}", "requests"], cwd=ROOT, check=True)
    print(f"== trl {version}", flush=True)
    command = [f"{directory}/bin/python", "-m", "pytest", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(command, cwd=ROOT).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("versions", nargs="*", default=["1.10.0", "1.16.0"], metavar="VERSION")
    failed = [version for version in parser.parse_args().versions if not run(version)]
    print(f"failed: {', '.join(failed)}" if failed else "all versions pass")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
