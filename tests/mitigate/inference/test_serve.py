"""The proxy between a real client and a real server over HTTP; requests, streams and replies of any form."""

import asyncio
import json
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx2
import openai
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from mitigate.inference.correct import ABSTENTION
from mitigate.inference.serve import FIELD, Held, Proxy, judged_stream, read_request
from tests.helpers.engines_server import Reply, serving
from tests.helpers.rule_annotator import LOST, REFERENCE, RIGHT, WRONG, RuleAnnotator

annotated_stream, corrected_stream = (partial(judged_stream, held=held) for held in (False, True))
MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "How high?"}]


@contextmanager
def running(app):
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [free]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        free.close()


class Upstream:
    """The endpoint behind; with a gate, a stream goes on behind its first word once that is open, within a minute."""

    def __init__(self):
        self.seen, self.headers, self.opened = [], [], True
        self.reset()

    def reset(self):
        self.texts, self.status, self.done, self.gate = [f"{WRONG} {LOST}"], 200, True, None
        self.seen.clear()
        self.headers.clear()

    def app(self):
        return Starlette(routes=[Route("/v1/{path:path}", self.any, methods=["GET", "POST", "DELETE", "OPTIONS"])])

    async def any(self, request):
        self.headers.append(dict(request.headers))
        if request.url.path == "/v1/models" and request.method == "GET":
            data = [{"id": "m", "object": "model"}]
            return JSONResponse({"object": "list", "data": data})
        if request.url.path != "/v1/chat/completions":
            path, query = request.scope["raw_path"].decode(), str(request.url.query)
            return JSONResponse({"path": path, "method": request.method, "query": query}, 405)
        body = await request.json()
        self.seen.append(body)
        if self.status != 200:
            return JSONResponse({"error": {"message": "overloaded"}}, self.status)
        if body.get("stream"):
            return StreamingResponse(self.pieces(), media_type="text/event-stream")
        said = ({"role": "assistant", "content": text} for text in self.texts)
        choices = [{"index": i, "finish_reason": "stop", "message": message} for i, message in enumerate(said)]
        return JSONResponse({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": choices})

    async def pieces(self):
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}

        def chunk(index, delta, finish=None):
            choice = {"index": index, "delta": delta, "finish_reason": finish}
            return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"

        for i, text in enumerate(self.texts):
            yield chunk(i, {"role": "assistant", "content": ""})
            for word in text.split(" "):
                await asyncio.sleep(0.05)
                yield chunk(i, {"content": f"{word} " if word != text.split(" ")[-1] else word})
                if self.gate is not None:
                    self.opened &= await asyncio.to_thread(self.gate.wait, 60)
            yield chunk(i, {}, "stop")
        usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n"
        if self.done:
            yield "data: [DONE]\n\n"


@pytest.fixture(scope="module")
def upstream():
    behind = Upstream()
    with running(behind.app()) as behind.url:
        yield behind


@pytest.fixture(scope="module")
def proxy(upstream):
    with running(Proxy(upstream.url, RuleAnnotator(), max_bytes=20_000, max_characters=2000).app()) as url:
        yield url


@pytest.fixture(scope="module")
def keyed(upstream):
    with running(Proxy(upstream.url, RuleAnnotator(), key="upstream-key").app()) as url:
        yield url


@pytest.fixture(autouse=True)
def afresh(upstream):
    upstream.reset()


def client(url, key="the-key"):
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)


def call(method, url, **options):
    return httpx2.request(method, url, timeout=60, **options)


def models(url, key):
    with client(url, key) as asking:
        return [model.id for model in asking.models.list()]


def ask(url, **wanted):
    with client(url) as asking:
        body = {FIELD: {"reference": REFERENCE, **wanted}}
        return asking.chat.completions.create(model="m", messages=MESSAGES, extra_body=body)


def stream(url, **wanted):
    with client(url) as asking:
        body = {FIELD: {"reference": REFERENCE, **wanted}}
        yield from asking.chat.completions.create(model="m", messages=MESSAGES, stream=True, extra_body=body)


def test_without_the_field_everything_passes_unchanged(proxy, upstream):
    with client(proxy) as asking:
        (choice,) = asking.chat.completions.create(model="m", messages=MESSAGES).choices
    assert choice.message.content == f"{WRONG} {LOST}"
    assert FIELD not in (choice.model_extra or {})
    assert upstream.headers[0]["authorization"] == "Bearer the-key"
    assert models(proxy, "the-key") == ["m"]


