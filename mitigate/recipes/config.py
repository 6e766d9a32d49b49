"""Recipes: YAML files whose keys are typed and checked as a whole before anything is loaded.

    task: rlhf                       # which program runs, one of TASKS
    about: GRPO on my own questions  # one line for `mitigate recipes`
    hardware: a 2-core CPU machine
    minutes: 8
    learning_rate: 1e-5              # an option of that task
    reward: {annotator: embedded}    # a section

A task is a module with three names: `Options(Recipe)`, pydantic models that forbid unknown keys; `check(options)`,
which raises `UsageError` for what types can't say (a file or an extra that is missing) and loads nothing heavy; and
`run(options, folder)`, which works in a `RunFolder`. Importing it imports no model library.

`key=value` on the command line overrides a key, `reward.annotator=…` one of a section; values are read as YAML.
A YAML is data: it can't name code to run.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from annotators.base import Annotator
from mitigate.io import UsageError, files, usage

TASKS: dict[str, str] = {
    name: f"mitigate.recipes.{name.replace('-', '_')}"
    for name in (
        "anah", "discriminative-annotator", "generative-annotator", "embedded-annotator", "fewl",
        "icl", "inference", "mask-dpo", "rlhf", "self-training", "sft",
    )
} | {"build-dataset": "mitigate.dataset.pipeline"}  # fmt: skip
"""What `task:` may say, and the module that it means."""


class Section(BaseModel):
    """A group of options: unknown keys are errors, values are immutable and finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class Recipe(Section):
    task: str
    about: str = Field(min_length=1, max_length=160, description="one line for `mitigate recipes`")
    hardware: str = Field(min_length=1, description="the smallest machine that it is meant for")
    minutes: float | None = Field(default=None, gt=0, description="measured on that hardware; null: not measured")
    # Annotators that a Python program hands in under a name; a YAML can't, since it is data.
    _annotators: dict[str, Annotator] = PrivateAttr(default_factory=dict)


SectionT = TypeVar("SectionT", bound=Section)


class _Loader(yaml.SafeLoader):
    """SafeLoader that takes a key given twice for the mistake it is."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: list[Any] = []  # of keys that may not be hashable, of which the SafeLoader speaks in its own words
        for name, _ in node.value:
            key = self.construct_object(name, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is there twice", name.start_mark)
            seen.append(key)
        return super().construct_mapping(node, deep)


def nearest(name: object, known: Iterable[str], before: str = "") -> str:
    """ "; did you mean …?" with the nearest known name, ``before`` in front of it, or the list of them."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    return f"; did you mean {before + near[0]!r}?" if near else f"; known are {', '.join(names)}"


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The keys and values of a YAML file, none of an empty one; UsageError where it holds anything else."""
    with files(UsageError, f"cannot read {path}"), usage(f"cannot read {path}: ", UnicodeDecodeError):
        text = Path(path).read_text(encoding="utf-8")
    found = _parse(text, str(path))
    if not isinstance(found, dict | None):
        raise UsageError(f"{path}: expected keys and values (`key: value`), got {type(found).__name__}")
    return found or {}


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # _Loader is a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{where}: expected YAML: {' '.join(str(error).split())}") from error


def override(data: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of `data` with `key=value` and `section.key=value` put in; values are read as YAML."""
    full = dict(data)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise UsageError(f"expected key=value or section.key=value, got {assignment!r}")
        section = full
        for key in keys[:-1]:
            inner = section.get(key)
            if inner is not None and not isinstance(inner, Mapping):
                raise UsageError(f"{assignment!r}: {key} is {inner!r}, which has no keys")
            section[key] = dict(inner or {})
            section = section[key]
        section[keys[-1]] = _parse(text, assignment)
    return full


def check(model: type[SectionT], data: Mapping[str, Any], where: str) -> SectionT:
    """Check keys and values against a model and fill in its defaults.

    Raises UsageError, which names ``where`` and every wrong key: what was expected, what came, the nearest known key.
    """
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        wrong = [_problem(model, problem) for problem in error.errors(include_url=False)]
        raise UsageError(f"{where}: " + "; ".join(dict.fromkeys(wrong))) from None


def _problem(model: type[BaseModel], problem: Mapping[str, Any]) -> str:
    path = [str(part) for part in problem["loc"]]
    name = ".".join(path)
    if problem["type"] == "extra_forbidden":
        return f"unknown key {name!r}{nearest(path[-1], _known(model, path[:-1]), name.removesuffix(path[-1]))}"
    if problem["type"] == "missing":
        return f"the key {name!r} is missing"
    if problem["type"] == "value_error":  # of a check of ours, whose words say what came
        return f"{name}: {str(problem['ctx']['error']).removeprefix(f'{path[-1]}: ')}"
    message, got = problem["msg"], repr(problem["input"])
    return f"{name}: {message[0].lower()}{message[1:]}, got {got if len(got) <= 80 else got[:77] + '…'}"


def _known(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The keys of the section that a path leads to; union members' names in the path are passed over."""
    for part in path:
        if (field := model.model_fields.get(part)) is not None:
            members = (field.annotation, *get_args(field.annotation))
            model = next((m for m in members if isinstance(m, type) and issubclass(m, BaseModel)), model)
    return list(model.model_fields)


def recipes_folder() -> Path:
    """The folder of the recipes that come with the toolkit: of the checkout, else of the installed package."""
    beside = Path(__file__).parents[2] / "recipes"
    return beside if (beside / "README.md").is_file() else Path(__file__).parent / "files"


def list_recipes(folder: Path) -> list[Path]:
    """The recipes below a folder, sorted; `accelerate/` holds launcher files and is left out."""
    return sorted(f for f in folder.rglob("*.yaml") if "accelerate" not in f.relative_to(folder).parts)


def find_recipe(name: str | Path) -> Path:
    """The file of a recipe: a path, or the name of one that comes with the toolkit (`rlhf/small_gpu`)."""
    if Path(name).is_file():
        return Path(name)
    folder = recipes_folder()
    known = {str(file.relative_to(folder).with_suffix("")): file for file in list_recipes(folder)}
    short = str(name).removeprefix("recipes/").removesuffix(".yaml")
    if short in known:
        return known[short]
    raise UsageError(f"no recipe {str(name)!r}: expected a YAML file{nearest(short, known)}")


def load_recipe(
    name: str | Path, assignments: Sequence[str] = (), annotators: Mapping[str, Annotator] | None = None
) -> tuple[Recipe, ModuleType]:
    """Read, override and check a recipe, a file or the name of one; loads no model.

    Annotators of the calling program come under the names that the recipe may use for them. Returns its options, and
    the module of its task. Raises UsageError: the file, a key or a value is wrong.
    """
    path = find_recipe(name)
    data = override(read_yaml(path), assignments)
    task = data.get("task")
    if "task" not in data:
        raise UsageError(f"{path}: the key 'task' is missing; expected one of {', '.join(TASKS)}")
    if not isinstance(task, str) or task not in TASKS:
        raise UsageError(f"{path}: unknown task {task!r}{nearest(task, TASKS)}")
    module = import_module(TASKS[task])
    options = check(module.Options, data, str(path))
    options._annotators.update(annotators or {})
    module.check(options)
    return options, module


def dump(options: Section) -> str:
    return str(yaml.safe_dump(options.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=100))
