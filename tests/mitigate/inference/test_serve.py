"""The proxy between a real client and a real server, both over HTTP: annotated, corrected, streamed, refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from mitigate.inference.correct import ABSTENTION
from mitigate.inference.serve import FIELD, Proxy
from tests.helpers.proxy_upstream import MESSAGES, Upstream, running
from tests.helpers.rule_annotator import LOST, REFERENCE, RIGHT, WRONG, RuleAnnotator


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[Upstream, str]]:
    behind = Upstream()
    with running(behind.app()) as url:
        yield behind, url


@pytest.fixture(scope="module")
def proxy(upstream: tuple[Upstream, str]) -> Iterator[str]:
    with running(Proxy(upstream[1], RuleAnnotator(), max_bytes=20_000, max_characters=2000).app()) as url:
        yield url


@pytest.fixture(scope="module")
def keyed(upstream: tuple[Upstream, str]) -> Iterator[str]:
    with running(Proxy(upstream[1], RuleAnnotator(), key="upstream-key").app()) as url:
        yield url


@pytest.fixture(autouse=True)
def afresh(upstream: tuple[Upstream, str]) -> None:
    behind = upstream[0]
    behind.texts, behind.status, behind.done, behind.gate = [f"{WRONG} {LOST}"], 200, True, None
    behind.seen.clear()
    behind.headers.clear()


def client(url: str, key: str = "the-key") -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)


def call(method: str, url: str, **options: Any) -> httpx2.Response:
    return httpx2.request(method, url, timeout=60, **options)


def models(url: str, key: str) -> list[str]:
    with client(url, key) as asking:
        return [model.id for model in asking.models.list()]


def ask(url: str, on: bool = True, **wanted: Any) -> Any:
    with client(url) as asking:
        return asking.chat.completions.create(
            model="m", messages=MESSAGES, extra_body={FIELD: {"reference": REFERENCE, **wanted}} if on else None
        )


def stream(url: str, **wanted: Any) -> Iterator[Any]:
    with client(url) as asking:
        yield from asking.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, extra_body={FIELD: {"reference": REFERENCE, **wanted}}
        )


def test_without_the_field_everything_passes_unchanged(proxy: str, upstream: tuple[Upstream, str]) -> None:
    reply = ask(proxy, on=False)
    assert reply.choices[0].message.content == f"{WRONG} {LOST}"
    assert FIELD not in (reply.choices[0].model_extra or {})
    assert upstream[0].headers[0]["authorization"] == "Bearer the-key"
    assert models(proxy, "the-key") == ["m"]
    assert call("GET", f"{proxy}/models?limit=3").json()["query"] == "limit=3"


def test_an_answer_comes_back_annotated(proxy: str, upstream: tuple[Upstream, str]) -> None:
    upstream[0].texts = [f"{WRONG} {LOST}", RIGHT]
    first, second = ask(proxy).choices
    assert first.message.content == f"{WRONG} {LOST}"
    assert [s["label"] for s in first.model_extra[FIELD]["sentences"]] == ["contradictory", "unverifiable"]
    assert (first.model_extra[FIELD]["hallucination_rate"], second.model_extra[FIELD]["hallucination_rate"]) == (1, 0)
    assert FIELD not in upstream[0].seen[0]
    assert upstream[0].seen[0]["messages"][1]["content"] == "How high?"


def test_an_answer_comes_back_corrected_or_withheld(proxy: str, upstream: tuple[Upstream, str]) -> None:
    (choice,) = ask(proxy, action="correct").choices
    assert choice.message.content == f"{RIGHT} {LOST}"
    assert choice.model_extra[FIELD]["original_answer"] == f"{WRONG} {LOST}"
    (choice,) = ask(proxy, action="correct", delete=True).choices
    assert choice.message.content == f"{RIGHT} "
    upstream[0].texts = [LOST]
    (choice,) = ask(proxy, action="correct", abstain_above=0.4).choices
    assert choice.message.content == ABSTENTION["en"]


def test_a_stream_is_annotated_while_it_passes(proxy: str, upstream: tuple[Upstream, str]) -> None:
    upstream[0].gate = gate = threading.Event()
    text, found = "", None
    for chunk in stream(proxy):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            found = (choice.model_extra or {}).get(FIELD) or found
        if text:
            gate.set()  # the rest is sent once the first word has come through
    assert upstream[0].opened
    assert text == f"{WRONG} {LOST}"
    assert found is not None
    assert found["hallucination_rate"] == 1


def test_a_stream_is_corrected(proxy: str, upstream: tuple[Upstream, str]) -> None:
    upstream[0].texts = [f"{WRONG} {LOST}", RIGHT]
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
    assert usage is not None
    assert usage.total_tokens == 3
    assert (found[0]["action"], found[1]["action"]) == ("corrected", "unchanged")


def test_a_stream_that_ends_without_saying_so_is_still_judged(proxy: str, upstream: tuple[Upstream, str]) -> None:
    upstream[0].done = False
    upstream[0].texts = [RIGHT]
    found = [c.model_extra for chunk in stream(proxy) for c in chunk.choices if FIELD in (c.model_extra or {})]
    assert found[0][FIELD]["hallucination_rate"] == 0


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"reference": ""}, "hallucination: reference: .*at least 1 character"),
        ({"referense": "x"}, "unknown key 'referense'; did you mean 'reference'"),
        ({"action": "repair"}, "action: .*'annotate' or 'correct', got 'repair'"),
        ({"delete": True}, "go with .*correct"),
        ({"abstain_above": 2}, "abstain_above: .*less than 1, got 2"),
        ({"reference": 7}, "reference: .*valid string, got 7"),
    ],
)
def test_a_wrong_field_is_refused_and_nothing_is_asked(
    proxy: str, upstream: tuple[Upstream, str], wanted: dict[str, Any], message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        ask(proxy, **wanted)
    assert upstream[0].seen == []


@pytest.mark.parametrize(
    ("content", "kind", "status", "message"),
    [
        (b"{", "application/json", 400, "expected a JSON body"),
        (b"[]", "application/json", 400, "expected a JSON object, got list"),
        (b'{"hallucination": "x"}', "application/json", 400, "expected an object"),
        (b"[" * 9000, "application/json", 400, "expected a JSON body"),
        (b'{"x": "' + b"y" * 30_000 + b'"}', "application/json", 413, "at most 20,000 bytes"),
        (json.dumps({FIELD: {"reference": "y" * 3000}}).encode(), "application/json", 413, "at most 2,000 characters"),
        (b'{"messages": []}', "text/plain", 415, "expected content-type application/json"),
    ],
)
def test_bad_requests_are_refused(proxy: str, content: bytes, kind: str, status: int, message: str) -> None:
    reply = call("POST", f"{proxy}/chat/completions", content=content, headers={"content-type": kind})
    assert reply.status_code == status
    assert message in reply.json()["error"]["message"]


def test_an_error_of_the_endpoint_behind_passes(proxy: str, upstream: tuple[Upstream, str]) -> None:
    upstream[0].status = 429
    with pytest.raises(openai.RateLimitError, match="overloaded"):
        ask(proxy)


def test_an_answer_too_long_to_judge_passes_and_says_so(proxy: str, upstream: tuple[Upstream, str]) -> None:
    upstream[0].texts = ["long " * 500, ""]
    first, second = ask(proxy, action="correct").choices
    assert first.message.content == "long " * 500
    assert "expected 1 to 2,000 characters, got 2,500" in first.model_extra[FIELD]["error"]
    assert "error" in second.model_extra[FIELD]


def test_a_failing_annotator_never_costs_the_answer(upstream: tuple[Upstream, str]) -> None:
    class Broken(RuleAnnotator):
        def annotate_batch(self, records: Any) -> Any:
            raise RuntimeError("out of memory")

    with running(Proxy(upstream[1], Broken()).app()) as url:
        (choice,) = ask(url, action="correct").choices
        assert choice.message.content == f"{WRONG} {LOST}"
        assert choice.model_extra[FIELD]["error"] == "not judged: RuntimeError: out of memory"


def test_a_token_keeps_others_out_and_stays_here(upstream: tuple[Upstream, str]) -> None:
    with running(Proxy(upstream[1], RuleAnnotator(), token="secret", key="upstream-key").app()) as url:
        with pytest.raises(openai.AuthenticationError, match="expected the bearer token"):
            ask(url)
        assert call("GET", f"{url}/models").status_code == 401
        assert models(url, "secret") == ["m"]
        assert upstream[0].headers[-1]["authorization"] == "Bearer upstream-key"
    with running(Proxy(upstream[1], RuleAnnotator(), token="secret").app()) as url:
        assert models(url, "secret") == ["m"]
        assert "authorization" not in upstream[0].headers[-1]


@pytest.mark.parametrize("path", ["chat/completions", "embeddings", "models/m"])
@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({"origin": "https://page.example"}, 403, "got a web page"),
        ({"origin": "null"}, 403, "got a web page"),
        ({"sec-fetch-site": "cross-site"}, 403, "got a web page"),
        ({"host": "page.example"}, 403, "got 'page.example'"),  # a name that was made to point here
        ({"content-type": "text/plain"}, 415, "expected content-type application/json, got 'text/plain'"),
        ({"content-type": "multipart/form-data; boundary=x"}, 415, "expected content-type application/json"),
        ({"content-type": ""}, 415, "expected content-type application/json, got ''"),
    ],
)
def test_a_web_page_can_not_use_the_endpoint_with_the_key(
    upstream: tuple[Upstream, str], keyed: str, path: str, headers: dict[str, str], status: int, message: str
) -> None:
    reply = call("POST", f"{keyed}/{path}", content=b"{}", headers={"content-type": "application/json", **headers})
    assert (reply.status_code, upstream[0].headers) == (status, [])
    assert message in reply.json()["error"]["message"]
    if status == 403:
        assert call("GET", f"{keyed}/models", headers=headers).status_code == 403
        assert call("DELETE", f"{keyed}/{path}", headers=headers).status_code in (403, 405)
    assert upstream[0].headers == []


def test_programs_use_the_endpoint_with_the_key(upstream: tuple[Upstream, str], keyed: str) -> None:
    assert models(keyed, "any") == ["m"]
    assert models(keyed.replace("127.0.0.1", "localhost"), "any") == ["m"]
    assert {headers["authorization"] for headers in upstream[0].headers} == {"Bearer upstream-key"}
    with running(Proxy(upstream[1], RuleAnnotator(), token="secret").app()) as url:  # what bears it is no page
        said = {"authorization": "Bearer secret", "origin": "https://page.example", "content-type": "text/plain"}
        assert call("POST", f"{url}/models", headers=said).status_code == 405  # the endpoint's own answer


def test_no_endpoint_behind_is_a_clear_error() -> None:
    with running(Proxy("http://127.0.0.1:9/v1", RuleAnnotator()).app()) as url:
        with pytest.raises(openai.InternalServerError, match=r"cannot reach http://127.0.0.1:9/v1: .*is it running\?"):
            ask(url)
        assert call("GET", f"{url.removesuffix('/v1')}/health").json()["annotator"]["name"] == "rule"
        assert call("GET", f"{url}/%2e%2e/secret").status_code == 404


def test_requests_at_once_do_not_mix(proxy: str, upstream: tuple[Upstream, str]) -> None:
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        reference = RIGHT if number % 2 else f"{WRONG}\n{LOST}"
        found[number] = ask(proxy, reference=reference).choices[0].model_extra[FIELD]["hallucination_rate"]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == {i: 1.0 if i % 2 else 0.0 for i in range(12)}
