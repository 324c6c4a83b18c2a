"""The reference broker, observed: every step is seen, and a verb may stop between its steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from typing import Protocol

from dray.broker.memory import MemoryBroker
from dray.broker.memory.audit import problems
from dray.broker.memory.store import JobStore
from dray.broker.verbs import FORWARD_STEP, Entry
from dray.policy import Retention
from sim.transport import CALL, Call, CutShort

CUT_SHORT = 0.5
"""The chance that a skipped step ends the verb."""


class StepWatch(Protocol):
    def stepped(self, call: Call | None, now: int, entries: list[Entry]) -> None: ...


class Watched(MemoryBroker):
    """Mixed in before the broker under test by `watched`, so that its overrides are observed."""

    step_watch: StepWatch
    skip: float
    slow: float
    dice: random.Random
    calm: bool

    def look_in(self, step_watch: StepWatch, skip: float, slow: float, dice: random.Random) -> None:
        self.step_watch, self.skip, self.slow, self.dice, self.calm = step_watch, skip, slow, dice, False
        self._seen: dict[str, int] = {}

    @property
    def world(self) -> JobStore:
        return self._store

    def problems(self) -> list[str]:
        """What `audit` says, without being a step."""
        return problems(self._store)

    @contextmanager
    def _step(self, now: int | None) -> Iterator[int]:
        with super()._step(now) as at:
            yield at
        self.step_watch.stepped(CALL.get(), at, self._news_of_feed())

    def _wake_sleepers(self) -> None:
        """A wake-up takes its time; until it comes, another queue may find the sleeper."""
        self._changed.notify_all()
        loop = asyncio.get_running_loop()
        for sleeper in list(self._sleepers):
            delay = 0.0 if self.calm else self.dice.uniform(0, self.slow)
            loop.call_later(delay, sleeper.rouse, context=Context())

    def _news_of_feed(self) -> list[Entry]:
        news: list[Entry] = []
        for name, queue in self._store.queues.items():
            seen = self._seen.get(name, 0)
            if queue.entries > seen:
                fresh = queue.entries - seen
                news += list(queue.feed)[-fresh:]
                self._seen[name] = queue.entries
        return news

    async def _forward(self, now: int | None, limit: int = FORWARD_STEP) -> int:
        """Forward step by step: other calls come between, and the caller may be gone before the last."""
        call, sent = CALL.get(), 0
        while self._store.outbox and sent < limit:
            if not self.calm:
                if self.dice.random() < self.skip:
                    if self.dice.random() < CUT_SHORT:
                        raise CutShort
                    return sent
                await asyncio.sleep(self.dice.uniform(0, self.slow))
            if call is not None:
                call.forwarding = True
            try:
                sent += await super()._forward(now, 1)
            finally:
                if call is not None:
                    call.forwarding = False
        return sent


def watched(broker: type[MemoryBroker], clock: Callable[[], int], retention: Retention) -> Watched:
    """The broker under test, observed."""
    kind = type(f"Watched{broker.__name__}", (Watched, broker), {})
    made = kind("sim", clock=clock, retention=retention)
    assert isinstance(made, Watched)
    return made
