"""How a generative annotator asks: its options, what of a reference it shows, the two protocols, label scores.

A conversation is a generator: it yields a request, is sent the engine's result, and returns a verdict. So a batch is
asked in rounds (``converse``) and each sentence goes its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from annotators.generative import tagged as tags
from annotators.generative.prompts import PROTOCOLS, Chooser, Protocol, load_templates
from annotators.generative.tagged import TYPES, ParseFailure, Tagged, locate_fragments, locate_words, opening, stands
from annotators.records import LABELS, Label
from annotators.retrieval import ReferenceIndex, Window, budget_of, index_references, second_pass, select
from engines.types import ChatResult, Engine, Sample, Sampling, check_asked

if TYPE_CHECKING:
    from engines.embedding import Embedder


Mode = Literal["sentence", "answer", "whole"]
WithoutEvidence = Literal["failed", "unverifiable"]
T = TypeVar("T")
AGAIN_AT = 0.7  # temperature of the second and further requests: a greedy one would bring the same reply
GAP = "\n[…]\n"  # stands for text left out
NO_EVIDENCE = "no_evidence"  # a key of FAILURES
CHOICES = {
    "en": (("<Facts Present>", "<No Facts>"), ("<No Hallucination>", "<Contradictory>", "<Unverifiable>")),
    "zh": (("<有事实>", "<无事实>"), ("<无幻觉>", "<矛盾>", "<无法验证>")),
}
"""All replies that the first and the last of three turns may have."""


@dataclass(frozen=True)
class Options:
    """How a generative annotator works; ValueError, before any model loads, where a value is wrong.

    Args:
        protocol: "tagged" (one turn; ANAH) or "three-turn" (ANAH-v2; no corrections).
        prompt: Wording, NAME or NAME/ORDER, or "random"; see ``prompts.py``.
        templates: File of templates to use instead of our own.
        window: What of the reference is shown: the passages that bear on the "sentence", the windows of all sentences
            of the "answer" in one (so that their requests begin alike), or the "whole" reference.
        window_tokens: Budget of a sentence's window, above 0; None for 400, and 540 where the reference is Chinese.
        max_retries: Further attempts after a reply that can't be read, ≥ 0.
        max_tokens: Limit of a reply; a model that thinks before it answers needs more.
        seed: The seed of random prompts, of further attempts and, above temperature 0, of first ones, in 0 … 2³¹ − 1.
        temperature: That of first attempts, in [0, 2]; further ones have at least 0.7.
        logprobs: Whether to ask for log-probabilities, from which ``scores`` come.
        schema: Above 0 the engine is told what replies may be: with "three-turn", the first and last are choices; with
            "tagged", up to so many sentences of an answer are judged in one call, whose reply is JSON without scores;
            what it leaves open is asked about in tags.
        units: Whether answers are cut as ANAH's were, in place of our sentences.
        without_evidence: What a sentence is whose replies say "supported" and give nothing that stands in the
            reference: "failed", or "unverifiable" without scores; its ``problems`` have "no_evidence".
    """

    protocol: Protocol = "tagged"
    prompt: str = "plain"
    templates: str | Path | None = None
    window: Mode = "sentence"
    window_tokens: int | None = None
    max_retries: int = 2
    max_tokens: int = 768
    seed: int = 0
    temperature: float = 0.0
    logprobs: bool = True
    schema: int = 0
    units: bool = False
    without_evidence: WithoutEvidence = "failed"

    def __post_init__(self) -> None:
        for name, known in (("protocol", PROTOCOLS), ("window", get_args(Mode)),
                            ("without_evidence", get_args(WithoutEvidence))):  # fmt: skip
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
        numbers = {"max_retries": (self.max_retries, 0), "max_tokens": (self.max_tokens, 1), "seed": (self.seed, 0),
                   "schema": (self.schema, 0)}  # fmt: skip
        if self.window_tokens is not None:
            numbers["window_tokens"] = (self.window_tokens, 1)
        for name, (number, least) in numbers.items():
            if type(number) is not int or not least <= number < 2**31:
                raise ValueError(f"{name}: expected a whole number of at least {least}, got {number!r}")
        if not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature: expected a number from 0 to 2, got {self.temperature!r}")
        self.chooser  # noqa: B018  (read and checked now, before any model loads)
        self.in_tags  # noqa: B018

    @cached_property
    def chooser(self) -> Chooser:
        """The prompts."""
        templates = None if self.templates is None else load_templates(self.templates)
        return Chooser("object" if self.together else self.protocol, self.prompt, templates, self.seed)

    @property
    def together(self) -> bool:
        """Whether several sentences are judged in one call."""
        return self.schema > 0 and self.protocol == "tagged"

    @cached_property
    def in_tags(self) -> Options:
        """How a sentence is judged for itself."""
        return replace(self, schema=0) if self.together else self


PRESETS: dict[str, dict[str, Any]] = {
    name: {"protocol": protocol, "prompt": name, "window": "whole", "units": True}
    for name, protocol in (("anah-v1", "tagged"), ("anah-v2", "three-turn"))
}
"""How the published checkpoints were asked, greedily; their wording comes from the user's templates."""


