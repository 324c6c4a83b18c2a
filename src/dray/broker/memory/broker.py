"""The verbs of the reference broker, each in its plainest form."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Literal

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dray.broker.checks import (
    check_beats,
    check_cursor,
    check_doc,
    check_edit,
    check_get,
    check_kind,
    check_limit,
    check_page,
    check_puts,
    check_query,
    check_session,
    check_settle,
    check_take,
    check_wait,
    matches,
)
from dray.broker.memory.accepting import Accepting
from dray.broker.memory.audit import problems
from dray.broker.memory.edits import apply, info, page, record, set_scope
from dray.broker.memory.line import Class
from dray.broker.memory.mending import mend
from dray.broker.memory.upkeep import Upkeep
from dray.broker.memory.waiting import Sleeper, news, next_time
from dray.broker.memory.world import Kept, Queue, Session, World
from dray.broker.repairs import LOOK, Round
from dray.broker.verbs import (
    EXPIRE_STEP,
    FORWARD_STEP,
    PAGE_MAX,
    PROMOTE_STEP,
    PUT_STEP,
    Accepted,
    Beat,
    Doc,
    DocReply,
    DocWrite,
    Edited,
    Entry,
    Feed,
    Filter,
    Heard,
    Ids,
    Interest,
    JobAction,
    Page,
    Query,
    QueueInfo,
    Ref,
    Scope,
    ScopeAction,
    Swept,
    Usage,
    Wake,
)
from dray.errors import InvalidInput, SessionLost
from dray.job import (
    Job,
    Move,
    Outcome,
    OutcomeKind,
    Record,
    Settled,
    Sign,
    State,
    Taken,
    Verdict,
)
from dray.policy import Retention


class MemoryBroker(Accepting, Upkeep):
    """The reference broker."""

    def __init__(
        self,
        namespace: str = "dray",
        *,
        retention: Retention | None = None,
        clock: Callable[[], int] | None = None,
        blocking: bool = False,
    ) -> None:
        self.namespace = namespace
        self.retention = retention or Retention()
        self._world = World(self.retention)
        self._clock = clock or _wall_clock
        self._blocking = blocking
        self._round = Round()
        self._changed = threading.Condition(threading.RLock())
        self._sleepers: dict[Sleeper, None] = {}

    def view(self, *, blocking: bool) -> MemoryBroker:
        """Another broker object on the same store: for another thread, or for blocking calls."""
        other = copy(self)
        other._blocking = blocking
        return other

    def clock(self) -> int:
        return self._clock()

    @contextmanager
    def _step(self, now: int | None) -> Iterator[int]:
        """One atomic step. What it did becomes one entry per queue in the feed, and wakes those who wait."""
        with self._changed:
            at = self._clock() if now is None else now
            yield at
            notes, self._world.notes = self._world.notes, {}
            for name, events in notes.items():
                queue = self._world.queue(name)
                queue.entries += 1
                queue.feed.append(Entry(name, queue.entries, at, tuple(events)))
            if notes:
                self._wake_sleepers()

    # put

    async def put(
        self,
        jobs: Sequence[Job],
        *,
        when: DocWrite | None = None,
        durability: Literal["normal", "full"] | None = None,
        now: int | None = None,
    ) -> list[Accepted]:
        check_puts(jobs, when, durability)
        accepted: list[Accepted] = []
        for first in range(0, len(jobs) or 1, PUT_STEP):
            batch = jobs[first : first + PUT_STEP]
            with self._step(now) as at:
                if first == 0:
                    self._check_dependencies(jobs)
                if when is not None and not self._world.write_doc(when, at):
                    return []
                accepted += [self._put(job, at) for job in batch]
                self._tell_of_refused(jobs, accepted)
            await self._forward(now)
        return accepted

    async def _forward(self, now: int | None, limit: int = FORWARD_STEP) -> int:
        """Deliver word from the outbox, a step each, as it may cross queues. `sweep` does what is left."""
        sent = 0
        while self._world.outbox and sent < limit:
            with self._step(now) as at:
                self._world.dependency_ended(*self._world.outbox[0], at)
                self._world.outbox.popleft()
            sent += 1
        return sent

    # take

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
        check_take(session, request, queues, filter, want)
        with self._step(now) as at:
            holder = self._world.sessions.get(session)
            if holder is None or at >= holder.expires:
                raise SessionLost(session)
            if request < holder.request:
                raise InvalidInput("request", request, f"{holder.request} was the last; it only counts up")
            if request > holder.request:
                holder.request, holder.reply = request, []
                for name in queues:
                    self._take(session, self._world.queue(name), filter, want - len(holder.reply), at)
            taken = [self._taken(id, run) for id, run in holder.reply if (id, run) in holder.holds]
        await self._forward(now)
        return taken

    def _taken(self, id: str, run: int) -> Taken:
        kept = self._world.jobs[id]
        return Taken(kept.job, run, kept.failures + 1, kept.crashes, kept.suspect)

    def _take(self, session: str, queue: Queue, filter: Filter, want: int, now: int) -> None:
        self._promote(queue, now, PROMOTE_STEP)
        want -= self._take_offers(session, queue, filter, want, now)
        buried = 0
        for key in queue.line.open_classes(filter, now):
            declared = queue.line.classes[key]
            room = min(want, queue.line.class_room(key[1], declared, now))
            while room > 0 and (free := queue.line.next_lane(key, now)) is not None:
                group, lane = free
                kept = self._world.jobs[lane.jobs.head() or ""]
                if kept.expires is not None and now >= kept.expires:
                    self._world.bury(kept, now, "expired: it was not started within its ttl")
                    buried += 1
                    if buried == EXPIRE_STEP:
                        return
                    continue
                queue.line.took_turn(group)
                queue.line.spend(kept.job, declared, lane.rate, now)
                self._start(kept, session, now)
                room, want = room - 1, want - 1

    def _promote(self, queue: Queue, now: int, limit: int) -> int:
        ids = queue.due.until(now, limit)
        for id in ids:
            kept = self._world.jobs[id]
            self._world.line_up(kept, Move.PROMOTED, kept.due, now)
        return len(ids)

    def _take_offers(self, session: str, queue: Queue, filter: Filter, want: int, now: int) -> int:
        """Second runs go first: they are late already. Never to a session that runs the job itself."""
        taken = 0
        for id in list(queue.offers):
            kept = self._world.jobs[id]
            job, line = kept.job, queue.line
            if taken == want or line.paused or job.task in line.paused_tasks:
                continue
            if not matches(filter, job.task, job.priority, job.version):
                continue
            if any(run.session == session for run in kept.runs.values()) or not line.job_room(job, now):
                continue
            declared = Class()
            declared.declare(job)
            line.spend(job, declared, job.rate, now)
            self._start(kept, session, now)
            taken += 1
        return taken

    def _start(self, kept: Kept, session: str, now: int) -> None:
        run = self._world.start(kept, session, now)
        self._world.sessions[session].reply.append((kept.job.id, run))

    # settle

    async def settle(
        self, session: str, outcomes: Sequence[Outcome], *, now: int | None = None
    ) -> list[Settled]:
        check_settle(session, outcomes)
        with self._step(now) as at:
            settled = [self._settle(session, outcome, at) for outcome in outcomes]
        await self._forward(now)
        return settled

    def _settle(self, session: str, outcome: Outcome, now: int) -> Settled:
        ref = (outcome.id, outcome.run)
        holder = self._world.sessions.get(session)
        kept = self._world.jobs.get(outcome.id)
        if holder is not None and kept is not None and ref in holder.holds:
            kept.settled = outcome.run
            self._conclude(kept, outcome, now)
            return Settled(Verdict.ACCEPTED, kept.state)
        if holder is not None:
            holder.void.pop(ref, None)
        if kept is None:
            return Settled(Verdict.REFUSED, State.NOT_FOUND)
        same_run = kept.settled == outcome.run
        return Settled(Verdict.ALREADY if same_run else Verdict.REFUSED, kept.state)

    def _conclude(self, kept: Kept, outcome: Outcome, now: int) -> None:
        world, run = self._world, outcome.run
        if outcome.kind is OutcomeKind.CRASHED:
            kept.error = outcome.error or kept.error
            return world.crash(kept, run, now, blamed=True)
        world.end_run(kept, run)
        kept.error = outcome.error or kept.error
        if kept.cancel is not None or outcome.kind is OutcomeKind.CANCELLED:
            reason = kept.cancel or outcome.reason or "cancelled"
            world.finish(kept, Move.CANCELLED, State.CANCELLED, now, reason, run)
        elif outcome.kind is OutcomeKind.SUCCEEDED:
            kept.result = outcome.result
            world.finish(kept, Move.SUCCEEDED, State.SUCCEEDED, now, None, run)
        elif outcome.kind is OutcomeKind.DEAD:
            world.bury(kept, now, outcome.reason or "failed", run)
        elif kept.runs:
            world.note(kept, Sign.RUN_ENDED, run)
        elif outcome.kind is OutcomeKind.GIVE_BACK:
            world.back_in_line(kept, Move.GIVEN_BACK, run)
        else:
            kept.failures += 1
            world.line_up(kept, Move.RETRIED, outcome.at, now, run)
        return None

    # sessions

    async def renew(self, beats: Sequence[Beat], *, now: int | None = None) -> list[Heard]:
        check_beats(beats)
        with self._step(now) as at:
            return [self._renew(beat, at) for beat in beats]

    def _renew(self, beat: Beat, now: int) -> Heard:
        opened = beat.session not in self._world.sessions
        if opened:
            self._world.opened += 1
            self._world.sessions[beat.session] = Session(self._world.opened)
        session = self._world.sessions[beat.session]
        session.lease, session.expires = beat.lease, now + beat.lease
        for report in beat.progress:
            if (report.id, report.run) in session.holds:
                kept = self._world.jobs[report.id]
                kept.runs[report.run] = replace(kept.runs[report.run], progress=report.progress)
                self._world.note(kept, Sign.PROGRESS, report.run)
        asked = tuple(ref for ref in self._world.held(session) if self._world.jobs[ref[0]].cancel is not None)
        session.heard = {*session.void, *asked}
        return Heard(opened, session.epoch, tuple(sorted(session.void)), asked)

    async def release(
        self, session: str, *, suspect: bool = True, blamed: Collection[Ref] = (), now: int | None = None
    ) -> int:
        check_session(session)
        with self._step(now) as at:
            freed = self._release(session, at, suspect=suspect, blamed=blamed)
        await self._forward(now)
        return freed

    def _release(self, session: str, now: int, *, suspect: bool = True, blamed: Collection[Ref] = ()) -> int:
        if session not in self._world.sessions:
            return 0
        holds = self._world.held(self._world.sessions[session])
        for ref in holds:
            self._world.crash(self._world.jobs[ref[0]], ref[1], now, suspect=suspect, blamed=ref in blamed)
        del self._world.sessions[session]
        self._wake_sleepers()
        return len(holds)

    # upkeep

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        check_limit(limit)
        forwarded = await self._forward(now, limit)
        with self._step(now) as at:
            world = self._world
            repairs = mend(world, self._round, min(limit, LOOK), at)
            promoted = [self._promote(world.queues[name], at, limit) for name in sorted(world.queues)]
            self._mind_the_clock(at)
            lapsed, freed = self._lapse(at, limit) if lapse else (0, 0)
            expired = self._expire(at, limit)
            pruned = self._prune(at, limit)
            full = max([forwarded, lapsed, freed, expired, pruned, *promoted]) >= limit
            if lapsed or freed or repairs:
                self._wake_sleepers()
        await self._forward(now, limit)
        more = full or bool(self._world.outbox)
        return Swept(forwarded, sum(promoted), lapsed, freed, expired, pruned, repairs, more)

    # reading and changing by hand

    async def edit(
        self,
        selection: Ids | Query | Scope,
        action: JobAction | ScopeAction,
        *,
        cursor: str | None = None,
        limit: int = PAGE_MAX,
        dry_run: bool = False,
        now: int | None = None,
    ) -> Edited:
        check_edit(selection, action, limit)
        with self._step(now) as at:
            if isinstance(selection, Scope) and isinstance(action, ScopeAction):
                edited = Edited() if dry_run else set_scope(self._world, selection, action, at)
            elif isinstance(selection, Ids | Query) and isinstance(action, JobAction):
                edited = apply(self._world, selection, action, cursor, limit, dry_run, at)
        await self._forward(now)
        return edited

    async def get(
        self, ids: Sequence[str], *, watch: str | None = None, now: int | None = None
    ) -> list[Record | None]:
        check_get(ids, watch)
        with self._step(now) as at:
            found = [self._world.jobs.get(id) for id in ids]
            for kept in found:
                if watch is not None and kept is not None and not kept.state.finished:
                    self._world.watchers.setdefault(kept.job.id, {})[watch] = None
            return [None if kept is None else record(kept, at, self.retention) for kept in found]

    async def find(
        self, query: Query, *, cursor: str | None = None, limit: int = 100, now: int | None = None
    ) -> Page:
        check_page(limit)
        check_query(query)
        with self._step(now) as at:
            found, after = page(self._world, query, cursor, limit, at)
            return Page([record(kept, at, self.retention) for kept in found], after)

    async def queues(self, *, now: int | None = None) -> list[QueueInfo]:
        with self._step(now):
            return info(self._world)

    async def usage(self, job: Job, *, now: int | None = None) -> Usage:
        with self._step(now) as at:
            return self._world.queue(job.queue).line.usage(job, at)

    # documents and the feed

    async def doc(
        self,
        kind: str,
        name: str,
        value: bytes | UnsetType | None = UNSET,
        *,
        expect_version: int | None = None,
        ttl: int | None = None,
        now: int | None = None,
    ) -> DocReply:
        check_doc(kind, name, value, expect_version, ttl)
        with self._step(now) as at:
            written = False
            if not isinstance(value, UnsetType):
                write = DocWrite(kind=kind, name=name, value=value, expect_version=expect_version, ttl=ttl)
                written = self._world.write_doc(write, at)
            return DocReply(written, self._world.live_doc(kind, name, at))

    async def docs(self, kind: str, *, now: int | None = None) -> list[Doc]:
        check_kind(kind)
        with self._step(now) as at:
            names = sorted(name for of, name in self._world.docs if of == kind)
            return [doc for name in names if (doc := self._world.live_doc(kind, name, at))]

    async def events(self, cursor: Mapping[str, int] | None = None, *, limit: int = 1000) -> Feed:
        check_limit(limit)
        with self._step(None):
            queues = self._world.queues
            if cursor is None:
                return Feed([], {name: queue.entries for name, queue in queues.items() if queue.entries})
            check_cursor(cursor)
            entries: list[Entry] = []
            reached, gaps = dict(cursor), []
            for name in sorted(queues):
                queue, after = queues[name], cursor.get(name, 0)
                oldest = queue.feed[0].number if queue.feed else queue.entries + 1
                if name in cursor and (after + 1 < oldest or after > queue.entries):
                    gaps.append(name)
                    after = min(after, oldest - 1)
                new = [entry for entry in queue.feed if entry.number > after][: limit - len(entries)]
                entries += new
                if new:
                    reached[name] = new[-1].number
            return Feed(entries, reached, tuple(gaps))

    # waiting

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        check_wait(interest, timeout)
        deadline = time.monotonic() + timeout if self._blocking else _loop_time() + timeout
        sleeper = Sleeper(self._changed)
        with self._changed:
            self._sleepers[sleeper] = None
        try:
            while True:
                sleeper.reset()
                with self._changed:
                    now = self._clock()
                    wake, until = news(self._world, interest, now), next_time(self._world, interest, now)
                left = deadline - (time.monotonic() if self._blocking else _loop_time())
                if wake != Wake() or left <= 0:
                    return wake
                if until is not None:
                    left = min(left, max(until - now, 1) / 1000)
                if self._blocking:
                    sleeper.block(left)
                else:
                    await sleeper.sleep(left)
        finally:
            with self._changed:
                self._sleepers.pop(sleeper, None)

    def _wake_sleepers(self) -> None:
        self._changed.notify_all()
        for sleeper in self._sleepers:
            sleeper.rouse()

    async def audit(self) -> list[str]:
        with self._step(None):
            return problems(self._world)

    async def close(self) -> None:
        """There is nothing to let go of."""


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
