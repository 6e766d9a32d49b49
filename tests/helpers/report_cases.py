"""Annotated records and a strict reader of pages, for the tests of reports and of the demo."""

from html.parser import HTMLParser
from typing import Any

from tests.helpers.standin import ExactAnnotator

REFERENCE = "The tower is 330 metres high. It stands in Paris."
ANSWER = "It stands in Paris. The tower is 300 metres high. It is grey. Thanks!"
STATUSES = {"~": "unsure", "-": "too_long"}
LETTERS = {"s": "supported", "c": "contradictory", "u": "unverifiable", "n": "no_fact"}


def sentence(text: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    plain = {"text": text[start:end], "start": start, "end": end, "status": "checked", "label": "supported"}
    return {**plain, "scores": None, "fragments": [], "correction": [], **more}


def record_of(kinds: str, **extra: Any) -> dict[str, Any]:
    """A record with one sentence "A." per letter: s, c, u, n as labels, ~ for unsure, - for not checked."""
    answer = " ".join("A." for _ in kinds)
    verdicts = [{"label": LETTERS.get(k), "status": STATUSES.get(k, "checked")} for k in kinds]
    sentences = [sentence(answer, 3 * i, 3 * i + 2, **verdict) for i, verdict in enumerate(verdicts)]
    annotator = {"name": "exact", "fingerprint": "exact-1"}
    return {"reference": "r", "answer": answer, **extra, "sentences": sentences, "annotator": annotator}


def annotated(reference: str, answer: str, **extra: Any) -> dict[str, Any]:
    record = {"reference": reference, "answer": answer, **extra}
    return ExactAnnotator().annotate_batch([record])[0].to_dict()


class Page(HTMLParser):
    """Reads HTML strictly: every element is closed in order; (tag, attributes, text) of each is kept."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.elements: list[tuple[str, dict[str, str | None], str]] = []
        self.feed(text)
        self.close()
        assert self.stack == []
        self.tags = {tag for tag, _, _ in self.elements}
        self.attributes = [pair for _, attrs, _ in self.elements for pair in attrs.items()]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        if tag in ("meta", "br"):  # never closed
            self.elements.append((tag, dict(attrs), ""))
        else:
            self.stack.append((tag, dict(attrs), []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        name, attrs, text = self.stack.pop()
        assert name == tag
        self.elements.append((tag, attrs, "".join(text)))

    def handle_data(self, data: str) -> None:
        for _, _, text in self.stack:
            text.append(data)

    def texts(self, class_: str, tag: str | None = None) -> list[str]:
        return [t for name, a, t in self.elements if class_ in (a.get("class") or "").split() and tag in (None, name)]

    def named(self, tag: str) -> list[str]:
        return [text for name, _, text in self.elements if name == tag]
