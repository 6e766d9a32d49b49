"""`mitigate annotate` stopped on the way: SIGKILL, Ctrl-C, a second run, a full disk."""

import signal
import subprocess
import time
from pathlib import Path

from tests.helpers.annotate_program import mitigate, read, start, write_records


def wait_for_lines(path: Path, n: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < n:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_kill_9_and_start_again_equals_an_uninterrupted_run(tmp_path):
    source, output = write_records(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"
    source.write_text(source.read_text() + "bad\n")
    whole = tmp_path / "whole.jsonl"
    assert mitigate("--input", source, "--output", whole).returncode == 3
    files: list[str | Path] = ["--input", source, "--output", output, "--chunk-size", "2"]
    for lines in (4, 16, 30):
        process = start(*files, env={"STANDIN_DELAY": "0.05", "STANDIN_HOLD": str(lines + 8)})
        wait_for_lines(output, lines, process)
        process.send_signal(signal.SIGKILL)
        assert process.wait(timeout=120) == -signal.SIGKILL
        process.communicate()
        assert whole.read_bytes().startswith(output.read_bytes())
        assert output.read_bytes().count(b"\n") < 40
        with output.open("ab") as file:  # what a kill in the middle of a write leaves
            file.write(b'{"id": 39, "refer')
    done = mitigate(*files)
    assert done.returncode == 3, done.stderr
    assert output.read_bytes() == whole.read_bytes()
    assert read(tmp_path / "out.jsonl.rejected.jsonl") == read(tmp_path / "whole.jsonl.rejected.jsonl")
    assert not list(tmp_path.glob("*.part"))


def test_ctrl_c_exits_130_says_how_to_continue_and_keeps_what_is_done(tmp_path):
    source, output = write_records(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl"
    files: list[str | Path] = ["--input", source, "--output", output, "--chunk-size", "2"]
    process = start(*files, env={"STANDIN_HOLD": "6"})
    wait_for_lines(output, 4, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted; run the same command again to continue" in err
    assert "Traceback" not in err
    rows = read(output)
    assert 4 <= len(rows) <= 6
    assert mitigate(*files).returncode == 0
    assert [row["id"] for row in read(output)] == list(range(40))
