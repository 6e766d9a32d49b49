"""A persistent response cache: what was answered once is not asked again.

One SQLite file in WAL mode: several processes may use it at once, and a process killed at any moment leaves
at most its current answer unsaved. WAL needs a local disk (not NFS).

The key is the sha256 of canonical JSON of the engine's identity, the messages and the sampling. The identity holds all
that the answers depend on: for a server its base URL, since two servers may serve different weights under one name; for
a local checkpoint its files' state, so that a retrained one is asked anew. For greedy requests the seed is left out,
since nothing depends on it. A request without a seed is stored like any other: a rerun gets the same draws.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from engines.types import Chat, ChatResult, Engine, OnResult, Sampling, canonical, check_chats

SCHEMA_VERSION = 1
APPLICATION_ID = 0x48614C43  # "HaLC": tells our files from other SQLite files
BUSY_SECONDS = 60.0
BLOCK = 1024
"""Texts encoded at once; a killed run loses no more."""
Encode = Callable[[Sequence[str]], np.ndarray]


class CacheError(RuntimeError):
    """The cache file cannot be used; the message says which file and what to do."""


def request_key(identity: Mapping[str, Any], chat: Chat, sampling: Sampling) -> str:
    """The cache key of one request: 64 hexadecimal digits."""
    options = asdict(sampling) | {"temperature": float(sampling.temperature)}
    options |= {"stop": [], "top_p": 1.0}  # which earlier versions had: their keys stay as they are
    if sampling.temperature == 0:
        options["seed"] = None
    if not sampling.top_logprobs:  # which they did not have
        del options["top_logprobs"]
    messages = [dict(message) for message in chat]
    return hashlib.sha256(canonical([dict(identity), messages, options]).encode()).hexdigest()


class ResponseCache:
    """Results by key, in one SQLite file: table ``answers`` with key, result (JSON), saved (Unix seconds).

    Embeddings are in the table ``vectors``, from their first use on. The file is created, with its folder, where there
    is none. Raises CacheError: it is damaged, is not a response cache, or is of a newer version.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise CacheError(f"response cache {self.path}: cannot be opened ({error})") from error
        try:
            with self._named_errors():
                self._open()
        except BaseException:
            self._db.close()
            raise

    def _open(self) -> None:
        deadline = time.monotonic() + BUSY_SECONDS
        while True:  # SQLite itself does not wait here while another process makes the file
            try:
                self._db.execute("PRAGMA journal_mode=WAL")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("BEGIN IMMEDIATE")  # the write lock: two processes that start together make one schema
        version, application, tables = (
            self._db.execute(query).fetchone()[0]
            for query in ("PRAGMA user_version", "PRAGMA application_id", "SELECT count(*) FROM sqlite_master")
        )
        if tables == 0:
            self._db.execute("CREATE TABLE answers (key TEXT PRIMARY KEY, result TEXT, saved REAL)")
            self._db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        elif application != APPLICATION_ID:
            raise CacheError(f"{self.path} is an SQLite file but not a response cache; name another file for the cache")
        elif version != SCHEMA_VERSION:
            raise CacheError(
                f"response cache {self.path} has schema version {version}, this program knows "
                f"{SCHEMA_VERSION}; use the program that wrote it, or name another file"
            )
        self._db.execute("COMMIT")

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "malformed" not in str(error):
                # locked, read-only, disk full: the file itself may be fine
                raise CacheError(f"response cache {self.path}: {error}") from error
            raise self._damaged(error) from error

    def _damaged(self, error: object) -> CacheError:
        if "not a database" in str(error):  # a file of another kind, which is not ours to throw away
            return CacheError(
                f"{self.path}: expected a response cache, got another file ({error}); give another one, or delete it "
                "if it was a cache"
            )
        return CacheError(
            f"response cache {self.path} is damaged ({error}); delete {self.path} (and {self.path.name}-wal, "
            f"{self.path.name}-shm beside it) to begin a new one: its answers will be asked again"
        )

    def get(self, keys: Iterable[str]) -> dict[str, ChatResult]:
        """The stored results of those of ``keys`` that are there."""
        query = "SELECT result FROM answers WHERE key = ?"
        with self._lock, self._named_errors():
            return {key: self._decode(text) for key in keys for (text,) in self._db.execute(query, (key,))}

    def put(self, key: str, result: ChatResult) -> ChatResult:
        """Store a result; returns what the cache holds now: that of a process that was first, so that all agree."""
        text = json.dumps(result.to_dict(), ensure_ascii=True)
        with self._lock, self._named_errors():
            self._db.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", (key, text, time.time()))
            (stored,) = self._db.execute("SELECT result FROM answers WHERE key = ?", (key,)).fetchone()
        return result if stored == text else self._decode(stored)

    def _decode(self, text: str) -> ChatResult:
        try:
            return ChatResult.from_dict(json.loads(text))
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged(f"an entry cannot be read: {error!r}") from error

    def vectors(self, texts: Sequence[str], encode: Encode, fingerprint: str) -> np.ndarray:
        """The vectors (n, D) float32 of an encoder with that fingerprint; those of new texts are encoded and stored."""
        keys = [hashlib.sha256(f"{fingerprint} {text}".encode("utf-8", "surrogatepass")).digest() for text in texts]
        with self._lock, self._named_errors():
            self._db.execute("CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB)")
            query = "SELECT vector FROM vectors WHERE key = ?"
            known = {key: vector for key in keys for (vector,) in self._db.execute(query, (key,))}
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        for start in range(0, len(new), BLOCK):
            block = list(new)[start : start + BLOCK]
            made = [(key, row.tobytes()) for key, row in zip(block, encode([new[k] for k in block]), strict=True)]
            known.update(made)
            with self._lock, self._named_errors():
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?)", made)
                self._db.execute("COMMIT")
        return np.stack([np.frombuffer(known[key], dtype=np.float32) for key in keys]) if keys else encode([])

    def __len__(self) -> int:
        with self._lock, self._named_errors():
            return int(self._db.execute("SELECT count(*) FROM answers").fetchone()[0])

    def close(self) -> None:
        """Close the file; what was stored stays."""
        with self._lock:
            self._db.close()


