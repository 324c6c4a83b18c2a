"""How much the server does at a time, and how often one caller may ask."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dray.policy import Rate
from dray.serve.refusals import try_later

CALLERS_MAX: Final = 10_000
"""Callers whose rate is remembered; the one that has been silent longest is forgotten first."""


class Room:
    """So many at a time; the next is told to come back."""

    def __init__(self, size: int, what: str) -> None:
        self._size, self._what = size, what
        self.taken = 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        if self.taken >= self._size:
            raise try_later(503, "overloaded", f"too many {self._what} at a time ({self._size})", 1)
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


class Load:
    """So many bytes of requests at a time; what would be more is told to come back."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    def add(self, size: int) -> None:
        if self.held + size > self._most:
            raise try_later(503, "overloaded", f"large requests hold {self._most} bytes already", 1)
        self.held += size

    def remove(self, size: int) -> None:
        self.held -= size


class Turnstile:
    """So often per caller."""

    def __init__(self, rate: str | None) -> None:
        self._rate = None if rate is None else Rate.parse(rate)
        self._used: OrderedDict[str, int] = OrderedDict()

    def pass_one(self, caller: str) -> None:
        if self._rate is None:
            return
        now = time.monotonic_ns() // 1_000_000
        used = self._used.pop(caller, 0)
        allowed = self._rate.available(used, now) > 0
        self._used[caller] = self._rate.spend(used, now) if allowed else used
        if len(self._used) > CALLERS_MAX:
            self._used.popitem(last=False)
        if not allowed:
            seconds = (self._rate.free_at(used, now) - now) / 1000
            raise try_later(429, "too_many_requests", f"more than {self._rate} requests", seconds)
