"""What every report says of annotated records: the words and marks of labels, totals, safe text, Markdown tables.

Records here are dicts as they stand in the output file (``Annotation.to_dict()``). A report repeats what a record says
and judges nothing itself. The terminal report is in ``terminal.py``, the pages are in ``html.py``.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from annotators.records import HALLUCINATED, LABELS, MOST_FAILED
from mitigate.io import counted

Record = Mapping[str, Any]
UNSURE, NOT_CHECKED = "unsure", "not_checked"
KINDS: tuple[str, ...] = (*LABELS, UNSURE, NOT_CHECKED)  # what a sentence can be in a report
WORDS = {kind: kind.replace("_", " ") for kind in KINDS} | {UNSURE: "not sure"}
MARKS = {"supported": "✓", "contradictory": "✗", "unverifiable": "?", "no_fact": "○", UNSURE: "~", NOT_CHECKED: "–"}
STATES = WORDS | {"contradictory": "contradicted", "unverifiable": "not found", UNSURE: "not sure: compare"}
MEANING = {
    "supported": "the reference says so",
    "contradictory": "the reference says otherwise",
    "unverifiable": "the reference does not say",
    "no_fact": "nothing to check in it",
    UNSURE: "judged, but too close to call",
    NOT_CHECKED: "no judgement; the reason is given",
}
REASONS = {
    "no_reference": "there is no reference text to check it against",
    "language_unsupported": "this annotator does not read its language",
    "too_long": "it is too long for this annotator",
    "failed": "the annotator gave no usable judgement",
}
# Characters that show nothing themselves but change a terminal, a page or how the rest is read: controls, marks
# that turn the direction of text, lone surrogates, line separators. A carriage return before a line feed is usual.
HIDDEN = re.compile(
    "\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
Z_95 = 1.959964  # two-sided 95 % point of the normal distribution


def kind_of(sentence: Record) -> str:
    """The label of a checked sentence, "unsure", else "not_checked"."""
    if sentence["status"] == UNSURE:
        return UNSURE
    return sentence["label"] if sentence["status"] == "checked" and sentence["label"] else NOT_CHECKED


def probability_of(sentence: Record) -> float | None:
    """Probability of the given label in [0, 1]; None where there is no label or the annotator has none."""
    return (sentence["scores"] or {}).get(sentence["label"])


def likelihood(sentence: Record) -> str:
    """How probable it is that the source supports a judged sentence, in words; "" where there is no probability.

    A flagged sentence, and an unsure one that is below one half, gets the probability that it is not supported.
    """
    scores = sentence.get("scores")
    if not scores or kind_of(sentence) in ("no_fact", NOT_CHECKED):
        return ""
    p = min(scores["supported"] / max(1 - scores["no_fact"], 1e-9), 1.0)
    against = sentence["label"] in HALLUCINATED or (sentence["label"] is None and p < 0.5)
    p = 1 - p if against else p
    words = ((0.97, "almost certainly"), (0.85, "very probably"), (0.6, "probably"), (0.4, "perhaps"), (0, "possibly"))
    word = next(word for least, word in words if p >= least)
    return f"{word} {'not ' if against else ''}supported ({percent(p)})"


def rival_of(sentence: Record) -> str:
    """The likeliest label that a sentence was not given, with its probability; "" where there is none."""
    others = [(p, label) for label, p in (sentence["scores"] or {}).items() if label != sentence["label"]]
    return f"{WORDS[max(others)[1]]} {percent(max(others)[0])}" if others else ""


def point_of(record: Record) -> str:
    """The operating point of a record's verdicts in words, "" where it has none."""
    point = record.get("operating_point")
    if not point:
        return ""
    return (
        f"{point['name']}: hallucinated from {percent(point['flag_at'])}, supported from "
        f"{percent(point['support_at'])}, where {percent(point['expected_rate'])} are expected to be hallucinated"
    )


def reason_of(status: str) -> str:
    """Why sentences of this status were not checked, in words."""
    return REASONS.get(status, status)


def spans_of(sentence: Record) -> list[tuple[int, int]]:
    """Where the unsupported words of a sentence stand in its text, joined and in order."""
    start, end = sentence["start"], sentence["end"]
    spans = [(max(s["start"], start) - start, min(s["end"], end) - start) for s in sentence.get("spans") or []]
    return merge([(low, high) for low, high in spans if low < high])


def percent(share: float | None) -> str:
    """0.0312 → "3 %"; never rounds a share that is not 0 or 1 to 0 % or 100 %; None → "not known"."""
    if share is None:
        return "not known"
    if 0 < share < 0.01:
        return "<1 %"
    if 0.99 < share < 1:
        return ">99 %"
    return f"{share:.0%}".replace("%", " %")


