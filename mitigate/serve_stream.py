"""Server-sent events of a chat completion, with the judgement of the answer added or the answer replaced.

`annotated_stream` passes every event as it comes and adds one chunk with the judgement before the end.
`corrected_stream` holds text back (a comment line keeps the connection open), then sends it judged in one chunk,
before the chunk that finishes the choice. Whatever is no text (roles, tool calls, usage) passes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

FIELD = "hallucination"
DONE = "data: [DONE]"
WAITING = b": judging\n\n"


@dataclass(frozen=True)
class Held:
    """An answer after it was judged: the text to send, and what is said about it."""

    text: str
    extra: dict[str, Any]


Judge = Callable[[Mapping[int, str]], Awaitable[dict[int, Held]]]
"""Texts by choice to what was held of them."""


async def annotated_stream(lines: AsyncIterator[str], judge: Judge) -> AsyncIterator[bytes]:
    """Every event as it comes, and before the end one chunk with the judgement of each choice."""
    texts: dict[int, str] = {}
    head: dict[str, Any] = {}
    told = False
    async for line in lines:
        if line.strip() == DONE:
            yield event(_judged(head, await judge(texts), with_text=False))
            told = True
        elif (chunk := read_event(line)) is not None:
            head = head or _head(chunk)
            for index, delta, _ in _choices(chunk):
                if isinstance(delta.get("content"), str):
                    texts[index] = texts.get(index, "") + delta["content"]
        yield f"{line}\n".encode()
    if texts and not told:  # a server that ends without saying so
        yield event(_judged(head, await judge(texts), with_text=False))


async def corrected_stream(lines: AsyncIterator[str], judge: Judge) -> AsyncIterator[bytes]:
    """Events without text as they come; at the end the judged text of each choice, then what finishes it."""
    texts: dict[int, str] = {}
    head: dict[str, Any] = {}
    last: list[bytes] = []
    async for line in lines:
        chunk = read_event(line)
        if chunk is None:
            if line.strip() == DONE:
                last.append(f"{DONE}\n\n".encode())
            elif line.strip():
                yield f"{line}\n\n".encode()
            continue
        head = head or _head(chunk)
        finishing = not chunk.get("choices")  # usage comes after everything else
        rest = False
        for index, delta, choice in _choices(chunk):
            if isinstance(delta.get("content"), str):
                texts[index] = texts.get(index, "") + delta.pop("content")
            finishing = finishing or choice.get("finish_reason") is not None
            rest = rest or any(value is not None for value in delta.values())
        if finishing:
            last.append(event(chunk))
        else:
            yield event(chunk) if rest else WAITING
    if texts:
        yield event(_judged(head, await judge(texts), with_text=True))
    for data in last:
        yield data


def read_event(line: str) -> dict[str, Any] | None:
    """The chunk of a `data:` line, None for any other line."""
    if not line.startswith("data:"):
        return None
    try:
        chunk = json.loads(line.removeprefix("data:"))
    except (ValueError, RecursionError):
        return None
    return chunk if isinstance(chunk, dict) else None


def event(chunk: Mapping[str, Any]) -> bytes:
    """A chunk as a server-sent event; JSON keeps line breaks of the text escaped."""
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode()


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
