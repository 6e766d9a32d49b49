"""Recipes are checked whole and early, and mistakes are named clearly."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from annotators.generative.prompts import names_of
from annotators.operating import FILE, Calibration
from mitigate.cli.main import main
from mitigate.cli.run import digest, input_files
from mitigate.io import UsageError
from mitigate.recipes.config import TASKS, check, list_recipes, load_recipe, override, read_yaml, recipes_folder
from tests.helpers.example_task import Options

ROOT = Path(__file__).parents[3]


def test_defaults_overrides_and_sections(recipe):
    path = recipe(reward={"weight": 0.5})
    options, module = load_recipe(path, ["steps=7", "reward.annotator=here", "learning_rate=3e-4", "other.weight=2"])
    assert module.__name__ == "tests.helpers.example_task"
    assert isinstance(options, Options)
    assert (options.steps, options.learning_rate, options.mode) == (7, 3e-4, "fast")
    assert (options.reward.weight, options.reward.annotator, options.other.weight) == (0.5, "here", 2)


@pytest.mark.parametrize(("options", "message"), [
    ({"learning_rat": 1}, r"unknown key 'learning_rat'; did you mean 'learning_rate'\?"),
    ({"reward": {"wieght": 1}}, r"unknown key 'reward.wieght'; did you mean 'reward.weight'\?"),
    ({"other": {"wieght": 1}}, r"unknown key 'other.wieght'; did you mean 'other.weight'\?"),
    ({"named": {"a": {"wieght": 1}}}, r"unknown key 'named.a.wieght'; did you mean 'named.a.weight'\?"),
    ({"steps": 0}, r"steps: .*greater than or equal to 1, got 0"),
    ({"steps": "many"}, r"steps: .*valid integer.*got 'many'"),
    ({"mode": "quick"}, r"mode: .*'fast' or 'slow', got 'quick'"),
    ({"learning_rate": float("nan")}, r"learning_rate: .*finite"),
    ({"reward": 3}, r"reward: .*got 3"),
    ({"steps": 0, "mode": 1, "x": 2}, r"steps: .*; mode: .*; unknown key 'x'"),
    ({"task": "exampel"}, r"unknown task 'exampel'; did you mean 'example'\?"),
    ({"task": ["example"]}, r"unknown task \['example'\]"),
    ({"refuse": "check"}, r"refuse: expected an empty one"),
])  # fmt: skip
def test_wrong_options_are_named(recipe, options, message):
    with pytest.raises(UsageError, match=message):
        load_recipe(recipe(**options))


@pytest.mark.parametrize(("text", "message"), [
    ("a: [", "expected YAML"),
    ("- a\n- b", "expected keys and values .* got list"),
    ("", "the key 'task' is missing"),
    ("steps: 1\nsteps: 2", "the key 'steps' is there twice .*line 2, column 1"),
    ("reward: {weight: 1, weight: 2}", "the key 'weight' is there twice"),
])  # fmt: skip
def test_wrong_files_are_named(tmp_path, text, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        load_recipe(path)


def test_files_and_keys_that_are_not_there_are_named(tmp_path):
    for look, wrong, message in (
        (load_recipe, tmp_path / "nowhere.yaml", "no recipe"),
        (read_yaml, tmp_path, "cannot read"),
        (lambda data: check(Options, data, "x"), {"task": "example"}, "key 'about' is missing; the key 'hardware' is"),
    ):
        with pytest.raises(UsageError, match=message):
            look(wrong)


def test_the_data_files_of_a_recipe_are_known(tmp_path):
    """A run that is begun with other contents of these does not go on."""
    names = ["a.jsonl", "b.ndjson", "c.CSV", "d.parquet", "e"]
    for name in names:
        (tmp_path / name).write_text("x")
    paths = [str(tmp_path / name) for name in names]
    options = {"x": {"y": paths[1:3], "z": [{"w": paths[3]}]}, "v": paths[4], "n": 3, "data": {"sources": [paths[0]]}}
    assert input_files({**options, "none": "missing.jsonl", "template": "x" * 5000, "text": "\0"}) == set(paths)
    (folder := tmp_path / "more").mkdir()
    (folder / "a.jsonl").write_text("1")
    assert input_files({"data": {"sources": [str(folder)]}, "model": str(folder)}) == {str(folder)}
    before = digest(folder)
    (folder / "a.jsonl").write_text("2")
    assert digest(folder) != before


def test_overrides_leave_the_original_alone():
    data = {"reward": {"weight": 1}, "steps": 3}
    found = override(data, ["reward.weight=2", "a.b.c=[1, x]"])
    assert found == {"reward": {"weight": 2}, "a": {"b": {"c": [1, "x"]}}, "steps": 3}
    for wrong in ("steps", "=3", "a..b=1", "steps.x=1"):
        with pytest.raises(UsageError, match=r"expected key=value|which has no keys"):
            override(data, [wrong])
    assert data == {"reward": {"weight": 1}, "steps": 3}


def test_check_prints_the_resolved_recipe(recipe, capsys):
    assert main(["run", str(recipe()), "mode=slow", "--check"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == {
        "task": "example", "about": "counts", "hardware": "any", "minutes": 1.0, "steps": 3, "learning_rate": 1e-5,
        "mode": "slow", "reward": {"annotator": "embedded", "weight": 1.0}, "other": None, "named": {},
        "break_at": None, "refuse": "",
    }  # fmt: skip


@pytest.mark.parametrize(("task", "assignment", "message"), [
    ("discriminative", "base=./nowhere", "no such file or folder"),
    ("discriminative", "training.deepspeed=zero.json", "expected a JSON file, there is none"),
    ("discriminative", f"training.fsdp_config={__file__}", r"expected training\.fsdp beside it"),
    ("discriminative", "training.seed=5000000000", "training.seed: .*less than 2147483648"),
    ("discriminative", "training.optim=adamw_bnb_8bit", "training.optim: adamw_bnb_8bit needs bitsandbytes: pip"),
    ("generative", f"dialogue=[{__file__}]", "expected files under `dialogue` and a share above 0, or neither"),
    ("generative", "mix.annotation=0.5", "expected shares that sum to 1, got 0"),
    ("generative", "dialogue=[nowhere.jsonl]", "dialogue: cannot read nowhere.jsonl: no such file"),
    ("generative", "mix={annotation: 0.5, dialogue: 0.5}", "expected files under `dialogue`"),
    ("generative", "prompts=[nonsense]", "prompts: expected some of plain"),
    ("generative", f"prompts=[{', '.join(names_of('tagged', 'en'))}]", "at least one wording to be held out"),
])  # fmt: skip
def test_wrong_options_of_annotators_are_named(task, assignment, message):
    pytest.importorskip("trl")
    with pytest.raises(UsageError, match=message):
        load_recipe(f"annotators/{task}", [assignment])


@pytest.mark.parametrize("path", list_recipes(recipes_folder()), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_recipe_of_the_toolkit_is_valid(path):
    """Types and names of all keys; extras and files that `check` asks for need not be here."""
    data = read_yaml(path)
    module = import_module(TASKS[data["task"]])
    check(module.Options, data, str(path))
    assert module.run
    assert (path.parent / "README.md").is_file() or (path.parent.parent / "README.md").is_file()


def test_calibration_of_the_example_is_for_the_shipped_annotator():
    """New weights, or another rule of the verifier, need new labels there, or `uncalibrated`."""
    reward = read_yaml(recipes_folder() / "mask_dpo" / "example.yaml")["reward"]
    paths = (ROOT / reward["calibration"], ROOT / "annotators" / "verifier" / reward["annotator"] / FILE)
    assert len({Calibration.load(path).annotator for path in paths}) == 1


def test_listing_and_checking_load_no_model_library():
    program = (
        "import sys\nfrom mitigate.cli.main import main\nassert main(['recipes']) == 0\n"
        "from importlib import import_module\nfrom mitigate.recipes.config import TASKS\n"
        "[import_module(name) for name in TASKS.values()]\n"
        "heavy = {'torch', 'transformers', 'trl', 'datasets', 'gradio', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, stdout=subprocess.DEVNULL)
