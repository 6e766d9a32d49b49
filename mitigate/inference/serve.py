"""An OpenAI-compatible proxy: answers of any endpoint come back annotated, or corrected, with their reference.

A request that carries `"hallucination": {"reference": "…"}` (with the openai client: `extra_body=`) gets the same
reply with a field `hallucination` in each choice; everything else passes through. The field of the request:

    reference      the document that answers are judged against
    question       default: the last user message
    action         "annotate" (default: the text is untouched), or "correct"
    delete, abstain_above      as in `mitigate.inference.correct.correct`, for "correct"

Streaming: annotated text passes as it comes and the annotation follows in a last chunk; corrected text is held back
until it was judged. An answer that can't be judged passes as it is, and the field says why (`error`).
"""

from __future__ import annotations

import hmac
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import httpx2
from pydantic import Field
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from annotators.base import Annotator
from engines.types import Sample
from mitigate.inference.correct import Regenerate, correct
from mitigate.io import UsageError
from mitigate.recipes.config import Section, check
from mitigate.rewards.inputs import question_of

log = logging.getLogger(__name__)
FIELD = "hallucination"
# Headers that belong to one connection, or that change with the body, and are not passed on.
HOP = {
    "host", "content-length", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade",
    "proxy-authorization", "proxy-authenticate", "accept-encoding", "content-encoding", "date", "server",
}  # fmt: skip
LOOPBACK = ("127.0.0.1", "::1", "localhost")
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class Wanted(Section):
    """What a request asks of the proxy."""

    reference: str = Field(min_length=1)
    question: str | None = None
    action: Literal["annotate", "correct"] = "annotate"
    delete: bool = False
    abstain_above: float | None = Field(default=None, ge=0, lt=1)

    @property
    def mends(self) -> bool:
        """Whether something may change without a correction."""
        return self.delete or self.abstain_above is not None


@dataclass(frozen=True)
class Held:
    """An answer after it was judged: the text to send, and what is said about it."""

    text: str
    extra: dict[str, Any]


Judge = Callable[[Mapping[int, str]], Awaitable[dict[int, Held]]]
"""Judges the text of each choice."""


