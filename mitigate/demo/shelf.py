"""The models behind the page: loaded when first asked for, kept, and used by one call at a time.

An annotator is asked in short steps, and the lock is given back between them, so that people who use the page at the
same time take turns.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from annotators.records import Annotator
from mitigate.demo.limits import Refusal

if TYPE_CHECKING:
    from engines.embedding import Embedder

KEPT = 2
"""Annotators in memory; the one that was used longest ago goes first."""


class Shelf:
    """Annotators by name.

    Args:
        names: Those offered; the first is the default.
        open_choice: Whether any other name may be asked for too. A name can be a path of this machine or the address of
            a server that then gets texts and keys, so this is for a page that only its owner reaches.
        load: Makes an annotator of a name; None is ``load_annotator``.
    """

    def __init__(
        self,
        names: Sequence[str] = ("embedded",),
        *,
        open_choice: bool = False,
        load: Callable[[str], Annotator] | None = None,
    ) -> None:
        self.names = tuple(dict.fromkeys(names))
        self.open_choice = open_choice
        self._load = load or _load_annotator
        self._turns: dict[str, threading.Lock] = {}
        self._loading = threading.Lock()
        self._kept: OrderedDict[str, Annotator] = OrderedDict()

    def annotator(self, name: str | None) -> Annotator:
        """The annotator of that name.

        Raises:
            Refusal: It is not offered, or can't be loaded.
        """
        name = (name or self.names[0]).strip()
        if name not in self.names and not self.open_choice:
            raise Refusal(
                f"The annotator {name!r} is not offered here, only {', '.join(self.names)}. "
                "Whoever runs the page can add it with --annotator."
            )
        with self._loading:
            if name not in self._kept:
                self._kept[name] = self._loaded(name)
            self._kept.move_to_end(name)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return self._kept[name]

    def turn(self, name: str) -> threading.Lock:
        """What to hold while a model works: one lock for each annotator (by its name) and for "embedder"."""
        return self._turns.setdefault(name, threading.Lock())

    @cached_property
    def embedder(self) -> Embedder:
        """The packaged sentence embeddings."""
        from engines.embedding import Embedder

        return Embedder(dtype="float32")

    def warm(self) -> None:
        """Load the default annotator in the background, so that the first call waits less."""

        def load() -> None:
            try:
                annotator = self.annotator(None)
                with self.turn(annotator.name):
                    annotator.annotate(reference="It opened in 1931.", answer="It opened in 1931.")
            except Exception:  # the call that needs it will say so
                return

        threading.Thread(target=load, daemon=True, name="warm").start()

    def _loaded(self, name: str) -> Annotator:
        try:
            return self._load(name)
        except ImportError as error:
            raise Refusal(f"The annotator {name!r} needs more packages: {error}") from error
        except Exception as error:  # whatever a checkpoint or a server makes of it, the page goes on
            detail = " ".join(str(error).split())[:400] or type(error).__name__
            raise Refusal(f"The annotator {name!r} can't be loaded: {detail}") from error


def _load_annotator(name: str) -> Annotator:
    from annotators import load_annotator

    return load_annotator(name)
