"""Shards of a corpus: every line once, in order, however it is cut; files that a worker may write twice."""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from mitigate.errors import UsageError
from mitigate.jsonl import check_annotation_input, read_lines
from mitigate.shard_results import done_shards, held, parquet_bytes, work
from mitigate.shards import find_inputs, plan, read_shard


def record(i: int) -> dict[str, Any]:
    return {
        "id": i,
        "reference": f"The {i}th bridge opened in 1931. 石桥。",
        "answer": f"It opened in {1900 + i}.",
    }


def annotate(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Counts letters: what a result is does not matter here."""
    return [{**r, "sentences": [{"label": "supported", "n": len(r["answer"])}]} for r in records]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Three files: with a byte order mark and blank and bad lines; without a last newline; Parquet."""
    import pyarrow as pa
    from pyarrow import parquet

    folder = tmp_path / "corpus"
    (folder / "deep").mkdir(parents=True)
    lines = [json.dumps(record(i), ensure_ascii=False) for i in range(7)]
    lines[2:2] = ["", "{broken", "   "]
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + "\n".join(lines).encode() + b"\n")
    (folder / "deep" / "b.jsonl").write_text(
        "\n".join(json.dumps(record(i)) for i in (7, 8)), encoding="utf-8"
    )
    rows = [record(i) for i in range(9, 20)] + [{"id": 99, "reference": "x", "answer": "  "}]
    parquet.write_table(pa.Table.from_pylist(rows), folder / "deep" / "c.parquet", row_group_size=4)
    (folder / "notes.txt").write_text("not read")
    return folder


def lines_of(place: str, rows: int) -> list[Any]:
    return [
        line for shard in plan(find_inputs(place), rows) for line in read_shard(shard, check_annotation_input)
    ]


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 1000])
def test_every_line_once_in_order(corpus: Path, rows: int) -> None:
    found = lines_of(str(corpus), rows)
    assert [line.record["id"] for line in found if line.record] == list(range(20))
    bad = [line for line in found if line.record is None]
    assert [(line.number, line.problems[0].field) for line in bad] == [(4, ""), (12, "answer")]
    shards = plan(find_inputs(str(corpus)), rows)
    assert [s.number for s in shards] == list(range(len(shards)))
    for shard in shards:
        assert len(list(read_shard(shard, check_annotation_input))) <= rows


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80) | st.text('{}"\n\r \x00a', max_size=40).map(str.encode), st.integers(1, 4))
def test_cuts_change_nothing(tmp_path_factory: pytest.TempPathFactory, data: bytes, rows: int) -> None:
    path = tmp_path_factory.mktemp("bytes") / "x.jsonl"
    path.write_bytes(data)
    assert lines_of(str(path), rows) == list(read_lines(path, check_annotation_input))


def test_places(corpus: Path) -> None:
    a, b, c = (f"file://{corpus}/{name}" for name in ("a.jsonl", "deep/b.jsonl", "deep/c.parquet"))
    assert find_inputs(str(corpus)) == [a, b, c]
    assert find_inputs(f"file://{corpus}") == [a, b, c]
    assert find_inputs(f"{corpus}/**/*.jsonl") == [a, b]
    assert find_inputs(str(corpus / "a.jsonl")) == [a]
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/x.jsonl", json.dumps(record(1)).encode())
    assert [line.record["id"] for line in lines_of("memory://bucket/*.jsonl", 10)] == [1]
    for wrong in ("nothing", "*.none", "notes.txt"):
        with pytest.raises(UsageError, match=r"--input .*"):
            find_inputs(str(corpus / wrong))
    with pytest.raises(UsageError, match="--input nosuch://x"):
        find_inputs("nosuch://x")


