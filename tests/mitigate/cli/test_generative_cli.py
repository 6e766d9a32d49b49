# ruff: noqa: E501  (tables)
"""`mitigate annotate` with a generative annotator: killed and resumed, wrong usage, a dead server."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from annotators import load_annotator
from mitigate.cli.main import main
from tests.helpers.annotator_server import annotating, correct
from tests.helpers.engines_server import Reply, completion, error

RECORDS = [
    {
        "id": n,
        "reference": f"Bridge {n} opened in {1900 + n}. It is {n}0 metres long.",
        "answer": f"Hello! Bridge {n} opened in {1900 + n}. It is {n}1 metres long. It is pretty.",
    }
    for n in range(1, 7)
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return path


def command(source: Path, url: str, *more: str) -> list[str]:
    return [
        "annotate", "--input", str(source), "--output", str(source.with_name("out.jsonl")),
        "--annotator", f"generative:openai:m@{url}", *more,
    ]  # fmt: skip


def rows_of(source: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in source.with_name("out.jsonl").read_text().splitlines()]


def test_a_killed_run_goes_on_and_asks_nothing_twice(source):
    running: list[subprocess.Popen[bytes]] = []
    asked: list[str] = []

    def script(body: dict[str, Any]) -> Reply | str:
        asked.append(json.dumps(body["messages"]))
        if len(asked) == 22:
            os.kill(running[0].pid, signal.SIGKILL)
            running[0].wait()
        return correct(body)

    with annotating(script) as server:
        args = command(source, server.url, "--protocol", "three-turn", "--chunk-size", "2", "--concurrency", "1")
        running.append(subprocess.Popen([sys.executable, "-m", "mitigate.cli", *args], stderr=subprocess.DEVNULL))
        assert running[0].wait() == -signal.SIGKILL
        assert len(rows_of(source)) == 2  # 18 requests a chunk of two records: the second chunk was under way
        assert main(args) == 0
        counts = Counter(asked)
        assert {text: n for text, n in counts.items() if n > 1} == {asked[21]: 2}  # it was never answered
        assert len(counts) == 6 * 9
        assert main(args) == 0  # complete: nothing is asked, nothing changes
        assert len(asked) == 6 * 9 + 1
        rows = rows_of(source)
        again = load_annotator(f"generative:openai:m@{server.url}", protocol="three-turn").annotate_batch(RECORDS)
    assert rows == [one.to_dict() for one in again]
    expected = ["no_fact", "supported", "contradictory", "unverifiable"]
    assert [[s["label"] for s in row["sentences"]] for row in rows] == [expected] * 6


def test_problems_are_counted_and_failed_sentences_stay_in_their_record(source, capsys):
    def script(body: dict[str, Any]) -> Reply | str:
        return completion("no idea") if "pretty" in body["messages"][0]["content"] else correct(body)

    with annotating(script) as server:
        assert main(command(source, server.url, "--max-retries", "0", "--html", str(source.with_name("p.html")))) == 0
    assert "mitigate: problems with replies, by sentence: no_tags 6" in capsys.readouterr().err
    last = [row["sentences"][-1] for row in rows_of(source)]
    assert {(s["status"], s["label"], s["problems"][0]) for s in last} == {("failed", None, "no_tags")}
    assert "It is pretty" in source.with_name("p.html").read_text()


def test_a_server_that_dies_ends_the_run_and_keeps_what_is_done(source, capsys):
    asked: list[str] = []

    def script(body: dict[str, Any]) -> Reply | str:
        asked.append(json.dumps(body["messages"]))
        return error(401, "key expired") if len(asked) == 10 else correct(body)

    with annotating(script) as server:
        args = command(source, server.url, "--chunk-size", "2", "--concurrency", "1")
        assert main(args) == 1
        assert "set OPENAI_API_KEY to a valid key" in capsys.readouterr().err
        assert len(rows_of(source)) == 2
        assert main(args) == 0
        assert {n for text, n in Counter(asked).items() if text != asked[9]} == {1}
        assert main([*args, "--prompt", "steps"]) == 2  # other verdicts do not belong into this file
    assert "it was written by an annotator with fingerprint" in capsys.readouterr().err


def test_no_server_at_all(source, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        assert main(command(source, f"http://127.0.0.1:{taken.getsockname()[1]}/v1")) == 1
    assert "is the server running" in capsys.readouterr().err
    assert rows_of(source) == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--annotator", "embedded", "--window", "whole"], "--window: only with --annotator generative:"),
        (["--annotator", "generative:ollama:m"], "expected KIND:MODEL[@BASE_URL] with KIND one of transformers, vllm"),
        (["--annotator", "generative:openai:m", "--prompt", "nice"], "no such wording; expected plain, inspector"),
        (["--annotator", "generative:openai:m", "--templates", "none.yaml"], "templates none.yaml: expected a YAML file"),
        (["--annotator", "generative:openai:m", "--max-retries", "-1"], "max_retries: expected a whole number of at"),
        (["--annotator", "generative:transformers:/none", "--concurrency", "2"], "--concurrency: expected 1 or more, and"),
        (["--annotator", "generative:transformers:/none"], "no checkpoint folder at /none"),
    ],
)  # fmt: skip
def test_wrong_usage(args, message, source, tmp_path, capsys):
    usual = ["annotate", "--input", str(source), "--output", str(tmp_path / "out.jsonl")]
    assert main([*usual, *args]) == 2
    assert message in capsys.readouterr().err
