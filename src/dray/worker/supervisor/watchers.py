"""Background loops of the supervisor: hanging executors, new code, the end of a burst, profiles, data loss.

Each runs until it is cancelled; the supervisor begins it again when it fails.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from dray.broker.actions import Query
from dray.broker.verbs import PAGE_MAX, Broker, Filter, QueueInfo
from dray.documents.data_loss import DataLossDetector
from dray.documents.profile import next_request
from dray.job import State
from dray.worker import shared_memory as clock
from dray.worker.retrying_broker import RetryingBroker
from dray.worker.supervisor.executor_pool import ExecutorPool
from dray.worker.supervisor.executor_process import ExecutorProcess
from dray.worker.supervisor.stalls import Stalls

TICK: Final = 0.5
"""Seconds between looks at the executors' heartbeats."""
LATE: Final = 2_500_000_000
"""Nanoseconds: after a look that is so late, the supervisor itself was stopped in between."""
POLL_EVERY: Final = 2.0
"""Seconds between reads of requests for profiles, and of the document that shows a loss of data."""
RELOAD_EVERY: Final = 1.0
UNFINISHED: Final = (State.READY, State.RUNNING, State.RETRYING)
SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})

log = logging.getLogger("dray.worker")


async def kill_hanging(pool: ExecutorPool, stalls: Stalls, stall_limit: int) -> None:
    """Kill executors that hang, `stall_limit` in milliseconds.

    After the supervisor itself was stopped, executors get time to show that they live.
    """
    last = since = 0
    while True:
        await asyncio.sleep(TICK)
        now = clock.now()
        if now - last > LATE:
            since = now
        last = now
        for executor in pool.executors:
            why = executor.reason_to_kill(now, stall_limit * 1_000_000, since)
            if why is not None:
                pool.kill_hanging(executor, why)
            stalls.look(executor, executor.silence(now, since))
        stalls.forget(pool.executors)


async def pass_profile_requests(
    retrying: RetryingBroker, worker: str, executors: Sequence[ExecutorProcess]
) -> None:
    """Pass requests for profiles to executors, through shared memory: their event loops may be blocked."""
    while True:
        await asyncio.sleep(POLL_EVERY)
        request = await retrying.ask(lambda broker: next_request(broker, worker))
        if request is None:
            continue
        for executor in executors:
            if executor.number == request.executor:
                log.info("a profile of executor %d is taken for %g s", request.executor, request.seconds)
                executor.profile(int(request.name, 16), int(request.seconds * 1000))


async def notice_data_loss(
    retrying: RetryingBroker,
    detector: DataLossDetector,
    register: Callable[[], Awaitable[None]],
    declare: Callable[[], None],
) -> None:
    """After a loss of data, register the worker again and write the schedules of the code again."""
    while True:
        if await retrying.ask(detector.look):
            log.error(
                "the broker has lost its data: all jobs, results and schedules from before are gone; the"
                " schedules that the code declares are written again (dray doctor tells what to do)"
            )
            # First the registry: a schedule is removed when no listed worker may declare it.
            await register()
            declare()
        await asyncio.sleep(POLL_EVERY)


async def wait_for_end_of_burst(
    retrying: RetryingBroker, idle: Callable[[], bool], done: Callable[[Broker], Awaitable[bool]]
) -> None:
    """Return when no executor runs anything and the broker holds nothing more for this worker."""
    pause = TICK
    while True:
        await asyncio.sleep(pause)
        began = time.monotonic()
        # Twice: a job that is handed back may change its state while the first call reads.
        if idle() and await retrying.ask(done) and await retrying.ask(done) and idle():
            return
        pause = max(TICK, 10 * (time.monotonic() - began))


async def nothing_left(broker: Broker, serves: Callable[[str], bool], filter: Filter) -> bool:
    """No job of the served queues that passes the filter is ready, running or retrying.

    Jobs that are scheduled for later, paused, or of unknown tasks do not count: a burst would never end.
    """
    for info in await broker.queues():
        if not serves(info.name):
            continue
        for state in UNFINISHED:
            if info.counts.get(state, 0) and await _any(broker, info, state, filter):
                return False
    return True


async def _any(broker: Broker, info: QueueInfo, state: State, filter: Filter) -> bool:
    if state is not State.RUNNING and info.paused is not None:
        return False
    query = Query(state=state, queue=info.name, priorities=filter.priorities)
    cursor = None
    while True:
        page = await broker.find(query, cursor=cursor, limit=PAGE_MAX)
        for record in page.records:
            job = record.job
            known = filter.tasks is None or job.task in filter.tasks
            paused = state is not State.RUNNING and job.task in info.paused_tasks
            if known and not paused and job.version <= filter.version:
                return True
        cursor = page.cursor
        if cursor is None:
            return False


async def reload_changed(code: CodeChanges, reload: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(RELOAD_EVERY)
        changed = await asyncio.to_thread(code.changed)
        if changed:
            names = ", ".join(path.name for path in changed[:5])
            log.info("%s changed: executors start anew", names)
            reload()


class CodeChanges:
    """The Python files below a folder, with their times and sizes as of the last look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    def changed(self) -> list[Path]:
        """The files that are new, changed or gone since the last call."""
        before, self._seen = self._seen, self._look()
        different = before.items() ^ self._seen.items()
        return sorted({Path(path) for path, _ in different})

    def _look(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if not _skipped(folder, name)]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)  # noqa: PTH118 (thousands of them, every second)
                    try:
                        seen = os.stat(path)  # noqa: PTH116
                    except OSError:  # gone between the two looks
                        continue
                    found[path] = (seen.st_mtime_ns, seen.st_size)
        return found


def _skipped(folder: str, name: str) -> bool:
    return name.startswith(".") or name in SKIPPED or Path(folder, name, "pyvenv.cfg").exists()
