"""The broker of an app under test: `memory://`, on a clock that the test moves, with runs only when allowed.

It also keeps the runs that ended, in order, and the exceptions they raised.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dray.app import App
from dray.broker.base import Durability
from dray.broker.memory import MemoryBroker
from dray.broker.memory.entries import JobEntry
from dray.broker.memory.read import record as record_of
from dray.broker.memory.wait import news
from dray.broker.rules import matches, why_too_late
from dray.broker.verbs import PROMOTE_STEP, Accepted, DocWrite, Filter, Interest, Ref, Wake
from dray.client.waiters import LOOK_AGAIN
from dray.context import CURRENT
from dray.errors import DrayError, JobStopped, SessionLost
from dray.info import JobInfo, describe
from dray.job import Job, Outcome, OutcomeKind, Settled, State, Taken, Verdict

_NO_FAILURE = (OutcomeKind.SUCCEEDED, OutcomeKind.CANCELLED, OutcomeKind.SUSPENDED)


class Clock:
    """Milliseconds since the epoch. It stands still until it is moved or started."""

    def __init__(self) -> None:
        self._now = _wall()
        self._ahead: int | None = None

    def __call__(self) -> int:
        return self._now if self._ahead is None else _wall() + self._ahead

    def move_to(self, now: int) -> None:
        self._now = now

    def start(self) -> None:
        """From now on it runs with the real clock."""
        self._ahead = self._now - _wall()

    def stop(self) -> None:
        """Stand still again, at the current time."""
        self._now, self._ahead = self(), None


def _wall() -> int:
    return time.time_ns() // 1_000_000


class FinishedRun(NamedTuple):
    """The job right after a run has ended, and the exception if the run failed."""

    info: JobInfo
    failed: bool
    error: BaseException | None


class RunControl:
    """Which runs may start, and what happened; shared by all views of a store."""

    def __init__(self) -> None:
        self.allowed = False
        self.only: str | None = None
        """The one job that may start."""
        self.left = 0
        """Runs that may still start before the harness raises `RunsForEver`."""
        self.overrun = False
        self.counts: Counter[str] = Counter()
        """Started runs per task since runs were allowed."""
        self.ended: list[FinishedRun] = []
        self.raised: dict[Ref, BaseException] = {}
        self.blocked: dict[Ref, str] = {}
        """Runs whose thread waits for the end of another job → the watcher's name."""
        self.mortal: dict[str, None] = {}
        """Ids of jobs with a ttl or a deadline."""
        self.live = False
        """A `LiveWorker` runs jobs by itself."""
        self.closed_for_good = False
        self.thread = threading.get_ident()
        self.listeners: list[Callable[[], None]] = []
        """Called after every change, in any thread."""


