"""`mitigate demo`: the page in a browser.

    mitigate demo
    mitigate demo --annotator embedded --annotator generative:openai:MODEL@http://127.0.0.1:8000/v1 --port 7860

Bound to loopback unless asked; nothing is downloaded at the start, and texts go only to servers that are named.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from annotators.base import Annotator
from mitigate.cli.options import ANNOTATORS, ENGINE, Args, Subparsers, add_command
from mitigate.io import UsageError, say, usage

AUTH = "MITIGATE_DEMO_AUTH"


def add_parser(subparsers: Subparsers) -> None:
    more = "A model answers and its answer is mended, answers are compared, files annotated. See docs/demo.md."
    parser = add_command(subparsers, "demo", "Annotate, mend and compare answers in a browser.", more, "")
    parser.option("--host", "The page listens on this address (%(default)s).", default="127.0.0.1")
    text = "The page listens on this port (a free one from 7860 on)."
    parser.number("--port", text, "1 to 65535", lambda port: 0 < port < 65536, kind=int)
    text = f"The page asks for this name and password, one for each person; {AUTH} does the same unseen."
    parser.repeated("--auth", text, "NAME:PASSWORD")
    parser.flag("--share", "Gradio tunnels the page to a public address, for which it downloads its tunnel.")
    parser.repeated("--annotator", f"{ANNOTATORS}. The page offers each; the first is its default (embedded).", "NAME")
    parser.calibration("The first annotator")
    parser.repeated(
        "--engine", "The page offers this language model; the first is its default (packaged SmolLM2).", ENGINE
    )
    parser.count("--max-characters", "A question or an answer has at most N characters (%(default)s).", 50_000)
    parser.count("--max-reference", "A reference has at most N characters (%(default)s).", 500_000)
    parser.count("--max-records", "An uploaded file has at most N records (%(default)s).", 1_000)
    text = "Visitors may add documents of public web addresses, also where others reach the page; on loopback they may."
    parser.flag("--fetch", text)
    parser.set_defaults(run=run)


def run(args: Args) -> int:
    people = []
    for text in [*args.auth, *filter(None, [os.environ.get(AUTH)])]:
        name, colon, password = text.partition(":")
        if not (name and colon and password):
            raise UsageError("--auth: expected NAME:PASSWORD")
        people.append((name, password))
    names = args.annotator or ["embedded"]
    calibration = args.calibration_options(names[0])
    with usage("demo needs more packages, pip install 'hallucination-toolkit[demo]': ", ImportError):
        import gradio  # noqa: F401
    from mitigate.demo.limits import Limits, Refusal
    from mitigate.demo.page import LOOPBACK, build, launch
    from mitigate.demo.service import SMOLLM2, Service, Shelf

    def load(name: str) -> Annotator:
        from annotators import load_annotator

        return load_annotator(name, **(calibration if name == names[0] else {}))

    private = args.host in LOOPBACK and not args.share and not people  # with a password it may stand behind a proxy
    if not private and not people:
        say(f"others can reach this page and there is no --auth or {AUTH}")
    if threading.current_thread() is threading.main_thread():  # what visitors gave is deleted then, too
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    limits = Limits(args.max_characters, args.max_reference, args.max_records)
    shelf = Shelf(names, open_choice=private, load=load, engines=args.engine or [SMOLLM2])
    with usage("", Refusal):  # what was asked for by name is loaded first: visitors must not find a mistyped one
        for name in reversed(names if args.annotator or calibration else []):
            shelf.annotator(name)
        for name in reversed(args.engine or []):
            shelf.engine(name)
    shelf.warm()
    page = build(Service(shelf, limits, fetch=private or args.fetch))
    with usage(f"cannot listen on {args.host}, port {args.port or 'from 7860 on'}: ", OSError):
        launch(page, limits, host=args.host, port=args.port, auth=people, share=args.share)
    return 0
