"""`mitigate evaluate`: tables, JSON, rejected lines, folds, mistakes."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from annotators.evaluation.splits import assign_folds
from mitigate.cli.main import main
from mitigate.labels import read_labelled
from tests.helpers.annotator_server import annotating, correct, correct_object
from tests.helpers.engines_server import error
from tests.helpers.evaluation_cases import FOUR_WAY, OFFICIAL, TWO_WAY, StandIn, labelled_row, linked_data
from tests.helpers.jsonl import read_rows, write_rows


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    annotator = StandIn()
    monkeypatch.setattr("annotators.load_annotator", lambda name, **options: annotator, raising=False)
    return annotator


@pytest.fixture
def killed(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command with chunks of three rows, and kills it in place of the chunk of this number."""
    monkeypatch.setattr("annotators.evaluation.evaluate.CHUNK", 3)
    judge = stand_in.judge

    def run(number: int, *args: object) -> int:
        def judging(sentences: Sequence[Any]) -> list[Any]:
            if len(stand_in.chunks) == number:
                raise KeyboardInterrupt
            return judge(sentences)

        with monkeypatch.context() as patch:
            patch.setattr(stand_in, "judge", judging)
            return _run(*args)

    return run


def _run(*args: object) -> int:
    return main(["evaluate", *map(str, args)])


def test_command_prints_a_table_and_writes_the_figures(tmp_path, stand_in, capsys):
    one, two = write_rows(tmp_path / "one.jsonl", FOUR_WAY), write_rows(tmp_path / "two.jsonl", TWO_WAY)
    output = tmp_path / "out" / "metrics.json"
    assert _run("--input", one, two, "--annotator", "a/b", "--output", output, "--seed", 3) == 0
    captured = capsys.readouterr()
    (line,) = (line for line in captured.out.splitlines() if "│ two " in line)
    assert line.split("│")[3:6] == [f" {'1.000':>7} ", f" {'0.750':>20} ", f" {'1.000':>20} "]
    assert "\x1b" not in captured.out + captured.err
    assert sorted(path.name for path in output.parent.iterdir()) == ["metrics.json"]
    result = json.loads(output.read_text("utf-8"))
    assert result["overall"]["accuracy"] == 0.5
    run = result["run"]
    assert run["annotator"] == {"name": "stand-in", "fingerprint": "f00d"}
    assert run["data"][0] == {"file": str(one), "sha256": hashlib.sha256(one.read_bytes()).hexdigest()}
    assert run["command"] == f"mitigate evaluate --input {one} {two} --annotator a/b --output {output} --seed 3"
    assert set(run["versions"]) == {"python", "torch", "transformers", "hallucination-toolkit"}
    assert (run["fold"], run["seed"], run["limit"]) == ("all", 3, None)
    capsys.readouterr()
    assert _run("--input", one, one, "--annotator", "a/b", "--json") == 0  # a file given twice counts once
    assert json.loads(capsys.readouterr().out)["overall"]["n"] == 6


def test_command_reports_and_keeps_rejected_lines(tmp_path, stand_in, capsys):
    data = write_rows(tmp_path / "one.jsonl", [*FOUR_WAY, {**FOUR_WAY[0], "label": "true"}])
    output = tmp_path / "metrics.json"
    assert _run("--input", data, "--annotator", "a/b", "--output", output) == 3
    error = capsys.readouterr().err
    assert f"{data}:7: label: expected one of supported, contradictory, unverifiable" in error
    assert 'got "true"' in error
    rejected = tmp_path / "metrics.json.rejected.jsonl"
    (kept,) = read_rows(rejected)
    assert (kept["line"], kept["problems"][0]["field"]) == (7, "label")
    result = json.loads(output.read_text("utf-8"))
    assert (result["n_rejected"], result["overall"]["n"]) == (1, 6)
    write_rows(data, FOUR_WAY)
    assert _run("--input", data, "--annotator", "a/b", "--output", output, "--overwrite") == 0
    assert not rejected.exists()


