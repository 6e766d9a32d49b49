"""`mitigate run RECIPE`, `train RECIPE` and `build-dataset RECIPE`, which are one command, and `mitigate recipes`.

    mitigate recipes
    mitigate run rlhf/small_gpu trainer.learning_rate=1e-4 --output out/runs/mine

A recipe is a YAML file (mitigate/recipes/config.py). All of it is checked before a model is loaded; the resolved form
is printed and kept in the run folder (mitigate/recipes/folder.py). The same command continues an interrupted run.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from annotators.base import Annotator
from engines.cache import CacheError
from engines.packaged import sha256
from engines.types import EngineError
from engines.usage import METER
from mitigate.cli.options import Args, Subparsers, add_command, print_json
from mitigate.io import FAILED, OutputError, UsageError, say
from mitigate.report.terminal import console, plain, table

EXIT_CODES = (
    "The exit code is 0 when all is done, 1 after a failure, 2 for wrong usage, 3 when input lines were rejected, and "
    "130 after an interruption."
)
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {  # name → what it does, and the tasks of its recipes (any)
    "run": ("Run a recipe.", ()),
    "train": (
        "Run a recipe that trains an annotator.",
        ("embedded-annotator", "discriminative-annotator", "generative-annotator"),
    ),
    "build-dataset": ("Run a recipe that makes an annotated data set from topics and documents.", ("build-dataset",)),
}


FLAGS: dict[str, tuple[str, str, str]] = {  # flag → command, what it does, the key that it sets
    "--review": ("build-dataset", "The command stops for a person to correct what was made.", "review=true"),
    "--uncalibrated": ("run", "The reward's annotator was not fitted to such answers.", "uncalibrated=true"),
    "--same-judge": ("run", "The reward's annotator may also judge the answers.", "evaluation.same_judge=true"),
}


def add_parser(subparsers: Subparsers, annotators: Mapping[str, Annotator]) -> None:
    """Add `run`, `train`, `build-dataset` and `recipes`; recipes may use these annotators by name."""
    for name, (text, tasks) in COMMANDS.items():
        more = "RECIPE is a YAML file, or the name of one that `mitigate recipes` lists."
        parser = add_command(subparsers, name, text, more, EXIT_CODES)
        parser.option("recipe", "This YAML file, or name such as rlhf/small_gpu, is run.", "RECIPE")
        text = "The recipe's KEY, or KEY of a section as SECTION.KEY, gets this value."
        parser.option("overrides", text, "KEY=VALUE", nargs="*", default=[])
        parser.output(continued=True, required=False, folder="out/runs/RECIPE")
        parser.cost()
        parser.flag("--check", "The recipe is only checked and printed resolved.")
        for flag, (command, text, key) in FLAGS.items():
            if command == name:
                parser.flag(flag, f"{text[:-1]} ({key}).")
        parser.set_defaults(run=partial(run, program=parser.prog, tasks=tasks, annotators=annotators))
    recipes = add_command(subparsers, "recipes", "List the recipes that come with the toolkit.", exit_codes="")
    recipes.json()
    recipes.set_defaults(run=print_recipes)


def run(args: Args, *, program: str, tasks: tuple[str, ...], annotators: Mapping[str, Annotator]) -> int:
    from mitigate.recipes.config import dump, find_recipe, load_recipe, read_yaml, recipes_folder
    from mitigate.recipes.folder import open_run

    path = find_recipe(args.recipe)
    given = vars(args)
    overrides = [*args.overrides, *(key for f, (*_, key) in FLAGS.items() if given.get(f[2:].replace("-", "_")))]
    if tasks and (task := read_yaml(path).get("task")) is not None and task not in tasks:
        raise UsageError(f"{path} is of task {task!r}; expected {' or '.join(tasks)}: use `mitigate run {path}`")
    options, module = load_recipe(path, overrides, annotators)
    resolved = dump(options)
    if not annotators and "openai:" not in resolved:  # those of a calling program may ask anything
        args.check_costs(())
    print(f"# {path}\n{resolved}", end="")
    if args.check:
        return 0
    inside = path.resolve().is_relative_to(recipes_folder().resolve())
    name = path.resolve().relative_to(recipes_folder().resolve()) if inside else Path(path.name)
    output = args.output or Path("out/runs") / "-".join(name.with_suffix("").parts)
    texts = {str(path) for path in getattr(options, "corpus", ())}
    named = sorted(input_files(options.model_dump(mode="json")))
    digests = {name: digest(Path(name), () if name in texts else DATA) for name in named}
    with open_run(output, options, overwrite=args.overwrite) as folder:
        print(f"# run folder: {output}", flush=True)
        done = folder.done is not None and not args.overwrite  # which another process may be deleting
        if done:
            code = folder.exit_code(digests)
        if done and not getattr(module, "GOES_ON", False):
            show = getattr(module, "show", None)  # of a task that prints more than figures
            print(f"complete since an earlier run{'' if show else f': {folder.done}'}", flush=True)
            if show:
                show(folder)
            return code
        try:
            # Other tasks compare what they read, or ask their cache.
            if folder.writes and {"training", "trainer", "rows"} & type(options).model_fields.keys():
                folder.exit_code(digests)
                folder.keep_inputs(digests)
            code = int(module.run(options, folder) or 0)
            if folder.path.is_dir() and folder.done is not None:
                folder.keep_inputs(digests, code)
            return code
        except UsageError:
            folder.discard()
            raise
        except (EngineError, CacheError, OutputError) as error:
            why, code = f"error: {error}", FAILED
        except KeyboardInterrupt:
            why, code = "interrupted", 130
        finally:
            if METER.requests and folder.path.is_dir():  # else it was discarded
                folder.append("usage.jsonl", [METER.to_dict()])
    again = shlex.join([args.recipe, *overrides, "--output", str(output), *args.cost_words()])
    say(f"{why}; what is done is kept, go on with: {program} {again}")
    return code


READ = ("corpus", "data", "sources")  # keys that may name folders
DATA = (".jsonl", ".json", ".csv", ".parquet")  # read there, beside documents, but not in a corpus


def input_files(value: object, key: str = "") -> set[str]:
    """The files that a recipe's options name, and the folders of data."""
    if isinstance(value, str):
        with suppress(OSError, ValueError):  # a text that is no name of a file
            return {value} if Path(value).is_file() or (key in READ and value and Path(value).is_dir()) else set()
        return set()
    if isinstance(value, dict):
        return set().union(*(input_files(inner, name) for name, inner in value.items()))
    return set().union(*(input_files(inner, key) for inner in value)) if isinstance(value, list) else set()