def kept_vectors(encode: Encode, path: str | Path, fingerprint: str) -> Encode:
    """An encoder whose vectors are kept in a cache file, for all runs that name it."""

    def kept(texts: Sequence[str]) -> np.ndarray:
        with closing(ResponseCache(path)) as cache:
            return cache.vectors(texts, encode, fingerprint)

    return kept


class CachedEngine:
    """An engine that asks only what its cache does not hold, and equal chats of one batch once.

    Every answer is stored the moment it comes, so a killed run loses only what was on its way. ``errors`` are the
    results of requests without an answer, the last one last, by chat and draw, since another limit of tokens may give
    one; the next time they are asked again.
    """

    def __init__(self, engine: Engine, cache: ResponseCache | str | Path) -> None:
        self.engine = engine
        self.cache = cache if isinstance(cache, ResponseCache) else ResponseCache(cache)
        self.name, self.identity = engine.name, engine.identity
        self.errors: dict[str, ChatResult] = {}

    def chat(
        self, chats: Sequence[Chat], sampling: Sampling | None = None, *, on_result: OnResult | None = None
    ) -> list[ChatResult]:
        """See :meth:`engines.types.Engine.chat`."""
        check_chats(chats)
        sampling = sampling or Sampling()
        places: dict[str, list[int]] = {}
        for index, chat in enumerate(chats):
            places.setdefault(request_key(self.identity, chat, sampling), []).append(index)
        results: dict[int, ChatResult] = {}

        def give(key: str, result: ChatResult) -> None:
            if result.error is not None or self.errors:
                request = request_key(self.identity, chats[places[key][0]], replace(sampling, max_tokens=1))
                self.errors.pop(request, None)
                self.errors |= {} if result.error is None else {request: result}
            for index in places[key]:
                results[index] = result
                if on_result is not None:
                    on_result(index, result)

        known = self.cache.get(places)
        for key, result in known.items():
            give(key, result)
        asked = [key for key in places if key not in known]

        def keep(place: int, result: ChatResult) -> None:
            if result.error is None:
                result = self.cache.put(asked[place], result)
            give(asked[place], result)

        if asked:
            self.engine.chat([chats[places[key][0]] for key in asked], sampling, on_result=keep)
        return [results[index] for index in range(len(chats))]

    def close(self) -> None:
        self.cache.close()
        self.engine.close()
