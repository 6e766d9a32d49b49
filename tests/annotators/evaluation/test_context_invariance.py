"""The surroundings that the context benchmark builds: the evidence stays whole, and stands where it should."""

from __future__ import annotations

import pytest

from annotators.records import LABELS, SentenceAnnotation
from benchmarks.context_invariance import COUNTS, GAP, changes, paragraphs, variants

OTHERS = [f"Paragraph {n} of another document." for n in range(30)]
REFERENCE = "The bridge opened in 1932. It is 134 metres high."


@pytest.mark.parametrize(("number", "before"), [(0, 1.0), (1, 0.0), (2, 0.5)])
def test_paragraphs_go_before_behind_and_around(number: int, before: float) -> None:
    made = variants(REFERENCE, OTHERS, number)
    for n in COUNTS:
        parts = made[f"{n} added"].split(GAP)
        assert sorted(parts) == sorted([REFERENCE, *OTHERS[:n]])
        assert parts.index(REFERENCE) == int(n * before)
    assert made["alone"] == REFERENCE
    assert made["first of ten"].split(GAP)[0] == made["last of ten"].split(GAP)[-1] == REFERENCE
    assert made["torn apart"].split(GAP) == ["The bridge opened in 1932.", OTHERS[0], "It is 134 metres high."]


def test_paragraphs_are_of_whole_sentences_and_not_too_long() -> None:
    long = "This sentence has exactly eight words in it. " * 20
    rows = [{"reference": long}, {"reference": long}, {"reference": "Too short."}]
    assert paragraphs(rows, 0) == [" ".join(["This sentence has exactly eight words in it."] * 3)]


def sentence(label: str, supported: float) -> SentenceAnnotation:
    scores = dict(zip(LABELS, (supported, 1 - supported, 0.0, 0.0), strict=True))
    return SentenceAnnotation("a", 0, 1, "checked", label, scores)  # type: ignore[arg-type]


def test_changes_by_hand() -> None:
    judged = [
        {"a": sentence("supported", 0.9), "b": sentence("contradictory", 0.4)},
        {"a": sentence("unverifiable", 0.2), "b": sentence("contradictory", 0.1)},
        {"a": sentence("supported", 0.7), "b": sentence("supported", 0.7)},
        {"a": sentence("supported", 0.7), "b": sentence("no_fact", 0.7)},
    ]
    found = changes(judged, "a", "b")
    assert found["two-way"].tolist() == [1, 0, 0, 0]
    assert found["label"].tolist() == [1, 1, 0, 1]
    assert found["shift"].tolist() == pytest.approx([0.5, 0.1, 0, 0])
