"""Verdicts and embeddings that are asked for once: what stands between a reward and its models.

Verdicts are kept by the annotator's fingerprint and every input that the annotator reads, so a changed reference or
question, or another annotator, is judged anew. Kept in memory, the least recently used is dropped first. Failed
verdicts are not kept.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from annotators.records import Annotator, Label, Status

if TYPE_CHECKING:
    from engines.embedding import Embedder

READS = ("question", "reference", "sentence", "language")
"""What ``Annotator.predict`` reads, unless the annotator has a ``reads`` of its own ("answer" may be among them)."""
_ONE_AT_A_TIME = threading.Lock()
"""Models are not re-entrant, and rewards may share one: async rewards run in threads."""


@dataclass(frozen=True)
class Verdict:
    """What is kept of a sentence's judgement."""

    status: Status
    label: Label | None


@dataclass(frozen=True)
class Judging:
    """Verdicts in the order of the rows, with the number of distinct sentences judged and rows found in the cache."""

    verdicts: list[Verdict]
    asked: int
    hits: int


class Verdicts:
    """Judges sentences in one batch, each distinct one once.

    Args:
        annotator: Judges ``{"question", "reference", "sentence", "language", "answer"}``.
        size: Verdicts to keep, 0 for none.
    """

    def __init__(self, annotator: Annotator, size: int) -> None:
        self.annotator = annotator
        self.size = size
        self.reads: tuple[str, ...] = tuple(getattr(annotator, "reads", READS))
        self._kept: OrderedDict[bytes, Verdict] = OrderedDict()

    def key(self, row: Mapping[str, Any]) -> bytes:
        """sha256 over the fingerprint and the fields that the annotator reads, each with its length."""
        digest = hashlib.sha256(self.annotator.fingerprint.encode())
        for field in self.reads:
            value = row.get(field)
            data = b"" if value is None else str(value).encode("utf-8", "surrogatepass")
            digest.update(f"|{field}:{'none' if value is None else len(data)}|".encode() + data)
        return digest.digest()

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Judging:
        """Judge rows, in order, with one call of the annotator for those that are not known."""
        keys = [self.key(row) for row in rows]
        with _ONE_AT_A_TIME:
            found = {key: self._kept[key] for key in keys if key in self._kept}
            hits = sum(key in found for key in keys)
            new = {key: row for key, row in zip(keys, rows, strict=True) if key not in found}
            if new:
                fields = [{f: row[f] for f in self.reads if row.get(f) is not None} for row in new.values()]
                judged = self.annotator.predict(fields)
                if len(judged) != len(new):
                    raise ValueError(
                        f"annotator {self.annotator.name!r}: expected {len(new)} judgements, got {len(judged)}"
                    )
                for key, sentence in zip(new, judged, strict=True):
                    found[key] = Verdict(sentence.status, sentence.label)
            self._keep(found)
        return Judging([found[key] for key in keys], len(new), hits)

    def _keep(self, found: Mapping[bytes, Verdict]) -> None:
        for key, verdict in found.items():
            if verdict.status != "failed":
                self._kept[key] = verdict
                self._kept.move_to_end(key)
        while len(self._kept) > self.size:
            self._kept.popitem(last=False)


class Vectors:
    """Sentence embeddings, each distinct text once as long as it is kept.

    Args:
        embedder: Where they come from.
        size: Vectors to keep; 20,000 of MiniLM take 31 MB.
    """

    def __init__(self, embedder: Embedder, size: int) -> None:
        self.embedder = embedder
        self.size = size
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()

    def __call__(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Text → (D,) float32 of length 1."""
        with _ONE_AT_A_TIME:
            found = {text: self._kept[text] for text in texts if text in self._kept}
            new = [text for text in dict.fromkeys(texts) if text not in found]
            if new:
                found.update(zip(new, self.embedder.encode(new), strict=True))
            for text, vector in found.items():
                self._kept[text] = vector
                self._kept.move_to_end(text)
            while len(self._kept) > self.size:
                self._kept.popitem(last=False)
        return found
