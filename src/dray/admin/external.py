"""`app.external`: fetch jobs without being a dray worker, hold them, and report their outcome.

    for job in app.external.fetch(["images"], limit=10, lease="1m", wait="30s"):
        app.external.ack(job.id, job.token, {"size": 42})

Workers in other languages use it through gRPC. One fetch is one session at the broker, with the requested
lease: `extend` keeps all jobs of that fetch, and every later call is fenced like that of any worker.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from dray.broker.verbs import Beat, Broker, Filter, Interest, ProgressReport
from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async
from dray.documents.lease_token import Token, read_token
from dray.duration import DAY, format_duration, parse_duration
from dray.errors import (
    BrokerError,
    CodecError,
    InvalidInput,
    JobFailed,
    JobNotFound,
    LeaseLost,
    MissingLibrary,
    SessionLost,
)
from dray.info import moment
from dray.job import (
    Error,
    Job,
    Outcome,
    OutcomeKind,
    Progress,
    Record,
    State,
    Taken,
    Verdict,
    check_name,
)
from dray.options import Duration
from dray.policy import Backoff, BackoffFunction, retry_delay

if TYPE_CHECKING:
    from dray.app import App

Nack = Literal["retry", "dead", "give_back", "crashed"]

FETCH_MAX: Final = 1000
LEASE_MIN: Final = 100
LEASE_MAX: Final = DAY
MESSAGE_MAX: Final = 2000
_ELSEWHERE: Final = 60_000
"""Milliseconds until a job that cannot be read here is offered again."""
TRACEBACK_MAX: Final = 16 * 1024
_REASON_MAX: Final = 500
_LOOK_AGAIN: Final = 30.0
"""Seconds after which a waiting fetch checks for jobs without a notification."""
_MARK: Final = "external"
_MARK_TTL: Final = 7 * DAY
_TRIES: Final = 10
_OPEN_MAX: Final = 10_000
"""Sessions that are remembered, so that they end with their last job."""


class HeldJob(msgspec.Struct, frozen=True, kw_only=True):
    """A fetched job. Its token allows to report the outcome until the lease is over."""

    id: str
    token: str
    task: str
    queue: str
    priority: int
    attempt: int
    """From 1."""
    args: tuple[Any, ...] | None
    """None if only its codec can read them from `payload`."""
    kwargs: dict[str, Any] | None
    payload: bytes
    """The call as `codec` wrote it."""
    codec: str
    retries: int
    timeout: float | None
    """Seconds that it may run, or None; the holder must enforce it."""
    lease_until: datetime
    suspect: bool = False
    """Its last holder disappeared: run it alone. A lease that ends during such a run counts as a crash, and
    `max_crashes` of them make the job dead."""
    key: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    description: str = ""
    headers: dict[str, str] = {}


class Extended(msgspec.Struct, frozen=True):
    """The reply of `extend`."""

    lease_until: datetime
    cancelling: bool
    """The job was asked to stop: stop it, then `nack` it in any way."""


class External(AppApi):
    """`app.external`: hold jobs without being a dray worker."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self._open: dict[str, set[str]] = {}
        """Jobs by session, of fetches made in this process."""

    async def _fetch(
        self,
        link: Link,
        queues: Sequence[str],
        *,
        limit: int = 1,
        lease: Duration | None = None,
        tasks: Sequence[str] | None = None,
        wait: Duration = 0,
        max_bytes: int | None = None,
    ) -> list[HeldJob]:
        """Take up to `limit` jobs and hold them for `lease`; if there are none, wait for some.

        `tasks` are the tasks you can run (None: any). The arguments of all jobs stay below `max_bytes`
        together, except those of the first. A job whose last holder died comes alone.
        """
        fetch = _Fetch(self._app, link, max_bytes)
        held = await fetch.run(
            _names("queues", queues),
            Filter(None if tasks is None else frozenset(_names("tasks", tasks))),
            _read_limit(limit),
            self._lease(lease),
            parse_duration("wait", wait) / 1000,
        )
        if held:
            self._open[fetch.session] = {job.id for job in held}
            if len(self._open) > _OPEN_MAX:
                self._open.pop(next(iter(self._open)), None)
        return held

    async def _ack(
        self, link: Link, id: str, token: str, result: object = None, *, codec: str | None = None
    ) -> State:
        """Report success. Returns the job's state: `cancelled` if it was asked to stop meanwhile.

        Repeating the call changes nothing. Raises `LeaseLost` if the run is not valid any more.
        """
        app, held = self._app, read_token(id, token)
        data = app.codecs.encode_value(
            result, codec=codec or app.settings.codec, limit=app.settings.max_result
        )
        outcome = Outcome(id=id, run=held.run, kind=OutcomeKind.SUCCEEDED, result=data)
        return await self._settle(link.broker, held, outcome)

    async def _nack(
        self,
        link: Link,
        id: str,
        token: str,
        *,
        how: Nack = "retry",
        error: Error | str | None = None,
        delay: Duration | None = None,
    ) -> State:
        """Report that it did not succeed. Returns the job's state.

        `retry`: a failed attempt; it is retried after `delay`, or its backoff, and is dead when its retries
        are used up. `dead`: it is not retried. `give_back`: it did not run; same place in line, no attempt
        used. `crashed`: alone in a process, it killed that process.
        """
        held, failure = read_token(id, token), _read_error(error)
        wait = None if delay is None else parse_duration("delay", delay)
        if wait is not None and how != "retry":
            raise InvalidInput("delay", delay, "it is for how=retry only")
        if how == "give_back":
            outcome = Outcome(id=id, run=held.run, kind=OutcomeKind.GIVE_BACK)
        elif how == "crashed":
            outcome = Outcome(id=id, run=held.run, kind=OutcomeKind.CRASHED, error=failure)
        elif how == "dead":
            outcome = _dead(id, held.run, failure, "rejected")
        elif how == "retry":
            outcome = await self._failure(link.broker, id, held, failure, wait)
        else:
            raise InvalidInput("how", how, "one of retry, dead, give_back, crashed is allowed")
        return await self._settle(link.broker, held, outcome)

    async def _extend(
        self,
        link: Link,
        id: str,
        token: str,
        *,
        lease: Duration | None = None,
        progress: Progress | None = None,
    ) -> Extended:
        """Hold it, and all jobs of the same fetch, for `lease` from now; report its progress.

        Raises `LeaseLost` if it is not held any more: then stop it, because another worker may run it.
        """
        broker, held = link.broker, read_token(id, token)
        length = self._lease(held.lease / 1000 if lease is None else lease)
        reports = () if progress is None else (ProgressReport(id, held.run, progress),)
        now = self._app.now()
        (record,) = await broker.get([id])
        if not _holds(record, held):  # checked first: renewing would open a session for a forged token
            raise LeaseLost(id)
        (heard,) = await broker.renew([Beat(held.session, length, reports)])
        if heard.epoch != held.epoch:
            await broker.release(held.session, suspect=False)  # it had lapsed: the beat opened it anew
            raise LeaseLost(id)
        return Extended(moment(now + length), record is not None and record.cancel is not None)

    async def _release(self, link: Link, id: str, token: str) -> int:
        """Give back all jobs of the same fetch that are still held: same place in line, no attempt used.
        Returns their number."""
        held = read_token(id, token)
        await self._unmark(link.broker, id, held)
        self._open.pop(held.session, None)
        return await link.broker.release(held.session, suspect=False)

    fetch, afetch = sync_and_async(_fetch)
    ack, aack = sync_and_async(_ack)
    nack, anack = sync_and_async(_nack)
    extend, aextend = sync_and_async(_extend)
    release, arelease = sync_and_async(_release)

    async def _settle(self, broker: Broker, held: Token, outcome: Outcome) -> State:
        # First: a mark that outlives its run would count as a crash of the next run.
        await self._unmark(broker, outcome.id, held)
        (settled,) = await broker.settle(held.session, [outcome])
        if settled.verdict is Verdict.REFUSED:
            raise _unknown(outcome.id) if settled.state is State.NOT_FOUND else LeaseLost(outcome.id)
        await self._close(broker, held.session, outcome.id)
        return settled.state

    async def _unmark(self, broker: Broker, id: str, held: Token) -> None:
        """Remove the mark of a suspect that came back, if this token really holds it."""
        if not held.suspect or not _holds((await broker.get([id]))[0], held):
            return
        mark = (await broker.doc(_MARK, id)).doc
        if mark is not None and mark.value == b"%d" % held.run:
            await broker.doc(_MARK, id, None, expect_version=mark.version)

    async def _close(self, broker: Broker, session: str, id: str) -> None:
        """End a session with its last job. Sessions of other processes' fetches end with their lease."""
        others = self._open.get(session)
        if others is None:
            return
        others.discard(id)
        if not others:
            self._open.pop(session, None)
            with contextlib.suppress(BrokerError, OSError):
                await broker.release(session, suspect=False)

    def _lease(self, given: Duration | None) -> int:
        if given is None:
            return self._app.settings.lease
        lease = parse_duration("lease", given)
        if not LEASE_MIN <= lease <= LEASE_MAX:
            allowed = f"{format_duration(LEASE_MIN)} to {format_duration(LEASE_MAX)} is allowed"
            raise InvalidInput("lease", given, allowed)
        return lease

    async def _failure(
        self, broker: Broker, id: str, held: Token, error: Error, delay: int | None
    ) -> Outcome:
        (record,) = await broker.get([id])
        if record is None:
            raise _unknown(id)
        job, attempt = record.job, record.failures + 1
        if attempt > job.retries:
            times = "1 attempt" if attempt == 1 else f"{attempt} attempts"
            return _dead(id, held.run, error, "failed", f" ({times})")
        if delay is None:
            delay = retry_delay(
                self._backoff(job), attempt, JobFailed(id, error.type, error.message), random.random
            )
        at = self._app.now() + delay
        return Outcome(id=id, run=held.run, kind=OutcomeKind.RETRY, at=at, error=error)

    def _backoff(self, job: Job) -> Backoff | BackoffFunction:
        if job.backoff is not None:
            return Backoff.parse(job.backoff)
        task = self._app.tasks.get(job.task)
        return (None if task is None else task.backoff) or Backoff.parse(self._app.settings.backoff)


