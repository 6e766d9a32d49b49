"""The work behind the page and its endpoints, without Gradio: checked input in, records out.

Models are loaded when first asked for, kept, and used by one call at a time. An annotator is asked in short steps, and
the lock is given back between them, so that people who use the page at the same time take turns.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

from annotators import load_annotator
from annotators.base import Annotator
from annotators.records import Annotation, SentenceAnnotation
from annotators.text.sentences import split_sentences
from fewl.records import RecordError, read_record
from mitigate.demo.limits import Limits, Refusal

if TYPE_CHECKING:
    from engines.embedding import Embedder

KEPT = 2  # annotators in memory; the one that was used longest ago goes first
STEP_SECONDS = 0.7  # of one step: short enough to watch, long enough that starting one does not count
SIMILARITIES = ("cosine", "new-words", "rouge-l")
AGGREGATIONS = ("eq6", "paper")
MAX_ANSWERS = 20
MAX_TEXTS = 200  # reference answers, IW and CO answers of one question
MAX_NEIGHBOURS = 200
Step = tuple[dict[str, Any], Sequence[tuple[int, int]]]
"""A record with the sentences judged so far, and the offsets of those that are not."""


class Shelf:
    """Models by name.

    Args:
        names: Annotators offered; the first is the default.
        open_choice: Whether any other name may be asked for too. A name can be a path of this machine or the address of
            a server that then gets texts and keys, so this is for a page that only its owner reaches.
        load: Makes an annotator of a name.
    """

    def __init__(
        self,
        names: Sequence[str] = ("embedded",),
        *,
        open_choice: bool = False,
        load: Callable[[str], Annotator] = load_annotator,
    ) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.open_choice = open_choice
        self._load = load
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
                try:
                    self._kept[name] = self._load(name)
                except ImportError as error:
                    raise Refusal(f"The annotator {name!r} needs more packages: {error}") from error
                except Exception as error:  # whatever a checkpoint or a server makes of it, the page goes on
                    raise Refusal(f"The annotator {name!r} can't be loaded: {_detail(error)}") from error
            self._kept.move_to_end(name)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return self._kept[name]

    @contextmanager
    def turn(self, annotator: Annotator) -> Iterator[None]:
        """Hold an annotator while it works.

        Raises:
            Refusal: It failed.
        """
        with self.lock(annotator.name):
            try:
                yield
            except Exception as error:
                raise Refusal(f"The annotator {annotator.name!r} failed: {_detail(error)}") from error

    def lock(self, name: str) -> threading.Lock:
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
                with self.turn(annotator):
                    annotator.annotate(reference="It opened in 1931.", answer="It opened in 1931.")
            except Exception:  # the call that needs it will say so
                return

        threading.Thread(target=load, daemon=True, name="warm").start()


def _detail(error: Exception) -> str:
    return " ".join(str(error).split())[:400] or type(error).__name__


class Service:
    """What the tabs and the endpoints call; every call checks its input first."""

    def __init__(self, shelf: Shelf, limits: Limits) -> None:
        self.shelf = shelf
        self.limits = limits

    def annotate_stepwise(
        self, question: str | None, reference: str | None, answer: str | None, annotator: str | None
    ) -> Iterator[Step]:
        """Judge an answer, yielding after every step; the last is the whole annotation.

        It judges one sentence, then more at a time as long as a step is quick. Sentences and order are those of
        ``annotate``.

        Raises:
            Refusal: The input is not taken, or the annotator can't be had or fails.
        """
        record = self._record(question, reference, answer)
        spans = split_sentences(record["answer"])
        yield Annotation(record, ()).to_dict(), spans  # shown while the annotator loads
        judge = self.shelf.annotator(annotator)
        judged: list[SentenceAnnotation] = []
        size, most = 1, max(8, len(spans) // 8)
        while len(judged) < len(spans):
            start = perf_counter()
            with self.shelf.turn(judge):
                judged += judge.annotate_spans(record, spans[len(judged) : len(judged) + size])
            yield judge.annotation(record, judged).to_dict(), spans[len(judged) :]
            seconds = max(perf_counter() - start, 1e-3)
            size = max(1, min(most, 4 * size, int(size * STEP_SECONDS / seconds)))

    def annotate(
        self, question: str | None, reference: str | None, answer: str | None, annotator: str | None
    ) -> dict[str, Any]:
        """Judge an answer at once; the annotated record.

        Raises:
            Refusal: The input is not taken, or the annotator can't be had or fails.
        """
        record = self._record(question, reference, answer)
        judge = self.shelf.annotator(annotator)
        with self.shelf.turn(judge):
            return judge.annotate_batch([record])[0].to_dict()

    def _record(self, question: str | None, reference: str | None, answer: str | None) -> dict[str, str]:
        self.limits.check(question=question, reference=reference, answer=answer)
        record = {"reference": reference or "", "answer": answer or ""}
        if not record["answer"].strip():
            raise Refusal("The answer is empty, so there is nothing to judge. Paste an answer, or pick an example.")
        return {"question": question, **record} if question and question.strip() else record

    def fewl(
        self,
        record: Mapping[str, Any],
        *,
        neighbours: Sequence[Mapping[str, Any]] = (),
        aggregation: str = "eq6",
        similarity: str = "cosine",
    ) -> dict[str, Any]:
        """Score the answers of one question.

        Args:
            record: {"question", "answers", "reference_answers", "iw"?, "co"?}, see ``fewl/records.py``.
            neighbours: Other questions with reference answers, for the laziness penalty; without any there is none.
            aggregation: One of AGGREGATIONS.
            similarity: One of SIMILARITIES.

        Returns:
            The record of ``fewl.score_records``, each answer with ``similarity`` ({LLM: s(y, h_i), the mean over its
            texts}), and ``scored_with`` (names of what was chosen).

        Raises:
            Refusal: The record or an option is not as expected, or too large.
        """
        from annotators.text.words import is_chinese
        from fewl.score import FewlOptions, score_records
        from fewl.similarity import char_tfidf, each_once
        from mitigate.models import load_similarity

        if aggregation not in AGGREGATIONS or similarity not in SIMILARITIES:
            raise Refusal(
                f"Expected an aggregation of {', '.join(AGGREGATIONS)} and a similarity of {', '.join(SIMILARITIES)}, "
                f"got {aggregation!r} and {similarity!r}."
            )
        records = [record, *neighbours]
        self._check_fewl(records)
        options = FewlOptions(
            aggregation=aggregation,  # type: ignore[arg-type]
            expertise="similarity" if record.get("iw") and record.get("co") else "uniform",
            penalty=len(records) > 1,
        )
        with self.shelf.lock("embedder"):
            embedder = self.shelf.embedder
            embedding, encode = embedder.name, each_once(embedder.encode)
            if any(is_chinese(one["question"]) for one in records):
                embedding, encode = f"character TF-IDF ({embedding} can't read Chinese)", char_tfidf()
            chosen = load_similarity(similarity, encode)[1]
            try:
                scored, _ = score_records(records, similarity=chosen, encode=encode, options=options)
                parts = _similarities(scored[0], chosen)
            except ValueError as error:
                raise Refusal(str(error)) from error
        return {
            **scored[0],
            "answers": [{**a, "similarity": s} for a, s in zip(scored[0]["answers"], parts, strict=True)],
            "scored_with": {
                "aggregation": aggregation,
                "similarity": similarity,
                "embedding": embedding,
                "expertise": options.expertise,
                "neighbours": len(neighbours),
            },
        }

    def _check_fewl(self, records: Sequence[Mapping[str, Any]]) -> None:
        if len(records) - 1 > MAX_NEIGHBOURS:
            raise Refusal(f"There are {len(records) - 1:,} other questions; this page takes {MAX_NEIGHBOURS}.")
        try:
            read = [read_record(record) for record in records]
        except RecordError as error:
            raise Refusal(str(error)) from error
        for one in read:
            texts = [*(text for group in one.references.values() for text in group), *one.iw, *one.co]
            self.limits.check(question=one.question)
            for answer in one.answers:
                self.limits.check(answer=answer.text)
            for text in texts:
                self.limits.check(reference_answer=text)
            if len(one.answers) > MAX_ANSWERS or len(texts) > MAX_TEXTS:
                raise Refusal(
                    f"A question has {len(one.answers)} answers and {len(texts)} reference, wrong and corrected "
                    f"answers; this page takes {MAX_ANSWERS} and {MAX_TEXTS}. `mitigate fewl score` takes any number."
                )
        if not any(answer.text.strip() for answer in read[0].answers):
            raise Refusal("There is no answer to score. Paste at least one.")
        if not read[0].references:
            raise Refusal("There is no reference answer. Give the answers of one or more LLMs to the same question.")


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
