"""Server-sent events of a chat completion, with the judgement of the answer added or the answer replaced.

`annotated_stream` passes every event as it comes and adds one chunk with the judgement before the end.
`corrected_stream` holds text back (a comment line keeps the connection open), then sends it judged in one chunk,
before the chunk that finishes the choice. Whatever is no text (roles, tool calls, usage) passes. Where the stream
breaks off, what came of it is judged and sent in the same way, and the error is raised after that.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

FIELD = "hallucination"
DONE = "[DONE]"
WAITING = b": judging\n\n"
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r(?=[^\n]))")  # a CR at the end may be half of a CR LF


@dataclass(frozen=True)
class Held:
    """An answer after it was judged: the text to send, and what is said about it."""

    text: str
    extra: dict[str, Any]


Judge = Callable[[Mapping[int, str]], Awaitable[dict[int, Held]]]
"""Texts by choice to what was held of them."""


async def annotated_stream(chunks: AsyncIterator[bytes], judge: Judge) -> AsyncIterator[bytes]:
    """Every event as it comes, and before the end one chunk with the judgement of each choice.

    Raises:
        Exception: What ended the stream before its time, after the judgement of what came.
    """
    texts: dict[int, str] = {}
    head: dict[str, Any] = {}
    told = False
    broken: Exception | None = None
    try:
        async for raw, data in read_events(chunks):
            if data.strip() == DONE and not told:
                if texts:
                    yield event(_judged(head, await judge(texts), with_text=False))
                told = True
            elif (chunk := read_chunk(data)) is not None:
                head = _head(chunk) if not head and chunk.get("choices") else head
                for index, delta, _ in _choices(chunk):
                    if isinstance(delta.get("content"), str):
                        texts[index] = texts.get(index, "") + delta["content"]
            yield raw
    except Exception as error:
        broken = error
    if texts and not told:  # the server ended without saying so
        yield event(_judged(head, await judge(texts), with_text=False))
    if broken is not None:
        raise broken


async def corrected_stream(chunks: AsyncIterator[bytes], judge: Judge) -> AsyncIterator[bytes]:
    """Events without text as they come; at the end the judged text of each choice, then what finishes it.

    Log-probabilities are left out: they are those of the words before correction.

    Raises:
        Exception: What ended the stream before its time, after the judged text of what came.
    """
    texts: dict[int, str] = {}
    head: dict[str, Any] = {}
    last: list[bytes] = []
    broken: Exception | None = None
    try:
        async for raw, data in read_events(chunks):
            chunk = read_chunk(data)
            if chunk is None:
                if data.strip() == DONE:
                    last.append(raw)
                else:
                    yield raw
                continue
            head = _head(chunk) if not head and chunk.get("choices") else head
            finishing = not chunk.get("choices")  # usage comes after everything else
            rest = False
            for index, delta, choice in _choices(chunk):
                if isinstance(delta.get("content"), str):
                    texts[index] = texts.get(index, "") + delta.pop("content")
                if "logprobs" in choice:
                    choice["logprobs"] = None
                finishing = finishing or choice.get("finish_reason") is not None
                rest = rest or any(value is not None for value in delta.values())
            if finishing:
                last.append(event(chunk))
            else:
                yield event(chunk) if rest else WAITING
    except Exception as error:
        broken = error
    if texts:
        yield event(_judged(head, await judge(texts), with_text=True))
    for block in last:
        yield block
    if broken is not None:
        raise broken


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
        lines.append(rest)
        raw = b"".join(lines)
        whole = raw.endswith((b"\n\n", b"\r\r", b"\r\n\r\n"))
        yield raw if whole else raw.rstrip(b"\r\n") + b"\n\n", _data(lines)


def _data(lines: list[bytes]) -> str:
    texts = [line.strip(b"\r\n").removeprefix(b"data:") for line in lines if line.startswith(b"data:")]
    return b"\n".join(text.removeprefix(b" ") for text in texts).decode("utf-8", "replace")


def read_chunk(data: str) -> dict[str, Any] | None:
    """The chunk that an event's data hold, None where they hold something else."""
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return chunk if isinstance(chunk, dict) else None


def event(chunk: Mapping[str, Any]) -> bytes:
    """A chunk as a server-sent event; JSON in ASCII, so line breaks and halves of surrogate pairs are escaped."""
    return f"data: {json.dumps(chunk)}\n\n".encode()


def _choices(chunk: Mapping[str, Any]) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
    """(index, delta, choice) of the well-formed choices of a chunk."""
    choices = chunk.get("choices")
    found = []
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, dict) and isinstance(choice.get("delta"), dict):
            index = choice.get("index")
            found.append((index if isinstance(index, int) else 0, choice["delta"], choice))
    return found


def _head(chunk: Mapping[str, Any]) -> dict[str, Any]:
    return {key: chunk[key] for key in ("id", "object", "created", "model") if key in chunk}


def _judged(head: Mapping[str, Any], held: Mapping[int, Held], *, with_text: bool) -> dict[str, Any]:
    return {
        **head,
        "choices": [
            {
                "index": index,
                "delta": {"content": one.text} if with_text else {},
                "finish_reason": None,
                FIELD: one.extra,
            }
            for index, one in sorted(held.items())
        ],
    }
