"""The work behind the page and its endpoints, without Gradio: checked input in, records out."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from annotators.base import Annotator
from annotators.records import SentenceAnnotation, hallucination_rate
from annotators.text.sentences import split_sentences
from fewl.records import RecordError, read_record
from mitigate.demo.limits import Limits, Refusal, check_answer

if TYPE_CHECKING:
    from engines.embedding import Embedder
    from fewl.similarity import Encode


# ----------------------------------------------------------------------------------------------------
# The models behind the page: loaded when first asked for, kept, and used by one call at a time.
#
# An annotator is asked in short steps, and the lock is given back between them, so that people who use the page at the
# same time take turns.

KEPT = 2
"""Annotators in memory; the one that was used longest ago goes first."""


class Shelf:
    """Annotators by name.

    Args:
        names: Those offered; the first is the default.
        open_choice: Whether any other name may be asked for too. A name can be a path of this machine or the address of
            a server that then gets texts and keys, so this is for a page that only its owner reaches.
        load: Makes an annotator of a name; None is ``load_annotator``.
    """

    def __init__(
        self,
        names: Sequence[str] = ("embedded",),
        *,
        open_choice: bool = False,
        load: Callable[[str], Annotator] | None = None,
    ) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.open_choice = open_choice
        self._load = load or _load_annotator
        self._turns: dict[str, threading.Lock] = {}
        self._loading = threading.Lock()
        self._kept: OrderedDict[str, Annotator] = OrderedDict()

    def annotator(self, name: str | None) -> Annotator:
        """The annotator of that name.

        Raises:
            Refusal: It is not offered, or can't be loaded.
        """
        name = (name or self.names[0]).strip()
        if name not in self.names and not self.open_choice:
            raise Refusal(
                f"The annotator {name!r} is not offered here, only {', '.join(self.names)}. "
                "Whoever runs the page can add it with --annotator."
            )
        with self._loading:
            if name not in self._kept:
                self._kept[name] = self._loaded(name)
            self._kept.move_to_end(name)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return self._kept[name]

    def turn(self, name: str) -> threading.Lock:
        """What to hold while a model works: one lock for each annotator (by its name) and for "embedder"."""
        return self._turns.setdefault(name, threading.Lock())

    @cached_property
    def embedder(self) -> Embedder:
        """The packaged sentence embeddings."""
        from engines.embedding import Embedder

        return Embedder(dtype="float32")

    def warm(self) -> None:
        """Load the default annotator in the background, so that the first call waits less."""

        def load() -> None:
            try:
                annotator = self.annotator(None)
                with self.turn(annotator.name):
                    annotator.annotate(reference="It opened in 1931.", answer="It opened in 1931.")
            except Exception:  # the call that needs it will say so
                return

        threading.Thread(target=load, daemon=True, name="warm").start()

    def _loaded(self, name: str) -> Annotator:
        try:
            return self._load(name)
        except ImportError as error:
            raise Refusal(f"The annotator {name!r} needs more packages: {error}") from error
        except Exception as error:  # whatever a checkpoint or a server makes of it, the page goes on
            detail = " ".join(str(error).split())[:400] or type(error).__name__
            raise Refusal(f"The annotator {name!r} can't be loaded: {detail}") from error


def _load_annotator(name: str) -> Annotator:
    from annotators import load_annotator

    return load_annotator(name)


# ----------------------------------------------------------------------------------------------------
# One answer judged piece by piece, so that sentences are shown as they are judged.

STEP_SECONDS = 0.7
"""How long a step should take: short enough to watch, long enough that starting one does not count."""


@dataclass(frozen=True)
class Partial:
    """An answer of which the first sentences are judged.

    Args:
        record: The input and, as in an annotated record, what is judged so far.
        waiting: Offsets of the sentences that are not judged yet.
    """

    record: dict[str, Any]
    waiting: tuple[tuple[int, int], ...]

    @property
    def done(self) -> bool:
        return not self.waiting


def annotate_stepwise(shelf: Shelf, name: str | None, record: Mapping[str, Any]) -> Iterator[Partial]:
    """Judge an answer, yielding after every step; the last is the whole annotation.

    It judges one sentence, then more at a time as long as a step is quick. Sentences and order are those of
    ``annotate``.

    Raises:
        Refusal: The annotator can't be had, or fails.
    """
    spans = tuple(split_sentences(record["answer"]))
    yield Partial(_record(record, [], {}), spans)  # shown while the annotator loads
    annotator = shelf.annotator(name)
    judged: list[SentenceAnnotation] = []
    size = 1
    most = max(8, len(spans) // 8)
    while len(judged) < len(spans):
        start = perf_counter()
        with shelf.turn(annotator.name):
            judged += _judge(annotator, record, spans[len(judged) : len(judged) + size])
        yield Partial(_record(record, judged, annotator.who), spans[len(judged) :])
        seconds = max(perf_counter() - start, 1e-3)
        size = max(1, min(most, 4 * size, int(size * STEP_SECONDS / seconds)))


def annotate_whole(shelf: Shelf, name: str | None, record: Mapping[str, Any]) -> dict[str, Any]:
    """Judge an answer in one step; the annotated record.

    Raises:
        Refusal: The annotator can't be had, or fails.
    """
    annotator = shelf.annotator(name)
    with shelf.turn(annotator.name):
        judged = _judge(annotator, record, split_sentences(record["answer"]))
    return _record(record, judged, annotator.who)


def _judge(
    annotator: Annotator, record: Mapping[str, Any], spans: Sequence[tuple[int, int]]
) -> list[SentenceAnnotation]:
    try:
        return annotator.annotate_spans(record, spans)
    except Exception as error:
        detail = " ".join(str(error).split())[:400] or type(error).__name__
        raise Refusal(f"The annotator {annotator.name!r} failed: {detail}") from error


def _record(record: Mapping[str, Any], judged: list[SentenceAnnotation], who: dict[str, str]) -> dict[str, Any]:
    return {
        **record,
        "sentences": [sentence.to_dict() for sentence in judged],
        "annotator": who,
        "hallucination_rate": hallucination_rate(sentence.label for sentence in judged),
    }


# ----------------------------------------------------------------------------------------------------
# FEWL of one question on the page: the scores, and the parts that they are made of.

SIMILARITIES = ("cosine", "new-words", "rouge-l")
AGGREGATIONS = ("eq6", "paper")
MAX_ANSWERS = 20
MAX_TEXTS = 200
"""Reference answers, IW and CO answers of one question."""
MAX_NEIGHBOURS = 200


def fewl_record(
    shelf: Shelf,
    limits: Limits,
    record: Mapping[str, Any],
    *,
    neighbours: Sequence[Mapping[str, Any]] = (),
    aggregation: str = "eq6",
    similarity: str = "cosine",
) -> dict[str, Any]:
    """Score the answers of one record.

    Args:
        shelf: Has the embedder.
        limits: Of the texts.
        record: {"question", "answers", "reference_answers", "iw"?, "co"?}, see ``fewl/records.py``.
        neighbours: Other questions with reference answers, for the laziness penalty; without any there is none.
        aggregation: One of AGGREGATIONS.
        similarity: One of SIMILARITIES.

    Returns:
        The record with ``score``, ``truthfulness`` and ``laziness`` of each answer and ``similarity`` ({LLM: s(y, h_i),
        the mean over its texts}), with ``lambda`` ({LLM: λ_i}), and ``scored_with`` (names of what was chosen).

    Raises:
        Refusal: The record or an option is not as expected, or too large.
    """
    from fewl.score import FewlOptions, score_records
    from mitigate.models import load_similarity

    if aggregation not in AGGREGATIONS or similarity not in SIMILARITIES:
        raise Refusal(
            f"Expected an aggregation of {', '.join(AGGREGATIONS)} and a similarity of {', '.join(SIMILARITIES)}, "
            f"got {aggregation!r} and {similarity!r}."
        )
    records = [dict(record), *(dict(other) for other in neighbours)]
    _check(records, limits)
    has_pairs = bool(record.get("iw") and record.get("co"))
    options = FewlOptions(
        aggregation=aggregation,  # type: ignore[arg-type]
        expertise="similarity" if has_pairs else "uniform",
        penalty=len(records) > 1,
    )
    with shelf.turn("embedder"):
        embedding, encode = _encoder(shelf, [r["question"] for r in records])
        chosen = load_similarity(similarity, encode)[1]
        try:
            scored, _ = score_records(records, similarity=chosen, encode=encode, options=options)
            parts = _similarities(scored[0], chosen)
        except ValueError as error:
            raise Refusal(str(error)) from error
    answers = [{**a, "similarity": s} for a, s in zip(scored[0]["answers"], parts, strict=True)]
    return {
        **scored[0],
        "answers": answers,
        "scored_with": {
            "aggregation": aggregation,
            "similarity": similarity,
            "embedding": embedding,
            "expertise": options.expertise,
            "neighbours": len(neighbours),
        },
    }


def _check(records: Sequence[Mapping[str, Any]], limits: Limits) -> None:
    if len(records) - 1 > MAX_NEIGHBOURS:
        raise Refusal(f"There are {len(records) - 1:,} other questions; this page takes {MAX_NEIGHBOURS}.")
    for record in records:
        try:
            read = read_record(record)
        except RecordError as error:
            raise Refusal(str(error)) from error
        texts = [text for group in read.references.values() for text in group]
        texts += [*read.iw, *read.co]
        limits.check(question=read.question)
        for answer in read.answers:
            limits.check(answer=answer.text)
        for text in texts:
            limits.check(reference_answer=text)
        if len(read.answers) > MAX_ANSWERS or len(texts) > MAX_TEXTS:
            raise Refusal(
                f"A question has {len(read.answers)} answers and {len(texts)} reference, wrong and corrected answers; "
                f"this page takes {MAX_ANSWERS} and {MAX_TEXTS}. `mitigate fewl score` takes any number."
            )
    first = read_record(records[0])
    if not any(answer.text.strip() for answer in first.answers):
        raise Refusal("There is no answer to score. Paste at least one.")
    if not first.references:
        raise Refusal("There is no reference answer. Give the answers of one or more LLMs to the same question.")


def _encoder(shelf: Shelf, questions: Sequence[str]) -> tuple[str, Encode]:
    from annotators.text.rouge import is_chinese
    from fewl.similarity import char_tfidf, each_once

    if any(is_chinese(question) for question in questions):
        return f"character TF-IDF ({shelf.embedder.name} can't read Chinese)", char_tfidf()
    return shelf.embedder.name, each_once(shelf.embedder.encode)


def _similarities(record: Mapping[str, Any], similarity: Any) -> list[dict[str, float | None]]:
    """s(y, h_i) of every answer y and reference LLM i, the mean over its texts; None where there is none."""
    import numpy as np

    from fewl.similarity import compare

    read = read_record(record)
    pairs = [(a.text, text) for a in read.answers for group in read.references.values() for text in group]
    values = iter(compare(similarity, [a for a, _ in pairs], [b for _, b in pairs], [read.question] * len(pairs)))
    rows: list[dict[str, float | None]] = []
    for answer in read.answers:
        row: dict[str, float | None] = {}
        for name, group in read.references.items():
            found = np.array([next(values) for _ in group])
            usable = found[~np.isnan(found)] if answer.text.strip() and answer.model != name else []
            row[name] = float(np.mean(usable)) if len(usable) else None
        rows.append(row)
    return rows


class Service:
    """What the tabs and the endpoints call; every call checks its input first.

    Args:
        shelf: The models.
        limits: The sizes.
    """

    def __init__(self, shelf: Shelf, limits: Limits) -> None:
        self.shelf = shelf
        self.limits = limits

    def annotate_stepwise(
        self, question: str | None, reference: str | None, answer: str | None, annotator: str | None
    ) -> Iterator[Partial]:
        """Judge one answer step by step.

        Raises:
            Refusal: At once if the input is not taken, later if the annotator fails.
        """
        return annotate_stepwise(self.shelf, annotator, self._record(question, reference, answer))

    def annotate(
        self, question: str | None, reference: str | None, answer: str | None, annotator: str | None
    ) -> dict[str, Any]:
        """Judge one answer at once; the annotated record.

        Raises:
            Refusal: The input is not taken, or the annotator fails.
        """
        return annotate_whole(self.shelf, annotator, self._record(question, reference, answer))

    def _record(self, question: str | None, reference: str | None, answer: str | None) -> dict[str, str]:
        self.limits.check(question=question, reference=reference, answer=answer)
        record = {"reference": reference or "", "answer": answer or ""}
        check_answer(record)
        return {"question": question, **record} if question and question.strip() else record

    def fewl(self, record: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Score the answers of one FEWL record; see ``scoring.fewl_record``."""
        return fewl_record(self.shelf, self.limits, record, **options)