@pytest.mark.filterwarnings("ignore")
def test_a_data_set_of_the_hub_s_form(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder is loaded as a hub id is."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (corpus / "deep" / "b.jsonl").unlink()
    found = lines_of(f"hub:{corpus / 'deep'}:train", 5)
    assert [line.record["id"] for line in found if line.record] == list(range(9, 20))


def test_what_a_worker_leaves(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    shards = plan(find_inputs(str(corpus)), 6)
    marks = {"stamp": "s", "fingerprint": "f"}
    check = check_annotation_input
    first = [work(shard, annotate, str(output), 2, marks, check=check) for shard in shards]
    before = {p.name: p.read_bytes() for p in output.iterdir()}
    (output / "part-00000.jsonl.0123abcd.part").write_text("half a line of a worker that died")
    again = [
        work(shard, annotate, f"file://{output}", 4, marks, check=check) for shard in shards
    ]  # other chunks, same results
    assert again == first == list(done_shards(str(output), "s").values())
    with pytest.raises(UsageError, match="holds shards of another input"):
        done_shards(str(output), "t")
    with held(str(output)):
        pass
    assert {p.name: p.read_bytes() for p in output.iterdir()} == before
    rows = [
        json.loads(line)
        for p in sorted(output.glob("part-?????.jsonl"))
        for line in p.read_text().splitlines()
    ]
    assert [row["id"] for row in rows] == list(range(20))
    assert sum(done["records"] for done in first) == 20
    assert sum(done["rejected"] for done in first) == 2
    for done in first:
        data = (output / f"part-{done['number']:05d}.jsonl").read_bytes()
        assert hashlib.sha256(data).hexdigest() == done["sha256"]
    bad = [json.loads(p.read_text()) for p in sorted(output.glob("*.rejected.jsonl"))]
    assert [(row["line"], row["file"].rsplit("/", 1)[-1]) for row in bad] == [
        (4, "a.jsonl"),
        (12, "c.parquet"),
    ]


def test_output_at_an_address(corpus: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.makedirs("/annotated", exist_ok=True)
    (shard,) = plan(find_inputs(str(corpus / "deep" / "b.jsonl")), 10)
    done = work(shard, annotate, "memory://annotated", 4, {"stamp": "s"}, check=check_annotation_input)
    assert done["records"] == 2
    assert sorted(memory.ls("/annotated", detail=False)) == [
        "/annotated/part-00000.done.json",
        "/annotated/part-00000.jsonl",
    ]


class FullDisk(MemoryFileSystem):
    """Somewhere else, with room for so many bytes; files are moved by copying, as on an object store."""

    protocol = "full"
    store: ClassVar[dict[str, Any]] = {}
    room = 0

    def used(self) -> int:
        return sum(len(file.getvalue()) for file in self.store.values())

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        file = super()._open(path, mode, **options)
        if "w" in mode:
            write = file.write

            def bounded(data: bytes) -> int:
                if self.used() + len(data) > self.room:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return int(write(data))

            file.write = bounded
        return file

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        if self.used() + self.size(path1) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().cp_file(path1, path2, **options)


@pytest.mark.parametrize(("bad", "left"), [("{broken", {0, 2}), ("{broken" * 200, {0, 1})])
def test_a_full_disk_elsewhere_leaves_no_unfinished_files(tmp_path: Path, bad: str, left: set[int]) -> None:
    """Whether it is full at a write or at a move: of the results, of the bad lines, or of the mark behind both."""
    fsspec.register_implementation("full", FullDisk, clobber=True)
    source = tmp_path / "x.jsonl"
    source.write_text("".join(json.dumps(record(i)) + "\n" for i in range(4)) + bad)
    (shard,) = plan(find_inputs(str(source)), 10)
    whole = ["part-00000.done.json", "part-00000.jsonl", "part-00000.rejected.jsonl"]
    found = set()
    for room in range(0, 5000, 20):
        FullDisk.store.clear()
        FullDisk.room = room
        try:
            work(shard, annotate, "full://out", 2, {"stamp": "s"}, check=check_annotation_input)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        names = sorted(path.rsplit("/", 1)[-1] for path in FullDisk.store)
        assert [name for name in names if name not in whole] == []
        if names == whole:
            break
        found.add(len(names))
    assert found == left
    assert names == whole


def test_values_that_json_cannot_hold_are_rejected(tmp_path: Path) -> None:
    import datetime

    import pyarrow as pa
    from pyarrow import parquet

    rows = [
        {**record(1), "when": datetime.date(2020, 1, 1), "x": 1.0},
        {**record(2), "when": None, "x": float("nan")},
    ]
    parquet.write_table(
        pa.Table.from_pylist([*rows, {**record(3), "when": None, "x": 2.0}]), tmp_path / "x.parquet"
    )
    one, two, three = lines_of(str(tmp_path), 10)
    assert "JSON can hold" in str(one.problems[0])
    assert "JSON can hold" in str(two.problems[0])
    assert three.record is not None
    assert three.record["x"] == 2.0


def test_parquet_rows_are_the_rows(tmp_path: Path) -> None:
    """Texts, numbers and truth values as they are; the rest as JSON text, in every part."""
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = [
        {"id": 1, "answer": "ä", "hallucination_rate": None, "sentences": [{"n": 1}], "x": 1, "big": 2**70},
        {"id": 2, "answer": "b\ud800", "hallucination_rate": None, "sentences": [], "x": "1", "good": True},
    ]
    (tmp_path / "x.parquet").write_bytes(parquet_bytes(rows))
    table = pq.read_table(tmp_path / "x.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {"id": "int64", "answer": "string", "hallucination_rate": "double", "sentences": "string",
                     "x": "string", "big": "string", "good": "bool"}  # fmt: skip
    one, two = table.to_pylist()
    assert (one["id"], one["x"], two["x"], one["big"]) == (1, "1", '"1"', str(2**70))
    assert [json.loads(row["sentences"]) for row in (one, two)] == [[{"n": 1}], []]
    assert (one["good"], two["good"], two["big"]) == (None, True, None)
    assert [json.loads(row["answer"]) for row in (one, two)] == [
        "ä",
        "b\ud800",
    ]  # half a character: JSON text
    assert parquet_bytes(rows[:1]) == parquet_bytes(rows[:1])
    assert parquet_bytes([])


def test_a_shard_of_a_parquet_file_reads_its_row_groups_only(tmp_path: Path) -> None:
    """Cut anywhere, over the borders of row groups."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(
        pa.Table.from_pylist([record(i) for i in range(11)]), tmp_path / "x.parquet", row_group_size=3
    )
    for rows in (1, 2, 4, 7, 20):
        found = [line.record["id"] for line in lines_of(str(tmp_path / "x.parquet"), rows) if line.record]
        assert found == list(range(11))
    (tmp_path / "y.parquet").write_bytes(b"not Parquet")
    with pytest.raises(UsageError, match=r"--input .*y\.parquet"):
        lines_of(str(tmp_path / "y.parquet"), 3)


@pytest.mark.filterwarnings("ignore")
def test_names_of_data_sets(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (corpus / "deep" / "b.jsonl").unlink()
    name = f"hub:{corpus / 'deep'}"
    assert len(lines_of(name, 5)) == len(lines_of(f"{name}:default:train", 5)) == 12
    assert len(lines_of(f"{name}:train[:4]", 5)) == 4  # a slice, as `datasets` reads it
    for wrong in (f"{name}:nosplit", "hub:", f"{name}:a:b:c", f"hub:{tmp_path / 'nothing'}:train"):
        with pytest.raises(UsageError, match="--input hub:"):
            lines_of(wrong, 5)
