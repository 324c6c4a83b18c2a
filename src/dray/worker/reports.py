"""Progress on its way to the broker: the last word of each run, not more often than twice a second."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dray.broker.verbs import Ref
from dray.job import Progress

EVERY: Final = 0.5


class Reports:
    """`add` may be called from any thread; the rest belongs to the event loop."""

    def __init__(self, due: Callable[[], None]) -> None:
        self._due = due
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._waiting: dict[Ref, Progress] = {}
        self._armed = False
        self._sent_at = -math.inf

    def add(self, ref: Ref, progress: Progress) -> None:
        self._waiting[ref] = progress
        if self._armed:
            return
        self._armed = True
        if threading.get_ident() == self._thread:
            self._arm()
        else:
            self._loop.call_soon_threadsafe(self._arm)

    def _arm(self) -> None:
        self._loop.call_at(max(self._loop.time(), self._sent_at + EVERY), self._due)

    def of(self, refs: Mapping[Ref, object]) -> bool:
        """Whether one of these runs has said something that was not sent yet."""
        return bool(self._waiting) and any(ref in refs for ref in list(self._waiting))

    def fetch(self) -> dict[Ref, Progress]:
        self._sent_at = self._loop.time()
        self._armed = False
        fetched: dict[Ref, Progress] = {}
        while self._waiting:
            ref, progress = self._waiting.popitem()
            fetched[ref] = progress
        return dict(reversed(fetched.items()))

    def put_back(self, reports: dict[Ref, Progress]) -> None:
        for ref, progress in reports.items():
            self._waiting.setdefault(ref, progress)

    def drop(self, refs: Iterable[Ref]) -> None:
        """These are settled: nobody listens any more."""
        if self._waiting:
            for ref in refs:
                self._waiting.pop(ref, None)

    def clear(self) -> None:
        self._waiting.clear()
