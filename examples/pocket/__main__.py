"""The pocket world on the command line (simulated). From the checkout:

python -m examples.pocket make                              # writes out/pocket-world; --world names another folder
python -m examples.pocket run examples/pocket/rlhf.yaml     # `mitigate run`, where `oracle` is one more annotator
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.pocket.make import WORLD, load_world, make
from examples.pocket.oracle import Oracle
from mitigate.cli.main import main as mitigate

PROGRAM = "python -m examples.pocket"


def main(argv: Sequence[str] | None = None) -> int:
    """Make a world, or run a `mitigate` command that may ask its oracle; returns the exit code."""
    parser = argparse.ArgumentParser(prog=PROGRAM, add_help=False)
    parser.add_argument("--world", type=Path, default=Path("out/pocket-world"))
    args, rest = parser.parse_known_args(argv)
    program = f"{PROGRAM} --world {args.world}"
    if rest == ["make"]:
        make(args.world)
        return 0
    if not (args.world / WORLD).is_file():
        print(f"{PROGRAM}: no world in {args.world}; first: {program} make", file=sys.stderr)
        return 2
    return mitigate(rest, program=program, annotators={"oracle": Oracle(load_world(args.world))})


if __name__ == "__main__":
    sys.exit(main())
