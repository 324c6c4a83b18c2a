"""The verbs of the embedded broker: each is one write transaction (`Transaction`) or one read."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from dray.broker.actions import Edited, Ids, JobAction, Query, Scope, ScopeAction
from dray.broker.base import BaseBroker, Durability, wall_clock
from dray.broker.checks import reader
from dray.broker.durable import MemoWrite, Message, Sent
from dray.broker.repairs import LOOK
from dray.broker.sqlite import durable, edit, read, wait
from dray.broker.sqlite.audit import problems
from dray.broker.sqlite.database import Database, blocking_pause
from dray.broker.sqlite.fifo import Fifo, remove_stale, ring
from dray.broker.sqlite.options import Options, read_url
from dray.broker.sqlite.outbox import deliver
from dray.broker.sqlite.put import check_dependencies, notify_of_refused, put_jobs
from dray.broker.sqlite.repair import TableRounds, repair_rows
from dray.broker.sqlite.rows import encode
from dray.broker.sqlite.settle import release_session, settle_runs
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.sweep import sweep_step
from dray.broker.sqlite.take import Given, retake, take_from, usage
from dray.broker.sqlite.transaction import Transaction
from dray.broker.verbs import (
    FORWARD_STEP,
    PUT_STEP,
    Accepted,
    Beat,
    Doc,
    DocReply,
    DocWrite,
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
from dray.errors import BrokerError, InvalidInput, SessionLost
from dray.job import Job, Outcome, Record, Settled, Sign, State, Taken, Verdict
from dray.policy import ConnectionSettings, Retention

T = TypeVar("T")
_decode_reply: Callable[[bytes], list[tuple[int, int]] | None] = reader(list[tuple[int, int]] | None, None)


class SqliteBroker(BaseBroker):
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
        self._fifo: Fifo | None = None
        self._swept_at = 0
        self._rounds = TableRounds()
        self._missed = 0
        """Wake-ups without a listener: the sleeper may be here, where own writes do not show."""

    @classmethod
    async def open(
        cls,
        url: str,
        namespace: str = "dray",
        *,
        retention: Retention | None = None,
        access: ConnectionSettings | None = None,
        blocking: bool = False,
        clock: Callable[[], int] | None = None,
    ) -> SqliteBroker:
        """Open `sqlite:///path?synchronous=full&timeout=10s&poll=1s`, making the file if it is not there."""
        options = read_url(url, access)
        database = await Database.open(
            options.path,
            synchronous=options.synchronous,
            timeout=options.timeout,
            pause=blocking_pause if blocking else asyncio.sleep,
        )
        return cls(database, options, namespace, retention or Retention(), clock or wall_clock, blocking)

    def clock(self) -> int:
        """All who share a file share a machine, and so its clock."""
        return self._clock()

    # transactions

    async def _write(
        self,
        work: Callable[[Transaction], T],
        now: int | None,
        durability: Durability | None = None,
    ) -> T:
        """One atomic transaction, then the delivery of what it put into the outbox, then the bells."""
        result, tx, bells = await self._transact(work, now, durability)
        if bells:
            await self._ring(bells, tx)
        if tx.posted:
            with contextlib.suppress(BrokerError):  # `sweep` delivers it; what was committed must not fail
                await self._forward(now)
        return result

    async def _transact(
        self, work: Callable[[Transaction], T], now: int | None, durability: Durability | None = None
    ) -> tuple[T, Transaction, list[str]]:
        def transaction(db: sqlite3.Connection) -> tuple[T, Transaction, list[str]]:
            tx = self._begin(db, now)
            result = work(tx)
            tx.write_notes()
            return result, tx, wait.bells_to_ring(tx)

        done = await self._database.write(transaction, durability=durability)
        self._ns = (done[1].db, done[1].ns)
        return done

    def _begin(self, db: sqlite3.Connection, now: int | None) -> Transaction:
        known, ns = self._ns
        if known is not db:
            # Another connection may mean another file, with other numbers. Remembered once it is committed.
            ns = _namespace(db, self.namespace)
        return Transaction(db, ns, self._clock() if now is None else now, self.retention)

    async def _read(self, work: Callable[[Transaction], T], now: int | None = None) -> T:
        return await self._database.read(lambda db: work(self._begin_read(db, now)))

    def _begin_read(self, db: sqlite3.Connection, now: int | None) -> Transaction:
        if self._ns[0] is not db:
            row = db.execute(SQL["find_namespace"], (self.namespace,)).fetchone()
            return Transaction(
                db, row[0] if row else 0, self._clock() if now is None else now, self.retention
            )
        return self._begin(db, now)

    async def _forward(self, now: int | None, limit: int = FORWARD_STEP) -> int:
        """Deliver outbox messages. If this process dies before, or there are more, `sweep` delivers them."""
        sent, tx, bells = await self._transact(lambda tx: deliver(tx, limit), now)
        if bells:
            await self._ring(bells, tx)
        return sent

    async def _ring(self, bells: list[str], tx: Transaction) -> None:
        """Wake the chosen sleepers. If one has died in its sleep, everybody else looks instead."""
        queues = tx.ready.keys() | tx.due.keys() | tx.unblocked
        with contextlib.suppress(BrokerError):  # a ring is a hint: what was committed is not to fail for it
            while [name for name in bells if not ring(self._fifo_folder, name)]:
                self._missed += 1
                _, _, bells = await self._transact(lambda new: new.unblocked.update(queues), tx.now)

    @property
    def _fifo_folder(self) -> Path:
        return self._database.path.with_name(self._database.path.name + "-bells")

    # the verbs

    async def _put(
        self, jobs: Sequence[Job], when: DocWrite | None, durability: Durability | None, now: int | None
    ) -> list[Accepted]:
        accepted: list[Accepted] = []
        for first in range(0, len(jobs) or 1, PUT_STEP):
            batch = jobs[first : first + PUT_STEP]

            def work(
                tx: Transaction, batch: Sequence[Job] = batch, before: list[Accepted] = accepted
            ) -> list[Accepted]:
                if not before:
                    check_dependencies(tx, jobs)
                if when is not None and not read.write_doc(tx, when):
                    return []
                replies = put_jobs(tx, batch)
                notify_of_refused(tx, jobs, before + replies)
                return before + replies

            accepted = await self._write(work, now, durability)
        return accepted

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
        def work(tx: Transaction) -> list[Taken]:
            row = tx.db.execute(SQL["find_session"], (tx.ns, session)).fetchone()
            if row is None or tx.now >= row[1]:
                raise SessionLost(session)
            id, _, last, reply, _ = row
            if request < last:
                raise InvalidInput("request", request, f"{last} was the last; it only counts up")
            if request == last:
                return retake(tx, id, _decode_reply(reply))
            return _take(tx, id, request, queues, filter, want, share)

        return await self._write(work, now)

    async def _settle(self, session: str, outcomes: Sequence[Outcome], now: int | None) -> list[Settled]:
        def work(tx: Transaction) -> list[Settled]:
            return settle_runs(tx, _session(tx, session), outcomes)

        return await self._write(work, now)

    async def _renew(self, beats: Sequence[Beat], now: int | None) -> list[Heard]:
        return await self._write(lambda tx: [_renew(tx, beat) for beat in beats], now)

    async def _release(self, session: str, suspect: bool, blamed: Collection[Ref], now: int | None) -> int:
        runs = frozenset((id, run) for id, run in blamed)
        return await self._write(lambda tx: release_session(tx, session, suspect=suspect, blamed=runs), now)

    async def _sweep(self, limit: int, lapse: bool, now: int | None) -> Swept:
        repairs = await self._repair(min(limit, LOOK), now)
        forwarded = await self._forward(now, limit)
        remove_stale(self._fifo_folder, limit)
        swept, self._swept_at = await self._write(
            lambda tx: (sweep_step(tx, limit, lapse, forwarded, self._swept_at), tx.now), now
        )
        left = await self._read(lambda tx: tx.db.execute(SQL["posted"], (tx.ns,)).fetchone())
        return msgspec.structs.replace(swept, repairs=repairs, more=swept.more or left is not None)

    async def _repair(self, limit: int, now: int | None) -> dict[str, int]:
        broken = await self._read(lambda tx: self._rounds.check_next(tx.db, tx.ns, limit))
        return {} if broken is None else await self._write(lambda tx: repair_rows(tx, broken, limit), now)

    async def _edit_scope(self, scope: Scope, action: ScopeAction, now: int | None) -> None:
        await self._write(lambda tx: edit.set_scope(tx, scope, action), now)

    async def _edit_jobs(
        self,
        selection: Ids | Query,
        action: JobAction,
        cursor: str | None,
        limit: int,
        dry_run: bool,
        now: int | None,
    ) -> Edited:
        return await self._write(lambda tx: edit.apply(tx, selection, action, cursor, limit, dry_run), now)

    async def _get(self, ids: Sequence[str], watch: str | None, now: int | None) -> list[Record | None]:
        if watch is None:
            return await self._read(lambda tx: read.get_records(tx, ids), now)

        def work(tx: Transaction) -> list[Record | None]:
            for id in ids:
                job_row = tx.job_row_by_id(id)
                if job_row is not None and not job_row.state.finished:
                    tx.db.execute(SQL["watch"], (job_row.seq, watch))
            return read.get_records(tx, ids)

        return await self._write(work, now)

    async def _memo(self, session: str, writes: Sequence[MemoWrite], now: int | None) -> list[Verdict]:
        return await self._write(lambda tx: durable.write_memos(tx, _session(tx, session), writes), now)

    async def _recall(self, id: str, position: int, limit: int) -> list[bytes]:
        return await self._read(lambda tx: durable.read_log(tx, id, position, limit))

    async def _send(self, id: str, name: str, message: str, body: bytes, now: int | None) -> Sent:
        return await self._write(lambda tx: durable.send(tx, id, name, message, body), now)

    async def _mailbox(self, id: str, name: str, after: int, limit: int) -> list[Message]:
        return await self._read(lambda tx: durable.read_mailbox(tx, id, name, after, limit))

    async def _tally(self, owner: str, queues: Sequence[str]) -> dict[State, int]:
        return await self._read(lambda tx: durable.tally(tx, owner, queues))

    async def _find(
        self, query: Query, cursor: str | None, limit: int, newest: bool, now: int | None
    ) -> Page:
        look = read.newest if newest else read.page
        return Page(*await self._read(lambda tx: look(tx, query, cursor, limit), now))

    async def queues(self, *, now: int | None = None) -> list[QueueInfo]:
        return await self._read(lambda tx: read.queue_infos(tx.db, tx.ns), now)

    async def queue_names(self) -> list[str]:
        rows = await self._read(lambda tx: tx.db.execute(SQL["all_queues"], (tx.ns,)).fetchall())
        return [row[1] for row in rows]

    async def usage(self, job: Job, *, now: int | None = None) -> Usage:
        return await self._read(lambda tx: usage(tx, job), now)

    async def _read_doc(self, kind: str, name: str, now: int | None) -> Doc | None:
        return await self._read(lambda tx: read.read_doc(tx, kind, name), now)

    async def _write_doc(self, write: DocWrite, now: int | None) -> DocReply:
        def work(tx: Transaction) -> DocReply:
            written = read.write_doc(tx, write)
            return DocReply(written, read.read_doc(tx, write.kind, write.name))

        return await self._write(work, now)

    async def _docs(self, kind: str, now: int | None) -> list[Doc]:
        return await self._read(lambda tx: read.read_docs(tx, kind), now)

    async def _events(self, cursor: Mapping[str, int] | None, limit: int) -> Feed:
        return await self._read(lambda tx: read.read_feed(tx.db, tx.ns, cursor, limit))

    async def _wait(self, interest: Interest, timeout: float) -> Wake:
        deadline = time.monotonic() + timeout
        if self._fifo is None and timeout > 0:
            self._fifo = Fifo.open(self._fifo_folder, blocking=self._blocking)
        sleeper = None
        try:
            while True:
                heard = self._fifo.heard if self._fifo else 0
                missed = self._missed
                left = deadline - time.monotonic()
                wake, until, sleeper = await self._look(interest, left, sleeper)
                if sleeper is None or self._fifo is None:
                    return wake
                await self._sleep(self._fifo, min(left, until), heard, missed)
        finally:
            if sleeper is not None:
                await self._get_up(sleeper)

    async def _look(
        self, interest: Interest, left: float, sleeper: int | None
    ) -> tuple[Wake, float, int | None]:
        """Look for news; if there is none and time is left, register as asleep in the same transaction."""

        def work(tx: Transaction) -> tuple[Wake, float, int | None]:
            if sleeper is not None:
                wait.get_up(tx, sleeper)
            wake = wait.news(tx, interest)
            if wake != Wake() or left <= 0:
                return wake, 0.0, None
            when = wait.next_time(tx, interest)
            seconds = left if when is None else min(left, max(when - tx.now, 1) / 1000)
            until = tx.now + int(seconds * 1000) + 1
            bell = self._fifo.name if self._fifo else ""
            return wake, seconds, wait.fall_asleep(tx, interest, bell, until)

        return await self._write(work, None)

    async def _sleep(self, bell: Fifo, seconds: float, heard: int, missed: int) -> None:
        """Sleep until a wake-up, the end of the time, or a change of the file without a wake-up."""
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
        return await self._read(lambda tx: problems(tx.db, tx.ns))

    async def close(self) -> None:
        if self._fifo is not None:
            self._fifo.close()
        with contextlib.suppress(OSError):
            self._fifo_folder.rmdir()
        self._database.close()


def _namespace(db: sqlite3.Connection, name: str) -> int:
    row = db.execute(SQL["find_namespace"], (name,)).fetchone()
    if row is None:
        db.execute(SQL["insert_namespace"], (name,))
        row = db.execute(SQL["find_namespace"], (name,)).fetchone()
    ns: int = row[0]
    return ns


def _session(tx: Transaction, name: str) -> int:
    """The session's number; one that nothing has if it is unknown."""
    row = tx.db.execute(SQL["find_session"], (tx.ns, name)).fetchone()
    return -1 if row is None else row[0]


