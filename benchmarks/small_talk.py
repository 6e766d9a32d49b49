"""Refusals, greetings and their look-alikes: what the embedded annotator makes of a suite written for the purpose.

    python -m benchmarks.small_talk --data ../shared/data

``tests/small_talk.tsv`` holds sentences that state nothing (refusals, apologies, offers, headings …) and sentences
that begin like them but state a fact, true or false, all of one reference; the page says what its parts are.
Then the rules on labelled rows of fold 0, to see which facts they swallow.
Writes docs/results/small-talk.md; a minute on one core.
"""

from __future__ import annotations

import argparse
import hashlib
import platform
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from annotators import Annotator, load_annotator
from annotators.records import HALLUCINATED
from annotators.text.normalise import clean
from annotators.verifier.claims import claims_nothing
from benchmarks.splits import DATA, load_rows

ROOT = Path(__file__).parent.parent
SUITE = ROOT / "tests" / "small_talk.tsv"
PAGE = ROOT / "docs" / "results" / "small-talk.md"
REFERENCE = {
    "en": "Albert Einstein was born in Ulm, in the Kingdom of Württemberg, on 14 March 1879. He worked at the patent "
    "office in Bern from 1902 to 1909. In 1921 he was awarded the Nobel Prize in Physics for his explanation of the "
    "photoelectric effect. He moved to Princeton in 1933 and became a citizen of the United States in 1940. He played "
    "the violin from the age of five. He died in Princeton on 18 April 1955.",
    "zh": "阿尔伯特·爱因斯坦于1879年3月14日出生在符腾堡王国的乌尔姆。他从1902年到1909年在伯尔尼专利局工作。"
    "1921年他因解释光电效应获得诺贝尔物理学奖。他1933年移居普林斯顿，1940年成为美国公民。他五岁开始拉小提琴。他于1955年4月18日在普林斯顿去世。",
}
QUESTION = {"en": "When and where was Albert Einstein born?", "zh": "爱因斯坦什么时候出生，出生在哪里？"}
FACTS = ("true", "false")


def read_suite(path: Path = SUITE) -> list[dict[str, str]]:
    """Rows of the suite: lang, kind, sentence, part ("first" was seen while the rules were written)."""
    rows = []
    later = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            later = later or line.startswith("# later")
        else:
            lang, kind, sentence = line.split("\t")
            half = ("first", "second")[int(hashlib.sha256(sentence.encode()).hexdigest(), 16) % 2]
            rows.append({"lang": lang, "kind": kind, "sentence": sentence, "part": "later" if later else half})
    return rows


def judged(annotator: Annotator, rows: Sequence[dict[str, str]]) -> list[str]:
    """Label of each sentence, or its status where it was not judged."""
    asked = [
        {"sentence": r["sentence"], "reference": REFERENCE[r["lang"]], "question": QUESTION[r["lang"]]}
        | {"language": r["lang"]}
        for r in rows
    ]
    return [a.label or a.status for a in annotator.predict(asked)]


def suite_table(rows: Sequence[dict[str, str]], labels: Sequence[str]) -> list[str]:
    """Markdown: what became of each kind, by part."""
    lines = [
        "| language | part | kind | n | told by rule | no_fact | hallucinated | supported | not judged |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for lang in ("en", "zh"):
        for part in ("first", "second", "later"):
            for title, kinds in (("nothing stated", None), ("true fact", "true"), ("false fact", "false")):
                chosen = [
                    (r, label)
                    for r, label in zip(rows, labels, strict=True)
                    if r["lang"] == lang
                    and r["part"] == part
                    and (r["kind"] == kinds if kinds else r["kind"] not in FACTS)
                ]
                count = Counter(label for _, label in chosen)
                if not chosen:
                    continue
                rule = sum(claims_nothing(clean(r["sentence"])[0]) for r, _ in chosen)
                bad = sum(count[label] for label in HALLUCINATED)
                rest = len(chosen) - count["no_fact"] - bad - count["supported"]
                lines.append(
                    f"| {lang} | {part} | {title} | {len(chosen)} | {rule} | {count['no_fact']} | {bad} "
                    f"| {count['supported']} | {rest} |"
                )
    return lines


def swallowed(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: how many labelled sentences of each source the rules take, by gold label."""
    hits: Counter[tuple[str, str, bool]] = Counter()
    n: Counter[tuple[str, str, bool]] = Counter()
    for row in rows:
        key = (row["lang"], row["source"], row["label"] == "no_fact")
        n[key] += 1
        hits[key] += claims_nothing(clean(row["sentence"])[0])
    lines = ["| language | source | facts | taken | no_fact | taken |", "|---|---|---|---|---|---|"]
    for lang, source in sorted({key[:2] for key in n}):
        fact, none = (lang, source, False), (lang, source, True)
        lines.append(f"| {lang} | {source} | {n[fact]} | {hits[fact]} | {n[none]} | {hits[none]} |")
    return lines


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder with sentences/, binary/ and spans/")
    parser.add_argument("--annotator", default="embedded")
    parser.add_argument("--output", type=Path, default=PAGE)
    args = parser.parse_args()
    labelled = [row for row in load_rows(args.data) if "label" in row and row["fold"] == 0]
    annotator = load_annotator(args.annotator)
    rows = read_suite()
    labels = judged(annotator, rows)
    wrong = [
        f"- {row['lang']}, {row['part']} part, {row['kind']}: “{row['sentence']}” → {label}"
        for row, label in zip(rows, labels, strict=True)
        if (label in HALLUCINATED and row["kind"] not in FACTS) or (label == "no_fact" and row["kind"] in FACTS)
    ]
    newline = "\n"
    page = f"""# Sentences that state nothing, and those that only look so

The suite (`tests/small_talk.tsv`) was written for this project: refusals, apologies, greetings, offers, remarks of an
assistant about itself, questions back, transitions, announcements, headings, thanks and empty list items; and facts,
true and false, that begin like one of these. Every sentence is judged against the same short biography
(`benchmarks/small_talk.py`). Parts: "first" and "second" are halves by hash; the rules of `annotators/verifier/claims.py` were
written with the first in view and mended after a look at the second (2 of 87 hallucinated then); "later" was written
after that (3 of 52 then; four rules were added since, and the weights are newer). Suite and rules have the same author,
so other people's small talk will be recognised less often. Wanted: nothing stated → never hallucinated; a fact → never
`no_fact`. Chinese is judged only as far as `docs/results/chinese-verdict.md` says.

    python -m benchmarks.small_talk --data ../shared/data

Annotator {annotator.name}, fingerprint {annotator.fingerprint}. Python {platform.python_version()}, torch
{version("torch")}; 2-core CPU machine.

{newline.join(suite_table(rows, labels))}

What went wrong:

{newline.join(wrong) or "- nothing"}

## Labelled rows of fold 0

What the rules take of sentences that people labelled as facts, and of those labelled `no_fact`. In begin and
faithdial_audit most of the facts taken are questions to the partner ("Do you like football ?") that their authors
labelled like statements.

{newline.join(swallowed(labelled))}
"""
    args.output.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
