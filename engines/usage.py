"""What this process asked of language models: requests, tokens as engines report them, seconds, money; and its limits.

    METER.begin(price=(0.15, 0.6), max_cost=2.0)
    …                                             engines count, and ask a server only when METER lets them
    print(METER)

There is one meter, since what a command may cost does not depend on how many engines it opens. Replies out of a cache
are not asked for and not counted. Prices and limits are those of servers (openai engines). Leaves out other processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from threading import RLock
from typing import Any


class Meter:
    """The counts since ``begin``; several threads may use it."""

    def __init__(self) -> None:
        self._lock = RLock()
        self.heard: Callable[[], None] | None = None  # called after each count: long work shows that it goes on
        self.begin()

    def begin(
        self, *, price: tuple[float, float] | None = None, max_cost: float | None = None,
        requests_per_minute: float | None = None, tokens_per_minute: float | None = None,
    ) -> None:  # fmt: skip
        """Count from 0 on. ``price`` (≥ 0) is that of a million prompt and of a million reply tokens, in any currency;
        the limits are above 0. ValueError: there is a ``max_cost`` without a price.
        """
        if max_cost is not None and price is None:
            raise ValueError("--max-cost: expected --price IN,OUT beside it, the prices of a million tokens")
        self.price, self.max_cost = price, max_cost
        self._pause = 60 / requests_per_minute if requests_per_minute else 0.0
        self._token_pause = 60 / tokens_per_minute if tokens_per_minute else 0.0
        self.requests = self.prompt_tokens = self.reply_tokens = self.unreported = self.paid = self._in_flight = 0
        self.cost = self._next = self._first = self._last = 0.0

    async def turn(self, *, again: bool = False) -> str | None:
        """``start``, when a request to a server has its turn: as many a minute as may be, and with a ``max_cost`` the
        first one alone, since what one costs is not known before it is paid. One that is sent ``again`` only waits.
        """
        while True:
            with self._lock:
                now = time.monotonic()
                wait = self._next - now
                if wait <= 0 and (again or self.max_cost is None or self.paid or not self._in_flight):
                    self._next = now + self._pause
                    return None if again else self.start()
            await asyncio.sleep(max(wait, 0.01))

    def start(self) -> str | None:
        """Before a request to a server, which ``end`` follows: why it must not be made, or None.

        Requests in flight are taken to cost what those before them did on average, so that the limit holds except by
        what the first request, or unusual ones, cost more.
        """
        with self._lock:
            if self.max_cost is not None and self.unreported:
                return (
                    "a reply came without a count of tokens (the server reports none, or its stream was stopped): "
                    "--max-cost can't be kept, leave it out"
                )
            each = self.cost / self.paid if self.paid else 0.0
            if self.max_cost is not None and self.cost + (self._in_flight + 1) * each > self.max_cost:
                return (
                    f"{self.cost:.4g} of --max-cost {self.max_cost:g} is spent, and the next request would exceed it; "
                    "the same command goes on from its cache, with a --max-cost that counts from there"
                )
            self._in_flight += 1
            return None

    def end(self) -> None:
        """A request to a server is over, however it went."""
        with self._lock:
            self._in_flight -= 1

    def count(self, prompt: int | None, reply: int | None, seconds: float, *, paid: bool = False) -> None:
        """Add an answered request: its tokens, None where the engine does not say, and how long it took."""
        with self._lock:
            now = time.monotonic()
            self._first, self._last = min(self._first or now, now - seconds), now
            self.requests += 1
            self.prompt_tokens += prompt or 0
            self.reply_tokens += reply or 0
            self.unreported += None in (prompt, reply)
            if paid:
                self.paid += 1
                self.cost += self.money(prompt or 0, reply or 0) or 0.0
                self._next = max(self._next, now) + self._token_pause * ((prompt or 0) + (reply or 0))
        if self.heard is not None:
            self.heard()

    def money(self, prompt: int, reply: int) -> float | None:
        """What so many tokens cost; None without a price."""
        return None if self.price is None else (prompt * self.price[0] + reply * self.price[1]) / 1e6

    def foreseen(self, prompt: int, reply: int) -> str:
        """An estimate in words: so many prompt tokens, at most so many reply tokens, and what they cost."""
        cost = self.money(prompt, reply)
        money = "" if cost is None else f", which cost at most {cost:.2f}"
        return f"about {prompt:,} prompt tokens and at most {reply:,} reply tokens{money}"

    def to_dict(self) -> dict[str, Any]:
        """The counts; ``seconds`` run from the first request to the last reply."""
        names = ("requests", "prompt_tokens", "reply_tokens", "unreported")
        counts = {name: getattr(self, name) for name in names} | {"seconds": round(self._last - self._first, 3)}
        return counts if self.price is None else {**counts, "price": list(self.price), "cost": round(self.cost, 6)}

    def __str__(self) -> str:
        missing = f" ({self.unreported:,} replies without a count)" if self.unreported else ""
        money = "" if self.price is None else f", cost {self.cost:.4f}"
        return (
            f"asked language models: {self.requests:,} requests, {self.prompt_tokens:,} prompt and "
            f"{self.reply_tokens:,} reply tokens{missing}, {self._last - self._first:.1f} s{money}"
        )


METER = Meter()
