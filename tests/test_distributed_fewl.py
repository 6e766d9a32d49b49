"""`mitigate fewl score --distributed`: the rows and scores of one process, continued shard by shard.

All but one test work in this process (`--workers 0`); that one starts Ray and is skipped where it is not installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mitigate.cli import main
from tests.engines_server import completion, serving

LLMS = ("one", "two", "three")


def rows(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Questions with gaps of every kind, one of them twice."""
    rng = random.Random(seed)
    words = "the old stone bridge tower river of town was built opened in near a hill north year".split()

    def text() -> str:
        return " ".join(rng.choices(words, k=rng.randint(3, 9)))

    found = []
    for i in range(n):
        references: dict[str, Any] = {name: text() for name in LLMS if rng.random() < 0.8}
        if rng.random() < 0.3:
            references["many"] = [text() for _ in range(rng.randint(1, 3))]
        answers = [{"text": text(), "model": rng.choice(["one", "x"])} for _ in range(rng.randint(1, 3))]
        row = {
            "id": i,
            "question": f"When was {text()}?",
            "answers": answers,
            "reference_answers": references,
        }
        found.append(row | ({"iw": [text()], "co": [text(), text()]} if i % 3 else {}))
    found[-1]["question"] = found[1]["question"]
    return found


def corpus(folder: Path, records: list[dict[str, Any]]) -> tuple[Path, Path]:
    """As three files, one of them Parquet; and as one file."""
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    lines = [json.dumps(row) + "\n" for row in records]
    third = len(lines) // 3
    (folder / "a.jsonl").write_text("".join(lines[:third]) + "{broken\n")
    texts = [row | {"reference_answers": None} for row in records[third : 2 * third]]
    parquet.write_table(pa.Table.from_pylist(texts), folder / "b.parquet")
    (folder / "c.jsonl").write_text("".join(lines[2 * third :]))
    whole = folder.parent / "whole.jsonl"
    plain = [json.dumps(row) + "\n" for row in parquet.read_table(folder / "b.parquet").to_pylist()]
    whole.write_text("".join([*lines[:third], "{broken\n", *plain, *lines[2 * third :]]))
    return folder, whole


def score(*argv: object) -> int:
    return main(["fewl", "score", *map(str, argv)])


def parts(output: Path) -> bytes:
    return b"".join(p.read_bytes() for p in sorted(output.glob("part-?????.jsonl")))


@pytest.mark.parametrize(
    "options",
    [
        ["--similarity", "rouge-l", "--embedding", "tfidf"],
        ["--similarity", "new-words", "--embedding", "tfidf", "--neighbours", "3"],
        ["--similarity", "new-words", "--no-penalty", "--references", "single:two", "--weak-llm", "three",
         "--embedding", "tfidf"],
        ["--similarity", "rouge-l", "--embedding", "tfidf", "--neighbour-choice", "random", "--neighbours", "4",
         "--aggregation", "eq6", "--expertise", "uniform"],
    ],
    ids=lambda options: " ".join(options),
)  # fmt: skip
def test_the_bytes_of_one_process(tmp_path: Path, options: list[str]) -> None:
    folder, whole = corpus(tmp_path / "corpus", rows(20))
    assert score("--input", whole, "--output", tmp_path / "one.jsonl", *options) == 3
    output = tmp_path / "out"
    asked = [
        "--distributed",
        "--workers",
        0,
        "--input",
        folder,
        "--output",
        output,
        "--shard-size",
        4,
        *options,
    ]
    assert score(*asked) == 3
    assert parts(output) == (tmp_path / "one.jsonl").read_bytes()
    report = json.loads((tmp_path / "one.jsonl.run.json").read_text())["report"]
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["report"].pop("mean_lambda") == pytest.approx(report.pop("mean_lambda"))
    assert manifest["report"] == report
    assert (manifest["records"], manifest["rejected"], len(manifest["shards"])) == (20, 1, 6)
    for shard in manifest["shards"]:
        assert hashlib.sha256((output / shard["file"]).read_bytes()).hexdigest() == shard["sha256"]


