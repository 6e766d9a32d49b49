"""Jobs from JSON Lines to JSON Lines that continue after any interruption."""

import base64
import json
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from mitigate.io import OutputError, Problem, UsageError, open_job, rejected_path, shown


def double(records):
    return [{**record, "double": 2 * record["n"]} for record in records]


def same_n(record, written):
    return None if record["n"] == written.get("n") else "'n' differs"


def check_n(record):
    return [] if isinstance(record.get("n"), int) else [Problem("n", shown(record.get("n")), "a whole number")]


def opened(source, output, **options):
    return open_job(source, output, check=check_n, matches=same_n, **options)


def write_input(path, n=10):
    path.write_text("".join(f'{{"n": {i}}}\n' for i in range(n)))
    return path


def run_job(source, output, *, chunk_size=3, overwrite=False):
    """Run the whole job; returns the sizes of the chunks that were processed."""
    chunks = []

    def process(records):
        chunks.append(len(records))
        return double(records)

    with opened(source, output, overwrite=overwrite) as job:
        job.run(process, chunk_size=chunk_size)
    return chunks


@pytest.fixture
def source(tmp_path):
    return write_input(tmp_path / "in.jsonl")


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out.jsonl"


EXPECTED = "".join(f'{{"n": {i}, "double": {2 * i}}}\n' for i in range(10))


def test_results_are_in_input_order_and_a_second_run_does_nothing(tmp_path):
    source, output = write_input(tmp_path / "in.jsonl"), tmp_path / "deep" / "er" / "out.jsonl"
    assert run_job(source, output) == [3, 3, 3, 1]
    assert output.read_text() == EXPECTED
    assert run_job(source, output) == []
    assert output.read_text() == EXPECTED
    write_input(source, 13)  # chunks of three start at 0, 3, 6, 9 as in one run over all
    assert run_job(source, output) == [2, 1]
    assert [p.name for p in output.parent.iterdir()] == ["out.jsonl"]


def test_a_job_continues_from_every_byte_it_can_be_killed_at(source, output):
    whole = EXPECTED.encode()
    for size in range(len(whole) + 1):
        output.write_bytes(whole[:size])
        done = whole[:size].count(b"\n")
        assert sum(run_job(source, output, chunk_size=100)) == 10 - done
        assert output.read_bytes() == whole


def test_done_again_by_whole_chunks_whatever_a_killed_run_left(tmp_path, source, output):
    part = tmp_path / "out.jsonl.part"
    run_job(source, output)
    wrong = output.read_text().replace('"double": 8}', '"double": 0}')
    output.write_text(wrong)
    seen = []

    def process(records):
        seen.append([record["n"] for record in records])
        return double(records)

    def again(row):
        return bool(row["double"] != 2 * row["n"])

    def fails(records):
        raise ConnectionError("engine gone")

    with opened(source, output) as job:
        with pytest.raises(ConnectionError, match="engine gone"):
            job.redo(fails, again, chunk_size=3)
        with pytest.raises(RuntimeError, match="3 records went in and 2 results came out"):
            job.redo(lambda records: double(records)[1:], again, chunk_size=3)
        assert output.read_text() == wrong
        assert not part.exists()
        part.write_text("left by a killed run " * 100)
        job.redo(process, again, chunk_size=3)
    assert seen == [[3, 4, 5]]
    assert output.read_text() == EXPECTED
    assert not part.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"n": 5, "double": 10}\n', "its line 1 is not a result of line 1 of .*: 'n' differs"),
        ('{"n": 0}\n{"n": 7}\n', "its line 2 is not a result of line 2 of .*: 'n' differs"),
        ("my diary\n", "its line 1 is not a result of line 1 of .*: it is not a record"),
        ("my diary without a line feed", "it is not a record"),
        ('{"n": 3}', "'n' differs"),  # a whole object of someone else, only without its line feed
        (EXPECTED + '{"n": 10}\n', "it holds more than the 10 valid records"),
        (EXPECTED + '{"n', "it holds more than the 10 valid records"),
    ],
)
def test_an_output_of_something_else_is_refused_and_left_alone(content, reason, source, output):
    output.write_text(content)
    with pytest.raises(UsageError, match=reason) as error:
        run_job(source, output)
    assert "choose another --output, or start again with --overwrite" in str(error.value)
    assert output.read_text() == content
    with opened(source, output, overwrite=True) as job:  # nothing changes before the job runs
        assert (job.done, job.valid) == (0, 10)
    assert output.read_text() == content
    run_job(source, output, overwrite=True)
    assert output.read_text() == EXPECTED


