"""The training tab of the demo without a browser: run folders, their answers, their curves."""

from pathlib import Path

import pytest

from mitigate.demo.limits import Refusal
from mitigate.demo.training import open_folder, read_run, run_folders, run_view, whole_record
from tests.helpers.demo_parts import write_run
from tests.helpers.report_cases import sentence


def test_run_folder_is_read_while_it_grows(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "runs" / "grpo" / "one"))
    assert run.curves == {"reward": [(0, 0), (1, 0.5), (2, 1)], "factuality/hallucination_rate": [(0, 0.5), (2, 0.5)]}
    assert [(b is not None, a is not None) for b, a in run.pairs] == [(True, True)]
    assert run.notes == ["The run is not complete: it is still going, or was interrupted."]
    page = run_view(run)
    assert "<small>rlhf</small>" in page
    assert "&lt;b&gt;bold&lt;/b&gt;" in page
    assert "<i>built" not in page
    assert "This answer was not annotated." in page
    assert page.count("<figure>") == 2
    assert run_folders(tmp_path / "runs") == ["grpo/one"]


def test_missing_or_broken_files_are_noted(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('[1]\nx\n{"step": 1}\n')
    (tmp_path / "config.yaml").write_text("a: [")
    (tmp_path / "done.json").write_text("{")
    run = read_run(tmp_path)
    for part in ("2 lines of metrics.jsonl are no JSON objects", "metrics.jsonl has no figures yet",
                 "config.yaml can't be read", "samples.jsonl is not there yet", "done.json can't be read"):  # fmt: skip
        assert part in " ".join(run.notes)
    assert "task not known" in run_view(run)


def test_other_folders_are_refused_unless_allowed(tmp_path: Path) -> None:
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


def test_sentences_that_do_not_fit_are_not_shown() -> None:
    bad = {"start": 0, "end": 2, "text": "No"}
    good = {**sentence("It is so.", 0, 9), "scores": {"x": 1}, "fragments": [bad, 3]}
    record = {"answer": "It is so.", "reference": "So."}
    whole = whole_record({**record, "sentences": [good]})
    assert whole is not None
    assert whole["sentences"] == [sentence("It is so.", 0, 9)]
    for broken in ({"start": 1}, {"text": "else"}, {"label": 3}, {"label": "other"}, {"end": "x"}):
        assert whole_record({**record, "sentences": [{**good, **broken}]}) is None
