"""Unsupported words: by hand, as offsets into the answer, never of what is supported, and in the reports."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from annotators import Annotator, load_annotator
from annotators.records import HALLUCINATED
from annotators.text.words import words_of
from annotators.verifier.judging import doubts, unsupported_spans
from mitigate.report.terminal import render_record

REFERENCE = (
    "The lighthouse at Cape Farewell was built in 1870. It stands 27 metres high and its lamp could be seen for 17 "
    "miles. Its first keeper was Robert Wilson, who lived there with his wife Mary for eleven years."
)


@pytest.fixture(scope="module")
def annotator() -> Annotator:
    return load_annotator("embedded")


@pytest.mark.parametrize(
    ("missing", "marked"),
    [
        ("", []),
        ("1870", ["1870"]),
        ("smith", ["John Smith"]),  # a name is judged as a whole
        ("lamp lighthouse", ["lamp of the lighthouse"]),  # "of the" goes along
        ("lighthouse john smith", ["lighthouse", "John Smith"]),  # "was lit by" does not
        ("red green", ["Red", "green"]),  # only spaces join
    ],
)
def test_spans_of_missing_words(missing: str, marked: list[str]) -> None:
    sentence = "The lamp of the lighthouse was lit by John Smith in 1870: Red, green and blue."
    words = words_of(sentence)
    matched = np.array([[float(word not in missing.split())] for word in words.lower])  # one passage
    assert [sentence[a:b] for a, b in unsupported_spans(sentence, matched, np.ones(len(words)))] == marked


@pytest.mark.parametrize(
    ("matched", "spans"),
    [
        (np.zeros((3, 0)), [(0, 14)]),  # without passages everything is unsupported
        # only the three nearest passages back a word; the last one matches the least of the sentence
        ([[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1]], [(9, 14)]),
        ([[1, 0], [1, 0], [0, 1]], []),
        ([[0.9], [0.8], [1]], [(4, 8)]),  # the most doubtful word, though no doubt reaches UNBACKED, 0.3
    ],
)
def test_spans_by_hand(matched: list[list[float]], spans: list[tuple[int, int]]) -> None:
    assert unsupported_spans("red lamp zebra", np.array(matched, float), np.ones(3)) == spans
    assert unsupported_spans("…", np.zeros((0, 0)), np.zeros(0)) == []


def test_best_passage_and_encoder_count() -> None:
    words, matched = words_of("red lamp"), np.array([[0.2, 0.9], [0.0, 0.4]])
    assert doubts(words, matched).tolist() == pytest.approx([0.1, 0.6])
    # encoder: the pieces "re" 0.2 and "d" 0.8 of the first word, half and half with the alignment
    both = doubts(words, matched, [(0, 2, 0.2), (2, 3, 0.8), (4, 8, 0.4)])
    assert both.tolist() == pytest.approx([(0.1 + 0.8) / 2, (0.6 + 0.4) / 2])
    assert np.isnan(doubts(words_of("of the"), np.ones((2, 1)))).all()


def test_spans_of_records(annotator: Annotator) -> None:
    answer = "It stands 27 metres high.  Its \u200bfirst keeper was Ann\u200b Baker from Dunedin. Hello!"
    answer += " It was built in 1902."
    annotation = annotator.annotate(reference=REFERENCE, answer=answer)
    seen = 0
    for sentence in annotation.sentences:
        if sentence.label not in HALLUCINATED:
            assert sentence.spans is None
            continue
        assert sentence.spans is not None
        edges = [edge for span in sentence.spans for edge in (span.start, span.end)]
        assert edges == sorted(set(edges))
        assert all(sentence.start <= edge <= sentence.end for edge in edges)
        assert all(answer[span.start : span.end].strip() for span in sentence.spans)
        seen += len(sentence.spans)
    assert seen >= 2
    words = " ".join(answer[s.start : s.end] for t in annotation.sentences for s in t.spans or ())
    assert "Dunedin" in words
    assert "keeper" not in words


def test_terminal_marks_the_words_and_keeps_the_text() -> None:
    sentence = {
        "text": "Built in 1902.", "start": 3, "end": 17, "status": "checked", "label": "contradictory", "scores": None,
        "fragments": [], "correction": [], "spans": [{"start": 12, "end": 16}],
    }  # fmt: skip
    record = {"answer": "Oh Built in 1902.", "reference": "", "sentences": [sentence]}
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=80)
    console.print(render_record(record, 1))
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b[1;4;31m1902\x1b[0m" in out
    assert "\x1b[1;31mBuilt in \x1b[0m" in out
