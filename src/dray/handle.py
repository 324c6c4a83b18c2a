"""What a caller holds of a job: its id, and all that can be asked of it or done to it.

Every operation exists twice, see `dray.twins`: `job.status()` blocks, `await job.astatus()` is awaited.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Generator, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dray.broker.verbs import Cancel, Ids, JobAction, Reschedule, Retry
from dray.call import Duration, read_due
from dray.client import Client, Link, forbid_on_worker_loop, while_waiting
from dray.duration import format_duration, parse_duration
from dray.errors import (
    DecodeError,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobTimeout,
    ResultGone,
)
from dray.info import JobInfo, describe
from dray.job import Record, State
from dray.twins import awaits, blocks
from dray.watching import Watching
from dray.why import Why, explain

if TYPE_CHECKING:
    from dray.app import App

R = TypeVar("R")
Timeout = Duration | None
_NOT_ITS_OWN = frozenset({"poison", "expired", "dropped"})
"""What a broker's own reasons begin with: such a job is dead though its last run did not say so."""


class JobHandle(Generic[R]):
    """One job. `R` is what its task returns."""

    __slots__ = ("accepted", "app", "duplicate", "id", "queue", "task")

    def __init__(
        self,
        app: App,
        id: str,
        task: str | None = None,
        queue: str | None = None,
        *,
        duplicate: bool = False,
        accepted: State | None = None,
    ) -> None:
        self.app, self.id, self.task, self.queue = app, id, task, queue
        self.duplicate = duplicate
        """Its key or id was taken: this is the job that was there before."""
        self.accepted = accepted
        """How it stood when it was enqueued; None if this handle was made from an id."""

    def __repr__(self) -> str:
        return f"<Job {self.id}{f' of {self.task}' if self.task else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id and other.app is self.app

    def __hash__(self) -> int:
        return hash(self.id)

    def get(self, timeout: Timeout = None) -> R:
        """Wait for the end and return the result.

        Raises `JobFailed`, `JobCancelled`, `JobNotFound`, `ResultGone`, or, if it is not over in time,
        `JobTimeout`.
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
        """Where it stands; `not_found` for an id the broker does not know."""
        (record,) = await link.broker.get([self.id])
        return State.NOT_FOUND if record is None else record.state

    async def _info(self, link: Link) -> JobInfo:
        """Everything known of it."""
        (record,) = await link.broker.get([self.id])
        if record is None:
            raise _unknown(self.id)
        return describe(record, self.app)

    async def _cancel(self, link: Link, reason: str = "cancelled") -> bool:
        """Not started if it was not running, told to stop if it was. False if it had ended already."""
        return await self._edit(link, Cancel(reason))

    async def _retry(self, link: Link) -> bool:
        """Run it again, with all its retries; a delayed one now. False if it waits or runs already."""
        return await self._edit(link, Retry())

    async def _reschedule(
        self, link: Link, *, delay: Duration | None = None, at: datetime | None = None
    ) -> bool:
        """Start no sooner than then, counted from now; past or `delay=0` means at once. False if it waits for
        other jobs, runs, or has ended."""
        return await self._edit(link, Reschedule(read_due(delay, at, self.app.now())))

    async def _why(self, link: Link) -> Why:
        """Why it stands where it stands, in a sentence and as data."""
        return await explain(link.broker, self.id)

    status, astatus = blocks(_status), awaits(_status)
    info, ainfo = blocks(_info), awaits(_info)
    cancel, acancel = blocks(_cancel), awaits(_cancel)
    retry, aretry = blocks(_retry), awaits(_retry)
    reschedule, areschedule = blocks(_reschedule), awaits(_reschedule)
    why, awhy = blocks(_why), awaits(_why)

    async def _edit(self, link: Link, action: JobAction) -> bool:
        edited = await link.broker.edit(Ids((self.id,)), action)
        if not edited.changed and (await link.broker.get([self.id]))[0] is None:
            raise _unknown(self.id)
        return bool(edited.changed)

    @property
    def client(self) -> Client:
        return self.app.client


async def _result(link: Link, job: JobHandle[Any], timeout: Timeout) -> Any:
    record = (await _ends(link, [job.id], timeout))[job.id]
    return outcome_of(job, record)


async def _ends(link: Link, ids: Sequence[str], timeout: Timeout) -> dict[str, Record | None]:
    """The records of jobs once all have ended; JobTimeout names those that have not."""
    deadline = _deadline(link, timeout)
    watching = Watching()
    pending = dict.fromkeys(ids)
    try:
        await link.watch(watching, list(pending))
        over = {id for id, record in watching.records.items() if _is_over(record)}
        while True:
            for id in over:
                pending.pop(id, None)
                watching.over.pop(id, None)
            if not pending:
                return watching.records
            with while_waiting():
                ended = await link.ended(watching, None if deadline is None else deadline - link.time())
            if not ended:
                raise await _not_yet(link, pending, timeout)
            over = await _read_ends(link, watching, ended)
    finally:
        link.unwatch(watching)


async def _read_ends(link: Link, watching: Watching, ids: list[str]) -> set[str]:
    """Read jobs that have ended, unless word of it told how. One that was retried by hand meanwhile has not:
    it is watched again."""
    over = {id for id in ids if (told := watching.records.get(id)) is not None and told.state.finished}
    unread = [id for id in ids if id not in over]
    for id, record in zip(unread, await link.broker.get(unread) if unread else (), strict=True):
        if _is_over(record):
            watching.records[id] = record
            over.add(id)
        else:
            await link.watch(watching, [id])
    return over


def _is_over(record: Record | None) -> bool:
    return record is None or record.state.finished


def _deadline(link: Link, timeout: Timeout) -> float | None:
    return None if timeout is None else link.time() + parse_duration("timeout", timeout) / 1000


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
    """The result of a finished job, or the error it stands for."""
    if record is None:
        raise _unknown(job.id)
    if record.state is State.DEAD:
        raise _failure(record)
    if record.state is State.CANCELLED:
        raise JobCancelled(job.id, f"job {job.id} was cancelled: {record.reason or 'no reason given'}")
    if record.result is None:
        ttl = record.job.result_ttl
        if (job.app.settings.result_ttl if ttl is None else ttl) == 0:
            return None
        raise ResultGone(job.id, f"job {job.id} succeeded, but its result is not kept any more (result_ttl)")
    task, limit = job.app.tasks.get(record.job.task), job.app.settings.max_result
    try:
        return job.app.codecs.decode_value(
            record.result, Any if task is None else task.hints.returns, limit=limit
        )
    except DecodeError as error:
        raise DecodeError(
            f"job {job.id} succeeded, but its result is not what task {record.job.task} is annotated "
            f"to return (job.info().result has it as it is): {error}"
        ) from error


def _failure(record: Record) -> JobFailed:
    reason, error = record.reason or "dead", record.error
    what, _, text = reason.partition(": ")
    if error is None:
        return JobFailed(record.id, what, text or reason, reason=reason)
    if what in _NOT_ITS_OWN:  # the error is that of an earlier attempt
        return JobFailed(record.id, what, text, error.traceback, reason)
    return JobFailed(record.id, error.type, error.message, error.traceback, reason)


# many at once


async def _gather(link: Link, jobs: Sequence[JobHandle[Any]], timeout: Timeout, keep: bool) -> list[Any]:
    records = await _ends(link, [job.id for job in jobs], timeout)
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
    """The results of all jobs, in the jobs' order. The first failure is raised, unless they are asked for."""
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
    """The jobs, each as soon as it is over, however it ended: `job.get()` then returns or raises at once.

    A job that is given several times comes once.
    """
    forbid_on_worker_loop("dray.as_completed()", "async for job in dray.aas_completed()")
    pending = {job.id: job for job in jobs}
    if timeout is not None:
        parse_duration("timeout", timeout)  # refused here, not when the first job is asked for
    return _completed(_app_of(list(pending.values())).client, pending, timeout) if pending else iter(())


