"""Runs the contract of the TRL hook, and the trainer's tests, on several TRL versions.

    python -m benchmarks.trl_versions [VERSION ...]      default: 1.10.0 1.16.0

Each version is laid over the running environment in a temporary one of its own (pip, no other dependency changes).
Exit code 1 where one fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS = ["tests/test_grpo_contract.py", "tests/test_grpo.py"]


def run(version: str, directory: Path) -> bool:
    """Tests on one version; what pytest says goes to standard output."""
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    python = directory / "bin" / "python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    own = Path(subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip())
    (own / "base.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--force-reinstall",
        f"trl=={version}",
    ]
    subprocess.run(pip, check=True)
    if subprocess.run([str(python), "-c", "import requests"], capture_output=True).returncode:
        # old versions import it without asking for it
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "requests"], check=True)
    print(f"== trl {version}", flush=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([str(python), "-m", "pytest", "-p", "no:cacheprovider", *TESTS], cwd=ROOT, env=env)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("versions", nargs="*", default=["1.10.0", "1.16.0"], metavar="VERSION")
    failed = []
    for version in parser.parse_args().versions:
        with tempfile.TemporaryDirectory() as directory:
            if not run(version, Path(directory)):
                failed.append(version)
    print(f"failed: {', '.join(failed)}" if failed else "all versions pass")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