class HarnessStore(MemoryBroker):
    """The broker of one harness; `view` gives each user its own object."""

    hands_over = False

    def __init__(self, app: App, clock: Clock) -> None:
        super().__init__(app.settings.namespace, retention=app.settings.retention, clock=clock)
        self.app, self.control = app, RunControl()

    # which runs may start

    def allow_runs(self, limit: int, only: str | None = None) -> None:
        with self._changed:
            control = self.control
            control.allowed, control.only, control.left, control.overrun = True, only, limit, False
            control.counts.clear()
            self._wake_sleepers()

    def stop_runs(self) -> None:
        with self._changed:
            self.control.allowed, self.control.only = False, None

    def close_for_good(self) -> None:
        """Stop all runs; threads that still wait for a job give up."""
        with self._changed:
            self.stop_runs()
            self.control.closed_for_good = True
            self._wake_sleepers()

    def _wake_sleepers(self) -> None:
        super()._wake_sleepers()
        for listener in self.control.listeners:
            listener()

    def open_queues(self, preferred: Sequence[str]) -> tuple[str, ...]:
        """The queues to take from, those in the settings first; none while runs are not allowed."""
        control, world = self.control, self._store
        if not control.allowed:
            return ()
        if control.only is not None:
            kept = world.jobs.get(control.only)
            return () if kept is None else (kept.job.queue,)
        return (*preferred, *(name for name in list(world.queues) if name not in preferred))

    # verbs

    async def take(
        self,
        session: str,
        request: int,
        queues: Sequence[str],
        filter: Filter,
        want: int,
        *,
        share: int | None = None,
        now: int | None = None,
    ) -> list[Taken]:
        with self._changed:
            control = self.control
            if control.allowed and control.left <= 0:
                control.allowed, control.overrun = False, True
            if not control.allowed:
                return []
            if control.only is not None:
                taken = self._take_only(control.only, session, request, filter)
            else:
                want = min(want, control.left)
                taken = await super().take(session, request, self.open_queues(queues), filter, want, now=now)
            control.left -= len(taken)
            control.counts.update(one.job.task for one in taken)
            return taken

    def _take_only(self, id: str, session: str, request: int, filter: Filter) -> list[Taken]:
        with self._step(None) as now:
            holder, kept = self._store.sessions.get(session), self._store.jobs.get(id)
            if holder is None:
                raise SessionLost(session)
            if kept is None or not self._can_start(kept, filter, now):
                return []
            holder.request, holder.reply = request, []
            line = self._store.queue(kept.job.queue).line
            declared = line.classes[kept.job.priority, kept.job.task, kept.job.version]
            line.spend(kept.job, declared, kept.job.rate, now)
            self._start(kept, session, now)
            self.control.only = ""
            return [self._store.taken(id, kept.run)]

    def _can_start(self, kept: JobEntry, filter: Filter, now: int) -> bool:
        job, queue = kept.job, self._store.queue(kept.job.queue)
        self._promote(queue, now, PROMOTE_STEP)
        return bool(
            kept.state is State.READY
            and why_too_late(kept.expires, kept.deadline, now) is None
            and matches(filter, job.task, job.priority, job.version)
            and queue.line.paused is None
            and job.task not in queue.line.paused_tasks
            and queue.line.job_room(job, now)
        )

    async def settle(
        self, session: str, outcomes: Sequence[Outcome], *, now: int | None = None
    ) -> list[Settled]:
        replies = await super().settle(session, outcomes, now=now)
        records = await self.get([outcome.id for outcome in outcomes])
        for outcome, reply, record in zip(outcomes, replies, records, strict=True):
            error = self.control.raised.pop((outcome.id, outcome.run), None)
            if reply.verdict is not Verdict.ACCEPTED or outcome.kind is OutcomeKind.GIVE_BACK:
                continue
            if record is not None:
                failed = outcome.kind not in _NO_FAILURE
                self.control.ended.append(FinishedRun(describe(record, self.app), failed, error))
        return replies

    async def _put(
        self, jobs: Sequence[Job], when: DocWrite | None, durability: Durability | None, now: int | None
    ) -> list[Accepted]:
        self.control.mortal.update((job.id, None) for job in jobs if job.ttl or job.deadline)
        accepted = await super()._put(jobs, when, durability, now)
        if when is not None:  # ticks of a schedule are finite: they do not count towards the limit
            self.control.left += len(accepted)
        return accepted

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        if interest.queues:
            return await super().wait(_OpenInterest(self, interest), timeout)  # type: ignore[arg-type]
        running = CURRENT.get()
        if not self._blocking or interest.watcher is None:
            return await super().wait(interest, timeout)
        if running is not None:
            return self._wait_in_job((running.taken.job.id, running.taken.run), interest, timeout)
        for_ever = timeout > LOOK_AGAIN - 1  # a wait without timeout consists of waits of about that length
        if for_ever and not self.control.allowed and threading.get_ident() == self.control.thread:
            raise DrayError(
                "this would wait for ever: in a test no job runs by itself. Call drain() or advance() before "
                "get(), or give get() a timeout"
            )
        return await super().wait(interest, timeout)

    def _wait_in_job(self, ref: Ref, interest: Interest, timeout: float) -> Wake:
        """A job's thread waits for another job: mark it, because it cannot go on by itself."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self.control.blocked[ref] = interest.watcher or ""
            try:
                while True:
                    if self.control.closed_for_good:
                        raise JobStopped(ref[0], "the test ended while this job waited for another one")
                    wake = news(self._store, interest, self._clock())
                    left = deadline - time.monotonic()
                    if wake != Wake() or left <= 0:
                        return wake
                    for listener in self.control.listeners:
                        listener()
                    self._changed.wait(left)
            finally:
                del self.control.blocked[ref]

    # questions of the harness

    def count_unfinished(self) -> int:
        with self._changed:
            return sum(1 for kept in self._store.jobs.values() if not kept.state.finished)

    def all_in(self, *states: State) -> list[JobInfo]:
        """The jobs in these states, in the order they were enqueued."""
        with self._changed:
            now, jobs = self._clock(), [kept for kept in self._store.jobs.values() if kept.state in states]
            return [describe(record_of(kept, now, self.retention), self.app) for kept in jobs]

    def held_by(self, worker: str) -> list[Ref]:
        """Runs that the sessions of a worker hold."""
        with self._changed:
            return [
                ref
                for name, session in self._store.sessions.items()
                if name.startswith(f"{worker}.")
                for ref in session.holds
            ]

    def is_blocked(self, ref: Ref) -> bool:
        """The run's thread waits for another job that has not ended yet."""
        with self._changed:
            watcher = self.control.blocked.get(ref)
            return watcher is not None and not self._store.mail.get(watcher)

    async def end_sessions(self, worker: str, stuck: Sequence[Outcome]) -> None:
        """As a supervisor does for a dead worker: settle its stuck runs, release what it held."""
        for name in [name for name in self._store.sessions if name.startswith(f"{worker}.")]:
            await self.settle(name, stuck)
            await self.release(name, suspect=False)

    def wake_all(self) -> None:
        """Wake every waiter, because the clock was moved."""
        with self._changed:
            self._wake_sleepers()

    def news(self, interest: Interest) -> Wake:
        """The answer of `wait` now, without waiting."""
        with self._changed:
            return news(self._store, _OpenInterest(self, interest), self._clock())  # type: ignore[arg-type]

    def has_work(self, filter: Filter) -> bool:
        """A job could start now."""
        with self._changed:
            control, now = self.control, self._clock()
            if control.only is not None:
                kept = self._store.jobs.get(control.only)
                return control.allowed and kept is not None and self._can_start(kept, filter, now)
            interest = Interest(queues=self.open_queues(()), filter=filter)
            return news(self._store, interest, now).work

    def can_start(self, id: str, filter: Filter) -> bool:
        with self._changed:
            kept = self._store.jobs.get(id)
            return kept is not None and self._can_start(kept, filter, self._clock())

    def next_time(self, filter: Filter) -> int | None:
        """The next time at which a job falls due or expires, or a rate limit has room."""
        with self._changed:
            now, times = self._clock(), []
            for queue in self._store.queues.values():
                times += [queue.due.first(), queue.line.frees_at(filter, now)]
            times.append(self._next_expiry())
            return min((at for at in times if at is not None and at > now), default=None)

    def _next_expiry(self) -> int | None:
        jobs, ends = self._store.jobs, []
        for id in list(self.control.mortal):
            kept = jobs.get(id)
            if kept is None or kept.state.finished:
                del self.control.mortal[id]
            elif kept.state is not State.RUNNING:
                ends += [at for at in (kept.expires, kept.deadline) if at is not None]
        return min(ends, default=None)

    def is_due_for_sweep(self) -> bool:
        """`sweep` has work: messages to forward, or expired jobs."""
        with self._changed:
            expiry = self._next_expiry()
            return bool(self._store.outbox) or (expiry is not None and expiry <= self._clock())


class _OpenInterest:
    """An executor's interest; its queues are those open at the moment."""

    def __init__(self, store: HarnessStore, interest: Interest) -> None:
        self._store, self._preferred = store, interest.queues
        self.filter, self.session, self.watcher = interest.filter, interest.session, interest.watcher
        self.next_take = interest.next_take

    @property
    def queues(self) -> tuple[str, ...]:
        return self._store.open_queues(self._preferred) if self._preferred else ()