class _Fetch:
    """One fetch, with its own session, which is released if no jobs are returned."""

    def __init__(self, app: App, link: Link, max_bytes: int | None) -> None:
        self._app, self._codecs, self._max_payload = app, app.codecs, app.settings.max_payload
        self._link, self._broker, self._max_bytes = link, link.broker, max_bytes
        self._marked: str | None = None

    async def run(
        self, queues: tuple[str, ...], filter: Filter, limit: int, lease: int, wait: float
    ) -> list[HeldJob]:
        end = self._link.time() + wait
        try:
            while True:
                self._name_session(lease)
                if held := await self._try(queues, filter, limit):
                    return held
                # Nothing is held while waiting: an open session would look like a lost one.
                await self._broker.release(self.session, suspect=False)
                left = end - self._link.time()
                if left <= 0:
                    return []
                await self._broker.wait(Interest(queues=queues, filter=filter), min(left, _LOOK_AGAIN))
        except BaseException:
            await self._undo()
            raise

    def _name_session(self, lease: int) -> None:
        """Every name is new, so that a late copy of an old call has no effect."""
        self._token = Token(secrets.token_bytes(16), 0, 0, lease)
        self.session, self._request = self._token.session, 0

    async def _undo(self) -> None:
        """Free all jobs that were taken, or are just being taken."""
        with contextlib.suppress(BrokerError, OSError):  # then the lease runs out
            if self._marked is not None:
                await self._broker.doc(_MARK, self._marked, None)
            await self._broker.release(self.session, suspect=False)

    async def _try(self, queues: tuple[str, ...], filter: Filter, limit: int) -> list[HeldJob]:
        """Take until there are jobs to return, or none are left."""
        for _ in range(_TRIES):
            (heard,) = await self._broker.renew([Beat(self.session, self._token.lease)])
            self._token = msgspec.structs.replace(self._token, epoch=heard.epoch)
            self._request += 1
            try:
                taken = await self._broker.take(self.session, self._request, queues, filter, limit)
            except SessionLost:  # a short lease on a slow machine
                continue
            if not taken:
                return []
            until = moment(self._app.now() + self._token.lease)
            if held := [self._held(one, *call, until) for one, call in await self._keep(taken)]:
                return held
        return []

    async def _keep(self, taken: list[Taken]) -> list[tuple[Taken, _Call]]:
        """The jobs to return, with their calls; the others are settled."""
        fitting, outcomes = await self._alone(taken)
        kept: list[tuple[Taken, _Call]] = []
        size = 0
        for one in fitting:
            try:
                call = self._call(one.job)
            except CodecError as error:
                outcomes.append(self._unreadable(one, error))
                continue
            size += len(call[2])
            if kept and self._max_bytes is not None and size > self._max_bytes:
                outcomes.append(_give_back(one))
            else:
                kept.append((one, call))
        if outcomes:
            await self._broker.settle(self.session, outcomes)
        return kept

    def _unreadable(self, taken: Taken, error: CodecError) -> Outcome:
        id, run, text = taken.job.id, taken.run, Error(type(error).__name__, str(error)[:MESSAGE_MAX])
        if isinstance(error, MissingLibrary):  # another server or worker may have it
            at = self._app.now() + _ELSEWHERE
            return Outcome(id=id, run=run, kind=OutcomeKind.RETRY, at=at, error=text)
        return _dead(id, run, text, "undecodable")

    async def _alone(self, taken: list[Taken]) -> tuple[list[Taken], list[Outcome]]:
        """Return a suspect alone, and mark it; a mark left by its last run means that it crashed again."""
        first, *others = taken
        if not first.suspect:
            fitting = [one for one in taken if not one.suspect]
            return fitting, [_give_back(one) for one in others if one.suspect]
        outcomes = [_give_back(one) for one in others]
        id = self._marked = first.job.id
        mark = (await self._broker.doc(_MARK, id)).doc
        if mark is not None and mark.value == b"%d" % (first.run - 1):
            await self._broker.doc(_MARK, id, None)
            crash = Error("Crashed", "the lease of its run, alone with its holder, ran out")
            outcomes.append(Outcome(id=id, run=first.run, kind=OutcomeKind.CRASHED, error=crash))
            return [], outcomes
        await self._broker.doc(_MARK, id, b"%d" % first.run, ttl=_MARK_TTL)
        return [first], outcomes

    def _call(self, job: Job) -> _Call:
        name, body = self._codecs.body_of(job.payload, limit=self._max_payload)
        if name == "protobuf":  # only readable with the message's class
            return None, None, body, name
        args, kwargs = self._codecs.decode_call(job.payload, limit=self._max_payload)
        return args, kwargs, body, name

    def _held(
        self,
        taken: Taken,
        args: tuple[Any, ...] | None,
        kwargs: dict[str, Any] | None,
        payload: bytes,
        codec: str,
        until: datetime,
    ) -> HeldJob:
        job = taken.job
        token = msgspec.structs.replace(
            self._token, run=taken.run, suspect=taken.suspect > 0, seal=self._token.seal_of(job.id)
        )
        return HeldJob(
            id=job.id,
            token=token.text(),
            task=job.task,
            queue=job.queue,
            priority=job.priority,
            attempt=taken.attempt,
            args=args,
            kwargs=kwargs,
            payload=payload,
            codec=codec,
            retries=job.retries,
            timeout=None if job.timeout is None else job.timeout / 1000,
            lease_until=until,
            suspect=taken.suspect > 0,
            key=job.key,
            group=job.group,
            tags=job.tags,
            description=job.description,
            headers=job.headers,
        )