@dataclass
class Proxy:
    """The proxy's settings and its annotator."""

    upstream: str  # base URL of the endpoint behind, such as http://127.0.0.1:8000/v1
    annotator: Annotator  # used by one request at a time
    regenerate: Regenerate | None = None  # None applies only the corrections that the annotator gives
    corrects: bool = True  # whether one of these writes corrections; else "correct" needs delete or abstain_above
    token: str | None = None  # what clients must send as bearer token; None takes programs on this machine
    key: str | None = None  # sent on in place of the client's authorization; None passes that on
    max_bytes: int = 10_000_000  # of a request
    max_characters: int = 200_000  # of an answer, and of a reference, that is judged
    timeout: float = 300.0  # seconds that the endpoint behind may stay silent
    _client: httpx2.AsyncClient | None = field(default=None, repr=False)
    _one: anyio.CapacityLimiter | None = field(default=None, repr=False)

    def app(self) -> Starlette:
        @asynccontextmanager
        async def life(_: Starlette) -> AsyncIterator[None]:
            self._one = anyio.CapacityLimiter(1)
            async with httpx2.AsyncClient(timeout=httpx2.Timeout(self.timeout, connect=10.0)) as client:
                self._client = client
                yield

        routes = [Route("/health", self.health), Route("/v1/{path:path}", self.handle, methods=METHODS)]
        return Starlette(routes=routes, lifespan=life)

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok", "annotator": self.annotator.who})

    async def handle(self, request: Request) -> Response:
        """Check a request and pass it on; of a chat completion the field of this proxy is read."""
        path = request.path_params["path"]
        if ".." in path.split("/"):
            return problem(404, "no such path")
        chat = request.method == "POST" and path == "chat/completions"
        sent = request.headers.get("authorization", "").encode()
        asks = request.method == "OPTIONS"  # as browsers do first, without the token
        if self.token is not None and not asks and not hmac.compare_digest(sent, f"Bearer {self.token}".encode()):
            return problem(401, "expected the bearer token that this proxy was started with")
        if self.token is None and (said := _foreign(request)):
            return problem(403, said)
        kind = request.headers.get("content-type", "")
        writes = request.method in ("POST", "PUT", "PATCH")
        if (chat or (writes and self.token is None)) and not kind.startswith("application/json"):
            uploads = "" if chat else "; uploads need a proxy that was started with a token"
            return problem(415, f"expected content-type application/json, got {kind!r}{uploads}")
        received = bytearray()
        try:
            async for part in request.stream():
                received += part
                if len(received) > self.max_bytes:
                    return problem(413, f"expected a request of at most {self.max_bytes:,} bytes")
        except ClientDisconnect:
            return problem(499, "the client went away")
        body, wanted, stream = bytes(received), None, False
        if chat:
            try:
                wanted, body, stream = read_request(body)
            except ValueError as error:
                return problem(400, str(error))
            if wanted is not None and len(wanted.reference) > self.max_characters:
                return problem(413, f"{FIELD}.reference: expected at most {self.max_characters:,} characters")
            if wanted is not None and wanted.action == "correct" and not (self.corrects or wanted.mends):
                need = "delete or abstain_above, or a proxy started with --engine or a generative annotator"
                return problem(400, f"{FIELD}: {self.annotator.name} writes no corrections: expected {need}")
        try:
            return await self._forward(request, body, wanted, stream)
        except httpx2.InvalidURL as error:
            return problem(400, f"expected a path and query that make a URL: {error}")
        except httpx2.TimeoutException:
            return problem(504, f"{self.upstream} did not answer within {self.timeout:g} s")
        except httpx2.HTTPError as error:
            return problem(502, f"cannot reach {self.upstream}: {error or type(error).__name__}; is it running?")

    async def _forward(self, request: Request, body: bytes, wanted: Wanted | None, stream: bool) -> Response:
        assert self._client is not None  # set while the application runs
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
        if self.key is not None:
            headers["authorization"] = f"Bearer {self.key}"
        elif self.token is not None:
            headers.pop("authorization", None)  # the proxy's own secret stays here
        headers["accept-encoding"] = "identity"  # events and JSON are read here
        path = request.scope["raw_path"].decode("latin-1").partition("?")[0].removeprefix("/v1/")  # %2F stays %2F
        url = f"{self.upstream.rstrip('/')}/{path}" + (f"?{request.url.query}" if request.url.query else "")
        sent = self._client.build_request(request.method, url, headers=headers, content=body)
        reply = await self._client.send(sent, stream=True)
        passed = {k: v for k, v in reply.headers.items() if k.lower() not in HOP}
        if wanted is None or reply.status_code != 200:
            return StreamingResponse(self._sent(reply.aiter_bytes(), reply), reply.status_code, passed)
        kind = reply.headers.get("content-type", "")
        if kind.startswith("text/event-stream") or (stream and not kind.startswith("application/json")):
            held = wanted.action == "correct"
            events = judged_stream(reply.aiter_bytes(), lambda texts: self._judge(texts, wanted), held=held)
            return StreamingResponse(self._sent(events, reply, tell=True), 200, passed)
        try:
            data = await reply.aread()
        finally:
            await reply.aclose()
        return await self._whole(data, wanted, passed)

    async def _sent(
        self, chunks: AsyncIterator[bytes], reply: httpx2.Response, *, tell: bool = False
    ) -> AsyncIterator[bytes]:
        """The chunks of a reply; where the endpoint behind breaks off, an error event or else the error itself."""
        try:
            async for chunk in chunks:
                yield chunk
        except httpx2.HTTPError as error:
            if not tell:
                raise
            yield event(_error(f"{self.upstream} broke off: {error or type(error).__name__}"))
        finally:
            await reply.aclose()

    async def _whole(self, data: bytes, wanted: Wanted, headers: Mapping[str, str]) -> Response:
        """A reply that does not stream, judged."""
        try:
            found = json.loads(data)
            messages = [choice["message"] for choice in found["choices"]]
            texts = {i: m["content"] for i, m in enumerate(messages) if isinstance(m.get("content"), str)}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            log.warning("%s: the reply is no chat completion and passes as it is", self.upstream)
            return Response(data, 200, dict(headers))
        for i, held in (await self._judge(texts, wanted)).items():
            if held.text != texts[i] and "logprobs" in found["choices"][i]:
                found["choices"][i]["logprobs"] = None  # of words that are no longer there
            messages[i]["content"] = held.text
            found["choices"][i][FIELD] = held.extra
        plain = {k: v for k, v in headers.items() if k.lower() != "content-type"}
        return Response(json.dumps(found), 200, plain, media_type="application/json")

    async def _judge(self, texts: Mapping[int, str], wanted: Wanted) -> dict[int, Held]:
        """Judge the answers of one reply, in a thread, one reply at a time."""
        said = {i: Sample(t).said for i, t in texts.items()}
        good = {i: texts[i] for i, t in said.items() if t.strip() and len(t) <= self.max_characters}
        wrong = f"not judged: expected 1 to {self.max_characters:,} characters, got"
        out = {i: Held(texts[i], {"error": f"{wrong} {len(t):,}"}) for i, t in said.items() if i not in good}
        try:
            judged = await anyio.to_thread.run_sync(self._work, list(good.values()), wanted, limiter=self._one)
        except Exception as error:  # whatever it is: the answer is there and passes, and the field says why
            log.exception("an answer was not judged")
            judged = [Held(t, {"error": f"not judged: {type(error).__name__}: {error}"}) for t in good.values()]
        return {**out, **dict(zip(good, judged, strict=True))}

    def _work(self, texts: list[str], wanted: Wanted) -> list[Held]:
        question = {"question": wanted.question} if wanted.question else {}
        records = [{**question, "reference": wanted.reference, "answer": text} for text in texts]
        if wanted.action == "annotate":
            rows = [annotation.to_dict() for annotation in self.annotator.annotate_batch(records)]
        else:
            how: dict[str, Any] = {"delete": wanted.delete, "abstain_above": wanted.abstain_above}
            rows = [one.to_dict() for one in correct(records, self.annotator, regenerate=self.regenerate, **how)]
        left_out = ("question", "reference", "answer")
        return [Held(row["answer"], {k: v for k, v in row.items() if k not in left_out}) for row in rows]


