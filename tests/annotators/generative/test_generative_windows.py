"""What of a long reference the generative annotator shows: windows of sentences and answers, the second pass."""

import json
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engines.embedding import Embedder
from tests.helpers.annotator_server import annotating, correct, input_of
from tests.helpers.engines_server import Server
from tests.helpers.generative_cases import annotator, check_offsets, labels_of

FILLER = [
    f"Paragraph {n} speaks of weather, trade and the people of the valley in year {1700 + n}." for n in range(300)
]
LONG = " ".join([*FILLER[:15], "The bridge opened in 1931.", *FILLER[15:], "It is 503 metres long."])
LONG_ANSWER = "The bridge opened in 1931. It is 530 metres long. Its painter was unknown to all."


class Words:
    """Stands in for the embedder: tokens are words, a text is the bag of them. Loads nothing."""

    reads_chinese = True
    fingerprint = "words"

    def tokenize(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        spans = [[match.span() for match in re.finditer(r"\w+|[^\w\s]", text)] for text in texts]
        return [(np.zeros(len(one), np.int64), np.array(one, np.int64).reshape(-1, 2)) for one in spans]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.zeros((len(texts), 256), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in text.lower().split():
                row[zlib.crc32(word.encode()) % 256] += 1
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)


@pytest.fixture
def embedder() -> Embedder:
    return Words()  # type: ignore[return-value]


def documents(server: Server) -> list[str]:
    return [text for body in server.requests if (text := input_of(body, "document")) is not None]


def test_windows_of_sentences_and_of_the_answer(embedder: Embedder) -> None:
    record = {"reference": LONG, "answer": LONG_ANSWER}
    seen = {}
    for window in ("sentence", "answer", "whole"):
        with annotating(correct) as server:
            judged = annotator(server, embedder, window=window, window_tokens=80).annotate_batch([record])
        assert labels_of(judged) == [["supported", "contradictory", "unverifiable"]]
        check_offsets(judged[0].to_dict())
        seen[window] = documents(server)
    # The third sentence is asked about twice, the second time with about six times the text.
    assert [len(texts) for texts in seen.values()] == [4, 4, 3]
    assert len(set(seen["sentence"])) == 4
    assert len(set(seen["answer"][:3])) == 1
    assert set(seen["whole"]) == {LONG}
    assert 4 < len(seen["sentence"][3]) / len(seen["sentence"][2]) < 8
    first = {line for text in seen["sentence"][:3] for line in text.split("\n[…]\n")}
    assert all(any(piece in line for line in seen["answer"][0].split("\n[…]\n")) for piece in first)


def test_the_second_pass_finds_what_the_window_lacked(embedder: Embedder) -> None:
    """The model says "unverifiable" unless it is shown much, as if the first window had missed the evidence."""

    def careful(body: dict[str, Any]) -> str:
        return "<Hallucination> None" if len(input_of(body, "document") or "") > 600 else "<Hallucination> Unverifiable"

    with annotating(careful) as server:
        judge = annotator(server, embedder, window_tokens=80)
        found = judge.predict([{"sentence": "The bridge opened in 1931.", "reference": LONG}])[0]
        assert (found.label, len(server.requests)) == ("supported", 2)

    def breaks(body: dict[str, Any]) -> str:
        return "" if len(input_of(body, "document") or "") > 600 else "<Hallucination> Unverifiable"

    with annotating(breaks) as server:
        judge = annotator(server, embedder, max_retries=0, window_tokens=80)
        assert judge.predict([{"sentence": "The bridge opened in 1931.", "reference": LONG}])[0].label == "unverifiable"


def test_an_answer_window_does_not_depend_on_the_batch(embedder: Embedder) -> None:
    row = {"reference": LONG, "answer": LONG_ANSWER, "sentence": "It is 530 metres long."}
    with annotating(correct) as server:
        judge = annotator(server, embedder, window="answer", window_tokens=80)
        judge.annotate_batch([{"reference": LONG, "answer": LONG_ANSWER}])
        asked = {json.dumps(body["messages"]) for body in server.requests}
        judge.predict([row])
        assert json.dumps(server.requests[-1]["messages"]) in asked
        assert judge.reads == ("question", "reference", "sentence", "language", "answer")
