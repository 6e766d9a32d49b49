"""The training tab of the demo without a browser: run folders, their answers, their curves."""

import pytest

from annotators.records import LABELS
from mitigate.demo.limits import Refusal
from mitigate.demo.training import open_folder, read_run, run_folders
from mitigate.demo.view import figure, label_of, run_view, short, sorted_curves, whole_record
from tests.helpers.demo_parts import sentence, write_run


def test_a_run_folder_is_read_as_far_as_it_goes(tmp_path):
    run = read_run(write_run(tmp_path / "runs" / "grpo" / "one"))
    assert run.curves == {"reward": [(0, 0), (1, 0.5), (2, 1)], "factuality/hallucination_rate": [(0, 0.5), (2, 0.5)]}
    assert [(b is not None, a is not None) for b, a in run.pairs] == [(True, True)]
    assert run.notes == ["The run is not complete: it is still going, or was interrupted."]
    page = run_view(run)
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "<i>built" not in page
    assert "This answer was not annotated." in page
    assert page.count("<figure>") == 2
    assert run_folders(tmp_path / "runs") == ["grpo/one"]


def test_what_is_missing_or_broken_is_said(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('[1]\nx\n{"step": 1}\n')
    (tmp_path / "config.yaml").write_text("a: [")
    (tmp_path / "done.json").write_text("{")
    notes = " ".join(read_run(tmp_path).notes)
    for part in ("2 lines of metrics.jsonl are no JSON objects", "metrics.jsonl has no figures yet",
                 "config.yaml can't be read", "samples.jsonl is not there yet", "done.json can't be read"):  # fmt: skip
        assert part in notes
    assert "kind not known" in run_view(read_run(tmp_path))


def test_folders_elsewhere_are_refused_unless_any_may_be_named(tmp_path):
    root, elsewhere = tmp_path / "runs", write_run(tmp_path / "private")
    write_run(root / "one")
    assert open_folder(root, "one", False) == root / "one"
    for name in ("../private", str(elsewhere)):
        with pytest.raises(Refusal, match="is not in the folder of runs"):
            open_folder(root, name, False)
    assert open_folder(root, str(elsewhere), True) == elsewhere
    with pytest.raises(Refusal, match="There is no folder nothing"):
        open_folder(root, "nothing", True)
    with pytest.raises(Refusal, match="is no run folder"):
        open_folder(root, str(tmp_path), True)


def test_sentences_that_are_not_those_of_the_answer_are_not_shown():
    good = {
        "answer": "It is so.",
        "reference": "So.",
        "sentences": [{**sentence("It is so.", 0, 9), "scores": {"x": 1}}],
    }
    whole = whole_record(good)
    assert whole is not None
    assert whole["sentences"][0]["scores"] is None
    for broken in (
        {"start": 1}, {"text": "else"}, {"label": 3}, {"end": "x"},
    ):  # fmt: skip
        assert whole_record({**good, "sentences": [{**good["sentences"][0], **broken}]}) is None
    bad = {"start": 0, "end": 2, "text": "No"}
    found = whole_record({**good, "sentences": [{**sentence("It is so.", 0, 9), "fragments": [bad, 3]}]})
    assert found is not None
    assert found["sentences"][0]["fragments"] == []


def test_curves():
    names = ["loss", "reward_std", "x/hallucination_rate", "factuality/supported", "reward", "no_fact_rate"]
    assert sorted_curves(names) == (
        ["reward", "x/hallucination_rate", "factuality/supported", "no_fact_rate"],
        ["loss", "reward_std"],
    )
    assert [label_of(name) for name in names] == [None, None, None, "supported", None, "no_fact"]
    assert all(label_of(f"a/{label}") == label for label in LABELS)
    assert [short(v) for v in (1200.0, 0.35812, 1e-5, -2.0)] == ["1,200", "0.358", "1e-05", "-2"]
    # x from 46 to 310 over steps 0..10, y from 128 (lowest, 1) to 12 (highest, 3)
    drawn = figure("a<b", [(0, 1.0), (5, 3.0), (10, 2.0)])
    assert 'd="M46.0 128.0 L178.0 12.0 L310.0 70.0"' in drawn
    assert "a&lt;b" in drawn
    assert "a<b" not in drawn
    assert 'd="M46.0 70.0"' in figure("one", [(4, 2.0)])
