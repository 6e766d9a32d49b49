"""The two protocols as conversations: what is asked, how a reply is read, when it is asked again.

A conversation is a generator: it yields a request and is sent the engine's result, and returns what the model said.
So a batch of sentences is asked in rounds (``converse``) and each goes its own way: done after one turn without a fact,
after two without evidence, asked again where a reply could not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from annotators.generative_scores import TOP, decision, label_scores, probability
from annotators.generative_windows import Item, Shown
from annotators.prompts import Order, Template
from annotators.records import Label
from annotators.tagged import ParseFailure, Tagged, parse_tagged
from annotators.tagged_fields import TYPES, opening
from annotators.tagged_places import locate_words
from annotators.tagged_turns import parse_facts, parse_points, parse_type
from engines.types import ChatResult, Engine, Sample, Sampling, check_asked

T = TypeVar("T")
_WORDS: dict[str, Label] = {**TYPES, **{f"<{word}>": label for word, label in TYPES.items()}}
"""What the deciding words may be, with and without brackets."""
AGAIN_AT = 0.7
"""Temperature of the second and further requests: a greedy one would bring the same reply."""


@dataclass(frozen=True)
class Request:
    """One chat, as (role, content) pairs, and how to draw its reply."""

    chat: tuple[tuple[str, str], ...]
    sampling: Sampling

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": role, "content": content} for role, content in self.chat]


@dataclass(frozen=True)
class Said:
    """What a model said of a sentence; ``label`` is None where no reply could be read."""

    label: Label | None
    fragments: tuple[str, ...] = ()
    corrections: tuple[tuple[str, str], ...] = ()
    scores: Mapping[Label, float] | None = None
    problems: tuple[str, ...] = ()


Turn = Generator[Request, ChatResult, T]


class Unreadable(Exception):
    """No reply of a turn could be read; the problems of all attempts."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(", ".join(problems))
        self.problems = tuple(dict.fromkeys(problems))


@dataclass(frozen=True)
class Asking:
    """How requests are made.

    Args:
        max_retries: Further attempts after a reply that could not be read.
        max_tokens: Limit of a reply.
        seed: Of the draws of further attempts.
        logprobs: Whether to ask for log-probabilities.
    """

    max_retries: int
    max_tokens: int
    seed: int
    logprobs: bool

    def turn(self, chat: Sequence[tuple[str, str]], read: Callable[[str, bool], T]) -> Turn[tuple[T, Sample]]:
        """Ask until a reply can be read.

        Args:
            chat: What to ask.
            read: Gets the reply and whether this was the last attempt; raises ParseFailure.

        Returns:
            What was read, and the reply.

        Raises:
            Unreadable: After the last attempt, or where the engine failed.
        """
        problems: list[str] = []
        for attempt in range(self.max_retries + 1):
            top = TOP if self.logprobs else 0
            sampling = Sampling(self.max_tokens, logprobs=self.logprobs, top_logprobs=top)
            if attempt:
                sampling = replace(sampling, temperature=AGAIN_AT, seed=(self.seed + attempt) % 2**31)
            result = yield Request(tuple(chat), sampling)
            if result.error is not None or not result.samples:
                raise Unreadable([*problems, "engine_error"])
            sample = result.samples[0]
            try:
                if sample.finish_reason == "length":
                    raise ParseFailure("truncated" if sample.text.strip() else "empty")
                return read(sample.text, attempt == self.max_retries), sample
            except ParseFailure as failure:
                problems.append(failure.name)
        raise Unreadable(problems)


def judge(item: Item, shown: Shown, template: Template, order: Order, asking: Asking) -> Turn[Said]:
    """The conversation about one sentence."""
    protocol = _three_turns if template.protocol == "three-turn" else _single_turn
    try:
        return (yield from protocol(item, shown, template, order, asking))
    except Unreadable as failure:
        return Said(None, problems=failure.problems)


def _inputs(item: Item, shown: Shown) -> dict[str, str]:
    return {"reference": shown.text, "question": item.question, "sentence": item.sentence}


def _user(text: str) -> tuple[str, str]:
    return "user", text


