"""Duties: work that one worker, the leader, does for all of them.

A duty is an object with a name and one method:

    class Tidy:
        name = "tidying"

        async def step(self, retrying: RetryingBroker) -> float:
            done = await retrying.ask(lambda broker: broker.sweep(100))
            return 0.0 if done.more else 1.0

`step` does one bounded piece of work and returns the seconds until its next call (0: at once). It is called
only while this worker leads, one call at a time. Each duty has a task of its own: one that takes long or
fails delays neither the others nor the leadership. Rules for it:

- Two workers may do it at once: one that was frozen past its term goes on with what it knew. Every write must
  be harmless then: idempotent, or a compare-and-set. Leadership saves work, it protects nothing.
- Errors are raised, not handled: `BrokerError` and `OSError` mean "the broker is away", and it is called
  again after a second at the latest; anything else is logged with its traceback and tried again after
  growing pauses.
- Its memory of the last step may be old: another worker may have led in between.
- It is cancelled when the worker ends, at any await.

`duties_of` lists all duties.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final, Protocol

from dray.broker.verbs import Broker
from dray.documents.repair_log import note_swept
from dray.documents.worker_registry import read_workers
from dray.errors import BrokerError
from dray.settings import Settings
from dray.stats.arrivals import Arrivals
from dray.stats.tallies import (
    ArchivedTallies,
    SupervisorEvent,
    WorkerTallies,
    add_counts,
    add_in_sequence,
    delete_tallies,
    read_tallies,
    write_archive,
)
from dray.worker.duties.leadership import Leadership
from dray.worker.duties.placing import Placing
from dray.worker.duties.speculation import Speculation
from dray.worker.duties.ticker import RemoveUndeclared, Ticker
from dray.worker.retrying_broker import RetryingBroker

LONGEST_PAUSE: Final = 60.0
"""Seconds between tries of a duty that fails for a reason other than an outage."""
ARCHIVE_EVERY: Final = 30.0

log = logging.getLogger("dray.worker")

CountEvent = Callable[[SupervisorEvent, int], None]
"""Counts an event, so many times."""


def ignore_event(event: SupervisorEvent, times: int = 1) -> None:
    """A `CountEvent` for processes without statistics."""


class Duty(Protocol):
    """One kind of work for all workers, in steps; see the head of this module."""

    @property
    def name(self) -> str:
        """Its name in log lines."""
        ...

    async def step(self, retrying: RetryingBroker) -> float:
        """Do a bounded piece of work; the seconds until the next call."""
        ...


class Duties:
    """One worker's part in the duties: it tries to lead, and does them while it leads."""

    def __init__(
        self,
        retrying: RetryingBroker,
        worker: str,
        duties: Sequence[Duty],
        *,
        lease: int,
        interval: int,
        stands_in: bool = False,
    ) -> None:
        self._retrying, self._duties, self._interval = retrying, duties, interval / 1000
        self.leadership = Leadership(retrying, worker, lease=lease, stands_in=stands_in)

    @property
    def leader(self) -> bool:
        return self.leadership.held

    async def run(self) -> None:
        """Seek leadership and do the duties, until cancelled. No failure ends it: the next try may work."""
        async with asyncio.TaskGroup() as together:
            together.create_task(self.leadership.keep(self._interval))
            for duty in self._duties:
                together.create_task(self._do(duty))

    async def give_up(self) -> None:
        """Let another worker lead at once; this one does not seek leadership again."""
        await self.leadership.give_up()

    async def _do(self, duty: Duty) -> None:
        pauses, away = self._retrying.pauses(self._interval, LONGEST_PAUSE), self._retrying.pauses()
        while True:
            await self.leadership.wait()
            try:
                pause = await duty.step(self._retrying)
                pauses.reset()
                away.reset()
            except (BrokerError, OSError):  # logged by `RetryingBroker`
                pause = away.next()
            except Exception:
                pause = pauses.next()
                log.exception("%s failed; it is tried again in %.1f s", duty.name, pause)
            await asyncio.sleep(pause)


