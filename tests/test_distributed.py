"""`mitigate annotate --distributed` on a local Ray: the rows and labels of one process, continued shard by shard.

Skipped where Ray is not installed; `.ci/extras` runs it in an environment of its own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mitigate.cli import main
from mitigate.distributed_annotate import Annotate, Task
from tests.rule_annotator import RuleAnnotator

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the extra ray, which is not installed"
)


def corpus(folder: Path, n: int) -> Path:
    """Records of the pocket world in two files, one with a bad line at its end."""
    from examples.pocket import build_world
    from examples.pocket.texts import flawed_answer, questions

    folder.mkdir()
    rng = random.Random(0)
    rows = [
        {"id": i, "question": q.text, "reference": q.entity.document.text, "answer": flawed_answer(rng, q)}
        for i, q in enumerate(questions(build_world(0).entities, 1, held_out=False)[:n])
    ]
    half = [json.dumps(row) + "\n" for row in rows]
    (folder / "a.jsonl").write_text("".join(half[: n // 2]))
    (folder / "b.jsonl").write_text("".join(half[n // 2 :]) + '{"id": "bad"}\n')
    return folder


@needs_ray
@pytest.mark.timeout(1200)
def test_the_rows_and_labels_of_one_process(tmp_path: Path) -> None:
    source = corpus(tmp_path / "corpus", 16)
    whole, one = tmp_path / "whole.jsonl", tmp_path / "one.jsonl"
    whole.write_bytes(b"".join(p.read_bytes() for p in sorted(source.iterdir())))
    assert main(["annotate", "--input", str(whole), "--output", str(one), "--chunk-size", "4"]) == 3
    output = tmp_path / "out"
    asked = ["annotate", "--distributed", "--input", str(source), "--output", str(output), "--workers", "2"]
    asked += ["--shard-size", "4", "--chunk-size"]
    lost = ["part-00001.jsonl", "part-00001.done.json", "part-00003.done.json", "manifest.json"]
    steps = [
        {"argv": [*asked, "4"], "remove": []},
        {"argv": [*asked, "4"], "remove": [str(output / name) for name in lost]},
        {"argv": [*asked, "2"], "remove": []},
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed_runner"],
        input=json.dumps(steps), capture_output=True, text=True, timeout=1100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    first, again, other = json.loads(done.stdout.splitlines()[-1])

    assert first["code"] == again["code"] == 3, first["said"] + again["said"]  # one bad line
    parts = sorted(output.glob("part-?????.jsonl"))
    assert len(parts) == 5
    assert b"".join(p.read_bytes() for p in parts) == one.read_bytes()
    manifest = json.loads((output / "manifest.json").read_text())
    assert (manifest["records"], manifest["rejected"]) == (16, 1)
    assert [shard["file"] for shard in manifest["shards"]] == [p.name for p in parts]
    for shard in manifest["shards"]:
        assert hashlib.sha256((output / shard["file"]).read_bytes()).hexdigest() == shard["sha256"]

    # Two shards were lost, one of them only its mark: these two were done again, no other.
    assert [first["said"].count("mitigate: shard "), again["said"].count("mitigate: shard ")] == [5, 2]
    assert "mitigate: shard 1 " in again["said"]
    assert "mitigate: shard 3 " in again["said"]
    assert other["code"] == 2
    assert "holds shards of another input, shard size or options" in other["said"]


class Brittle(RuleAnnotator):
    def annotate_batch(self, records: Any) -> Any:
        if any(record["id"] == 5 for record in records):
            raise OSError("the server is gone")
        return super().annotate_batch(records)


def worker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fingerprint: str | None
) -> tuple[Annotate, list[str]]:
    from dataclasses import asdict

    import annotators
    from mitigate.shards import plan

    monkeypatch.setattr(annotators, "load_annotator", lambda name, **options: Brittle())
    source, output = corpus(tmp_path / "corpus", 8), tmp_path / "out"
    output.mkdir()
    shards = plan([f"file://{source}/a.jsonl", f"file://{source}/b.jsonl"], 3)
    task = Task("any", str(source), str(output), 3, 2)
    return Annotate(task, "stamp", fingerprint), [json.dumps(asdict(shard)) for shard in shards]


def test_a_shard_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made, shards = worker(monkeypatch, tmp_path, None)
    found = [json.loads(text) for text in made({"shard": np.array(shards)})["result"]]
    assert [one.get("records") for one in found] == [3, 1, None, 1]
    assert found[2] == {"number": 2, "error": "OSError: the server is gone", "usage": False}
    assert sorted(p.name for p in (tmp_path / "out").glob("*.done.json")) == [
        f"part-0000{n}.done.json" for n in (0, 1, 3)
    ]


def test_another_annotator_does_not_continue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made, shards = worker(monkeypatch, tmp_path, "another")
    (found,) = (json.loads(text) for text in made({"shard": np.array(shards[:1])})["result"])
    assert "another fingerprint" in found["error"]
    assert not list((tmp_path / "out").iterdir())


def test_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for argv, said in (
        (["--distributed"], "give --input and --output"),
        (["--input", "s3://x/y.jsonl", "--output", "z"], "needs --distributed"),
        (
            ["--distributed", "--input", "x", "--output", "y", "--workers", "-1"],
            "--workers: expected 0 or more",
        ),
        (["--distributed", "--input", "x", "--output", "y", "--html", "z"], "do not go with --distributed"),
    ):
        assert main(["annotate", *argv]) == 2
        assert said in capsys.readouterr().err
    if importlib.util.find_spec("ray") is None:
        assert main(["annotate", "--distributed", "--input", "x", "--output", str(tmp_path)]) == 2
        assert "hallucination-toolkit[ray]" in capsys.readouterr().err
