"""What the Markdown pages say is there: links, files, modules, imports, commands and options.

Result pages and the log name programs and options of earlier days, so only their links are checked.
"""

import argparse
import importlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mitigate.cli.main import build_parser
from mitigate.io import UsageError
from mitigate.recipes.config import find_recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in subprocess.check_output(["git", "ls-files", "*.md"], cwd=ROOT, text=True).splitlines()]
DATA = ROOT / "recipes" / "dataset" / "example" / "documents"
CURRENT = [p for p in PAGES if p.name != "LOG.md" and p.parent not in (ROOT / "docs" / "results", DATA)]
OURS = ("annotators", "benchmarks", "docs", "engines", "examples", "fewl", "mitigate", "recipes", "tests")
OTHER_PROGRAMS = {"--generation-config", "--strict"}  # of vLLM and pip-audit


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str) -> Iterator[str]:
    """The code blocks of a page, fenced or indented by four columns; lines that end in a backslash are joined."""
    fenced = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.S | re.M)
    rest = re.sub(r"^```[a-z]*\n.*?^```", "", text, flags=re.S | re.M)
    for block in fenced + re.findall(r"(?:^|\n\n)((?: {4}.*\n)+)", rest):
        yield block.replace("\\\n", " ")


def inline(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", re.sub(r"^```[a-z]*\n.*?^```", "", text, flags=re.S | re.M))


def commands(lines: list[str]) -> Iterator[list[str]]:
    """The words after `mitigate`, also where accelerate or the pocket world starts it."""
    for line in lines:
        found = re.match(r"\s*(?:mitigate|.* -m mitigate\.cli|python -m examples\.pocket) (.+)", line, re.S)
        if found and found[1].split()[0] != "make":
            yield shlex.split(found[1], comments=True)


def refuse(parser: argparse.ArgumentParser, message: str) -> None:
    raise ValueError(message)


def options(parser: argparse.ArgumentParser) -> set[str]:
    found: set[str] = set()
    for action in parser._actions:
        found.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            found.update(*map(options, action.choices.values()))
    return found


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_relative_links_exist(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.S | re.M)
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_command_lines_parse_and_options_exist(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks wholly; in running text, and before an ellipsis, what is required may be left out."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)
    text, problems = path.read_text("utf-8"), []
    whole = [line for block in blocks(text) for line in block.splitlines()]
    for words, must_be_whole in [(w, True) for w in commands(whole)] + [(w, False) for w in commands(inline(text))]:
        given = [word for word in words if word != "…"]
        try:
            args = build_parser().parse_args(given)
            recipe = getattr(args, "recipe", None) or "RECIPE"
            if recipe != "RECIPE" and "$" not in recipe:  # $ is a variable of a shell loop
                find_recipe(recipe)
        except (ValueError, UsageError) as error:
            if "required" not in str(error) or (must_be_whole and given == words):
                problems.append(f"mitigate {shlex.join(words)}: {error}")
    assert problems == []
    ours = [code for code in inline(text) if code.startswith(("mitigate ", "--"))]
    named = {option for code in ours for option in re.findall(r"(?<!\S)--[a-z-]+(?!\S)", code)}
    assert named - options(build_parser()) - OTHER_PROGRAMS == set()


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_named_files_and_modules_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    code = [*inline(text), *blocks(text)]
    files = {f for c in code for f in re.findall(r"(?<![\w/.-])[\w/]+\.py\b", c)}
    files |= {f for c in inline(text) if (f := c.rstrip("/")).split("/")[0] in OURS and re.fullmatch(r"[\w/.-]+", f)}
    assert [f for f in files if not any((folder / f).exists() for folder in (ROOT, path.parent))] == []
    modules = {m for c in code for m in re.findall(rf"(?<![\w/.-])(?:{'|'.join(OURS)})(?:\.[a-z_]+)+\b(?!/)", c)}
    assert [m for m in modules if not is_there(m)] == []


def is_there(dotted: str) -> bool:
    path = ROOT.joinpath(*dotted.split("."))
    if path.with_suffix(".py").is_file() or path.is_dir():
        return True
    module, _, name = dotted.rpartition(".")
    return ROOT.joinpath(*module.split(".")).exists() and name in dir(importlib.import_module(module))


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_imports_of_examples_work(path: Path) -> None:
    text = "\n".join(blocks(path.read_text("utf-8")))
    for module, names in re.findall(rf"^\s*from ((?:{'|'.join(OURS)})[\w.]*) import ([\w, ]+)", text, re.M):
        offered = dir(importlib.import_module(module))  # public names of `mitigate` are imported when they are used
        assert [name for name in map(str.strip, names.split(",")) if name not in offered] == [], module


def test_pages_stay_short() -> None:
    words = {path: len(path.read_text("utf-8").split()) for path in PAGES}
    assert words[ROOT / "README.md"] <= 1_300
    assert words[ROOT / "docs" / "architecture.md"] <= 350
    assert sum(words.values()) < 27_800
    assert len([path for path in PAGES if path.parent == ROOT / "docs" and path.name != "LOG.md"]) <= 12


def test_readme_figures_of_evidence_are_its_rows() -> None:
    readme, rows = (ROOT / "README.md").read_text("utf-8"), result_rows("evidence")
    flagged, unsure = (
        with_interval(rows[f"{what}, alone → 30 added"], ".1f", " %")
        for what in ("verdicts that change", "… or become or stop being unsure")
    )
    said = f"30 unrelated paragraphs change what is flagged in {flagged}, what is flagged or unsure in {unsure}."
    assert said in readme


def test_readme_figures_of_reliability_are_its_rows() -> None:
    readme, rows = (ROOT / "README.md").read_text("utf-8"), result_rows("reliability")
    killed = [
        row for what, row in rows.items() if what.startswith(("`mitigate annotate` k", "`mitigate fewl score` k"))
    ]
    (kills,) = {row["n"].split(",")[0] for row in killed}
    assert [row["value"] for row in killed] == [0, 0]
    assert f"{kills} each of `annotate` and `fewl score`: nothing lost or doubled." in readme


def test_readme_shows_fewl_beside_strongest_control() -> None:
    readme, rows = (ROOT / "README.md").read_text("utf-8"), result_rows("fewl")

    def beside(name: str, setting: str, measure: str) -> tuple[dict[str, Any], float]:
        where = [
            f"{name}, {setting}, {control}" for control in ("with another question's references", "without references")
        ]
        controls = [*where, f"{name}, the longest", f"{name}, the shortest"]
        return rows[f"{name}, {setting}: {measure}"], max(rows[f"{c}: {measure}"]["value"] for c in controls)

    equal, many, like = "Eq. 6, no penalty", "discovered, no penalty", "true above false, like length"
    (first, control), (second, control_2), (third, control_3) = (
        beside(name, setting, like) for name, setting in (("TruthfulQA", equal), ("HalluQA", equal), ("HalluQA", many))
    )
    assert (
        f"TruthfulQA (n = {first['n']}): in {with_interval(first, '.1f', ' %')} of pairs, the strongest control "
        f"{control:.1f} %. HalluQA ({second['n']}): {with_interval(second, '.1f', ' %')}, control {control_2:.1f} % "
        f"(`--expertise discovered`: {third['value']:.1f} %, control {control_3:.1f} %). Its picks do not beat the "
        "best control."
    ) in readme
    picks = [beside(name, setting, "true picks") for name in ("TruthfulQA", "HalluQA") for setting in (equal, many)]
    assert all(row["value"] < best for row, best in picks)


def test_readme_figures_of_annotator_are_its_rows() -> None:
    readme, rows = (ROOT / "README.md").read_text("utf-8"), result_rows("annotator")
    new, old = (
        [round(100 * rows[f"sources {part}: flagged, of {kind}"]["value"]) for kind in ("supported", "hallucinated")]
        for part in ("never seen", "trained on")
    )
    words = "flags {} of 100 true and {} of 100 false sentences of sources never seen ({} and {} of those trained on)"
    assert words.format(*new, *old) in readme
    shares = (f"flagged, of {kind}" for kind in ("supported", "hallucinated"))
    of_100 = [
        round(100 * rows[f"ordinary texts: {k}"]["value"]) for k in (*shares, "called supported, of hallucinated")
    ]
    words = "flags {} of 100 true and {} of 100 false sentences, calls {} of 100 false ones supported"
    assert words.format(*of_100) in readme
    area = rows["ordinary texts: AUC"]
    assert f"n = {area['n']})" in readme
    assert f"AUC {with_interval(area, '.3f')}. |" in readme
    own, overlap = (rows[f"{name}: AUC, mean of 19 sources"] for name in ("annotator", "n-gram overlap"))
    assert f"(19 English sources, n = {own['n']:,})" in readme
    assert f"AUC {with_interval(own, '.3f')}; n-grams {with_interval(overlap, '.3f')}." in readme


def test_readme_figures_of_mitigation_are_its_rows() -> None:
    readme, rows = (ROOT / "README.md").read_text("utf-8"), result_rows("mitigation")
    counted = r"SmolLM2, {} answers, hallucinated \((\d+); not sure (\d+)\)"
    (first, n, unsure), (chosen, _, _), (given, left, unsure_after) = (
        (row, *found.groups())
        for which in ("first", "chosen", "given")
        for name, row in rows.items()
        if (found := re.fullmatch(counted.format(which), name))
    )
    assert first["value"] == pytest.approx(100 * int(n) / first["n"], abs=1e-3)  # six digits are kept
    supported = [rows[f"{which} answers: supported sentences"] for which in ("first", "given")]
    assert supported[0]["n"] == supported[1]["n"]  # none was withheld
    fall = with_interval(rows["given − first: hallucinated"], ".1f", " points")
    assert (
        f"Hallucinated: {first['value']:.1f} % of {first['n']}, {chosen['value']:.1f} % of {chosen['n']} after "
        f"the best of four, {left} of {given['n']} after mending ({fall}); unsure: {unsure}, then "
        f"{unsure_after}; supported: {supported[0]['value']}, then {supported[1]['value']}."
    ) in readme
    arms = ("before training", "after", "after, uncalibrated")
    first, then, without = (rows[f"{arm}: hallucinated by blind labels"] for arm in arms)
    apart = rows["after − before training: share of hallucinated by blind labels"]
    gap = rows["after − after, uncalibrated: share of hallucinated by blind labels"]
    low, high = gap["interval"]
    true = [rows[f"{arm}: supported sentences by blind labels"]["value"] for arm in arms]
    copied = [f"{rows[f'{when} training: copied']['value']:.0f} %" for when in ("before", "after")]
    assert (
        f"Hallucinated: {with_interval(first, '.1f', ' %')} of {first['n']}, then "
        f"{with_interval(then, '.1f', ' %')} of {then['n']} ({with_interval(apart, '.1f', ' points')}); uncalibrated, "
        f"{without['value']:.1f} % ({-gap['value']:.1f} more than calibrated [{-high:.1f}, {-low:.1f}]); supported: "
        f"{true[0]}, then {true[1]}; copied: {copied[0]}, then {copied[1]}. "
    ) in readme
    first, then = (rows[f"Intel CPU: {arm}: hallucinated by blind labels"]["value"] for arm in arms[:2])
    apart = rows["Intel CPU: after − Intel CPU: before training: share of hallucinated by blind labels"]
    gap = with_interval(apart, ".1f", " points")
    assert f"On an Intel CPU: {first:.1f} %, then {then:.1f} % ({gap})." in readme


def test_readme_figures_of_the_proof_are_its_rows() -> None:
    readme, rows = (ROOT / "README.md").read_text("utf-8"), result_rows("proof")
    by = "hallucinated by blind labels"
    arms = ["base", "Mask-DPO, calibrated", "Mask-DPO, calibrated, again", "SFT on the best, calibrated"]
    arms += ["best of 8, calibrated"]
    both = ["GRPO, sentences, calibrated", "GRPO, scalar, calibrated"]
    shown = (with_interval(rows[f"{arm}: {by}"], ".1f", " %") for arm in (*arms, *both))
    base, calibrated, again, sft, best, *grpo = shown
    alike, less, taught = (
        f"{rows[f'Mask-DPO, {one}: {by}']['value']:.1f}" for one in ("copying alike", "copying less", "taught")
    )
    gap = rows[f"{both[1]} − {both[0]}: share of hallucinated by blind labels"]
    each = [f"{rows[f'{arm}: hallucinated an answer by blind labels']['value']:.2f}" for arm in (arms[0], *both)]
    first, second, third, fourth = (f"{rows[f'{arm} − base: copied']['value']:.2f}" for arm in arms[1:5])
    labelled = {
        rows[f"{arm}: {by}"]["n"]
        for arm in (*arms, "Mask-DPO, copying alike", "Mask-DPO, copying less", "Mask-DPO, taught")
    }
    assert (
        f"blind labels by AIs, {min(labelled)} to {max(labelled)} factual sentences an arm) | Hallucinated: {base}; "
        f"after Mask-DPO by the reward as it comes {alike} and {less} %, by one calibrated on 354 labelled sentences "
        f"{calibrated} and {again} (two runs; copied: +{first}, +{second}), by one also taught {taught} %. By the "
        f"calibrated one SFT on the best: {sft} (+{third}), untrained best of eight: {best} (+{fourth})."
    ) in readme
    assert (
        f"Not surely. Calibrated, three seeds each: {grpo[0]}, with one number {grpo[1]} "
        f"({with_interval(gap, '.1f', ' more')}); an answer: {each[0]}, then {', '.join(each[1:])}; "
        f"copied: {', '.join(format(rows[f'{arm} − base: copied']['value'], '+.2f') for arm in both)}."
    ) in readme
    kept = json.loads((ROOT / "docs" / "results" / "proof.json").read_text("utf-8"))["parts"]["proof"]["tables"]
    assert sum(label != "no_fact" for _, _, label in kept["calibrate"]) == 354
    assert all(f"{arm}, seed {seed}: {by}" in rows for arm in both for seed in range(3))
    for kind in ("mask_dpo", "rlhf"):
        told = (ROOT / "recipes" / kind / "README.md").read_text("utf-8")
        assert re.search(rf"by blind labels[:,] {rows[f'base: {by}']['value']:.1f} % → ", told)
    for arm in both:  # "not surely"
        low, high = rows[f"{arm} − base: share of hallucinated by blind labels"]["interval"]
        assert low < 0 < high


def with_interval(row: dict[str, Any], digits: str, unit: str = "") -> str:
    low, high = (format(limit, digits) for limit in row["interval"])
    return f"{format(row['value'], digits)}{unit} [{low}, {high}]"


def result_rows(name: str) -> dict[str, Any]:
    """The rows of docs/results/NAME.json by name: those of the page, and those of its tables that are rows."""
    kept = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text("utf-8"))
    tables = [table for part in kept["parts"].values() for table in (part["rows"], *part.get("tables", {}).values())]
    return {row["what"]: row for table in tables for row in table if isinstance(row, dict) and "what" in row}


def test_pages_named_in_code_exist() -> None:
    sources = subprocess.check_output(["git", "ls-files", "*.py", "*.yaml", "Makefile", ".ci"], cwd=ROOT, text=True)
    texts = {source: (ROOT / source).read_text("utf-8", errors="replace") for source in sources.splitlines()}
    named = {(source, page) for source, text in texts.items() for page in re.findall(r"\bdocs/[\w/-]+\.md\b", text)}
    assert [pair for pair in sorted(named) if not (ROOT / pair[1]).is_file() and "NAME" not in pair[1]] == []
