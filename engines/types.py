"""What every text-generation engine takes and gives: chats and sampling in, one result per chat out.

Plain frozen dataclasses without torch or any client library. The :class:`Engine` protocol says what an engine
must do; ``load_engine`` makes one of a string.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

Chat = Sequence[Mapping[str, str]]
"""One conversation: messages ``{"role": ..., "content": ...}`` in order."""

TAGS = (("<think>", "</think>"), ("<thinking>", "</thinking>"), ("analysis", "assistantfinal"))
"""Tags of thinking; the last are what is left of channels without their special tokens."""
THINKING = re.compile(
    r"(?-i:\s*analysis(?:(?=\S).*?assistantfinal|(?=(?:We|The user|User|I|Need|Let|Okay|So)\b).*\Z))"
    r"|(?:(?:(?!<think(?:ing)?>).)*?</think(?:ing)?>)?(?:\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z))*", re.S | re.I,
)  # fmt: skip
"""What a model thinks before it speaks, at the start of a text: what stands before the last channel, or blocks, the
first of which a prompt may have opened and the last of which may never end."""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class EngineError(RuntimeError):
    """Generation cannot go on, for a reason that would hit every request; the message says what to do."""


@dataclass(frozen=True)
class Sampling:
    """How to draw the answers, alike for every engine. Raises ValueError, which names field, value and range."""

    max_tokens: int = 512  # of one answer, ≥ 1
    temperature: float = 0.0  # 0 is greedy; above 0 (at most 2) draws
    n: int = 1  # answers per chat, ≥ 1; more than one needs a temperature above 0
    seed: int | None = None  # 0 … 2³¹ − 1, one stream per chat (see chat_seed); None: each run draws its own
    logprobs: bool = False  # whether to ask for the log-probability of every generated token
    top_logprobs: int = 0  # likeliest tokens at every place, 0 … 20; needs logprobs; servers may give fewer
    # The answer must be JSON of this schema (not in the ``transformers`` engine).
    json_schema: Mapping[str, Any] | None = field(default=None, hash=False)
    choices: tuple[str, ...] = ()  # the answer must be exactly one of these strings

    def __post_init__(self) -> None:
        for name, holds, expected in (
            ("max_tokens", _within(self.max_tokens, int, 1), "a whole number of at least 1"),
            ("n", _within(self.n, int, 1), "a whole number of at least 1"),
            ("temperature", _within(self.temperature, int | float, 0, 2), "a number from 0 to 2"),
            ("seed", self.seed is None or _within(self.seed, int, 0, 2**31 - 1), "None or a whole number in 0 … 2³¹−1"),
            ("top_logprobs", _within(self.top_logprobs, int, 0, 20), "a whole number in 0 … 20"),
        ):
            if not holds:
                raise ValueError(f"sampling: {name} must be {expected}, got {getattr(self, name)!r}")
        if isinstance(self.choices, str) or not all(isinstance(text, str) and text for text in self.choices):
            raise ValueError(f"sampling: choices must be a list of non-empty strings, got {self.choices!r}")
        object.__setattr__(self, "choices", tuple(self.choices))
        if self.top_logprobs and not self.logprobs:
            raise ValueError("sampling: top_logprobs are given beside logprobs; set logprobs, too")
        if self.n > 1 and self.temperature == 0:
            raise ValueError(f"sampling: n={self.n} greedy answers would be equal; set temperature above 0")
        if self.choices and self.json_schema is not None:
            raise ValueError("sampling: give json_schema or choices, not both")


@dataclass(frozen=True)
class Token:
    """One generated token as text, with its natural-log probability (≤ 0) given what came before.

    ``top`` are the likeliest tokens at its place, the generated one often among them: (text, log-probability).
    """

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Sample:
    """One answer.

    ``finish_reason`` is "stop" (ended by itself), "length" (cut at ``max_tokens``), or what a server said. ``logprobs``
    holds one entry per generated token, for the local engines under the model's own distribution (before temperature)
    and with the token that ended the answer; None where not asked for or not available.
    """

    text: str
    finish_reason: str | None = None
    logprobs: tuple[Token, ...] | None = None

    @property
    def said(self) -> str:
        """The text without the thinking before it."""
        rest = THINKING.sub("", self.text, count=1)
        return self.text if rest == self.text else rest.lstrip()


@dataclass(frozen=True)
class ChatResult:
    """What came back for one chat."""

    samples: tuple[Sample, ...] = ()  # ``n`` of them unless ``error`` is set
    prompt_tokens: int | None = None  # None where the engine does not say
    completion_tokens: int | None = None  # generated tokens, summed over the samples, or None
    error: str | None = None  # why this chat has no (or not every) answer
    refused: bool = False  # this very chat is why: asking again would not help

    @property
    def text(self) -> str | None:
        """What the first answer says aloud, or None where there is none."""
        return self.samples[0].said if self.samples else None

    @property
    def texts(self) -> tuple[str, ...]:
        """What all answers say aloud, in sampling order."""
        return tuple(sample.said for sample in self.samples)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> ChatResult:
        """The inverse of :meth:`to_dict`."""
        samples = []
        for sample in row["samples"]:
            tokens = given = sample["logprobs"]
            if given is not None:
                tops = [tuple((text, value) for text, value in token.get("top", ())) for token in given]
                tokens = tuple(Token(t["text"], t["logprob"], top) for t, top in zip(given, tops, strict=True))
            samples.append(Sample(sample["text"], sample["finish_reason"], tokens))
        return cls(tuple(samples), row["prompt_tokens"], row["completion_tokens"], row["error"])


NO_ROOM = "is max_tokens too small?"
"""What the error of a reply ends with that a model spent on its thoughts."""
NOT_ASKED = "not asked: "
"""How ``ChatResult.error`` begins where a batch was stopped for a reason that would hit every request."""


def check_asked(results: Iterable[ChatResult]) -> None:
    """Raise EngineError with the reason where a batch was stopped. A cache holds what was answered before."""
    for result in results:
        if result.error is not None and result.error.startswith(NOT_ASKED):
            raise EngineError(result.error.removeprefix(NOT_ASKED))


OnResult = Callable[[int, ChatResult], None]
"""Called with a chat's place in the batch and its result as soon as that is there."""


