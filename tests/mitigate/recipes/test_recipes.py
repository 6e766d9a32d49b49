"""Recipes: checked whole and early, named clearly, run in a folder that is used once and can be resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mitigate.cli.main import main
from mitigate.io import UsageError
from mitigate.recipes.config import (
    KINDS,
    check,
    find_recipe,
    list_recipes,
    load_recipe,
    override,
    read_yaml,
    recipes_folder,
)
from mitigate.recipes.folder import open_run
from tests.helpers.example_kind import Options

HEADER = {"kind": "example", "about": "counts", "hardware": "any", "minutes": 1}


@pytest.fixture(autouse=True)
def example_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "example", "tests.helpers.example_kind")


def recipe(folder: Path, **options: object) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**HEADER, **options}))
    return path


def test_defaults_overrides_and_sections(tmp_path: Path) -> None:
    path = recipe(tmp_path, reward={"weight": 0.5})
    options, module = load_recipe(path, ["steps=7", "reward.annotator=here", "learning_rate=3e-4", "other.weight=2"])
    assert module.__name__ == "tests.helpers.example_kind"
    assert isinstance(options, Options)
    assert (options.steps, options.learning_rate, options.mode) == (7, 3e-4, "fast")
    assert (options.reward.weight, options.reward.annotator) == (0.5, "here")
    assert options.other is not None
    assert options.other.weight == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rat": 1}, r"unknown key 'learning_rat'; did you mean 'learning_rate'\?"),
        ({"reward": {"wieght": 1}}, r"unknown key 'reward.wieght'; did you mean 'weight'\?"),
        ({"other": {"wieght": 1}}, r"unknown key 'other.wieght'; did you mean 'weight'\?"),
        ({"steps": 0}, r"steps: .*greater than or equal to 1, got 0"),
        ({"steps": "many"}, r"steps: .*valid integer.*got 'many'"),
        ({"mode": "quick"}, r"mode: .*'fast' or 'slow', got 'quick'"),
        ({"learning_rate": float("nan")}, r"learning_rate: .*finite"),
        ({"reward": 3}, r"reward: .*got 3"),
        ({"steps": 0, "mode": 1, "x": 2}, r"steps: .*; mode: .*; unknown key 'x'"),
        ({"kind": "exampel"}, r"unknown kind 'exampel'; did you mean 'example'\?"),
        ({"kind": ["example"]}, r"unknown kind \['example'\]"),
        ({"refuse": "check"}, r"refuse: expected an empty one"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe(recipe(tmp_path, **options))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "expected YAML"),
        ("- a\n- b", "expected keys and values .* got list"),
        ("", "the key 'kind' is missing"),
        ("steps: 1\nsteps: 2", "the key 'steps' is there twice"),
        ("reward: {weight: 1, weight: 2}", "the key 'weight' is there twice"),
        ("a: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
        ("about: nothing", "the key 'kind' is missing"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_recipe(path)
    with pytest.raises(UsageError, match="no recipe"):
        find_recipe(tmp_path / "nowhere.yaml")
    with pytest.raises(UsageError, match="cannot read"):
        read_yaml(tmp_path)


@pytest.mark.parametrize("assignment", ["steps", "=3", "a..b=1", "steps.x=1"])
def test_wrong_overrides_are_named(assignment: str) -> None:
    with pytest.raises(UsageError, match=r"expected key=value|which has no keys"):
        override({"steps": 3}, [assignment])


def test_overrides_leave_the_original_alone() -> None:
    data = {"reward": {"weight": 1}}
    assert override(data, ["reward.weight=2", "a.b.c=[1, x]"]) == {"reward": {"weight": 2}, "a": {"b": {"c": [1, "x"]}}}
    assert data == {"reward": {"weight": 1}}


def test_missing_header_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the key 'about' is missing; the key 'hardware' is missing"):
        check(Options, {"kind": "example"}, "x.yaml")


def test_a_run_writes_its_folder_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = recipe(tmp_path), tmp_path / "run"
    assert main(["run", str(path), "steps=2", "--output", str(out)]) == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert rows == [{"step": 0, "loss": 1.0, "lost": None}, {"step": 1, "loss": 0.5, "lost": None}]
    assert yaml.safe_load((out / "config.yaml").read_text())["steps"] == 2
    start = json.loads((out / "versions.json").read_text())[0]
    assert start["torch"]
    assert start["python"] == ".".join(map(str, sys.version_info[:3]))
    assert main(["run", str(path), "steps=2", "--output", str(out)]) == 0
    assert "complete since an earlier run: {'steps': 2}" in capsys.readouterr().out
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 2


def test_an_interrupted_run_resumes_with_the_same_recipe_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = recipe(tmp_path, break_at=1), tmp_path / "run"
    assert main(["run", str(path), "--output", str(out)]) == 130
    assert f"go on with: mitigate run {path} --output {out}" in capsys.readouterr().err
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "lo')  # killed while it wrote
    assert main(["run", str(path), "steps=4", "--output", str(out)]) == 2
    assert "cannot continue" in (error := capsys.readouterr().err)
    assert "steps was 3 and is 4; choose another --output, or start again with --overwrite" in error
    assert main(["run", str(path), "--output", str(out)]) == 0
    text = (out / "metrics.jsonl").read_text()
    assert [json.loads(line)["step"] for line in text.splitlines()] == [0, 1, 2]
    assert len(json.loads((out / "versions.json").read_text())) == 2
    (out / "checkpoints").mkdir()
    assert main(["run", str(path), "steps=1", "--output", str(out), "--overwrite"]) == 0
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (out / "checkpoints").exists()


def test_what_is_needed_is_told_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run"])
    assert capsys.readouterr().err.endswith("the following arguments are required: RECIPE\n")
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out.strip()


def test_a_disk_that_is_full_ends_with_1_and_one_line_and_is_resumed(tmp_path: Path) -> None:
    path, out = recipe(tmp_path, steps=200), tmp_path / "run"
    code = (
        "import resource, sys; from mitigate.cli.main import main; from mitigate.recipes.config import KINDS\n"
        "sys.dont_write_bytecode = True  # its files would be cut, too, and found so by later imports\n"
        "KINDS['example'] = 'tests.helpers.example_kind'; resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    run = [sys.executable, "-c", code, "run", str(path), "--output", str(out)]
    full = subprocess.run(run, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3])
    assert full.returncode == 1
    assert f"cannot write {out / 'metrics.jsonl'}: File too large; what is done is kept, go on with:" in full.stderr
    assert "Traceback" not in full.stderr
    assert 50 < len((out / "metrics.jsonl").read_text().splitlines()) < 200
    assert main(["run", str(path), "--output", str(out)]) == 0
    steps = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(200))


def test_rows_after_the_checkpoint_are_cut(tmp_path: Path) -> None:
    options, _ = load_recipe(recipe(tmp_path))
    with open_run(tmp_path / "run", options) as folder:
        for step in range(4):
            folder.log(step, loss=0.0)
        folder.cut(1)
        folder.log(2, loss=1.0)
        assert [(row["step"], row["loss"]) for row in folder.rows()] == [(0, 0.0), (1, 0.0), (2, 1.0)]


def test_texts_that_utf_8_cannot_hold_are_kept(tmp_path: Path) -> None:
    options, _ = load_recipe(recipe(tmp_path))
    with open_run(tmp_path / "run", options) as folder:
        folder.append("a.jsonl", [{"text": "half a pair: \ud83d"}])
        folder.write_rows("b.jsonl", folder.rows("a.jsonl"))
        assert folder.rows("a.jsonl") == folder.rows("b.jsonl") == [{"text": "half a pair: \ud83d"}]


def test_a_run_that_could_not_start_leaves_no_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["run", str(recipe(tmp_path, refuse="run")), "--output", str(out)]) == 2
    assert not out.exists()


def test_a_folder_is_locked_and_foreign_folders_are_left_alone(tmp_path: Path) -> None:
    options, _ = load_recipe(recipe(tmp_path))
    with open_run(tmp_path / "run", options), pytest.raises(UsageError, match="written by another run"):
        open_run(tmp_path / "run", options)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="no run folder"):
        open_run(foreign, options, overwrite=True)
    (foreign / "config.yaml").write_text("kind: something else")
    with pytest.raises(UsageError, match="choose another --output"):
        open_run(foreign, options, overwrite=True)
    (foreign / "config.yaml").unlink()
    assert sorted(p.name for p in foreign.iterdir()) in (["thesis.txt"], [".lock", "thesis.txt"])
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot write to"):
        open_run(tmp_path / "file", options)


def test_of_several_processes_only_the_first_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, _ = load_recipe(recipe(tmp_path))
    with open_run(tmp_path / "run", options) as first:
        monkeypatch.setenv("RANK", "1")
        with open_run(tmp_path / "run", options) as second:
            second.log(0, loss=1.0)
            second.write("x.txt", "x")
            second.finish({})
            second.discard()
        first.log(0, loss=2.0)
        assert [row["loss"] for row in first.rows()] == [2.0]
        assert sorted(p.name for p in first.path.iterdir()) == [
            ".lock",
            "config.yaml",
            "metrics.jsonl",
            "versions.json",
        ]


def test_check_only_prints_the_resolved_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(recipe(tmp_path)), "mode=slow", "--check"]) == 0
    resolved = yaml.safe_load(capsys.readouterr().out)
    assert resolved == {
        **HEADER, "minutes": 1.0, "steps": 3, "learning_rate": 1e-5, "mode": "slow",
        "reward": {"annotator": "embedded", "weight": 1.0}, "other": None, "break_at": None, "refuse": "",
    }  # fmt: skip


def test_an_alias_takes_its_kinds_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(recipe(tmp_path)), "--check"]) == 2
    assert "is of kind 'example'; expected embedded-annotator" in capsys.readouterr().err


@pytest.mark.parametrize("path", list_recipes(recipes_folder()), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_recipe_of_the_toolkit_is_valid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipes_folder().parent)
    module = check_types_only(path)
    assert module.run
    assert (path.parent / "README.md").is_file() or (path.parent.parent / "README.md").is_file()


def check_types_only(path: Path) -> object:
    """Types and names of all keys; extras and files that `check` asks for need not be here."""
    from mitigate.recipes.config import kind_module

    data = read_yaml(path)
    module = kind_module(data["kind"], str(path))
    check(module.Options, data, str(path))
    return module


def test_listing_and_checking_load_no_model_library() -> None:
    program = (
        "import sys\nfrom mitigate.cli.main import main\nassert main(['recipes']) == 0\n"
        "from importlib import import_module\nfrom mitigate.recipes.config import KINDS\n"
        "[import_module(name) for name in KINDS.values()]\n"
        "heavy = {'torch', 'transformers', 'trl', 'datasets', 'gradio', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, stdout=subprocess.DEVNULL)
