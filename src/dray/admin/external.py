"""`app.external`: fetch jobs without being a dray worker, hold them, and report their outcome.

    for job in app.external.fetch(["images"], limit=10, lease="1m", wait="30s"):
        app.external.ack(job.id, job.token, {"size": 42})

Workers in other languages use it through gRPC. One fetch is one session at the broker, with the requested
lease: `extend` keeps all jobs of that fetch, and every later call is fenced like that of any worker. A stream
(`astream`) is one session as well, for as long as it is open.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from dray.admin import suspects
from dray.admin.held_job import (
    HeldJob,
    JobReader,
    Nack,
    check_nack,
    failed,
    give_back,
    held_job,
    held_run,
    not_run,
    read_error,
    succeeded,
    with_inputs,
)
from dray.admin.work_stream import WorkStream
from dray.broker.verbs import Beat, Broker, Filter, Interest, ProgressReport
from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async
from dray.documents.lease_token import Token, read_token
from dray.duration import DAY, format_duration, parse_duration
from dray.errors import BrokerError, InvalidInput, JobNotFound, LeaseLost, SessionLost
from dray.info import moment
from dray.job import Error, Outcome, Progress, Record, State, Taken, Verdict, check_name
from dray.options import Duration

if TYPE_CHECKING:
    from dray.app import App

FETCH_MAX: Final = 1000
LEASE_MIN: Final = 100
LEASE_MAX: Final = DAY
_LOOK_AGAIN: Final = 30.0
"""Seconds after which a waiting fetch checks for jobs without a notification."""
_TRIES: Final = 10
_OPEN_MAX: Final = 10_000
"""Sessions that are remembered, so that they end with their last job."""


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
            _filter(tasks),
            _read_number("limit", limit, 1),
            self._lease(lease),
            parse_duration("wait", wait) / 1000,
        )
        if held:
            self._open[fetch.session] = {job.id for job in held}
            if len(self._open) > _OPEN_MAX:
                self._open.pop(next(iter(self._open)), None)
        return held

    def astream(
        self,
        queues: Sequence[str],
        *,
        credits: int,
        tasks: Sequence[str] | None = None,
        lease: Duration | None = None,
        max_bytes: int | None = None,
    ) -> WorkStream:
        """Jobs as they come, up to `credits` in hand at a time: `async with` it, then iterate over it.

        Everything else is as in `fetch`; outcomes are reported to the stream.
        """
        return WorkStream(
            self._app,
            _names("queues", queues),
            _filter(tasks),
            _read_number("credits", credits, 0),
            self._lease(lease),
            max_bytes,
        )

    async def _ack(
        self, link: Link, id: str, token: str, result: object = None, *, codec: str | None = None
    ) -> State:
        """Report success. Returns the job's state: `cancelled` if it was asked to stop meanwhile.

        Repeating the call changes nothing. Raises `LeaseLost` if the run is not valid any more.
        """
        held = read_token(id, token)
        return await self._settle(link.broker, held, succeeded(self._app, id, held.run, result, codec))

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
        held, failure = read_token(id, token), read_error(error)
        check_nack(how, delay)
        if how != "retry":
            return await self._settle(link.broker, held, not_run(id, held.run, how, failure))
        wait = None if delay is None else parse_duration("delay", delay)
        (record,) = await link.broker.get([id])
        if record is None:
            raise _unknown(id)
        run = held_run(Taken(record.job, held.run, record.failures + 1))
        outcome = failed(self._app, id, run, failure, wait)
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
        await _unmark(link.broker, id, held)
        self._open.pop(held.session, None)
        return await link.broker.release(held.session, suspect=False)

    fetch, afetch = sync_and_async(_fetch)
    ack, aack = sync_and_async(_ack)
    nack, anack = sync_and_async(_nack)
    extend, aextend = sync_and_async(_extend)
    release, arelease = sync_and_async(_release)

    async def _settle(self, broker: Broker, held: Token, outcome: Outcome) -> State:
        await _unmark(broker, outcome.id, held)
        (settled,) = await broker.settle(held.session, [outcome])
        if settled.verdict is Verdict.REFUSED:
            raise _unknown(outcome.id) if settled.state is State.NOT_FOUND else LeaseLost(outcome.id)
        await self._close(broker, held.session, outcome.id)
        return settled.state

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


class _Fetch:
    """One fetch, with its own session, which is released if no jobs are returned."""

    def __init__(self, app: App, link: Link, max_bytes: int | None) -> None:
        self._app, self._reader = app, JobReader(app, max_bytes)
        self._link, self._broker = link, link.broker
        self._marked: tuple[str, int] | None = None

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
                await suspects.unmark(self._broker, *self._marked)
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
            if held := await self._keep(taken):
                return held
        return []

    async def _keep(self, taken: list[Taken]) -> list[HeldJob]:
        """The jobs to return; the others are settled."""
        until = moment(self._app.now() + self._token.lease)
        taken, over = await with_inputs(self._app, self._broker, taken)
        fitting, outcomes = await self._alone(taken) if taken else ([], [])
        outcomes += over
        kept, unfit = self._reader.read(fitting)
        if outcomes or unfit:
            await self._broker.settle(self.session, outcomes + unfit)
        return [held_job(one, call, self._token_of(one), until) for one, call in kept]

    async def _alone(self, taken: list[Taken]) -> tuple[list[Taken], list[Outcome]]:
        """Return a suspect alone, and mark it; a mark left by its last run means that it crashed again."""
        first, *others = taken
        if not first.suspect:
            fitting = [one for one in taken if not one.suspect]
            return fitting, [give_back(one) for one in others if one.suspect]
        outcomes = [give_back(one) for one in others]
        self._marked = first.job.id, first.run
        crash = await suspects.mark(self._broker, first)
        return ([first], outcomes) if crash is None else ([], [*outcomes, crash])

    def _token_of(self, taken: Taken) -> str:
        return msgspec.structs.replace(
            self._token,
            run=taken.run,
            suspect=taken.suspect > 0,
            seal=self._token.seal_of(taken.job.id),
        ).text()


async def _unmark(broker: Broker, id: str, held: Token) -> None:
    """Remove the mark of a suspect that came back, if this token really holds it."""
    if held.suspect and _holds((await broker.get([id]))[0], held):
        await suspects.unmark(broker, id, held.run)


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


def _filter(tasks: Sequence[str] | None) -> Filter:
    return Filter(None if tasks is None else frozenset(_names("tasks", tasks)))


def _read_number(field: str, value: object, least: int) -> int:
    if type(value) is not int or not least <= value <= FETCH_MAX:
        raise InvalidInput(field, value, f"a whole number from {least} to {FETCH_MAX} is allowed")
    return value
