"""Any OpenAI-compatible server: vLLM, ``transformers serve``, OpenAI, Ollama and others.

Through the ``openai`` client, with its own timeouts and retries (429, 408, 409, 5xx, lost connections; it
honours Retry-After). A request that fails for good becomes a failed result; an error that would hit every
request (refused connection, wrong key, unknown model) stops the batch: it is raised where nothing was
answered yet, otherwise what was answered is returned and the rest is marked failed.

Thin servers accept ``n``, ``logprobs`` and ``response_format`` and do nothing about them. What came back is
checked, missing samples are asked for one by one, and what was ignored is logged once. A server may also add
sampling defaults of its checkpoint (top_k, repetition penalty): start vLLM with ``--generation-config vllm`` to have
only the options sent from here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from engines.checkpoint import encodable
from engines.types import (
    NO_ROOM,
    NOT_ASKED,
    Chat,
    ChatResult,
    EngineError,
    OnResult,
    Sample,
    Sampling,
    Token,
    chat_seed,
    check_chats,
)
from engines.usage import METER

if TYPE_CHECKING:
    from openai import AsyncOpenAI

log = logging.getLogger(__name__)
T = TypeVar("T")
_REFUSES = re.compile(r"support|cannot|not (allowed|permitted)|deprecated|unknown|unrecogni[sz]ed|unexpected", re.I)
_REFUSED_AS = {"top_p": "top_p", "temperature": "temperature", "seed": "seed",
               "response_format": "response_format|json_schema", "extra_body": "structured_outputs",
               "stream_options": "stream_options|include_usage"}  # fmt: skip
"""Options that a server may lack, by what its refusal calls them."""
GIVE_UP_AFTER = 20  # or twice the concurrency: failures in a row, each after its retries, that stop a batch


@dataclass(frozen=True)
class Failure:
    """Why a request has no answer."""

    reason: str  # what happened and what to do
    fatal: bool = False  # every other request would fail in the same way
    retried: bool = False  # the client tried several times (an overloaded or broken server, not a bad request)
    rejected: bool = False  # the server understood and refused this very request (400, 422)


def explain(error: Exception, model: str, base_url: str) -> Failure:
    """What an error that the client raised after its own retries means for the batch, and what to do about it."""
    import openai

    if isinstance(error, openai.APITimeoutError):
        return Failure(
            f"{base_url} did not answer in time; ask less at once (concurrency), or shorter answers", retried=True
        )
    if isinstance(error, openai.APIConnectionError) or _of_transport(error):
        cause = error.__cause__ if isinstance(error, openai.APIConnectionError) else error
        if type(cause).__name__ == "ConnectError":  # httpx2 (openai 3) or httpx (openai 2)
            return Failure(
                f"cannot connect to {base_url} ({cause}): is the server running, are host and port right?", fatal=True
            )
        return Failure(f"{base_url} broke the connection off ({cause!r}); see the server's log", retried=True)
    if not isinstance(error, openai.APIStatusError):
        return Failure(f"{base_url} sent a reply that cannot be read ({type(error).__name__}: {error})")
    status, body = error.status_code, error.body if isinstance(error.body, dict) else {}
    message = body.get("message") or body.get("detail") or error  # OpenAI's form, FastAPI's form
    broken = status >= 500 or status in (408, 409)
    kind = 402 if error.code == "insufficient_quota" and status != 401 else 500 if broken else status
    why = {
        401: "the key was refused; set OPENAI_API_KEY to a valid key",
        402: "the account has no credit left",
        404: f"is {model!r} a model of this server (see {base_url}/models), and does the base URL have its path, "
        "usually /v1?",
        429: "rate limit; ask it less at once (concurrency), or go on later",
        500: "the server failed; see its log, then run again",
    }.get(kind, "the request was rejected")
    said = f"{base_url} answered {status} ({' '.join(str(message).split())[:300]}): {why}"
    return Failure(said, fatal=kind in (401, 402, 404), retried=kind in (429, 500), rejected=kind in (400, 422))


def _of_transport(error: Exception) -> bool:
    """Whether it is one of httpx2 (openai 3) or httpx (openai 2), which the client may let through in a stream."""
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)


async def _paced(request: Any) -> None:
    """Before each attempt of the client: its retries have their turns, too."""
    if request.headers.get("x-stainless-retry-count", "0") != "0":
        await METER.turn(again=True)


class OpenAIEngine:
    """Chat completions of one model on one server.

    ``model`` is its name there (for ``transformers serve`` the checkpoint's path); a ``base_url`` of None is the
    client's default. At most ``concurrency`` requests (≥ 1) are in flight. An attempt has ``timeout`` seconds;
    ``max_retries`` (≥ 0) follow a failed one, with the client's growing pauses. Raises ImportError: there is no package
    ``openai``; ValueError: there is no key for a server that needs one, or an option is out of range.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        concurrency: int = 16,
        timeout: float = 300,
        max_retries: int = 4,
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise ImportError(
                "the openai engine needs the openai package: pip install 'hallucination-toolkit[openai]'"
            ) from error
        if concurrency < 1 or timeout <= 0 or max_retries < 0:
            raise ValueError(
                "openai engine: expected concurrency ≥ 1, timeout > 0 and max_retries ≥ 0, "
                f"got {concurrency}, {timeout}, {max_retries}"
            )
        self.model = model
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
        key = os.environ.get("OPENAI_API_KEY")
        if not key and base_url is None:
            raise ValueError(f"openai engine: set OPENAI_API_KEY to the key for {self.base_url}")
        self.name = f"openai:{model}" + (f"@{base_url}" if base_url else "")
        self.identity = {"engine": "openai", "model": model, "base_url": self.base_url.rstrip("/")}
        self.concurrency = concurrency
        self._client_options: dict[str, Any] = {  # local servers want some key and read none
            "api_key": key or "none", "base_url": self.base_url, "max_retries": max_retries,
            "timeout": openai.Timeout(timeout, connect=min(timeout, 10.0)),
        }  # fmt: skip
        self._openai = openai
        self._ignored: set[str] = set()
        self._refused: set[str] = set()
        self._limit_name = "max_tokens"

    def chat(
        self, chats: Sequence[Chat], sampling: Sampling | None = None, *, on_result: OnResult | None = None
    ) -> list[ChatResult]:
        """See :meth:`engines.types.Engine.chat`."""
        check_chats(chats)
        return _run(self._chat(chats, sampling or Sampling(), on_result)) if len(chats) else []

    def stream(self, chat: Chat, sampling: Sampling | None = None) -> Iterator[str]:
        """The answer to ``chat`` in pieces, as they come; closing the iterator closes the connection. A limit of cost
        holds, those of requests or tokens a minute do not. Raises EngineError: there is no answer, or it broke off.
        """
        check_chats([chat])
        sampling = sampling or Sampling()
        body = {**_body(chat, sampling, 1, 0), "stream": True, "stream_options": {"include_usage": True}}
        began, answered, begun, reason, usage = time.monotonic(), False, False, None, None
        if (refused := METER.start()) is not None:
            raise EngineError(refused)
        try:
            with self._openai.OpenAI(**self._client_options) as client:
                create: Any = client.chat.completions.create
                while True:
                    sent = self._sent(body, sampling)
                    try:
                        chunks = create(model=self.model, **sent)
                        break
                    except (self._openai.BadRequestError, self._openai.UnprocessableEntityError) as error:
                        if not self._adapt(str(error), sent):
                            raise
                for chunk in chunks:
                    answered, usage = True, getattr(chunk, "usage", None) or usage  # of the last chunk
                    for choice in (getattr(chunk, "choices", None) or ())[:1]:
                        delta = getattr(choice, "delta", None)
                        reason = getattr(choice, "finish_reason", None) or reason
                        # A refusal is an answer.
                        if piece := getattr(delta, "content", None) or getattr(delta, "refusal", None):
                            begun = True
                            yield piece
            if not answered:
                raise EngineError(f"{self.base_url} sent no text: expected a stream; try another model or server")
            if reason is None:
                raise EngineError(f"{self.base_url} broke the answer off; see the server's log")
            if not begun:
                raise EngineError(f"{self.base_url} sent no text (finish reason {reason!r}); {NO_ROOM}")
        except Exception as error:
            if isinstance(error, self._openai.OpenAIError | ValueError) or _of_transport(error):
                raise EngineError(explain(error, self.model, self.base_url).reason) from error
            raise
        finally:
            if answered:  # also where the reader stopped it, before the server said how many tokens
                METER.count(*_tokens(usage), time.monotonic() - began, paid=True)
            METER.end()

    def close(self) -> None:
        """Nothing is held between batches."""

    async def _chat(self, chats: Sequence[Chat], sampling: Sampling, on_result: OnResult | None) -> list[ChatResult]:
        results: dict[int, ChatResult] = {}
        todo = iter(enumerate(chats))
        slots = asyncio.Semaphore(self.concurrency)
        in_a_row = 0
        stopped: str | None = None

        async def work(client: AsyncOpenAI) -> None:
            nonlocal in_a_row, stopped
            for index, chat in todo:  # shared by all workers: each chat is taken once
                if stopped is not None:
                    result = ChatResult(error=f"{NOT_ASKED}{stopped}")
                else:
                    result, failure = await self._answer(client, slots, chat, sampling)
                    in_a_row = 0 if failure is None or not failure.retried else in_a_row + 1
                    if failure is not None and failure.fatal:
                        if not any(known.error is None for known in results.values()):
                            raise EngineError(failure.reason)
                        stopped = failure.reason
                    elif failure is not None and in_a_row >= max(GIVE_UP_AFTER, 2 * self.concurrency):
                        stopped = f"{in_a_row} requests in a row failed, the last one so: {failure.reason}"
                results[index] = result
                if on_result is not None:
                    on_result(index, result)

        paced = self._openai.DefaultAsyncHttpxClient(event_hooks={"request": [_paced]})
        async with self._openai.AsyncOpenAI(**self._client_options, http_client=paced) as client:
            workers = [asyncio.create_task(work(client)) for _ in range(min(self.concurrency, len(chats)))]
            try:
                await asyncio.gather(*workers)
            finally:  # after an error in one of them the others must not go on asking
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        ordered = [results[index] for index in range(len(chats))]
        errors = [result.error for result in ordered if result.error is not None]
        if errors:
            log.warning("%s: %d of %d chats failed; the first: %s", self.name, len(errors), len(chats), errors[0])
        return ordered

    async def _answer(
        self, client: AsyncOpenAI, slots: asyncio.Semaphore, chat: Chat, sampling: Sampling
    ) -> tuple[ChatResult, Failure | None]:
        """All samples of one chat: in one request where the server does ``n``, else in n requests."""
        replies: list[ChatResult] = []
        failure: Failure | None = None
        wanted = sampling.n
        if wanted == 1 or "n" not in self._ignored:
            reply = await self._request(client, slots, chat, sampling, wanted, 0)
            if isinstance(reply, ChatResult):
                replies.append(reply)
            elif wanted == 1 or not reply.rejected:  # a server may also reject n > 1: then one by one
                failure = reply
        rejects_n = wanted > 1 and not replies and failure is None
        have = len(replies[0].samples) if replies else 0
        if have < wanted and failure is None:
            more = [self._request(client, slots, chat, sampling, 1, place) for place in range(have, wanted)]
            for reply in await asyncio.gather(*more):
                if isinstance(reply, ChatResult):
                    replies.append(reply)
                else:
                    failure = failure or reply
            if rejects_n and failure is None:
                self._note("n", "it refuses the option, so samples are asked for one by one")
        samples = tuple(sample for reply in replies for sample in reply.samples)[:wanted]
        if have < wanted == len(samples) and len({sample.text for sample in samples}) == 1:
            equal = f"{wanted} samples of one chat are equal at temperature {sampling.temperature:g}"
            log.warning("%s: %s; does the server draw at all?", self.name, equal)
        counts = [reply.completion_tokens for reply in replies]
        written = sum(c or 0 for c in counts) if counts and None not in counts else None
        result = ChatResult(samples, replies[0].prompt_tokens if replies else None, written)
        if failure is not None:
            refused = failure.rejected or failure.reason.endswith(NO_ROOM)  # greedily the same again
            result = replace(result, error=failure.reason, refused=refused)
        return result, failure

    async def _request(
        self, client: AsyncOpenAI, slots: asyncio.Semaphore, chat: Chat, sampling: Sampling, n: int, place: int
    ) -> ChatResult | Failure:
        """One request for ``n`` samples, the first of them number ``place`` of the chat."""
        body = _body(chat, sampling, n, place)
        create: Any = client.chat.completions.create  # its overloads do not know options built in a dict
        async with slots:
            if (reason := await METER.turn()) is not None:
                return Failure(reason, fatal=True)
            began = time.monotonic()
            try:
                while True:
                    sent = self._sent(body, sampling)
                    try:
                        reply = await create(model=self.model, **sent)
                        break
                    except (self._openai.BadRequestError, self._openai.UnprocessableEntityError) as error:
                        if not self._adapt(str(error), sent):
                            raise
                        await METER.turn(again=True)
            except (self._openai.OpenAIError, json.JSONDecodeError, UnicodeDecodeError) as error:
                return explain(error, self.model, self.base_url)
            finally:
                METER.end()
        METER.count(*_tokens(getattr(reply, "usage", None)), time.monotonic() - began, paid=True)
        return self._read(reply, sampling, n)

    def _sent(self, body: Mapping[str, Any], sampling: Sampling) -> dict[str, Any]:
        """The options of a request in the words that this server takes."""
        sent = {k: v for k, v in body.items() if k not in self._refused}
        return {**sent, self._limit_name: sampling.max_tokens}

    def _adapt(self, refusal: str, sent: Mapping[str, Any]) -> bool:
        """Learn from a refusal what this server takes; whether the request is worth sending again."""
        if "max_tokens" in sent and "max_completion_tokens" in refusal:
            self._limit_name = "max_completion_tokens"  # OpenAI's newer models want the other name
            return True
        if "logprobs" in sent and "logprobs" in refusal:  # its reasoning models have none and refuse the option
            self._refused |= {"logprobs", "top_logprobs"}
            return True
        for name, called in _REFUSED_AS.items():  # and draw in their own way only
            if name in sent and re.search(rf"\b({called})\b", refusal) and _REFUSES.search(refusal):
                self._refused.add(name)
                self._note(name, "it refuses the option, so requests go without it")
                return True
        return False

    def _read(self, reply: Any, sampling: Sampling, n: int) -> ChatResult | Failure:
        """Check a reply (the client does not, so any attribute may lack) and take the samples out of it, of which some
        may hold no text."""
        if not isinstance(reply, self._openai.types.chat.ChatCompletion):
            return Failure(f"{self.base_url} did not answer with a chat completion but with {reply!r:.80}")
        choices, samples = getattr(reply, "choices", None), []
        lost = "was asked for and did not come back"
        if not isinstance(choices, list) or not choices:
            return Failure(f"{self.base_url} sent a reply without choices: {reply.to_json(indent=None):.200}")
        if len(choices) < n:
            self._note("n", f"asked for {n} samples, got {len(choices)}; the missing ones are asked one by one")
        empty = ""
        for choice in sorted(choices, key=lambda choice: getattr(choice, "index", None) or 0):
            message, reason = getattr(choice, "message", None), getattr(choice, "finish_reason", None)
            text = getattr(message, "content", None)
            if not isinstance(text, str):
                text = getattr(message, "refusal", None)  # a refusal is an answer
            if not isinstance(text, str):
                empty = f"the reply holds no text (finish reason {reason!r}); {NO_ROOM}"
                continue
            if sampling.choices and text not in sampling.choices:
                self._note("choices", lost)
            if sampling.json_schema is not None and reason != "length":  # what was cut off cannot be whole JSON
                try:
                    json.loads(text)
                except ValueError:
                    self._note("json_schema", lost)
            tokens, given = None, getattr(getattr(choice, "logprobs", None), "content", None)
            if sampling.logprobs and given is not None:
                tops = [tuple((o.token, o.logprob) for o in getattr(t, "top_logprobs", None) or ()) for t in given]
                tokens = tuple(Token(t.token, t.logprob, top) for t, top in zip(given, tops, strict=True))
            elif sampling.logprobs:
                self._note("logprobs", lost)
            samples.append(Sample(text, reason, tokens))
        if not samples:
            return Failure(empty)
        prompt, written = _tokens(getattr(reply, "usage", None))
        return ChatResult(tuple(samples), prompt, written)

    def _note(self, name: str, what: str) -> None:
        if name not in self._ignored:
            self._ignored.add(name)
            log.warning("%s: the server ignores %r: %s", self.name, name, what)


def _tokens(usage: Any) -> tuple[int | None, int | None]:
    """Prompt and reply tokens that a server reports, None where it does not."""
    return getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)


def _body(chat: Chat, sampling: Sampling, n: int, place: int) -> dict[str, Any]:
    """The request's options, without those at the protocol's default, which a thin server may not know."""
    options: dict[str, Any] = {
        "n": n if n > 1 else None, "seed": None if sampling.seed is None else chat_seed(sampling.seed, chat, place),
        "logprobs": sampling.logprobs or None, "top_logprobs": sampling.top_logprobs or None,
    }  # fmt: skip
    if sampling.json_schema is not None:
        schema = {"name": "answer", "schema": dict(sampling.json_schema), "strict": True}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    if sampling.choices:  # vLLM's name; the protocol itself has none
        options["extra_body"] = {"structured_outputs": {"choice": list(sampling.choices)}}
    messages = list(map(encodable, chat))
    given = {name: value for name, value in options.items() if value is not None}
    # Servers that read a checkpoint's generation_config.json would take its top_p otherwise.
    return {"messages": messages, "temperature": sampling.temperature, "top_p": 1.0, **given}


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, also from within a running event loop (a notebook, a web server's handler)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