def options_of(given: Mapping[str, Any]) -> Options:
    """Options of these values and, where they have a "preset", of the values of that; ValueError as for ``Options``."""
    values = dict(given)
    known = [*(field.name for field in fields(Options)), "preset"]
    if wrong := sorted({*values} - {*known}):
        raise ValueError(f"{', '.join(wrong)}: expected one of {', '.join(known)}")
    if (preset := values.pop("preset", None)) is None:
        return Options(**values)
    if preset not in PRESETS:
        raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, got {preset!r}")
    if not values.get("templates"):
        raise ValueError(
            f"preset {preset}: its wording does not come with this package; turn your copy of it into templates with "
            "`mitigate prompts import`, and give their file as templates"
        )
    return Options(**PRESETS[preset] | values)


def check_engine(options: Options, kind: str) -> None:
    """ValueError where an engine of that kind can't be asked so."""
    if options.together and kind == "transformers":
        raise ValueError("schema: the transformers engine has no JSON schemas; use vllm, openai or three-turn")


# --- what of a reference is shown ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """A sentence to judge, as it came."""

    sentence: str
    reference: str
    question: str  # "" without one
    language: str  # "en" or "zh": which prompts it gets
    peers: tuple[str, ...]  # the sentences of its answer, itself among them; they share the window "answer"
    name: str = ""  # of the document
    blind: bool = False  # no document is shown, so that there is no evidence to ask for


@dataclass(frozen=True)
class Shown:
    """A part of a reference: its text, the spans [start, end) of the reference in it, whether it is all of it."""

    text: str
    runs: tuple[tuple[int, int], ...]
    whole: bool


class Windows:
    """Chooses what of a reference to show. Tokens are counted by the embedder that ``embedder()`` gives; a reference
    with no more characters than the budget has tokens is shown whole without loading it.
    """

    def __init__(self, mode: Mode, tokens: int | None, embedder: Callable[[], Embedder]) -> None:
        self.mode, self.tokens = mode, tokens
        self._embedder = embedder
        self._indexes: dict[str, ReferenceIndex] = {}

    def first(self, items: Sequence[Item]) -> list[Shown]:
        """What each item's request shows, in order."""
        self._indexes = {}
        return self._show(items, lambda pairs: [[window] for window in select(pairs)])

    def second(self, items: Sequence[Item]) -> list[Shown]:
        """Six times as much, for sentences found unverifiable; what ``first`` indexed is not embedded again."""
        return self._show(items, second_pass)

    def _show(
        self, items: Sequence[Item], windows_of: Callable[[Sequence[tuple[ReferenceIndex, str]]], list[list[Window]]]
    ) -> list[Shown]:
        references = {item.reference for item in items} if self.mode != "whole" else set()
        long = sorted(r for r in references - self._indexes.keys() if len(r) > (self.tokens or budget_of(r)))
        if long:
            model = self._embedder()
            self._indexes.update(zip(long, index_references(long, model.tokenize, model, self.tokens), strict=True))
        indexes = {r: index for r, index in self._indexes.items() if not index.fits}
        own = [
            [(item.reference, s) for s in (item.peers if self.mode == "answer" else (item.sentence,))]
            for item in items
        ]  # fmt: skip
        asked = list(dict.fromkeys(query for queries in own for query in queries if query[0] in indexes))
        windows = windows_of([(indexes[reference], sentence) for reference, sentence in asked])
        window_of = dict(zip(asked, windows, strict=True))
        shown = []
        for item, queries in zip(items, own, strict=True):
            if (index := indexes.get(item.reference)) is None:
                shown.append(Shown(item.reference, ((0, len(item.reference)),), whole=True))
            else:
                places = {place for query in queries for window in window_of[query] for place in window.places}
                window = Window(index, tuple(sorted(places)))
                shown.append(Shown(window.joined(GAP), window.runs, window.whole))
        return shown


