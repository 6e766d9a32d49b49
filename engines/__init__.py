"""Ground floor: language models, embeddings, the response cache; engine strings ``KIND:MODEL[@BASE_URL]`` → an engine.

    transformers:PATH_OR_ID                        a local checkpoint, or packaged:NAME, in this process
    vllm:PATH_OR_ID                                the same through vLLM's offline ``LLM``; with options of it as
                                                   ``?tensor_parallel_size=2&max_model_len=16384``
    openai:MODEL@http://127.0.0.1:8000/v1          any OpenAI-compatible server (key: OPENAI_API_KEY)
    openai:MODEL                                   OpenAI itself, or the client's OPENAI_BASE_URL

What follows ``KIND:`` is taken as it is, so a path may hold ``:`` and ``@``; only ``@http://`` and
``@https://`` begin a base URL.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engines import packaged
from engines.cache import CachedEngine, CacheError, ResponseCache
from engines.types import NOT_ASKED, Chat, ChatResult, Engine, EngineError, Sample, Sampling, Token

__all__ = [
    "NOT_ASKED", "CacheError", "CachedEngine", "Chat", "ChatResult", "Engine", "EngineError", "EngineSpec",
    "ResponseCache", "Sample", "Sampling", "Token", "load_engine", "parse_engine",
]  # fmt: skip

KINDS = ("transformers", "vllm", "openai")
EXAMPLE_URL = "a base URL like http://127.0.0.1:8000/v1"
FORM = "KIND:MODEL[@BASE_URL] with KIND one of " + ", ".join(KINDS)


VLLM_OPTIONS: dict[str, type[int] | type[float]] = {
    "tensor_parallel_size": int, "max_model_len": int, "gpu_memory_utilization": float,
}  # fmt: skip
"""What an engine string may say of how vLLM runs; it has no part in what vLLM answers."""


@dataclass(frozen=True)
class EngineSpec:
    """An engine string in its parts; ``base_url`` is None unless given, ``options`` are of ``VLLM_OPTIONS``."""

    kind: str
    model: str
    base_url: str | None = None
    options: dict[str, float] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        options = "&".join(f"{name}={value}" for name, value in self.options.items())
        options = "?" * bool(options) + options
        return f"{self.kind}:{self.model}{options}" + (f"@{self.base_url}" if self.base_url else "")


def parse_engine(text: str) -> EngineSpec:
    """The parts of an engine string ``KIND:MODEL[@BASE_URL]``. Raises ValueError, which says what is wrong with it."""
    kind, colon, rest = text.partition(":")
    if not colon or kind not in KINDS:
        raise ValueError(f"engine {text!r}: expected {FORM}, for example transformers:./my-model")
    found = re.search(r"@(?=https?://)", rest, re.IGNORECASE)
    model, url = (rest[: found.start()], rest[found.end() :]) if found else (rest, None)
    model, options = _vllm_options(text, model) if kind == "vllm" else (model, {})
    if kind == "transformers" and "?" in model:
        raise ValueError(f"engine {text!r}: expected no '?': {', '.join(VLLM_OPTIONS)} are options of vllm:MODEL only")
    if not model.strip() or model != model.strip():
        raise ValueError(f"engine {text!r}: the model after '{kind}:' is empty or has blanks around it")
    if kind != "openai":
        packaged.checked(model)
    if url is None:
        if kind == "openai" and re.search(r":/|(?<=.)@(\s|[^@]*[/\[]|localhost$|[\w.-]+:\d+$|[\d.]+\.\d+$)", model):
            raise ValueError(f"engine {text!r}: the base URL must begin with http:// or https://, right after '@'")
        return EngineSpec(kind, model, None, options)
    if kind != "openai":
        raise ValueError(f"engine {text!r}: {kind} runs in this process and takes no base URL ({url})")
    check_base_url(url, "engine")
    return EngineSpec(kind, model, url.rstrip("/"))


def _vllm_options(text: str, model: str) -> tuple[str, dict[str, float]]:
    """The model and the options behind its ``?``; ValueError where one is unknown, given twice or out of range."""
    model, mark, query = model.partition("?")
    options: dict[str, float] = {}
    for pair in query.split("&") if mark else ():
        name, _, said = pair.partition("=")
        try:
            value = VLLM_OPTIONS[name](said)
        except (KeyError, ValueError):
            value = 0
        most = 1 if name == "gpu_memory_utilization" else math.inf  # it is a share
        if name in options or not 0 < value <= most or value == math.inf:  # nan is neither
            known = ", ".join(f"{key}={kind.__name__}" for key, kind in VLLM_OPTIONS.items())
            raise ValueError(
                f"engine {text!r}: behind '?' expected some of {known}, each once, above 0, "
                f"gpu_memory_utilization at most 1; got {pair!r}"
            )
        options[name] = value
    return model, options


def check_base_url(url: str, what: str) -> None:
    """Refuse what is no base URL of a server; ValueError, whose message begins with ``what`` the URL was given as."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # .port raises where it is not a number in 0 … 65535
    except ValueError as error:
        raise ValueError(f"{what}: expected {EXAMPLE_URL}, {url!r} is not a URL ({error})") from None
    if parts.username is not None:  # the message leaves the URL out: it holds the password
        keys = "keys go into OPENAI_API_KEY, those of `mitigate serve` into MITIGATE_UPSTREAM_KEY"
        raise ValueError(f"{what}: leave user and password out of the base URL; {keys}")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or re.search(r"\s", url):
        raise ValueError(f"{what}: expected {EXAMPLE_URL}, got {url!r}")


def load_engine(spec: str, *, cache: str | Path | None = None, **options: Any) -> Engine:
    """Load the engine that an engine string names; close it when done (``contextlib.closing`` does).

    ``cache`` is the file of the response cache, created where there is none; None asks afresh every time. ``options``
    go to the engine (its class lists them). Raises ValueError: the string is malformed, or a key is missing;
    ImportError: a library is not installed (the message names the extra); OSError: a local checkpoint is not there;
    CacheError: the cache file is damaged or is something else.
    """
    parsed = parse_engine(spec)
    if cache is not None:
        store = ResponseCache(cache)  # first: a damaged file should not cost the loading of a model
        try:
            return CachedEngine(load_engine(spec, **options), store)
        except BaseException:
            store.close()
            raise
    if parsed.kind == "openai":
        from engines.openai_engine import OpenAIEngine

        return OpenAIEngine(parsed.model, parsed.base_url, **options)
    if parsed.kind == "vllm":
        from engines.vllm_engine import VllmEngine

        return VllmEngine(parsed.model, **parsed.options | options)
    from engines.transformers_engine import TransformersEngine

    return TransformersEngine(parsed.model, **options)
