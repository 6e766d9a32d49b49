"""A run folder belongs to one recipe: a second run goes on in it, another recipe is refused or overwrites it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mitigate.cli.main import main
from mitigate.io import UsageError
from mitigate.recipes.config import load_recipe
from mitigate.recipes.folder import open_run
from tests.helpers.jsonl import read_rows


def test_run_writes_its_folder_once(recipe, tmp_path, capsys):
    out = tmp_path / "run"
    run = ["run", str(recipe()), "steps=2", "--output", str(out)]
    assert main(run) == 0
    rows = [{"step": 0, "loss": 1.0, "lost": None}, {"step": 1, "loss": 0.5, "lost": None}]
    assert read_rows(out / "metrics.jsonl") == rows
    assert yaml.safe_load((out / "config.yaml").read_text())["steps"] == 2
    start = json.loads((out / "versions.json").read_text())[0]
    assert start["torch"]
    assert start["python"] == ".".join(map(str, sys.version_info[:3]))
    assert main(run) == 0
    assert "complete since an earlier run: {'steps': 2}" in capsys.readouterr().out
    assert read_rows(out / "metrics.jsonl") == rows


def test_interrupted_run_goes_on_with_its_recipe(recipe, tmp_path, capsys):
    path, out = recipe(break_at=1), tmp_path / "run"
    run = ["run", str(path), "--output", str(out)]
    assert main(run) == 130
    assert f"go on with: mitigate run {path} --output {out}\n" in capsys.readouterr().err
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "lo')  # killed while it wrote
    assert main(["run", str(path), "steps=4", "--output", str(out)]) == 2
    error = capsys.readouterr().err
    assert "holds a run of another recipe: steps was 3 and is 4; choose another folder with --output" in error
    assert "--overwrite" in error
    assert main([*run, "other={weight: 2}"]) == 2
    assert "other was None and is {'annotator': 'embedded', 'weight': 2.0};" in capsys.readouterr().err
    written = yaml.safe_load((out / "config.yaml").read_text())
    del written["mode"], written["reward"]["weight"]  # as by an older release, which had no such options
    written |= {"minutes": 999.0, "about": "as it was told then"}
    (out / "config.yaml").write_text(yaml.safe_dump(written))
    assert main(run) == 0
    assert yaml.safe_load((out / "config.yaml").read_text())["mode"] == "fast"
    assert [row["step"] for row in read_rows(out / "metrics.jsonl")] == [0, 1, 2]
    assert len(json.loads((out / "versions.json").read_text())) == 2


def test_a_whole_last_line_without_its_end_is_kept(recipe, tmp_path):
    options, _ = load_recipe(recipe())
    with open_run(tmp_path / "run", options):
        pass
    (tmp_path / "run" / "edited.jsonl").write_bytes(b'{"id":"a"}\n{"id":"b"}')
    (tmp_path / "run" / "killed.jsonl").write_bytes(b'{"id":"a"}\n{"id":"b"')
    with open_run(tmp_path / "run", options) as folder:
        assert folder.rows("edited.jsonl") == [{"id": "a"}, {"id": "b"}]
        assert folder.rows("killed.jsonl") == [{"id": "a"}]


def test_overwrite_begins_anew_in_run_folders_only(recipe, tmp_path, monkeypatch):
    first, _ = load_recipe(recipe())
    other, _ = load_recipe(recipe(), ["steps=4"])
    with open_run(tmp_path / "run", first) as folder:
        folder.log(0, loss=1.0)
        folder.write("model/config.json", "{}")
        folder.finish({})
    with open_run(tmp_path / "run", other, overwrite=True) as folder:
        assert sorted(p.name for p in folder.path.iterdir()) == [".lock", "config.yaml", "versions.json"]
        assert yaml.safe_load((folder / "config.yaml").read_text())["steps"] == 4

    def killed(*_):
        raise KeyboardInterrupt

    with open_run(tmp_path / "run", other) as folder:
        folder.write("model/config.json", "{}")
        folder.finish({})
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)  # what is left is no complete run, and can be gone on with
        with pytest.raises(KeyboardInterrupt):
            open_run(tmp_path / "run", other, overwrite=True)
    left = {p.name for p in (tmp_path / "run").iterdir()}
    assert left == {".lock", "config.yaml", "versions.json", "model"}
    with open_run(tmp_path / "run", first, overwrite=True) as folder:
        assert (folder.done, (folder / "model").exists()) == (None, False)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="no run folder"):
            open_run(foreign, first, overwrite=overwrite)
    assert sorted(p.name for p in foreign.iterdir()) == [".lock", "thesis.txt"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot write to"):
        open_run(tmp_path / "file", first)


def test_second_run_of_a_folder_is_refused(recipe, tmp_path):
    options, _ = load_recipe(recipe())
    with open_run(tmp_path / "run", options), pytest.raises(UsageError, match="written by another run"):
        open_run(tmp_path / "run", options)


def test_full_disk_is_one_line(recipe, tmp_path):
    path, out = recipe(steps=200), tmp_path / "run"
    code = (
        "import resource, sys; from mitigate.cli.main import main; from mitigate.recipes.config import TASKS\n"
        "sys.dont_write_bytecode = True  # its files would be cut, too, and found so by later imports\n"
        "TASKS['example'] = 'tests.helpers.example_task'; resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    run = [sys.executable, "-c", code, "run", str(path), "--output", str(out)]
    full = subprocess.run(run, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert full.returncode == 1
    assert f"cannot write {out / 'metrics.jsonl'}: File too large; what is done is kept, go on with:" in full.stderr
    assert "Traceback" not in full.stderr
    assert 50 < len((out / "metrics.jsonl").read_text().splitlines()) < 200
    assert main(["run", str(path), "--output", str(out)]) == 0
    assert [row["step"] for row in read_rows(out / "metrics.jsonl")] == list(range(200))


def test_rows_are_cut_and_kept_exactly(recipe, tmp_path):
    options, _ = load_recipe(recipe())
    with open_run(tmp_path / "run", options) as folder:
        for step in range(4):
            folder.log(step, loss=0.0)
        folder.cut(1)
        folder.log(2, loss=1.0)
        assert [(row["step"], row["loss"]) for row in folder.rows()] == [(0, 0.0), (1, 0.0), (2, 1.0)]
        folder.append("a.jsonl", [{"text": "half a pair: \ud83d"}])  # UTF-8 cannot hold it
        folder.write_rows("b.jsonl", folder.rows("a.jsonl"))
        assert folder.rows("a.jsonl") == folder.rows("b.jsonl") == [{"text": "half a pair: \ud83d"}]


def test_run_that_could_not_start_leaves_no_folder(recipe, tmp_path):
    out = tmp_path / "run"
    assert main(["run", str(recipe(refuse="run")), "--output", str(out)]) == 2
    assert not out.exists()
    out.mkdir()
    (out / "rejected.jsonl").write_text("{}\n")  # what a start that failed said of bad lines
    assert main(["run", str(recipe(refuse="run")), "--output", str(out)]) == 2
    assert [file.name for file in out.iterdir()] == ["rejected.jsonl"]
    assert main(["run", str(recipe()), "--output", str(out)]) == 0


def test_only_the_first_process_writes(recipe, tmp_path, monkeypatch):
    options, _ = load_recipe(recipe())
    with open_run(tmp_path / "run", options) as first:
        first.log(0, loss=3.0)
        monkeypatch.setenv("RANK", "1")
        with open_run(tmp_path / "run", options, overwrite=True) as second:  # under `accelerate launch`
            second.log(0, loss=1.0)
            second.write("x.txt", "x")
            second.finish({})
            second.discard()
        first.log(0, loss=2.0)
        assert [row["loss"] for row in first.rows()] == [3.0, 2.0]
        files = sorted(p.name for p in first.path.iterdir())
        assert files == [".lock", "config.yaml", "metrics.jsonl", "versions.json"]
