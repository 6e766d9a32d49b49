"""Labelled rows for the tests of evaluation, and a stand-in whose answers stand in its rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from annotators import LABELS, Annotator, Fragment, SentenceAnnotation
from annotators.base import Sentence
from tests.helpers.jsonl import write_rows

EN = (
    "You annotate answers.\nQuestion: When?\nReference: The bridge opened in 1931 and is red."
    "\nPlease annotate the answer: It opened in 1931."
)
ZH = "请标注。\n问题：何时？\n参考文档：大桥建于1931年。\n请标注回答：大桥很长。"
GOOD = "<Reference> The bridge opened in 1931\n<Hallucination> None"
OFFICIAL = [
    {"prompt": EN, "golden": GOOD, "reply": GOOD + "<TOKENS_UNUSED_1>"},
    {"prompt": EN, "golden": "<No Fact>", "reply": "None of this"},
    {
        "prompt": ZH,
        "golden": "<参考>大桥建于1931年\n<幻觉>无法验证",
        "reply": "<参考>参考1：“大桥建于1931年。”\n<幻觉>矛盾",
    },
]
"""Prompts, gold and replies in ANAH's form."""


class StandIn(Annotator):
    """Reads its answer from the row's id, e.g. "3 supported 0.8" (the rest of the probability spread evenly).

    An id that ends in a status ("4 too_long") gives a row that was not checked.
    """

    name, fingerprint = "stand-in", "f00d"

    def __init__(self) -> None:
        self.seen: list[Mapping[str, Any]] = []
        self.chunks: list[int] = []

    def judge(self, sentences: Sequence[Sentence]) -> list[SentenceAnnotation]:
        self.seen += [sentence.record for sentence in sentences]
        self.chunks.append(len(sentences))
        return [self._judge(sentence) for sentence in sentences]

    def _judge(self, sentence: Sentence) -> SentenceAnnotation:
        _, word, *chance = sentence.record["id"].split()
        if word not in LABELS:
            return sentence.judged(word)
        p = float(chance[0])
        fragments = (Fragment(sentence.reference[:4], 0, 4),)
        return sentence.scored([p if label == word else (1 - p) / 3 for label in LABELS], fragments=fragments)


def labelled_row(id: str, label: str, source: str = "one", **more: Any) -> dict[str, Any]:
    number = id.split()[0]
    texts = {"reference": f"abcdefgh document {number}", "sentence": f"Sentence {number}."}
    return {"id": id, "source": source, "lang": "en", **texts, "label": label, **more}


FOUR_WAY = [
    labelled_row("0 supported 0.7", "supported", fragments=["cdef"]),
    labelled_row("1 unverifiable 0.7", "supported"),
    labelled_row("2 contradictory 0.7", "contradictory", correction="A better sentence."),
    labelled_row("3 supported 0.4", "unverifiable", language="de"),
    labelled_row("4 too_long", "contradictory"),
    labelled_row("5 no_fact 0.7", "no_fact"),
]
TWO_WAY = [
    labelled_row("6 supported 0.4", "supported", "two"),
    labelled_row("7 contradictory 0.4", "unsupported", "two"),
    labelled_row("8 no_fact 0.4", "unsupported", "two"),
]


def linked_data(folder: Path) -> list[Path]:
    """Rows linked only through other files (sentences/a – spans/c – binary/b), and rows that stand alone."""
    shared, far = "One document about both.", "Another document."
    a = [{"id": "a", "reference": shared, "sentence": "Claim a.", "label": "supported"}]
    b = [{"id": "b", "reference": far, "sentence": "Claim b.", "label": "unsupported"}]
    c = [{"id": "c1", "reference": shared, "answer": "The same answer.", "errors": []}]
    c.append({"id": "c2", "reference": far, "answer": "the same  ANSWER."})
    for i in range(40):
        a.append({"id": f"a{i}", "reference": f"Text {i}.", "sentence": f"A {i}.", "label": "supported"})
        b.append({"id": f"b{i}", "reference": f"Text {i} of b.", "sentence": f"B {i}.", "label": "unsupported"})
    files = {"sentences/a.jsonl": a, "binary/b.jsonl": b, "spans/c.jsonl": c}
    return [write_rows(folder / name, rows) for name, rows in files.items()]
