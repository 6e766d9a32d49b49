"""`mitigate fewl`: every sub-command, bad input, and a run killed half way."""

import errno
import json
import math
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import pytest

from engines import ResponseCache
from mitigate.cli.main import main
from mitigate.io import UsageError
from tests.helpers.engines_server import Scripted, completion, error, serving
from tests.helpers.jsonl import read_rows as read
from tests.helpers.jsonl import write_rows as write


def letters(texts):
    """A stand-in for the embedding model: counts of letters, length 1."""
    counts = np.array([[t.lower().count(c) + 0.01 for c in "abcdefghij"] for t in texts], dtype=np.float32)
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def light_encoder(monkeypatch):
    """No model is loaded in this process; the real one has its own tests and is used by the killed run below."""
    monkeypatch.setattr("mitigate.models.load_encoder", lambda name, texts, cache=None: ("letters", letters))


def questions(n=4, **more):
    right, wrong = {"model": "x", "label": True}, {"text": "jih", "model": "y", "label": False}
    rest = {"reference_answers": {"one": "abc", "two": "ab"}, **more}
    answers = [[{"text": "abc"[: i % 3 + 1], **right}, wrong] for i in range(n)]
    return [{"id": i, "question": f"question {'abcdefghij'[i]}", "answers": answers[i], **rest} for i in range(n)]


def bare(n):
    """Questions that lack reference answers."""
    return [{k: v for k, v in row.items() if k != "reference_answers"} for row in questions(n)]


def fewl(*args):
    return main(["fewl", *map(str, args)])