def test_a_corpus_that_the_model_does_not_read_is_compared_by_characters_as_in_one_process(
    tmp_path: Path,
) -> None:
    """Without a penalty too, where no question is embedded: the English model must not compare Chinese answers."""
    records = [
        {
            "id": i,
            "question": f"第{i}座桥是哪一年建成的？",
            "answers": [{"text": f"建于{1900 + i}年。"}, {"text": "没有人知道。"}],
            "reference_answers": {"one": f"这座桥建于{1900 + i}年。", "two": f"{1900 + i}年建成。"},
            "iw": ["它从来没有建成。"],
            "co": [f"建于{1900 + i}年。"],
        }
        for i in range(6)
    ]
    folder, whole = tmp_path / "corpus", tmp_path / "whole.jsonl"
    folder.mkdir()
    whole.write_text("".join(json.dumps(row) + "\n" for row in records))
    (folder / "a.jsonl").write_text(whole.read_text())
    assert score("--input", whole, "--output", tmp_path / "one.jsonl", "--no-penalty") == 0
    output = tmp_path / "out"
    asked = ["--distributed", "--workers", 0, "--input", folder, "--output", output, "--shard-size", 2]
    assert score(*asked, "--no-penalty") == 0
    assert parts(output) == (tmp_path / "one.jsonl").read_bytes()
    assert "TF-IDF" in json.loads((output / "manifest.json").read_text())["embedding"]


def test_a_wrong_engine_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = corpus(tmp_path / "corpus", rows(3))
    asked = ["--distributed", "--workers", 0, "--input", folder, "--output", tmp_path / "out"]
    assert score(*asked, "--reference-llm", "nowhere") == 2
    assert "--reference-llm: engine 'nowhere': expected" in capsys.readouterr().err


def test_only_lost_shards_are_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = corpus(tmp_path / "corpus", rows(20))
    output = tmp_path / "out"
    asked = ["--distributed", "--workers", 0, "--input", folder, "--output", output, "--shard-size", 4,
             "--similarity", "rouge-l", "--embedding", "tfidf"]  # fmt: skip
    assert score(*asked) == 3
    before = {p: p.read_bytes() for p in output.rglob("*") if p.is_file()}
    for name in ("part-00001.jsonl", "part-00001.done.json", "filled/part-00002.done.json", "manifest.json"):
        (output / name).unlink()
    (output / "part-00001.jsonl.0123abcd.part").write_text("half a li")
    capsys.readouterr()
    assert score(*asked) == 3
    said = capsys.readouterr().err
    assert [said.count(" read, "), said.count(" scored, ")] == [1, 1]
    assert {p: p.read_bytes() for p in output.rglob("*") if p.is_file()} == before
    assert score(*asked, "--divergence", "js") == 2
    assert "holds shards of another input, shard size or options" in capsys.readouterr().err


def test_addresses(tmp_path: Path) -> None:
    """Input and output where fsspec finds them; replies are then kept for the shard at work only."""
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/questions/x.jsonl", b"".join(json.dumps(row).encode() + b"\n" for row in rows(5)))
    with serving(reply) as server:
        asked = ["--input", "memory://questions/*.jsonl", "--output", "memory://scored", "--shard-size", 2,
                 "--reference-llm", f"openai:player@{server.url}", "--expertise", "uniform", "--no-penalty",
                 "--similarity", "rouge-l", "--embedding", "tfidf"]  # fmt: skip
        assert score("--distributed", "--workers", 0, *asked) == 0
    found = [
        json.loads(line)
        for p in sorted(memory.glob("/scored/part-?????.jsonl"))
        for line in memory.cat(p).splitlines()
    ]
    assert [row["id"] for row in found] == [0, 1, 2, 3, 4]
    assert all("openai:player" in name for row in found for name in list(row["reference_answers"])[-1:])
    assert json.loads(memory.cat("/scored/manifest.json"))["report"]["scored"] == sum(
        len(r["answers"]) for r in found
    )


def test_cosines_are_close(tmp_path: Path) -> None:
    """Vectors of the packaged model depend in their last digits on what is embedded together; Parquet parts."""
    from pyarrow import parquet

    folder, whole = corpus(tmp_path / "corpus", rows(9))
    assert score("--input", whole, "--output", tmp_path / "one.jsonl") == 3
    output = tmp_path / "out"
    asked = ["--distributed", "--workers", 0, "--input", folder, "--output", output, "--shard-size", 4]
    assert score(*asked, "--format", "parquet") == 3
    one = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    found = [row for p in sorted(output.glob("*.parquet")) for row in parquet.read_table(p).to_pylist()]
    assert [row["question"] for row in found] == [row["question"] for row in one]
    for row, right in zip(found, one, strict=True):
        for mine, other in zip(json.loads(row["answers"]), right["answers"], strict=True):
            assert mine["score"] == pytest.approx(other["score"], abs=1e-5)
            assert mine["laziness"] == pytest.approx(other["laziness"], abs=1e-5)