def test_command_says_over_what_it_computed_the_folds(tmp_path, stand_in, capsys):
    files = linked_data(tmp_path)
    for file in files[:2]:
        write_rows(file, [{**row, "id": f"{row['id']} supported 0.5"} for row in read_rows(file)])
    expected = read_labelled([files[0]], (2, 3, 4)).rows
    assert _run("--input", files[0], "--annotator", "a/b", "--fold", "train", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["overall"]["n"] == len(expected)
    assert f"fold train: {len(expected)} of 41 rows; folds computed over 3 files of" in captured.err


def test_a_killed_run_goes_on(tmp_path, stand_in, killed, monkeypatch, capsys):
    """Of three chunks the second is killed, its line half written: the rest alone is judged, with the same result."""
    data = write_rows(tmp_path / "one.jsonl", [*FOUR_WAY, *TWO_WAY])
    args, output = ("--input", data, "--annotator", "a/b", "--output"), tmp_path / "out" / "m.json"
    assert _run(*args, tmp_path / "whole.json") == 0
    assert killed(4, *args, output) == 130
    kept = output.with_name("m.json.judged")
    kept.write_bytes(kept.read_bytes() + b'{"of": "12')
    copied = output.with_name("other.json.judged")
    copied.write_bytes(kept.read_bytes())
    assert _run(*args, output) == 0
    assert stand_in.chunks == [3] * 6
    monkeypatch.setattr(stand_in, "fingerprint", "other")  # what another annotator said is not taken
    assert _run(*args, output.with_name("other.json")) == 0
    assert stand_in.chunks == [3] * 9
    assert sorted(path.name for path in output.parent.iterdir()) == ["m.json", "other.json"]
    whole, parted = (json.loads(path.read_text("utf-8")) for path in (tmp_path / "whole.json", output))
    assert whole.pop("run")["annotator"] == parted.pop("run")["annotator"]
    assert parted == whole
    assert "continuing with the judgements in" in capsys.readouterr().err


def test_a_chunk_with_a_failed_judgement_is_asked_again(tmp_path, stand_in, killed):
    """Of three chunks the first fails in part and the third is killed: only the second is known afterwards."""
    data = write_rows(tmp_path / "one.jsonl", [labelled_row("9 failed", "supported"), *FOUR_WAY, *TWO_WAY[:2]])
    args = ("--input", data, "--annotator", "a/b", "--judgements", tmp_path / "said.jsonl")
    assert killed(2, *args) == 130
    first = [row["id"] for row in stand_in.seen[:3]]
    assert "9 failed" in first
    stand_in.seen.clear()
    stand_in.chunks.clear()
    _run(*args)
    assert (stand_in.chunks, [row["id"] for row in stand_in.seen[:3]]) == ([3, 3], first)
    assert not (tmp_path / "said.jsonl.judged").exists()


def test_a_paid_run_goes_on_and_tells_failures(tmp_path, capsys):
    """The server dies in the middle: the same command asks for the rest only. One that refuses everything is no run."""
    reference = "The bridge opened in 1931."
    rows = [{"sentence": f"It was {n} then.", "reference": reference, "label": "unverifiable"} for n in range(6)]
    data, asked = write_rows(tmp_path / "one.jsonl", rows), []

    def script(body):
        asked.append(body["messages"])
        return error(401, "key expired") if len(asked) == 4 else correct(body)

    with annotating(script) as server:
        name = f"generative:openai:m@{server.url}"
        args = ["--input", data, "--annotator", name, "--prompt", "brief", "--output", tmp_path / "m.json"]
        assert _run(*args, "--concurrency", 1, "--seed", 5) == 1
        assert _run(*args, "--concurrency", 1, "--seed", 5) == 0
    assert len(asked) == 7
    result = json.loads((tmp_path / "m.json").read_text())
    assert result["overall"]["accuracy"] == 1
    assert "--prompt brief" in result["run"]["command"]
    with annotating(lambda body: error(400)) as server:
        assert _run("--input", data, "--annotator", f"generative:openai:m@{server.url}", "--json") == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["overall"]["coverage"] == 0
    assert "the judgement of 100% of the sentences failed" in captured.err


def test_official_protocol_asks_the_test_file_and_scores_replies(tmp_path, capsys):
    turns = [
        [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row["golden"]}]
        for row in OFFICIAL
    ]
    data = write_rows(tmp_path / "test.jsonl", [*turns, [1], {"prompt": "x", "golden": "<No Fact>"}])
    kept = tmp_path / "replies.jsonl"
    official = ("--protocol", "official", "--json")
    with annotating(
        lambda body: next(r["reply"] for r in OFFICIAL if r["prompt"] == body["messages"][0]["content"])
    ) as server:
        name = f"generative:openai:m@{server.url}"
        assert _run("--input", data, "--annotator", name, "--judgements", kept, *official) == 3
    captured = capsys.readouterr()
    first = json.loads(captured.out.splitlines()[-1])
    assert first.pop("asked")["requests"] == 3
    assert first["accuracy"]["all"] == 33.33
    assert f"{data}:4: prompt: expected a string with text in it" in captured.err
    assert f"{data}:5: prompt: expected words of ANAH's prompts" in captured.err
    assert [set(row) for row in read_rows(kept)] == [{"prompt", "reply", "golden"}] * 3
    for more in (("--annotator", name), ("--annotator", name, "--overwrite", "--output", kept)):  # paid for
        assert _run("--input", data, *more, "--judgements", kept, *official) == 2
    said = capsys.readouterr().err
    assert f"{kept} is there already" in said
    assert "--judgements: expected another file than --output" in said
    assert _run("--input", kept, "--replies", *official) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert _run("--input", kept, "--replies", *official[:2]) == 0
    assert "33.33" in capsys.readouterr().out
    assert _run("--input", data, "--replies", *official) == 2
    rows = list(read_rows(kept))
    rows[0]["reply"] = None  # a request that failed is no wrong answer
    write_rows(kept, rows)
    capsys.readouterr()
    assert _run("--input", kept, "--replies", "--max-failed", "0.3", *official) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert (found["n"], found["n_failed"], found["accuracy"]["all"]) == (2, 1, 0.0)
    assert "33% of the sentences failed" in captured.err
    write_rows(kept, [{**row, "reply": None} for row in rows])
    assert _run("--input", kept, "--replies", *official) == 1
    assert "none of 3 rows has a reply" in capsys.readouterr().err


