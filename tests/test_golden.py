"""Every command on small inputs gives what it gave before: outputs, exit codes and messages, kept in `tests/golden/`.

`GOLDEN=write pytest tests/test_golden.py` writes them anew; read the change in the diff and justify it in the commit.
Scores are kept to three decimals and compared with a tolerance of 0.01: they differ a little between processors.
"""

import json
import math
import os
import re
from pathlib import Path

import pytest

from mitigate.cli.main import main
from tests.helpers.jsonl import read_rows

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"

# Name → command lines; IN holds the inputs, OUT is a folder that the lines of one name share.
COMMANDS = json.loads((GOLDEN / "commands.json").read_text(encoding="utf-8"))


def plain(text: str) -> str:
    text = re.sub(r"\b\d+(\.\d+)?( sentences)?(/| )(s|seconds?)\b", "TIME", text)
    text = re.sub(r"\d+\.\d+(e-\d+)?", "N", text)  # figures are compared in the files
    lines = [line.rstrip() for line in text.splitlines()]
    return "\n".join(line for line in lines if not re.match(r"(annotating|judging): |Loading weights", line))


def run(lines: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    said = []
    for line in lines:
        try:
            code = main(line.split())
        except SystemExit as stop:
            code = int(stop.code or 0)
        shown = capsys.readouterr()
        # Bars of loading are off unless another test of this process loaded a model before; slow work tells progress.
        told = [row for row in plain(shown.err).splitlines() if row and not re.match(r"Loading |\w+ing: \d", row)]
        said.append({"command": line, "exit": code, "out": plain(shown.out), "err": "\n".join(told)})
    paths = [
        path for path in sorted(Path("OUT").rglob("*.json*")) if not re.search(r"\.log\.jsonl$|\.sqlite", path.name)
    ]
    files = {p.name: read_rows(p) if p.suffix == ".jsonl" else json.loads(p.read_text()) for p in paths}
    return json.loads(json.dumps(rounded({"said": said, "files": files})))


def rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items() if key not in VARYING}
    return [rounded(item) for item in value] if isinstance(value, list) else value


VARYING = {"seconds", "fingerprint", "annotator", "versions", "git", "started", "commit", "made", "date"}


def differences(old: object, new: object, where: str = "") -> list[str]:
    if isinstance(old, float | int) and isinstance(new, float | int) and not isinstance(old, bool):
        return [] if math.isclose(old, new, abs_tol=0.01) else [f"{where}: {old} is now {new}"]
    if isinstance(old, dict) and isinstance(new, dict):
        return [d for key in old.keys() | new.keys() for d in differences(old.get(key), new.get(key), f"{where}.{key}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [d for i, (a, b) in enumerate(zip(old, new, strict=True)) for d in differences(a, b, f"{where}[{i}]")]
    same = old == new
    if isinstance(old, str) and isinstance(new, str):
        # Another processor may round a percentage to its neighbour, and the numbers that a fingerprint is made of.
        old, new = (re.sub(r"\b[0-9a-f]{16}\b", "FINGERPRINT", text) for text in (old, new))
        percent = re.compile(r"(?<![\d.])\d+(?=\s*%)")
        pairs = zip(percent.findall(old), percent.findall(new), strict=False)
        same = percent.sub("", old) == percent.sub("", new) and all(abs(int(a) - int(b)) <= 1 for a, b in pairs)
    return [] if same else [f"{where}: {old!r} is now {new!r}"]


def test_differences_forgive_rounding_only():
    assert differences({"a": 0.344, "b": "57 % or 3 of 4"}, {"a": 0.345, "b": "56 % or 3 of 4"}) == []
    for new in ("55 % or 3 of 4", "57 % or 2 of 4", "57 % or 3 of 4.", "5 % or 3 of 4"):
        assert len(differences("57 % or 3 of 4", new)) == 1


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_output_is_unchanged(name, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("OUT").mkdir()
    Path("IN").symlink_to(GOLDEN / "inputs")
    Path("examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("NO_COLOR", "1")
    found = run(COMMANDS[name], capsys)
    kept = GOLDEN / f"{name}.json"
    if os.environ.get("GOLDEN") == "write":
        kept.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    assert differences(json.loads(kept.read_text(encoding="utf-8")), found) == []


@pytest.mark.slow
def test_fold_zero_figures_are_unchanged(tmp_path: Path) -> None:
    """300 held-out rows of the labelled data; the figures only are kept, no text."""
    data = ROOT.parent / "shared" / "data"
    if not data.is_dir():
        pytest.skip("skipped: data not here")
    files = [str(p) for folder in ("sentences", "binary") for p in sorted((data / folder).glob("*.jsonl"))]
    out, kept = tmp_path / "figures.json", GOLDEN / "fold0.json"
    argv = ["evaluate", "--annotator", "embedded", "--fold", "test", "--limit", "300", "--output", str(out)]
    assert main([*argv, "--input", *files]) == 0
    figures = json.loads(out.read_text())
    found = {k: figures[k] for k in ("overall", "mean_over_sources")}
    found["sources"] = {k: {n: v[n] for n in ("n", "auc", "accuracy")} for k, v in figures["sources"].items()}
    if os.environ.get("GOLDEN") == "write":
        kept.write_text(json.dumps(rounded(found), indent=1) + "\n", encoding="utf-8")
    assert differences(json.loads(kept.read_text(encoding="utf-8")), rounded(found)) == []
