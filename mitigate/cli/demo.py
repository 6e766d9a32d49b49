"""`mitigate demo`: the page in a browser.

    mitigate demo
    mitigate demo --annotator embedded --annotator generative:openai:MODEL@http://127.0.0.1:8000/v1 --port 7860

Bound to loopback unless asked; nothing is downloaded at the start, and nothing is sent to anywhere.
"""

from __future__ import annotations

import argparse
import os
import sys

from mitigate.io import UsageError

AUTH = "MITIGATE_DEMO_AUTH"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "demo",
        help="annotate, compare and look at training runs in a browser",
        description="Serve a page that annotates answers, compares them with FEWL, works through files and shows "
        "training runs. See docs/demo.md.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, metavar="N", help="port to listen on (a free one from 7860 on)")
    parser.add_argument(
        "--auth",
        metavar="NAME:PASSWORD",
        action="append",
        default=[],
        help=f"ask for this name and password; several times for several people; {AUTH} does the same unseen",
    )
    parser.add_argument(
        "--share", action="store_true", help="let Gradio tunnel the page to a public address (downloads its tunnel)"
    )
    parser.add_argument(
        "--annotator",
        metavar="NAME",
        action="append",
        default=[],
        help="offered on the page, the first by default: embedded, a path, a hub id, or generative:KIND:MODEL[@URL]; "
        "may be given several times (embedded)",
    )
    parser.add_argument(
        "--runs", metavar="DIR", default="runs", help="folder of run folders for the Training tab (%(default)s)"
    )
    parser.add_argument("--max-characters", metavar="N", type=int, default=50_000, help="of one text (%(default)s)")
    parser.add_argument(
        "--max-records", metavar="N", type=int, default=1_000, help="of one uploaded file (%(default)s)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    people = _people(args.auth)
    if args.port is not None and not 0 < args.port < 65536:
        raise UsageError(f"--port: expected 1 to 65535, got {args.port}")
    for name in ("max_characters", "max_records"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')}: expected 1 or more, got {getattr(args, name)}")
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise UsageError(f"demo needs more packages: pip install 'hallucination-toolkit[demo]' ({error})") from error
    from mitigate.demo.launch import launch
    from mitigate.demo.limits import Limits
    from mitigate.demo.page import build
    from mitigate.demo.service import Service, Shelf

    private = args.host in LOOPBACK and not args.share
    if not private and not people:
        print(f"mitigate: others can reach this page and there is no --auth or {AUTH}", file=sys.stderr)
    limits = Limits(characters=args.max_characters, records=args.max_records)
    shelf = Shelf(args.annotator or ["embedded"], open_choice=private)
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