def test_an_answer_comes_back_annotated_or_corrected(proxy, upstream):
    upstream.texts = [f"{WRONG} {LOST}", RIGHT]
    first, second = ask(proxy).choices
    assert first.message.content == f"{WRONG} {LOST}"
    assert [s["label"] for s in first.model_extra[FIELD]["sentences"]] == ["contradictory", "unverifiable"]
    assert (first.model_extra[FIELD]["hallucination_rate"], second.model_extra[FIELD]["hallucination_rate"]) == (1, 0)
    assert FIELD not in upstream.seen[0]
    assert upstream.seen[0]["messages"][1]["content"] == "How high?"
    upstream.texts = [f"{WRONG} {LOST}"]  # corrected, or withheld
    (choice,) = ask(proxy, action="correct").choices
    assert choice.message.content == f"{RIGHT} {LOST}"
    assert choice.model_extra[FIELD]["original_answer"] == f"{WRONG} {LOST}"
    (choice,) = ask(proxy, action="correct", delete=True).choices
    assert choice.message.content == f"{RIGHT} "
    upstream.texts = [LOST]
    (choice,) = ask(proxy, action="correct", abstain_above=0.4).choices
    assert choice.message.content == ABSTENTION["en"]


def test_thinking_in_the_text_passes_unjudged(proxy, upstream):
    thought = f"<think>{WRONG} {LOST}</think>\n\n"
    upstream.texts = [thought + WRONG, "<think>It never ends."]
    first, second = ask(proxy).choices
    (sentence,) = first.model_extra[FIELD]["sentences"]
    assert first.message.content[sentence["start"] : sentence["end"]] == sentence["text"] == WRONG
    assert "expected 1 to 2,000 characters, got 0" in second.model_extra[FIELD]["error"]
    first, second = ask(proxy, action="correct").choices
    assert (first.message.content, second.message.content) == (thought + RIGHT, upstream.texts[1])
    assert first.model_extra[FIELD]["original_answer"] == upstream.texts[0]
    upstream.texts = [thought + LOST]
    (choice,) = ask(proxy, action="correct", abstain_above=0.4).choices
    text, extra = choice.message.content, choice.model_extra[FIELD]
    (sentence,), (change,) = extra["sentences"], extra["changes"]
    assert text == thought + ABSTENTION["en"]
    assert text[sentence["start"] : sentence["end"]] == sentence["text"] == ABSTENTION["en"]
    assert extra["original_answer"][change["start"] : change["end"]] == change["from"] == LOST


def test_a_stream_is_annotated_while_it_passes(proxy, upstream):
    upstream.gate = gate = threading.Event()
    text, found = "", None
    for chunk in stream(proxy):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            found = (choice.model_extra or {}).get(FIELD) or found
        if text:
            gate.set()  # the rest is sent once the first word has come through
    assert upstream.opened
    assert text == f"{WRONG} {LOST}"
    assert found["hallucination_rate"] == 1


def test_a_stream_is_corrected(proxy, upstream):
    upstream.texts = [f"{WRONG} {LOST}", RIGHT]
    texts, finished, usage, found = {0: "", 1: ""}, [], None, {}
    for chunk in stream(proxy, action="correct"):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert choice.index not in finished
            texts[choice.index] += choice.delta.content or ""
            if FIELD in (choice.model_extra or {}):
                found[choice.index] = choice.model_extra[FIELD]
            if choice.finish_reason:
                finished.append(choice.index)
    assert texts == {0: f"{RIGHT} {LOST}", 1: RIGHT}
    assert finished == [0, 1]
    assert usage.total_tokens == 3
    assert (found[0]["action"], found[1]["action"]) == ("corrected", "unchanged")
    upstream.done, upstream.texts = False, [RIGHT]  # a stream without its end is judged
    (judged,) = [c.model_extra for chunk in stream(proxy) for c in chunk.choices if FIELD in (c.model_extra or {})]
    assert judged[FIELD]["hallucination_rate"] == 0
    upstream.status = 429  # an error of the endpoint behind passes
    with pytest.raises(openai.RateLimitError, match="overloaded"):
        ask(proxy)


