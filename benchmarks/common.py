"""What the benchmark programs share: labelled data, baselines' rows, one way to write results and their page.

    python -m benchmarks.common        # makes every page of docs/results anew from its JSON

Each page docs/results/NAME.md is made of docs/results/NAME.json: a question, for each program its command, versions and
rows ("what", n, value, interval), and what the rows mean for a user. A program replaces its own part; titles and
meanings are written by hand in the JSON. ``tables`` holds everything that was measured, of which the page shows a part.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np

from annotators.evaluation.metrics import Floats, bootstrap
from annotators.evaluation.splits import fold_of, group_rows
from annotators.text.sentences import split_sentences
from mitigate.io import read_rows

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
DATA = ROOT.parent / "shared" / "data"
TRAINABLE = frozenset(  # sources that weights may be trained on; all others are for evaluation only
    "factcheckgpt factcheckgpt_pair fm2 dialfact_small wice begin faithdial_audit expertqa summedits halueval_qa "
    "uhgeval kdconv wice_tokens".split()
)
LLM_ANSWERS = ("truthfulqa_llm_answers", "halluqa_zh_llm_answers", "chinesefacteval_zh_llm_answers")
Row = dict[str, Any]


def parser(doc: str | None, *, data: bool = True) -> argparse.ArgumentParser:
    """A parser whose description is the first line of a program's docstring."""
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    if data:
        made.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/, spans/, fewl/")
    return made


def load_rows(data: Path) -> list[Row]:
    """All rows of sentences/, binary/ and spans/, with ``file`` ("sentences/fm2"), ``group`` and ``fold`` added."""
    if not (data / "sentences").is_dir():
        sys.exit(f"skipped: data not here (expected {data}/sentences, /binary and /spans; see --data)")
    rows = []
    for folder in ("sentences", "binary", "spans"):
        for path in sorted((data / folder).glob("*.jsonl")):
            rows += [row | {"file": f"{folder}/{path.name.split('.')[0]}"} for row in read_rows(path)]
    for row, group in zip(rows, group_rows(rows), strict=True):  # over all files: texts recur across them
        row["group"], row["fold"] = group, fold_of(group)
    return rows


def english_rows(data: Path) -> list[Row]:
    """All English rows with a label (those of spans/ have none)."""
    return [row for row in load_rows(data) if "label" in row and row["lang"] == "en"]


def fewl_rows(name: str, data: Path) -> list[Row]:
    """Rows of fewl/NAME.jsonl."""
    path = data / "fewl" / f"{name}.jsonl"
    if not path.is_file():
        sys.exit(f"skipped: data not here (expected {path}; see --data)")
    return list(read_rows(path))


def whole_answers(data: Path, documents: int) -> list[Row]:
    """Records of the distinct answers about so many documents of lfqa_verification, cliff and qags."""
    found: dict[str, dict[str, Row]] = {}
    for row in load_rows(data):
        if row["source"] in ("lfqa_verification", "cliff", "qags") and row.get("answer") and "label" in row:
            record = {key: row[key] or "" for key in ("question", "reference", "answer")}
            found.setdefault(row["reference"], {})[row["answer"]] = record
    names = sorted(found)
    random.Random(0).shuffle(names)
    return [record for name in names[:documents] for record in found[name].values()]


def real_answers(data: Path) -> dict[str, list[str]]:
    """1500 distinct answers of models by language, from the labelled rows and from fewl/, in a fixed random order."""
    texts = {row["answer"] for row in load_rows(data) if row.get("answer")}
    for name in LLM_ANSWERS:
        for row in fewl_rows(name, data):
            texts |= {a["answer"] for a in row.get("answers", [row]) if a["answer"]}
    found: dict[str, list[str]] = {"en": [], "zh": []}
    for text in sorted(texts):
        found["zh" if len(re.findall("[\u4e00-\u9fff]", text)) * 3 > len(text) else "en"].append(text)
    for group in found.values():
        random.Random(0).shuffle(group)
        del group[1500:]
    return found


