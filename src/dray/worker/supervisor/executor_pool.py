"""Restarts the executor in each slot of a worker when it ends.

An executor that worked and died is replaced at once. One that dies before it has started is tried again after
growing pauses, without end. One that reports broken code ends the worker, unless others still work.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from dray.retry_pauses import RetryPauses
from dray.stats.tallies import SupervisorEvent
from dray.worker import shared_memory as clock
from dray.worker.channel import Message, Started, Stuck
from dray.worker.retrying_broker import RetryingBroker
from dray.worker.supervisor.executor_process import ExecutorProcess, Plan
from dray.worker.supervisor.reaper import Reaper

SHORT_LIFE: Final = 5_000_000_000
"""Nanoseconds: after a shorter life the replacement waits for `SHORTEST_PAUSE`, so that deaths in a row cost
little."""
SHORTEST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0

log = logging.getLogger("dray.worker")


class ExecutorSlot:
    """The place of one executor at a time."""

    def __init__(self) -> None:
        self.executor: ExecutorProcess | None = None
        self.predecessor: ExecutorProcess | None = None
        """Works on until its replacement has started (a rolling restart)."""
        self.succeeded = asyncio.Event()
        self.wake = asyncio.Event()
        """Ends a pause."""
        self.pauses = RetryPauses(SHORTEST_PAUSE, LONGEST_PAUSE)


class ExecutorPool:
    """The slots of a worker, and all executors that live, also those that have left their slot.

    `grace` is the time in milliseconds for jobs of an executor that is replaced on request. With
    `waits_for_new_code` (for `--reload`), broken code is tried again only after `restart`.
    """

    def __init__(
        self,
        size: int,
        plan: Plan,
        retrying: RetryingBroker,
        reaper: Reaper,
        *,
        grace: int,
        waits_for_new_code: bool,
        heard: Callable[[ExecutorProcess, Message], None],
        broken: Callable[[str], None],
        count_event: Callable[[SupervisorEvent], None],
    ) -> None:
        self._plan, self._retrying, self._reaper = plan, retrying, reaper
        self._grace, self._waits_for_new_code = grace, waits_for_new_code
        self._heard, self._broken, self._count_event = heard, broken, count_event
        self._numbers = itertools.count(1)
        self._slots = [ExecutorSlot() for _ in range(size)]
        self._stopping = asyncio.Event()
        self._keepers: set[asyncio.Task[None]] = set()
        self._cleanups: set[asyncio.Task[None]] = set()
        """Kills, and releases of what dead executors held: to be finished before the worker ends."""
        self._kills: dict[ExecutorProcess, asyncio.Task[None]] = {}
        self.executors: list[ExecutorProcess] = []
        self.changed = asyncio.Event()
        """Set when an executor, a keeper or a cleanup has ended."""

    def fill(self) -> None:
        for slot in self._slots:
            self._begin(self._keep(slot), self._keepers)

    async def _keep(self, slot: ExecutorSlot) -> None:
        """Keep a slot filled: start an executor, wait for its end, start the next."""
        while True:
            # While the file of the embedded broker is moved away, an executor would make an empty one.
            await _first(self._retrying.answers, self._stopping)
            if self._stopping.is_set():
                return
            executor = await self._start(slot)
            if executor is not None:
                await executor.leaving.wait()
                if executor.ended.is_set():
                    await executor.wait_ended()
            if self._stopping.is_set():
                return
            if executor is not None and executor.broken is not None:
                self._bear_broken(executor, executor.broken)
            pause = self._pause_after(slot, executor)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await slot.wake.wait()

    async def _start(self, slot: ExecutorSlot) -> ExecutorProcess | None:
        slot.wake.clear()
        try:
            executor = await ExecutorProcess.start(next(self._numbers), self._plan, self._hear)
        except OSError as error:  # no more processes, files or memory: later there may be
            log.error("an executor could not be started, it is tried again: %s", error)
            return None
        slot.executor = executor
        self.executors.append(executor)
        if self._stopping.is_set():
            executor.stop(0)
        self._begin(self._attend(executor), self._cleanups)
        return executor

    def _pause_after(self, slot: ExecutorSlot, executor: ExecutorProcess | None) -> float | None:
        """Seconds until the slot is filled again; None: it waits for `restart`."""
        if executor is None or not executor.started.is_set():
            broken = executor is not None and executor.broken is not None
            return None if broken and self._waits_for_new_code else slot.pauses.next()
        slot.pauses.reset()
        short = executor.ended.is_set() and clock.now() - executor.born < SHORT_LIFE
        return SHORTEST_PAUSE if short and not executor.stopping else 0

    def _bear_broken(self, executor: ExecutorProcess, reason: str) -> None:
        at_work = any(one.started.is_set() and not one.ended.is_set() for one in self.executors)
        if self._waits_for_new_code or not at_work:
            self._broken(reason)
        else:
            log.error("executor %d cannot start, it is tried again: %s", executor.number, reason)

    async def _attend(self, executor: ExecutorProcess) -> None:
        """Wait for its end, then clean up after it."""
        try:
            await executor.wait_ended()
        finally:
            self.executors.remove(executor)
        if kill := self._kills.pop(executor, None):
            await asyncio.wait((kill,))  # it still reads which jobs the executor held
        if executor.exit_code != 0 and not executor.killing and executor.broken is None:
            cause = _cause(executor.exit_code)
            log.warning("executor %d (pid %d) died: %s", executor.number, executor.pid, cause)
            self._count_event(SupervisorEvent.EXECUTOR_DIED)
        executor.close()
        await self._reaper.clean_up(executor)

    def _hear(self, executor: ExecutorProcess, message: Message) -> None:
        if isinstance(message, Stuck):
            self.kill_hanging(executor, "threads did not stop after a timeout or a cancel")
        if isinstance(message, Started):
            self._begin(self._reaper.release_former(executor), self._cleanups)
            self._stop_predecessor(executor)
        self._heard(executor, message)

    def _stop_predecessor(self, executor: ExecutorProcess) -> None:
        for slot in self._slots:
            if slot.executor is executor and slot.predecessor is not None:
                slot.predecessor.stop(self._grace)
                slot.predecessor = None
                slot.succeeded.set()

    def kill_hanging(self, executor: ExecutorProcess, why: str) -> None:
        """Kill an executor, once, and log what it was doing."""
        if not executor.killing:
            executor.killing = True
            self._count_event(SupervisorEvent.EXECUTOR_KILLED)
            self._kills[executor] = self._begin(self._reaper.kill(executor, why), self._cleanups)

    def stop(self, grace: int) -> None:
        """Ask every executor to end within `grace` milliseconds; none is replaced any more."""
        self._stopping.set()
        for slot in self._slots:
            slot.wake.set()
        for executor in self.executors:
            executor.stop(grace)

    def kill(self, which: Callable[[ExecutorProcess], bool] = lambda _: True) -> None:
        for executor in filter(which, self.executors):
            if not executor.killing:
                log.warning("executor %d (pid %d) did not end in time: killed", executor.number, executor.pid)
            executor.kill()

    def restart(self, grace: int) -> None:
        """Stop every executor and start others, which import the code as it is now."""
        for slot in self._slots:
            slot.pauses.reset()
            slot.wake.set()
        for executor in self.executors:
            if not executor.stopping:
                executor.stop(grace)

    async def roll(self) -> None:
        """Replace executors one by one; each works on until its replacement has started."""
        for slot in self._slots:
            old = slot.executor
            if self._stopping.is_set() or old is None or old.ended.is_set() or slot.predecessor is not None:
                continue
            slot.predecessor = old
            slot.succeeded.clear()
            old.leaving.set()
            await _first(slot.succeeded, old.ended, self._stopping)

    async def wait_ended(self, deadline: Callable[[], float]) -> None:
        """Wait until all executors have ended, or until a monotonic time that may change meanwhile."""
        while (self.executors or self._keepers) and (left := deadline() - time.monotonic()) > 0:
            self.changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self.changed.wait()

    async def finish_cleanup(self) -> None:
        while self._cleanups:
            await asyncio.wait(self._cleanups)

    async def close(self) -> None:
        """Cancel all work of the pool."""
        for task in (*self._keepers, *self._cleanups):
            task.cancel()
        await asyncio.gather(*self._keepers, *self._cleanups, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        def done(task: asyncio.Task[None]) -> None:
            among.discard(task)
            self.changed.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("looking after an executor failed", exc_info=error)

        task = asyncio.create_task(work)
        among.add(task)
        task.add_done_callback(done)
        return task


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _cause(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"killed by signal {-exit_code}"
    return f"exit code {exit_code}"