_Call = tuple[tuple[Any, ...] | None, dict[str, Any] | None, bytes, str]


def _give_back(taken: Taken) -> Outcome:
    return Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.GIVE_BACK)


def _dead(id: str, run: int, error: Error, what: str, more: str = "") -> Outcome:
    text = f"{error.type}: {error.message}" if what == "failed" else error.message
    return Outcome(
        id=id, run=run, kind=OutcomeKind.DEAD, error=error, reason=f"{what}: {text}"[:_REASON_MAX] + more
    )


def _holds(record: Record | None, held: Token) -> bool:
    if record is None:
        return False
    return any(run.number == held.run and run.session == held.session for run in record.runs)


def _unknown(id: str) -> JobNotFound:
    return JobNotFound(id, f"no job {id}: it never was, or it was deleted")


def _names(field: str, given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise InvalidInput(field, given, "a list of names is allowed")
    return tuple(dict.fromkeys(check_name(field, name) for name in given))


def _read_limit(value: object) -> int:
    if type(value) is not int or not 1 <= value <= FETCH_MAX:
        raise InvalidInput("limit", value, f"a whole number from 1 to {FETCH_MAX} is allowed")
    return value


def _read_error(given: Error | str | None) -> Error:
    if given is None:
        return Error("Failed", "no reason given")
    error = Error("Failed", given) if isinstance(given, str) else given
    return Error(error.type[:200] or "Failed", error.message[:MESSAGE_MAX], error.traceback[:TRACEBACK_MAX])