@dataclass
class Totals:
    """Counts over records, added one at a time so that no file needs to fit in memory."""

    records: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)  # status of the sentences not checked
    annotators: dict[str, str] = field(default_factory=dict)  # fingerprint → name
    points: set[str] = field(default_factory=set)  # operating points in words
    _pairs: Counter[tuple[int, int]] = field(default_factory=Counter)  # records with h hallucinated of f factual ones

    @classmethod
    def of(cls, records: Iterable[Record]) -> Totals:
        totals = cls()
        for record in records:
            totals.add(record)
        return totals

    def add(self, record: Record) -> None:
        kinds = Counter(kind_of(sentence) for sentence in record["sentences"])
        self.records += 1
        self.kinds += kinds
        self.reasons += Counter(s["status"] for s in record["sentences"] if kind_of(s) == NOT_CHECKED)
        annotator = record["annotator"]
        self.annotators[annotator.get("fingerprint", "")] = annotator.get("name", "")
        self.points |= {point_of(record)} - {""}
        hallucinated = sum(kinds[label] for label in HALLUCINATED)
        factual = hallucinated + kinds["supported"]
        if factual:
            self._pairs[hallucinated, factual] += 1

    @property
    def sentences(self) -> int:
        return self.kinds.total()

    @property
    def hallucinated(self) -> int:
        return sum(self.kinds[label] for label in HALLUCINATED)

    @property
    def factual(self) -> int:
        """Judged sentences that state a fact."""
        return self.hallucinated + self.kinds["supported"]

    @property
    def rate(self) -> float | None:
        """Hallucinated / factual in [0, 1]; None when none is factual, or more than half of the sentences failed."""
        return self.hallucinated / self.factual if self.factual and self.failed <= MOST_FAILED else None

    @property
    def undecided(self) -> bool:
        """Whether more sentences are unsure or unchecked than decided: a share of the few decided would mislead."""
        return self.kinds[UNSURE] + self.kinds[NOT_CHECKED] > self.factual

    @property
    def failed(self) -> float:
        """Share of the sentences whose judgement failed."""
        return self.reasons["failed"] / max(1, self.sentences)

    @property
    def coverage(self) -> float | None:
        """Checked / all sentences that state something, in [0, 1]; None where none does."""
        stated = self.sentences - self.kinds["no_fact"]
        return self.factual / stated if stated else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the rate over records like these; None with fewer than two records that count.

        Sentences of one record go together, so n is the effective number of sentences, n_eff = r(1 − r) /
        Var(r), with Var(r) = u/(u − 1) Σ(h − r f)² / F², kept between records and sentences.

        Source: Wilson 1927; ratio estimator and effective n, Korn & Graubard 1998.
        """
        rate, units = self.rate, self._pairs.total()
        if rate is None or units < 2:
            return None
        spread = sum(n * (h - rate * f) ** 2 for (h, f), n in self._pairs.items())
        variance = units / (units - 1) * spread / self.factual**2
        n_eff = rate * (1 - rate) / variance if variance > 0 else units
        n_eff = min(max(n_eff, units), self.factual)
        z2 = Z_95**2
        centre = (rate + z2 / (2 * n_eff)) / (1 + z2 / n_eff)
        half = Z_95 * math.sqrt(rate * (1 - rate) / n_eff + z2 / (4 * n_eff**2)) / (1 + z2 / n_eff)
        return max(0.0, centre - half), min(1.0, centre + half)


def verdict(totals: Totals) -> str:
    """The counts as one sentence: "2 sentences contradict the source, 1 is not in it, 4 are supported." """
    where = "in it" if totals.kinds["contradictory"] else "in the source"
    told: list[str] = []
    for kind, one, many, rest in (
        ("contradictory", "contradicts", "contradict", "the source"),
        ("unverifiable", "is", "are", f"not {where}"),
        ("supported", "is", "are", "supported"),
        (UNSURE, "is", "are", "too close to call"),
        (NOT_CHECKED, "was", "were", "not checked"),
    ):
        if n := totals.kinds[kind]:
            told.append(f"{f'{n:,}' if told else counted(n, 'sentence')} {one if n == 1 else many} {rest}")
    if not totals.sentences:
        return "It has no sentence to judge: it is empty, or thinking alone."
    return ", ".join(told) + "." if told else "Nothing in it states a fact that could be checked."


def interval_text(totals: Totals, before: str = "") -> str:
    """The interval of the rate in words behind ``before``, "" where there is none."""
    if totals.interval is None:
        return ""
    low, high = totals.interval
    return f"{before}95 % interval over records: {percent(low)} to {percent(high)}"


def printable(text: str) -> str:
    """Text safe for a terminal: hidden characters become their names, so no escape sequence survives."""
    if text.isprintable():
        return text
    return HIDDEN.sub(lambda found: f"[U+{ord(found.group()):04X}]", text).replace("\r\n", "\n")


def one_line(text: str, limit: int) -> str:
    """Printable text with white space folded, cut to ``limit`` characters, the last an ellipsis."""
    folded = " ".join(printable(text[: 4 * limit]).split())
    return folded if len(folded) <= limit and len(text) <= 4 * limit else folded[: limit - 1].rstrip() + "…"


def merge(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Overlapping or touching (start, end) pairs joined, in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(pairs):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """The lines of a Markdown table; whole numbers get thousands separators, and no cell can break the table."""
    first, *rest = ["|".join(["", *(f" {_cell(value)} " for value in row), ""]) for row in (head, *rows)]
    return [first, "|".join(["", *("---" for _ in head), ""]), *rest]


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    text = escape(printable(" ".join(str(value).split())), quote=False)
    return text.replace("|", "&#124;").replace("[", "&#91;").replace("`", "&#96;")