# --- the protocols as conversations -------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """One chat, as (role, content) pairs, and how to draw its reply."""

    chat: tuple[tuple[str, str], ...]
    sampling: Sampling


@dataclass(frozen=True)
class Verdict:
    """What a model wrote about a sentence; ``label`` is None where no reply could be read."""

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
        self.problems = tuple(reversed(dict.fromkeys(reversed(problems))))  # the last attempt's is the last


def conversation(items: Sequence[Item], shown: Shown, options: Options) -> Turn[list[Verdict]]:
    """The conversation about one sentence, or several of one answer; what a joint call leaves open is asked in tags."""
    found: dict[int, Tagged] = {}
    if options.together:
        first = items[0]
        template, order = options.chooser(first.language, first.reference, first.question)
        numbered = "\n".join(f"{n}. {' '.join(item.sentence.split())}" for n, item in enumerate(items, 1))
        chat = template.chat(order, _inputs(first, shown) | {"sentence": numbered})
        drawn = _drawn(Sampling(options.max_tokens * len(items), json_schema=tags.SCHEMA), options)
        result = yield Request(tuple(chat), drawn)
        with suppress(ParseFailure):
            found = tags.parse_object(result.text or "")
    verdicts = []
    for n, item in enumerate(items, 1):
        tagged = found.get(n)
        if tagged is None or (tagged.label == "supported" and not _proves(tagged.fragments, item, shown)):
            verdicts.append((yield from _alone(item, shown, options.in_tags)))
        else:
            verdicts.append(_verdict(tagged, item))
    return verdicts


def _alone(item: Item, shown: Shown, options: Options) -> Turn[Verdict]:
    ask = _three_turns if options.protocol == "three-turn" else _single_turn
    try:
        return (yield from ask(item, shown, options))
    except Unreadable as failure:
        unproven = failure.problems[-1] == NO_EVIDENCE and options.without_evidence == "unverifiable"
        return Verdict("unverifiable" if unproven else None, problems=failure.problems)


def _ask(
    chat: Sequence[tuple[str, str]], read: Callable[[str, bool], T], options: Options, choices: tuple[str, ...] = ()
) -> Turn[tuple[T, Sample]]:
    """Ask until ``read`` (reply, whether it is the last attempt) can read a reply, else raise Unreadable."""
    problems: list[str] = []
    for attempt in range(options.max_retries + 1):
        top = TOP if options.logprobs else 0
        sampling = _drawn(Sampling(options.max_tokens, logprobs=options.logprobs, top_logprobs=top), options, attempt)
        asked = replace(sampling, choices=choices) if options.schema and not attempt else sampling
        result = yield Request(tuple(chat), asked)
        if result.error is not None and asked.choices:  # the server may have no choices
            result = yield Request(tuple(chat), sampling)
        if result.error is not None or not result.samples:
            raise Unreadable([*problems, "engine_error"])
        sample = result.samples[0]
        try:
            if sample.finish_reason == "length":
                raise ParseFailure("truncated" if sample.text.strip() else "empty")
            return read(sample.text, attempt == options.max_retries), sample
        except ParseFailure as failure:
            problems.append(failure.name)
    raise Unreadable(problems)


def _drawn(sampling: Sampling, options: Options, attempt: int = 0) -> Sampling:
    """How an attempt, from 0, is drawn: the first one greedily unless there is a temperature."""
    if not (temperature := max(AGAIN_AT, options.temperature) if attempt else options.temperature):
        return sampling
    return replace(sampling, temperature=temperature, seed=(options.seed + attempt) % 2**31)


def _single_turn(item: Item, shown: Shown, options: Options) -> Turn[Verdict]:
    sources = (item.sentence, item.question, shown.text)

    def read(reply: str, last: bool) -> Tagged:
        tagged = tags.parse_tagged(reply, sources)
        if tagged.label == "supported" and not _proves(tagged.fragments, item, shown):
            raise ParseFailure(NO_EVIDENCE)
        if not last and tagged.problems:
            raise ParseFailure(tagged.problems[0])
        if not last and any(locate_words(old, item.sentence) is None for old, _ in tagged.corrections):
            raise ParseFailure("correction_not_in_sentence")
        return tagged

    template, order = options.chooser(item.language, item.reference, item.question)
    tagged, sample = yield from _ask(template.chat(order, _inputs(item, shown)), read, options)
    return _verdict(tagged, item, _scores(tagged.label, decision(sample, tagged.type_span, _WORDS)))


