"""`mitigate run RECIPE`, its aliases `train annotator` and `build-dataset`, and `mitigate recipes`.

    mitigate recipes
    mitigate run rlhf/small_gpu trainer.learning_rate=1e-4 --output out/runs/mine
    mitigate run rlhf/small_gpu trainer.learning_rate=1e-4 --output out/runs/mine     # goes on where it stopped

A recipe is a YAML file (mitigate/recipes/config.py). All of it is checked before a model is loaded; the resolved form is
printed and kept in the run folder (mitigate/recipes/folder.py).
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from engines.cache import CacheError
from engines.types import EngineError
from mitigate.io import OutputError, UsageError

TRAIN_TASKS = {"annotator": ("embedded-annotator", "discriminative-annotator", "generative-annotator")}
BUILD_TASKS = ("build-dataset",)
Subparsers = argparse._SubParsersAction  # its public name does not exist


def add_parser(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Add `run`, `train`, `build-dataset` and `recipes`."""
    parser = subparsers.add_parser(
        "run",
        help="run a recipe",
        description="Run a recipe: a YAML file, or the name of one that `mitigate recipes` lists. Writes a run "
        "folder. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 some input lines were rejected, 130 interrupted.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a YAML file, or a name such as rlhf/small_gpu")
    _add_options(parser)
    parser.set_defaults(run=run, tasks=None)

    train = subparsers.add_parser("train", help="train an annotator")
    what = train.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, tasks in TRAIN_TASKS.items():
        alias = what.add_parser(name, help=f"same as `mitigate run` with a recipe for an {name}")
        _add_alias(alias, tasks)
    alias = subparsers.add_parser("build-dataset", help="make an annotated data set from topics and documents")
    _add_alias(alias, BUILD_TASKS)
    alias.add_argument(
        "--review", action="append_const", const="review=true", default=[], help="stop for a person to correct"
    )

    recipes = subparsers.add_parser("recipes", help="list the recipes that come with the toolkit")
    recipes.set_defaults(run=print_recipes)


def _add_alias(parser: argparse.ArgumentParser, tasks: tuple[str, ...]) -> None:
    parser.add_argument("--config", dest="recipe", metavar="RECIPE", required=True, help="the recipe, a YAML file")
    _add_options(parser)
    parser.set_defaults(run=run, tasks=tasks)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides", metavar="KEY=VALUE", nargs="*", default=[], help="options to change; section.key=value"
    )
    parser.add_argument("--output", metavar="DIR", type=Path, help="run folder (default: out/runs/RECIPE)")
    parser.add_argument("--overwrite", action="store_true", help="delete the run that is in the folder, and begin anew")
    parser.add_argument("--check", action="store_true", help="only check the recipe and print it resolved")


def run(args: argparse.Namespace) -> int:
    """Run one recipe."""
    from mitigate.recipes.config import dump, find_recipe, load_recipe, recipes_folder
    from mitigate.recipes.folder import open_run

    args.overrides += getattr(args, "review", [])  # of build-dataset
    path = find_recipe(args.recipe)
    options, module = load_recipe(path, args.overrides, args.annotators)
    if args.tasks and options.task not in args.tasks:
        raise UsageError(
            f"{path} has the task {options.task!r}; expected {' or '.join(args.tasks)}: use `mitigate run {path}`"
        )
    print(f"# {path}\n{dump(options)}", end="")
    if args.check:
        return 0
    inside = path.resolve().is_relative_to(recipes_folder().resolve())
    name = path.resolve().relative_to(recipes_folder().resolve()) if inside else Path(path.name)
    output = args.output or Path("out/runs") / "-".join(name.with_suffix("").parts)
    with open_run(output, options, overwrite=args.overwrite) as folder:
        print(f"# run folder: {output}", flush=True)
        if folder.done is not None:
            show = getattr(module, "show", None)  # a task that prints more than figures
            print(f"complete since an earlier run{'' if show else f': {folder.done}'}", flush=True)
            if show:
                show(folder)
            return 0
        try:
            code = module.run(options, folder)
        except UsageError:
            folder.discard()
            raise
        except (EngineError, CacheError, OutputError) as error:
            return _stopped(args, output, f"error: {error}", 1)
        except KeyboardInterrupt:
            return _stopped(args, output, "interrupted", 130)
    return int(code or 0)


def _stopped(args: argparse.Namespace, output: Path, why: str, code: int) -> int:
    """Say how to go on; returns the exit code."""
    again = shlex.join(["run", args.recipe, *args.overrides, "--output", str(output)])
    print(f"mitigate: {why}; what is done is kept, go on with: {args.program} {again}", file=sys.stderr)
    return code


def print_recipes(_: argparse.Namespace) -> int:
    """One line a recipe: name, what it does, hardware and minutes."""
    from mitigate.recipes.config import list_recipes, read_yaml, recipes_folder

    folder = recipes_folder()
    rows = []
    for file in list_recipes(folder):
        data = read_yaml(file)
        minutes = data.get("minutes")
        time = "time not measured" if minutes is None else f"{minutes:g} min"
        name = str(file.relative_to(folder).with_suffix(""))
        rows.append((name, f"{data.get('about', '')}  [{data.get('hardware', '')}; {time}]"))
    width = max((len(name) for name, _ in rows), default=0)
    print("\n".join(f"{name:<{width}}  {rest}" for name, rest in rows) or f"no recipes in {folder}")
    return 0