def reply(body: dict[str, Any]) -> Any:
    """References, IW/CO pairs, yes or no; always the same for the same message."""
    prompt = body["messages"][-1]["content"]
    number = int(hashlib.sha256(prompt.encode()).hexdigest()[:4], 16)
    if "Wrong Answer" in prompt:
        lines = [
            f"{i}. Wrong Answer: the bridge {number + i}\n{i}. Non-Wrong Answer: no tower {i}"
            for i in range(1, 26)
        ]
        return completion("\n".join(lines))
    return (
        completion("Yes" if number % 2 else "No")
        if "Yes or No" in prompt
        else completion(f"a stone {number}")
    )


def test_what_is_missing_is_asked_in_the_shards(tmp_path: Path) -> None:
    """References, pairs and expertise; a shard that is begun again asks nothing twice."""
    with serving(reply) as server:
        _asked_in_the_shards(tmp_path, server)


def _asked_in_the_shards(tmp_path: Path, server: Any) -> None:
    records = [row | {"reference_answers": {}} for row in rows(7)]
    folder, whole = corpus(tmp_path / "corpus", records)
    engine = ["--reference-llm", f"openai:player@{server.url}", "--expertise", "prompted"]
    how = ["--similarity", "rouge-l", "--embedding", "tfidf", *engine]
    assert score("--input", whole, "--output", tmp_path / "one.jsonl", *how) == 3
    asked = len(server.requests)
    output = tmp_path / "out"
    again = ["--distributed", "--workers", 0, "--input", folder, "--output", output, "--shard-size", 3, *how]
    assert score(*again) == 3
    assert parts(output) == (tmp_path / "one.jsonl").read_bytes()
    assert len(server.requests) >= 2 * asked - 2  # the question that stands twice is in two shards
    done = len(server.requests)
    for path in (*output.rglob("*.done.json"), output / "manifest.json"):
        path.unlink()
    assert score(*again) == 3
    assert len(server.requests) == done
    assert parts(output) == (tmp_path / "one.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--expertise-scope", "dataset"], "leave out --distributed"),
        (["--references", "single:z"], "NAME one of two, three, many, one, got 'single:z'"),
        (["--json"], "whose summary is OUTPUT/manifest.json"),
        (["--workers", "-1"], "--workers: expected 0 or more, got -1"),
    ],
)
def test_wrong_options_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    source = tmp_path / "x.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows(20)))
    asked = [
        "--distributed",
        "--workers",
        0,
        "--embedding",
        "tfidf",
        "--input",
        source,
        "--output",
        tmp_path / "o",
    ]
    assert score(*asked, *options) == 2
    assert message in capsys.readouterr().err
    assert score("--input", "memory://x.jsonl", "--output", tmp_path / "o.jsonl") == 2
    assert "an address needs --distributed" in capsys.readouterr().err


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="needs the extra ray, which is not installed"
)
@pytest.mark.timeout(1200)
def test_on_ray(tmp_path: Path) -> None:
    folder, whole = corpus(tmp_path / "corpus", rows(20))
    options = ["--similarity", "new-words", "--embedding", "tfidf"]
    assert score("--input", whole, "--output", tmp_path / "one.jsonl", *options) == 3
    output = tmp_path / "out"
    asked = ["fewl", "score", "--distributed", "--workers", "2", "--input", str(folder), "--output", str(output),
             "--shard-size", "4", *options]  # fmt: skip
    lost = [str(output / name) for name in ("part-00001.done.json", "manifest.json")]
    steps = [{"argv": asked, "remove": []}, {"argv": asked, "remove": lost}]
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed_runner"],
        input=json.dumps(steps), capture_output=True, text=True, timeout=1100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    first, again = json.loads(done.stdout.splitlines()[-1])
    assert first["code"] == again["code"] == 3, first["said"] + again["said"]
    assert parts(output) == (tmp_path / "one.jsonl").read_bytes()
    done_now = [
        [len(re.findall(rf"shard \d+ {what}", one["said"])) for one in (first, again)]
        for what in ("read", "scored")
    ]
    assert done_now == [[6, 0], [6, 1]]
