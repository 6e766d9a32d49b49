"""`mitigate demo`: the page in a browser.

    mitigate demo
    mitigate demo --annotator embedded --annotator generative:openai:MODEL@http://127.0.0.1:8000/v1 --port 7860

Bound to loopback unless asked; nothing is downloaded at the start, and nothing is sent to anywhere.
"""

from __future__ import annotations

import argparse
import os

from annotators.base import Annotator
from mitigate.cli.options import ENGINE, add_calibration, at_least, calibration_option, number
from mitigate.io import UsageError, say

AUTH = "MITIGATE_DEMO_AUTH"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "demo",
        help="Annotate, compare and look at training runs in a browser.",
        description="Serve a page that annotates answers, compares them with FEWL, works through files and shows "
        "training runs. See docs/demo.md.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="The page listens on this address (%(default)s).")
    add(
        "--port", metavar="N", type=number("--port", "1 to 65535", lambda port: 0 < port < 65536, int),
        help="The page listens on this port (a free one from 7860 on).",
    )  # fmt: skip
    add(
        "--auth", metavar="NAME:PASSWORD", action="append", default=[],
        help="The page asks for this name and password. The option may be given several times, for several people; "
        f"{AUTH} does the same unseen.",
    )  # fmt: skip
    add(
        "--share", action="store_true",
        help="Gradio tunnels the page to a public address, for which it downloads its tunnel.",
    )  # fmt: skip
    add(
        "--annotator", metavar="NAME", action="append", default=[],
        help=f"The page offers this annotator: embedded, a folder, a hub id, or generative:{ENGINE}. The option may be "
        "given several times; the first is the default of the page (embedded).",
    )  # fmt: skip
    add_calibration(parser, "The first annotator")
    add("--runs", metavar="DIR", default="runs", help="The Training tab shows the run folders in DIR (%(default)s).")
    for name, default, text in (
        ("--max-characters", 50_000, "A text has at most N characters (%(default)s)."),
        ("--max-records", 1_000, "An uploaded file has at most N records (%(default)s)."),
    ):
        add(name, metavar="N", type=at_least(name, 1), default=default, help=text)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    people = _people(args.auth)
    names = args.annotator or ["embedded"]
    calibration = calibration_option(args, names[0])
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise UsageError(f"demo needs more packages: pip install 'hallucination-toolkit[demo]' ({error})") from error
    from mitigate.demo.launch import launch
    from mitigate.demo.limits import Limits
    from mitigate.demo.page import build
    from mitigate.demo.service import Service, Shelf

    def load(name: str) -> Annotator:
        from annotators import load_annotator

        return load_annotator(name, **(calibration if name == names[0] else {}))

    private = args.host in LOOPBACK and not args.share
    if not private and not people:
        say(f"others can reach this page and there is no --auth or {AUTH}")
    limits = Limits(characters=args.max_characters, records=args.max_records)
    shelf = Shelf(names, open_choice=private, load=load)
    shelf.warm()
    page = build(Service(shelf, limits), runs=args.runs, any_folder=private)
    try:
        launch(page, limits, host=args.host, port=args.port, auth=people, share=args.share)
    except OSError as error:
        raise UsageError(f"cannot listen on {args.host}, port {args.port or 'from 7860 on'}: {error}") from error
    return 0


def _people(given: list[str]) -> list[tuple[str, str]]:
    """Names and passwords of the options and of the environment."""
    people = []
    for text in [*given, *filter(None, [os.environ.get(AUTH)])]:
        name, colon, password = text.partition(":")
        if not (name and colon and password):
            raise UsageError("--auth: expected NAME:PASSWORD")
        people.append((name, password))
    return people
