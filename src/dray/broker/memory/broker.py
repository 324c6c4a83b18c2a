"""The verbs of the reference broker, each in its plainest form."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy

from msgspec.structs import replace

from dray.broker.actions import Edited, Ids, JobAction, Query, Scope, ScopeAction
from dray.broker.base import BaseBroker, Durability, wall_clock
from dray.broker.durable import MemoWrite, Message, Sent
from dray.broker.memory.audit import problems
from dray.broker.memory.durable import read_log, read_mailbox, send, wake, write_memos
from dray.broker.memory.edit import apply, set_scope
from dray.broker.memory.entries import JobEntry, Queue, Session
from dray.broker.memory.hand_over import hand_over
from dray.broker.memory.outbox import deliver
from dray.broker.memory.put import Accepting
from dray.broker.memory.read import arrived, info, page, read_feed, record, tally
from dray.broker.memory.repair import repair_store
from dray.broker.memory.settle import conclude
from dray.broker.memory.store import JobStore, Post, counted
from dray.broker.memory.sweep import Upkeep
from dray.broker.memory.take import Class
from dray.broker.memory.wait import Sleeper, news, next_time
from dray.broker.repairs import LOOK, Round
from dray.broker.rules import is_overdue, matches, why_too_late
from dray.broker.verbs import (
    EXPIRE_STEP,
    FORWARD_STEP,
    PROMOTE_STEP,
    PUT_STEP,
    Accepted,
    Beat,
    Doc,
    DocReply,
    DocWrite,
    Entry,
    Feed,
    Filter,
    Heard,
    Interest,
    Page,
    QueueInfo,
    Ref,
    Swept,
    Usage,
    Wake,
)
from dray.errors import InvalidInput, SessionLost
from dray.job import (
    Job,
    Move,
    Outcome,
    Record,
    Settled,
    Sign,
    State,
    Taken,
    Verdict,
)
from dray.policy import Retention


class MemoryBroker(Accepting, Upkeep, BaseBroker):
    """The reference broker."""

    hands_over = True

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
        self._store = JobStore(self.retention)
        self._clock = clock or wall_clock
        self._blocking = blocking
        self._round = Round()
        self._changed = threading.Condition(threading.RLock())
        self._sleepers: dict[Sleeper, Interest | None] = {}
        """Waits, and the interest of those that are asleep: they may be handed jobs."""

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
            self._hand_over(at)
            notes, self._store.notes, self._store.seen_notes = self._store.notes, {}, {}
            for name, events in notes.items():
                queue = self._store.queue(name)
                queue.entries += 1
                queue.feed.append(Entry(name, queue.entries, at, tuple(events)))
            if notes:
                self._wake_sleepers()

    def _hand_over(self, now: int) -> None:
        hand_over(self._store, self._sleepers, now)

    # put

    async def _put(
        self, jobs: Sequence[Job], when: DocWrite | None, durability: Durability | None, now: int | None
    ) -> list[Accepted]:
        accepted: list[Accepted] = []
        for first in range(0, len(jobs) or 1, PUT_STEP):
            batch = jobs[first : first + PUT_STEP]
            with self._step(now) as at:
                if first == 0:
                    self._check_dependencies(jobs)
                if when is not None and not self._store.write_doc(when, at):
                    return []
                accepted += [self._put_job(job, at) for job in batch]
                self._notify_of_refused(jobs, accepted)
            await self._forward(now)
        return accepted

    async def _forward(self, now: int | None, limit: int = FORWARD_STEP) -> int:
        """Deliver outbox messages, one step each, as they may cross queues. `sweep` delivers the rest."""
        sent = 0
        while self._store.outbox and sent < limit:
            with self._step(now) as at:
                self._deliver(self._store.outbox[0], at)
                self._store.outbox.popleft()
            sent += 1
        return sent

    def _deliver(self, post: Post, now: int) -> None:
        deliver(self._store, post, now)

    # take

    async def _take(
        self,
        session: str,
        request: int,
        queues: Sequence[str],
        filter: Filter,
        want: int,
        share: int,
        now: int | None,
    ) -> list[Taken]:
        with self._step(now) as at:
            holder = self._store.sessions.get(session)
            if holder is None or at >= holder.expires:
                raise SessionLost(session)
            asked = holder.queues if request == holder.request else tuple(dict.fromkeys(queues))
            last = max([holder.request, *(holder.asked.get(name, 0) for name in asked)])
            if request < last:
                raise InvalidInput("request", request, f"{last} was the last; it only counts up")
            if request > holder.request:
                holder.request, holder.queues, holder.reply = request, asked, []
                for name in asked:
                    left = max(0, min(share, want - len(holder.reply)))
                    self._ask(session, holder, name, filter, left, at)
            taken = [self._store.taken(*ref) for ref in holder.reply if ref in holder.holds]
        await self._forward(now)
        return taken

    def _ask(self, name: str, session: Session, queue: str, filter: Filter, want: int, now: int) -> None:
        """The answer of one queue to a request: new jobs, or what it gave in advance."""
        request, ref = session.advance.get(queue, (0, ("", 0)))
        if request == session.request:
            session.handed.pop(ref, None)
            session.reply += [ref] if ref in session.holds else []
        else:
            session.asked[queue] = session.request
            self._take_from(name, self._store.queue(queue), filter, want, now)

    def _take_from(self, session: str, queue: Queue, filter: Filter, want: int, now: int) -> None:
        self._promote(queue, now, PROMOTE_STEP)
        want -= self._take_offers(session, queue, filter, want, now)
        buried = 0
        for key in queue.line.open_classes(filter, now):
            declared = queue.line.classes[key]
            room = min(want, queue.line.class_room(key[1], declared, now))
            while room > 0 and (free := queue.line.next_lane(key, now)) is not None:
                group, lane = free
                entry = self._store.jobs[lane.jobs.head() or ""]
                if (reason := why_too_late(entry.expires, entry.deadline, now)) is not None:
                    self._store.bury(entry, now, reason)
                    buried += 1
                    if buried == EXPIRE_STEP:
                        return
                    continue
                queue.line.took_turn(group)
                queue.line.spend(entry.job, declared, lane.rate, now)
                self._start(entry, session, now)
                room, want = room - 1, want - 1

    def _promote(self, queue: Queue, now: int, limit: int) -> int:
        ids = queue.due.until(now, limit)
        for id in ids:
            entry = self._store.jobs[id]
            if entry.state is State.WAITING:
                wake(self._store, entry, now)
            else:
                self._store.line_up(entry, Move.PROMOTED, entry.due, now)
        return len(ids)

    def _take_offers(self, session: str, queue: Queue, filter: Filter, want: int, now: int) -> int:
        """Second runs go first: they are late already. Never to a session that runs the job itself."""
        taken = 0
        for id in list(queue.offers):
            entry = self._store.jobs[id]
            job, line = entry.job, queue.line
            if (
                taken == want
                or line.paused
                or job.task in line.paused_tasks
                or is_overdue(entry.deadline, now)
            ):
                continue
            if not matches(filter, job.task, job.priority, job.version):
                continue
            if any(run.session == session for run in entry.runs.values()) or not line.job_room(job, now):
                continue
            declared = Class()
            declared.declare(job)
            line.spend(job, declared, job.rate, now)
            self._start(entry, session, now)
            taken += 1
        return taken

    def _start(self, entry: JobEntry, session: str, now: int) -> None:
        run = self._store.start(entry, session, now)
        self._store.sessions[session].reply.append((entry.job.id, run))

    # settle

    async def _settle(self, session: str, outcomes: Sequence[Outcome], now: int | None) -> list[Settled]:
        with self._step(now) as at:
            settled = [self._settle_run(session, outcome, at) for outcome in outcomes]
        await self._forward(now)
        return settled

    def _settle_run(self, session: str, outcome: Outcome, now: int) -> Settled:
        ref = (outcome.id, outcome.run)
        holder = self._store.sessions.get(session)
        entry = self._store.jobs.get(outcome.id)
        if holder is not None and entry is not None and ref in holder.holds:
            entry.settled = outcome.run
            self._conclude(entry, outcome, now)
            return Settled(Verdict.ACCEPTED, entry.state)
        if holder is not None:
            holder.void.pop(ref, None)
        if entry is None:
            return Settled(Verdict.REFUSED, State.NOT_FOUND)
        same_run = entry.settled == outcome.run
        return Settled(Verdict.ALREADY if same_run else Verdict.REFUSED, entry.state)

    def _conclude(self, entry: JobEntry, outcome: Outcome, now: int) -> None:
        conclude(self._store, entry, outcome, now)

    # sessions

    async def _renew(self, beats: Sequence[Beat], now: int | None) -> list[Heard]:
        with self._step(now) as at:
            return [self._renew_session(beat, at) for beat in beats]

    def _renew_session(self, beat: Beat, now: int) -> Heard:
        opened = beat.session not in self._store.sessions
        if opened:
            self._store.opened = counted(self._store.opened, now)
            self._store.sessions[beat.session] = Session(self._store.opened)
        session = self._store.sessions[beat.session]
        session.lease, session.expires = beat.lease, now + beat.lease
        for report in beat.progress:
            if (report.id, report.run) in session.holds:
                entry = self._store.jobs[report.id]
                entry.runs[report.run] = replace(entry.runs[report.run], progress=report.progress)
                self._store.note(entry, Sign.PROGRESS, report.run)
        asked = tuple(ref for ref in self._store.held(session) if self._store.jobs[ref[0]].cancel is not None)
        forced = tuple(ref for ref in asked if self._store.jobs[ref[0]].forced)
        session.heard = {*session.void, *asked}
        return Heard(opened, session.epoch, tuple(sorted(session.void)), asked, forced)

    async def _release(self, session: str, suspect: bool, blamed: Collection[Ref], now: int | None) -> int:
        with self._step(now) as at:
            freed = self._release_session(session, at, suspect=suspect, blamed=blamed)
        await self._forward(now)
        return freed

    def _release_session(
        self, session: str, now: int, *, suspect: bool = True, blamed: Collection[Ref] = ()
    ) -> int:
        if session not in self._store.sessions:
            return 0
        holds = self._store.held(self._store.sessions[session])
        for ref in holds:
            entry, guilty = self._store.jobs[ref[0]], ref in blamed
            self._store.crash(entry, ref[1], now, suspect=suspect or guilty, together=int(guilty))
        del self._store.sessions[session]
        self._wake_sleepers()
        return len(holds)

    # upkeep

    async def _sweep(self, limit: int, lapse: bool, now: int | None) -> Swept:
        forwarded = await self._forward(now, limit)
        with self._step(now) as at:
            store = self._store
            repairs = repair_store(store, self._round, min(limit, LOOK), at)
            promoted = [self._promote(store.queues[name], at, limit) for name in sorted(store.queues)]
            self._hand_over(at)  # before runs that end in this step make other jobs ready
            self._mind_the_clock(at)
            withdrawn = self._withdraw(at, limit) if lapse else 0
            lapsed, freed_by = self._lapse(at, limit) if lapse else (0, {})
            freed = sum(freed_by.values())
            expired = self._expire(at, limit)
            pruned, looked = self._prune(at, limit)
            full = max([forwarded, withdrawn, lapsed, freed, expired, looked, *promoted]) >= limit
            if lapsed or freed or repairs:
                self._wake_sleepers()
        await self._forward(now, limit)
        more = full or bool(self._store.outbox)
        made = (forwarded, sum(promoted), lapsed, freed, expired, pruned)
        return Swept(*made, repairs, more, freed_by, withdrawn=withdrawn)

    # reading and changing by hand

    async def _edit_scope(self, scope: Scope, action: ScopeAction, now: int | None) -> None:
        with self._step(now) as at:
            set_scope(self._store, scope, action, at)

    async def _edit_jobs(
        self,
        selection: Ids | Query,
        action: JobAction,
        cursor: str | None,
        limit: int,
        dry_run: bool,
        now: int | None,
    ) -> Edited:
        with self._step(now) as at:
            edited = apply(self._store, selection, action, cursor, limit, dry_run, at)
        await self._forward(now)
        return edited

    async def _get(self, ids: Sequence[str], watch: str | None, now: int | None) -> list[Record | None]:
        with self._step(now) as at:
            found = [self._store.jobs.get(id) for id in ids]
            for entry in found:
                if watch is not None and entry is not None and not entry.state.finished:
                    self._store.watchers.setdefault(entry.job.id, {})[watch] = None
            return [None if entry is None else record(entry, at, self.retention) for entry in found]

    async def _find(
        self, query: Query, cursor: str | None, limit: int, newest: bool, now: int | None
    ) -> Page:
        with self._step(now) as at:
            found, after = (arrived if newest else page)(self._store, query, cursor, limit, at)
            return Page([record(entry, at, self.retention) for entry in found], after)

    async def queues(self, *, now: int | None = None) -> list[QueueInfo]:
        with self._step(now):
            return info(self._store)

    async def queue_names(self) -> list[str]:
        with self._step(None):
            return sorted(self._store.queues)

    async def usage(self, job: Job, *, now: int | None = None) -> Usage:
        with self._step(now) as at:
            return self._store.queue(job.queue).line.usage(job, at)

    # durable jobs

    async def _memo(self, session: str, writes: Sequence[MemoWrite], now: int | None) -> list[Verdict]:
        with self._step(now):
            return write_memos(self._store, session, writes)

    async def _recall(self, id: str, position: int, limit: int) -> list[bytes]:
        with self._step(None):
            return read_log(self._store, id, position, limit)

    async def _send(self, id: str, name: str, message: str, body: bytes, now: int | None) -> Sent:
        with self._step(now) as at:
            return send(self._store, id, name, message, body, at)

    async def _mailbox(self, id: str, name: str, after: int, limit: int) -> list[Message]:
        with self._step(None):
            return read_mailbox(self._store, id, name, after, limit)

    async def _tally(self, owner: str, queues: Sequence[str]) -> dict[State, int]:
        with self._step(None):
            return tally(self._store, owner, queues)

    # documents and the feed

    async def _read_doc(self, kind: str, name: str, now: int | None) -> Doc | None:
        with self._step(now) as at:
            return self._store.live_doc(kind, name, at)

    async def _write_doc(self, write: DocWrite, now: int | None) -> DocReply:
        with self._step(now) as at:
            written = self._store.write_doc(write, at)
            return DocReply(written, self._store.live_doc(write.kind, write.name, at))

    async def _docs(self, kind: str, now: int | None) -> list[Doc]:
        with self._step(now) as at:
            names = sorted(name for of, name in self._store.docs if of == kind)
            return [doc for name in names if (doc := self._store.live_doc(kind, name, at))]

    async def _events(self, cursor: Mapping[str, int] | None, limit: int) -> Feed:
        with self._step(None):
            return read_feed(self._store, cursor, limit)

    # waiting

    async def _wait(self, interest: Interest, timeout: float) -> Wake:
        deadline = time.monotonic() + timeout if self._blocking else _loop_time() + timeout
        sleeper = Sleeper(self._changed)
        with self._changed:
            self._sleepers[sleeper] = None
        try:
            while True:
                sleeper.reset()
                with self._changed:
                    now = self._clock()
                    wake, until = news(self._store, interest, now), next_time(self._store, interest, now)
                    self._sleepers[sleeper] = interest if wake == Wake() else None
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
            return problems(self._store)

    async def close(self) -> None:
        """There is nothing to let go of."""


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
