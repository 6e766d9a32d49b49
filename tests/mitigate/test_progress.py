"""Progress of long work where nobody looks at a terminal."""

from mitigate import io as module
from mitigate.io import counted, progress


def test_a_log_gets_a_line_every_tenth_of_long_work(capsys, monkeypatch):
    clock = iter(range(0, 10_000, 4))  # four seconds between two looks at it
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with progress("judging", 2000, done=100) as tell:
        for done in range(200, 2001, 100):
            tell(done, "half a note")
    lines = capsys.readouterr().err.splitlines()
    # A tenth is 200. Looks at 4 s and 8 s are too early, that at 12 s (400) is told; 500 is no new tenth; and so on.
    assert lines == [f"judging: {n} of 2,000 half a note" for n in ("400", "800", "1,200", "1,600", "2,000")]


def test_short_work_says_nothing_and_no_work_is_no_error(capsys):
    with progress("judging", 3) as tell:
        for done in (1, 2, 3):
            tell(done)
    with progress("judging", 0) as tell:
        tell(0)
    assert capsys.readouterr().err == ""


def test_one_is_no_plural():
    assert [counted(n, "more line") for n in (0, 1, 2, 2000)] == [
        "0 more lines", "1 more line", "2 more lines", "2,000 more lines"
    ]  # fmt: skip
    assert [counted(n, "record is", "records are") for n in (1, 2)] == ["1 record is", "2 records are"]
