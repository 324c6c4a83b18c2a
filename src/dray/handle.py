"""The handle of a job: ask for its state and result, cancel it, retry it.

Every operation exists twice: `job.status()` blocks, `await job.astatus()` is awaited (`sync_async`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from uuid_utils import uuid7

from dray.broker.actions import Cancel, Continue, Ids, JobAction, Reschedule, Retry
from dray.broker.durable import MAILBOX_MAX, MESSAGE_MAX
from dray.client.client import Client
from dray.client.link import Link, forbid_on_worker_loop, while_waiting
from dray.client.sync_async import sync_and_async
from dray.client.waiters import Waiter
from dray.codec.inputs import RESULT_MAX
from dray.durable.copying import RERUN, RERUN_FROM, entries_before
from dray.durable.entries import unpack_entry
from dray.durable.identity import ACCEPT, check_event, difference_of
from dray.durable.steps import StepInfo, steps_of
from dray.duration import format_duration, parse_duration
from dray.errors import (
    DecodeError,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobFinished,
    JobNotFound,
    JobTimeout,
    MailboxFull,
    NoResult,
    ResultGone,
)
from dray.info import JobInfo, describe
from dray.job import Job, Record, State, check_word
from dray.options import Duration, read_due
from dray.task import BUILT_IN

if TYPE_CHECKING:
    from dray.app import App
    from dray.why import Why

R = TypeVar("R")
Timeout = Duration | None
_BROKER_REASONS = frozenset({"poison", "expired", "dropped", "deadline"})
"""First words of the broker's own reasons: the job is dead, but not by the outcome of its last run."""

CLOCK_LAG = 5_000
"""Milliseconds by which the broker's clock, as known here, may be late."""


