"""Checked lines, progress, whole files, and jobs that continue after any interruption."""

import base64
import json
import os
import re
import resource
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.usage import METER
from mitigate import io
from tests.helpers.jsonl import read_rows


def no_check(record: io.Record) -> list[io.Problem]:
    return []


def problems_of(line: bytes | str) -> tuple[io.Problem, ...]:
    raw = line.encode() if isinstance(line, str) else line
    record, problems = io.parse_line(raw, io.check_annotation_input)
    assert (record is None) == bool(problems)
    return problems


@pytest.mark.parametrize(("line", "field", "value", "expected"), [
    ('{"reference": "r", "answer": ', "", "answer", "one JSON object a line"),
    ("not json", "", '"not json"', "one JSON object a line (Expecting value, column 1)"),
    ("null", "", '"null"', "a JSON object"),
    ('{"reference": "r"}', "answer", None, "a string with text in it"),
    ('{"reference": "r", "answer": ""}', "answer", '""', "a string with text in it"),
    ('{"reference": "r", "answer": " \\n"}', "answer", '" \\n"', "a string with text in it"),
    ('{"answer": "a"}', "reference", None, "a string"),
    ('{"reference": null, "answer": "a"}', "reference", "null", "a string"),
    ('{"reference": "r", "answer": "a", "question": 1}', "question", "1", "a string"),
    ('{"reference": "r", "answer": "a", "language": ""}', "language", '""', "a string with text in it"),
    ('{"reference": "r", "answer": "a", "id": true}', "id", "true", "a string or a whole number"),
    ('{"reference": "r", "answer": "a", "answer": "b"}', "answer", "the same key twice", "each key once"),
    ('{"reference": "r", "answer": "a", "x": {"k": 1, "k": 2}}', "k", "the same key twice", "each key once"),
    ('{"reference": "r", "answer": "a", "x": NaN}', "", "NaN", "finite numbers"),
    ('{"reference": "r", "answer": "a", "x": -Infinity}', "", "-Infinity", "finite numbers"),
    ('{"reference": "r", "answer": "a", "x": 1e999}', "", "1e999", "finite numbers"),
    ('{"a": ' * 101 + "1" + "}" * 101, "", '{\\"a\\": ', "at most 100 levels of lists and objects"),
    ("[" * 50_000, "", '"[[[[', "one JSON object a line (maximum recursion depth"),
    *(('{"x": ' + "9" * digits + "}", "", "9999", "finite numbers, below 1.8e308") for digits in (400, 5000)),
])  # fmt: skip
def test_bad_lines_say_field_value_and_expectation(line, field, value, expected):
    (problem,) = problems_of(line)
    assert problem.field == field
    assert problem.expected.startswith(expected)
    assert problem.value is None if value is None else value in (problem.value or "")
    assert len(problem.value or "") <= io.MAX_SHOWN


def test_every_problem_and_the_bad_byte_are_named() -> None:
    assert [p.field for p in problems_of('{"question": 1, "id": 2.5}')] == ["reference", "answer", "question", "id"]
    (problem,) = problems_of(b'{"answer": "caf\xe9"}')
    # {"answer": "caf is 15 bytes long, so the bad one is the 16th
    assert problem.expected == "UTF-8 (byte 16 of the line is not)"
    assert "caf" in (problem.value or "")


def test_good_lines_come_back_as_they_are() -> None:
    good = {"reference": "It is red.", "answer": "It is red."}
    some, none = {"id": "x", "question": "", "language": "zh"}, {"question": None, "language": None, "id": None}
    more = {"sentences": [], "anything": {"goes": [1, 2.5, None, True]}}, {"deep": json.loads("[" * 99 + "]" * 99)}
    for extra in ({}, {"reference": ""}, {"id": 7}, some, none, *more):
        record = {**good, **extra}
        assert io.parse_line(io.dump_line(record), io.check_annotation_input) == (record, ())


def test_files_are_read_by_line_feeds_alone(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    # a byte order mark, Windows line ends, blank lines, U+2028 within a line, no line feed at the end
    path.write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n\n  \n{"n": "\xe2\x80\xa8"}\nbad\n{"n": 4}')
    lines = list(io.read_lines(path, no_check))
    assert [line.number for line in lines] == [1, 4, 5, 6]
    assert [line.record for line in lines] == [{"n": 1}, {"n": "\u2028"}, None, {"n": 4}]
    with pytest.raises(io.UsageError, match=r"cannot read .*none\.jsonl: No such file"):
        list(io.read_lines(tmp_path / "none.jsonl", no_check))


def test_shown_is_short_and_cannot_steer_a_terminal() -> None:
    text = io.shown("\x1b[2J\u202e" + "x" * 1_000)
    assert len(text) == io.MAX_SHOWN
    assert text.endswith("…")
    assert text.isprintable()
    assert io.shown({"a": "\u202e"}) == '{"a": "\\u202e"}'


ANY = st.text(st.characters(exclude_categories=[]))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(ANY, inner), max_leaves=10)


