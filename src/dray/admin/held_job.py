"""Jobs as external workers hold them, and the outcomes that they report."""

from __future__ import annotations

import random
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from dray.codec.inputs import HEADER, INPUTS_MAX
from dray.context import EndRun
from dray.errors import CodecError, InvalidInput, JobFailed, MissingLibrary
from dray.job import Error, Job, Outcome, OutcomeKind, Taken
from dray.policy import Backoff, BackoffFunction, retry_delay

if TYPE_CHECKING:
    from dray.app import App
    from dray.broker.verbs import Broker

Nack = Literal["retry", "dead", "give_back", "crashed"]
NACKS: Final = ("retry", "dead", "give_back", "crashed")
MESSAGE_MAX: Final = 2000
ELSEWHERE: Final = 60_000
"""Milliseconds until a job that cannot be read here is offered again."""
TRACEBACK_MAX: Final = 16 * 1024
_REASON_MAX: Final = 500


class HeldJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that an external worker holds: until the lease of its fetch is over, or its stream ends."""

    id: str
    token: str
    """Allows to report the outcome of a fetched job. Empty on a stream, which needs none."""
    run: int
    """The number of this run; outcomes on a stream name it."""
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
    lease_until: datetime | None
    """None on a stream, whose lease is renewed."""
    suspect: bool = False
    """Its last holder disappeared: run it alone. A lease that ends during such a run counts as a crash, and
    `max_crashes` of them make the job dead."""
    key: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    description: str = ""
    headers: dict[str, str] = {}


class HeldRun(NamedTuple):
    """What is needed of a held job to judge its outcome, without its arguments."""

    run: int
    attempt: int
    task: str
    retries: int
    backoff: str | None
    stopping: bool = False
    """Its holder was asked to stop it."""


_Call = tuple[tuple[Any, ...] | None, dict[str, Any] | None, bytes, str]


class JobReader:
    """Reads taken jobs for external workers, within a number of bytes at a time."""

    def __init__(self, app: App, max_bytes: int | None) -> None:
        self._app, self._codecs, self._max_payload = app, app.codecs, app.settings.max_payload
        self._max_bytes = max_bytes

    def read(self, taken: list[Taken]) -> tuple[list[tuple[Taken, _Call]], list[Outcome]]:
        """The jobs that fit, with their calls; the outcomes of the others. The first always fits."""
        kept: list[tuple[Taken, _Call]] = []
        outcomes: list[Outcome] = []
        size = 0
        for one in taken:
            try:
                call = self._call(one.job)
            except CodecError as error:
                outcomes.append(self._unreadable(one, error))
                continue
            size += len(call[2])
            if kept and self._max_bytes is not None and size > self._max_bytes:
                outcomes.append(give_back(one))
            else:
                kept.append((one, call))
        return kept, outcomes

    def _unreadable(self, taken: Taken, error: CodecError) -> Outcome:
        id, run, text = taken.job.id, taken.run, Error(type(error).__name__, str(error)[:MESSAGE_MAX])
        if isinstance(error, MissingLibrary):  # another server or worker may have it
            at = self._app.now() + ELSEWHERE
            return Outcome(id=id, run=run, kind=OutcomeKind.RETRY, at=at, error=text)
        return dead(id, run, text, "undecodable")

    def _call(self, job: Job) -> _Call:
        name, body = self._codecs.body_of(job.payload, limit=self._max_payload)
        if name == "protobuf":  # only readable with the message's class
            return None, None, body, name
        args, kwargs = self._codecs.decode_call(job.payload, limit=self._max_payload)
        return args, kwargs, body, name


def held_job(taken: Taken, call: _Call, token: str = "", until: datetime | None = None) -> HeldJob:
    job, (args, kwargs, payload, codec) = taken.job, call
    return HeldJob(
        id=job.id,
        token=token,
        run=taken.run,
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


def held_run(taken: Taken) -> HeldRun:
    job = taken.job
    return HeldRun(taken.run, taken.attempt, job.task, job.retries, job.backoff)


def give_back(taken: Taken) -> Outcome:
    return Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.GIVE_BACK)


def succeeded(app: App, id: str, run: int, result: object, codec: str | None) -> Outcome:
    """Success, with a result no larger than `max_result`."""
    settings = app.settings
    data = app.codecs.encode_value(result, codec=codec or settings.codec, limit=settings.max_result)
    return Outcome(id=id, run=run, kind=OutcomeKind.SUCCEEDED, result=data)


def dead(id: str, run: int, error: Error, what: str, more: str = "") -> Outcome:
    text = f"{error.type}: {error.message}" if what == "failed" else error.message
    return Outcome(
        id=id, run=run, kind=OutcomeKind.DEAD, error=error, reason=f"{what}: {text}"[:_REASON_MAX] + more
    )


def not_run(id: str, run: int, how: Nack, error: Error) -> Outcome:
    """The outcome of a nack that needs nothing of the job: all but `retry`."""
    if how == "give_back":
        return Outcome(id=id, run=run, kind=OutcomeKind.GIVE_BACK)
    if how == "crashed":
        return Outcome(id=id, run=run, kind=OutcomeKind.CRASHED, error=error)
    return dead(id, run, error, "rejected")


def failed(app: App, id: str, held: HeldRun, error: Error, delay: int | None) -> Outcome:
    """A failed attempt: retried after `delay` milliseconds, or its backoff; dead after its last retry."""
    attempt = held.attempt
    if attempt > held.retries:
        times = "1 attempt" if attempt == 1 else f"{attempt} attempts"
        return dead(id, held.run, error, "failed", f" ({times})")
    if delay is None:
        cause = JobFailed(id, error.type, error.message)
        delay = retry_delay(_backoff(app, held), attempt, cause, random.random)
    return Outcome(id=id, run=held.run, kind=OutcomeKind.RETRY, at=app.now() + delay, error=error)


def _backoff(app: App, held: HeldRun) -> Backoff | BackoffFunction:
    if held.backoff is not None:
        return Backoff.parse(held.backoff)
    task = app.tasks.get(held.task)
    return (None if task is None else task.backoff) or Backoff.parse(app.settings.backoff)


async def with_inputs(app: App, broker: Broker, taken: list[Taken]) -> tuple[list[Taken], list[Outcome]]:
    """Nodes of flows with the results of the jobs that they waited for, in a form that any language can read;
    and the outcomes of those that must not run."""
    filled = [one for one in taken if one.job.payload[:1] == HEADER]
    if not filled:
        return taken, []
    found = await import_module("dray.flows.inputs").resolve(broker, [one.job for one in filled])
    kept = {one.job.id: one for one in taken}
    outcomes = []
    for one, payload in zip(filled, found, strict=True):
        if isinstance(payload, EndRun):
            del kept[one.job.id]
            outcomes.append(
                Outcome(
                    id=one.job.id,
                    run=one.run,
                    kind=payload.kind,
                    error=payload.error,
                    reason=payload.reason,
                    suspend=payload.suspend,
                )
            )
        else:
            args, kwargs = app.codecs.decode_call(payload, limit=app.settings.max_payload)
            plain_call = app.codecs.encode_call(_shown(args), _shown(kwargs), limit=INPUTS_MAX)
            job = msgspec.structs.replace(one.job, payload=plain_call)
            kept[one.job.id] = msgspec.structs.replace(one, job=job)
    return list(kept.values()), outcomes


def _shown(value: Any) -> Any:
    """Failed inputs as dicts."""
    if isinstance(value, JobFailed):
        return {"error": {"job": value.job_id, "type": value.type, "message": value.message}}
    if isinstance(value, list | tuple):
        return type(value)(_shown(one) for one in value)
    return {name: _shown(one) for name, one in value.items()} if type(value) is dict else value


def check_nack(how: object, delay: object) -> None:
    if how not in NACKS:
        raise InvalidInput("how", how, f"one of {', '.join(NACKS)} is allowed")
    if delay is not None and how != "retry":
        raise InvalidInput("delay", delay, "it is for how=retry only")


def read_error(given: Error | str | None) -> Error:
    if given is None:
        return Error("Failed", "no reason given")
    error = Error("Failed", given) if isinstance(given, str) else given
    return Error(error.type[:200] or "Failed", error.message[:MESSAGE_MAX], error.traceback[:TRACEBACK_MAX])