def digest(path: Path, read: tuple[str, ...] = DATA) -> str:
    """That of a file, or of documents and what else is ``read`` below a folder, with their names."""
    if path.is_file():
        return sha256(path)
    from mitigate.dataset.sources import SUFFIXES, files_below

    files = (f for f in files_below(path, (*SUFFIXES, *read)) if f.is_file() and os.access(f, os.R_OK))
    below = (f"{file.relative_to(path)} {sha256(file)}\n" for file in files)
    return hashlib.sha256("".join(below).encode()).hexdigest()


def print_recipes(args: Args) -> int:
    from mitigate.recipes.config import list_recipes, read_yaml, recipes_folder

    folder = recipes_folder()
    rows = {str(file.relative_to(folder).with_suffix("")): read_yaml(file) for file in list_recipes(folder)}
    if args.json:
        print_json({name: {k: row.get(k) for k in ("about", "hardware", "minutes")} for name, row in rows.items()})
        return 0
    shown = table(("recipe", "what it does", "needs", "takes"), (), box=None, pad_edge=False)
    for name, row in rows.items():
        time = "not measured" if row.get("minutes") is None else f"{row['minutes']:g} min"
        shown.add_row(*map(plain, (name, row.get("about", ""), row.get("hardware", ""), time)))
    shown.columns[0].no_wrap = True
    console(250).print(shown)  # in a pipe one line each
    return 0
