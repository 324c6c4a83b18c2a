"""The bench a test works at: a clock that the test moves, workers, and shorthand for reading.

Every test is a coroutine that never needs an event loop of its own: `Bench.run` plays it with `asyncio.run`,
or, for a broker opened with `blocking=True`, to its end without any loop.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Final, Protocol

import pytest

from dray.broker.actions import Edited, Ids, JobAction, Query, Scope, ScopeAction
from dray.broker.durable import MemoWrite, Sent
from dray.broker.verbs import (
    Accepted,
    Beat,
    Broker,
    DocWrite,
    Filter,
    Heard,
    ProgressReport,
    QueueInfo,
    Ref,
    Swept,
    run_blocking,
)
from dray.job import Error, Job, Outcome, OutcomeKind, Record, Settled, State, Suspension, Taken, Verdict
from dray.policy import Retention

SECOND: Final = 1_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
LEASE: Final = 30 * SECOND


class OpenBroker(Protocol):
    """What the fixture `open_broker` returns. All calls of one test see the same store."""

    def __call__(self, namespace: str = "dray", retention: Retention | None = None) -> Awaitable[Broker]: ...


class Opener:
    """An `OpenBroker` that also says whether its brokers are blocking ones."""

    def __init__(
        self, open: Callable[[str, Retention | None], Awaitable[Broker]], *, blocking: bool = False
    ) -> None:
        self._open = open
        self.blocking = blocking

    async def __call__(self, namespace: str = "dray", retention: Retention | None = None) -> Broker:
        return await self._open(namespace, retention)


class Clock:
    """The time that is passed to every verb. `real` leaves it to the broker's own clock."""

    def __init__(self) -> None:
        self.real = False
        self._time = 1_700_000_000_000

    @property
    def time(self) -> int:
        return time.time_ns() // 1_000_000 if self.real else self._time

    @property
    def now(self) -> int | None:
        return None if self.real else self._time

    def advance(self, milliseconds: int) -> None:
        self._time += milliseconds

    def after(self, milliseconds: int) -> int:
        return self.time + milliseconds


class Theme:
    """Base of the test classes: turns each `async def test_…` into a plain test, and owns the bench."""

    def __init_subclass__(cls) -> None:
        for name, value in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(value):
                setattr(cls, name, _played(value))

    @pytest.fixture
    def bench(self, open_broker: OpenBroker) -> Bench:
        return Bench(open_broker)