def _single_turn(item: Item, shown: Shown, template: Template, order: Order, asking: Asking) -> Turn[Said]:
    sources = (item.sentence, item.question, shown.text)

    def read(reply: str, last: bool) -> Tagged:
        tagged = parse_tagged(reply, sources)
        if not last and any(locate_words(old, item.sentence) is None for old, _ in tagged.corrections):
            raise ParseFailure("correction_not_in_sentence")
        return tagged

    chat = [_user(template.fill(0, order, _inputs(item, shown)))]
    tagged, sample = yield from asking.turn(chat, read)
    placed = tuple(c for c in tagged.corrections if locate_words(c[0], item.sentence) is not None)
    return Said(
        tagged.label,
        tagged.fragments,
        placed,
        _scores(tagged.label, decision(sample, tagged.type_span, _WORDS)),
        () if len(placed) == len(tagged.corrections) else ("correction_not_in_sentence",),
    )


def _three_turns(item: Item, shown: Shown, template: Template, order: Order, asking: Asking) -> Turn[Said]:
    sources, inputs = (item.sentence, item.question, shown.text), _inputs(item, shown)
    chat = [_user(template.fill(0, order, inputs))]
    (states, span), sample = yield from asking.turn(chat, lambda reply, _: parse_facts(reply, sources))
    sure = probability(sample, span)
    if not states:
        return Said("no_fact", scores=_scores("no_fact", {"no_fact": sure}))
    no_fact = None if sure is None else 1 - sure
    chat = [*chat, _reply(sample), _user(template.fill(1, order, inputs))]
    points, sample = yield from asking.turn(chat, lambda reply, _: parse_points(reply))
    if not points:
        last: dict[Label, float | None] = {"unverifiable": probability(sample, _words(sample.text))}
        return Said("unverifiable", scores=_scores("unverifiable", last, no_fact))
    inputs["points"] = "<SEP>".join(points)
    chat = [*chat, _reply(sample), _user(template.fill(2, order, inputs))]
    (label, span), sample = yield from asking.turn(chat, lambda reply, _: parse_type(reply, sources))
    return Said(label, points, scores=_scores(label, decision(sample, span, _WORDS), no_fact))


def _scores(
    label: Label, known: Mapping[Label, float | None] | None, no_fact: float | None = 0.0
) -> Mapping[Label, float] | None:
    """Scores out of a last turn's probabilities, where an earlier one gave "no fact" that of ``no_fact``."""
    if known is None or no_fact is None or None in known.values():
        return None
    of_turn = {name: (1 - no_fact) * p for name, p in known.items() if p is not None}
    return label_scores(label, {"no_fact": no_fact, **of_turn} if no_fact else of_turn)


def _reply(sample: Sample) -> tuple[str, str]:
    return "assistant", sample.text[opening(sample.text) :].strip()


def _words(text: str) -> tuple[int, int]:
    """The reply without blanks around it and thoughts before it."""
    start = opening(text)
    return start + len(text[start:]) - len(text[start:].lstrip()), len(text.rstrip())


def converse(engine: Engine, conversations: Sequence[Turn[T]], known: dict[Request, ChatResult]) -> list[T]:
    """Carry conversations on together, a round of requests at a time, until each has returned.

    Args:
        engine: Answers.
        conversations: Not begun yet.
        known: Results of requests made before; equal requests are made once, new results are added.

    Returns:
        What each returned, in order.

    Raises:
        EngineError: The engine can't answer anything more; what it has answered is in its cache, where it has one.
    """
    returned: dict[int, T] = {}
    waiting: dict[int, Request] = {}

    def go_on(number: int, result: ChatResult | None) -> None:
        try:
            talk = conversations[number]
            waiting[number] = next(talk) if result is None else talk.send(result)
        except StopIteration as stop:
            returned[number] = stop.value

    for number in range(len(conversations)):
        go_on(number, None)
    while waiting:
        asked, waiting = waiting, {}
        new = list(dict.fromkeys(request for request in asked.values() if request not in known))
        for sampling in dict.fromkeys(request.sampling for request in new):
            group = [request for request in new if request.sampling == sampling]
            results = engine.chat([request.messages for request in group], sampling)
            known.update(zip(group, results, strict=True))
            check_asked(results)
        for number, request in asked.items():
            go_on(number, known[request])
    return [returned[number] for number in range(len(conversations))]
