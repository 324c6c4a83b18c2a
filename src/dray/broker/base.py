"""The base of every broker: it owns the signatures of the verbs and checks their arguments.

A broker implements the step behind each verb: `put` checks and calls `_put`, and so on. Verbs whose
arguments need no check (`queues`, `queue_names`, `usage`, `audit`, `close`) are implemented directly.
`now` is passed on as it came: None means the broker's own clock, read inside its atomic step.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import UNSET, UnsetType

from dray.broker import checks
from dray.broker.actions import Edited, Ids, JobAction, Query, Scope, ScopeAction
from dray.broker.durable import MemoWrite, Message, Sent
from dray.broker.verbs import (
    PAGE_MAX,
    Accepted,
    Beat,
    Broker,
    Doc,
    DocReply,
    DocWrite,
    Feed,
    Filter,
    Heard,
    Interest,
    Page,
    Ref,
    Swept,
    Wake,
)
from dray.job import Job, Outcome, Record, Settled, State, Taken, Verdict, check_name, check_word

Durability = Literal["normal", "full"]


def wall_clock() -> int:
    """This machine's time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class BaseBroker(Broker):
    """Every verb, with its arguments checked; `Broker` documents them."""

    hands_over = False

    async def put(
        self,
        jobs: Sequence[Job],
        *,
        when: DocWrite | None = None,
        durability: Durability | None = None,
        now: int | None = None,
    ) -> list[Accepted]:
        checks.check_puts(jobs, when, durability)
        return await self._put(jobs, when, durability, now)

    def put_checked(
        self, jobs: Sequence[Job], *, durability: Durability | None = None
    ) -> Coroutine[Any, Any, list[Accepted]]:
        """`put` of jobs that are known to be valid, as the client's job builder makes them."""
        return self._put(jobs, None, durability, None)

    @abstractmethod
    async def _put(
        self, jobs: Sequence[Job], when: DocWrite | None, durability: Durability | None, now: int | None
    ) -> list[Accepted]: ...

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
        checks.check_take(session, request, queues, filter, want, share)
        return await self._take(session, request, queues, filter, want, want if share is None else share, now)

    @abstractmethod
    async def _take(
        self,
        session: str,
        request: int,
        queues: Sequence[str],
        filter: Filter,
        want: int,
        share: int,
        now: int | None,
    ) -> list[Taken]: ...

    async def settle(
        self, session: str, outcomes: Sequence[Outcome], *, now: int | None = None
    ) -> list[Settled]:
        checks.check_settle(session, outcomes)
        return await self._settle(session, outcomes, now)

    @abstractmethod
    async def _settle(self, session: str, outcomes: Sequence[Outcome], now: int | None) -> list[Settled]: ...

    async def renew(self, beats: Sequence[Beat], *, now: int | None = None) -> list[Heard]:
        checks.check_beats(beats)
        return await self._renew(beats, now)

    @abstractmethod
    async def _renew(self, beats: Sequence[Beat], now: int | None) -> list[Heard]: ...

    async def release(
        self, session: str, *, suspect: bool = True, blamed: Collection[Ref] = (), now: int | None = None
    ) -> int:
        check_word("session", session)
        return await self._release(session, suspect, blamed, now)

    @abstractmethod
    async def _release(
        self, session: str, suspect: bool, blamed: Collection[Ref], now: int | None
    ) -> int: ...

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        checks.check_limit(limit)
        return await self._sweep(limit, lapse, now)

    @abstractmethod
    async def _sweep(self, limit: int, lapse: bool, now: int | None) -> Swept: ...

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
        checks.check_edit(selection, action, limit)
        if isinstance(selection, Scope):
            if not dry_run:
                await self._edit_scope(selection, cast(ScopeAction, action), now)
            return Edited()
        return await self._edit_jobs(selection, cast(JobAction, action), cursor, limit, dry_run, now)

    @abstractmethod
    async def _edit_scope(self, scope: Scope, action: ScopeAction, now: int | None) -> None: ...

    @abstractmethod
    async def _edit_jobs(
        self,
        selection: Ids | Query,
        action: JobAction,
        cursor: str | None,
        limit: int,
        dry_run: bool,
        now: int | None,
    ) -> Edited: ...

    async def get(
        self, ids: Sequence[str], *, watch: str | None = None, now: int | None = None
    ) -> list[Record | None]:
        checks.check_get(ids, watch)
        return await self._get(ids, watch, now)

    @abstractmethod
    async def _get(self, ids: Sequence[str], watch: str | None, now: int | None) -> list[Record | None]: ...

    async def find(
        self,
        query: Query,
        *,
        cursor: str | None = None,
        limit: int = 100,
        newest: bool = False,
        now: int | None = None,
    ) -> Page:
        checks.check_page(limit)
        checks.check_query(query)
        return await self._find(query, cursor, limit, newest, now)

    @abstractmethod
    async def _find(
        self, query: Query, cursor: str | None, limit: int, newest: bool, now: int | None
    ) -> Page: ...

    async def memo(
        self, session: str, writes: Sequence[MemoWrite], *, now: int | None = None
    ) -> list[Verdict]:
        checks.check_memos(session, writes)
        return await self._memo(session, writes, now)

    @abstractmethod
    async def _memo(self, session: str, writes: Sequence[MemoWrite], now: int | None) -> list[Verdict]: ...

    async def recall(self, id: str, position: int = 0, *, limit: int = 1000) -> list[bytes]:
        checks.check_recall(id, position, limit)
        return await self._recall(id, position, limit)

    @abstractmethod
    async def _recall(self, id: str, position: int, limit: int) -> list[bytes]: ...

    async def send(self, id: str, name: str, message: str, body: bytes, *, now: int | None = None) -> Sent:
        checks.check_send(id, name, message, body)
        return await self._send(id, name, message, body, now)

    @abstractmethod
    async def _send(self, id: str, name: str, message: str, body: bytes, now: int | None) -> Sent: ...

    async def mailbox(self, id: str, name: str, after: int = 0, *, limit: int = 100) -> list[Message]:
        checks.check_mailbox(id, name, after, limit)
        return await self._mailbox(id, name, after, limit)

    @abstractmethod
    async def _mailbox(self, id: str, name: str, after: int, limit: int) -> list[Message]: ...

    async def tally(self, owner: str, queues: Sequence[str]) -> dict[State, int]:
        checks.check_tally(owner, queues)
        return await self._tally(owner, queues)

    @abstractmethod
    async def _tally(self, owner: str, queues: Sequence[str]) -> dict[State, int]: ...

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
        checks.check_doc(kind, name, value, expect_version, ttl)
        if isinstance(value, UnsetType):
            return DocReply(False, await self._read_doc(kind, name, now))
        write = DocWrite(kind=kind, name=name, value=value, expect_version=expect_version, ttl=ttl)
        return await self._write_doc(write, now)

    @abstractmethod
    async def _read_doc(self, kind: str, name: str, now: int | None) -> Doc | None: ...

    @abstractmethod
    async def _write_doc(self, write: DocWrite, now: int | None) -> DocReply: ...

    async def docs(self, kind: str, *, now: int | None = None) -> list[Doc]:
        check_name("kind", kind)
        return await self._docs(kind, now)

    @abstractmethod
    async def _docs(self, kind: str, now: int | None) -> list[Doc]: ...

    async def events(self, cursor: Mapping[str, int] | None = None, *, limit: int = 1000) -> Feed:
        checks.check_limit(limit)
        if cursor is not None:
            checks.check_cursor(cursor)
        return await self._events(cursor, limit)

    @abstractmethod
    async def _events(self, cursor: Mapping[str, int] | None, limit: int) -> Feed: ...

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        checks.check_wait(interest, timeout)
        return await self._wait(interest, timeout)

    @abstractmethod
    async def _wait(self, interest: Interest, timeout: float) -> Wake: ...
