"""The benchmark programs start, and every result page is made of the JSON file beside it."""

import ast
import hashlib
import json
import re
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.jsonl import read_rows

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
PROGRAMS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")
PAGES = sorted(path.stem for path in RESULTS.glob("*.md"))
HOUSE = ("annotators", "benchmarks", "engines", "examples", "fewl", "mitigate")
HELP = """
import contextlib, io, runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    except SystemExit as end:
        print(name, end.code, "usage:" in said.getvalue())
"""


@pytest.fixture(scope="module", params=PAGES)
def page(request):
    path = RESULTS / f"{request.param}.json"
    assert path.is_file(), f"{path} is missing"
    return (RESULTS / f"{request.param}.md").read_text("utf-8"), json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_imports_what_exists(name):
    for node in ast.walk(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in HOUSE:
            path = ROOT / node.module.replace(".", "/")
            source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")
            for alias in node.names:
                assert re.search(rf"\b{alias.name}\b", source) or (path / f"{alias.name}.py").exists(), alias.name
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        assert "tests" not in [n.split(".")[0] for n in [*names, getattr(node, "module", None) or ""]]


@pytest.mark.slow
def test_every_program_has_help():
    done = subprocess.run([sys.executable, "-c", HELP, *PROGRAMS], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{name} 0 True" for name in PROGRAMS], done.stderr


def test_minimal_pairs_are_well_formed():
    """A passage has one split, by the hash of its name; a pair differs, and no sentence stands in its passage."""
    pairs = read_rows(ROOT / "benchmarks" / "minimal_pairs.jsonl")
    texts = [(p["passage_id"], p[key]) for p in pairs for key in ("true", "false", "kept") if p[key]]
    parts = Counter((p["kind"], p["split"]) for p in pairs)
    assert len(pairs) >= 600
    assert len(texts) == len(set(texts))
    assert len(parts) == 24, "twelve kinds in both splits"
    assert min(parts.values()) >= 20
    assert len({p["passage"] for p in pairs}) == len({p["passage_id"] for p in pairs}) >= 60
    for p in pairs:
        assert p["split"] == ("test" if int(hashlib.sha256(p["passage_id"].encode()).hexdigest(), 16) % 2 else "dev")
        assert 60 <= len(p["passage"].split()) <= 200
        assert p["true"] not in p["passage"]
        assert p["false"] not in p["passage"]


def test_other_benchmark_texts_are_well_formed():
    """Each short text has two supported, two contradictory and one unverifiable sentence; no talk is trained on."""
    texts, talk = (read_rows(ROOT / "benchmarks" / f"{name}.jsonl") for name in ("smoke_languages", "no_fact"))
    assert Counter(t["lang"] for t in texts) == {"zh": 15, "de": 8, "es": 8, "fr": 8, "ja": 8, "ru": 8}
    for t in texts:
        sentences = [*t["supported"], *t["contradictory"], *t["unverifiable"]]
        assert [len(t[label]) for label in ("supported", "contradictory", "unverifiable")] == [2, 2, 1]
        assert len(set(sentences)) == 5
        assert not any(s in t["passage"] for s in sentences)
    assert Counter((t["lang"], t["no_fact"]) for t in talk) == {
        ("en", True): 80, ("zh", True): 20, ("en", False): 50, ("zh", False): 10
    }  # fmt: skip
    assert len({t["sentence"] for t in talk}) == len(talk)
    sources = " ".join(" ".join(path.read_text("utf-8").split()) for path in (ROOT / "annotators").rglob("*.py"))
    assert [t["sentence"] for t in talk if len(t["sentence"]) > 20 and t["sentence"] in sources] == []


def test_proof_asks_and_reads_labels_back(tmp_path):
    """Whatever is marked unanswerable has no word of what is asked; labels find their arms, wrong ones are named."""
    proof = runpy.run_module("benchmarks.proof")
    said, questions, blind, labelled = (proof[name] for name in ("SAID", "questions", "blind", "labelled"))
    names = [f"{a}{b}" for a in ("Alder", "Beck", "Cole", "Dun", "Ebb") for b in ("ford", "holm", "ley", "mere")]
    text = "{0} Hall is a house of {1} rooms beside the river of {0}. " * 6
    rows = [{"id": n, "title": f"{n} Hall (house)", "text": text.format(n, i)} for i, n in enumerate(names, 10)]
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "wikipedia_2024.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    asked = questions(tmp_path)
    assert asked == questions(tmp_path)
    assert {r["id"] for r in asked} == set(names)
    assert all(300 <= len(r["reference"]) <= 600 and r["reference"].endswith(".") for r in asked)
    about = {q.format(title=f"{r['id']} Hall") for q in said["open"] for r in asked}
    assert 0 < sum(not r["answerable"] for r in asked) < 12
    for r in asked:
        own = any(r["question"] == q.format(title=f"{r['id']} Hall") for q in said["open"])
        assert r["answerable"] == own
        assert r["question"] not in about or own  # "Hall" stands in every text: none is asked about in another
        assert r["reference"] in r["prompt"][0]["content"]
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps(r) + "\n" for r in asked))
    blind(tmp_path, {a: [{"id": r["id"], "answer": f"{a} one. Two."} for r in asked] for a in ("X", "Y")}, 20)
    given = list(read_rows(tmp_path / "blind.jsonl"))
    assert len(given) == 20
    assert not any("arm" in r for r in given)
    (tmp_path / "done.jsonl").write_text("".join(json.dumps({**r, "label": "no_fact"}) + "\n" for r in given))
    found = labelled(tmp_path, tmp_path / "done.jsonl")
    assert {r["arm"] for r in found} == {"X", "Y"}
    assert all(r["sentence"] == "Two." or r["sentence"][0] == r["arm"] for r in found)
    with pytest.raises(SystemExit, match=r"number 0: expected one of supported, .*got None"):
        labelled(tmp_path, tmp_path / "blind.jsonl")