@pytest.mark.parametrize(("content", "status", "message"), [
    ({"reference": ""}, 400, "hallucination: reference: .*at least 1 character"),
    ({"referense": "x"}, 400, "unknown key 'referense'; did you mean 'reference'"),
    ({"action": "repair"}, 400, "action: .*'annotate' or 'correct', got 'repair'"),
    ({"delete": True}, 400, "go with .*correct"),
    ({"abstain_above": 2}, 400, "abstain_above: .*less than 1, got 2"),
    ({"reference": 7}, 400, "reference: .*valid string, got 7"),
    ({"reference": "y" * 3000}, 413, "at most 2,000 characters"),
    (b"{", 400, "expected a JSON body"),
    (b"[]", 400, "expected a JSON object, got list"),
    (b'{"hallucination": "x"}', 400, "expected an object"),
    (b"[" * 9000, 400, "expected a JSON body"),
    (b'{"x": "' + b"y" * 30_000 + b'"}', 413, "at most 20,000 bytes"),
])  # fmt: skip
def test_bad_requests_are_refused_before_asking(proxy, upstream, content, status, message):
    """A dictionary is the field of a request that is good otherwise."""
    if isinstance(content, dict):
        content = json.dumps({"messages": MESSAGES, FIELD: {"reference": REFERENCE, **content}}).encode()
    reply = call("POST", f"{proxy}/chat/completions", content=content, headers={"content-type": "application/json"})
    assert (reply.status_code, upstream.seen) == (status, [])
    assert re.search(message, reply.json()["error"]["message"])


def test_correct_is_refused_where_nothing_can_change(upstream):
    with running(Proxy(upstream.url, RuleAnnotator(), corrects=False).app()) as url:
        with pytest.raises(openai.BadRequestError, match="writes no corrections: expected delete or abstain_above"):
            ask(url, action="correct")
        assert upstream.seen == []
        upstream.texts = [LOST]
        (choice,) = ask(url, action="correct", delete=True).choices
    assert choice.message.content != LOST


def test_what_cannot_be_judged_passes(proxy, upstream):
    upstream.texts = ["long " * 500, ""]
    first, second = ask(proxy, action="correct").choices
    assert first.message.content == "long " * 500
    assert "expected 1 to 2,000 characters, got 2,500" in first.model_extra[FIELD]["error"]
    assert "error" in second.model_extra[FIELD]
    upstream.reset()

    class Broken(RuleAnnotator):
        def annotate_batch(self, records):
            raise RuntimeError("out of memory")

    with running(Proxy(upstream.url, Broken()).app()) as url:
        (choice,) = ask(url, action="correct").choices
        assert choice.message.content == f"{WRONG} {LOST}"
        assert choice.model_extra[FIELD]["error"] == "not judged: RuntimeError: out of memory"


def test_token_is_required_and_not_forwarded(upstream):
    with running(Proxy(upstream.url, RuleAnnotator(), token="secret", key="upstream-key").app()) as url:
        with pytest.raises(openai.AuthenticationError, match="expected the bearer token"):
            ask(url)
        assert call("GET", f"{url}/models").status_code == 401
        assert models(url, "secret") == ["m"]
        assert upstream.headers[-1]["authorization"] == "Bearer upstream-key"
    with running(Proxy(upstream.url, RuleAnnotator(), token="secret").app()) as url:
        assert models(url, "secret") == ["m"]
        assert "authorization" not in upstream.headers[-1]
        said = {"authorization": "Bearer secret", "origin": "https://page.example", "content-type": "text/plain"}
        assert call("POST", f"{url}/models", headers=said).status_code == 405  # the endpoint's own answer: no page
        asks = {"origin": "https://page.example", "access-control-request-method": "POST"}  # a browser has no token yet
        assert call("OPTIONS", f"{url}/models", headers=asks).json()["method"] == "OPTIONS"  # its own answer again


@pytest.mark.parametrize("path", ["chat/completions", "models/m"])
@pytest.mark.parametrize(("headers", "status", "message"), [
    ({"origin": "https://page.example"}, 403, "got a web page"),
    ({"sec-fetch-site": "cross-site"}, 403, "got a web page"),
    ({"host": "page.example"}, 403, "got 'page.example'"),  # a name that was made to point here
    ({"content-type": "text/plain"}, 415, "expected content-type application/json, got 'text/plain'"),
    ({"content-type": "multipart/form-data; boundary=x"}, 415, "expected content-type application/json"),
])  # fmt: skip
def test_web_pages_cannot_use_the_key(upstream, keyed, path, headers, status, message):
    reply = call("POST", f"{keyed}/{path}", content=b"{}", headers={"content-type": "application/json", **headers})
    assert (reply.status_code, upstream.headers) == (status, [])
    assert message in reply.json()["error"]["message"]
    if status == 403:
        assert call("GET", f"{keyed}/models", headers=headers).status_code == 403
        assert call("DELETE", f"{keyed}/{path}", headers=headers).status_code in (403, 405)
    assert upstream.headers == []


