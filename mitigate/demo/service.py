"""The work behind the page and its endpoints, without Gradio: checked input in, records out.

Models are loaded when first asked for, kept, and used by one call at a time. An annotator is asked in short steps, and
the lock is given back between them, so that people who use the page at the same time take turns. A judge behind a
server is asked for many sentences at once. Models work in threads, and whoever waits for one is given back control
every BEAT seconds (None is yielded), so that a visitor who presses Stop is heard at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property, lru_cache, partial
from time import perf_counter
from typing import Any, TypeVar

from annotators import load_annotator
from annotators.base import Annotator, spans_of, thought
from annotators.operating import Calibration, OperatingPoint
from annotators.records import Annotation, SentenceAnnotation
from annotators.retrieval import Tokenize
from engines import Engine, load_engine
from engines.checkpoint import locate
from engines.embedding import tokenize
from mitigate.demo.limits import Limits, Refusal, detail
from mitigate.io import without_results

KEPT = 2  # annotators in memory; the one that was used longest ago goes first
BEAT = 0.3  # seconds
ASKED_AT_ONCE = 8  # sentences, of a judge behind a server
SMOLLM2 = "transformers:packaged:smollm2"
STEP_SECONDS = 0.7  # of one step: short enough to watch, long enough that starting one does not count
T = TypeVar("T")
Step = tuple[dict[str, Any], Sequence[tuple[int, int]]]
"""A record with the sentences judged so far, and the offsets of those that are not."""


class Shelf:
    """Models by name: the annotators of ``names`` and the language models of ``engines``; the first are the defaults.

    With ``open_choice`` any other may be asked for too. A name can be a path of this machine or the address of a server
    that then gets texts and keys, so this is for a page that only its owner reaches. ``load`` makes an annotator.
    """

    def __init__(
        self,
        names: Sequence[str] = ("embedded",),
        *,
        open_choice: bool = False,
        load: Callable[[str], Annotator] = load_annotator,
        engines: Sequence[str] = (SMOLLM2,),
    ) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.engines = tuple(dict.fromkeys(engines))
        self.open_choice = open_choice
        self._annotator = lru_cache(KEPT)(load)
        self._engine = lru_cache(1)(load_engine)
        self._turns: dict[str, threading.Lock] = {}
        self._loading = threading.Lock()

    def annotator(self, name: str | None) -> Annotator:
        """The annotator of that name; Refusal where it is not offered, or can't be loaded."""
        return self._loaded("annotator", name, self.names, self._annotator)

    def engine(self, name: str | None) -> Engine:
        """The language model of that name, as an annotator; the one before is let go."""
        return self._loaded("engine", name, self.engines, self._engine)

    def _loaded(self, what: str, name: str | None, names: Sequence[str], load: Callable[[str], T]) -> T:
        name = (name or names[0]).strip()
        if name not in names and not self.open_choice:
            raise Refusal(
                f"The {what} {name!r} is not offered here, only {', '.join(names)}. "
                f"Whoever runs the page can add it with --{what}."
            )
        try:
            with self._loading:
                return load(name)
        except ImportError as error:
            raise Refusal(f"The {what} {name!r} needs more packages: {error}") from error
        except Exception as error:  # whatever a checkpoint or a server makes of it, the page goes on
            raise Refusal(f"The {what} {name!r} can't be loaded: {detail(error)}") from error

    @contextmanager
    def turn(self, model: Annotator | Engine) -> Iterator[None]:
        """Hold a model while it works, and refuse with its error; one behind a server works for several at once."""
        with nullcontext() if on_server(model) else self.lock(model.name):
            try:
                yield
            except Refusal:
                raise
            except Exception as error:
                raise Refusal(f"{model.name!r} failed: {detail(error)}") from error

    def lock(self, name: str) -> threading.Lock:
        """What to hold while a model works: one lock for each annotator (by its name) and for "passages"."""
        return self._turns.setdefault(name, threading.Lock())

    @cached_property
    def tokenize(self) -> Tokenize:
        """How passages are measured: in tokens of the packaged MiniLM, whose weights are not needed for it."""
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(locate("packaged:minilm"))
        return partial(tokenize, tokenizer)

    def warm(self) -> None:
        """Load the default annotator in the background, so that the first call waits less."""

        def load() -> None:
            with suppress(Exception):  # the call that needs it will say so
                annotator = self.annotator(None)
                with self.turn(annotator):
                    annotator.annotate(reference="It opened in 1931.", answer="It opened in 1931.")

        threading.Thread(target=load, daemon=True, name="warm").start()


