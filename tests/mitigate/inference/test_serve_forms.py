"""Requests, streams and replies of any form through the proxy: read, rewritten or passed, never lost."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from mitigate.inference.serve import FIELD, Held, Proxy, annotated_stream, corrected_stream, last_question, read_request
from tests.helpers.proxy_upstream import MESSAGES, Upstream, running
from tests.helpers.rule_annotator import REFERENCE, RIGHT, WRONG, RuleAnnotator


def test_the_last_question_is_found() -> None:
    assert last_question([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) == "a"
    parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "y"}]
    assert last_question([{"role": "user", "content": parts}]) == "x\ny"
    for nothing in (None, [], "text", [{"role": "assistant", "content": "b"}], [None, {"role": "user"}]):
        assert last_question(nothing) is None


KEYS = st.sampled_from(["choices", "delta", "content", "index", FIELD, "messages"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


async def collected(rewrite: Any, *pieces: bytes) -> bytes:
    """What a rewriting of a stream gives; the judge puts the text in capitals."""

    async def source() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def judge(texts: Any) -> dict[int, Held]:
        return {i: Held(text.upper(), {"seen": text}) for i, text in texts.items()}

    return b"".join([part async for part in rewrite(source(), judge)])


EVENTS = st.one_of(
    JSON.map(lambda v: f"data: {json.dumps(v)}\n\n".encode()),
    st.text(max_size=8).map(str.encode),
    st.sampled_from([b"data: [DONE]\n\n", b": ping\n\n", b"event: x\r\n", b"\r", b"\r\n\r\n", b"data: {\ndata: }\n\n"]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=6))
def test_streams_of_any_shape_pass(pieces: list[bytes]) -> None:
    passed = asyncio.run(collected(annotated_stream, *pieces))
    rest = b"".join(block for block in re.split(rb'(data: [^\n]*"seen"[^\n]*\n\n)', passed) if b'"seen"' not in block)
    assert rest.rstrip(b"\r\n") == b"".join(pieces).rstrip(b"\r\n")
    whole = asyncio.run(collected(corrected_stream, b"".join(pieces)))
    assert asyncio.run(collected(corrected_stream, *pieces)) == whole


PIECES = st.fixed_dictionaries(
    {
        "index": st.integers(0, 2),
        "delta": st.fixed_dictionaries(
            {}, optional={"content": st.none() | st.text(max_size=4), "role": st.just("assistant"),
                          "tool_calls": st.just([{"index": 0}])},
        ),
        "finish_reason": st.sampled_from([None, None, None, "stop"]),
    }
)  # fmt: skip
CHUNKS = st.lists(PIECES, max_size=2).map(lambda choices: {"id": "x", "choices": choices})


def apart(data: bytes) -> tuple[dict[int, str], list[str], list[str]]:
    """Of a stream: the text of each choice; and without text, what passes and what finishes, each in order."""
    texts: dict[int, str] = {}
    passing, finishing = [], []
    for one in SSEDecoder().iter_bytes(iter([data])):
        if not one.data.startswith("{"):
            (finishing if one.data == "[DONE]" else passing).append(one.data)
            continue
        chunk = one.json()
        for choice in chunk["choices"]:
            if (text := choice["delta"].pop("content", None)) is not None:
                texts[choice["index"]] = texts.get(choice["index"], "") + text
        if not chunk["choices"] or any(c["finish_reason"] for c in chunk["choices"]):
            finishing.append(json.dumps(chunk))
        elif any(c["delta"] for c in chunk["choices"]):
            passing.append(json.dumps(chunk))
    return texts, passing, finishing


@settings(max_examples=200, deadline=None)
@given(st.lists(CHUNKS | st.sampled_from(["a note", "[DONE]", ""]), max_size=8), st.integers(1, 60))
def test_a_corrected_stream_keeps_every_piece_once_and_in_order(pieces: list[Any], size: int) -> None:
    blocks = [f"data: {p if isinstance(p, str) else json.dumps(p)}\n\n" if p else ": ping\n\n" for p in pieces]
    data = "".join(blocks).encode()
    out = asyncio.run(collected(corrected_stream, data))
    cut = [data[i : i + size] for i in range(0, len(data), size)]
    assert asyncio.run(collected(corrected_stream, *cut)) == out  # however the bytes come
    texts, passing, finishing = apart(data)
    blocks = re.findall(rb"data: [^\n]*\n\n", out)
    at = len(passing)
    judged = json.loads(blocks.pop(at)[6:])["choices"] if texts else []
    assert {c["index"]: (c["delta"]["content"], c[FIELD]["seen"]) for c in judged} == {
        i: (text.upper(), text) for i, text in texts.items()
    }
    assert apart(b"".join(blocks[:at])) == ({}, passing, [])  # before the text
    assert apart(b"".join(blocks[at:])) == ({}, [], finishing)  # after it
    assert out.count(b": ping") == pieces.count("")


def delta(text: str, **choice: Any) -> dict[str, Any]:
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}]}


def received(data: bytes) -> tuple[str, str | None]:
    """The text and the judged text of a stream, as the OpenAI client reads it."""
    text, seen = "", None
    for one in SSEDecoder().iter_bytes(iter([data])):
        for choice in [] if one.data == "[DONE]" else one.json()["choices"]:
            text += choice["delta"].get("content") or ""
            seen = choice.get(FIELD, {}).get("seen", seen)
    return text, seen


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_events_end_where_the_standard_says(end: str, size: int) -> None:
    """Line separators, next lines and form feeds stand in answers as they are; an event may have several data lines."""
    words = "one\u2028two\x85three\u2029 é四"
    whole = json.dumps(delta("\x0cfour"), ensure_ascii=False, indent=1).replace("\n", f"{end}data: ")
    lines = ["data:" + json.dumps(delta(words), ensure_ascii=False), "", f"event: message{end}data: {whole}", ""]
    data = end.join([*lines, ": ping", "", "data: [DONE]", "", ""]).encode()
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    text = f"{words}\x0cfour"
    annotated = asyncio.run(collected(annotated_stream, *pieces))
    assert received(annotated) == (text, text)
    assert re.sub(rb'data: [^\r\n]*"seen"[^\r\n]*\n\n', b"", annotated) == data
    corrected = asyncio.run(collected(corrected_stream, *pieces))
    assert received(corrected) == (text.upper(), text)
    assert "two" not in corrected.decode().replace(json.dumps(text)[1:-1], "")  # nothing before it was judged


def test_corrected_streams_keep_the_words_of_before_out_of_log_probabilities() -> None:
    chunks = [
        delta("wrong", logprobs={"content": [{"token": "wrong"}]}),
        delta("", finish_reason="stop", logprobs={"t": "wrong"}),
    ]
    out = asyncio.run(collected(corrected_stream, *[f"data: {json.dumps(c)}\n\n".encode() for c in chunks]))
    assert out.decode().replace('"seen": "wrong"', "").count("wrong") == 0


def test_a_stream_of_tool_calls_gets_no_chunk_without_choices() -> None:
    call = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}], "content": None}
    chunk = {"id": "x", "choices": [{"index": 0, "delta": call, "finish_reason": "tool_calls"}]}
    data = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
    assert asyncio.run(collected(annotated_stream, data)) == data
    out = asyncio.run(collected(corrected_stream, data)).decode()
    assert json.loads(out.split("\n\n")[0].removeprefix("data: ")) == chunk


def test_halves_of_a_surrogate_pair_come_through() -> None:
    pieces = [b'data: {"choices": [{"index": 0, "delta": {"content": "a\\ud83d"}}]}\n\n',
              b'data: {"choices": [{"index": 0, "delta": {"content": "\\ude00"}}]}\n\ndata: [DONE]\n\n']  # fmt: skip
    assert received(asyncio.run(collected(corrected_stream, *pieces)))[0] == "A\U0001f600"


class Odd(Upstream):
    """Replies that are unusual, as bytes: the status line and headers are uvicorn's."""

    def __init__(self, data: bytes, kind: str = "application/json", broken: bool = False) -> None:
        super().__init__()
        self.data, self.kind, self.broken = data, kind, broken

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/{path:path}", self.any, methods=["GET", "POST", "DELETE"])])

    async def any(self, request: Request) -> Response:
        self.headers.append({"path": request.scope["raw_path"].decode(), "method": request.method})
        length = {"content-length": str(len(self.data) + 9)} if self.broken else {}
        return StreamingResponse(self.once(), media_type=self.kind, headers=length)

    async def once(self) -> AsyncIterator[bytes]:
        yield self.data


