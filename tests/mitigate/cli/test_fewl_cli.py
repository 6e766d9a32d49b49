"""`mitigate fewl` through its command line: every sub-command, bad input, and a run killed half way."""

import collections
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from engines import ResponseCache
from mitigate.cli.main import main
from tests.helpers.engines_server import completion, error, serving


def letters(texts):
    """A stand-in for the embedding model: counts of letters, length 1."""
    counts = np.array([[t.lower().count(c) + 0.01 for c in "abcdefghij"] for t in texts], dtype=np.float32)
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def light_encoder(monkeypatch):
    """No model is loaded here; the real one has its own tests and is used by the killed run below."""
    monkeypatch.setattr("mitigate.models.load_encoder", lambda name, texts: ("letters", letters))


def questions(n=4):
    wrong, references = {"text": "jih", "model": "y", "label": False}, {"one": "abc", "two": "ab"}
    answers = [[{"text": "abc"[: i % 3 + 1], "model": "x", "label": True}, wrong] for i in range(n)]
    rows = [{"id": i, "question": f"question {'abcdefghij'[i]}", "answers": answers[i]} for i in range(n)]
    return [{**row, "reference_answers": references} for row in rows]


def without_references(n):
    return [{k: v for k, v in row.items() if k != "reference_answers"} for row in questions(n)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def fewl(*args):
    return main(["fewl", *map(str, args)])


def test_score_rank_pick(tmp_path, capsys):
    source = write(tmp_path / "q.jsonl", questions())
    scored, picked = tmp_path / "s.jsonl", tmp_path / "p.jsonl"
    assert fewl("score", "--input", source, "--output", scored, "--no-penalty", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["report"]["scored"] == 8
    assert summary["fewl_options"]["expertise"] == "uniform"  # nothing to weigh by
    rows = read(scored)
    assert all(row["answers"][0]["score"] > row["answers"][1]["score"] for row in rows)
    assert rows[0]["lambda"] == {"one": 0.5, "two": 0.5}
    run = json.loads((tmp_path / "s.jsonl.run.json").read_text())
    assert run["options"]["aggregation"] == "paper"
    assert len(run["input_sha256"]) == 64

    truth = tmp_path / "truth.json"
    truth.write_text('{"x": 0.9, "y": 0.1}')
    png = tmp_path / "r.png"
    assert fewl("rank", "--input", scored, "--truth", truth, "--png", png, "--json") == 0
    ranking = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in ranking["models"]] == ["x", "y"]
    assert ranking["kendall"]["tau"] == 1.0
    assert ranking["wins"]["x"]["y"] == 1.0
    assert png.read_bytes().startswith(b"\x89PNG")
    assert fewl("rank", "--input", scored, "--truth", "labels") == 0
    assert "Kendall" in capsys.readouterr().out

    assert fewl("pick", "--input", scored, "--output", picked) == 0
    assert [row["model"] for row in read(picked)] == ["x"] * 4


def test_expertise_follows_the_pairs_of_the_input(tmp_path, capsys):
    rows = [{**row, "iw": ["ab"], "co": ["abc"]} for row in questions()]
    source, png = write(tmp_path / "q.jsonl", rows), tmp_path / "a.png"
    code = fewl("score", "--input", source, "--output", tmp_path / "s.jsonl", "--agreement-png", png)
    assert code == 0
    assert "expertise similarity" in capsys.readouterr().out
    weights = read(tmp_path / "s.jsonl")[0]["lambda"]
    assert weights["one"] > weights["two"]  # "one" says what is corrected, "two" what is wrong
    assert png.read_bytes().startswith(b"\x89PNG")


def test_prompted_expertise_asks_the_reference_llm(tmp_path, monkeypatch):
    from engines.types import ChatResult, Sample

    class Agreeable:
        """Calls every corrected answer its own and no wrong one; the other LLM, the other way round."""

        def __init__(self, name):
            self.name, self.identity = name, {}

        def chat(self, chats, sampling=None, *, on_result=None):
            own = "right" if self.name == "one" else "wrong"
            said = ["Yes" if f"Another answer: {own}" in chat[-1]["content"] else "No" for chat in chats]
            return [ChatResult((Sample(text, "stop"),)) for text in said]

        def close(self):
            pass

    monkeypatch.setattr("mitigate.models.open_engine", lambda spec, option, cache: Agreeable(spec))
    rows = [{**row, "iw": ["wrong"], "co": ["right"]} for row in questions(2)]
    source, scored = write(tmp_path / "q.jsonl", rows), tmp_path / "s.jsonl"
    options = ["--expertise", "prompted", "--reference-llm", "one", "--reference-llm", "two"]
    assert fewl("score", "--input", source, "--output", scored, *options) == 0
    # r = 1 − 0 and 0 − 1: λ = e/(e + 1/e)
    assert read(scored)[0]["lambda"]["one"] == pytest.approx(0.880797, abs=1e-6)


def test_bad_lines_are_named_kept_and_told_by_the_exit_code(tmp_path, capsys):
    source = write(tmp_path / "q.jsonl", questions(2))
    with source.open("a") as file:
        file.write('{"question": "q", "answers": [{"text": 3}]}\nnonsense\n')
    scored = tmp_path / "s.jsonl"
    assert fewl("score", "--input", source, "--output", scored) == 3
    error = capsys.readouterr().err
    assert f"{source}:3: answers[0].text: expected a string, got 3" in error
    assert f"{source}:4:" in error
    assert len(read(scored)) == 2
    rejected = read(tmp_path / "s.jsonl.rejected.jsonl")
    assert [row["line"] for row in rejected] == [3, 4]
    assert fewl("rank", "--input", source) == 2  # not scored: no line is good


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--similarity", "bleu"], "expected cosine, rouge-l, new-words or annotator:NAME, got 'bleu'"),
        (["--neighbours", "0"], "--neighbours: expected 1 or more, got 0"),
        (["--references", "one"], "--references: expected all or single:NAME"),
        (["--references", "single:z"], "NAME one of one, two, got 'single:z'"),
        (["--expertise", "similarity"], "no record has iw and co"),
        (["--expertise", "prompted"], "give each as --reference-llm"),
        (["--reference-samples", "5"], "only with --reference-llm"),
        (["--reference-llm", "gpt"], "expected KIND:MODEL"),
    ],
)
def test_wrong_options_are_one_line(tmp_path, capsys, options, message):
    source = write(tmp_path / "q.jsonl", questions())
    assert fewl("score", "--input", source, "--output", tmp_path / "s.jsonl", *options) == 2
    assert message in capsys.readouterr().err