def test_limits_of_benchmarks_and_pages():
    lines = sum((ROOT / "benchmarks" / f"{name}.py").read_text("utf-8").count("\n") for name in PROGRAMS)
    words = sum(len((RESULTS / f"{name}.md").read_text("utf-8").split()) for name in PAGES)
    assert len(PROGRAMS) <= 21, "20 and common.py"
    assert lines <= 4_000
    assert len(PAGES) <= 13
    assert words <= 6_900
    assert {path.stem for path in RESULTS.glob("*.json")} == set(PAGES)


def test_page_shows_its_json_and_how_measured(page):
    text, kept = page
    lines = text.splitlines()
    rows = [row for part in kept["parts"].values() for row in part["rows"]]
    table = lines[lines.index("---|---|---") + 1 :]
    assert [line.split(" | ")[0] for line in table[: len(rows)]] == [row["what"] for row in rows]
    for row, line in zip(rows, table, strict=False):
        numbers = [float(n.replace(",", "")) for n in re.findall(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?", line.split(" | ")[2])]
        tolerance = 0.051 if row.get("unit") == "%" else 1e-9  # shares are shown with one decimal
        if isinstance(row["value"], (int, float)):
            assert numbers == pytest.approx([row["value"], *row.get("interval", [])], rel=6e-3, abs=tolerance), line
            assert not row.get("interval") or row["interval"][0] <= row["value"] <= row["interval"][1], line
    assert all(f"- {meaning}" in lines for meaning in kept["means"])
    # It says how it was measured: a command that can be given again, or which commit's program a part came from.
    for part in kept["parts"].values():
        assert re.search(r"commit [0-9a-f]{7}", part.get("source") or part["environment"])
        if command := part.get("command"):
            assert f"    {command}" in text.splitlines()
            program = re.search(r"python -m benchmarks\.(\w+)", command)
            assert program[1] in PROGRAMS if program else command.startswith("mitigate ")
