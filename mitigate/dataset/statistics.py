"""The page of figures: how much there is (ANAH's Table 2), label shares (Table 4), topics by category and domain.

Tokens are those of the packaged MiniLM's tokenizer (one a character in Chinese); "with references" counts question,
reference and answer of every answer, "without" question and answer. Shares are of checked sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from annotators.records import LABELS
from mitigate.jsonl import Record
from mitigate.markdown import table
from mitigate.report import NOT_CHECKED, WORDS, kind_of

COUNTS = ("topics", "questions", "answers", "sentences", "tokens with references", "tokens without")
_NONE = "not given"
_HAN_FONTS = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei",
              "PingFang SC", "Microsoft YaHei", "SimHei", "Arial Unicode MS")  # fmt: skip


def counted(
    records: Sequence[Record], count_tokens: Callable[[Sequence[str]], list[int]]
) -> dict[str, dict[str, int]]:
    """Table 2: language → what there is of each of ``COUNTS``."""
    texts = list(dict.fromkeys(r[key] for r in records for key in ("question", "answer", "reference")))
    tokens = dict(zip(texts, count_tokens(texts), strict=True))
    counts = {}
    for language in sorted({record["language"] for record in records}):
        found = [record for record in records if record["language"] == language]
        bare = sum(tokens[r["question"]] + tokens[r["answer"]] for r in found)
        values = (
            len({r["topic"] for r in found}),
            len({(r["topic"], r["question"]) for r in found}),
            len(found),
            sum(len(r["sentences"]) for r in found),
            bare + sum(tokens[r["reference"]] for r in found),
            bare,
        )
        counts[language] = dict(zip(COUNTS, values, strict=True))
    return counts


def label_counts(records: Sequence[Record]) -> dict[tuple[str, str], Counter[str]]:
    """Table 4: (language, with or without reference) → sentences of each label, unchecked ones among them."""
    labels: dict[tuple[str, str], Counter[str]] = {}
    for record in records:
        counter = labels.setdefault((record["language"], record["source"]), Counter())
        counter.update(kind_of(sentence) for sentence in record["sentences"])
    return dict(sorted(labels.items()))


def topic_counts(topics: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """Figure 3: (category, domain) → topics."""
    pairs = Counter((row["category"] or _NONE, row["domain"] or _NONE) for row in topics)
    return dict(sorted(pairs.items()))


def page(
    table2: Mapping[str, Mapping[str, int]],
    table4: Mapping[tuple[str, str], Counter[str]],
    kinds: Mapping[tuple[str, str], int],
    lost: Mapping[str, int],
) -> str:
    """The statistics as Markdown; texts of the user's files are escaped."""
    lines = ["# Statistics of this data set", "", "## What there is", ""]
    lines += table(["language", *COUNTS], [[name, *values.values()] for name, values in table2.items()])
    lines += ["", "## Labels, in percent of checked sentences", ""]
    rows: list[list[object]] = []
    for (language, source), counter in table4.items():
        checked = sum(counter[label] for label in LABELS)
        shares = [f"{100 * counter[label] / checked:.2f}" if checked else "–" for label in LABELS]
        rows.append([language, source, checked, *shares, counter[NOT_CHECKED]])
    head = ["language", "answers", "checked", *(WORDS[label] for label in LABELS), "not checked (number)"]
    lines += table(head, rows)
    lines += ["", "## Topics by category and domain", "", "![topics](topics.png)", ""]
    numbered = enumerate(kinds.items(), start=1)
    lines += table(["no.", "category", "domain", "topics"], [[i, *pair, n] for i, (pair, n) in numbered])
    lines += ["", "## What was left out on the way", ""]
    lines += table(["stage", "lines in its .rejected.jsonl"], [[name, n] for name, n in lost.items() if n])
    return "\n".join(lines) + "\n"


def draw_topics(kinds: Mapping[tuple[str, str], int], path: Path) -> None:
    """Write the ring chart: categories inside, domains outside (PNG, or what the suffix says).

    A name with characters that no installed font has is shown by the numbers of its rows in the page.
    """
    from matplotlib import font_manager
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    files = {font.name: font.fname for font in font_manager.fontManager.ttflist}
    family = ["DejaVu Sans", *[name for name in _HAN_FONTS if name in files][:1]]
    known = {code for name in family for code in font_manager.get_font(files[name]).get_charmap()}

    def shown(text: str, number: str) -> str:
        plain = text[:40].replace("$", r"\$")
        return plain if all(ord(c) in known for c in plain) else f"no. {number}"

    categories: Counter[str] = Counter()
    places: dict[str, list[str]] = {}
    for number, ((category, _), n) in enumerate(kinds.items(), start=1):
        categories[category] += n
        places.setdefault(category, []).append(str(number))
    figure = Figure(figsize=(7.2, 6.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = {name: f"C{i % 10}" for i, name in enumerate(categories)}
    inner = [f"{shown(name, ', '.join(places[name]))}\n{n}" for name, n in categories.items()]
    outer = [f"{shown(domain, str(i))} ({n})" for i, ((_, domain), n) in enumerate(kinds.items(), start=1)]
    edge = {"edgecolor": "white"}
    axes.pie(
        list(categories.values()), radius=0.72, labels=inner, labeldistance=0.71,
        colors=[colours[name] for name in categories], wedgeprops={"width": 0.42, **edge},
        textprops={"ha": "center", "va": "center", "fontsize": 8, "family": family},
    )  # fmt: skip
    axes.pie(
        list(kinds.values()), radius=1.0, labels=outer, labeldistance=1.05,
        colors=[colours[category] for category, _ in kinds], wedgeprops={"width": 0.26, "alpha": 0.55, **edge},
        textprops={"fontsize": 8, "family": family},
    )  # fmt: skip
    figure.savefig(path, dpi=130)
