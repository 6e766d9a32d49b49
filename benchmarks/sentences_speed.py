"""Speed and accuracy of the sentence splitter beside pysbd and a plain regular expression.

    python -m benchmarks.sentences_speed --data ../shared/data

Speed: the same real answers of models, the same run, CPU time of one thread, the splitters taking turns; only ratios
count. Accuracy: the labelled cases of tests/helpers/sentence_cases.py, which this project wrote for itself, so they say where
splitters differ and not how often that happens. Writes docs/results/sentences.md. Needs the ``dev`` extra (pysbd).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
from collections.abc import Callable
from importlib.metadata import version
from math import sqrt
from pathlib import Path
from statistics import median
from time import process_time

import pysbd

from annotators.text.sentences import split_sentences
from benchmarks.splits import DATA, load_rows
from tests.helpers.sentence_cases import CASES

RESULT = Path(__file__).parent.parent / "docs" / "results" / "sentences.md"
LLM_ANSWERS = ("truthfulqa_llm_answers", "halluqa_zh_llm_answers", "chinesefacteval_zh_llm_answers")
ROUNDS = 5
PER_LANGUAGE = 1500
Splitter = Callable[[str], list[str]]

_PLAIN = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_HAN = re.compile("[\u4e00-\u9fff]")


def ours(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


def plain(text: str) -> list[str]:
    """White space after . ! ? and every 。！？."""
    return [piece.strip() for piece in _PLAIN.split(text) if piece.strip()]


def with_pysbd(language: str) -> Splitter:
    segmenter = pysbd.Segmenter(language=language, clean=False)
    return lambda text: [piece.strip() for piece in segmenter.segment(text) if piece.strip()]


def read_answers(data: Path) -> dict[str, list[str]]:
    """Distinct answers per language: the ``answer`` of the labelled rows, and the models' answers of fewl/."""
    texts = {row["answer"] for row in load_rows(data) if row.get("answer")}
    for name in LLM_ANSWERS:
        for line in (data / "fewl" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            texts.update(a["answer"] for a in row["answers"] if a["answer"]) if "answers" in row else texts.add(
                row["answer"]
            )
    found: dict[str, list[str]] = {"en": [], "zh": []}
    for text in sorted(texts):
        found["zh" if len(_HAN.findall(text)) * 3 > len(text) else "en"].append(text)
    for group in found.values():
        random.Random(0).shuffle(group)
    return {language: group[:PER_LANGUAGE] for language, group in found.items()}


def cuts(pieces: list[str]) -> set[int]:
    """Boundaries as counts of the characters before them, white space left out."""
    at, found = 0, set()
    for piece in pieces[:-1]:
        at += len("".join(piece.split()))
        found.add(at)
    return found


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95% interval of a share (Wilson 1927)."""
    z, p = 1.96, hits / n
    centre, spread = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)


def accuracy_rows() -> list[str]:
    rows = []
    for language in ("en", "zh"):
        cases = [(text, expected) for lang, _, text, expected in CASES if lang == language]
        for name, split in (("ours", ours), ("pysbd", with_pysbd(language)), ("plain regex", plain)):
            exact = true = found = gold = 0
            for text, expected in cases:
                pieces = split(text)
                exact += pieces == expected
                a, b = cuts(pieces), cuts(expected)
                true, found, gold = true + len(a & b), found + len(a), gold + len(b)
            low, high = wilson(exact, len(cases))
            f1 = 2 * true / (found + gold)
            rows.append(
                f"| {language} | {name} | {len(cases)} | {exact / len(cases):.3f} ({low:.3f}–{high:.3f}) | {f1:.3f} |"
            )
    return rows


def speed_rows(answers: dict[str, list[str]]) -> list[str]:
    rows = []
    for language, texts in answers.items():
        splitters: dict[str, Splitter] = {"ours": ours, "pysbd": with_pysbd(language), "plain regex": plain}
        seconds: dict[str, list[float]] = {name: [] for name in splitters}
        counts: dict[str, int] = {}
        for _ in range(ROUNDS):
            for name, split in splitters.items():
                begin = process_time()
                counts[name] = sum(len(split(text)) for text in texts)
                seconds[name].append(process_time() - begin)
        for name in splitters:
            rates = [counts[name] / s for s in seconds[name]]
            ratios = [
                counts["ours"] / a / (counts[name] / b) for a, b in zip(seconds["ours"], seconds[name], strict=True)
            ]
            rows.append(
                f"| {language} | {name} | {len(texts)} | {counts[name]} | {median(rates):,.0f} | "
                f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) |"
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/, spans/ and fewl/")
    answers = read_answers(parser.parse_args().data)
    speed, accuracy = speed_rows(answers), accuracy_rows()
    page = f"""# Sentence splitter: speed and accuracy

    python -m benchmarks.sentences_speed --data ../shared/data

Python {platform.python_version()}, pysbd {version("pysbd")}, {platform.system()} {platform.machine()},
{os.cpu_count()} cores shared with other work, one thread. CPU time (`time.process_time`) of {ROUNDS} rounds in which
the splitters take turns on the same distinct answers, drawn with seed 0 from the labelled rows and the models' answers
of `fewl/`. Absolute rates depend on the machine; the ratio within a round hardly does.

## Speed

| language | splitter | answers | sentences found | sentences per CPU-second | ours is faster by (lowest–highest) |
|---|---|---:|---:|---:|---:|
{chr(10).join(speed)}

The plain regex cuts at white space after `. ! ?` and after every `。！？`, and does nothing else. The goal was
15 times pysbd in sentences per CPU-second.

## Accuracy on our own labelled cases

The cases ({len(CASES)}, in `tests/helpers/sentence_cases.py`) were written for this project and our splitter was worked
on until it passed all of them, so its 1.000 is no estimate of anything; the others never saw them, and some cases
are choices of this project (a short quotation is not cut inside, a list marker stays with its item). They show where
splitters differ.
"Exact" is the share of cases with every boundary right (95% Wilson interval); F1 is over boundaries.

| language | splitter | cases | exact | boundary F1 |
|---|---|---:|---:|---:|
{chr(10).join(accuracy)}
"""
    RESULT.write_text(page, encoding="utf-8")
    print("\n".join(accuracy))
    print(f"wrote {RESULT}")


if __name__ == "__main__":
    main()