def at_thresholds(record: dict[str, Any], limits: tuple[float, float] | None) -> dict[str, Any]:
    """The record with other verdicts from its probabilities: flagged from the first limit, supported from the second.

    None, or a record without probabilities, changes nothing.
    """
    if limits is None or not any(s["scores"] for s in record["sentences"]):
        return record
    rate = (record["operating_point"] or {}).get("expected_rate", 0.5)
    as_they_are = Calibration("", 1.0, 0.0, OperatingPoint("chosen", *limits, rate, rate))
    known = [  # an unsure sentence is judged as well
        SentenceAnnotation.from_dict({**s, "label": s["label"] or (s["scores"] and "supported")})
        for s in record["sentences"]
    ]
    decided, point = tuple(as_they_are.apply(known)), as_they_are.point.to_dict()
    return Annotation(without_results(record), decided, record["annotator"], point).to_dict()


def on_server(model: Annotator | Engine) -> bool:
    """Whether a server works for an annotator or an engine, so that it can be asked many things at once."""
    return getattr(model, "engine", model).name.startswith("openai:")


def heard(future: Future[T]) -> Generator[None, None, T]:
    """The result of a future, with control given back every BEAT seconds until it is there."""
    while not future.done():
        wait([future], BEAT)
        if not future.done():
            yield None
    return future.result()


@contextmanager
def threads(most: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for one call; at its end, also where the visitor stopped it, what is not begun is not asked."""
    pool = ThreadPoolExecutor(most)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Service:
    """What the tabs and the endpoints call; every call checks its input first.

    With ``fetch`` visitors may have documents fetched from web addresses, by this process.
    """

    def __init__(self, shelf: Shelf, limits: Limits, *, fetch: bool = False) -> None:
        self.shelf = shelf
        self.limits = limits
        self.fetch = fetch

    def annotate_stepwise(
        self, question: str | None, reference: str | None, answer: str | None, annotator: str | None
    ) -> Iterator[Step | None]:
        """Judge an answer, yielding after every step, and None while it waits; the last is the whole annotation.

        It judges one sentence, then more at a time as long as a step is quick; a server is asked for ASKED_AT_ONCE at
        once. Sentences, order and refusals are those of ``annotate``.
        """
        record = self._record(question, reference, answer)
        spans = spans_of(record["answer"])
        yield Annotation(record, ()).to_dict(), spans  # shown while the annotator loads
        with threads(ASKED_AT_ONCE) as pool:
            judge = yield from heard(pool.submit(self.shelf.annotator, annotator))
            judged: list[SentenceAnnotation] = []
            size, most, asked, at = 1, max(8, len(spans) // 8), deque[Future[list[SentenceAnnotation]]](), 0
            while len(judged) < len(spans):
                start = perf_counter()
                while at < len(spans) and len(asked) < (ASKED_AT_ONCE if on_server(judge) else 1):
                    asked.append(pool.submit(self.judge, judge, record, spans[at : at + size]))
                    at += size
                judged += yield from heard(asked.popleft())
                step = judge.annotation(record, judged).to_dict(), spans[len(judged) :]
                seconds = max(perf_counter() - start, 1e-3)
                yield step
                aim = max(STEP_SECONDS, perf_counter() - start - seconds)  # never more time for showing than judging
                size = 1 if on_server(judge) else max(1, min(most, 4 * size, int(size * aim / seconds)))

    def judge(
        self, judge: Annotator, record: Mapping[str, Any], spans: Sequence[tuple[int, int]]
    ) -> list[SentenceAnnotation]:
        """Judge some sentences of an answer when it is this call's turn; Refusal where the annotator fails."""
        with self.shelf.turn(judge):
            return judge.annotate_spans(record, spans)

    def annotated(self, judge: Annotator, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Annotate whole answers when it is this call's turn; Refusal where the annotator fails."""
        with self.shelf.turn(judge):
            return [one.to_dict() for one in judge.annotate_batch(records)]

    def annotate(self, question: str, reference: str, answer: str, annotator: str = "") -> dict[str, Any]:
        """Judge each sentence of an answer against its reference; returns the annotated record.

        Refusal where the input is not taken, or the annotator can't be had or fails.
        """
        record = self._record(question, reference, answer)
        return self.annotated(self.shelf.annotator(annotator), [record])[0]

    def _record(self, question: str | None, reference: str | None, answer: str | None) -> dict[str, str]:
        self.limits.check(question=question, reference=reference, answer=answer)
        record = {"reference": reference or "", "answer": answer or ""}
        if not record["answer"].strip():
            raise Refusal("The answer is empty, so there is nothing to judge. Paste an answer, or pick an example.")
        if thought(record["answer"]) == len(record["answer"]):
            raise Refusal("The answer is only thinking, which is not judged: it has no end (such as </think>).")
        return {"question": question, **record} if question and question.strip() else record