# --- requests --------------------------------------------------------------------------------------------------------


def read_request(data: bytes) -> tuple[Wanted | None, bytes, bool]:
    """What a chat request asks of the proxy, the request without that, and whether it is to be streamed.

    Raises ValueError: the body is no JSON object, or the field is not as expected.
    """
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected a JSON body: {error}") from None
    if not isinstance(body, dict):
        raise ValueError(f"expected a JSON object, got {type(body).__name__}")
    stream = body.get("stream") is True
    if FIELD not in body:
        return None, data, stream
    asked = body.pop(FIELD)
    if not isinstance(asked, dict):
        raise ValueError(f'{FIELD}: expected an object such as {{"reference": "…"}}, got {type(asked).__name__}')
    try:
        wanted = check(Wanted, asked, FIELD)
    except UsageError as error:
        raise ValueError(str(error)) from None
    if wanted.action == "annotate" and wanted.mends:
        raise ValueError(f'{FIELD}: delete and abstain_above go with "action": "correct" only')
    if wanted.question is None and isinstance(messages := body.get("messages"), list):
        wanted = wanted.model_copy(update={"question": question_of(messages) or None})
    return wanted, json.dumps(body).encode(), stream


def _error(message: str) -> dict[str, Any]:
    """An error in OpenAI's form."""
    return {"error": {"message": f"mitigate serve: {message}", "type": "proxy_error"}}


def problem(status: int, message: str) -> JSONResponse:
    return JSONResponse(_error(message), status)


def _foreign(request: Request) -> str | None:
    """Why a request may come from a web page, which must not use this machine's endpoint and its key; None if not.

    Browsers name the page in Origin (always with POST) or Sec-Fetch-Site; a page whose name was made to point at this
    machine (DNS rebinding) shows in Host. What a page can send without these is no JSON.
    """
    if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
        return "expected a program, got a web page: start the proxy with a token for clients that send Origin"
    host = re.sub(r":\d*$", "", request.headers.get("host", "")).strip("[]").lower()
    if host not in LOOPBACK:
        return f"expected host {', '.join(LOOPBACK)}, got {host!r}: others need a proxy started with a token"
    return None


