"""The Redis broker: each verb is a few script calls in the module of its name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from dray.broker.actions import Edited, Ids, JobAction, Query, Scope, ScopeAction
from dray.broker.base import BaseBroker, Durability
from dray.broker.durable import MemoWrite, Message, Sent
from dray.broker.redis import durable, edit, put, read, repair, sessions, settle, sweep, take
from dray.broker.redis.core import Core
from dray.broker.redis.options import read_url
from dray.broker.redis.pubsub import BlockingSubscriber, LoopSubscriber
from dray.broker.redis.read_newest import newest as newest_first
from dray.broker.redis.server import read_use
from dray.broker.redis.wait import Waits
from dray.broker.servers import ServerUse
from dray.broker.verbs import (
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
from dray.job import Job, Outcome, Record, Settled, State, Taken, Verdict
from dray.policy import ConnectionSettings, Retention


class RedisBroker(BaseBroker):
    hands_over = True

    """A namespace on a Redis or Valkey server, or on a cluster of them. Threads share a blocking one."""

    def __init__(self, core: Core, namespace: str) -> None:
        self.namespace, self.retention, self.threadsafe = namespace, core.retention, core.blocking
        self._core = core
        kind = BlockingSubscriber if core.blocking else LoopSubscriber
        self._subscriber: LoopSubscriber | BlockingSubscriber = kind(core.router, core.options)
        self._waits = Waits(core, self._subscriber)

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
    ) -> RedisBroker:
        """Open `redis://host:6379/0?timeout=10s`; see docs/brokers.md for all forms and options."""
        core = Core(read_url(url, access), namespace, retention or Retention(), clock, blocking)
        try:
            await core.open()
        except BaseException:
            core.router.close()
            raise
        return cls(core, namespace)

    def clock(self) -> int:
        return self._core.time(None)

    put_checked = put.put_checked

    async def _put(
        self, jobs: Sequence[Job], when: DocWrite | None, durability: Durability | None, now: int | None
    ) -> list[Accepted]:
        return await put.put(self._core, jobs, when, now)

    def _take(
        self,
        session: str,
        request: int,
        queues: Sequence[str],
        filter: Filter,
        want: int,
        share: int,
        now: int | None,
    ) -> Coroutine[Any, Any, list[Taken]]:
        return take.take(self._core, session, request, queues, filter, want, share, now)

    def _settle(
        self, session: str, outcomes: Sequence[Outcome], now: int | None
    ) -> Coroutine[Any, Any, list[Settled]]:
        return settle.settle(self._core, session, outcomes, now)

    async def _renew(self, beats: Sequence[Beat], now: int | None) -> list[Heard]:
        return await sessions.renew(self._core, beats, now)

    async def _release(self, session: str, suspect: bool, blamed: Collection[Ref], now: int | None) -> int:
        await self._waits.leave(session)
        return await sessions.release(self._core, session, now, suspect, blamed)

    async def _sweep(self, limit: int, lapse: bool, now: int | None) -> Swept:
        return await sweep.sweep(self._core, limit, lapse, now)

    async def _edit_scope(self, scope: Scope, action: ScopeAction, now: int | None) -> None:
        await edit.set_scope(self._core, scope, action, now)

    async def _edit_jobs(
        self,
        selection: Ids | Query,
        action: JobAction,
        cursor: str | None,
        limit: int,
        dry_run: bool,
        now: int | None,
    ) -> Edited:
        if isinstance(selection, Ids):
            return await edit.edit_ids(self._core, selection.ids, action, cursor, limit, dry_run, now)
        return await edit.edit_query(self._core, selection, action, cursor, limit, dry_run, now)

    async def _get(self, ids: Sequence[str], watch: str | None, now: int | None) -> list[Record | None]:
        return await read.get(self._core, ids, watch, now)

    async def _find(
        self, query: Query, cursor: str | None, limit: int, newest: bool, now: int | None
    ) -> Page:
        if newest:
            return await newest_first(self._core, query, cursor, limit, now)
        return await read.find(self._core, query, cursor, limit, now)

    async def queues(self, *, now: int | None = None) -> list[QueueInfo]:
        return await read.queue_infos(self._core, now)

    async def queue_names(self) -> list[str]:
        return await self._core.queues()

    async def usage(self, job: Job, *, now: int | None = None) -> Usage:
        return await read.usage(self._core, job, now)

    async def _memo(self, session: str, writes: Sequence[MemoWrite], now: int | None) -> list[Verdict]:
        return await durable.memo(self._core, session, writes, now)

    async def _recall(self, id: str, position: int, limit: int) -> list[bytes]:
        return await durable.recall(self._core, id, position, limit)

    async def _send(self, id: str, name: str, message: str, body: bytes, now: int | None) -> Sent:
        return await durable.send(self._core, id, name, message, body, now)

    async def _mailbox(self, id: str, name: str, after: int, limit: int) -> list[Message]:
        return await durable.mailbox(self._core, id, name, after, limit)

    async def _tally(self, owner: str, queues: Sequence[str]) -> dict[State, int]:
        return await durable.tally(self._core, owner, queues)

    async def _read_doc(self, kind: str, name: str, now: int | None) -> Doc | None:
        _, stored = await self._core.call(self._core.on_own("doc", now, kind, name, "read"))
        return read.read_doc(kind, name, stored)

    async def _write_doc(self, write: DocWrite, now: int | None) -> DocReply:
        written, stored = await self._core.call(put.write_doc(self._core, write, now))
        return DocReply(bool(written), read.read_doc(write.kind, write.name, stored))

    async def _docs(self, kind: str, now: int | None) -> list[Doc]:
        return await read.docs(self._core, kind, now)

    async def _events(self, cursor: Mapping[str, int] | None, limit: int) -> Feed:
        return await read.feed(self._core, cursor, limit)

    def _wait(self, interest: Interest, timeout: float) -> Coroutine[Any, Any, Wake]:
        return self._waits.wait(interest, timeout)

    async def audit(self) -> list[str]:
        return await repair.audit(self._core)

    async def servers(self) -> list[ServerUse]:
        """The current use of all primaries."""
        return await read_use(self._core.router)

    async def erase(self, kinds: Collection[str]) -> None:
        """Delete an unused namespace without jobs, and its documents of these kinds."""
        await self._core.erase(kinds)

    async def close(self) -> None:
        await self._waits.finish()
        self._subscriber.close()
        self._core.router.close()