def duties_of(
    settings: Settings, count_event: CountEvent = ignore_event, arrivals: Arrivals | None = None
) -> list[Duty]:
    """The duties of a worker of this mode, for the time in which it leads."""
    duties: list[Duty] = [
        Sweep(settings.sweep_interval, count_event),
        StatisticsArchive(settings.lease),
        Speculation(),
        Placing(),
    ]
    if settings.schedules:
        duties += [Ticker(settings.lease, settings.durability, arrivals), RemoveUndeclared()]
    if settings.history_url is not None:
        duties.append(import_module("dray.worker.duties.history").HistoryWriter(settings))
    return duties


class Sweep:
    """Upkeep: due jobs, lapsed leases, the outbox, pruning, repairs."""

    name = "upkeep"

    def __init__(self, interval: int, count_event: CountEvent = ignore_event) -> None:
        self._interval, self._count_event = interval / 1000, count_event

    async def step(self, retrying: RetryingBroker) -> float:
        # After an outage of a lease no session is ended: others may live, and could not renew their leases.
        swept = await retrying.ask(lambda broker: broker.sweep(lapse=not retrying.doubtful))
        if swept.lapsed:
            self._count_event(SupervisorEvent.LEASE_LOST, swept.lapsed)
        if swept.freed:
            self._count_event(SupervisorEvent.RUN_FREED, swept.freed)
        for worker, freed in _by_worker(swept.freed_by).items():
            jobs, run = ("1 job", "runs") if freed == 1 else (f"{freed} jobs", "run")
            log.warning("%s of worker %s %s again: its lease is over", jobs, worker, run)
        if swept.repairs or swept.finished:
            await retrying.ask(lambda broker: note_swept(broker, swept))
        return 0.0 if swept.more else self._interval


def _by_worker(sessions: dict[str, int]) -> dict[str, int]:
    """Jobs by worker. Executors name their sessions `worker/executor.opening`; others have their own name."""
    found: dict[str, int] = {}
    for session, freed in sessions.items():
        worker = session.rpartition("/")[0] or session
        found[worker] = found.get(worker, 0) + freed
    return found


class StatisticsArchive:
    """Adds the counts of departed workers to the archive, and deletes their documents."""

    name = "the archive of statistics"

    def __init__(self, lease: int) -> None:
        self._patience = 2 * lease

    async def step(self, retrying: RetryingBroker) -> float:
        if not retrying.doubtful:
            await retrying.ask(self._take_over)
        return ARCHIVE_EVERY

    async def _take_over(self, broker: Broker) -> None:
        workers, archive, version = await read_tallies(broker)
        if not workers and not archive.taken_over:
            return
        living = {worker.id for worker in await read_workers(broker)}
        old = broker.clock() - self._patience
        gone = {id: worker for id, worker in workers.items() if id not in living and worker.seen < old}
        # First the counts and the name go into the archive, then the document goes, then the name. So readers
        # count nothing twice, and after a crash in between the next leader knows what is left to do.
        if gone:
            archive = _with(archive, gone)
            version = await write_archive(broker, archive, version)
            if not version:
                return
        for name in archive.taken_over:
            await delete_tallies(broker, name)
        if archive.taken_over:
            await write_archive(broker, ArchivedTallies(tasks=archive.tasks, events=archive.events), version)


def _with(archive: ArchivedTallies, gone: dict[str, WorkerTallies]) -> ArchivedTallies:
    tasks, events = archive.tasks, {**archive.events}
    for worker in sorted(gone.values(), key=lambda worker: worker.seen):
        tasks = add_in_sequence(tasks, worker.tasks)
        add_counts(events, worker.events)
    return ArchivedTallies(tasks=tasks, events=events, taken_over=(*archive.taken_over, *gone))