class JobHandle(msgspec.Struct, Generic[R], eq=False):
    """One job. `R` is the return type of its task."""

    app: App
    id: str
    task: str | None = None
    queue: str | None = None
    duplicate: bool = False
    """Its key or id was taken: this is the existing job."""
    accepted: State | None = None
    """Its state right after enqueue; None if this handle was made from an id."""

    def __repr__(self) -> str:
        return f"<Job {self.id}{f' of {self.task}' if self.task else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id and other.app is self.app

    def __hash__(self) -> int:
        return hash(self.id)

    def get(self, timeout: Timeout = None) -> R:
        """Wait for the end and return the result.

        Raises `JobFailed`, `JobCancelled`, `JobNotFound`, `ResultGone` (`NoResult`: results are off), or
        `JobTimeout` if it has not finished in time.
        """
        forbid_on_worker_loop("job.get()", "await job.aget()")
        result: R = self.client.block(_result, self, timeout)
        return result

    async def aget(self, timeout: Timeout = None) -> R:
        result: R = await self.client.run(_result, self, timeout)
        return result

    def __await__(self) -> Generator[Any, None, R]:
        return self.aget().__await__()

    async def _status(self, link: Link) -> State:
        """Its state; `not_found` for an id the broker does not know."""
        (record,) = await link.broker.get([self.id])
        return State.NOT_FOUND if record is None else record.state

    async def _info(self, link: Link) -> JobInfo:
        """Everything known about it."""
        (record,) = await link.broker.get([self.id])
        if record is None:
            raise _unknown(self.id)
        return describe(record, self.app)

    async def _cancel(self, link: Link, reason: str = "cancelled", *, force: bool = False) -> bool:
        """Cancel it. A running job is asked to stop; with `force` it stops at once, and an isolated run is
        killed. False if it had finished already."""
        return await self._edit(link, Cancel(reason, force))

    async def _retry(self, link: Link) -> bool:
        """Run it again, with all its retries; a delayed job starts now. False if it is ready or running."""
        return await self._edit(link, Retry())

    async def _reschedule(
        self, link: Link, *, delay: Duration | None = None, at: datetime | None = None
    ) -> bool:
        """Set when it may start: `delay` from now, or `at` a time; `delay=0` or a past time means now. False
        if it waits for other jobs, runs, or has finished."""
        return await self._edit(link, Reschedule(read_due(delay, at, self.app.now())))

    async def _send(self, link: Link, event: str, value: object = None, *, id: str | None = None) -> bool:
        """Send it an event, which `ctx.event` receives; kept until then. False if `id` was sent before.

        Raises `JobFinished`, `JobNotFound`, or `MailboxFull`.
        """
        body = self.app.codecs.encode_value(value, limit=MESSAGE_MAX)
        message = uuid7().hex if id is None else check_word("id", id)
        sent = await link.broker.send(self.id, check_event(event), message, body)
        if sent.verdict == "not_found":
            raise _unknown(self.id)
        if sent.verdict == "finished":
            raise JobFinished(self.id, sent.state)
        if sent.verdict == "full":
            raise MailboxFull(self.id, event, MAILBOX_MAX)
        return sent.verdict == "accepted"

    async def _resume(self, link: Link) -> bool:
        """Go on with a job that is parked because its code has changed. False if it is not parked."""
        (record,) = await link.broker.get([self.id])
        if record is None:
            raise _unknown(self.id)
        if record.suspended is None or not record.suspended.parked:
            return False
        difference = difference_of(record.reason)
        await link.broker.send(self.id, ACCEPT, uuid7().hex, difference.encode())
        return await self._edit(link, Continue())

    async def _rerun(
        self,
        link: Link,
        *,
        step: str | None = None,
        args: Sequence[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
    ) -> JobHandle[R]:
        """Run its call again as a new job, perhaps with other arguments. From `step` on, if one is given: the
        new job begins with what this one remembers of the steps before. Key and dependencies stay behind."""
        (record,) = await link.broker.get([self.id])
        if record is None:
            raise _unknown(self.id)
        headers = {**record.job.headers, RERUN: self.id}
        headers.pop(RERUN_FROM, None)
        if step is not None:
            entries_before([unpack_entry(data) for data in await _log(link, self.id)], step)
            headers[RERUN_FROM] = step
        job = _repeated(self.app, record.job, headers, args, kwargs)
        (accepted,) = await link.broker.put([job])
        result = self.app.handle_or_error(job, accepted)
        if isinstance(result, Exception):
            raise result
        return result

    async def _steps(self, link: Link) -> list[StepInfo]:
        """The steps of a durable job, as its log has them; empty if it has none."""
        return steps_of(await _log(link, self.id))

    async def _why(self, link: Link) -> Why:
        """Why it is in its state, as a sentence and as data."""
        from dray.why import explain

        return await explain(link.broker, self.id)

    status, astatus = sync_and_async(_status)
    info, ainfo = sync_and_async(_info)
    cancel, acancel = sync_and_async(_cancel)
    retry, aretry = sync_and_async(_retry)
    reschedule, areschedule = sync_and_async(_reschedule)
    rerun, arerun = sync_and_async(_rerun)
    steps, asteps = sync_and_async(_steps)
    send, asend = sync_and_async(_send)
    resume, aresume = sync_and_async(_resume)
    why, awhy = sync_and_async(_why)

    async def _edit(self, link: Link, action: JobAction) -> bool:
        edited = await link.broker.edit(Ids((self.id,)), action)
        if not edited.changed and (await link.broker.get([self.id]))[0] is None:
            raise _unknown(self.id)
        return bool(edited.changed)

    @property
    def client(self) -> Client:
        return self.app.client


async def _log(link: Link, id: str) -> list[bytes]:
    entries: list[bytes] = []
    while page := await link.broker.recall(id, len(entries)):
        entries += page
    return entries


def _repeated(
    app: App,
    job: Job,
    headers: dict[str, str],
    args: Sequence[object] | None,
    kwargs: Mapping[str, object] | None,
) -> Job:
    payload = job.payload
    if args is not None or kwargs is not None:
        payload = app.codecs.encode_call(
            tuple(args or ()), dict(kwargs or {}), limit=app.settings.max_payload
        )
    return msgspec.structs.replace(
        job,
        id=f"{job.queue}:{uuid7().hex}",
        payload=payload,
        headers=headers,
        created=0,
        due=None,
        key=None,
        key_ttl=None,
        once=None,
        waits_for=(),
        parent=None,
        owner=None,
        node="",
    )


async def _result(link: Link, job: JobHandle[Any], timeout: Timeout) -> Any:
    record = (await finished_records(link, [job.id], timeout))[job.id]
    return outcome_of(job, record)


async def finished_records(link: Link, ids: Sequence[str], timeout: Timeout) -> dict[str, Record | None]:
    """The records of jobs once all have finished; JobTimeout names one that has not."""
    deadline = _deadline(link, timeout)
    waiter = Waiter()
    pending = dict.fromkeys(ids)
    try:
        await link.waiters.watch(link.broker, waiter, list(pending))
        finished = {id for id, record in waiter.records.items() if _is_finished(record)}
        while True:
            for id in finished:
                pending.pop(id, None)
                waiter.finished.pop(id, None)
            if not pending:
                return waiter.records
            with while_waiting():
                notified = await link.waiters.wait(link.broker, waiter, _left(link, deadline))
            if not notified:
                raise await _not_yet(link, pending, timeout)
            finished = await _read_finished(link, waiter, notified)
    finally:
        link.waiters.forget(waiter)


async def _read_finished(link: Link, waiter: Waiter, ids: list[str]) -> set[str]:
    """Read jobs whose notification came without a record. One that was retried by hand meanwhile is watched
    again."""
    finished = {id for id in ids if (record := waiter.records.get(id)) is not None and record.state.finished}
    unread = [id for id in ids if id not in finished]
    for id, record in zip(unread, await link.broker.get(unread) if unread else (), strict=True):
        if _is_finished(record):
            waiter.records[id] = record
            finished.add(id)
        else:
            await link.waiters.watch(link.broker, waiter, [id])
    return finished


def _is_finished(record: Record | None) -> bool:
    return record is None or record.state.finished


def _deadline(link: Link, timeout: Timeout) -> float | None:
    return None if timeout is None else link.time() + parse_duration("timeout", timeout) / 1000


def _left(link: Link, deadline: float | None) -> float | None:
    return None if deadline is None else deadline - link.time()


async def _not_yet(link: Link, pending: Collection[str], timeout: Timeout) -> JobTimeout:
    id = next(iter(pending))
    (record,) = await link.broker.get([id])
    state = record.state if record is not None else State.NOT_FOUND
    more = f" (and {len(pending) - 1} more)" if len(pending) > 1 else ""
    return JobTimeout(id, f"job {id}{more} was still {state} after {_shown(timeout)}; it goes on")


def _shown(timeout: Timeout) -> str:
    return "no time" if timeout is None else format_duration(parse_duration("timeout", timeout))


def _unknown(id: str) -> JobNotFound:
    return JobNotFound(
        id, f"no job {id}: it never was, or it was deleted, or its record is not kept any more"
    )


def outcome_of(job: JobHandle[Any], record: Record | None) -> Any:
    """Return the result of a finished job, or raise its error."""
    if record is None:
        raise _unknown(job.id)
    if record.state is State.DEAD:
        raise _failure(record)
    if record.state is State.CANCELLED:
        raise JobCancelled(job.id, f"job {job.id} was cancelled: {record.reason or 'no reason given'}")
    if record.result is None:
        raise _no_result(job.app, record)
    task, limit = job.app.tasks.get(record.job.task), job.app.settings.max_result
    if record.job.task.startswith(BUILT_IN):
        limit = RESULT_MAX
    try:
        return job.app.codecs.decode_value(
            record.result, Any if task is None else task.hints.returns, limit=limit
        )
    except DecodeError as error:
        raise DecodeError(
            f"job {job.id} succeeded, but its result is not what task {record.job.task} is annotated "
            f"to return (job.info().result has it as it is): {error}"
        ) from error


def _no_result(app: App, record: Record) -> ResultGone:
    own = record.job.result_ttl
    ttl, start = app.settings.result_ttl if own is None else own, f"job {record.id} succeeded, but"
    if ttl == 0:
        whose = "of this app" if own is None else "of this job"
        return NoResult(
            record.id, f"{start} results are off (result_ttl=0 {whose}): what it returned is not kept"
        )
    if app.now() + CLOCK_LAG < (record.finished or 0) + ttl:
        return NoResult(record.id, f"{start} results are off (result_ttl=0) where it ran: none was kept")
    length = format_duration(ttl)
    return ResultGone(
        record.id, f"{start} its result is not kept any more: its result_ttl of {length} is over"
    )


def _failure(record: Record) -> JobFailed:
    reason, error = record.reason or "dead", record.error
    what, _, text = reason.partition(": ")
    if error is None:
        return JobFailed(record.id, what, text or reason, reason=reason)
    if what in _BROKER_REASONS:  # the error is that of an earlier attempt
        return JobFailed(record.id, what, text, error.traceback, reason)
    return JobFailed(record.id, error.type, error.message, error.traceback, reason)


# many at once


async def _gather(link: Link, jobs: Sequence[JobHandle[Any]], timeout: Timeout, keep: bool) -> list[Any]:
    records = await finished_records(link, [job.id for job in jobs], timeout)
    results: list[Any] = []
    for job in jobs:
        try:
            results.append(outcome_of(job, records[job.id]))
        except Exception as error:
            if not keep:
                raise
            results.append(error)
    return results


def gather(
    jobs: Iterable[JobHandle[R]], timeout: Timeout = None, *, return_exceptions: bool = False
) -> list[R]:
    """The results of all jobs, in the jobs' order. Raises the first error, unless `return_exceptions`."""
    forbid_on_worker_loop("dray.gather()", "await dray.agather()")
    jobs = list(jobs)
    return [] if not jobs else _app_of(jobs).client.block(_gather, jobs, timeout, return_exceptions)


async def agather(
    jobs: Iterable[JobHandle[R]], timeout: Timeout = None, *, return_exceptions: bool = False
) -> list[R]:
    jobs = list(jobs)
    if not jobs:
        return []
    return await _app_of(jobs).client.run(_gather, jobs, timeout, return_exceptions)


def as_completed(jobs: Iterable[JobHandle[R]], timeout: Timeout = None) -> Iterator[JobHandle[R]]:
    """The jobs, each as soon as it has finished: its `job.get()` then returns or raises at once.

    A job given several times is returned once.
    """
    forbid_on_worker_loop("dray.as_completed()", "async for job in dray.aas_completed()")
    pending = {job.id: job for job in jobs}
    if timeout is not None:
        parse_duration("timeout", timeout)  # a wrong value is refused here, not at the first iteration
    return _completed(_app_of(list(pending.values())).client, pending, timeout) if pending else iter(())


def _completed(client: Client, pending: dict[str, JobHandle[R]], timeout: Timeout) -> Iterator[JobHandle[R]]:
    waiter = Waiter()
    link, deadline = client.block(_start_waiting, waiter, list(pending), timeout)
    try:
        while pending:
            for id in client.block(_next_finished, link, waiter, deadline):
                yield pending.pop(id)
    finally:
        link.waiters.forget(waiter)


async def aas_completed(jobs: Iterable[JobHandle[R]], timeout: Timeout = None) -> AsyncIterator[JobHandle[R]]:
    pending = {job.id: job for job in jobs}
    if not pending:
        return
    client, waiter = _app_of(list(pending.values())).client, Waiter()
    link, deadline = await client.run(_start_waiting, waiter, list(pending), timeout)
    try:
        while pending:
            for id in await client.run(_next_finished, link, waiter, deadline):
                yield pending.pop(id)
    finally:
        link.waiters.forget(waiter)


async def _start_waiting(
    link: Link, waiter: Waiter, ids: list[str], timeout: Timeout
) -> tuple[Link, float | None]:
    deadline = _deadline(link, timeout)
    await link.waiters.watch(link.broker, waiter, ids)
    return link, deadline


async def _next_finished(_: Link, link: Link, waiter: Waiter, deadline: float | None) -> list[str]:
    """Jobs that finished since the last call, on the link that the iteration started with."""
    with while_waiting():
        finished = await link.waiters.wait(link.broker, waiter, _left(link, deadline))
    ids = list(waiter.pending)
    if not finished and not ids:  # the notification came just now
        return await link.waiters.wait(link.broker, waiter, 0)
    if not finished:
        id, left = ids[0], len(ids)
        raise JobTimeout(
            id,
            f"{left} job{'s' if left > 1 else ''} of as_completed, {id} among them, "
            "went on beyond the timeout",
        )
    return finished


def _app_of(jobs: Sequence[JobHandle[Any]]) -> App:
    apps = {id(job.app): job.app for job in jobs}
    if len(apps) > 1:
        names = ", ".join(sorted(app.name for app in apps.values()))
        raise InvalidInput("jobs", names, "jobs of one app can be waited for together")
    return jobs[0].app