def sentences_of(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of the processor of each way in each round; nothing remembered helps a later way."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _, (name, way) in product(range(rounds), ways.items()):
        for module in [module for key, module in sys.modules.items() if key.startswith(("annotators", "engines"))]:
            for kept in [value for value in vars(module).values() if hasattr(value, "cache_clear")]:
                kept.cache_clear()
        start = time.process_time()
        way()
        seconds[name].append(time.process_time() - start)
    return seconds


def command(*words: str) -> None:
    """Run a module of this repository; where it fails, this program ends with its status, or names what was killed."""
    if code := subprocess.run([sys.executable, "-m", *words], cwd=ROOT).returncode:
        sys.exit(code if code > 0 else f"{shlex.join(words)}: killed by signal {-code}")


def row(what: str, n: object, value: object, interval: Sequence[float] | None = None, unit: str = "") -> Row:
    """A row of a page: a figure, of how many, with its 95 % interval; ``unit`` "%" for shares times 100."""
    made: Row = {"what": what, "n": n, "value": round(float(value), 4) if isinstance(value, float) else value}
    if interval is not None:
        made["interval"] = [round(float(limit), 4) for limit in interval]
    return made | ({"unit": unit} if unit else {})


def mean_row(what: str, values: Floats, groups: Sequence[Any] | None = None, unit: str = "") -> Row:
    """The mean of values, NaN left out, with a bootstrap interval over groups, or over values where none are given."""
    known = ~np.isnan(values)
    kept = values[known] * (100 if unit == "%" else 1)
    names = np.arange(len(values)) if groups is None else np.unique(np.array(groups), return_inverse=True)[1]
    limits = bootstrap({"mean": lambda w: float(kept @ w / w.sum())}, names[known].tolist())["mean"]
    return row(what, len(kept), float(kept.mean()) if len(kept) else None, limits, unit)


def environment(*packages: str) -> str:
    """Versions, hardware and commit, in a line."""
    names = [f"{name} {version(name)}" for name in ("torch", "transformers", "numpy", *packages)]
    info = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)", info.read_text("utf-8") if info.is_file() else "", re.MULTILINE)
    cpu = found[1] if found else "CPU"
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True).stdout.strip() or "unknown"
    return f"Python {platform.python_version()}, {', '.join(names)}; {cpu}; commit {commit}"


def save(
    page: str, program: str, rows: Sequence[Row], *, tables: Mapping[str, Any] | None = None, about: str = "",
    packages: Sequence[str] = (), part: str = "", columns: Sequence[str] = (), folder: Path = RESULTS,
) -> None:  # fmt: skip
    """Write the part of a module of benchmarks/ in docs/results/PAGE.json and make PAGE.md anew.

    The page shows ``rows``; ``tables`` has everything else that was measured. ``about`` is a sentence on what it was
    measured on, such as the annotator's fingerprint, ``packages`` whose versions matter beside the usual ones, ``part``
    what is measured, of a program whose parts are measured apart, ``columns`` those of a table whose values are lists.
    """
    path = folder / f"{page}.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    command = shlex.join(["python", "-m", f"benchmarks.{program}", *sys.argv[1:]])
    kept["parts"][part or program] = {
        "command": command, "environment": environment(*packages), **({"about": about} if about else {}),
        **({"columns": list(columns)} if columns else {}), "rows": list(rows),
        **({"tables": tables} if tables else {}),
    }  # fmt: skip
    path.write_text(dumps(kept), encoding="utf-8")
    path.with_suffix(".md").write_text(rendered(kept), encoding="utf-8")
    print("\n".join(line(one) for one in rows))
    print(f"written: {path} and {path.with_suffix('.md').name}")


def dumps(kept: Mapping[str, Any]) -> str:
    """JSON in which a list of plain values, and a row, takes one line."""
    text = json.dumps(kept, indent=1, ensure_ascii=False)
    plain = r"\[\n\s+((?:\"(?:[^\"\\]|\\.)*\"|[^\[\]{}\"])*?)\n\s+\]"
    text = re.sub(plain, lambda m: "[" + re.sub(r"\n\s+", " ", m[1]) + "]", text)
    return re.sub(r"\{\n\s+(\"what\"[^{}]*?)\n\s+\}", lambda m: "{" + re.sub(r"\n\s+", " ", m[1]) + "}", text) + "\n"


def shown(value: object, unit: str = "") -> str:
    """A figure as the page prints it: shares with one decimal, others with three digits or four; a list as cells."""
    if isinstance(value, list):
        return " | ".join(map(str, value))
    if isinstance(value, float):
        return format(value, ".1f" if unit == "%" else ".3g" if abs(value) < 1 else ".4g")
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def figure(one: Mapping[str, Any], *, limits: bool = True) -> str:
    """What was measured of a row, with its interval."""
    unit = one.get("unit", "")
    around = f" [{', '.join(shown(limit, unit) for limit in one['interval'])}]" if limits and "interval" in one else ""
    return f"{shown(one['value'], unit)}{unit}{around}"


def line(one: Mapping[str, Any]) -> str:
    return f"{one['what']} | {shown(one['n'])} | {figure(one)}"


def rendered(kept: Mapping[str, Any]) -> str:
    """The page of a JSON file, which has the versions."""
    parts = kept["parts"].values()
    lines = [f"# {kept['title']}", "", kept["question"], ""]
    lines += [f"    {part['command']}" for part in parts if "command" in part]
    for heads, group in groupby(parts, lambda part: part.get("columns", ["what", "n", "measured"])):
        lines += ["", " | ".join(heads), "|".join(["---"] * len(heads))]
        lines += [line(one) for part in group for one in part["rows"]]
    if kept.get("figure"):
        lines += ["", f"![{kept['title']}]({kept['figure']})"]
    lines += ["", *(f"- {text}" for text in kept["means"]), ""]
    said = (p.get("source") or f"{p['environment'].partition('; ')[2]}. {p.get('about', '')}" for p in parts)
    lines += dict.fromkeys(map(str.strip, said))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser(__doc__, data=False).parse_args()
    for path in sorted(RESULTS.glob("*.json")):
        path.with_suffix(".md").write_text(rendered(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
        print(f"written: {path.with_suffix('.md')}")


if __name__ == "__main__":
    main()
