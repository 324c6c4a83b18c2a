"""The verbs of the embedded broker: each is one write transaction (`Step`) or one read."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

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
)
from dray.broker.repairs import LOOK
from dray.broker.sqlite import edit, read, wait
from dray.broker.sqlite.audit import problems
from dray.broker.sqlite.bell import Bell, remove_stale, ring
from dray.broker.sqlite.database import Database, blocking_pause
from dray.broker.sqlite.mending import Looking, mend
from dray.broker.sqlite.options import Options, read_url
from dray.broker.sqlite.put import check_dependencies, put_jobs, tell_of_refused
from dray.broker.sqlite.rows import encode, reader
from dray.broker.sqlite.settle import release_session, settle_runs
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.step import Step
from dray.broker.sqlite.sweep import sweep_step
from dray.broker.sqlite.take import Given, retake, take_from, usage
from dray.broker.verbs import (
    FORWARD_STEP,
    PAGE_MAX,
    PUT_STEP,
    Accepted,
    Beat,
    Doc,
    DocReply,
    DocWrite,
    Edited,
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
from dray.errors import BrokerError, InvalidInput, SessionLost
from dray.job import Job, Outcome, Record, Settled, Sign, Taken
from dray.policy import Retention

T = TypeVar("T")
_decode_reply: Callable[[bytes], list[tuple[int, int]] | None] = reader(list[tuple[int, int]] | None, None)


class SqliteBroker:
    """A namespace in a SQLite file. Make it with `await SqliteBroker.open(url)`."""

    def __init__(
        self,
        database: Database,
        options: Options,
        namespace: str,
        retention: Retention,
        clock: Callable[[], int],
        blocking: bool,
    ) -> None:
        self.namespace, self.retention = namespace, retention
        self._database, self._options, self._clock, self._blocking = database, options, clock, blocking
        self._ns: tuple[sqlite3.Connection | None, int] = (None, 0)
        self._bell: Bell | None = None
        self._swept_at = 0
        self._looking = Looking()
        self._missed = 0
        """Rings of ours that nobody heard: maybe a waiter of this very object, whose `data_version` stays."""

    @classmethod
    async def open(
        cls,
        url: str,
        namespace: str = "dray",
        *,
        retention: Retention | None = None,
        blocking: bool = False,
        clock: Callable[[], int] | None = None,
    ) -> SqliteBroker:
        """Open `sqlite:///path?synchronous=full&timeout=10s&poll=1s`, making the file if it is not there."""
        options = read_url(url)
        database = await Database.open(
            options.path,
            synchronous=options.synchronous,
            timeout=options.timeout,
            pause=blocking_pause if blocking else asyncio.sleep,
        )
        return cls(database, options, namespace, retention or Retention(), clock or _wall_clock, blocking)

    def clock(self) -> int:
        """All who share a file share a machine, and so its clock."""
        return self._clock()

    # transactions

    async def _write(
        self,
        work: Callable[[Step], T],
        now: int | None,
        durability: Literal["normal", "full"] | None = None,
    ) -> T:
        """One atomic step, then the delivery of what it put into the outbox, then the bells."""
        result, step, bells = await self._transact(work, now, durability)
        if bells:
            await self._ring(bells, step)
        if step.posted:
            with contextlib.suppress(BrokerError):  # `sweep` delivers it; what was committed must not fail
                await self._forward(now)
        return result

    async def _transact(
        self, work: Callable[[Step], T], now: int | None, durability: Literal["normal", "full"] | None = None
    ) -> tuple[T, Step, list[str]]:
        def transaction(db: sqlite3.Connection) -> tuple[T, Step, list[str]]:
            step = self._begin(db, now)
            result = work(step)
            step.write_notes()
            return result, step, wait.bells_to_ring(step)

        done = await self._database.write(transaction, durability=durability)
        self._ns = (done[1].db, done[1].ns)
        return done

    def _begin(self, db: sqlite3.Connection, now: int | None) -> Step:
        known, ns = self._ns
        if known is not db:
            # Another connection may mean another file, with other numbers. Kept only once it is committed.
            ns = _namespace(db, self.namespace)
        return Step(db, ns, self._clock() if now is None else now, self.retention)

    async def _read(self, work: Callable[[Step], T], now: int | None = None) -> T:
        return await self._database.read(lambda db: work(self._begin_read(db, now)))

    def _begin_read(self, db: sqlite3.Connection, now: int | None) -> Step:
        if self._ns[0] is not db:
            row = db.execute(SQL["find_namespace"], (self.namespace,)).fetchone()
            return Step(db, row[0] if row else 0, self._clock() if now is None else now, self.retention)
        return self._begin(db, now)

    async def _forward(self, now: int | None, limit: int = FORWARD_STEP) -> int:
        """Deliver word from the outbox. If we die before, or there is more, `sweep` does it."""
        sent, step, bells = await self._transact(lambda step: step.deliver(limit), now)
        if bells:
            await self._ring(bells, step)
        return sent

    async def _ring(self, bells: list[str], step: Step) -> None:
        """Wake the chosen sleepers. If one has died in its sleep, everybody else looks instead."""
        queues = step.ready.keys() | step.due.keys() | step.stirred
        with contextlib.suppress(BrokerError):  # a ring is a hint: what was committed is not to fail for it
            while [name for name in bells if not ring(self._bells, name)]:
                self._missed += 1
                _, _, bells = await self._transact(lambda new: new.stirred.update(queues), step.now)

    @property
    def _bells(self) -> Path:
        return self._database.path.with_name(self._database.path.name + "-bells")

    # the verbs

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

            def work(
                step: Step, batch: Sequence[Job] = batch, before: list[Accepted] = accepted
            ) -> list[Accepted]:
                if not before:
                    check_dependencies(step, jobs)
                if when is not None and not read.write_doc(step, when):
                    return []
                replies = put_jobs(step, batch)
                tell_of_refused(step, jobs, before + replies)
                return before + replies

            accepted = await self._write(work, now, durability)
        return accepted

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

        def work(step: Step) -> list[Taken]:
            row = step.db.execute(SQL["find_session"], (step.ns, session)).fetchone()
            if row is None or step.now >= row[1]:
                raise SessionLost(session)
            id, _, last, reply, _ = row
            if request < last:
                raise InvalidInput("request", request, f"{last} was the last; it only counts up")
            if request == last:
                return retake(step, id, _decode_reply(reply))
            return _take(step, id, request, queues, filter, want)

        return await self._write(work, now)

    async def settle(
        self, session: str, outcomes: Sequence[Outcome], *, now: int | None = None
    ) -> list[Settled]:
        check_settle(session, outcomes)

        def work(step: Step) -> list[Settled]:
            return settle_runs(step, _session(step, session), outcomes)

        return await self._write(work, now)

    async def renew(self, beats: Sequence[Beat], *, now: int | None = None) -> list[Heard]:
        check_beats(beats)
        return await self._write(lambda step: [_renew(step, beat) for beat in beats], now)

    async def release(
        self, session: str, *, suspect: bool = True, blamed: Collection[Ref] = (), now: int | None = None
    ) -> int:
        check_session(session)
        runs = frozenset((id, run) for id, run in blamed)
        return await self._write(
            lambda step: release_session(step, session, suspect=suspect, blamed=runs), now
        )

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        check_limit(limit)
        repairs = await self._mend(min(limit, LOOK), now)
        forwarded = await self._forward(now, limit)
        remove_stale(self._bells, limit)
        swept, self._swept_at = await self._write(
            lambda step: (sweep_step(step, limit, lapse, forwarded, self._swept_at), step.now), now
        )
        left = await self._read(lambda step: step.db.execute(SQL["posted"], (step.ns,)).fetchone())
        return msgspec.structs.replace(swept, repairs=repairs, more=swept.more or left is not None)

    async def _mend(self, limit: int, now: int | None) -> dict[str, int]:
        broken = await self._read(lambda step: self._looking.ahead(step.db, step.ns, limit))
        return {} if broken is None else await self._write(lambda step: mend(step, broken, limit), now)

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

        def work(step: Step) -> Edited:
            if isinstance(selection, Scope) and isinstance(action, ScopeAction):
                return Edited() if dry_run else edit.set_scope(step, selection, action)
            if isinstance(selection, Ids | Query) and isinstance(action, JobAction):
                return edit.apply(step, selection, action, cursor, limit, dry_run)
            raise AssertionError("check_edit lets no other pair through")

        return await self._write(work, now)

    async def get(
        self, ids: Sequence[str], *, watch: str | None = None, now: int | None = None
    ) -> list[Record | None]:
        check_get(ids, watch)
        if watch is None:
            return await self._read(lambda step: read.get_records(step, ids), now)

        def work(step: Step) -> list[Record | None]:
            for id in ids:
                kept = step.kept_by_id(id)
                if kept is not None and not kept.state.finished:
                    step.db.execute(SQL["watch"], (kept.seq, watch))
            return read.get_records(step, ids)

        return await self._write(work, now)

    async def find(
        self, query: Query, *, cursor: str | None = None, limit: int = 100, now: int | None = None
    ) -> Page:
        check_page(limit)
        check_query(query)
        return Page(*await self._read(lambda step: read.page(step, query, cursor, limit), now))

    async def queues(self, *, now: int | None = None) -> list[QueueInfo]:
        return await self._read(lambda step: read.queue_infos(step.db, step.ns), now)

    async def usage(self, job: Job, *, now: int | None = None) -> Usage:
        return await self._read(lambda step: usage(step, job), now)

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
        if isinstance(value, UnsetType):
            return DocReply(False, await self._read(lambda step: read.read_doc(step, kind, name), now))
        write = DocWrite(kind=kind, name=name, value=value, expect_version=expect_version, ttl=ttl)

        def work(step: Step) -> DocReply:
            written = read.write_doc(step, write)
            return DocReply(written, read.read_doc(step, kind, name))

        return await self._write(work, now)

    async def docs(self, kind: str, *, now: int | None = None) -> list[Doc]:
        check_kind(kind)
        return await self._read(lambda step: read.read_docs(step, kind), now)

    async def events(self, cursor: Mapping[str, int] | None = None, *, limit: int = 1000) -> Feed:
        check_limit(limit)
        if cursor is not None:
            check_cursor(cursor)
        return await self._read(lambda step: read.read_feed(step.db, step.ns, cursor, limit))

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        check_wait(interest, timeout)
        deadline = time.monotonic() + timeout
        if self._bell is None and timeout > 0:
            self._bell = Bell.open(self._bells, blocking=self._blocking)
        sleeper = None
        try:
            while True:
                heard = self._bell.heard if self._bell else 0
                missed = self._missed
                left = deadline - time.monotonic()
                wake, until, sleeper = await self._look(interest, left, sleeper)
                if sleeper is None or self._bell is None:
                    return wake
                await self._sleep(self._bell, min(left, until), heard, missed)
        finally:
            if sleeper is not None:
                await self._get_up(sleeper)

    async def _look(
        self, interest: Interest, left: float, sleeper: int | None
    ) -> tuple[Wake, float, int | None]:
        """What news there is; if none and time is left, be registered as asleep, in the same step."""

        def work(step: Step) -> tuple[Wake, float, int | None]:
            if sleeper is not None:
                wait.get_up(step, sleeper)
            wake = wait.news(step, interest)
            if wake != Wake() or left <= 0:
                return wake, 0.0, None
            when = wait.next_time(step, interest)
            seconds = left if when is None else min(left, max(when - step.now, 1) / 1000)
            until = step.now + int(seconds * 1000) + 1
            bell = self._bell.name if self._bell else ""
            return wake, seconds, wait.fall_asleep(step, interest, bell, until)

        return await self._write(work, None)

    async def _sleep(self, bell: Bell, seconds: float, heard: int, missed: int) -> None:
        """Until the bell rings, or the time is up, or somebody changed the file without ringing."""
        end = time.monotonic() + seconds
        version = await self._data_version()
        while (left := end - time.monotonic()) > 0:
            if await bell.wait(min(left, self._options.poll), since=heard):
                return
            if self._missed != missed or await self._data_version() != version:
                return

    async def _data_version(self) -> int:
        def work(db: sqlite3.Connection) -> int:
            version: int = db.execute("PRAGMA data_version").fetchone()[0]
            return version

        return await self._database.read(work, snapshot=False)

    async def _get_up(self, sleeper: int) -> None:
        with contextlib.suppress(BrokerError):
            await self._database.write(lambda db: wait.get_up(self._begin(db, None), sleeper))

    async def audit(self) -> list[str]:
        return await self._read(lambda step: problems(step.db, step.ns))

    async def close(self) -> None:
        if self._bell is not None:
            self._bell.close()
        with contextlib.suppress(OSError):
            self._bells.rmdir()
        self._database.close()


def _namespace(db: sqlite3.Connection, name: str) -> int:
    row = db.execute(SQL["find_namespace"], (name,)).fetchone()
    if row is None:
        db.execute(SQL["insert_namespace"], (name,))
        row = db.execute(SQL["find_namespace"], (name,)).fetchone()
    ns: int = row[0]
    return ns


def _session(step: Step, name: str) -> int:
    """The session's number; one that nothing has if it is unknown."""
    row = step.db.execute(SQL["find_session"], (step.ns, name)).fetchone()
    return -1 if row is None else row[0]