def _completed(client: Client, pending: dict[str, JobHandle[R]], timeout: Timeout) -> Iterator[JobHandle[R]]:
    watching = Watching()
    link, deadline = client.block(_start_watching, watching, list(pending), timeout)
    try:
        while pending:
            for id in client.block(_next_over, link, watching, deadline):
                yield pending.pop(id)
    finally:
        link.unwatch(watching)


async def aas_completed(jobs: Iterable[JobHandle[R]], timeout: Timeout = None) -> AsyncIterator[JobHandle[R]]:
    pending = {job.id: job for job in jobs}
    if not pending:
        return
    client, watching = _app_of(list(pending.values())).client, Watching()
    link, deadline = await client.run(_start_watching, watching, list(pending), timeout)
    try:
        while pending:
            for id in await client.run(_next_over, link, watching, deadline):
                yield pending.pop(id)
    finally:
        link.unwatch(watching)


async def _start_watching(
    link: Link, watching: Watching, ids: list[str], timeout: Timeout
) -> tuple[Link, float | None]:
    deadline = _deadline(link, timeout)
    await link.watch(watching, ids)
    return link, deadline


async def _next_over(_: Link, link: Link, watching: Watching, deadline: float | None) -> list[str]:
    """Those over since the last call, told by the link that it began with."""
    with while_waiting():
        over = await link.ended(watching, None if deadline is None else deadline - link.time())
    if not over:
        id = next(iter(watching.open))
        left = len(watching.open)
        raise JobTimeout(
            id,
            f"{left} job{'s' if left > 1 else ''} of as_completed, {id} among them, "
            "went on beyond the timeout",
        )
    return over


def _app_of(jobs: Sequence[JobHandle[Any]]) -> App:
    apps = {id(job.app): job.app for job in jobs}
    if len(apps) > 1:
        names = ", ".join(sorted(app.name for app in apps.values()))
        raise InvalidInput("jobs", names, "jobs of one app can be waited for together")
    return jobs[0].app
