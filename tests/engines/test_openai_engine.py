"""The openai engine against a scripted local server, good, thin, failing or broken, and against a real one."""

import asyncio
import json
import logging
import socket
import threading
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace

import pytest

from engines import ChatResult, EngineError, Sample, Sampling, Token, load_engine
from engines.openai_engine import OpenAIEngine
from engines.types import chat_seed
from engines.usage import METER
from tests.helpers.engines_server import Reply, completion, error, serving, transformers_serve, user
from tests.helpers.tiny_chat import build_tiny_chat


def asked(body):
    return body["messages"][-1]["content"]


def echo(body):
    return completion(*[f"{asked(body)}!"] * body.get("n", 1))


def engine(server, **options):
    return OpenAIEngine("m", server.url, **{"max_retries": 1, "timeout": 60.0, **options})


CHATS = [user(f"q{number}") for number in range(12)]


def test_order_holds_under_concurrency():
    three, told, others_told = threading.Barrier(3), [], threading.Event()

    def script(body):
        number = int(asked(body)[1:])
        if number < 3:
            three.wait(60)  # broken, and so an error, unless three are asked at once
        if number == 0:
            others_told.wait(60)  # the first answer comes last
        return echo(body)

    def tell(index, result):
        told.append(index)
        if len(told) == 11:
            others_told.set()

    with serving(script) as server:
        results = engine(server, concurrency=3).chat(CHATS, on_result=tell)
    assert [result.text for result in results] == [f"q{number}!" for number in range(12)]
    assert (server.most, sorted(told), told[-1]) == (3, list(range(12)), 0)
    assert results[0] == ChatResult((Sample("q0!", "stop"),), prompt_tokens=7, completion_tokens=3)


