"""Language models as commands and recipes use them: named, opened, and told about where requests failed.

Replies are kept in a cache (`engines/cache.py`), so that whatever is run again asks only what has no answer yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from engines.cache import CachedEngine
from engines.chat import load_engine, parse_engine
from engines.types import Engine
from mitigate.errors import UsageError
from mitigate.progress import counted

EngineName = Annotated[str, AfterValidator(lambda text: str(parse_engine(text)))]
"""An option of a recipe: KIND:MODEL[@BASE_URL]."""


def open_engine(name: str, option: str, cache: Path | None = None, **options: Any) -> Engine:
    """The engine of a name, to be closed by the caller.

    Args:
        name: KIND:MODEL[@BASE_URL].
        option: What the user gave the name as, for the message.
        cache: File of the reply cache; None asks afresh every time.
        options: Handed to the engine, see `engines.load_engine`.

    Raises:
        UsageError: There is no such engine, or it can't be loaded.
        CacheError: The cache file is damaged.
    """
    try:
        return load_engine(name, cache=cache, **options)
    except (ValueError, ImportError, OSError) as error:
        raise UsageError(f"{option}: {error}") from error


def failures(engines: Iterable[Engine]) -> str | None:
    """Which engines with a cache left requests without an answer, how many and why; None where none did."""
    failing = [engine for engine in engines if isinstance(engine, CachedEngine) and engine.failed]
    said = [f"{e.name}: {counted(e.failed, 'request')} failed, the last: {e.last_error}" for e in failing]
    return "; ".join(said) or None