def _take(
    tx: Transaction, session: int, request: int, queues: Sequence[str], filter: Filter, want: int, share: int
) -> list[Taken]:
    given: list[Given] = []
    for name in queues:
        queue = tx.queue(name)
        if queue is not None:
            given += take_from(tx, queue, session, filter, min(share, want - len(given)))
    reply = encode([(one.seq, one.taken.run) for one in given])
    tx.db.execute(SQL["remember_reply"], (request, reply, session))
    return [one.taken for one in given]


def _renew(tx: Transaction, beat: Beat) -> Heard:
    row = tx.db.execute(SQL["find_session"], (tx.ns, beat.session)).fetchone()
    expires = tx.now + beat.lease
    if row is None:
        epoch = tx.db.execute(SQL["next_epoch"], (tx.ns, tx.now)).fetchone()[0]
        tx.db.execute(SQL["open_session"], (tx.ns, beat.session, epoch, beat.lease, expires))
        return Heard(True, epoch)
    session, epoch = row[0], row[4]
    tx.db.execute(SQL["keep_session"], (beat.lease, expires, session))
    for report in beat.progress:
        values = (encode(report.progress), session, report.run, tx.ns, report.id)
        for (queue,) in tx.db.execute(SQL["report_progress"], values).fetchall():
            tx.note(queue, Sign.PROGRESS, report.id, report.run)
    lost = tuple(tx.db.execute(SQL["voids"], (session,)).fetchall())
    stopping = tx.db.execute(SQL["asked_to_stop"], (session,)).fetchall()
    asked = tuple((id, run) for id, run, _ in stopping)
    forced = tuple((id, run) for id, run, force in stopping if force)
    if lost or asked:
        tx.db.execute(SQL["heard_voids"], (session,))
        tx.db.execute(SQL["heard_to_stop"], (session,))
    return Heard(False, epoch, lost, asked, forced)
