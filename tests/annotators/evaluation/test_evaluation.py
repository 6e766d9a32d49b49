"""Evaluation of an annotator: a stand-in whose answers stand in its rows, so every figure can be counted."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from annotators import LABELS, SentenceAnnotation
from annotators.evaluation.evaluate import evaluate, labelled, predict
from annotators.evaluation.splits import assign_folds
from mitigate.labels import fold_files, parse_fold, read_labelled
from tests.helpers.evaluation_cases import FOUR_WAY, TWO_WAY, StandIn, labelled_row, linked_data
from tests.helpers.jsonl import read_rows, write_rows


def test_figures_by_hand() -> None:
    rows = FOUR_WAY + TWO_WAY
    files = ["four"] * len(FOUR_WAY) + ["two"] * len(TWO_WAY)
    sentences = labelled(rows, files, [f"g{i // 2}" for i in range(len(rows))])
    result = evaluate(sentences, predict(StandIn(), sentences), n_resamples=50)
    overall, one, two = result["overall"], result["sources"]["one"], result["sources"]["two"]
    assert (overall["n"], overall["n_two_way"], overall["n_four_way"], overall["n_groups"]) == (9, 8, 6, 5)
    assert overall["coverage"] == pytest.approx(8 / 9)
    # Source one: supported 1 of 2, hallucinated 1 of 3. Source two: 1 of 1 and 1 of 2.
    assert one["balanced_accuracy"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert two["balanced_accuracy"] == pytest.approx((1 + 1 / 2) / 2)
    # Right of the four-way rows: 0, 2 and 5 of six; one is unchecked. The other source has no such rows.
    assert one["accuracy"] == overall["accuracy"] == pytest.approx(3 / 6)
    assert two["accuracy"] is None
    means = result["mean_over_sources"]
    assert means["balanced_accuracy"]["value"] == pytest.approx((5 / 12 + 3 / 4) / 2)
    assert means["balanced_accuracy"]["n_sources"] == 2
    assert means["accuracy"]["value"] == pytest.approx(3 / 6)
    assert means["accuracy"]["n_sources"] == 1
    intervals = overall["intervals"]  # of accuracy the same, since the second source has none
    assert means["accuracy"]["interval"] == tuple(intervals["accuracy"])
    assert means["balanced_accuracy"]["interval"] != tuple(intervals["balanced_accuracy"])
    assert result["statuses"] == {"checked": 8, "too_long": 1}
    assert set(result["languages"]) == {"en", "de"}
    assert result["languages"]["de"]["n"] == 1  # `language` goes before `lang`
    doubted = [replace(one, status="unsure", label=None) if one.label else one for one in predict(StandIn(), sentences)]
    assert evaluate(sentences, doubted, n_resamples=0)["overall"]["auc"] == overall["auc"]  # doubts have scores, too
    labels = result["labels"]  # and what became of each
    assert labels["supported"] == {"n": 3, "recall": 2 / 3, "predicted": {"supported": 2, "unverifiable": 1}}
    assert labels["contradictory"]["predicted"] == {"contradictory": 1, "unchecked": 1}
    assert labels["contradictory"]["recall"] == 0.5
    # "unsupported" is right where it was called contradictory or unverifiable.
    assert labels["unsupported"]["recall"] == 0.5
    assert labels["unsupported"]["predicted"] == {"contradictory": 1, "no_fact": 1}


def test_two_way_sources_enter_no_four_way_figure() -> None:
    rows = [labelled_row("0 supported 0.7", "supported"), labelled_row("1 supported 0.7", "unsupported")]
    rows += [labelled_row("2 supported 0.7", "supported")]
    flags = [r.two_way for r in labelled(rows, ["a", "a", "b"], ["x", "y", "z"])]
    assert flags == [True, True, False]  # the same source in a file without "unsupported" is four-way


def test_annotator_sees_no_labels_and_ordered_chunks() -> None:
    rows = [labelled_row(f"{i} supported 0.5", "supported", fragments=["abcd"], correction="x") for i in range(600)]
    stand_in, steps = StandIn(), []
    sentences = labelled(rows, ["f"] * 600, ["g"] * 600)
    judged = predict(stand_in, sentences, steps.append)
    assert [a.text for a in judged] == [row["sentence"] for row in rows]
    assert stand_in.chunks == [256, 256, 88]
    assert steps == [256, 512, 600]
    assert {key for row in stand_in.seen for key in row} == {"id", "lang", "reference", "sentence"}


def test_label_of_an_unchecked_row_is_wrong() -> None:
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


def test_reading_reports_each_bad_line(tmp_path: Path) -> None:
    good, start = json.dumps(FOUR_WAY[0]), '{"sentence": "s", "reference": "r", "label": "supported", '
    bad = [
        ("{", "", "one JSON object"), ("[1]", "", "a JSON object"),
        ('{"reference": "r", "label": "supported"}', "sentence", "a string with text"),
        ('{"sentence": " ", "reference": "r", "label": "supported"}', "sentence", "with text"),
        ('{"sentence": "s", "label": "supported"}', "reference", "a string"),
        ('{"sentence": "s", "reference": "r", "label": "true"}', "label", "one of supported, contradictory"),
        (start + '"fragments": ["a", 1]}', "fragments", "a list of strings"),
        (start + '"lang": 3}', "lang", "a string"), (start + '"correction": []}', "correction", "a string"),
    ]  # fmt: skip
    path = tmp_path / "mixed.dev.jsonl"
    path.write_text("\n".join([good, *(text for text, _, _ in bad), "", good]), encoding="utf-8")
    files = read_labelled([path])
    assert len(files.rows) == files.n_valid == 2
    assert [line.number for _, line in files.rejected] == list(range(2, 2 + len(bad)))
    for (_, field, expected), (_, line) in zip(bad, files.rejected, strict=True):
        (problem,) = line.problems
        assert (problem.field, expected in problem.expected) == (field, True), problem


def test_missing_source_is_the_file_name(tmp_path: Path) -> None:
    row = {"sentence": "Ein Satz. \ud83d", "reference": "", "label": "supported", "answer": "\ud83d"}
    path = tmp_path / "mine.dev.jsonl"
    path.write_text(json.dumps(row), encoding="utf-8")
    (sentence,) = read_labelled([path]).rows
    assert (sentence.source, sentence.language) == ("mine", "unknown")
    assert len(read_labelled([path], [0, 1, 2, 3, 4]).rows) == 1


def test_fold_names() -> None:
    names = {"test": (0,), "dev": (1,), "train": (2, 3, 4), "all": None, "3": (3,)}
    assert {name: parse_fold(name) for name in names} == names
    for name in ("5", "-1", "tests", "", "²", "0.0"):
        with pytest.raises(ValueError, match="expected test, dev, train, all, or 0 to 4; got"):
            parse_fold(name)


def test_folds_do_not_depend_on_the_files_given(tmp_path: Path) -> None:
    files = linked_data(tmp_path)
    write_rows(tmp_path / "sentences" / "m.json.rejected.jsonl", [{"reference": "Text 1.", "answer": "A 2."}])
    assert fold_files([files[0]]) == sorted(path.resolve() for path in files)  # rejected lines are no data
    whole = [row for file in files for row in read_rows(file)]
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