def _take(
    step: Step, session: int, request: int, queues: Sequence[str], filter: Filter, want: int
) -> list[Taken]:
    given: list[Given] = []
    for name in queues:
        queue = step.queue(name)
        if queue is not None:
            given += take_from(step, queue, session, filter, want - len(given))
    reply = encode([(one.seq, one.taken.run) for one in given])
    step.db.execute(SQL["remember_reply"], (request, reply, session))
    return [one.taken for one in given]


def _renew(step: Step, beat: Beat) -> Heard:
    row = step.db.execute(SQL["find_session"], (step.ns, beat.session)).fetchone()
    expires = step.now + beat.lease
    if row is None:
        epoch = step.db.execute(SQL["next_epoch"], (step.ns,)).fetchone()[0]
        step.db.execute(SQL["open_session"], (step.ns, beat.session, epoch, beat.lease, expires))
        return Heard(True, epoch)
    session, epoch = row[0], row[4]
    step.db.execute(SQL["keep_session"], (beat.lease, expires, session))
    for report in beat.progress:
        values = (encode(report.progress), session, report.run, step.ns, report.id)
        for (queue,) in step.db.execute(SQL["report_progress"], values).fetchall():
            step.note(queue, Sign.PROGRESS, report.id, report.run)
    lost = tuple(step.db.execute(SQL["voids"], (session,)).fetchall())
    asked = tuple(step.db.execute(SQL["asked_to_stop"], (session,)).fetchall())
    if lost or asked:
        step.db.execute(SQL["heard_voids"], (session,))
        step.db.execute(SQL["heard_to_stop"], (session,))
    return Heard(False, epoch, lost, asked)


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000