def test_programs_use_the_key(upstream, keyed):
    assert models(keyed, "any") == ["m"]
    assert models(keyed.replace("127.0.0.1", "localhost"), "any") == ["m"]
    assert {headers["authorization"] for headers in upstream.headers} == {"Bearer upstream-key"}


def test_no_endpoint_behind_is_a_clear_error():
    with running(Proxy("http://127.0.0.1:9/v1", RuleAnnotator()).app()) as url:
        with pytest.raises(openai.InternalServerError, match=r"cannot reach http://127.0.0.1:9/v1: .*is it running\?"):
            ask(url)
        assert call("GET", f"{url.removesuffix('/v1')}/health").json()["annotator"]["name"] == "rule"
        assert call("GET", f"{url}/%2e%2e/secret").status_code == 404


def test_requests_at_once_do_not_mix(proxy):
    def work(number):
        reference = RIGHT if number % 2 else f"{WRONG}\n{LOST}"
        return ask(proxy, reference=reference).choices[0].model_extra[FIELD]["hallucination_rate"]

    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(work, range(12))) == [0.0, 1.0] * 6


def test_the_last_question_is_found():
    def asked(messages):
        return read_request(json.dumps({"messages": messages, FIELD: {"reference": "x"}}).encode())[0].question

    assert asked([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) == "a"
    parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "y"}]
    assert asked([{"role": "user", "content": parts}]) == "x\ny"
    for nothing in (None, [], "text", [{"role": "assistant", "content": "b"}], [None, {"role": "user"}]):
        assert asked(nothing) is None


KEYS = st.sampled_from(["choices", "delta", "content", "index", FIELD, "messages"])
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JSON = st.recursive(LEAVES, lambda i: st.lists(i, max_size=3) | st.dictionaries(KEYS, i, max_size=3), max_leaves=12)


async def collected(rewrite, *pieces):
    """What a rewriting of a stream gives; the judge puts the text in capitals."""

    async def source():
        for piece in pieces:
            yield piece

    async def judge(texts):
        return {i: Held(text.upper(), {"seen": text}) for i, text in texts.items()}

    return b"".join([part async for part in rewrite(source(), judge)])


ODD = [b"data: [DONE]\n\n", b": ping\n\n", b"event: x\r\n", b"\r", b"\r\n\r\n", b"data: {\ndata: }\n\n"]
GOOD = JSON.map(lambda value: f"data: {json.dumps(value)}\n\n".encode())
EVENTS = GOOD | st.text(max_size=8).map(str.encode) | st.sampled_from(ODD)


@given(st.lists(EVENTS, max_size=6))
def test_streams_of_any_shape_pass(pieces):
    passed = asyncio.run(collected(annotated_stream, *pieces))
    rest = b"".join(block for block in re.split(rb'(data: [^\n]*"seen"[^\n]*\n\n)', passed) if b'"seen"' not in block)
    assert rest.rstrip(b"\r\n") == b"".join(pieces).rstrip(b"\r\n")


CALLS = st.just([{"index": 0}])
PARTS = {"content": st.none() | st.text(max_size=4), "role": st.just("assistant"), "tool_calls": CALLS}
DELTAS, ENDINGS = st.fixed_dictionaries({}, optional=PARTS), st.sampled_from([None, None, None, "stop"])
PIECES = st.fixed_dictionaries({"index": st.integers(0, 2), "delta": DELTAS, "finish_reason": ENDINGS})
CHUNKS = st.lists(PIECES, max_size=2).map(lambda choices: {"id": "x", "choices": choices})


def apart(data):
    """The text of each choice of a stream; and without text, what passes and what finishes, each in order."""
    texts = {}
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


@given(st.lists(CHUNKS | st.sampled_from(["a note", "[DONE]", ""]), max_size=8), st.integers(1, 60))
def test_a_corrected_stream_keeps_every_piece_in_order(pieces, size):
    blocks = [f"data: {p if isinstance(p, str) else json.dumps(p)}\n\n" if p else ": ping\n\n" for p in pieces]
    data = "".join(blocks).encode()
    out = asyncio.run(collected(corrected_stream, data))
    cut = [data[i : i + size] for i in range(0, len(data), size)]
    assert asyncio.run(collected(corrected_stream, *cut)) == out  # however the bytes come
    texts, passing, finishing = apart(data)
    blocks = re.findall(rb"data: [^\n]*\n\n", out)
    at = len(passing)
    judged = json.loads(blocks.pop(at)[6:])["choices"] if texts else []
    found = {c["index"]: (c["delta"]["content"], c[FIELD]["seen"]) for c in judged}
    assert found == {i: (text.upper(), text) for i, text in texts.items()}
    assert apart(b"".join(blocks[:at])) == ({}, passing, [])  # before the text
    assert apart(b"".join(blocks[at:])) == ({}, [], finishing)  # after it
    assert out.count(b": ping") == pieces.count("")