@given(st.dictionaries(ANY, VALUES))
def test_whatever_json_holds_survives_a_line(record: io.Record) -> None:
    line = io.dump_line(record)
    line.decode("utf-8")
    assert line.count(b"\n") == 1
    assert io.parse_line(line, no_check) == (record, ())


def test_what_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        io.dump_line({"score": float("nan")})
    with pytest.raises(io.OutputError, match="cannot write"):
        io.write_bytes(Path("m" * 252), b"{}")  # too long a name with what is added until it is whole


def test_log_gets_a_line_every_tenth_and_plurals(capsys, monkeypatch):
    clock = 0.0
    monkeypatch.setattr(io.time, "monotonic", lambda: clock)
    with io.progress("judging", 2000, done=100) as tell:
        for done in range(200, 2001, 100):
            clock += 4
            tell(done, "half a note")
        lines = capsys.readouterr().err.splitlines()
        # A tenth is 200, and lines are 10 seconds apart: 400 comes at 12 s, 700 (a new tenth) at 24 s; and so on.
        at = ("400", "700", "1,000", "1,300", "1,600", "1,900")
        assert lines == [f"judging: {n} of 2,000, half a note" for n in at]
    METER.begin()
    METER.count(1, 1, 0.1)  # of what was done before
    with io.progress("judging", 3) as tell:
        tell(1)
        with io.progress("another", 3):
            for seconds in (59, 1, 59, 1):  # one long document: a line each minute tells the replies so far
                clock += seconds
                METER.count(1, 1, 0.1)
        METER.count(1, 1, 0.1)
    told = [*(f"another: 0 of 3, {n} replies" for n in (2, 4)), "judging: 1 of 3, 5 replies"]
    assert capsys.readouterr().err.splitlines() == told
    clock += 60
    METER.count(1, 1, 0.1)  # nobody listens any more
    with io.progress("judging", 3) as tell:  # short work says nothing
        for done in (1, 2, 3):
            tell(done)
    with io.progress("judging", 0) as tell:
        tell(0)
    assert capsys.readouterr().err == ""
    assert [io.counted(n, "line") for n in (0, 1, 2, 2000)] == ["0 lines", "1 line", "2 lines", "2,000 lines"]
    assert [io.counted(n, "record is", "records are") for n in (1, 2)] == ["1 record is", "2 records are"]


def double(records):
    return [{**record, "double": 2 * record["n"]} for record in records]


def opened(source, output, **options):
    def check(record):
        n = record.get("n")
        return [] if isinstance(n, int) else [io.Problem("n", io.shown(n), "a whole number")]

    def matches(record, written):
        return None if record["n"] == written.get("n") else "'n' differs"

    return io.open_job(source, output, check=check, matches=matches, **options)


def write_input(path, n=10):
    path.write_text("".join(f'{{"n": {i}}}\n' for i in range(n)))
    return path


def run_job(source, output, *, chunk_size=3, overwrite=False):
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


def test_results_keep_order_and_are_made_once(tmp_path, source):
    output = tmp_path / "deep" / "er" / "out.jsonl"
    assert run_job(source, output) == [3, 3, 3, 1]
    assert output.read_text() == EXPECTED
    assert run_job(source, output) == []
    assert output.read_text() == EXPECTED
    with opened(source, output, overwrite=True) as job:
        write_input(source, 12)  # what comes in the meantime waits for the next run
        job.run(double, chunk_size=3)
    assert output.read_text() == EXPECTED
    write_input(source, 13)  # chunks of three start at 0, 3, 6, 9 as in one run over all
    assert run_job(source, output) == [2, 1]
    assert [p.name for p in output.parent.iterdir()] == ["out.jsonl"]


def test_job_continues_from_every_byte_of_a_kill(source, output):
    whole = EXPECTED.encode()
    for size in range(len(whole) + 1):
        output.write_bytes(whole[:size])
        done = whole[:size].count(b"\n")
        assert sum(run_job(source, output, chunk_size=100)) == 10 - done
        assert output.read_bytes() == whole


