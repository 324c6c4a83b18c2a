"""Links: a broker object as one thread, or one event loop, uses it."""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from typing import Protocol

from dray.broker.base import BaseBroker
from dray.broker.verbs import Broker, run_blocking
from dray.client.put_batches import PutBatches, PutChecked
from dray.client.waiters import LoopWaiters, ThreadWaiters, Waiters
from dray.context import CURRENT
from dray.errors import DrayError, WouldBlock


class Link(Protocol):
    """A broker, with the sleeping, clock and waiters that go with it."""

    broker: Broker
    put_checked: PutChecked
    """Puts jobs of the job builder, which are valid."""
    blocking: bool
    """There is no event loop: nothing may suspend."""
    batches: PutBatches | None
    """Puts of one turn of the event loop, to be sent together."""

    @property
    def waiters(self) -> Waiters: ...

    async def sleep(self, seconds: float) -> None: ...

    def time(self) -> float:
        """The clock of its timeouts, in seconds."""
        ...


class SharedBroker:
    """A broker object, closed when the last link to it is gone, and when the program ends."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.close = weakref.finalize(self, _close, broker)


class ThreadLink:
    """The link of one thread. Nothing here ever suspends."""

    blocking = True
    batches: PutBatches | None = None

    def __init__(self, opened: SharedBroker, waiters: ThreadWaiters, process: object) -> None:
        self._opened, self.waiters, self.process = opened, waiters, process
        self.broker, self.close = opened.broker, opened.close
        self.put_checked = _put_checked(opened.broker)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (there is no loop here)

    def time(self) -> float:
        return time.monotonic()


class LoopLink:
    """The link of one event loop."""

    blocking = False

    def __init__(self, broker: Broker, process: object) -> None:
        self.broker, self.waiters, self.process = broker, LoopWaiters(), process
        self.put_checked = _put_checked(broker)
        self.batches: PutBatches | None = PutBatches(self.put_checked)
        self.close = weakref.finalize(self, _close, broker)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def time(self) -> float:
        return asyncio.get_running_loop().time()


def _put_checked(broker: Broker) -> PutChecked:
    """A broker object that only has the verbs, as a proxy does, checks the jobs once more."""
    return broker.put_checked if isinstance(broker, BaseBroker) else broker.put


def _close(broker: Broker) -> None:
    with contextlib.suppress(DrayError, RuntimeError):
        run_blocking(broker.close())


def forbid_on_worker_loop(call: str, twin: str) -> None:
    """Refuse a blocking wait on the event loop that all jobs of an executor share."""
    running = CURRENT.get()
    if running is not None and running.blocks_loop():
        raise WouldBlock(call, twin)


def while_waiting() -> contextlib.AbstractContextManager[None]:
    """Inside it, a job gives back its worker's slot; outside a job it does nothing."""
    running = CURRENT.get()
    return contextlib.nullcontext() if running is None else running.waiting()
