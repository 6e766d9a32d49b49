# ruff: noqa: E501  (tables)
"""Records for the generative annotator, with the labels that a correct model gives, and the annotator of a server."""

import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from annotators.generative.annotator import GenerativeAnnotator
from annotators.generative.protocols import Options
from annotators.generative.tagged import FAILURES
from engines.openai_engine import OpenAIEngine
from tests.helpers.engines_server import Server

RECORDS: list[dict[str, Any]] = [
    {"id": 1, "question": "When did the bridge open?", "reference": "The bridge opened in 1931. It is 503 metres long.",
     "answer": "Hello there! The bridge opened in 1931. It is 530 metres long. It cost a fortune."},
    {"id": 2, "reference": "水坝建于1959年。它高120米。", "answer": "你好！水坝建于1969年。它高120米。它很有名。"},
    {"id": 3, "reference": " ", "answer": "The bridge opened in 1931."},
    {"id": 4, "reference": "Le pont a ouvert en 1931.", "answer": "Le pont a été ouvert dans la ville en 1931.", "language": "fr"},
    {"id": 5, "reference": "The bridge opened in 1931.", "answer": "The bridge opened in 1931."},
]  # fmt: skip
LABELS = [
    ["no_fact", "supported", "contradictory", "unverifiable"],
    ["no_fact", "contradictory", "supported", "unverifiable"],
    [None], [None], ["supported"],
]  # fmt: skip


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


def annotator(server: Server, embedder: Any = None, **options: Any) -> GenerativeAnnotator:
    engine = OpenAIEngine("m", server.url, max_retries=0, timeout=60.0)
    return GenerativeAnnotator(engine, Options(**options), embedder=embedder)


def labels_of(judged: list[Any]) -> list[list[str | None]]:
    return [[sentence.label for sentence in one.sentences] for one in judged]


def check_offsets(record: dict[str, Any]) -> None:
    for sentence in record["sentences"]:
        assert record["answer"][sentence["start"] : sentence["end"]] == sentence["text"]
        assert (sentence["label"] is None) == (sentence["status"] != "checked")
        for fragment in sentence["fragments"]:
            assert record["reference"][fragment["start"] : fragment["end"]] == fragment["text"]
            assert 0.8 <= fragment.get("match", 1) <= 1
        for edit in sentence["correction"]:
            assert record["answer"][edit["start"] : edit["end"]] == edit["from"]
            assert sentence["start"] <= edit["start"] < edit["end"] <= sentence["end"]
        assert set(sentence.get("problems", ())) <= set(FAILURES)