def test_official_table_limit_and_missing_extra(tmp_path, monkeypatch, capsys):
    data = write_rows(tmp_path / "test.jsonl", [{k: row[k] for k in ("prompt", "golden")} for row in OFFICIAL])
    with annotating(lambda body: OFFICIAL[0]["reply"]) as server:
        asked = ("--protocol", "official", "--input", data, "--annotator", f"generative:openai:m@{server.url}")
        assert _run(*asked, "--limit", 1) == 0
        assert len(server.requests) == 1
    captured = capsys.readouterr()
    assert "ANAH's published figures, 1 rows" in captured.out
    assert "1 requests: about" in captured.err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert _run(*asked, "--bertscore", "paper") == 2
    assert "pip install" in capsys.readouterr().err


def test_estimates_before_asking_are_near(tmp_path, capsys):
    """A cascade says that its second annotator may have to judge all; sentences of an answer share calls."""
    reference = "The bridge opened in 1931. It is 503 metres long."
    answer = "The bridge opened in 1931. It is 530 metres long. It is red. It is old."
    rows = [
        {"sentence": f"{part}.", "answer": answer, "reference": reference, "label": "supported"}
        for part in answer[:-1].split(". ")
    ]
    data = write_rows(tmp_path / "one.jsonl", rows)
    with annotating(correct_object) as server:
        name = f"generative:openai:m@{server.url}"
        assert _run("--input", data, "--annotator", name, "--schema", 3) == 0
        assert len(server.requests) == 2
        assert "2 requests or more: about" in capsys.readouterr().err
        assert _run("--input", data, "--annotator", f"cascade:embedded-fast+{name}") == 0
    told = capsys.readouterr().err
    assert "4 requests or more: about" in told
    assert "for these, if all sentences go on to generative:openai:m@" in told


def test_limit_draws_rows_by_seed(tmp_path, stand_in):
    rows = [labelled_row(f"{i} supported 0.5", "supported", str(i % 4)) for i in range(100)]
    data = write_rows(tmp_path / "one.jsonl", rows)
    drawn = []
    for seed in (1, 1, 2):
        stand_in.seen.clear()
        assert _run("--input", data, "--annotator", "a/b", "--limit", 10, "--seed", seed, "--json") == 0
        drawn.append([int(row["id"].split()[0]) for row in stand_in.seen])
    assert len(drawn[0]) == 10
    assert sorted(drawn[0]) == drawn[0] == drawn[1] != drawn[2]


def test_hostile_names_do_no_harm_in_the_table(tmp_path, stand_in, capsys):
    rows = [{**row, "source": "[red]x[/nope]\x1b[31m", "lang": "\ud800"} for row in FOUR_WAY]
    assert _run("--input", write_rows(tmp_path / "one.jsonl", []), "--annotator", "a/b") == 2
    path = tmp_path / "hostile.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    output, other = tmp_path / "metrics.json", write_rows(tmp_path / "b.jsonl", FOUR_WAY)
    assert _run("--input", path, other, "--annotator", "a/b", "--output", output) == 0
    out = capsys.readouterr().out
    assert "[red]x[/nope]\ufffd[31m" in out
    assert "\x1b" not in out
    assert "\ud800" in json.loads(output.read_text("utf-8"))["languages"]
    # A fold without rows is an error.
    data = write_rows(tmp_path / "one.jsonl", FOUR_WAY[:1])
    (fold,) = assign_folds(FOUR_WAY[:1])
    assert _run("--input", data, "--annotator", "a/b", "--fold", (fold + 1) % 5) == 2
    assert f"found none in fold {(fold + 1) % 5}" in capsys.readouterr().err