def _played(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def play(self: Theme, bench: Bench, **given: Any) -> None:
        bench.run(lambda: test(self, bench, **given))

    return play


class Bench:
    """One store, seen by the test itself (`broker`, the producer and operator) and by its workers."""

    broker: Broker

    def __init__(self, open_broker: OpenBroker) -> None:
        self.clock = Clock()
        self.blocking: bool = getattr(open_broker, "blocking", False)
        self.opener = open_broker
        self._opened: dict[int, Broker] = {}

    def run(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if self.blocking:
            run_blocking(self._play(test))
        else:
            asyncio.run(self._play(test))

    async def _play(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            self.broker = await self.open()
            await test()
            for broker in self._opened.values():
                assert await broker.audit() == []
        finally:
            for broker in self._opened.values():
                await broker.close()

    async def open(self, namespace: str = "dray", retention: Retention | None = None) -> Broker:
        """Another broker object on the same store. It is audited and closed after the test."""
        broker = await self.opener(namespace, retention)
        self._opened[id(broker)] = broker
        return broker

    async def reopen(self, namespace: str, retention: Retention) -> None:
        """Go on with a broker of another retention, in a namespace of its own."""
        self.broker = await self.open(namespace, retention)

    async def worker(self, name: str = "ann", *, lease: int = LEASE) -> Worker:
        """A session that is open, on a broker object of its own."""
        worker = Worker(await self.open(self.broker.namespace, self.broker.retention), self.clock, name)
        await worker.beat(lease=lease)
        return worker

    async def put(self, *jobs: Job, when: DocWrite | None = None) -> list[Accepted]:
        return await self.broker.put(jobs, when=when, now=self.clock.now)

    async def put_one(self, job: Job) -> Accepted:
        [accepted] = await self.put(job)
        return accepted

    async def record(self, id: str) -> Record:
        [record] = await self.broker.get([id], now=self.clock.now)
        assert record is not None, f"{id} is unknown"
        return record

    async def state(self, id: str) -> State:
        [record] = await self.broker.get([id], now=self.clock.now)
        return State.NOT_FOUND if record is None else record.state

    async def states(self, *ids: str) -> list[State]:
        return [await self.state(id) for id in ids]

    async def edit(
        self, selection: str | Ids | Query | Scope, action: JobAction | ScopeAction, *, dry_run: bool = False
    ) -> Edited:
        chosen = Ids((selection,)) if isinstance(selection, str) else selection
        return await self.broker.edit(chosen, action, dry_run=dry_run, now=self.clock.now)

    async def sweep(self, limit: int = 1000, *, lapse: bool = True) -> Swept:
        return await self.broker.sweep(limit, lapse=lapse, now=self.clock.now)

    async def send(self, id: str, name: str = "go", message: str = "m1", body: bytes = b"") -> Sent:
        return await self.broker.send(id, name, message, body, now=self.clock.now)

    async def log(self, id: str) -> list[bytes]:
        return await self.broker.recall(id)

    async def mail(self, id: str, name: str = "go", after: int = 0) -> list[tuple[int, bytes]]:
        return [(one.number, one.body) for one in await self.broker.mailbox(id, name, after)]

    async def find(self, query: Query, limit: int = 100, *, newest: bool = False) -> list[str]:
        """The ids of all pages."""
        ids: list[str] = []
        cursor = None
        while True:
            page = await self.broker.find(
                query, cursor=cursor, limit=limit, newest=newest, now=self.clock.now
            )
            ids += [record.id for record in page.records]
            cursor = page.cursor
            if cursor is None:
                return ids

    async def queue(self, name: str = "default") -> QueueInfo | None:
        queues = await self.broker.queues(now=self.clock.now)
        return next((queue for queue in queues if queue.name == name), None)

    async def happened(self, queue: str = "default") -> list[tuple[str, str]]:
        """All that the feed of a queue still tells: (kind, id)."""
        feed = await self.broker.events({}, limit=100_000)
        return [(e.kind, e.id) for entry in feed.entries if entry.queue == queue for e in entry.events]

    async def everything(self) -> object:
        """The whole visible state, to show that nothing changed."""
        page = await self.broker.find(Query(), limit=1000, now=self.clock.now)
        queues = await self.broker.queues(now=self.clock.now)
        docs = await self.broker.docs("note", now=self.clock.now)
        feed = await self.broker.events({}, limit=100_000)
        return page, queues, docs, feed


class Worker:
    """An executor as the broker sees it: a session that takes, settles and beats."""

    def __init__(self, broker: Broker, clock: Clock, session: str) -> None:
        self.broker = broker
        self.clock = clock
        self.session = session
        self.request = 0

    async def beat(self, *progress: ProgressReport, lease: int = LEASE) -> Heard:
        [heard] = await self.broker.renew([Beat(self.session, lease, progress)], now=self.clock.now)
        return heard

    async def take(
        self, want: int = 1, queues: Sequence[str] = ("default",), filter: Filter | None = None
    ) -> list[Taken]:
        self.request += 1
        return await self.take_again(want, queues, filter)

    async def take_again(
        self,
        want: int = 1,
        queues: Sequence[str] = ("default",),
        filter: Filter | None = None,
        share: int | None = None,
    ) -> list[Taken]:
        """Repeat the last request, as after a lost reply."""
        return await self.broker.take(
            self.session, self.request, queues, filter or Filter(), want, share=share, now=self.clock.now
        )

    async def take_shares(self, want: int, queues: Sequence[str], share: int) -> list[str]:
        self.request += 1
        return [taken.job.id for taken in await self.take_again(want, queues, share=share)]

    async def take_ids(
        self, want: int = 1, queues: Sequence[str] = ("default",), filter: Filter | None = None
    ) -> list[str]:
        return [taken.job.id for taken in await self.take(want, queues, filter)]

    async def take_one(self, queues: Sequence[str] = ("default",)) -> Taken:
        [taken] = await self.take(1, queues)
        return taken

    async def settle(
        self,
        run: Taken | Ref,
        kind: OutcomeKind,
        *,
        at: int | None = None,
        result: bytes | None = None,
        error: Error | None = None,
        reason: str | None = None,
        together: int = 1,
        suspend: Suspension | None = None,
    ) -> Settled:
        id, number = (run.job.id, run.run) if isinstance(run, Taken) else run
        if kind is OutcomeKind.SUSPENDED and suspend is None:
            suspend = Suspension(until=at if at is not None else self.clock.after(HOUR))
        outcome = Outcome(
            id=id,
            run=number,
            kind=kind,
            at=at,
            result=result,
            error=error,
            reason=reason,
            together=together,
            suspend=suspend,
        )
        [settled] = await self.broker.settle(self.session, [outcome], now=self.clock.now)
        return settled

    async def succeed(self, run: Taken | Ref, result: bytes | None = None) -> Settled:
        return await self.settle(run, OutcomeKind.SUCCEEDED, result=result)

    async def retry(self, run: Taken | Ref, at: int | None = None, error: Error | None = None) -> Settled:
        return await self.settle(run, OutcomeKind.RETRY, at=at, error=error)

    async def kill(self, run: Taken | Ref, reason: str | None = "rejected") -> Settled:
        return await self.settle(run, OutcomeKind.DEAD, reason=reason)

    async def give_back(self, run: Taken | Ref) -> Settled:
        return await self.settle(run, OutcomeKind.GIVE_BACK)

    async def suspend(
        self, run: Taken | Ref, error: Error | None = None, reason: str | None = None, **waits: Any
    ) -> Settled:
        """End the run to wait, as the fields of a `Suspension` say."""
        suspension = Suspension(**waits)
        return await self.settle(run, OutcomeKind.SUSPENDED, error=error, reason=reason, suspend=suspension)

    async def memo(self, run: Taken, position: int, *entries: bytes, **beside: Any) -> Verdict:
        write = MemoWrite(id=run.job.id, run=run.run, position=position, entries=entries, **beside)
        [verdict] = await self.broker.memo(self.session, [write], now=self.clock.now)
        return verdict

    async def leave(self, *blamed: Ref, suspect: bool = True) -> int:
        return await self.broker.release(self.session, suspect=suspect, blamed=blamed, now=self.clock.now)


def job(id: str = "job", task: str = "work", **fields: Any) -> Job:
    return Job(id=id, task=task, **fields)


def jobs(count: int, name: str = "job", **fields: Any) -> list[Job]:
    """`job-0000`, `job-0001` …"""
    return [job(f"{name}-{n:04}", **fields) for n in range(count)]