def test_redo_replaces_whole_chunks_or_nothing(tmp_path, source, output):
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


@pytest.mark.parametrize(("content", "reason"), [
    ('{"n": 5, "double": 10}\n', "its line 1 is not a result of line 1 of .*: 'n' differs"),
    ('{"n": 0}\n{"n": 7}\n', "its line 2 is not a result of line 2 of .*: 'n' differs"),
    ("my diary\n", "its line 1 is not a result of line 1 of .*: it is not a record"),
    ("my diary without a line feed", "it is not a record"),
    ('{"n": 3}', "'n' differs"),  # a whole object of someone else, only without its line feed
    (EXPECTED + '{"n": 10}\n', "it holds more than the 10 valid records"),
    (EXPECTED + '{"n', "it holds more than the 10 valid records"),
])  # fmt: skip
def test_another_output_is_refused_and_left_alone(content, reason, source, output):
    output.write_text(content)
    with pytest.raises(io.UsageError, match=reason) as error:
        run_job(source, output)
    assert "choose another --output, or start again with --overwrite" in str(error.value)
    assert output.read_text() == content
    with opened(source, output, overwrite=True) as job:  # nothing changes before the job runs
        assert (job.done, job.valid) == (0, 10)
    assert output.read_text() == content
    run_job(source, output, overwrite=True)
    assert output.read_text() == EXPECTED


def test_bad_lines_go_to_the_rejected_file(source, output, capsys):
    source.write_bytes(b'{"n": 0}\n{"n": "one"}\n\n{"n": 1}\n{"n": \xff}\n{"n": 2')
    with opened(source, output) as job:
        assert (job.lines, job.valid, job.rejected) == (5, 2, 3)
        assert re.findall(rf"{source}:(\d+): .*line rejected", capsys.readouterr().err) == ["2", "5", "6"]
        assert io.rejected_path(output).exists()  # before anything is processed
        job.run(double, chunk_size=2)
    assert [row["n"] for row in read_rows(output)] == [0, 1]
    rejected = read_rows(io.rejected_path(output))
    problem = {"field": "n", "value": '"one"', "expected": "a whole number"}
    assert rejected[0] == {"file": str(source), "line": 2, "problems": [problem], "raw": '{"n": "one"}'}
    assert rejected[1]["line"] == 5
    assert base64.b64decode(rejected[1]["raw_base64"]) == b'{"n": \xff}'
    assert rejected[2]["raw"] == '{"n": 2'
    assert "raw_base64" not in rejected[2]
    first = io.rejected_path(output).read_bytes()
    run_job(source, output)
    assert io.rejected_path(output).read_bytes() == first  # the same after every run
    source.write_text('{"n": 0}\n{"n": 1}\n')
    run_job(source, output)
    assert not io.rejected_path(output).exists()  # no line is bad any more


def test_input_and_outputs_must_be_different_files(tmp_path, source):
    link = tmp_path / "link.jsonl"
    link.hardlink_to(source)
    rejected = write_input(tmp_path / "out.jsonl.rejected.jsonl")
    for one, output in ((source, source), (source, link), (rejected, tmp_path / "out.jsonl")):
        with pytest.raises(io.UsageError, match="is the input and would be written over"):
            run_job(one, output)
    assert source.read_text() == rejected.read_text() == write_input(tmp_path / "again.jsonl").read_text()


def test_only_regular_files_are_replaced(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "page.html")
    io.write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "page.html").read_bytes() == b"new"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(io.UsageError, match="pipe: it is not a regular file; name a file"):
        io.write_bytes(tmp_path / "pipe", b"new")
    for named in ([Path("-")], tmp_path / "out"), ([tmp_path / "link"], Path("-")):
        with pytest.raises(io.UsageError, match="expected a file, got -: a second start reads both again"):
            io.check_paths(*named)


def test_job_continues_after_a_full_disk(source, output):
    """The limit on file size stands in for the full disk: write() fails in the middle of a chunk either way."""
    limit = EXPECTED.index('{"n": 7') + 5  # in the third chunk of three
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with opened(source, output) as job:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
            with pytest.raises(io.OutputError, match="its 6 records are kept: fix that and run the same command"):
                job.run(double, chunk_size=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert output.read_text() == "".join(EXPECTED.splitlines(keepends=True)[:6])
    assert run_job(source, output) == [3, 1]
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