# --- server-sent events ----------------------------------------------------------------------------------------------
# Where a stream breaks off, what came of it is judged and sent in the same way, and the error is raised after that.

DONE = "[DONE]"
WAITING = b": judging\n\n"  # a comment, which keeps the connection open
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r(?=[^\n]))")  # a CR at the end may be half of a CR LF


async def judged_stream(chunks: AsyncIterator[bytes], judge: Judge, *, held: bool) -> AsyncIterator[bytes]:
    """Every event as it comes; before the end, one chunk with the judgement of each choice.

    With ``held`` the text of each choice stays back and comes with its judgement, before what finishes the choices;
    log-probabilities, which are those of the words before correction, are left out.
    """
    texts, head = dict[int, str](), dict[str, Any]()  # the text of each choice; the keys that every chunk has
    last: list[bytes] = []
    broken: Exception | None = None
    try:
        async for raw, data in read_events(chunks):
            chunk = _chunk(data)
            given = chunk.get("choices")
            if given and not head:
                head = {key: chunk[key] for key in ("id", "object", "created", "model") if key in chunk}
            known = given if isinstance(given, list) else []
            choices = [c for c in known if isinstance(c, dict) and isinstance(c.get("delta"), dict)]
            for choice in choices:
                index, text = choice.get("index"), choice["delta"].get("content")
                if isinstance(text, str):
                    place = index if isinstance(index, int) else 0
                    texts[place] = texts.get(place, "") + text
            ends = data.strip() == DONE or (bool(last) and not held)  # then the order stays, whatever follows the end
            if held and chunk:
                # What tells the usage has no choices, and comes after everything else.
                ends = not given or any(choice.get("finish_reason") is not None for choice in choices)
                raw = event(chunk) if _without_text(choices) or ends else WAITING
            if ends:
                last.append(raw)
            else:
                yield raw
    except Exception as error:
        broken = error
    if texts:
        judged = [
            {"index": i, "delta": {"content": one.text} if held else {}, "finish_reason": None, FIELD: one.extra}
            for i, one in sorted((await judge(texts)).items())
        ]
        yield event({**head, "choices": judged})
    for block in last:
        yield block
    if broken is not None:
        raise broken


def _without_text(choices: Sequence[dict[str, Any]]) -> bool:
    """Take text and log-probabilities out of the choices of a chunk; whether anything else is in their deltas."""
    for choice in choices:
        if isinstance(choice["delta"].get("content"), str):
            del choice["delta"]["content"]
        if "logprobs" in choice:
            choice["logprobs"] = None
    return any(value is not None for choice in choices for value in choice["delta"].values())


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[bytes, str]]:
    """Each event as it came, its blank line included, and its data; comments and other fields have data "".

    Lines end at CR LF, LF or CR and nowhere else (HTML standard, 9.2.6): a line separator or a form feed may stand
    in the text of an answer. An event that the end of the stream cuts off gets its blank line.
    """
    rest, lines = b"", list[bytes]()
    async for chunk in chunks:
        rest += chunk
        place = 0
        for found in _LINE.finditer(rest):
            place = found.end()
            lines.append(found.group())
            if not found.group().strip(b"\r\n"):
                yield b"".join(lines), _data(lines)
                lines = []
        rest = rest[place:]
    if lines or rest.strip(b"\r\n"):
        raw = b"".join([*lines, rest])
        whole = raw.endswith((b"\n\n", b"\r\r", b"\r\n\r\n"))
        yield raw if whole else raw.rstrip(b"\r\n") + b"\n\n", _data([*lines, rest])


def _data(lines: list[bytes]) -> str:
    texts = [line.strip(b"\r\n").removeprefix(b"data:") for line in lines if line.startswith(b"data:")]
    return b"\n".join(text.removeprefix(b" ") for text in texts).decode("utf-8", "replace")


def _chunk(data: str) -> dict[str, Any]:
    """The chunk that an event's data hold, empty where they hold something else."""
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return chunk if isinstance(chunk, dict) else {}


def event(chunk: Mapping[str, Any]) -> bytes:
    """A chunk as a server-sent event; JSON in ASCII, so line breaks and halves of surrogate pairs are escaped."""
    return f"data: {json.dumps(chunk)}\n\n".encode()