def delta(text, **choice):
    return {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}]}


def received(data):
    text, seen = "", None
    for one in SSEDecoder().iter_bytes(iter([data])):
        for choice in [] if one.data == "[DONE]" else one.json()["choices"]:
            text += choice["delta"].get("content") or ""
            seen = choice.get(FIELD, {}).get("seen", seen)
    return text, seen


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_events_end_where_the_standard_says(end, size):
    """Line separators and form feeds stand in answers as they are; an event may have several data lines."""
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


def test_odd_chunks_are_passed_or_joined():
    def corrected(*chunks):
        return asyncio.run(collected(corrected_stream, *[f"data: {json.dumps(c)}\n\n".encode() for c in chunks]))

    logged = delta("wrong", logprobs={"content": [{"token": "wrong"}]})
    out = corrected(logged, delta("", finish_reason="stop", logprobs={"t": "wrong"})).decode()
    assert out.replace('"seen": "wrong"', "").count("wrong") == 0
    call = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}], "content": None}
    chunk = {"id": "x", "choices": [{"index": 0, "delta": call, "finish_reason": "tool_calls"}]}
    assert json.loads(corrected(chunk).decode().split("\n\n")[0].removeprefix("data: ")) == chunk
    assert received(corrected(delta("a\ud83d"), delta("\ude00")))[0] == "A\U0001f600"


def post(reply, **body):
    """What the proxy makes of an unusual reply."""
    with serving(lambda _: reply) as server, running(Proxy(server.url, RuleAnnotator()).app()) as own:
        body = {"messages": MESSAGES, FIELD: {"reference": REFERENCE, "action": "correct"}, **body}
        return call("POST", f"{own}/chat/completions", json=body)


@pytest.mark.parametrize("stream", [False, True])
def test_odd_json_never_costs_the_answer(stream):
    """A server that doesn't stream where it is asked to; numbers and texts that strict JSON can't hold."""
    lone = f'{{"choices": [{{"message": {{"content": "{WRONG} A \\ud800 it is."}}, "logprobs": {{"x": -Infinity}}}}]}}'
    reply = post(Reply(raw=lone.encode()), stream=stream)
    (choice,) = json.loads(reply.content)["choices"]
    assert choice["message"]["content"] == f"{RIGHT} A \ud800 it is."
    assert choice["logprobs"] is None
    odd = b'{"choices": [{"message": "text"}]}'
    assert post(Reply(raw=odd)).content == odd


@pytest.mark.parametrize(("action", "texts"), [("correct", [RIGHT]), ("annotate", [WRONG[:9], WRONG[9:], ""])])
def test_a_broken_stream_loses_nothing(capfd, action, texts):
    """What came before the break is judged and sent as if it were whole, then the error is told."""
    data = "".join(f"data: {json.dumps(delta(text))}\n\n" for text in (WRONG[:9], WRONG[9:])) + 'data: {"choi'
    broken = Reply(raw=f"{data}ces".encode(), content_type="text/event-stream", cut=len(data))
    reply = post(broken, stream=True, **{FIELD: {"reference": REFERENCE, "action": action}})
    *chunks, last = [json.loads(part) for part in re.findall(r"data: (.*)\n\n", reply.text)]
    assert "broke off" in last["error"]["message"]
    assert [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks] == texts
    said = chunks[-1]["choices"][0][FIELD]
    assert (said["original_answer"] if action == "correct" else said["sentences"][0]["text"]) == WRONG
    assert said["hallucination_rate"] == (0 if action == "correct" else 1)


def test_paths_and_methods_pass_as_they_are(proxy, upstream):
    found = call("DELETE", f"{proxy}/models/org%2Fname%3Fx?y=%2F").json()
    assert found == {"path": "/v1/models/org%2Fname%3Fx", "method": "DELETE", "query": "y=%2F"}


@given(JSON)
def test_requests_of_any_shape_are_handled(value):
    try:
        wanted, body, _ = read_request(json.dumps(value).encode())
    except ValueError:
        return
    assert FIELD not in json.loads(body)
    assert wanted is None or wanted.reference
