"""`mitigate serve`: an OpenAI-compatible proxy that annotates or corrects answers.

    mitigate serve --upstream http://127.0.0.1:8000/v1

An application changes its base URL to http://127.0.0.1:8710/v1 and sends its reference along
(`extra_body={"hallucination": {"reference": …}}`); see docs/inference.md. Bound to loopback unless asked.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing, suppress
from socket import socket
from typing import Any

from annotators.base import engines_in
from engines import check_base_url
from mitigate.cli.options import Args, Subparsers, add_command
from mitigate.io import FAILED, UsageError, usage
from mitigate.models import open_annotator, open_engine

TOKEN = "MITIGATE_SERVE_TOKEN"
KEY = "MITIGATE_UPSTREAM_KEY"


def add_parser(subparsers: Subparsers) -> None:
    more = (
        "Requests that carry a reference get their answers annotated or corrected, everything else passes through. "
        f"{TOKEN} sets a bearer token that clients must send; {KEY} is then sent upstream (without it, a client's own "
        "authorization is passed on when there is no token)."
    )
    text = "Annotate or correct the answers of an OpenAI-compatible endpoint, as a proxy in front of it."
    parser = add_command(subparsers, "serve", text, more, "")
    parser.option("--upstream", "The endpoint behind the proxy is at http://HOST:PORT/v1.", "URL", required=True)
    parser.option("--host", "The proxy listens on this address (%(default)s).", default="127.0.0.1")
    text = "The proxy listens on this port (%(default)s)."
    parser.number("--port", text, "0 to 65535", lambda port: 0 <= port < 65536, kind=int, default=8710)
    parser.annotator()
    parser.engine("This language model writes flagged sentences anew.")
    parser.cache("no cache")
    parser.count("--max-bytes", "A request has at most N bytes (%(default)s).", 10_000_000)
    text = "The endpoint behind the proxy may stay silent for N seconds (%(default)s)."
    parser.number("--timeout", text, "more than 0", lambda seconds: seconds > 0, default=300.0)
    parser.set_defaults(run=run)


def run(args: Args) -> int:
    """Serve until interrupted."""
    with usage():
        check_base_url(args.upstream, "--upstream")
    args.check_engine()
    options = args.calibration_options(args.annotator)
    if args.cache is not None and engines_in(args.annotator):
        options = {"cache": args.cache, **options}
    with usage("serve needs more packages, pip install 'hallucination-toolkit[serve]': ", ImportError):
        import uvicorn

        from mitigate.inference.correct import with_engine
        from mitigate.inference.serve import LOOPBACK, Proxy
    token = os.environ.get(TOKEN) or None
    if args.host not in LOOPBACK and token is None:
        raise UsageError(
            f"--host: {args.host} can be reached by others: set {TOKEN} to a secret that clients send as their key"
        )
    with ExitStack() as stack:
        regenerate = None
        if args.engine is not None:
            engine = stack.enter_context(closing(open_engine(args.engine, "--engine", args.cache)))
            regenerate = with_engine(engine)
        annotator = open_annotator(args.annotator, options)
        key = os.environ.get(KEY) or None
        corrects = regenerate is not None or bool(engines_in(args.annotator))
        how: dict[str, Any] = {"regenerate": regenerate, "corrects": corrects, "token": token, "key": key}
        proxy = Proxy(args.upstream, annotator, **how, max_bytes=args.max_bytes, timeout=args.timeout)

        class Server(uvicorn.Server):
            """A server that tells its base URL once it listens."""

            async def startup(self, sockets: list[socket] | None = None) -> None:
                await super().startup(sockets)
                if self.started:
                    host = f"[{args.host}]" if ":" in args.host else args.host
                    port = self.servers[0].sockets[0].getsockname()[1]
                    print(f"annotator {annotator.name} in front of {args.upstream}", flush=True)
                    print(f"base URL: http://{host}:{port}/v1", flush=True)

        settings = {"host": args.host, "port": args.port, "log_level": "warning", "timeout_graceful_shutdown": 5}
        server = Server(uvicorn.Config(proxy.app(), **settings))
        with suppress(KeyboardInterrupt, SystemExit):  # uvicorn has said why, such as a port in use
            server.run()
        return 0 if server.started else FAILED
