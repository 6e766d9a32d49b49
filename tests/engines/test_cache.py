"""The response cache: keys, reruns, several processes at once, kill -9, damaged files."""

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from engines import CachedEngine, CacheError, ChatResult, ResponseCache, Sample, Sampling, load_engine
from engines.cache import kept_vectors, request_key
from tests.helpers.engines_server import Scripted, completion, serving, user
from tests.helpers.standin import wait_until

ROOT = Path(__file__).parents[2]
IDENTITY = {"engine": "test", "model": "m"}


def counting():
    return Scripted(lambda text, call: None if text == "fail" else f"{text} {call}")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sub" / "cache.sqlite"


def test_vectors_are_kept_by_text_and_encoder(path):
    seen = []

    def encode(texts):
        seen.extend(texts)
        return np.array([[len(text), 1] for text in texts], dtype=np.float32).reshape(-1, 2)

    with closing(ResponseCache(path)):
        for texts, new in ((["a", "bb", "a"], ["a", "bb"]), (["bb", "ccc"], ["ccc"]), ([], [])):
            del seen[:]
            assert kept_vectors(encode, path, "one")(texts).tolist() == [[len(text), 1] for text in texts]
            assert seen == new
    kept_vectors(encode, path, "two")(["a"])
    assert seen == ["a"]  # another encoder has other vectors


def test_rerun_asks_nothing(path):
    first = CachedEngine(counting(), path)
    results = first.chat([user("a"), user("b"), user("a")])
    assert [result.text for result in results] == ["a 1", "b 2", "a 1"]  # equal chats are asked once
    first.close()
    assert first.engine.closed
    told = {}
    with closing(CachedEngine(counting(), path)) as second:
        chats = [user("b"), user("c"), user("a")]
        again = second.chat(chats, on_result=lambda i, result: told.update({i: result.text}))
        assert [result.text for result in again] == ["b 2", "c 1", "a 1"]
        assert told == {0: "b 2", 1: "c 1", 2: "a 1"}
        assert [text for text, _ in second.engine.asked] == ["c"]
        assert len(second.cache) == 3
        assert (second.name, second.identity) == ("scripted:test", {"engine": "scripted:test"})
    with closing(CachedEngine(counting(), path.with_name("failures"))) as cached:  # which are not stored
        assert cached.chat([user("fail"), user("a")])[0].error == "gone"
        cached.chat([user("fail"), user("a")])
        assert [text for text, _ in cached.engine.asked] == ["fail", "a", "fail"]
        assert (len(cached.cache), [one.error for one in cached.errors.values()]) == (1, ["gone"])
    short = Scripted(lambda text, call: None if call == 1 else "long")
    with closing(CachedEngine(short, path.with_name("limits"))) as cached:
        assert cached.chat([user("a")])[0].error == "gone"
        assert cached.chat([user("a")], Sampling(max_tokens=900))[0].text == "long"  # the first limit was too small
        assert not cached.errors


def test_key_by_hand():
    text = (
        '[{"engine":"test","model":"m"},[{"content":"\\u95ee","role":"user"}],{"choices":[],"json_schema":null,'
        '"logprobs":false,"max_tokens":512,"n":1,"seed":3,"stop":[],"temperature":1.0,"top_p":1.0}]'
    )
    key = request_key(IDENTITY, user("问"), Sampling(temperature=1, seed=3))
    assert key == hashlib.sha256(text.encode()).hexdigest()


def test_key_follows_everything_that_changes_answers():
    base, chat = {"temperature": 1.0, "seed": 1}, user("a")
    changes = [{}, {"temperature": 1.1}, {"seed": 2}, {"seed": None}, {"n": 2}, {"max_tokens": 9}, {"temperature": 0.0}]
    choices = [{"choices": ("a", "b")}, {"choices": ("b", "a")}]
    changes += [*choices, {"logprobs": True}, {"json_schema": {"type": "object"}}]
    keys = {request_key(IDENTITY, chat, Sampling(**{**base, **change})) for change in changes}
    others = [user("b"), [{"role": "system", "content": "a"}], [*chat, *chat]]
    keys |= {request_key(IDENTITY, other, Sampling(**base)) for other in others}
    keys.add(request_key({**IDENTITY, "model": "m2"}, chat, Sampling(**base)))
    assert len(keys) == len(changes) + 4
    # What changes no greedy answer is not in the key, nor is the order of keys.
    key = request_key(IDENTITY, chat, Sampling())
    assert request_key(IDENTITY, chat, Sampling(temperature=0, seed=5)) == key
    assert request_key(dict(reversed(IDENTITY.items())), [{"content": "a", "role": "user"}], Sampling()) == key


def test_everything_survives_the_file(path):
    row = {
        "samples": [{"text": "\ud800 \x00 問", "finish_reason": None, "logprobs": [{"text": "a", "logprob": -1e-9}]}],
        "prompt_tokens": None, "completion_tokens": 0, "error": None, "ignored": [],  # of earlier versions
    }  # fmt: skip
    result = ChatResult.from_dict(row)
    for late in (result, ChatResult((Sample("late"),))):  # the first answer stays
        with closing(ResponseCache(path)) as cache:
            assert cache.put("k", late) == result
            assert cache.get(["k", "other"]) == {"k": result}


def test_threads_share_one_cache(path):
    def work(name):
        for number in range(50):
            cache.put(f"{name}-{number}", ChatResult((Sample("x"),)))
            assert cache.get([f"{name}-{number}"])

    with closing(ResponseCache(path)) as cache, ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
        assert len(cache) == 200


