"""The duty that puts the jobs of schedules.

It remembers only when each schedule is due next. When one is due, it reads the document and puts the jobs of
the due ticks in one compare-and-set with the advanced document; their ids are derived from the ticks. So any
number of tickers may run at once, also ones that were frozen: the first write puts the tick, the others fail
and read again.

A change by a user is noticed within a second: it also writes the document `NEWS`, whose version the leader
reads every second. All schedules are read again when it has changed, and now and then in case the writer died
before; so seldom that reading takes at most a tenth of the time.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from typing import Final, Literal

from msgspec.structs import replace

from dray.broker.actions import Cancel, Ids
from dray.broker.verbs import Accepted, Doc, DocWrite
from dray.errors import BrokerError, DecodeError, DrayError
from dray.job import State
from dray.schedules.schedule import GRACE, KIND, NEWS, Schedule, Step, decode, encode, step
from dray.schedules.store import announce, remove_undeclared
from dray.stats.arrivals import Arrivals
from dray.worker.retrying_broker import RetryingBroker

LOOK_EVERY: Final = 1.0
"""Seconds between reads of `NEWS`."""
READ_EVERY: Final = 60.0
"""Seconds between reads of all schedules when nothing has changed."""
SHARE: Final = 10
"""After a read of all schedules, at least this many times as long passes before the next."""
REMOVE_EVERY: Final = 60.0
TOGETHER: Final = 50
"""How many schedules are handled at a time."""
PUT_OFF: Final = 60_000
"""Milliseconds until a schedule that failed is tried again."""
_REFUSED: Final = ("full", "limited")

log = logging.getLogger("dray.worker")


class Ticker:
    """Puts the jobs of due ticks."""

    name = "scheduling"
    look_every = LOOK_EVERY
    read_every = READ_EVERY

    def __init__(
        self,
        lease: int,
        durability: Literal["normal", "full"] = "normal",
        arrivals: Arrivals | None = None,
    ) -> None:
        self._arrivals = arrivals or Arrivals()
        self._grace = max(GRACE, 2 * lease)
        """A tick that falls due while leadership changes is late, not missed."""
        self._durability: Literal["full"] | None = "full" if durability == "full" else None
        self._when: dict[str, int] = {}
        """When each schedule is due next; paused and ended ones are left out."""
        self._order: list[tuple[int, str]] = []
        """The same as a heap. An entry that differs from `_when` is void."""
        self._news: int | None = None
        """The version of `NEWS`; None before the first read."""
        self._next_look = self._next_read = self._rest_until = 0.0
        self._unreadable: dict[str, int] = {}
        """Schedules that could not be read: name → version that was logged."""

    async def step(self, retrying: RetryingBroker) -> float:
        await self._look(retrying)
        names = self._pop(retrying.broker.clock())
        results = await asyncio.gather(
            *(self._handle(retrying, name) for name in names), return_exceptions=True
        )
        failure: BaseException | None = None
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                self._expect(name, retrying.broker.clock())
                failure = failure or result
            else:
                self._expect(name, result)
        if failure is not None:
            raise failure
        return self._pause(retrying)

    async def _look(self, retrying: RetryingBroker) -> None:
        """Read all schedules if something has changed, or for safety."""
        began = retrying.monotonic()
        if self._news is not None and began < self._next_look:
            return
        doc = (await retrying.ask(lambda broker: broker.doc(*NEWS))).doc
        news = 0 if doc is None else doc.version
        self._next_look = began + self.look_every
        if began < self._rest_until or (news == self._news and began < self._next_read):
            return
        docs = await retrying.ask(lambda broker: broker.docs(KIND))
        found = [(doc.name, schedule) for doc in docs if (schedule := self._read(doc)) is not None]
        self._when = {name: when for name, one in found if (when := _next_run(one)) is not None}
        self._order = [(when, name) for name, when in self._when.items()]
        heapq.heapify(self._order)
        ended = retrying.monotonic()
        self._news, self._next_read = news, ended + self.read_every
        self._rest_until = ended + (ended - began) * SHARE

    def _read(self, doc: Doc) -> Schedule | None:
        try:
            return decode(doc.value)
        except DecodeError as error:
            if self._unreadable.get(doc.name) != doc.version:
                self._unreadable[doc.name] = doc.version
                log.error("schedule %s cannot be read, and is left to newer workers: %s", doc.name, error)
            return None

    def _expect(self, name: str, when: int | None) -> None:
        if when is not None:
            self._when[name] = when
            heapq.heappush(self._order, (when, name))

    def _next(self) -> int | None:
        while self._order:
            when, name = self._order[0]
            if self._when.get(name) == when:
                return when
            heapq.heappop(self._order)
        return None

    def _pop(self, now: int) -> list[str]:
        """Some of the due schedules, the longest overdue first."""
        names: list[str] = []
        while len(names) < TOGETHER and (when := self._next()) is not None and when <= now:
            name = heapq.heappop(self._order)[1]
            del self._when[name]
            names.append(name)
        return names

    def _pause(self, retrying: RetryingBroker) -> float:
        look = max(0.0, self._next_look - retrying.monotonic())
        when = self._next()
        return look if when is None else min(look, max(0, when - retrying.broker.clock()) / 1000)

    async def _handle(self, retrying: RetryingBroker, name: str) -> int | None:
        """Put the jobs of one schedule's due ticks; the time of the next."""
        doc = (await retrying.ask(lambda broker: broker.doc(KIND, name))).doc
        schedule = None if doc is None else self._read(doc)
        if doc is None or schedule is None:
            return None
        try:
            return await self._advance(retrying, doc, schedule)
        except (BrokerError, OSError):
            raise
        except DrayError as error:  # a zone that this machine does not know, a job that is refused
            log.error("schedule %s cannot run: %s", name, error)
            await self._write_schedule(retrying, doc, replace(schedule, last_error=str(error)))
        except Exception:
            log.exception("schedule %s cannot run", name)
        return retrying.broker.clock() + PUT_OFF

    async def _advance(self, retrying: RetryingBroker, doc: Doc, schedule: Schedule) -> int | None:
        previous = await self._previous(retrying, schedule)
        due = step(schedule, retrying.broker.clock(), previous=previous, grace=self._grace)
        if due is None:
            return _next_run(schedule)
        if due.missed:
            log.warning("schedule %s %s", doc.name, due.schedule.last_error)
        if due.cancel is not None:
            selection, reason = Ids((due.cancel,)), Cancel(f"the next run of schedule {doc.name} is due")
            await retrying.ask(lambda broker: broker.edit(selection, reason))
        if not await self._put(retrying, doc, due):
            return retrying.broker.clock()  # another ticker was faster: read its result
        return _next_run(due.schedule)

    async def _previous(self, retrying: RetryingBroker, schedule: Schedule) -> State | None:
        last = schedule.last_job
        if schedule.overlap == "allow" or last is None:
            return None
        (record,) = await retrying.ask(lambda broker: broker.get([last]))
        return None if record is None else record.state

    async def _put(self, retrying: RetryingBroker, doc: Doc, due: Step) -> bool:
        value = encode(due.schedule)
        if not due.jobs:
            return await self._write_schedule(retrying, doc, due.schedule)
        when = DocWrite(kind=KIND, name=doc.name, value=value, expect_version=doc.version)
        accepted = await retrying.ask(
            lambda broker: broker.put(due.jobs, when=when, durability=self._durability)
        )
        for job, reply in zip(due.jobs, accepted, strict=False):
            if reply.verdict == "created":
                self._arrivals.add(job.task, job.queue, "schedule")
        if any(reply.verdict in _REFUSED for reply in accepted):
            await self._note_refused(retrying, decode(doc.value), due, accepted)
        return bool(accepted)

    async def _write_schedule(self, retrying: RetryingBroker, doc: Doc, schedule: Schedule) -> bool:
        value, version = encode(schedule), doc.version
        if value == doc.value:
            return True
        reply = await retrying.ask(lambda broker: broker.doc(KIND, doc.name, value, expect_version=version))
        return reply.written

    async def _note_refused(
        self, retrying: RetryingBroker, before: Schedule, due: Step, accepted: list[Accepted]
    ) -> None:
        """The ticks are over all the same: the schedule must not count jobs that do not exist."""
        doc = (await retrying.ask(lambda broker: broker.doc(KIND, before.name))).doc
        if doc is None or doc.value != encode(due.schedule):
            return
        made = [job for job, reply in zip(due.jobs, accepted, strict=True) if reply.verdict not in _REFUSED]
        after = due.schedule if made else before
        noted = replace(
            due.schedule,
            last_run=after.last_run,
            last_job=made[-1].id if made else before.last_job,
            run_count=before.run_count + len(made),
            last_error=f"{len(due.jobs) - len(made)} refused: queue {before.job.queue} takes no more jobs",
        )
        log.warning("schedule %s: %s", before.name, noted.last_error)
        await self._write_schedule(retrying, doc, noted)


def _next_run(schedule: Schedule) -> int | None:
    return None if schedule.paused is not None else schedule.next_run


class RemoveUndeclared:
    """Removes schedules of the code that no running worker's code declares any more."""

    name = "removing schedules"

    async def step(self, retrying: RetryingBroker) -> float:
        if await retrying.ask(remove_undeclared):
            await retrying.ask(announce)
        return REMOVE_EVERY