def _verdict(tagged: Tagged, item: Item, scores: Mapping[Label, float] | None = None) -> Verdict:
    """What was read, without corrections of words that are not in the sentence."""
    placed = tuple(c for c in tagged.corrections if locate_words(c[0], item.sentence) is not None)
    lost = () if len(placed) == len(tagged.corrections) else ("correction_not_in_sentence",)
    return Verdict(tagged.label, tagged.fragments, placed, scores, tagged.problems[:1] + lost)


def _proves(written: Sequence[str], item: Item, shown: Shown) -> bool:
    """Whether some of what a model wrote as evidence stands in what it was shown of the reference."""
    found = locate_fragments(written, item.reference, shown.runs)[0]
    return item.blind or any(stands(fragment, item.sentence, item.question) for fragment in found)


def _three_turns(item: Item, shown: Shown, options: Options) -> Turn[Verdict]:
    sources, inputs = (item.sentence, item.question, shown.text), _inputs(item, shown)
    template, order = options.chooser(item.language, item.reference, item.question)
    chat = template.chat(order, inputs)
    facts, kinds = CHOICES[template.language]
    (states, span), sample = yield from _ask(chat, lambda reply, _: tags.parse_facts(reply, sources), options, facts)
    sure = probability(sample, span)
    if not states:
        return Verdict("no_fact", scores=_scores("no_fact", {"no_fact": sure}))
    no_fact = None if sure is None else 1 - sure
    chat += [_said(sample), ("user", template.fill(1, order, inputs))]

    def read(reply: str, last: bool) -> tuple[str, ...]:
        points = tags.parse_points(reply)
        if points and not last and not _proves(points, item, shown):
            raise ParseFailure(NO_EVIDENCE)
        return points

    points, sample = yield from _ask(chat, read, options)
    if not points:
        text = sample.text
        reply = (len(text) - len(text[opening(text) :].lstrip()), len(text.rstrip()))  # without thoughts and blanks
        last = probability(sample, reply)
        return Verdict("unverifiable", scores=_scores("unverifiable", {"unverifiable": last}, no_fact))
    inputs["points"] = "<SEP>".join(points)
    chat += [_said(sample), ("user", template.fill(2, order, inputs))]
    (label, span), sample = yield from _ask(chat, lambda reply, _: tags.parse_type(reply, sources), options, kinds)
    if label == "supported" and not _proves(points, item, shown):
        raise Unreadable([NO_EVIDENCE])
    return Verdict(label, points, scores=_scores(label, decision(sample, span, _WORDS), no_fact))


def _inputs(item: Item, shown: Shown) -> dict[str, str]:
    return {"reference": shown.text, "question": item.question, "sentence": item.sentence, "name": item.name}


def _said(sample: Sample) -> tuple[str, str]:
    """The reply as a message of the next turn, without thoughts."""
    return "assistant", sample.text[opening(sample.text) :].strip()


def converse(engine: Engine, conversations: Sequence[Turn[T]], known: dict[Request, ChatResult]) -> list[T]:
    """Carry conversations on together, a round of requests at a time; what each returned, in order.

    Equal requests are made once: new results are added to ``known``. EngineError where the engine answers no more.
    """
    returned: dict[int, T] = {}
    waiting: dict[int, Request] = {}

    def go_on(number: int, result: Any = None) -> None:  # a conversation begins by being sent nothing
        try:
            waiting[number] = conversations[number].send(result)
        except StopIteration as stop:
            returned[number] = stop.value

    for number in range(len(conversations)):
        go_on(number)
    while waiting:
        asked, waiting = waiting, {}
        new = list(dict.fromkeys(request for request in asked.values() if request not in known))
        for sampling in dict.fromkeys(request.sampling for request in new):
            group = [request for request in new if request.sampling == sampling]
            chats = [[{"role": role, "content": text} for role, text in request.chat] for request in group]
            results = engine.chat(chats, sampling)
            known.update(zip(group, results, strict=True))
            check_asked(results)
        for number, request in asked.items():
            go_on(number, known[request])
    return [returned[number] for number in range(len(conversations))]


