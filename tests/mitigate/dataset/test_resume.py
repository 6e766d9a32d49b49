"""The data set pipeline killed with SIGKILL at every stage: continued, it ends the same and asks nothing twice."""

import json
import multiprocessing.context
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.dataset_build import STAGES, good, recipe, some_topics, stage_of
from tests.helpers.dataset_runner import child
from tests.helpers.engines_server import Reply, completion, serving
from tests.helpers.jsonl import read_rows as rows

TOPICS = ("Harrow Bridge", "Ada Kirwan", "望海楼")
# (stage of the LLM, request of that stage at which the process is killed) or (function, its call)
KILLS = """
mitigate.dataset.sources:read_corpus 1, mitigate.dataset.sources:rank 2, judge 2, write 2,
mitigate.dataset.questions:distinct 3, objective 2, answerable 5, select 2, with 4, without 7,
tests.helpers.standin:ExactAnnotator.annotate_batch 2, mitigate.dataset.export:write_lines 2,
mitigate.dataset.pipeline:page 1
"""
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.helpers.dataset_runner"])


class Killing:
    """Plays the good model, and kills a process at the n-th request of a stage instead of answering."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.armed, self.victim = threading.Event(), 0
        self.arm("", 0)

    def arm(self, stage: str, request: int) -> None:
        self.stage, self.left = stage, request
        self.armed.clear()

    def __call__(self, body: dict[str, Any]) -> Reply:
        prompt = body["messages"][-1]["content"]
        if stage_of(prompt) == self.stage:
            self.left -= 1
            if self.left == 0:
                assert self.armed.wait(120)
                os.kill(self.victim, signal.SIGKILL)
                return completion("never read")
        self.answered.append(json.dumps(body, sort_keys=True))
        return completion(good(prompt))


def files(folder: Path) -> dict[str, bytes]:
    """What a run leaves, but for what names times or counts requests, and the cache."""
    changing = ("responses.", "versions.", "usage.", ".lock")
    found = [p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(changing)]
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


@pytest.mark.slow
def test_killed_run_ends_the_same_without_repeats(tmp_path):
    script, one, log = Killing(), {"concurrency": 1}, tmp_path / "log.txt"

    def start(argv: list[str], die: str = "", call: int = 0) -> multiprocessing.context.ForkServerProcess:
        process = SERVER.Process(target=child, args=(argv, str(log), die, call))
        process.start()
        return process

    def end(process: multiprocessing.context.ForkServerProcess) -> int | None:
        process.join()
        return process.exitcode

    with serving(script) as server:
        path = recipe(
            tmp_path, server.url, topics=some_topics(tmp_path, *TOPICS), chunk_size=2, matching=one, filters=one,
            questions={**one, "per_topic": 4}, selection=one,
            answers=[{**one, "with_reference": True}, {**one, "with_reference": False}],
        )  # fmt: skip
        whole, broken = tmp_path / "whole", tmp_path / "broken"
        assert end(start(["run", str(path), "--output", str(whole)])) == 0, log.read_text()
        asked = script.answered.copy()
        assert set(map(stage_of, (json.loads(a)["messages"][0]["content"] for a in asked))) == set(STAGES)
        script.answered.clear()
        again = ["run", str(path), "--output", str(broken)]
        for where, count in ((kill.split()[0], int(kill.split()[1])) for kill in KILLS.split(",")):
            if where in STAGES:
                script.arm(where, count)
                process = start(again)
                script.victim = process.pid
                script.armed.set()
            else:
                script.arm("", 0)
                process = start(again, where, count)
            assert end(process) == -signal.SIGKILL, (where, log.read_text())
            assert not (broken / "done.json").exists()
        script.arm("", 0)
        assert end(start(again)) == 0, log.read_text()
        answered = script.answered.copy()
        assert end(start(again)) == 0  # complete: nothing is done again
        assert script.answered == answered
    assert files(broken) == files(whole)
    assert (max(Counter(answered).values()), sorted(answered)) == (1, sorted(asked))
    assert len(rows(whole / "11_annotated.jsonl")) == len(TOPICS) * 3 * 2
