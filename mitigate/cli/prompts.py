"""`mitigate prompts import`: published prompts that the user has a copy of, as templates of the generative annotator.

mitigate prompts import anahv2_prompt.py --output anah.yaml
mitigate annotate --templates anah.yaml --protocol three-turn --prompt anah-v2 --annotator generative:… …
"""

from __future__ import annotations

from pathlib import Path

import yaml

from mitigate.cli.options import Args, Subparsers, add_command, print_json
from mitigate.io import check_paths, say, usage, write_bytes


def add_parser(subparsers: Subparsers) -> None:
    parser = add_command(subparsers, "prompts", "Turn published prompts into templates for annotators.", "", "")
    group = parser.add_subparsers(metavar="COMMAND", required=True)
    text = "Read your copy of the prompts of ANAH or ANAH-v2 and write them as templates."
    parser = add_command(group, "import", text, "They are named anah-v1 (tagged) and anah-v2 (three-turn).", "")
    parser.option("source", "This file, or folder of files, holds the prompts (.py, .txt, .md).", "SOURCE", type=Path)
    parser.output()
    parser.set_defaults(run=run)


def run(args: Args) -> int:
    from annotators.generative.prompts import read_published

    check_paths([args.source] if args.source.is_file() else [], args.output, overwrite=args.overwrite)
    with usage():
        rows = read_published(args.source)
    write_bytes(args.output, yaml.safe_dump(rows, allow_unicode=True, sort_keys=False, width=120).encode())
    if args.json:
        print_json({"templates": rows})
    said = ", ".join(f"{row['name']} ({row['protocol']}, {row['language']})" for row in rows)
    say(f"templates: {args.output}: {said}")
    return 0