def start(code, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


ASK = """
import json, sys
from engines import load_engine
engine = load_engine(f"openai:m@{sys.argv[1]}", cache=sys.argv[2], concurrency=4)
chats = [[{"role": "user", "content": f"q{n}"}] for n in range(int(sys.argv[3]))]
print(json.dumps([result.text for result in engine.chat(chats)]))
engine.close()
"""


def ask(url, path, chats):
    with closing(load_engine(f"openai:m@{url}", cache=path)) as engine:
        return [result.text for result in engine.chat([user(f"q{number}") for number in range(chats)])]


def test_two_processes_agree_on_answers(path):
    count = iter(range(10_000))

    def script(body):  # no two answers are equal, as with a drawing server
        reply = completion(f"{body['messages'][0]['content']} {next(count)}")
        reply.delay = 0.01
        return reply

    with serving(script) as server:
        both = [start(ASK, server.url, str(path), "40") for _ in range(2)]
        answers = [json.loads(process.communicate()[0]) for process in both]
        assert [process.returncode for process in both] == [0, 0]
        asked = len(server.requests)
        assert ask(server.url, path, 40) == answers[0] == answers[1]  # both report what the cache holds
        assert len(server.requests) == asked
    assert len(set(answers[0])) == 40
    assert 40 <= asked <= 80


def test_killed_run_asks_only_the_rest(path):
    killed, lock, taken = threading.Event(), threading.Lock(), iter(range(10_000))

    def script(body):
        with lock:
            number = next(taken)
        if number >= 30:  # the rest are on their way until the process is dead
            killed.wait(120)
        return completion(body["messages"][0]["content"])

    with serving(script) as server:
        process = start(ASK, server.url, str(path), "60")
        wait_until(lambda: len(server.requests) >= 34, process)  # thirty answered, four on their way
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed.set()
        with closing(ResponseCache(path)) as cache:
            assert len(cache) == 30  # an answer is saved before the next chat is asked
        before = len(server.requests)
        assert ask(server.url, path, 60) == [f"q{number}" for number in range(60)]
    assert len(server.requests) - before == 60 - 30


WRITE = """
import sys
from engines import ChatResult, ResponseCache, Sample
cache = ResponseCache(sys.argv[1])
for number in range(10**9):
    cache.put(f"{sys.argv[2]}-{number}", ChatResult((Sample("x" * 2000),)))
    print(f"{sys.argv[2]}-{number}", flush=True)
"""


def test_killed_writers_lose_nothing_reported(path):
    promised = []
    for round_ in range(3):
        writers = [start(WRITE, str(path), f"{round_}{name}") for name in "ab"]
        promised += [writer.stdout.readline().strip() for writer in writers for _ in range(40)]
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
        for writer in writers:
            promised += writer.communicate()[0].split("\n")[:-1]
    with closing(ResponseCache(path)) as cache:
        found = cache.get(promised)
    assert len(promised) >= 240
    assert {key: result.text for key, result in found.items()} == dict.fromkeys(promised, "x" * 2000)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_file_in_the_making_is_waited_for(path):
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE made (x)")
    other.execute("BEGIN IMMEDIATE")  # SQLite itself refuses WAL at once then, whatever its timeout
    timer = threading.Timer(0.5, lambda: [other.execute(step) for step in ("DROP TABLE made", "COMMIT")])
    timer.start()  # other processes that create the file, too, are such writers
    with closing(ResponseCache(path)) as cache:
        assert not other.in_transaction  # it waited
        assert len(cache) == 0
    timer.join()
    other.close()


def test_another_file_is_refused_before_loading(path):
    path.parent.mkdir()
    path.write_bytes(b"not a database, " * 500)
    with pytest.raises(CacheError, match=f"{path}: expected a response cache, got another file .*give another"):
        load_engine("transformers:./no-such-folder", cache=path)


def execute(path, command):
    with closing(sqlite3.connect(path)) as database:
        database.execute(command)
        database.commit()


@pytest.mark.parametrize("damage", ["pages", "entry"])
def test_damage_and_other_files_are_named(path, tmp_path, damage):
    keys = [f"{number:064d}" for number in range(300)]
    with closing(ResponseCache(path)) as cache:
        for key in keys:
            cache.put(key, ChatResult((Sample("x" * 500),)))
    if damage == "pages":
        data = path.read_bytes()
        path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))  # the first page, with the schema, stays
    else:
        execute(path, "UPDATE answers SET result = '{\"samples\": 1}'")
    with closing(ResponseCache(path)) as cache, pytest.raises(CacheError, match=f"damaged .*delete {path}"):
        cache.get(keys)
    # Other files are refused.
    other = tmp_path / "other.sqlite"
    execute(other, "CREATE TABLE mine (x)")
    path = tmp_path / "nine.sqlite"
    ResponseCache(path).close()
    execute(path, "PRAGMA user_version=9")
    for file, message in (
        (other, "not a response cache; name another file"),
        (path, "schema version 9, this program knows 1"),
        (tmp_path, "cannot be opened"),
    ):
        with pytest.raises(CacheError, match=message):
            ResponseCache(file)


def test_two_servers_do_not_share_answers(path):
    with serving(lambda body: completion("one")) as one, serving(lambda body: completion("two")) as two:
        for server, expected in ((one, "one"), (two, "two"), (one, "one")):
            assert ask(server.url, path, 1) == [expected]
        assert (len(one.requests), len(two.requests)) == (1, 1)
