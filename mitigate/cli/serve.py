"""`mitigate serve`: an OpenAI-compatible proxy that annotates or corrects answers.

    mitigate serve --upstream http://127.0.0.1:8000/v1

An application changes its base URL to http://127.0.0.1:8710/v1 and sends its reference along
(`extra_body={"hallucination": {"reference": …}}`); see docs/inference.md. Bound to loopback unless asked.
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack, closing
from pathlib import Path
from socket import socket
from urllib.parse import urlsplit

from mitigate.io import UsageError
from mitigate.models import open_annotator, open_engine

TOKEN = "MITIGATE_SERVE_TOKEN"
KEY = "MITIGATE_UPSTREAM_KEY"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "serve",
        help="proxy in front of an OpenAI-compatible endpoint that annotates or corrects answers",
        description="An OpenAI-compatible proxy: requests that carry a reference get their answers annotated or "
        f"corrected, everything else passes through. {TOKEN} sets a bearer token that clients must send; {KEY} is then "
        "sent upstream (without it, a client's own authorization is passed on when there is no token).",
    )
    parser.add_argument("--upstream", metavar="URL", required=True, help="endpoint behind, http://HOST:PORT/v1")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8710, help="port to listen on (%(default)s)")
    parser.add_argument(
        "--annotator", metavar="NAME", default="embedded", help="embedded, a path or a hub id (%(default)s)"
    )
    parser.add_argument("--engine", metavar="KIND:MODEL[@URL]", help="writes flagged sentences anew")
    parser.add_argument("--cache", metavar="FILE", type=Path, help="response cache of the engine")
    parser.add_argument("--max-bytes", type=int, default=10_000_000, help="largest request (%(default)s bytes)")
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds that the endpoint behind may stay silent (%(default)s)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    if not _is_base_url(args.upstream):
        raise UsageError(f"--upstream: expected a base URL like http://127.0.0.1:8000/v1, got {args.upstream!r}")
    if not 0 <= args.port < 65536:
        raise UsageError(f"--port: expected 0 to 65535, got {args.port}")
    if args.max_bytes < 1 or not args.timeout > 0:
        raise UsageError("--max-bytes and --timeout: expected more than 0")
    if args.cache is not None and args.engine is None:
        raise UsageError("--cache: the response cache of an engine; give --engine too")
    try:
        import uvicorn

        from mitigate.inference.regenerate import with_engine
        from mitigate.inference.serve import LOOPBACK, Proxy
    except ImportError as error:
        raise UsageError(f"serve needs more packages: pip install 'hallucination-toolkit[serve]' ({error})") from error
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
        annotator = open_annotator(args.annotator)
        proxy = Proxy(
            args.upstream,
            annotator,
            regenerate=regenerate,
            token=token,
            key=os.environ.get(KEY) or None,
            max_bytes=args.max_bytes,
            timeout=args.timeout,
        )

        class Server(uvicorn.Server):
            """Tells its base URL once it listens."""

            async def startup(self, sockets: list[socket] | None = None) -> None:
                await super().startup(sockets)
                if self.started:
                    host = f"[{args.host}]" if ":" in args.host else args.host
                    port = self.servers[0].sockets[0].getsockname()[1]
                    print(f"annotator {annotator.name} in front of {args.upstream}", flush=True)
                    print(f"base URL: http://{host}:{port}/v1", flush=True)

        server = Server(
            uvicorn.Config(
                proxy.app(), host=args.host, port=args.port, log_level="warning", timeout_graceful_shutdown=5
            )
        )
        try:
            server.run()
        except SystemExit:  # uvicorn has said why, such as a port in use
            return 1
        except KeyboardInterrupt:
            pass
        return 0 if server.started else 1


def _is_base_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port  # .port raises where it is none
    except ValueError:
        return False
    extra = parts.query or parts.fragment or parts.username
    return parts.scheme in ("http", "https") and bool(host) and not extra and not any(map(str.isspace, text))