def test_only_set_options_are_sent(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    chat = [{"role": "system", "content": "short"}, *user("q")]
    with serving(echo) as server:
        engine(server).chat([chat])
        base = {"model": "m", "messages": chat, "max_tokens": 512, "temperature": 0.0, "top_p": 1.0}
        assert server.requests.pop() == base
        assert server.headers.pop()["authorization"] == "Bearer none"
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        schema = {"type": "object", "properties": {"a": {"type": "string"}}}
        sampling = Sampling(9, 0.5, 2, 7, logprobs=True, top_logprobs=3, json_schema=schema)
        engine(server).chat([chat], sampling)
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        options = {"max_tokens": 9, "temperature": 0.5, "n": 2, "seed": chat_seed(7, chat)}
        more = {"logprobs": True, "top_logprobs": 3, "response_format": form}
        assert server.requests.pop() == base | options | more
        assert server.headers.pop()["authorization"] == "Bearer secret"
        engine(server).chat([chat], Sampling(choices=("q!", "no")))
        assert server.requests.pop()["structured_outputs"] == {"choice": ["q!", "no"]}


def test_busy_server_is_asked_again():
    tries = defaultdict(int)

    def script(body):
        tries[asked(body)] += 1
        return error(429 if tries[asked(body)] == 1 else 503) if tries[asked(body)] < 3 else echo(body)

    with serving(script) as server:
        results = engine(server, max_retries=2).chat(CHATS)
    assert all(result.error is None for result in results)
    assert set(tries.values()) == {3}


@pytest.mark.parametrize(("reply", "expected", "tries"), [
    (error(500, "boom"), "answered 500 (boom): the server failed", 2),
    (error(429, "slow down"), "rate limit; ask it less at once", 2),
    (error(400, "too many tokens"), "answered 400 (too many tokens): the request was rejected", 1),
    (error(400, "temperature must be at most 1"), "must be at most 1", 1),  # a value, not the option
    (Reply({"detail": "model pinned"}, 400), "answered 400 (model pinned)", 1),
    (Reply(raw=b'{"id": "x", "choi'), "cannot be read (JSONDecodeError", 1),
    (Reply(raw=b"<html>hello</html>", content_type="text/html"), "not answer with a chat completion", 1),
    (Reply(["a"]), "not answer with a chat completion", 1),
    (Reply({"object": "chat.completion"}), "without choices", 1),
    (Reply({"choices": [{"index": 0}]}), "holds no text", 1),
    (Reply({"choices": ["x"]}), "holds no text", 1),
    (completion(None, finish="length"), "finish reason 'length'); is max_tokens too small?", 1),
    (replace(completion("q5!"), cut=40), "broke the connection off", 2),
    (Reply({}, delay=8), "did not answer in time; ask less", 1),
])  # fmt: skip
def test_bad_reply_fails_its_chat_only(reply, expected, tries):
    """Chat q5 is answered badly for good; the eleven others must come back whole."""
    # The time limit holds for the eleven others too, so it is long enough for a busy machine.
    options = {"timeout": 3.5, "max_retries": 0} if reply.delay else {}
    with serving(lambda body: reply if asked(body) == "q5" else echo(body)) as server:
        results = engine(server, **options).chat(CHATS)
    assert [result.text for result in results] == [None if n == 5 else f"q{n}!" for n in range(12)]
    assert expected in results[5].error
    refused = "rejected" in expected or "must be" in expected or "pinned" in expected or "max_tokens" in expected
    assert results[5].refused == (refused or "holds no text" in expected)  # asked again, it would be no other
    assert sum(asked(body) == "q5" for body in server.requests) == tries


def test_replies_that_are_unusual_and_good():
    """A lone surrogate is sent as a question mark, a refusal is an answer, an answer cut off is no schema failure."""

    def reply(body):
        refusal = completion(None)
        refusal.body["choices"][0]["message"]["refusal"] = "I will not."
        return {"refuse": refusal, "cut": completion('{"a": ', finish="length")}.get(asked(body)) or echo(body)

    with serving(reply) as server:
        e = engine(server)
        texts = [result.text for result in e.chat([user("a\ud83d b"), user("refuse")])]
        cut = e.chat([user("cut")], Sampling(json_schema={"type": "object"}))[0]
    assert texts == ["a? b!", "I will not."]
    assert cut.text == '{"a": '


@pytest.mark.parametrize(("reply", "expected"), [
    (error(401, "bad key"), r"answered 401 \(bad key\): the key was refused; set OPENAI_API_KEY"),
    (error(404, "no such model"), "is 'm' a model of this server .*usually /v1"),
    (error(402), "no credit left"),
    (error(429, code="insufficient_quota"), "no credit left"),
])  # fmt: skip
def test_error_of_every_request_is_raised(reply, expected):
    with serving(lambda body: reply) as server:
        with pytest.raises(EngineError, match=expected):
            engine(server, max_retries=0, concurrency=2).chat(CHATS)
        assert len(server.requests) <= 2


def test_unreachable_server_is_explained():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        for ask in (lambda e: e.chat(CHATS), lambda e: list(e.stream(CHATS[0]))):
            with pytest.raises(EngineError, match=f"cannot connect to {url} .*is the server running"):
                ask(OpenAIEngine("m", url, max_retries=0))


def test_key_expiring_midway_keeps_earlier_answers(caplog):
    with serving(lambda body: echo(body) if int(asked(body)[1:]) < 4 else error(401, "expired")) as server:
        results = engine(server, concurrency=1).chat(CHATS)
    assert [result.text for result in results[:4]] == ["q0!", "q1!", "q2!", "q3!"]
    assert "OPENAI_API_KEY" in results[4].error
    assert all(result.error.startswith("not asked: ") for result in results[5:])
    assert len(server.requests) == 5
    assert "8 of 12 chats failed; the first: " in caplog.text


def test_server_that_only_fails_is_left_alone():
    chats = [user(f"q{number}") for number in range(60)]
    with serving(lambda body: error(500)) as server:
        results = engine(server, concurrency=1, max_retries=0).chat(chats)
    assert len(server.requests) == 20
    assert "not asked: 20 requests in a row failed" in results[20].error
    assert not any(result.text for result in results)


def test_ignored_n_is_asked_one_by_one(caplog):
    sampling = Sampling(temperature=1.0, n=3, seed=5)

    def thin(body):
        return completion(f"{asked(body)} {body['seed']}")

    with serving(thin) as server:
        results = engine(server, concurrency=1).chat(CHATS[:2], sampling)
    for chat, result in zip(CHATS, results, strict=False):
        assert list(result.texts) == [f"{chat[0]['content']} {chat_seed(5, chat, place)}" for place in range(3)]
        assert (result.completion_tokens, result.prompt_tokens) == (9, 7)
    # 3 samples in the first reply, then 2 more; the second chat is asked one by one from the start.
    assert [body.get("n", 1) for body in server.requests] == [3, 1, 1, 1, 1, 1]
    assert caplog.text.count("ignores 'n'") == 1
    # A server that refuses it, and draws equal samples.
    with serving(lambda body: error(400, "n must be 1") if body.get("n") else echo(body)) as server:
        result, _ = engine(server, concurrency=1).chat(CHATS[:2], Sampling(temperature=1.0, n=3))
    assert result.texts == ("q0!",) * 3
    assert [body.get("n", 1) for body in server.requests] == [3, *[1] * 6]  # which is remembered
    assert "3 samples of one chat are equal at temperature 1" in caplog.text
    # A sample that fails costs no other.
    last = chat_seed(5, CHATS[0], 2)
    with serving(lambda body: error(400, "odd") if body["seed"] == last else completion("a")) as server:
        result = engine(server).chat(CHATS[:1], sampling)[0]
    assert result.texts == ("a", "a")
    assert "odd" in result.error
    # One draw without a text costs no other: it alone is asked for again, and the next chat in one request.
    caplog.clear()

    def silent(body):
        reply = completion(*["a"] * body.get("n", 1))
        if body.get("n"):
            reply.body["choices"][1]["message"]["content"] = None
        return reply

    with serving(silent) as server:
        results = engine(server, concurrency=1).chat(CHATS[:2], sampling)
    assert [(result.texts, result.error) for result in results] == [(("a",) * 3, None)] * 2
    assert [body.get("n", 1) for body in server.requests] == [3, 1, 3, 1]
    assert "ignores" not in caplog.text


def test_ignored_options_are_named_once(caplog):
    with serving(lambda body: completion("well, no.")) as server:
        e = engine(server)
        first = e.chat(CHATS[:3], Sampling(logprobs=True, json_schema={"type": "object"}))
        assert first[0].samples[0].logprobs is None
        second = e.chat(CHATS[:3], Sampling(choices=("yes", "no")))
        assert {result.text for result in second} == {"well, no."}
    for name in ("logprobs", "json_schema", "choices"):
        assert caplog.text.count(f"ignores '{name}'") == 1


def test_token_logprobs_and_alternatives_are_read(caplog):
    top = [{"token": "{}", "logprob": -0.25, "bytes": None}, {"token": "r", "logprob": -2.5, "bytes": None}]
    given = {"content": [{"token": "{}", "logprob": -0.25, "bytes": None, "top_logprobs": top}]}
    sampling = Sampling(logprobs=True, top_logprobs=2, json_schema={"type": "object"})
    with serving(lambda body: completion("{}", logprobs=given)) as server:
        result = engine(server).chat(CHATS[:1], sampling)[0]
    assert result.samples[0].logprobs == (Token("{}", -0.25, (("{}", -0.25), ("r", -2.5))),)
    assert caplog.text == ""
    assert ChatResult.from_dict(json.loads(json.dumps(result.to_dict()))) == result


def test_requests_in_flight_learn_max_completion_tokens():
    four = threading.Barrier(4)

    def script(body):
        if "max_tokens" not in body:
            return echo(body)
        four.wait(60)  # none is refused before all four are in flight
        return error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")

    with serving(script) as server:
        results = engine(server, concurrency=4).chat(CHATS, Sampling(max_tokens=9))
    assert [result.text for result in results] == [f"q{number}!" for number in range(12)]
    sent = [body.get("max_completion_tokens") for body in server.requests]
    assert (sent.count(None), sent.count(9)) == (4, 12)


def streamed(*pieces, finish="stop", usage=None, part="content"):
    chunks = [{"choices": [{"delta": {part: piece}, "finish_reason": None}]} for piece in pieces]
    if finish:
        chunks += [{"choices": [{"delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": usage}]
    raw = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n" * bool(finish)
    return Reply(raw=raw.encode(), content_type="text/event-stream")


@pytest.mark.parametrize(("reply", "pieces", "reason"), [
    (completion("whole"), [], "sent no text: expected a stream"),
    (streamed("One ", finish=None), ["One "], "broke the answer off"),
    (streamed("I can't.", part="refusal"), ["I can't."], None),
    (streamed("hm", finish="length", part="reasoning"), [], r"finish reason 'length'\); is max_tokens too small\?"),
])  # fmt: skip
def test_ends_of_streams_are_told(reply, pieces, reason):
    came = []
    with serving(lambda body: reply) as server, pytest.raises(EngineError, match=reason) if reason else nullcontext():
        for piece in engine(server).stream(CHATS[0]):
            came.append(piece)  # what comes before the error
    assert came == pieces


def test_streams_are_counted_and_limited():
    METER.begin(price=(1, 2), max_cost=3e-5)
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}  # 7·1 + 3·2 = 13 millionths
    with serving(lambda body: streamed("a", usage=usage) if body.get("stream") else echo(body)) as server:
        one = engine(server, concurrency=1)
        assert list(one.stream(CHATS[0])) == ["a"]
        assert one.chat(CHATS[:1])[0].error is None
        assert (METER.prompt_tokens, METER.reply_tokens, METER.unreported, METER._in_flight) == (14, 6, 0, 0)
        assert METER.cost == pytest.approx(26e-6)
        with pytest.raises(EngineError, match="of --max-cost 3e-05 is spent"):
            list(one.stream(CHATS[0]))
        assert (len(server.requests), METER._in_flight) == (2, 0)


def test_streamed_answer_comes_in_pieces(monkeypatch):
    def script(body):
        refused = next((name for name in ("temperature", "stream_options") if name in body), None)
        if refused:
            return error(400, f"Unsupported value: '{refused}' is not supported")
        return replace(streamed("One ", None, "two."), cut=broken)

    broken = None
    with serving(script) as server:
        one = engine(server)
        assert list(one.stream(CHATS[0], Sampling(max_tokens=9))) == ["One ", "two."]
        sent = {"model": "m", "messages": CHATS[0], "stream": True, "max_tokens": 9, "top_p": 1.0}
        asked_for = {**sent, "stream_options": {"include_usage": True}}
        assert server.requests == [{**asked_for, "temperature": 0.0}, asked_for, sent]
        broken, pieces = 80, one.stream(CHATS[0])
        assert next(pieces) == "One "
        with pytest.raises(EngineError, match="broke the connection off"):
            list(pieces)
        monkeypatch.setattr("openai._streaming.request_exceptions", lambda: (), raising=False)  # as in older clients
        with pytest.raises(EngineError, match=r"broke the connection off \(RemoteProtocolError"):
            list(one.stream(CHATS[0]))
        before, broken, pieces = METER.requests, None, one.stream(CHATS[0])
        next(pieces)
        pieces.close()
        assert METER.requests == before + 1  # it was paid for
        assert METER._in_flight == 0


@pytest.mark.parametrize(("option", "sampling", "status", "said"), [
    ("structured_outputs", Sampling(choices=("a", "b")), 422, "structured_outputs: Extra inputs are not permitted"),
    ("structured_outputs", Sampling(choices=("a", "b")), 400, "Unrecognized request argument: structured_outputs"),
    ("response_format", Sampling(json_schema={}), 400, "'response_format' of type 'json_schema' is not supported"),
    ("logprobs", Sampling(logprobs=True), 400, "'logprobs' is not supported with this model"),
    ("temperature", Sampling(temperature=0.5), 400, "'temperature' does not support 0.5 with this model."),
    ("top_p", Sampling(), 400, "Unsupported parameter: 'top_p' is not supported with this model."),
])  # fmt: skip
def test_refused_forms_are_asked_for_once(caplog, option, sampling, status, said):
    with serving(lambda body: error(status, said) if option in body else echo(body)) as server:
        results = engine(server, concurrency=1).chat(CHATS[:3], sampling)
    assert [result.text for result in results] == ["q0!", "q1!", "q2!"]
    name = {"structured_outputs": "choices", "response_format": "json_schema"}.get(option, option)
    assert f"the server ignores {name!r}" in caplog.text
    assert [option in body for body in server.requests] == [True, False, False, False]


def test_event_loops_and_errors_of_the_caller():
    async def notebook(e):
        return e.chat(CHATS)

    def listener(index, result):
        raise RuntimeError("disk full")

    with serving(echo) as server:
        assert [result.error for result in asyncio.run(notebook(engine(server)))] == [None] * 12
        with pytest.raises(RuntimeError, match="disk full"):
            engine(server).chat(CHATS, on_result=listener)


def test_options_and_chats_are_checked_before_asking():
    with serving(echo) as server:
        assert engine(server).chat([]) == []
        with pytest.raises(ValueError, match="chat 0, message 0"):
            engine(server).chat([[{"role": "user"}]])
        assert server.requests == []
        for options in ({"concurrency": 0}, {"timeout": 0}, {"max_retries": -1}):
            with pytest.raises(ValueError, match="expected concurrency"):
                engine(server, **options)


def test_key_is_never_shown(monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    caplog.set_level(logging.DEBUG)
    with serving(lambda body: error(500)) as server:
        e = engine(server, max_retries=0)
        result = e.chat(CHATS[:1])[0]
    assert "very-secret" not in caplog.text + result.error + e.name + json.dumps(dict(e.identity))


@pytest.mark.slow  # the server needs half a minute to come up
def test_greedy_text_equals_the_local_engine(tmp_path):
    """`transformers serve` draws only where the checkpoint's own defaults draw, and takes over the rest of them."""
    from transformers import GenerationConfig

    folder = build_tiny_chat(tmp_path)
    GenerationConfig(do_sample=True, top_k=0, eos_token_id=1, pad_token_id=0).save_pretrained(folder)
    chats = [user("Is the river longer?"), [{"role": "system", "content": "Pack my box."}, *user("red?")], user("no")]
    local = load_engine(f"transformers:{folder}", device="cpu", dtype="float32")
    with transformers_serve(folder, tmp_path / "serve.log") as url:
        remote = load_engine(f"openai:{folder}@{url}", max_retries=0, timeout=60)
        for here, there in zip(*(one.chat(chats, Sampling(max_tokens=20)) for one in (local, remote)), strict=True):
            assert (there.text, there.samples[0].finish_reason) == (here.text, here.samples[0].finish_reason)
            assert (there.prompt_tokens, there.completion_tokens) == (here.prompt_tokens, here.completion_tokens)
