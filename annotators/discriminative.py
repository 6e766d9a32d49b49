"""The embedded discriminative annotator: every sentence of an answer against its window of the reference.

Path of a batch: split answers, check what can't be judged, index each distinct reference once, choose each
sentence's window, embed each distinct text once, alignment features, combiner, second pass for what was found
unverifiable in a long reference. English (whatever the embedder reads), and what Chinese ``chinese_verdict.py`` can
tell; all else gets the status "language_unsupported". It marks what is wrong and proposes no corrections. What the
evidence looks like is in ``annotators/judging.py``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from annotators.annotator_files import Parts, folder_of, read_parts, write_parts
from annotators.calibration import UNSURE, Calibration
from annotators.chinese_verdict import VERSION as CHINESE_VERSION
from annotators.chinese_verdict import judged_chinese
from annotators.claims import VERSION as CLAIMS_VERSION
from annotators.claims import claims_nothing
from annotators.cleaning import clean, clean_text, original_span
from annotators.combiner import DOUBT, Combiner
from annotators.features import FEATURES, VERSION, Idf
from annotators.judging import CONFLICT_CAP, Item, Judge, Verdict, fragments_of
from annotators.language import language_of, reads_as_english
from annotators.lexical import words_of
from annotators.pairs import EXCERPT_TOKENS, LEAST_GAIN
from annotators.records import (
    HALLUCINATED,
    LABELS,
    Annotation,
    SentenceAnnotation,
    Span,
    Status,
    checked,
    input_record,
)
from annotators.sentences import split_sentences
from annotators.spans import VERSION as SPANS_VERSION
from annotators.spans import unsupported_spans

if TYPE_CHECKING:
    from annotators.encoder import PairEncoder
    from engines.embedding import Embedder

EMBEDDED = Path(__file__).with_name("embedded")
MAX_WORDS = 150
"""Sentences of more words are not judged ("too_long"): the windows they need were never seen in training."""
CHUNK = 64
"""Records whose texts are held in memory at once."""


class DiscriminativeAnnotator:
    """Judges sentences by alignment features and a small trained combiner.

    ``reads`` names all that a verdict depends on, for whoever keeps verdicts.

    Args:
        combiner: Features to probabilities.
        idf: Word weights that the features use.
        embedder: Sentence and token embeddings.
        name: What annotations call it.
        embedder_id: What ``save_pretrained`` writes as the embedder: None for the packaged one.
        window_tokens: Budget of a window; None for 400 tokens of English, 540 of Chinese.
        encoder: Reads sentence and evidence together; without one the features alone decide.
    """

    reads = ("question", "reference", "sentence", "language")
    languages = ("en",)
    """Of which every sentence is judged; of Chinese only what is plain."""

    def __init__(
        self,
        combiner: Combiner,
        idf: Idf,
        embedder: Embedder,
        *,
        name: str = "embedded",
        embedder_id: str | None = None,
        window_tokens: int | None = None,
        encoder: PairEncoder | None = None,
    ) -> None:
        self.encoder = encoder
        self.combiner = combiner
        self.idf = idf
        self.embedder = embedder
        self.name = name
        self.embedder_id = embedder_id
        digest = hashlib.sha256(
            f"{VERSION} {CLAIMS_VERSION} {CHINESE_VERSION} {SPANS_VERSION} "
            f"{CONFLICT_CAP} {DOUBT} {EXCERPT_TOKENS} {LEAST_GAIN} "
            f"{' '.join(FEATURES)} {embedder.fingerprint}".encode()
        )
        for key in sorted(combiner.tensors):
            digest.update(key.encode() + combiner.tensors[key].tobytes())
        digest.update(idf.table.tobytes() + str(window_tokens).encode())
        if encoder is not None:
            digest.update(f"{encoder.base} {encoder.fingerprint}".encode())
        self.fingerprint = digest.hexdigest()[:16]
        self._judge = Judge(combiner, idf, embedder, window_tokens, encoder)
        self._calibration: Calibration | None = None

    @classmethod
    def from_pretrained(
        cls,
        name: str = "embedded",
        *,
        device: str | None = None,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        window_tokens: int | None = None,
        calibration: str | Path | None = None,
    ) -> DiscriminativeAnnotator:
        """Load "embedded" (shipped inside the package), or a folder or hub id written by ``save_pretrained``.

        Args:
            name: "embedded", a folder, or a hub id.
            device: "cpu", "cuda"…; None takes cuda where there is one.
            dtype: Of the encoder; "auto" is bfloat16 where the hardware has it.
            window_tokens: Budget of a window; None for 400 tokens of English, 540 of Chinese.
            calibration: File of `mitigate calibrate`, made for this annotator.

        Raises:
            OSError: The folder or hub id has no annotator, or there is no such calibration.
            ValueError: It was made for other features than this version computes, or the calibration for another one.
        """
        from engines.embedding import Embedder

        parts = read_parts(EMBEDDED if name == "embedded" else folder_of(name))
        encoder = None
        if parts.encoder is not None:
            from annotators.encoder import PairEncoder

            encoder = PairEncoder(parts.base, parts.encoder, device=device, dtype=dtype)
        annotator = cls(
            parts.combiner,
            parts.idf,
            Embedder(parts.embedder, device=device, dtype=dtype),
            name=name,
            embedder_id=parts.embedder,
            window_tokens=window_tokens,
            encoder=encoder,
        )
        return annotator if calibration is None else annotator.calibrated(Calibration.load(calibration))

    def calibrated(self, calibration: Calibration) -> DiscriminativeAnnotator:
        """Itself, from now on with calibrated probabilities and thresholds, and the calibration's fingerprint."""
        self._calibration = calibration.for_annotator(self.fingerprint, self.name)
        self.fingerprint = calibration.fingerprint
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the files of ``annotators/annotator_files.py`` into a folder, which is made."""
        base, stored = (None, None) if self.encoder is None else (self.encoder.base, self.encoder.stored)
        write_parts(Parts(self.combiner, self.idf, self.embedder_id, base, stored), Path(folder))

    def annotate(
        self, *, reference: str, answer: str, question: str | None = None, language: str | None = None
    ) -> Annotation:
        """Judge one answer; see ``annotate_batch``."""
        return self.annotate_batch([input_record(reference, answer, question, language)])[0]

    def annotate_batch(self, records: Iterable[Mapping[str, Any]]) -> list[Annotation]:
        """Judge every sentence of every answer.

        Args:
            records: {"reference": str, "answer": str, "question"?: str, "language"?: str}; other keys pass through.

        Returns:
            One annotation per record, in order.

        Raises:
            ValueError: A record lacks a reference or an answer, or one is not a string.
        """
        records = checked(records, ("reference", "answer"))
        spans = [split_sentences(record["answer"]) for record in records]
        rows = [row for record, cuts in zip(records, spans, strict=True) for row in _rows(record, cuts)]
        offsets = [a for cuts in spans for a, _ in cuts]
        judged = self._annotate_rows(rows, offsets)
        done = 0
        annotations = []
        for record, cuts in zip(records, spans, strict=True):
            annotations.append(Annotation(dict(record), tuple(judged[done : done + len(cuts)]), self._who()))
            done += len(cuts)
        return annotations

    def annotate_spans(
        self, record: Mapping[str, Any], spans: Sequence[tuple[int, int]]
    ) -> list[SentenceAnnotation]:
        """Judge some sentences of one answer as ``annotate`` judges them, for whoever shows them one by one.

        Args:
            record: As for ``annotate_batch``.
            spans: Offsets of sentences, of those that ``split_sentences`` finds in the answer.
        """
        checked([record], ("reference", "answer"))
        return self._annotate_rows(_rows(record, spans), [a for a, _ in spans])

    def predict(self, rows: Iterable[Mapping[str, Any]]) -> list[SentenceAnnotation]:
        """Judge ``row["sentence"]`` as it is given against ``row["reference"]``.

        Args:
            rows: {"reference": str, "sentence": str, "question"?: str, "language"? or "lang"?: str}.

        Returns:
            One judgement per row, in order, with offsets into the sentence.

        Raises:
            ValueError: A row lacks a reference or a sentence, or one is not a string.
        """
        rows = checked(
            [
                {**row, "language": row.get("language") or row.get("lang")}
                if isinstance(row, Mapping)
                else row
                for row in rows
            ],
            ("reference", "sentence"),
        )
        return self._annotate_rows(
            [{**_context(r), "sentence": r["sentence"]} for r in rows], [0] * len(rows)
        )

    def _who(self) -> dict[str, str]:
        return {"name": self.name, "fingerprint": self.fingerprint}

    def _annotate_rows(
        self, rows: Sequence[Mapping[str, Any]], offsets: Sequence[int]
    ) -> list[SentenceAnnotation]:
        """Judge rows in chunks of equal references, so that each reference is indexed once."""
        out: list[SentenceAnnotation | None] = [None] * len(rows)
        items: list[tuple[int, Item]] = []
        for i, row in enumerate(rows):
            text, start = row["sentence"], offsets[i]
            item = Item(clean_text(text), row["reference"], clean_text(row["question"]))
            status = unjudgeable(row, item.sentence)
            if status is not None:
                chinese = judged_chinese(row, start) if status == "language_unsupported" else None
                out[i] = chinese or SentenceAnnotation(text, start, start + len(text), status)
            elif not len(words_of(item.sentence)) or claims_nothing(item.sentence):  # dashes, emoji, talk
                scores = {label: float(label == "no_fact") for label in LABELS}
                out[i] = SentenceAnnotation(text, start, start + len(text), "checked", "no_fact", scores)
            else:
                items.append((i, item))
        items.sort(key=lambda pair: pair[1].reference)
        for first, last in _chunks([item.reference for _, item in items]):
            chunk = items[first:last]
            with self._judge.memory():
                verdicts = self._recalibrated(self._judge([item for _, item in chunk]))
            for (i, _), verdict in zip(chunk, verdicts, strict=True):
                out[i] = _sentence_annotation(rows[i]["sentence"], offsets[i], verdict)
        return [sentence for sentence in out if sentence is not None]

    def _recalibrated(self, verdicts: list[Verdict]) -> list[Verdict]:
        if self._calibration is None or not verdicts:
            return verdicts
        chances, labels = self._calibration.judge(
            np.stack([v.probabilities for v in verdicts]), np.array([v.label for v in verdicts])
        )
        return self._judge.marked(
            [
                replace(v, probabilities=p, label=int(label))
                for v, p, label in zip(verdicts, chances, labels, strict=True)
            ]
        )


def unjudgeable(row: Mapping[str, Any], sentence: str) -> Status | None:
    """Why a sentence can't be judged, or None where it can be.

    Args:
        row: With ``reference``, ``language`` (declared, or None) and, of a whole answer, ``answer_language``.
        sentence: The clean sentence.
    """
    if not clean_text(row["reference"]).strip():
        return "no_reference"
    declared = (row.get("language") or "en").lower()
    if not (declared == "en" or declared.startswith(("en-", "en_"))):
        return "language_unsupported"
    whole = row.get("answer_language", "en")
    if (
        not reads_as_english(clean_text(row["reference"]))
        or not reads_as_english(sentence)
        or whole not in {"en", "none", "zh"}
    ):
        return "language_unsupported"
    return "too_long" if len(sentence.split()) > MAX_WORDS or len(sentence) > 8 * MAX_WORDS else None


def _sentence_annotation(text: str, start: int, verdict: Verdict) -> SentenceAnnotation:
    if verdict.label == UNSURE:
        return SentenceAnnotation(text, start, start + len(text), "unsure")
    return SentenceAnnotation(
        text=text,
        start=start,
        end=start + len(text),
        status="checked",
        label=LABELS[verdict.label],
        scores={label: float(p) for label, p in zip(LABELS, verdict.probabilities, strict=True)},
        fragments=fragments_of(verdict),
        spans=_spans(text, start, verdict) if LABELS[verdict.label] in HALLUCINATED else None,
    )


def _spans(text: str, start: int, verdict: Verdict) -> tuple[Span, ...]:
    """The unsupported words of a hallucinated sentence, as offsets into the answer."""
    found = unsupported_spans(verdict.item.sentence, verdict.met, verdict.weight, verdict.token_scores)
    origin = clean(text)[1]
    places = [original_span(text, origin, a, b) for a, b in found]
    return tuple(Span(start + a, start + b) for a, b in places)


def _chunks(references: Sequence[str]) -> list[tuple[int, int]]:
    """Cut rows, sorted by reference, into runs of at most CHUNK distinct references (a run never splits one)."""
    starts = [i for i in range(len(references)) if i == 0 or references[i] != references[i - 1]]
    edges = [*starts[::CHUNK], len(references)]
    return list(pairwise(edges)) if references else []


def _rows(record: Mapping[str, Any], spans: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    answer_language = language_of(clean_text(record["answer"]))
    shared = {**_context(record), "answer_language": answer_language}
    return [{**shared, "sentence": record["answer"][a:b]} for a, b in spans]


def _context(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "reference": record["reference"],
        "question": record.get("question") or "",
        "language": record.get("language"),
    }
