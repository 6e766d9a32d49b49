"""Evaluation of an annotator: a stand-in whose answers stand in its rows, so every figure can be counted."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sklearn import metrics as sk

from annotators import LABELS, Fragment, SentenceAnnotation
from annotators.evaluation import evaluate, evidence, labelled, predict
from annotators.splits import assign_folds
from benchmarks.splits import load_rows
from mitigate.cli import main
from mitigate.errors import UsageError
from mitigate.labelled import fold_files, parse_fold, read_labelled

DATA = Path(__file__).parent.parent.parent / "shared" / "data"


class StandIn:
    """Reads its answer from the row's id, e.g. "3 supported 0.8" (the rest of the probability spread evenly).

    An id that ends in a status ("4 too_long") gives a row that was not checked.
    """

    name = "stand-in"
    fingerprint = "f00d"

    def __init__(self) -> None:
        self.seen: list[Mapping[str, Any]] = []
        self.chunks: list[int] = []

    def predict(self, rows: Iterable[Mapping[str, Any]]) -> list[SentenceAnnotation]:
        rows = list(rows)
        self.seen += rows
        self.chunks.append(len(rows))
        return [self._judge(row) for row in rows]

    def _judge(self, row: Mapping[str, Any]) -> SentenceAnnotation:
        text = row["sentence"]
        _, word, *chance = row["id"].split()
        if word not in LABELS:
            return SentenceAnnotation(text, 0, len(text), word)
        p = float(chance[0])
        scores = {label: p if label == word else (1 - p) / 3 for label in LABELS}
        found = (Fragment(row["reference"][:4], 0, 4),)
        return SentenceAnnotation(text, 0, len(text), "checked", word, scores, found)


def _row(id: str, label: str, source: str = "one", **more: Any) -> dict[str, Any]:
    number = id.split()[0]
    return {
        "id": id,
        "source": source,
        "lang": "en",
        "reference": f"abcdefgh document {number}",
        "sentence": f"Sentence {number}.",
        "label": label,
        **more,
    }


FOUR_WAY = [
    _row("0 supported 0.7", "supported", fragments=["cdef"]),
    _row("1 unverifiable 0.7", "supported"),
    _row("2 contradictory 0.7", "contradictory", correction="A better sentence."),
    _row("3 supported 0.4", "unverifiable", language="de"),
    _row("4 too_long", "contradictory"),
    _row("5 no_fact 0.7", "no_fact"),
]
TWO_WAY = [
    _row("6 supported 0.4", "supported", "two"),
    _row("7 contradictory 0.4", "unsupported", "two"),
    _row("8 no_fact 0.4", "unsupported", "two"),
]


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def _result(**options: Any) -> dict[str, Any]:
    rows = FOUR_WAY + TWO_WAY
    files = ["four"] * len(FOUR_WAY) + ["two"] * len(TWO_WAY)
    sentences = labelled(rows, files, [f"g{i}" for i in range(len(rows))])
    return evaluate(sentences, predict(StandIn(), sentences), **options)


def test_figures_by_hand() -> None:
    result = _result(n_resamples=50)
    overall, one, two = result["overall"], result["sources"]["one"], result["sources"]["two"]
    assert (overall["n"], overall["n_two_way"], overall["n_four_way"], overall["n_groups"]) == (9, 8, 6, 9)
    assert overall["coverage"] == pytest.approx(8 / 9)
    # Supported: rows 0 and 6 of 0, 1, 6. Hallucinated: 2 and 7 of 2, 3, 4 (too long), 7, 8 (no_fact).
    assert overall["balanced_accuracy"] == pytest.approx((2 / 3 + 2 / 5) / 2)
    # Source one: supported 1 of 2, hallucinated 1 of 3. Source two: 1 of 1 and 1 of 2.
    assert one["balanced_accuracy"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert two["balanced_accuracy"] == pytest.approx((1 + 1 / 2) / 2)
    # s = P(supported) / (1 − P(no_fact)). Source one: row 0: 0.7 / 0.9; 1 and 2: 0.1 / 0.9; 3: 0.4 / 0.8.
    # Supported 0.778, 0.111 against 0.111 (row 2), 0.5 (row 3): 2 + 0.5 of 4.
    assert one["auc"] == pytest.approx(2.5 / 4)
    # Source two: row 6: 0.4 / 0.8 = 0.5; 7: 0.2 / 0.8 = 0.25; 8: 0.2 / 0.6 = 0.33: 2 of 2.
    assert two["auc"] == 1.0
    # Right of the four-way rows: 0, 2 and 5 of six; one is unchecked. The other source has no such rows.
    assert one["accuracy"] == overall["accuracy"] == pytest.approx(3 / 6)
    assert one["accuracy_checked"] == pytest.approx(3 / 5)
    assert two["accuracy"] is None
    means = result["mean_over_sources"]
    assert means["balanced_accuracy"]["value"] == pytest.approx((5 / 12 + 3 / 4) / 2)
    assert means["balanced_accuracy"]["n_sources"] == 2
    assert means["accuracy"]["value"] == pytest.approx(3 / 6)
    assert means["accuracy"]["n_sources"] == 1
    assert result["statuses"] == {"checked": 8, "too_long": 1}
    assert set(result["languages"]) == {"en", "de"}
    assert result["languages"]["de"]["n"] == 1  # `language` goes before `lang`


def test_what_became_of_each_label() -> None:
    labels = _result(n_resamples=0)["labels"]
    assert labels["supported"] == {
        "n": 3,
        "coverage": 1.0,
        "recall": 2 / 3,
        "called_hallucinated": 1 / 3,
        "predicted": {"supported": 2, "unverifiable": 1},
    }
    assert labels["contradictory"]["predicted"] == {"contradictory": 1, "unchecked": 1}
    assert labels["contradictory"]["recall"] == 0.5
    assert labels["contradictory"]["coverage"] == 0.5
    # "unsupported" is right where it was called contradictory or unverifiable.
    assert labels["unsupported"]["recall"] == 0.5
    assert labels["unsupported"]["predicted"] == {"contradictory": 1, "no_fact": 1}


def test_supported_rows_of_a_two_way_source_enter_no_four_way_figure() -> None:
    rows = [_row("0 supported 0.7", "supported"), _row("1 supported 0.7", "unsupported")]
    rows += [_row("2 supported 0.7", "supported")]
    flags = [r.two_way for r in labelled(rows, ["a", "a", "b"], ["x", "y", "z"])]
    assert flags == [True, True, False]  # the same source in a file without "unsupported" is four-way


def test_the_annotator_sees_no_labels_and_gets_chunks_in_order() -> None:
    rows = [_row(f"{i} supported 0.5", "supported", fragments=["abcd"], correction="x") for i in range(600)]
    stand_in, steps = StandIn(), []
    sentences = labelled(rows, ["f"] * 600, ["g"] * 600)
    judged = predict(stand_in, sentences, lambda done, total: steps.append((done, total)))
    assert [a.text for a in judged] == [row["sentence"] for row in rows]
    assert stand_in.chunks == [256, 256, 88]
    assert steps == [(256, 600), (512, 600), (600, 600)]
    assert {key for row in stand_in.seen for key in row} == {"id", "lang", "reference", "sentence"}


def test_a_label_of_a_row_that_was_not_checked_does_not_count() -> None:
    rows = labelled(FOUR_WAY[:1], ["f"], ["g"])
    scores = dict.fromkeys(LABELS, 0.25)
    result = evaluate(rows, [SentenceAnnotation("Sentence 0.", 0, 11, "failed", "supported", scores)])
    assert result["overall"]["accuracy"] == 0.0
    assert result["overall"]["coverage"] == 0.0
    assert result["overall"]["n_auc"] == 0
    assert result["labels"]["supported"]["predicted"] == {"unchecked": 1}


def test_too_few_judgements_are_an_error() -> None:
    class Short(StandIn):
        def predict(self, rows: Iterable[Mapping[str, Any]]) -> list[SentenceAnnotation]:
            return super().predict(rows)[:-1]

    with pytest.raises(ValueError, match="stand-in: expected 6 judgements, got 5"):
        predict(Short(), labelled(FOUR_WAY, ["f"] * 6, ["g"] * 6))


def test_evidence_by_hand() -> None:
    reference = "abcdefgh abcdefgh"

    def judged(*spans: tuple[int, int], status: Any = "checked") -> SentenceAnnotation:
        fragments = tuple(Fragment(reference[a:b], a, b) for a, b in spans)
        return SentenceAnnotation("S", 0, 1, status, None, None, fragments)

    def rows(*gold: list[str] | None) -> list[Any]:
        sources = [
            {"reference": reference, "sentence": "S", "label": "supported", "fragments": g} for g in gold
        ]
        return labelled(sources, ["f"] * len(gold), ["g"] * len(gold))

    # Gold "cdef", predicted "abcd" of the second copy: 2 of 4 gold, 2 of 4 predicted characters.
    assert evidence(rows(["cdef"]), [judged((9, 13))]) == {"n": 1, "recall": 0.5, "precision": 0.5}
    # Two gold pieces, "ab" (found) and "gh": 2 of 4; the two places of "ab" are both predicted, one is gold.
    both = evidence(rows(["ab", "gh"]), [judged((0, 2), (9, 11))])
    assert both == {"n": 1, "recall": 0.5, "precision": 0.5}
    # No prediction is recall 0 and no precision; rows without gold, not checked or not verbatim are left out.
    some = evidence(
        rows(["cdef"], None, [], ["ab"], ["zz"], ["abcd"]),
        [
            judged(),
            judged((0, 4)),
            judged((0, 4)),
            judged((0, 4), status="failed"),
            judged((0, 4)),
            judged((0, 8)),
        ],
    )
    assert some == {"n": 2, "recall": 0.5, "precision": 0.5}
    assert evidence([], []) == {"n": 0, "recall": None, "precision": None}


def test_intervals_draw_whole_groups() -> None:
    rows = [_row(f"{i} supported 0.5", "supported" if i % 3 else "contradictory") for i in range(200)]
    alone = labelled(rows, ["f"] * 200, [str(i) for i in range(200)])
    joined = labelled(rows, ["f"] * 200, [str(i // 20 if i % 3 else 100 + i // 20) for i in range(200)])
    judged = predict(StandIn(), alone)
    width = {}
    for name, sentences in (("alone", alone), ("joined", joined)):
        low, high = evaluate(sentences, judged)["overall"]["intervals"]["accuracy"]
        width[name] = high - low
    assert width["joined"] > 2 * width["alone"]


def test_reading_reports_each_bad_line(tmp_path: Path) -> None:
    good = json.dumps(FOUR_WAY[0])
    bad = {
        "not json": ("{", "", "one JSON object"),
        "no object": ("[1]", "", "a JSON object"),
        "no sentence": ('{"reference": "r", "label": "supported"}', "sentence", "a string with text"),
        "blank sentence": (
            '{"sentence": " ", "reference": "r", "label": "supported"}',
            "sentence",
            "with text",
        ),
        "no reference": ('{"sentence": "s", "label": "supported"}', "reference", "a string"),
        "label": (
            '{"sentence": "s", "reference": "r", "label": "true"}',
            "label",
            "one of supported, contradictory",
        ),
        "fragments": (
            '{"sentence": "s", "reference": "r", "label": "supported", "fragments": ["a", 1]}',
            "fragments",
            "a list of strings",
        ),
        "language": (
            '{"sentence": "s", "reference": "r", "label": "supported", "lang": 3}',
            "lang",
            "a string",
        ),
        "correction": (
            '{"sentence": "s", "reference": "r", "label": "supported", "correction": []}',
            "correction",
            "a string",
        ),
    }
    path = tmp_path / "mixed.dev.jsonl"
    path.write_text("\n".join([good, *(text for text, _, _ in bad.values()), "", good]), encoding="utf-8")
    files = read_labelled([path])
    assert len(files.rows) == files.n_valid == 2
    assert [line.number for _, line in files.rejected] == list(range(2, 2 + len(bad)))
    for (name, (_, field, expected)), (_, line) in zip(bad.items(), files.rejected, strict=True):
        (problem,) = line.problems
        assert problem.field == field, name
        assert expected in problem.expected, name


def test_a_missing_source_is_the_file_name_and_an_empty_reference_is_fine(tmp_path: Path) -> None:
    row = {"sentence": "Ein Satz. \ud83d", "reference": "", "label": "supported", "answer": "\ud83d"}
    path = tmp_path / "mine.dev.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")
    (sentence,) = read_labelled([path]).rows
    assert (sentence.source, sentence.language) == ("mine", "unknown")
    assert len(read_labelled([path], [0, 1, 2, 3, 4]).rows) == 1


@pytest.mark.parametrize(
    ("name", "folds"), [("test", (0,)), ("dev", (1,)), ("train", (2, 3, 4)), ("all", None), ("3", (3,))]
)
def test_fold_names(name: str, folds: tuple[int, ...] | None) -> None:
    assert parse_fold(name) == folds


@pytest.mark.parametrize("name", ["5", "-1", "tests", "", "²", "0.0"])
def test_wrong_fold_names(name: str) -> None:
    with pytest.raises(ValueError, match="expected test, dev, train, all, or 0 to 4; got"):
        parse_fold(name)


def _linked_data(folder: Path) -> list[Path]:
    """Rows linked only through other files (sentences/a – spans/c – binary/b), and rows that stand alone."""
    shared, far = "One document about both.", "Another document."
    a = [{"id": "a", "reference": shared, "sentence": "Claim a.", "label": "supported"}]
    b = [{"id": "b", "reference": far, "sentence": "Claim b.", "label": "unsupported"}]
    c = [
        {"id": "c1", "reference": shared, "answer": "The same answer.", "errors": []},
        {"id": "c2", "reference": far, "answer": "the same  ANSWER."},
    ]
    for i in range(40):
        a.append({"id": f"a{i}", "reference": f"Text {i}.", "sentence": f"A {i}.", "label": "supported"})
        b.append(
            {"id": f"b{i}", "reference": f"Text {i} of b.", "sentence": f"B {i}.", "label": "unsupported"}
        )
    return [
        _write(folder / "sentences" / "a.jsonl", a),
        _write(folder / "binary" / "b.jsonl", b),
        _write(folder / "spans" / "c.jsonl", c),
    ]


def test_the_fold_of_a_row_does_not_depend_on_which_files_are_given(tmp_path: Path) -> None:
    files = _linked_data(tmp_path)
    rejected = _write(
        tmp_path / "sentences" / "m.json.rejected.jsonl", [{"reference": "Text 1.", "answer": "A 2."}]
    )
    assert fold_files([files[0]]) == sorted(path.resolve() for path in files)
    assert rejected not in fold_files([files[0]])
    whole = [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]
    expected = {row["id"]: fold for row, fold in zip(whole, assign_folds(whole), strict=True)}
    assert expected["a"] == expected["b"]
    for given in ([files[0]], [files[1]], files[:2]):
        found: dict[str, int] = {}
        for fold in range(5):
            read = read_labelled(given, [fold])
            found |= {row.row["id"]: fold for row in read.rows}
            assert read.n_valid == 41 * len(given)
        assert found == {id: expected[id] for id in found}
        assert len(found) == 41 * len(given)


def test_folds_and_groups_equal_those_of_the_benchmarks() -> None:
    if not DATA.is_dir():
        pytest.skip("skipped: data not here")
    name = "sentences/factcheckgpt"
    expected = {r["id"]: (r["group"], r["fold"]) for r in load_rows(DATA) if r["file"] == name}
    found = {row.row["id"]: (row.group, 0) for row in read_labelled([DATA / f"{name}.dev.jsonl"], [0]).rows}
    assert found == {id: place for id, place in expected.items() if place[1] == 0}
    assert len(found) > 50


# The command


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """What `--annotator` names is the stand-in; the command itself is the real one."""
    annotator = StandIn()
    monkeypatch.setattr("annotators.load_annotator", lambda name: annotator, raising=False)
    return annotator


def _run(*args: object) -> int:
    return main(["evaluate", "annotator", *map(str, args)])


def test_command_prints_a_table_and_writes_the_figures(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = _write(tmp_path / "one.jsonl", FOUR_WAY), _write(tmp_path / "two.jsonl", TWO_WAY)
    output = tmp_path / "out" / "metrics.json"
    assert _run("--data", one, two, "--annotator", "any", "--output", output, "--seed", 3) == 0
    captured = capsys.readouterr()
    assert "stand-in, fold all, 9 rows" in captured.out
    lines = captured.out.splitlines()
    line = next(line for line in lines if "│ two " in line)
    assert line.split("│")[3:6] == [f" {'1.000':>7} ", f" {'0.750':>20} ", f" {'1.000':>20} "]
    assert "0.500 [0." in next(line for line in lines if "│ all " in line)  # accuracy
    assert f"figures: {output}" in captured.err
    assert "\x1b" not in captured.out + captured.err
    assert sorted(path.name for path in output.parent.iterdir()) == ["metrics.json"]
    result = json.loads(output.read_text("utf-8"))
    assert result["overall"]["accuracy"] == 0.5
    assert result["overall"]["balanced_accuracy"] == pytest.approx((2 / 3 + 2 / 5) / 2)
    assert result["n_rejected"] == 0
    run = result["run"]
    assert run["annotator"] == {"name": "stand-in", "fingerprint": "f00d"}
    assert run["data"][0] == {"file": str(one), "sha256": hashlib.sha256(one.read_bytes()).hexdigest()}
    assert run["command"] == (
        f"mitigate evaluate annotator --data {one} {two} --annotator any --fold all --seed 3"
    )
    assert run["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert set(run["versions"]) == {"python", "torch", "transformers", "hallucination-toolkit"}
    assert (run["fold"], run["seed"], run["limit"]) == ("all", 3, None)
    # The written rows give the same figures with scikit-learn.
    truth = [row["label"] == "supported" for row in FOUR_WAY + TWO_WAY if row["label"] != "no_fact"]
    called = [True, False, False, True, True, True, False, True]  # the unchecked row 4 is counted as wrong
    assert result["overall"]["balanced_accuracy"] == pytest.approx(sk.balanced_accuracy_score(truth, called))


def test_command_prints_json(tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    data = _write(tmp_path / "one.jsonl", FOUR_WAY)
    assert _run("--data", data, data, "--annotator", "any", "--json") == 0  # a file given twice counts once
    result = json.loads(capsys.readouterr().out)
    assert result["overall"]["n"] == 6
    assert result["labels"]["contradictory"]["coverage"] == 0.5


def test_command_reports_and_keeps_rejected_lines(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _write(tmp_path / "one.jsonl", [*FOUR_WAY, {**FOUR_WAY[0], "label": "true"}])
    output = tmp_path / "metrics.json"
    assert _run("--data", data, "--annotator", "any", "--output", output) == 3
    error = capsys.readouterr().err
    assert f"rejected {data}:7: label: expected one of supported, contradictory, unverifiable" in error
    assert 'got "true"' in error
    rejected = tmp_path / "metrics.json.rejected.jsonl"
    (kept,) = map(json.loads, rejected.read_text("utf-8").splitlines())
    assert (kept["line"], kept["problems"][0]["field"]) == (7, "label")
    result = json.loads(output.read_text("utf-8"))
    assert (result["n_rejected"], result["overall"]["n"]) == (1, 6)
    _write(data, FOUR_WAY)
    assert _run("--data", data, "--annotator", "any", "--output", output) == 0
    assert not rejected.exists()


def test_command_says_over_what_it_computed_the_folds(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    files = _linked_data(tmp_path)
    for file in files[:2]:
        rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
        _write(file, [{**row, "id": f"{row['id']} supported 0.5"} for row in rows])
    expected = read_labelled([files[0]], (2, 3, 4)).rows
    assert _run("--data", files[0], "--annotator", "any", "--fold", "train", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["overall"]["n"] == len(expected)
    assert f"fold train: {len(expected)} of 41 rows; folds computed over 3 files of" in captured.err


def test_limit_draws_rows_by_seed(tmp_path: Path, stand_in: StandIn) -> None:
    rows = [_row(f"{i} supported 0.5", "supported", str(i % 4)) for i in range(100)]
    data = _write(tmp_path / "one.jsonl", rows)
    drawn = []
    for seed in (1, 1, 2):
        stand_in.seen.clear()
        assert _run("--data", data, "--annotator", "any", "--limit", 10, "--seed", seed, "--json") == 0
        drawn.append([row["id"] for row in stand_in.seen])
    assert len(drawn[0]) == 10
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] == sorted(drawn[0], key=lambda id: int(id.split()[0]))


def test_hostile_names_do_no_harm_in_the_table(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{**row, "source": "[red]x[/nope]\x1b[31m", "lang": "\ud800"} for row in FOUR_WAY]
    assert _run("--data", _write(tmp_path / "one.jsonl", []), "--annotator", "any") == 2
    path = tmp_path / "hostile.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    output = tmp_path / "metrics.json"
    assert (
        _run("--data", path, _write(tmp_path / "b.jsonl", FOUR_WAY), "--annotator", "any", "--output", output)
        == 0
    )
    out = capsys.readouterr().out
    assert "[red]x[/nope]\ufffd[31m" in out
    assert "\x1b" not in out
    assert "\ud800" in json.loads(output.read_text("utf-8"))["languages"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fold", "tst"], "--fold: expected test, dev, train, all, or 0 to 4; got 'tst'"),
        (["--limit", "0"], "--limit: expected a number of rows from 1 up; got 0"),
        (["--seed", "-1"], "--seed: expected a number from 0 up; got -1"),
        (["--output", "{data}"], "is one of the data files and would be written over"),
        (["--output", "{folder}"], "it is a folder"),
        (["--data", "{folder}"], "is not one; for all of its files give"),
        (["--data", "{folder}/none.jsonl"], "expected a JSON Lines file"),
        (["--data", "{empty}"], "expected labelled sentences; found none"),
    ],
)
def test_mistakes_are_found_before_the_annotator_loads(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def load(name: str) -> StandIn:
        raise RuntimeError("loaded")

    monkeypatch.setattr("annotators.load_annotator", load, raising=False)
    data, empty = _write(tmp_path / "one.jsonl", FOUR_WAY), _write(tmp_path / "empty.jsonl", [])
    filled = [o.format(data=data, folder=tmp_path, empty=empty) for o in options]
    given = [] if "--data" in options else ["--data", data]
    assert _run(*given, "--annotator", "any", *filled) == 2
    assert message in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="loaded"):
        _run("--data", data, "--annotator", "any")


def test_an_unknown_annotator_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(name: str) -> StandIn:
        raise ValueError(f"no annotator {name!r}")

    monkeypatch.setattr("annotators.load_annotator", load, raising=False)
    assert _run("--data", _write(tmp_path / "one.jsonl", FOUR_WAY), "--annotator", "nobody") == 2
    assert "--annotator: no annotator 'nobody'" in capsys.readouterr().err


def test_a_fold_without_rows_is_said(
    tmp_path: Path, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    data = _write(tmp_path / "one.jsonl", FOUR_WAY[:1])
    (fold,) = assign_folds(FOUR_WAY[:1])
    assert _run("--data", data, "--annotator", "any", "--fold", (fold + 1) % 5) == 2
    assert f"found none in fold {(fold + 1) % 5}" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    from mitigate.commands.evaluate import _write as write

    with pytest.raises(UsageError, match="cannot write"):
        write(tmp_path / "gone" / "metrics.json", b"{}")


def test_the_embedded_annotator_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = "Omar Khayyam was born in Nishapur in 1048. He wrote a treatise on algebra around 1070."
    rows = [
        {"sentence": "Omar Khayyam was born in Nishapur.", "label": "supported", "lang": "en"},
        {"sentence": "Rice prices in Osaka doubled last winter.", "label": "unverifiable", "lang": "en"},
        {"sentence": "他出生于内沙布尔。", "label": "supported", "lang": "zh"},
    ]
    data = _write(tmp_path / "omar.jsonl", [{"reference": reference, **row} for row in rows])
    output = tmp_path / "metrics.json"
    assert _run("--data", data, "--annotator", "embedded", "--output", output) == 0
    assert "fold all, 3 rows" in capsys.readouterr().out
    result = json.loads(output.read_text("utf-8"))
    assert result["statuses"] == {"checked": 2, "language_unsupported": 1}
    assert result["languages"]["en"]["auc"] == 1.0
    assert result["languages"]["zh"]["coverage"] == 0.0
    assert result["sources"]["omar"]["n"] == 3
    assert result["run"]["annotator"]["name"] == "embedded"
    assert len(result["run"]["annotator"]["fingerprint"]) >= 12