# --- label scores out of log-probabilities ------------------------------------------------------------------
# The label given gets the probability of its deciding words; others get that of the likeliest alternatives to their
# tokens, as far as a beginning belongs to one label only (无 begins 无 and 无法验证: the next token tells).
# What remains is shared equally by the other labels. These are no calibrated probabilities.

CONTEXT = 12  # characters before the deciding words by which they are found among the tokens
TOP = 8  # alternatives to ask an engine for
_WORDS: dict[str, Label] = {**TYPES, **{f"<{word}>": label for word, label in TYPES.items()}}
"""What the deciding words may be, with and without brackets."""


def _scores(
    label: Label, known: Mapping[Label, float | None] | None, no_fact: float | None = 0.0
) -> Mapping[Label, float] | None:
    """Scores out of a last turn's probabilities, where an earlier one gave "no fact" that of ``no_fact``."""
    if known is None or no_fact is None or None in known.values():
        return None
    of_turn = {name: (1 - no_fact) * p for name, p in known.items() if p is not None}
    return label_scores(label, {"no_fact": no_fact, **of_turn} if no_fact else of_turn)


def decision(sample: Sample, span: tuple[int, int], words: Mapping[str, Label]) -> dict[Label, float] | None:
    """How likely each label was, in [0, 1], where a reply decides at ``span`` by one of ``words`` (in small letters,
    without blanks); the sum is at most 1. None without log-probabilities, or where no such words are found there.
    """
    found, given = _tokens(sample, span), words.get(_plain(sample.text[slice(*span)]))
    if found is None or given is None or sample.logprobs is None:
        return None
    first, last, lead = found
    mass: dict[Label, float] = {}
    path, written = 1.0, ""
    for place, token in enumerate(sample.logprobs[first:], first):
        ended = place > last
        if ended and not any(word.startswith(written) and word != written for word in words):
            break  # no other words begin like these
        before = lead if place == first else ""
        for text, logprob in token.top:
            other = _plain(text)
            if text == token.text or not other.startswith(before):
                continue
            labels = _labels(written + other[len(before) :], words, ended)
            if len(labels) == 1:
                label = labels.pop()
                mass[label] = mass.get(label, 0.0) + path * math.exp(min(0.0, logprob))
        path *= math.exp(min(0.0, token.logprob))
        if ended:
            break
        written += _plain(token.text)[len(before) :]
    mass[given] = mass.get(given, 0.0) + path
    return mass


def probability(sample: Sample, span: tuple[int, int]) -> float | None:
    """How likely the words at ``sample.text[span]`` were, in [0, 1], or None as in ``decision``."""
    found = decision(sample, span, {_plain(sample.text[slice(*span)]): "supported"})
    return None if found is None else found["supported"]


def label_scores(label: Label, known: Mapping[Label, float]) -> Mapping[Label, float]:
    """Scores that sum to 1: the known probabilities; what is missing to 1 is shared by the labels not decided for."""
    total = max(1.0, sum(known.values()))
    shares = {name: known.get(name, 0.0) / total for name in LABELS}
    rest = max(0.0, 1.0 - sum(shares.values())) / (len(LABELS) - 1)
    return {name: share if name == label else share + rest for name, share in shares.items()}


def _labels(text: str, words: Mapping[str, Label], ended: bool) -> set[Label]:
    """The labels that a text may come to mean; ``ended``: words that it equals are over."""
    if ended and text in words:
        return {words[text]}
    if still := {label for word, label in words.items() if word.startswith(text)}:
        return still
    begun = [word for word in words if text.startswith(word)]
    return {words[max(begun, key=len)]} if begun else set()


def _tokens(sample: Sample, span: tuple[int, int]) -> tuple[int, int, str] | None:
    """First and last token of the words, and what of the first one stands before them."""
    if not sample.logprobs or span[0] >= span[1]:
        return None
    owner = [n for n, token in enumerate(sample.logprobs) for _ in _plain(token.text)]
    joined = "".join(_plain(token.text) for token in sample.logprobs)
    before = _plain(sample.text[: span[0]])[-CONTEXT:]
    words = _plain(sample.text[slice(*span)])
    if not words or joined.count(before + words) != 1:
        return None
    start = joined.index(before + words) + len(before)
    first = owner[start]
    return first, owner[start + len(words) - 1], joined[owner.index(first) : start]


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()
