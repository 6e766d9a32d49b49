"""`--distributed` where something is wrong: one line that says what, nothing lost, the same command goes on.

In this process (`--workers 0`), with an annotator by rule; workers that die are in `tests/test_distributed.py`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import annotators
from mitigate.cli import main
from mitigate.jsonl import check_annotation_input
from mitigate.shard_results import held, work
from mitigate.shards import find_inputs, plan
from tests.rule_annotator import RuleAnnotator


def record(i: int) -> dict[str, Any]:
    return {"id": i, "reference": f"Bridge {i} opened in 1931.", "answer": f"Bridge {i} opened in 1931."}


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(annotators, "load_annotator", lambda name, **options: RuleAnnotator())
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.jsonl").write_text("".join(json.dumps(record(i)) + "\n" for i in range(6)))
    return folder


def annotate(source: object, output: object) -> int:
    argv = ["annotate", "--distributed", "--workers", "0", "--input", str(source), "--output", str(output)]
    return main([*argv, "--shard-size", "2"])


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error, without the lines of shards."""
    lines = capsys.readouterr().err.splitlines()
    (line,) = [line for line in lines if not line.startswith("mitigate: shard ")]
    return line


def refused(source: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is said to a run that does not fit what is in its output folder, which stays as it is."""
    before = contents(output)
    capsys.readouterr()
    assert annotate(source, output) == 2
    assert contents(output) == before
    return said(capsys)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def ids(output: Path) -> list[int]:
    files = sorted(output.glob("part-?????.jsonl"))
    return [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]


def test_places_that_are_no_output(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for output, why in (
        (file, "File exists"),
        (file / "below", "Not a directory"),
        ("nosuch://x", "Protocol not known"),
        (corpus, "results would lie among the files of --input"),
        (corpus / "out", "results would lie among the files of --input"),
        (tmp_path, "results would lie among the files of --input"),
    ):
        assert annotate(corpus, output) == 2
        line = said(capsys)
        assert line.startswith(f"mitigate: error: --output {output}")
        assert why in line
    for pattern, output in (
        ("**/*.jsonl", corpus / "out"),
        ("*.jsonl", corpus),
    ):
        assert annotate(corpus / pattern, output) == 2
        assert "results would lie among the files of --input" in said(capsys)
    assert file.read_text() == "mine"
    assert [p.name for p in corpus.iterdir()] == ["a.jsonl"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_that_is_not_yours(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    output.mkdir(mode=0o500)
    assert annotate(corpus, output) == 2
    assert "permission denied" in said(capsys)


def test_nothing_to_read(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert annotate(empty, output) == 2
    assert "no such file, or no *.jsonl or *.parquet in that folder" in said(capsys)
    (empty / "x.jsonl").write_text("")
    assert annotate(empty, output) == 2
    assert "no lines in it" in said(capsys)
    assert not output.exists()
    (empty / "x.jsonl").write_text("\n\n\n")  # lines without a record
    assert annotate(empty, output) == 0
    assert json.loads((output / "manifest.json").read_text())["records"] == 0
    (empty / "x.jsonl").unlink()
    (empty / "x.jsonl").symlink_to(empty / "x.jsonl")  # can't be opened
    assert annotate(empty / "x.jsonl", output) == 2
    assert "x.jsonl" in said(capsys)


def test_another_input_of_the_same_size_does_not_continue(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert annotate(corpus, output) == 0
    text = (corpus / "a.jsonl").read_text()
    (corpus / "a.jsonl").write_text(text.replace("1931", "1913"))
    assert "holds shards of another input" in refused(corpus, output, capsys)


def test_another_parquet_file_of_as_many_rows_does_not_continue(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    source, output = tmp_path / "x.parquet", tmp_path / "out"
    parquet.write_table(pa.Table.from_pylist([record(i) for i in range(4)]), source)
    assert annotate(source, output) == 0
    assert annotate(source, output) == 0
    parquet.write_table(pa.Table.from_pylist([record(i) for i in range(5, 9)]), source)
    assert "holds shards of another input" in refused(source, output, capsys)


def test_lost_results_are_made_again(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert annotate(corpus, output) == 0
    before = contents(output)
    (output / "part-00001.jsonl").unlink()  # and its mark is still there
    (output / "part-00001.jsonl.1234abcd.part").write_text("half a li")  # of a worker that died
    (output / "mine.part").write_text("not ours")
    capsys.readouterr()
    assert annotate(corpus, output) == 0
    assert capsys.readouterr().err.count("mitigate: shard ") == 1
    assert contents(output) == {**before, "mine.part": b"not ours"}
    (output / "part-00002.done.json").write_text("")
    assert annotate(corpus, output) == 2
    assert "part-00002.done.json is damaged: delete it" in said(capsys)
    (output / "part-00002.done.json").unlink()
    assert annotate(corpus, output) == 0
    assert ids(output) == list(range(6))


def test_another_annotator_is_a_usage_error(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert annotate(corpus, output) == 0
    (output / "part-00001.done.json").unlink()
    monkeypatch.setattr(RuleAnnotator, "fingerprint", "other")
    why = "made by an annotator with another fingerprint; name another folder"
    assert why in refused(corpus, output, capsys)


def test_two_runs_do_not_share_a_folder(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    with held(str(output)):
        assert annotate(corpus, output) == 2
        assert "is being written by another run" in said(capsys)
    assert annotate(corpus, output) == 0
    assert not list(output.glob(".*"))


def test_two_workers_at_one_shard(corpus: Path, tmp_path: Path) -> None:
    """As when one was given up for lost: the second writes its files while the first is in the middle of them."""
    output = tmp_path / "out"
    output.mkdir()
    (shard,) = plan(find_inputs(str(corpus)), 10)
    others: list[dict[str, Any]] = []

    def one(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if records[0]["id"] == 2:
            others.append(
                work(shard, lambda rows: rows, str(output), 4, {"stamp": "s"}, check=check_annotation_input)
            )
        return records

    done = work(shard, one, str(output), 2, {"stamp": "s"}, check=check_annotation_input)
    assert others == [done]
    assert ids(output) == list(range(6))
    assert sorted(p.name for p in output.iterdir()) == ["part-00000.done.json", "part-00000.jsonl"]


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """Writing more than so many bytes into a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    bytecode = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # its files would be cut, and spoil later imports
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = bytecode


@pytest.mark.parametrize("shards", [2, 100])
def test_a_disk_that_is_full_and_then_is_not(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], shards: int
) -> None:
    """In the shards, and, where these are small, in the manifest."""
    output = tmp_path / "out"
    right = tmp_path / "right"
    assert annotate(corpus, right) == 0
    sizes = {p.name: p.stat().st_size for p in right.iterdir()}
    limit = 100 if shards == 2 else sizes["manifest.json"] - 1
    assert max(v for name, v in sizes.items() if name != "manifest.json") < sizes["manifest.json"]
    capsys.readouterr()
    with no_file_over(limit):
        code = annotate(corpus, output)
    line = said(capsys)
    assert code == 1
    assert "File too large" in line
    assert ("3 of 3 shards failed" in line) == (shards == 2)
    assert not list(output.glob("*.part"))
    assert annotate(corpus, output) == 0
    assert contents(output) == contents(right)


def test_ctrl_c_leaves_what_is_done(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = RuleAnnotator.annotate_batch

    def stopped(self: RuleAnnotator, records: Any) -> Any:
        if records[0]["id"] == 4:
            raise KeyboardInterrupt
        return judge(self, records)

    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(RuleAnnotator, "annotate_batch", stopped)
        assert annotate(corpus, output) == 130
    assert "run the same command again" in said(capsys)
    names = [f"part-0000{i}.{kind}" for i in (0, 1) for kind in ("done.json", "jsonl")]
    assert sorted(p.name for p in output.iterdir()) == names
    assert annotate(corpus, output) == 0
    assert capsys.readouterr().err.count("mitigate: shard ") == 1
    assert ids(output) == list(range(6))