class Engine(Protocol):
    """A batch of chats in, a batch of results out."""

    @property
    def name(self) -> str:
        """The engine string, ``KIND:MODEL[@BASE_URL]``."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """All that its answers depend on besides messages and sampling; JSON values (the cache's key)."""

    def chat(
        self, chats: Sequence[Chat], sampling: Sampling | None = None, *, on_result: OnResult | None = None
    ) -> list[ChatResult]:
        """Answer every chat; without ``sampling`` by one greedy answer of at most 512 tokens.

        ``on_result`` is called with each result as it comes, in any order. Returns one result per chat, in the order of
        ``chats``; a chat that failed by itself has ``error`` set. Raises ValueError: a chat or option is malformed, or
        this engine lacks the option; EngineError: it can't answer anything (no connection, wrong key, unknown model).
        """

    def close(self) -> None:
        """Give back what the engine holds."""


def check_chats(chats: Sequence[Chat]) -> None:
    """Raise ValueError where a chat has a wrong shape; it names the chat, the message and what is wrong with it."""
    if isinstance(chats, str | Mapping):
        raise ValueError(f"chats: expected a list of chats, got {type(chats).__name__}")
    for index, chat in enumerate(chats):
        if isinstance(chat, str | Mapping) or len(chat) == 0:
            raise ValueError(f"chat {index}: expected a non-empty list of messages, got {chat!r:.80}")
        for place, message in enumerate(chat):
            where = f"chat {index}, message {place}"
            if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
                raise ValueError(f'{where}: expected {{"role", "content"}}, got {message!r:.80}')
            if message["role"] not in ROLES:
                raise ValueError(f"{where}: role must be one of {sorted(ROLES)}, got {message['role']!r:.80}")
            if not isinstance(message["content"], str):
                raise ValueError(f"{where}: content must be a string, got {message['content']!r:.80}")


def canonical(value: Any) -> str:
    """JSON with sorted keys, no spaces and ASCII only: equal values give equal strings."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def chat_seed(seed: int, chat: Chat, sample: int = 0) -> int:
    """The seed of one sample of one chat, in [0, 2³¹): of seed, messages and sample number only, so that a draw does
    not depend on its batch, and draws for different chats are independent (one seed for all would be one noise).
    """
    messages = [dict(message) for message in chat]
    digest = hashlib.sha256(canonical([seed, messages]).encode()).digest()
    return (int.from_bytes(digest[:8], "big") + sample) % 2**31


def _within(value: Any, kind: Any, least: float, most: float = float("inf")) -> bool:
    """Whether it is a number of this kind, which True is not, in [least, most]."""
    return isinstance(value, kind) and not isinstance(value, bool) and least <= value <= most
