"""Ctrl-C while training: the step under way is finished and kept, a second one stops at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether the user asked to stop."""

    asked = False


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Turns the first Ctrl-C of the block into ``interrupt.asked``; the second raises KeyboardInterrupt."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield interrupt
        return

    def note(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            raise KeyboardInterrupt
        interrupt.asked = True
        print("stopping after this step; Ctrl-C again to stop at once", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
