"""The verbs of the Redis broker: each is a few script calls, see the modules named in `dray.broker.redis`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

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
from dray.broker.redis import accepting, editing, reading, sessions, taking, upkeep
from dray.broker.redis.bell import BlockingBell, LoopBell
from dray.broker.redis.core import Core
from dray.broker.redis.crossing import follow_all
from dray.broker.redis.options import read_url
from dray.broker.redis.waiting import Waiting
from dray.broker.verbs import (
    PAGE_MAX,
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
from dray.job import Job, Outcome, Record, Settled, Taken
from dray.policy import Retention


class RedisBroker:
    """A namespace on a Redis or Valkey server, or on a cluster of them."""

    def __init__(self, core: Core, namespace: str) -> None:
        self.namespace, self.retention = namespace, core.retention
        self._core = core
        bell = BlockingBell if core.blocking else LoopBell
        self._bell: LoopBell | BlockingBell = bell(core.router, core.options)
        self._waiting = Waiting(core, self._bell)

    @classmethod
    async def open(
        cls,
        url: str,
        namespace: str = "dray",
        *,
        retention: Retention | None = None,
        blocking: bool = False,
        clock: Callable[[], int] | None = None,
    ) -> RedisBroker:
        """Open `redis://host:6379/0?timeout=10s`; see docs/brokers.md for all forms and options."""
        core = Core(read_url(url), namespace, retention or Retention(), clock, blocking)
        try:
            await core.open()
        except BaseException:
            core.router.close()
            raise
        return cls(core, namespace)

    def clock(self) -> int:
        return self._core.time(None)

    async def put(
        self,
        jobs: Sequence[Job],
        *,
        when: DocWrite | None = None,
        durability: Literal["normal", "full"] | None = None,
        now: int | None = None,
    ) -> list[Accepted]:
        check_puts(jobs, when, durability)
        return await accepting.put(self._core, jobs, when, now)

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
        return await taking.take(self._core, session, request, queues, filter, want, now)

    async def settle(
        self, session: str, outcomes: Sequence[Outcome], *, now: int | None = None
    ) -> list[Settled]:
        check_settle(session, outcomes)
        return await taking.settle(self._core, session, outcomes, now)

    async def renew(self, beats: Sequence[Beat], *, now: int | None = None) -> list[Heard]:
        check_beats(beats)
        return await sessions.renew(self._core, beats, now)

    async def release(
        self, session: str, *, suspect: bool = True, blamed: Collection[Ref] = (), now: int | None = None
    ) -> int:
        check_session(session)
        ended = await sessions.release(self._core, session, now, suspect=suspect, blamed=blamed)
        if ended is None:
            return 0
        await follow_all(self._core, ended[1], now)
        return ended[0]

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        check_limit(limit)
        return await upkeep.sweep(self._core, limit, lapse, now)

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
        if isinstance(selection, Scope) and isinstance(action, ScopeAction):
            if not dry_run:
                await editing.set_scope(self._core, selection, action, now)
            return Edited()
        if isinstance(selection, Ids) and isinstance(action, JobAction):
            return await editing.edit_ids(self._core, selection.ids, action, cursor, limit, dry_run, now)
        if isinstance(selection, Query) and isinstance(action, JobAction):
            return await editing.edit_query(self._core, selection, action, cursor, limit, dry_run, now)
        raise AssertionError("check_edit lets no other pair through")

    async def get(
        self, ids: Sequence[str], *, watch: str | None = None, now: int | None = None
    ) -> list[Record | None]:
        check_get(ids, watch)
        return await reading.get(self._core, ids, watch, now)

    async def find(
        self, query: Query, *, cursor: str | None = None, limit: int = 100, now: int | None = None
    ) -> Page:
        check_page(limit)
        check_query(query)
        return await reading.find(self._core, query, cursor, limit, now)

    async def queues(self, *, now: int | None = None) -> list[QueueInfo]:
        return await reading.queue_infos(self._core, now)

    async def usage(self, job: Job, *, now: int | None = None) -> Usage:
        return await reading.usage(self._core, job, now)

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
            call = self._core.on_own("doc", now, kind, name, "read")
        else:
            write = DocWrite(kind=kind, name=name, value=value, expect_version=expect_version, ttl=ttl)
            call = accepting.write_doc(self._core, write, now)
        written, stored = await self._core.call(call)
        return DocReply(bool(written), reading.read_doc(kind, name, stored))

    async def docs(self, kind: str, *, now: int | None = None) -> list[Doc]:
        check_kind(kind)
        return await reading.docs(self._core, kind, now)

    async def events(self, cursor: Mapping[str, int] | None = None, *, limit: int = 1000) -> Feed:
        check_limit(limit)
        if cursor is not None:
            check_cursor(cursor)
        return await reading.feed(self._core, cursor, limit)

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        check_wait(interest, timeout)
        return await self._waiting.wait(interest, timeout)

    async def audit(self) -> list[str]:
        """What is inconsistent, queue by queue."""
        names = await self._core.queues()
        replies = await self._core.calls([self._core.on_queue("audit", name, 0) for name in names])
        return [
            f"{name}: {problem.decode()}"
            for name, problems in zip(names, replies, strict=True)
            for problem in problems
        ]

    async def close(self) -> None:
        await self._waiting.settle()
        self._bell.close()
        self._core.router.close()