def test_score_rank_pick(tmp_path, monkeypatch, capsys):
    source = write(tmp_path / "q.jsonl", questions())
    scored, picked = tmp_path / "s.jsonl", tmp_path / "p.jsonl"
    assert fewl("score", "--input", source, "--output", scored, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["report"]["scored"] == 8
    assert summary["fewl_options"]["expertise"] == "uniform"  # nothing to weigh by
    made = json.loads((tmp_path / "s.jsonl.run.json").read_text())
    assert made["options"]["aggregation"] == "eq6"
    assert not {"program", "annotators", "run"} & made["options"].keys()
    assert len(made["input_sha256"]) == 64

    (truth := tmp_path / "truth.json").write_text('{"x": 0.9, "y": 0.1}')
    assert fewl("rank", "--input", scored, "--truth", truth, "--png", tmp_path / "r.png", "--json") == 0
    assert json.loads(capsys.readouterr().out)["kendall"]["tau"] == 1.0
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    for wrong, told in (
        ('{"x": 1' + "0" * 400 + "}", "expected finite numbers, below 1.8e308, got 1000"),
        ('{"x": "0.9"}', 'truth.json, as {"model": number}: x: expected a number, got "0.9"'),
        ("[]", "expected a JSON object, got"),
    ):
        truth.write_text(wrong)
        assert fewl("rank", "--input", scored, "--truth", truth) == 2
        assert told in capsys.readouterr().err
    assert fewl("rank", "--input", scored, "--truth", tmp_path / "none") == 2
    assert "none: No such file" in capsys.readouterr().err

    def full(shown, path, kind):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mitigate.cli.fewl.plot_ranking", full)
    assert fewl("rank", "--input", scored, "--png", tmp_path / "r.png") == 1
    assert "r.png: No space left on device" in capsys.readouterr().err
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")  # the old one
    assert fewl("rank", "--input", scored, "--truth", "labels") == 0
    assert "Kendall" in capsys.readouterr().out
    assert fewl("pick", "--input", scored, "--output", picked, "--abstain-above", "0") == 2
    assert "run `fewl score --same-from`" in capsys.readouterr().err
    # "abc" and "ab" have a cosine of about 0.82: at 0.9 the two LLMs differ, which is an entropy of log 2
    assert fewl("score", "--input", source, "--output", scored, "--overwrite", "--same-from", "0.9") == 0
    assert [row["entropy"] for row in read(scored)] == pytest.approx([math.log(2)] * 4)
    for limit, model in (("0.7", "x"), ("0.6", None)):
        assert fewl("pick", "--input", scored, "--output", picked, "--overwrite", "--abstain-above", limit) == 0
        assert [row["model"] for row in read(picked)] == [model] * 4


def test_an_annotator_that_asks_keeps_its_replies(tmp_path, monkeypatch):
    opened = []

    def similarity(name, encode, options):
        opened.append(options)
        raise UsageError("seen")

    monkeypatch.setattr("mitigate.models.load_similarity", similarity)
    argv = ["score", "--input", write(tmp_path / "q.jsonl", questions()), "--output", tmp_path / "s.jsonl"]
    for name in ("annotator:generative:openai:m", "annotator:embedded"):
        assert fewl(*argv, "--similarity", name) == 2
    assert [one.get("cache") for one in opened] == [tmp_path / "s.jsonl.cache.sqlite", None]


def test_expertise_follows_the_pairs_of_the_input(tmp_path, capsys):
    source, png = write(tmp_path / "q.jsonl", questions(iw=["ab"], co=["abc"])), tmp_path / "a.png"
    assert fewl("score", "--input", source, "--output", tmp_path / "s.jsonl", "--agreement-png", png) == 0
    assert "expertise similarity" in capsys.readouterr().out
    weights = read(tmp_path / "s.jsonl")[0]["lambda"]
    assert weights["one"] > weights["two"]  # "one" says what is corrected, "two" what is wrong
    assert png.read_bytes().startswith(b"\x89PNG")


def test_prompted_expertise_asks_the_reference_llm(tmp_path, monkeypatch, capsys):
    engines = []

    def opened(spec, option, cache, **_):
        """Calls every corrected answer its own and no wrong one; the other LLM, the other way round."""
        own = "Another answer: " + ("right" if spec == "openai:one" else "wrong")
        engines.append(Scripted(lambda text, _: "Yes" if own in text else "No", spec))
        return engines[-1]

    monkeypatch.setattr("mitigate.models.open_engine", opened)
    source, scored = write(tmp_path / "q.jsonl", questions(2, iw=["wrong"], co=["right"])), tmp_path / "s.jsonl"
    options = ["--expertise", "prompted", "--reference-llm", "one=openai:one", "--reference-llm", "two=openai:two"]
    options += ["--max-tokens", "77"]
    assert fewl("score", "--input", source, "--output", scored, *options) == 0
    printed = capsys.readouterr()
    assert "wrong and corrected answers" not in printed.err  # the input has them
    assert "IW/CO pairs" not in printed.out
    assert {sampling.max_tokens for engine in engines for _, sampling in engine.asked} == {77}
    # r = 1 − 0 and 0 − 1: λ = e/(e + 1/e)
    assert read(scored)[0]["lambda"]["one"] == pytest.approx(0.880797, abs=1e-6)


def test_pairs_are_added_to_what_the_input_has(tmp_path, monkeypatch):
    pair = "1. Wrong Answer: cb\n1. Non-Wrong Answer: cba"
    monkeypatch.setattr("mitigate.models.open_engine", lambda *_, **__: Scripted(lambda *_: pair, "m"))
    options = ["--reference-llm", "one=openai:m", "--expertise", "similarity", "--pairs", "1"]
    rows = [*questions(2, iw=["ab"]), *questions(1, iw=["", " "])]
    source, scored = write(tmp_path / "q.jsonl", rows), tmp_path / "s.jsonl"
    assert fewl("score", "--input", source, "--output", scored, *options) == 0
    assert [(row["iw"], row["co"]) for row in read(scored)] == [*[(["ab"], ["cba"])] * 2, (["cb"], ["cba"])]


def test_pairs_that_did_not_come_are_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("mitigate.models.EVERY", 0.0)
    monkeypatch.setattr("mitigate.models.open_engine", lambda *_, **__: Scripted(lambda *_: "As you like.", "m"))
    options = ["--reference-llm", "one=openai:m", "--expertise", "similarity", "--pairs", "2"]
    source = write(tmp_path / "q.jsonl", questions(2))
    assert fewl("score", "--input", source, "--output", tmp_path / "s.jsonl", *options) == 2
    told = capsys.readouterr().err
    # Two questions are asked for two pairs each, in three rounds.
    assert "one: 6 replies\nmitigate: one: 0 of 4 pairs came (no_pairs 6)\n" in told
    assert "no record has iw and co; add them, or take another expertise" in told


def test_scores_of_nothing_are_a_failure(tmp_path, capsys):
    empty = [{**row, "answers": [{**answer, "text": ""} for answer in row["answers"]]} for row in questions(2)]
    source = write(tmp_path / "q.jsonl", empty)
    assert fewl("score", "--input", source, "--output", tmp_path / "s.jsonl") == 1
    assert "none of 4 answers has a score: each lacks text or a reference answer" in capsys.readouterr().err
    assert {answer["score"] for row in read(tmp_path / "s.jsonl") for answer in row["answers"]} == {None}


def test_failed_requests_are_asked_again(tmp_path, capsys, monkeypatch):
    """A server that refuses every second question: scores of the rest, exit code 1; then it answers them all."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    source, scored = write(tmp_path / "q.jsonl", bare(4)), tmp_path / "s.jsonl"
    broken = True

    def script(body):
        nth = "abcd".index(body["messages"][0]["content"].split("\n\n")[1][-1])
        return error(400, "not today") if broken and nth % 2 else completion("It is so.")

    with serving(script) as server:
        argv = ["score", "--input", source, "--output", scored, "--expertise", "uniform"]
        argv += ["--reference-llm", f"openai:m@{server.url}", "--json"]
        assert fewl(*argv) == 1
        told = capsys.readouterr().err
        assert "2 requests failed" in told
        assert "not today" in told
        assert "the same command with --overwrite asks only these again" in told
        assert len(read(scored)) == 4
        broken, before = False, len(server.requests)
        assert fewl(*argv) == 2  # the scores are there
        assert fewl(*argv, "--overwrite") == 0
        assert len(server.requests) == before + 2
    assert all(row["reference_answers"] for row in read(scored))


def test_named_llms_answer_and_are_no_reference_for_themselves(tmp_path, capsys, monkeypatch):
    """Two servers' models, asked side by side, are references and candidates; replies are thought over or cut off."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setattr("mitigate.models.EVERY", 0.0)
    source, scored = write(tmp_path / "q.jsonl", [{**row, "answers": []} for row in bare(2)]), tmp_path / "s.jsonl"
    together = threading.Barrier(2)

    def script(body):
        try:  # nobody is answered before the other LLM is asked
            together.wait(60)
        except threading.BrokenBarrierError:
            return error(400, "alone")
        return completion("<think>abc</think>abc." if body["model"] == "slow" else "abc. hij", finish="length")

    with serving(script) as server:
        llms = [f"{name}=openai:{name}@{server.url}" for name in ("slow", "cut")]
        argv = ["score", "--input", source, "--output", scored, "--expertise", "uniform", "--concurrency", "1"]
        options = [part for role in ("--reference-llm", "--answer-llm") for llm in llms for part in (role, llm)]
        assert fewl(*argv, *options, "--references", "single:z") == 2  # found before anything is asked
        assert "NAME one of slow, cut, got 'single:z'" in capsys.readouterr().err
        assert not server.requests
        assert fewl(*argv, *options, "--max-tokens", "9", "--json") == 0
    said = capsys.readouterr()
    assert "slow: 2 of 2 replies" in said.err
    assert {body["max_tokens"] for body in server.requests} == {9}
    assert len(server.requests) == 4  # an answer to score is the reference answer, from the cache
    for row in read(scored):
        assert row["reference_answers"] == {"slow": ["abc."], "cut": ["abc."]}
        assert [(a["model"], a["text"]) for a in row["answers"]] == [("slow", "abc."), ("cut", "abc.")]
    assert json.loads(said.out)["report"]["own_references_left_out"] == 4


def test_a_killed_run_asks_nothing_twice(tmp_path, capsys):
    source, scored = write(tmp_path / "q.jsonl", bare(10)), tmp_path / "s.jsonl"
    asked, held, lock = [], [], threading.Lock()
    full, go_on = threading.Event(), threading.Event()

    def script(body):
        text = body["messages"][-1]["content"]
        with lock:
            late = len(asked) >= 18 and not go_on.is_set()
            (held if late else asked).append(text)
        if late:  # its client gets killed
            full.set()
            go_on.wait(200)
        if wanted := re.search(r"Invent (\d+) ", text):
            numbers = range(1, int(wanted.group(1)) + 1)
            text = "\n".join(f"{i}. Wrong Answer: wrong {i}\n{i}. Non-Wrong Answer: right {i}" for i in numbers)
        return completion(text[-4000:])

    with serving(script) as server:
        engine = f"openai:tiny@{server.url}"
        argv = ["score", "--input", source, "--output", scored, "--reference-llm", engine, "--reference-samples", "2"]
        command = [sys.executable, "-m", "mitigate.cli", "fewl", *argv]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert full.wait(120)  # the 19th request waits; the first 18 are answered, if not yet saved
            cache, deadline = ResponseCache(f"{scored}.cache.sqlite"), time.monotonic() + 60
            while len(cache) < 18:  # what was answered is saved at once
                assert time.monotonic() < deadline
                time.sleep(0.05)
            cache.close()
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            go_on.set()
        assert not scored.exists()  # nothing that would have to be overwritten
        assert fewl(*argv, "--json") == 0
    # two draws per question share their text, so compare counts: nothing answered before is asked again
    assert sorted(Counter(asked).values()) == [1] * 10 + [2] * 10  # ten IW/CO prompts, ten questions drawn twice
    rows = read(scored)
    assert all(len(row["reference_answers"][engine]) == 2 for row in rows)
    assert all(len(row["iw"]) == len(row["co"]) == 25 for row in rows)
    assert json.loads(capsys.readouterr().out)["pairs"]["questions_with_all_pairs"] == 10
