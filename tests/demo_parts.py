"""What the tests of the demo share: an answer, an annotator by rule, a reader of pages, a run folder."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.rule_annotator import RuleAnnotator

REFERENCE = "The mill was built in 1804. It has red roofs.\nbaker -> miller"
ANSWER = "The mill was built in 1804. Its owner was a baker. It stood near Ostrand. how nice."


class SpanRule(RuleAnnotator):
    """As the rule annotator, and able to judge some sentences of an answer."""

    def annotate_spans(self, record: Any, spans: Any) -> list[Any]:
        self.calls += 1
        return [self._judge(record, start, end) for start, end in spans]


class _Reader(HTMLParser):
    """Text inside the element of a class, and every tag and attribute met."""

    def __init__(self, wanted: str) -> None:
        super().__init__(convert_charrefs=True)
        self.wanted, self.depth, self.text = wanted, 0, ""
        self.tags: set[str] = set()
        self.values: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.values += [value or "" for _, value in attrs]
        if self.depth or self.wanted in (dict(attrs).get("class") or "").split():
            self.depth += 1

    def handle_endtag(self, tag: str) -> None:
        self.depth -= self.depth > 0

    def handle_data(self, data: str) -> None:
        self.text += data if self.depth else ""


def read(page: str, wanted: str) -> _Reader:
    reader = _Reader(wanted)
    reader.feed(page)
    reader.close()
    return reader


def sentence(text: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    plain = {"text": text[start:end], "start": start, "end": end, "status": "checked", "label": "supported"}
    return {**plain, "scores": None, "fragments": [], "correction": [], **more}


def write_run(folder: Path) -> Path:
    """A run folder with a curve, a half-written line and one question before and after."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("kind: rlhf\nabout: <b>bold</b>\n")
    rows = [
        {"step": i, "reward": i / 2, "factuality/hallucination_rate": None if i == 1 else 0.5}
        for i in range(3)
    ]
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows) + '{"step": 3, "rew'
    )
    annotator = RuleAnnotator()
    before = annotator.annotate(question="q?", reference=REFERENCE, answer="Its owner was a baker.").to_dict()
    after = {"question": "q?", "answer": "The mill was <i>built</i> in 1804."}
    samples = [
        {"when": "before", "set": "a", **before},
        {"when": "after", "set": "a", **after},
        {"when": "later"},
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
    return folder