def test_bad_lines_are_kept_apart_with_their_facts(source, output):
    source.write_bytes(b'{"n": 0}\n{"n": "one"}\n\n{"n": 1}\n{"n": \xff}\n{"n": 2')
    with opened(source, output) as job:
        assert (job.lines, job.valid, job.rejected) == (5, 2, 3)
        assert [line.number for line in job.first_rejected] == [2, 5, 6]
        assert rejected_path(output).exists()  # before anything is processed
        job.run(double, chunk_size=2)
    assert [json.loads(line)["n"] for line in output.read_text().splitlines()] == [0, 1]
    rejected = [json.loads(line) for line in rejected_path(output).read_text().splitlines()]
    assert rejected[0] == {
        "file": str(source),
        "line": 2,
        "problems": [{"field": "n", "value": '"one"', "expected": "a whole number"}],
        "raw": '{"n": "one"}',
    }
    assert rejected[1]["line"] == 5
    assert base64.b64decode(rejected[1]["raw_base64"]) == b'{"n": \xff}'
    assert rejected[2]["raw"] == '{"n": 2'
    assert "raw_base64" not in rejected[2]


def test_the_rejected_file_is_the_same_after_every_run_and_goes_when_all_is_mended(source, output):
    source.write_text('{"n": 0}\nbad\n{"n": 2}\n')
    run_job(source, output)
    first = rejected_path(output).read_bytes()
    run_job(source, output)
    assert rejected_path(output).read_bytes() == first
    source.write_text('{"n": 0}\n{"n": 2}\n')
    run_job(source, output)
    assert not rejected_path(output).exists()


def test_only_one_run_at_a_time(source, output):
    with opened(source, output), pytest.raises(UsageError, match="is being written by another run"):
        opened(source, output)
    run_job(source, output)  # the lock went with its job


def test_input_and_outputs_must_be_different_files(tmp_path, source):
    link = tmp_path / "link.jsonl"
    link.hardlink_to(source)
    rejected = write_input(tmp_path / "out.jsonl.rejected.jsonl")
    for one, output in ((source, source), (source, link), (rejected, tmp_path / "out.jsonl")):
        with pytest.raises(UsageError, match="is the input and would be written over"):
            open_job(one, output, check=check_n, matches=same_n)
    assert source.read_text() == rejected.read_text() == write_input(tmp_path / "again.jsonl").read_text()


def test_paths_that_cannot_work_are_usage_errors(tmp_path, source):
    for output, message in (
        (tmp_path, "it is a folder; name a file"),
        (source / "out.jsonl", "cannot make the folder .*: (File exists|Not a directory)"),
        (Path("/dev/null"), "it is not a regular file"),
    ):
        with pytest.raises(UsageError, match=message):
            opened(source, output)
    for wrong, message in ((tmp_path / "none", "no such file"), (tmp_path, "not a regular file")):
        with pytest.raises(UsageError, match=message):
            open_job(wrong, tmp_path / "out.jsonl", check=check_n, matches=same_n)


def test_a_full_disk_is_told_and_the_job_continues_later(source, output):
    """The limit on file size stands in for the full disk: write() fails in the middle of a chunk either way."""
    limit = EXPECTED.index('{"n": 7') + 5  # in the third chunk of three
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with opened(source, output) as job:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            with pytest.raises(OutputError, match="its 6 records are kept: mend that and run the same command again"):
                job.run(double, chunk_size=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert output.read_text() == "".join(EXPECTED.splitlines(keepends=True)[:6])
    assert run_job(source, output) == [3, 1]
    assert output.read_text() == EXPECTED


def test_kill_9_leaves_no_lock_behind(source, output):
    program = (
        "import os, signal, sys; from pathlib import Path; from tests.mitigate import test_jobs as t;"
        "job = t.open_job(Path(sys.argv[1]), Path(sys.argv[2]), check=t.check_n, matches=t.same_n);"
        "job.run(lambda rs: t.double(rs) if rs[0]['n'] < 4 else os.kill(os.getpid(), signal.SIGKILL), chunk_size=2)"
    )
    root = Path(__file__).parents[2]
    killed = subprocess.run([sys.executable, "-c", program, source, output], cwd=root, check=False)
    assert killed.returncode == -9
    assert sum(run_job(source, output)) == 6
    assert output.read_text() == EXPECTED


def test_memory_does_not_grow_with_the_file(source, output):
    text = "x" * 10_000
    with source.open("w") as file:
        file.writelines(json.dumps({"n": i, "text": text}) + "\n" for i in range(1_000))  # 10 MB
    tracemalloc.start()
    run_job(source, output, chunk_size=10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000  # ten records of 10 kB several times over, not 10 MB
    assert output.read_bytes().count(b"\n") == 1_000