def test_no_references_and_no_engine(tmp_path, capsys):
    source = write(tmp_path / "q.jsonl", [{"question": "a", "answers": [{"text": "b"}]}])
    assert fewl("score", "--input", source, "--output", tmp_path / "s.jsonl") == 2
    assert "no record has reference_answers; add some, or give --reference-llm" in capsys.readouterr().err


def test_failed_requests_are_told_by_the_exit_code_and_asked_again(tmp_path, capsys, monkeypatch):
    """A server that refuses every second question: scores of the rest, exit code 1; then it answers them all."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    bare = without_references(4)
    source, scored = write(tmp_path / "q.jsonl", bare), tmp_path / "s.jsonl"
    broken = True

    def script(body):
        nth = sorted(row["question"] for row in bare).index(body["messages"][0]["content"].split("\n\n")[1])
        return error(400, "not today") if broken and nth % 2 else completion("It is so.")

    with serving(script) as server:
        argv = ["fewl", "score", "--input", source, "--output", str(scored), "--expertise", "uniform"]
        argv += ["--reference-llm", f"openai:m@{server.url}", "--json"]
        assert main([str(a) for a in argv]) == 1
        said = capsys.readouterr().err
        assert "2 requests failed" in said
        assert "not today" in said
        assert "the same command with --overwrite asks only these again" in said
        assert len(read(scored)) == 4
        broken, before = False, len(server.requests)
        assert main([str(a) for a in argv]) == 2  # the scores are there
        assert main([*map(str, argv), "--overwrite"]) == 0
        assert len(server.requests) == before + 2
    assert all(row["reference_answers"] for row in read(scored))


def test_a_killed_run_goes_on_and_asks_nothing_twice(tmp_path):
    number, answered, full, killed = itertools.count(), [], threading.Event(), threading.Event()

    def script(body):
        asked = body["messages"][-1]["content"]
        if next(number) >= 18 and not killed.is_set():  # it waits until its client is dead
            full.set()
            killed.wait(200)
            return error(500)
        answered.append(asked)
        n = int(found[1]) if (found := re.search(r"Invent (\d+) ", asked)) else 0
        lines = [f"{i}. Wrong Answer: wrong {i}\n{i}. Non-Wrong Answer: right {i}" for i in range(1, n + 1)]
        return completion("\n".join(lines) or f"an answer of {len(asked)} letters")

    source, scored = write(tmp_path / "q.jsonl", without_references(10)), tmp_path / "s.jsonl"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OPENAI_API_KEY": "none"}
    with serving(script) as server:
        engine = f"openai:tiny@{server.url}"
        command = [sys.executable, "-m", "mitigate.cli", "fewl", "score", "--input", source, "--output", scored]
        command += ["--reference-llm", engine, "--reference-samples", "2", "--json"]
        try:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            assert full.wait(120)
            cache, deadline = ResponseCache(f"{scored}.cache.sqlite"), time.monotonic() + 60
            while len(cache) < 18:  # what was answered is saved at once
                assert time.monotonic() < deadline
                time.sleep(0.05)
            cache.close()
            process.kill()
            process.wait()
        finally:
            killed.set()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    # ten prompts for wrong and corrected answers, and ten questions drawn twice with the same text
    assert sorted(collections.Counter(answered).values()) == [1] * 10 + [2] * 10
    rows = read(scored)
    assert all(len(row["reference_answers"][engine]) == 2 for row in rows)
    assert all(len(row["iw"]) == len(row["co"]) == 25 for row in rows)
    assert json.loads(done.stdout)["pairs"]["questions_with_all_pairs"] == 10
