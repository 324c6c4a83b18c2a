"""The broker of an app under test: the one in memory, on a clock that is moved by hand, behind a gate.

Jobs are handed out only while the gate is open, and a diary is kept: which runs ended, in order, and what
they raised. Nothing else is different from `memory://`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from dray.app import App
from dray.broker.checks import matches
from dray.broker.memory import MemoryBroker
from dray.broker.memory.edits import record as record_of
from dray.broker.memory.waiting import news
from dray.broker.memory.world import Kept
from dray.broker.verbs import PROMOTE_STEP, Accepted, DocWrite, Filter, Interest, Ref, Wake
from dray.client import LOOK_AGAIN
from dray.context import CURRENT
from dray.errors import DrayError, JobStopped, SessionLost
from dray.info import JobInfo, describe
from dray.job import Job, Outcome, OutcomeKind, Settled, State, Taken, Verdict


class Clock:
    """Milliseconds since the epoch. It stands still until it is moved, or let go."""

    def __init__(self) -> None:
        self._now = _wall()
        self._ahead: int | None = None

    def __call__(self) -> int:
        return self._now if self._ahead is None else _wall() + self._ahead

    def move_to(self, now: int) -> None:
        self._now = now

    def let_go(self) -> None:
        """From now on it goes by itself."""
        self._ahead = self._now - _wall()

    def hold(self) -> None:
        """Stand still again, where it has come to."""
        self._now, self._ahead = self(), None


def _wall() -> int:
    return time.time_ns() // 1_000_000


class Ended:
    """One run that ended: the job as it stood right after, and what the run raised, if it failed."""

    __slots__ = ("error", "failed", "info")

    def __init__(self, info: JobInfo, failed: bool, error: BaseException | None) -> None:
        self.info, self.failed, self.error = info, failed, error


class Gate:
    """What all views of a store share."""

    def __init__(self) -> None:
        self.open = False
        self.only: str | None = None
        """The one job that may start."""
        self.left = 0
        """How many runs may still start before this counts as a program that never ends."""
        self.overrun = False
        self.counts: Counter[str] = Counter()
        """Started runs per task since the gate was opened."""
        self.ended: list[Ended] = []
        self.raised: dict[Ref, BaseException] = {}
        self.blocked: dict[Ref, str] = {}
        """Runs whose thread waits for the end of another job, and the name under which it does."""
        self.mortal: dict[str, None] = {}
        """Ids of jobs with a ttl."""
        self.live = False
        """A worker runs jobs by itself."""
        self.closed_for_good = False
        self.thread = threading.get_ident()
        self.listeners: list[Callable[[], None]] = []
        """Called after whatever changes, in any thread."""


class Store(MemoryBroker):
    """One store, any number of views (`view`)."""

    def __init__(self, app: App, clock: Clock) -> None:
        super().__init__(app.settings.namespace, retention=app.settings.retention, clock=clock)
        self.app, self.gate = app, Gate()

    # the gate

    def open_gate(self, limit: int, only: str | None = None) -> None:
        with self._changed:
            gate = self.gate
            gate.open, gate.only, gate.left, gate.overrun = True, only, limit, False
            gate.counts.clear()
            self._wake_sleepers()

    def close_gate(self) -> None:
        with self._changed:
            self.gate.open, self.gate.only = False, None

    def close_for_good(self) -> None:
        """Threads that still wait for a job give up."""
        with self._changed:
            self.close_gate()
            self.gate.closed_for_good = True
            self._wake_sleepers()

    def _wake_sleepers(self) -> None:
        super()._wake_sleepers()
        for listener in self.gate.listeners:
            listener()

    def open_queues(self, preferred: Sequence[str]) -> tuple[str, ...]:
        """The queues to look at, those that the settings name first; none while the gate is shut."""
        gate, world = self.gate, self._world
        if not gate.open:
            return ()
        if gate.only is not None:
            kept = world.jobs.get(gate.only)
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
        now: int | None = None,
    ) -> list[Taken]:
        with self._changed:
            gate = self.gate
            if gate.open and gate.left <= 0:
                gate.open, gate.overrun = False, True
            if not gate.open:
                return []
            if gate.only is not None:
                taken = self._take_only(gate.only, session, request, filter)
            else:
                want = min(want, gate.left)
                taken = await super().take(session, request, self.open_queues(queues), filter, want, now=now)
            gate.left -= len(taken)
            gate.counts.update(one.job.task for one in taken)
            return taken

    def _take_only(self, id: str, session: str, request: int, filter: Filter) -> list[Taken]:
        with self._step(None) as now:
            holder, kept = self._world.sessions.get(session), self._world.jobs.get(id)
            if holder is None:
                raise SessionLost(session)
            if kept is None or not self._can_start(kept, filter, now):
                return []
            holder.request, holder.reply = request, []
            line = self._world.queue(kept.job.queue).line
            declared = line.classes[kept.job.priority, kept.job.task, kept.job.version]
            line.spend(kept.job, declared, kept.job.rate, now)
            self._start(kept, session, now)
            self.gate.only = ""
            return [self._taken(id, kept.run)]

    def _can_start(self, kept: Kept, filter: Filter, now: int) -> bool:
        job, queue = kept.job, self._world.queue(kept.job.queue)
        self._promote(queue, now, PROMOTE_STEP)
        return bool(
            kept.state is State.READY
            and (kept.expires is None or now < kept.expires)
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
            error = self.gate.raised.pop((outcome.id, outcome.run), None)
            if reply.verdict is not Verdict.ACCEPTED or outcome.kind is OutcomeKind.GIVE_BACK:
                continue
            if record is not None:
                failed = outcome.kind not in (OutcomeKind.SUCCEEDED, OutcomeKind.CANCELLED)
                self.gate.ended.append(Ended(describe(record, self.app), failed, error))
        return replies

    async def put(
        self,
        jobs: Sequence[Job],
        *,
        when: DocWrite | None = None,
        durability: Literal["normal", "full"] | None = None,
        now: int | None = None,
    ) -> list[Accepted]:
        self.gate.mortal.update((job.id, None) for job in jobs if job.ttl is not None)
        return await super().put(jobs, when=when, durability=durability, now=now)

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        if interest.queues:
            return await super().wait(_Shown(self, interest), timeout)  # type: ignore[arg-type]
        running = CURRENT.get()
        if not self._blocking or interest.watcher is None:
            return await super().wait(interest, timeout)
        if running is not None:
            return self._wait_in_job((running.taken.job.id, running.taken.run), interest, timeout)
        if timeout >= LOOK_AGAIN and not self.gate.open and threading.get_ident() == self.gate.thread:
            raise DrayError(
                "this would wait for ever: in a test no job runs by itself. Call drain() or advance() before "
                "get(), or give get() a timeout"
            )
        return await super().wait(interest, timeout)

    def _wait_in_job(self, ref: Ref, interest: Interest, timeout: float) -> Wake:
        """A job's thread waits for another job: whoever drains must know that it cannot go on by itself."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self.gate.blocked[ref] = interest.watcher or ""
            try:
                while True:
                    if self.gate.closed_for_good:
                        raise JobStopped(ref[0], "the test ended while this job waited for another one")
                    wake = news(self._world, interest, self._clock())
                    left = deadline - time.monotonic()
                    if wake != Wake() or left <= 0:
                        return wake
                    for listener in self.gate.listeners:
                        listener()
                    self._changed.wait(left)
            finally:
                del self.gate.blocked[ref]

    # what there is

    def count_unfinished(self) -> int:
        with self._changed:
            return sum(1 for kept in self._world.jobs.values() if not kept.state.finished)

    def all_in(self, *states: State) -> list[JobInfo]:
        """The jobs in these states, in the order of arrival."""
        with self._changed:
            now, kept = self._clock(), list(self._world.jobs.values())
            return [
                describe(record_of(one, now, self.retention), self.app) for one in kept if one.state in states
            ]

    def held(self, worker: str) -> list[Ref]:
        """What the sessions of a worker hold."""
        with self._changed:
            return [
                ref
                for name, session in self._world.sessions.items()
                if name.startswith(f"{worker}.")
                for ref in session.holds
            ]

    def is_blocked(self, ref: Ref) -> bool:
        """Whether a thread of a run waits for another job, and not just for its turn to read of its end."""
        with self._changed:
            watcher = self.gate.blocked.get(ref)
            return watcher is not None and not self._world.mail.get(watcher)

    async def end_sessions(self, worker: str, stuck: Sequence[Outcome]) -> None:
        """What a supervisor does when a worker has ended: settle what it could not, free what it held."""
        for name in [name for name in self._world.sessions if name.startswith(f"{worker}.")]:
            await self.settle(name, stuck)
            await self.release(name, suspect=False)

    def nudge(self) -> None:
        """Have everybody who sleeps look again: the clock was moved."""
        with self._changed:
            self._wake_sleepers()

    def has_work(self, filter: Filter) -> bool:
        """Whether something could start now, with the gate as it is."""
        with self._changed:
            gate, now = self.gate, self._clock()
            if gate.only is not None:
                kept = self._world.jobs.get(gate.only)
                return gate.open and kept is not None and self._can_start(kept, filter, now)
            interest = Interest(queues=self.open_queues(()), filter=filter)
            return news(self._world, interest, now).work

    def can_start(self, id: str, filter: Filter) -> bool:
        with self._changed:
            kept = self._world.jobs.get(id)
            return kept is not None and self._can_start(kept, filter, self._clock())

    def next_time(self, filter: Filter) -> int | None:
        """When something happens though nobody does anything: a job falls due or expires, a rate has room."""
        with self._changed:
            now, times = self._clock(), []
            for queue in self._world.queues.values():
                times += [queue.due.first(), queue.line.frees_at(filter, now)]
            times.append(self._next_expiry())
            return min((at for at in times if at is not None and at > now), default=None)

    def _next_expiry(self) -> int | None:
        jobs, ends = self._world.jobs, []
        for id in list(self.gate.mortal):
            kept = jobs.get(id)
            if kept is None or kept.state.finished:
                del self.gate.mortal[id]
            elif kept.expires is not None:
                ends.append(kept.expires)
        return min(ends, default=None)

    def is_due_for_sweep(self) -> bool:
        """Whether `sweep` would do something that counts now: word to forward, or jobs that expired."""
        with self._changed:
            expiry = self._next_expiry()
            return bool(self._world.outbox) or (expiry is not None and expiry <= self._clock())


class _Shown:
    """The interest of an executor, whose queues are those that the gate shows at the moment."""

    def __init__(self, store: Store, interest: Interest) -> None:
        self._store, self._preferred = store, interest.queues
        self.filter, self.session, self.watcher = interest.filter, interest.session, interest.watcher

    @property
    def queues(self) -> tuple[str, ...]:
        return self._store.open_queues(self._preferred)