def post(behind: Upstream, **body: Any) -> httpx2.Response:
    with running(behind.app()) as url, running(Proxy(url, RuleAnnotator()).app()) as own:
        body = {"messages": MESSAGES, FIELD: {"reference": REFERENCE, "action": "correct"}, **body}
        return httpx2.post(f"{own}/chat/completions", json=body, timeout=60)


@pytest.mark.parametrize("stream", [False, True])
def test_whatever_json_comes_from_behind_never_costs_the_answer(stream: bool) -> None:
    """A server that doesn't stream where it is asked to; numbers and texts that strict JSON can't hold."""
    lone = (
        b'{"choices": [{"message": {"content": "'
        + WRONG.encode()
        + b' A \\ud800 it is."}, "logprobs": {"x": -Infinity}}]}'
    )
    reply = post(Odd(lone), stream=stream)
    (choice,) = json.loads(reply.content)["choices"]
    assert choice["message"]["content"] == f"{RIGHT} A \ud800 it is."
    assert choice["logprobs"] is None
    odd = b'{"choices": [{"message": "text"}]}'
    assert post(Odd(odd)).content == odd


@pytest.mark.parametrize(("action", "texts"), [("correct", [RIGHT]), ("annotate", [WRONG[:9], WRONG[9:], ""])])
def test_a_stream_that_breaks_off_loses_nothing_and_says_so(
    capfd: pytest.CaptureFixture[str], action: str, texts: list[str]
) -> None:
    """What came before the break is judged and sent as if it were whole, then the error is told."""
    data = "".join(f"data: {json.dumps(delta(text))}\n\n" for text in (WRONG[:9], WRONG[9:])).encode()
    wanted = {"reference": REFERENCE, "action": action}
    reply = post(Odd(data + b'data: {"choi', "text/event-stream", broken=True), stream=True, **{FIELD: wanted})
    *chunks, last = [json.loads(part) for part in re.findall(r"data: (.*)\n\n", reply.text)]
    assert "broke off" in last["error"]["message"]
    assert [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks] == texts
    said = chunks[-1]["choices"][0][FIELD]
    assert (said["original_answer"] if action == "correct" else said["sentences"][0]["text"]) == WRONG
    assert said["hallucination_rate"] == (0 if action == "correct" else 1)


def test_paths_and_methods_pass_as_they_are() -> None:
    behind = Odd(b"{}")
    with running(behind.app()) as url, running(Proxy(url, RuleAnnotator()).app()) as own:
        assert httpx2.delete(f"{own}/models/org%2Fname%3Fx?y=%2F", timeout=60).status_code == 200
    assert behind.headers == [{"path": "/v1/models/org%2Fname%3Fx", "method": "DELETE"}]


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_requests_of_any_shape_are_read_or_refused(value: Any) -> None:
    try:
        wanted, body, _ = read_request(json.dumps(value).encode())
    except ValueError:
        return
    assert FIELD not in json.loads(body)
    assert wanted is None or wanted.reference
