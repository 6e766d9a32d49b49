"""The meter counts what servers report, and holds prices and limits."""

import time

import pytest

from engines.cache import CachedEngine
from engines.openai_engine import OpenAIEngine
from engines.types import NOT_ASKED, EngineError, Sampling
from engines.usage import METER
from mitigate.cli.main import main
from mitigate.cli.options import tell_cost
from tests.helpers.annotator_server import annotating, correct
from tests.helpers.engines_server import completion, error, serving, user
from tests.helpers.jsonl import read_rows, write_rows
from tests.helpers.standin import ExactAnnotator

CHATS = [user(f"q{n}") for n in range(8)]
EACH = (7 * 1 + 3 * 2) / 1e6  # the scripted server reports 7 prompt and 3 reply tokens


def test_tokens_and_requests_are_counted_once(tmp_path):
    METER.begin(price=(1, 2))
    with serving(lambda body: completion("a")) as server:
        engine = CachedEngine(OpenAIEngine("m", server.url), tmp_path / "c.sqlite")
        engine.chat([*CHATS, CHATS[0]])
        engine.chat(CHATS)  # out of the cache
        engine.chat(CHATS[:1], Sampling(temperature=1, n=2))  # the server gives one at a time
        engine.close()
    found = METER.to_dict()
    assert [found[key] for key in ("requests", "prompt_tokens", "reply_tokens", "unreported")] == [10, 70, 30, 0]
    assert found["cost"] == pytest.approx(10 * EACH)
    assert str(METER).startswith("asked language models: 10 requests, 70 prompt and 30 reply tokens, ")
    with serving(lambda body: error(500)) as server:
        OpenAIEngine("m", server.url, max_retries=0).chat(CHATS)
    assert METER.requests == 10  # what failed has no tokens


def test_highest_cost_stops_before_it_is_exceeded():
    METER.begin(price=(1, 2), max_cost=4.5 * EACH)
    with serving(lambda body: completion("a")) as server:
        engine = OpenAIEngine("m", server.url, concurrency=1)
        results = engine.chat(CHATS)
        assert [result.error is None for result in results] == [True] * 4 + [False] * 4
        assert "of --max-cost 5.85e-05 is spent" in results[4].error
        assert results[-1].error.startswith(NOT_ASKED)
        with pytest.raises(EngineError, match="max-cost"):
            engine.chat(CHATS)
        assert len(server.requests) == 4
    reply = completion("a")
    del reply.body["usage"]
    METER.begin(price=(1, 2), max_cost=1)
    with serving(lambda body: reply) as server:
        assert "the server reports none" in OpenAIEngine("m", server.url, concurrency=1).chat(CHATS)[1].error


@pytest.mark.parametrize(("limit", "n_paid"), [(0.1, 1), (2.5, 2)])
def test_highest_cost_holds_for_requests_side_by_side(limit, n_paid):
    METER.begin(price=(1, 2), max_cost=limit * EACH)
    with serving(lambda body: completion("a")) as server:
        results = OpenAIEngine("m", server.url, concurrency=8).chat(CHATS)
        assert len(server.requests) == METER.requests == n_paid
        assert sum(result.error is None for result in results) == n_paid
    METER.begin(price=(1, 2), max_cost=8 * EACH)  # a first request that fails costs nothing and holds up no other
    replies = iter([error(400)])
    with serving(lambda body: next(replies, completion("a"))) as server:
        results = OpenAIEngine("m", server.url, concurrency=8, max_retries=0).chat(CHATS)
        assert [result.error is None for result in results] == [False] + [True] * 7


def test_highest_cost_holds_at_few_requests_a_minute():
    """The first is cheap, others cost ten times that: the third would exceed what they cost on average."""
    METER.begin(price=(1, 2), max_cost=20 * EACH, requests_per_minute=600)
    replies = iter([completion("a")])

    def dear(_):
        reply = completion("a")
        reply.body["usage"] = {"prompt_tokens": 70, "completion_tokens": 30, "total_tokens": 100}
        return reply

    with serving(lambda body: next(replies, None) or dear(body)) as server:
        OpenAIEngine("m", server.url, concurrency=8).chat([user(f"q{n}") for n in range(20)])
        assert len(server.requests) == METER.requests == 3  # 1 + 10, 5.5 on average; then 21, 7 on average


def test_requests_and_tokens_wait_their_turn():
    # 8 requests, the first at once: 7 × 60/1200 s, or 7 × 10 × 60/12,000 s; with a limit of cost they wait for the
    # first one, which takes longer, and then still in turn
    slow = {"requests_per_minute": 1200, "price": (1.0, 1.0), "max_cost": 1.0}
    for limits, workers in (({"requests_per_minute": 1200}, 1), ({"tokens_per_minute": 12_000}, 1), (slow, 8)):
        METER.begin(**limits)
        waits = iter([0.4 if workers > 1 else 0.0])
        with serving(lambda body, waits=waits: (time.sleep(next(waits, 0.0)), completion("a"))[1]) as server:
            began = time.monotonic()
            OpenAIEngine("m", server.url, concurrency=workers).chat(CHATS)
            assert time.monotonic() - began >= (0.7 if workers > 1 else 0.35)


@pytest.mark.parametrize("limit", [{}, {"price": (1, 2), "max_cost": 1}])  # the first request is asked alone
def test_retries_wait_their_turn_too(limit):
    METER.begin(requests_per_minute=60 / 3, **limit)  # one in 3 s: the client's own first pause is half a second
    replies, times = iter([error(500)]), list[float]()
    with serving(lambda body: (times.append(time.monotonic()), next(replies, completion("a")))[1]) as server:
        (result,) = OpenAIEngine("m", server.url, max_retries=1).chat(CHATS[:1])
    assert result.error is None
    assert times[1] - times[0] > 2.5


def test_wrong_prices_and_limits_are_refused(capsys):
    with pytest.raises(ValueError, match="expected --price"):
        METER.begin(max_cost=1)
    asked = ["annotate", "--reference", "r", "--answer", "a"]
    refused = {"--price 1": "expected IN,OUT", "--max-cost 1": "expected --price", "--max-cost 0": "more than 0"}
    for words, said in refused.items():
        assert main([*asked, *words.split()]) == 2
        assert said in capsys.readouterr().err


def test_records_of_other_annotators_are_not_read():
    records = iter([{"reference": "r", "answer": "a"}])
    tell_cost(ExactAnnotator(), records)
    assert len(list(records)) == 1


def test_stopped_command_goes_on_without_loss(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = "The bridge opened in 1931. It has 12 lamps. It is red. It is new. It is old. It is long."
    write_rows(tmp_path / "in.jsonl", [{"reference": text, "answer": text}])
    with annotating(correct) as server:
        words = ["annotate", "--input", "in.jsonl", "--output", "out.jsonl", "--concurrency", "1", "--price", "1,2"]
        words += ["--annotator", f"generative:openai:m@{server.url}"]
        assert main([*words, "--max-cost", f"{3.5 * EACH:.9f}"]) == 1
        said = capsys.readouterr().err
        assert "6 requests or more: about " in said
        assert "the same command" in said
        assert "asked language models: 3 requests" in said
        assert main([*words, "--max-cost", "1", "--json"]) == 0
        assert len(server.requests) == 6
    assert '"requests": 3, "prompt_tokens": 21, "reply_tokens": 9' in capsys.readouterr().out
    assert [s["label"] for s in read_rows(tmp_path / "out.jsonl")[0]["sentences"]] == ["supported"] * 6
