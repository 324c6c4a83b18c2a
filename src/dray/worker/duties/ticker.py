"""The duty that makes jobs of schedules.

What is remembered is only when each schedule is due next. When one is, its document is read, and the jobs of
its due ticks are put in one compare-and-set with the advanced document; their ids are derived from the ticks.
So any number of schedulers may do this at once, also ones that were frozen and go on with what they knew: a
tick is dealt with by the one whose write comes first, and the others read on.

What users change is noticed within a second: they write a small document after it, whose version is looked at
(one read a second, by the leader only). All schedules are read again when it is a new one, and now and then
for the case that its writer died in between; both so seldom that reading takes at most a tenth of the time.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from typing import Final, Literal

from msgspec.structs import replace

from dray.broker.verbs import Accepted, Cancel, Doc, DocWrite, Ids
from dray.errors import BrokerError, DecodeError, DrayError
from dray.job import State
from dray.reconciling import announce, remove_undeclared
from dray.schedule import GRACE, KIND, NEWS, Schedule, Step, decode, encode, step
from dray.worker.lifeline import Lifeline

LOOK_EVERY: Final = 1.0
"""Seconds between looks for news."""
READ_EVERY: Final = 60.0
"""Seconds between readings of all schedules when there is no news."""
SHARE: Final = 10
"""After reading all, at least this many times as long passes before it is done again."""
REMOVE_EVERY: Final = 60.0
TOGETHER: Final = 50
"""How many schedules are dealt with at a time."""
PUT_OFF: Final = 60_000
"""Milliseconds until a schedule that cannot be dealt with is tried again."""
_REFUSED: Final = ("full", "limited")

log = logging.getLogger("dray.worker")


class Schedules:
    """Puts the jobs of due ticks."""

    name = "scheduling"
    look_every = LOOK_EVERY
    read_every = READ_EVERY

    def __init__(self, lease: int, durability: Literal["normal", "full"] = "normal") -> None:
        self._grace = max(GRACE, 2 * lease)
        """What falls due while leadership changes hands is late, not missed."""
        self._durability: Literal["full"] | None = "full" if durability == "full" else None
        self._when: dict[str, int] = {}
        """When each schedule is due next; those that are not are left out."""
        self._order: list[tuple[int, str]] = []
        """The same as a heap. Entries that `_when` does not confirm are void."""
        self._news: int | None = None
        """The version of the last news; None before anything was read."""
        self._look_at = self._read_at = self._rest_until = 0.0
        self._complained: dict[str, int] = {}
        """Versions of documents that could not be read."""

    async def step(self, line: Lifeline) -> float:
        await self._look(line)
        names = self._pop(line.broker.clock())
        results = await asyncio.gather(
            *(self._deal_with(line, name) for name in names), return_exceptions=True
        )
        failure: BaseException | None = None
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BaseException):
                self._expect(name, line.broker.clock())
                failure = failure or result
            else:
                self._expect(name, result)
        if failure is not None:
            raise failure
        return self._pause(line)

    # when

    async def _look(self, line: Lifeline) -> None:
        """Read all schedules if there is news, or for safety."""
        began = line.monotonic()
        if self._news is not None and began < self._look_at:
            return
        doc = (await line.ask(lambda broker: broker.doc(*NEWS))).doc
        news = 0 if doc is None else doc.version
        self._look_at = began + self.look_every
        if began < self._rest_until or (news == self._news and began < self._read_at):
            return
        docs = await line.ask(lambda broker: broker.docs(KIND))
        found = [(doc.name, schedule) for doc in docs if (schedule := self._read(doc)) is not None]
        self._when = {name: when for name, one in found if (when := _next_run(one)) is not None}
        self._order = [(when, name) for name, when in self._when.items()]
        heapq.heapify(self._order)
        ended = line.monotonic()
        self._news, self._read_at = news, ended + self.read_every
        self._rest_until = ended + (ended - began) * SHARE

    def _read(self, doc: Doc) -> Schedule | None:
        try:
            return decode(doc.value)
        except DecodeError as error:
            if self._complained.get(doc.name) != doc.version:
                self._complained[doc.name] = doc.version
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
        """Some of those that are due; the longest overdue first."""
        names: list[str] = []
        while len(names) < TOGETHER and (when := self._next()) is not None and when <= now:
            name = heapq.heappop(self._order)[1]
            del self._when[name]
            names.append(name)
        return names

    def _pause(self, line: Lifeline) -> float:
        look = max(0.0, self._look_at - line.monotonic())
        when = self._next()
        return look if when is None else min(look, max(0, when - line.broker.clock()) / 1000)

    # what

    async def _deal_with(self, line: Lifeline, name: str) -> int | None:
        """Make the jobs of one schedule's due ticks; when it is due next."""
        doc = (await line.ask(lambda broker: broker.doc(KIND, name))).doc
        schedule = None if doc is None else self._read(doc)
        if doc is None or schedule is None:
            return None
        try:
            return await self._advance(line, doc, schedule)
        except (BrokerError, OSError):
            raise
        except DrayError as error:  # a zone that this machine does not know, a job that is refused
            log.error("schedule %s cannot run: %s", name, error)
            await self._tell(line, doc, replace(schedule, last_error=str(error)))
        except Exception:
            log.exception("schedule %s cannot run", name)
        return line.broker.clock() + PUT_OFF

    async def _advance(self, line: Lifeline, doc: Doc, schedule: Schedule) -> int | None:
        previous = await self._previous(line, schedule)
        due = step(schedule, line.broker.clock(), previous=previous, grace=self._grace)
        if due is None:
            return _next_run(schedule)
        if due.missed:
            log.warning("schedule %s %s", doc.name, due.schedule.last_error)
        if due.cancel is not None:
            selection, reason = Ids((due.cancel,)), Cancel(f"the next run of schedule {doc.name} is due")
            await line.ask(lambda broker: broker.edit(selection, reason))
        if not await self._write(line, doc, due):
            return line.broker.clock()  # another was quicker: see what it left
        return _next_run(due.schedule)

    async def _previous(self, line: Lifeline, schedule: Schedule) -> State | None:
        last = schedule.last_job
        if schedule.overlap == "allow" or last is None:
            return None
        (record,) = await line.ask(lambda broker: broker.get([last]))
        return None if record is None else record.state

    async def _write(self, line: Lifeline, doc: Doc, due: Step) -> bool:
        value = encode(due.schedule)
        if not due.jobs:
            return await self._tell(line, doc, due.schedule)
        when = DocWrite(kind=KIND, name=doc.name, value=value, expect_version=doc.version)
        accepted = await line.ask(lambda broker: broker.put(due.jobs, when=when, durability=self._durability))
        if any(reply.verdict in _REFUSED for reply in accepted):
            await self._tell_of_refused(line, decode(doc.value), due, accepted)
        return bool(accepted)

    async def _tell(self, line: Lifeline, doc: Doc, schedule: Schedule) -> bool:
        value, version = encode(schedule), doc.version
        if value == doc.value:
            return True
        reply = await line.ask(lambda broker: broker.doc(KIND, doc.name, value, expect_version=version))
        return reply.written

    async def _tell_of_refused(
        self, line: Lifeline, before: Schedule, due: Step, accepted: list[Accepted]
    ) -> None:
        """The ticks are over all the same: their schedule is not to count jobs that do not exist."""
        doc = (await line.ask(lambda broker: broker.doc(KIND, before.name))).doc
        if doc is None or doc.value != encode(due.schedule):
            return
        made = [job for job, reply in zip(due.jobs, accepted, strict=True) if reply.verdict not in _REFUSED]
        after = due.schedule if made else before
        told = replace(
            due.schedule,
            last_run=after.last_run,
            last_job=made[-1].id if made else before.last_job,
            run_count=before.run_count + len(made),
            last_error=f"{len(due.jobs) - len(made)} refused: queue {before.job.queue} takes no more jobs",
        )
        log.warning("schedule %s: %s", before.name, told.last_error)
        await self._tell(line, doc, told)


def _next_run(schedule: Schedule) -> int | None:
    return None if schedule.paused is not None else schedule.next_run


class Undeclared:
    """Removes schedules that came from code, once no code declares them any more."""

    name = "removing schedules"

    async def step(self, line: Lifeline) -> float:
        if await line.ask(remove_undeclared):
            await line.ask(announce)
        return REMOVE_EVERY
