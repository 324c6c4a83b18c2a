"""One run of one job: arguments in, outcome out.

A `Judge` knows the rules: it reads the arguments, and says what a returned value or a raised error makes of
the job. `perform` and `perform_here` put the task's function between the two. Nothing of this touches a
broker, a clock or a source of randomness that it was not given.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from dray.app import App
from dray.codec import Call
from dray.context import CURRENT, Context, Reject, Retry
from dray.errors import CodecError, JobStopped, TaskExit
from dray.job import Error, Job, Outcome, OutcomeKind
from dray.policy import Backoff, BackoffFunction, retry_delay
from dray.settings import Settings
from dray.worker.failure import bounded, describe, message_of
from dray.worker.live import Interrupted, Live, Why

if TYPE_CHECKING:
    from dray.tracing import Tracing

REASON_MAX: Final = 500
TIMEOUT: Final = "Timeout"
_STOPS: Final = (asyncio.CancelledError, JobStopped, Interrupted)
_SUCCEEDED: Final = OutcomeKind.SUCCEEDED

log = logging.getLogger("dray.worker")


_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def leave_if_forked() -> None:
    """A task that forks and lets its child process return must not make it a second executor."""
    if _forked:
        os._exit(1)


class Timeout(TimeoutError):
    """What a run that was stopped for its timeout counts as, for `retry_on`, `give_up_on` and backoffs."""


class Judge:
    """What runs come to, by the rules of their task and job."""

    def __init__(
        self, app: App, settings: Settings, clock: Callable[[], int], random: Callable[[], float]
    ) -> None:
        self.middleware, self.tracing = app.run_middleware, app.tracing
        self.now, self._random = clock, random
        self._decode, self._encode = app.codecs.decode_call, app.codecs.encode_value
        self._none = app.codecs.encode_value(None)
        self._backoff = Backoff.parse(settings.backoff)
        self._result_ttl, self._codec = settings.result_ttl, settings.codec
        self._max_payload, self._max_result = settings.max_payload, settings.max_result

    def arguments(self, live: Live) -> Call:
        """The call as the task's annotations want it; raises `CodecError`."""
        task = live.task
        args, kwargs = self._decode(live.taken.job.payload, task.hints, limit=self._max_payload)
        if task.context_parameters:
            return task.place(args, kwargs, Context(live))
        return args, kwargs

    def success(self, live: Live, value: object) -> Outcome:
        """The outcome of a run that returned `value`."""
        taken = live.taken
        job = taken.job
        ttl = job.result_ttl
        if (self._result_ttl if ttl is None else ttl) == 0:
            return Outcome(id=job.id, run=taken.run, kind=_SUCCEEDED)
        if value is None:
            return Outcome(id=job.id, run=taken.run, kind=_SUCCEEDED, result=self._none)
        codec = live.task.options.codec or self._codec
        if codec == "protobuf" and not hasattr(type(value), "SerializeToString"):
            codec = "msgpack"  # a payload says itself how to read it, and only messages can be that codec's
        try:
            result = self._encode(value, codec=codec, limit=self._max_result)
        except CodecError as error:
            # Running it again would give the same value, and do its work twice.
            return self._dead(live, describe(error), f"its result cannot be kept: {message_of(error)}")
        return Outcome(id=job.id, run=taken.run, kind=_SUCCEEDED, result=result)

    def undecodable(self, live: Live, error: BaseException) -> Outcome:
        return self._dead(live, describe(error), f"undecodable: {message_of(error)}")

    def stopped(self, live: Live) -> Outcome:
        """The outcome of a run that was stopped, from inside or out, before it came to anything."""
        match live.why:
            case Why.CANCELLED:
                return self._outcome(live, OutcomeKind.CANCELLED)
            case Why.TIMEOUT:
                return self.timed_out(live)
        return self._outcome(live, OutcomeKind.GIVE_BACK)

    def timed_out(self, live: Live, error: BaseException | None = None) -> Outcome:
        late = Timeout(f"it ran longer than its timeout of {live.timeout:g} s")
        return self.by_the_rules(live, late, describe(error or late, type=TIMEOUT, message=str(late)))

    def failure(self, live: Live, error: BaseException) -> Outcome:
        """The outcome of a run that raised `error`."""
        why, halted = live.why, isinstance(error, _STOPS)
        if why is Why.CANCELLED:
            return self._outcome(live, OutcomeKind.CANCELLED, error=None if halted else describe(error))
        if why is Why.LEAVING or why is Why.LOST:
            return self._outcome(live, OutcomeKind.GIVE_BACK)
        if why is Why.TIMEOUT and halted:
            return self.timed_out(live, error)
        if isinstance(error, BaseExceptionGroup):
            error = _exit_among(error)
        if isinstance(error, Reject):
            return self._dead(live, describe(error, type="Reject"), f"rejected: {message_of(error)}")
        return self.by_the_rules(live, error, None)

    def by_the_rules(self, live: Live, error: BaseException, told: Error | None) -> Outcome:
        """Retry or dead, by what the task and the job say about failures; `told` is how to describe it."""
        taken, options = live.taken, live.task.options
        told = told or describe(error, type="Retry" if isinstance(error, Retry) else None)
        short = f"{told.type}: {told.message}"
        if not isinstance(error, Retry):
            if _any_is(error, options.give_up_on):
                return self._dead(live, told, f"failed: {short} (give_up_on)")
            if options.retry_on and not _all_are(error, options.retry_on):
                return self._dead(live, told, f"failed: {short} (not in retry_on)")
        if taken.attempt > taken.job.retries:
            times = "1 attempt" if taken.attempt == 1 else f"{taken.attempt} attempts"
            return self._dead(live, told, f"failed: {short} ({times})")
        at = self.now() + self._delay(live, error)
        return Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.RETRY, at=at, error=told)

    def crashed(self, live: Live, message: str) -> Outcome:
        """The outcome of a run whose child process is gone."""
        return self._outcome(live, OutcomeKind.CRASHED, error=Error("Crashed", bounded(message, REASON_MAX)))

    def _delay(self, live: Live, error: BaseException) -> int:
        if isinstance(error, Retry) and error.delay is not None:
            return error.delay
        job = live.taken.job
        backoff: Backoff | BackoffFunction = self._backoff_of(job) or live.task.backoff or self._backoff
        try:
            return retry_delay(backoff, live.taken.attempt, error, self._random)
        except Exception:
            log.exception("the backoff of %s failed for %s: the usual one is used", job.task, job.id)
            return self._backoff.delay(live.taken.attempt, self._random)

    @staticmethod
    def _backoff_of(job: Job) -> Backoff | None:
        return None if job.backoff is None else Backoff.parse(job.backoff)

    def _dead(self, live: Live, error: Error, reason: str) -> Outcome:
        return self._outcome(live, OutcomeKind.DEAD, error=error, reason=bounded(reason, REASON_MAX))

    @staticmethod
    def _outcome(
        live: Live, kind: OutcomeKind, error: Error | None = None, reason: str | None = None
    ) -> Outcome:
        return Outcome(id=live.taken.job.id, run=live.taken.run, kind=kind, error=error, reason=reason)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _exit_among(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """A `Reject` or `Retry` raised below a task group says how the run ends; a `Reject` most of all."""
    exits = [leaf for leaf in _leaves(group) if isinstance(leaf, TaskExit)]
    return next((leaf for leaf in exits if isinstance(leaf, Reject)), exits[0] if exits else group)


def _any_is(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    return bool(kinds) and (
        isinstance(error, kinds) or any(isinstance(leaf, kinds) for leaf in _leaves(error))
    )


def _all_are(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    return isinstance(error, kinds) or all(isinstance(leaf, kinds) for leaf in _leaves(error))


CallFunction = Callable[[Live, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]
"""How a plain function is called from the event loop, where middleware stands around it."""


async def perform(judge: Judge, live: Live, call_plain: CallFunction) -> Outcome:
    """Run a job on the event loop. Whatever the task raises is the job's end, never that of the loop."""
    CURRENT.set(live)
    try:
        args, kwargs = judge.arguments(live)
    except CodecError as error:
        return judge.undecodable(live, error)
    except BaseException as error:
        return judge.failure(live, error)
    try:
        if judge.middleware:
            value = await _through(judge, live, args, kwargs, call_plain)
        elif live.task.is_async:
            value = await live.task.function(*args, **kwargs)
        else:
            value = await call_plain(live, args, kwargs)
        return judge.success(live, value)
    except GeneratorExit as error:
        if asyncio.current_task() is not live.handle:
            raise  # nobody raised it: the loop is gone and this coroutine with it
        return judge.failure(live, error)
    except BaseException as error:
        return judge.failure(live, error)


async def perform_traced(tracing: Tracing, judge: Judge, live: Live, call_plain: CallFunction) -> Outcome:
    """The same within a span."""
    with tracing.running(live.taken) as attempt:
        live.trace = attempt.trace
        outcome = await perform(judge, live, call_plain)
        attempt.ended(outcome)
    return outcome


async def _through(
    judge: Judge, live: Live, args: tuple[Any, ...], kwargs: dict[str, Any], call_plain: CallFunction
) -> Any:
    if live.task.is_async:
        call_next: Callable[[], Awaitable[Any]] = partial(live.task.function, *args, **kwargs)
    else:
        call_next = partial(call_plain, live, args, kwargs)
    context = Context(live)
    for middleware in reversed(judge.middleware):
        call_next = partial(middleware, context, call_next)
    return await call_next()


def perform_here(judge: Judge, live: Live) -> Outcome:
    """Run a job with a plain function, in the thread that calls this."""
    if live.why is not None:
        return judge.stopped(live)  # it never started
    CURRENT.set(live)
    try:
        args, kwargs = judge.arguments(live)
    except CodecError as error:
        return judge.undecodable(live, error)
    except BaseException as error:
        return judge.failure(live, error)
    try:
        return judge.success(live, live.task.function(*args, **kwargs))
    except BaseException as error:
        return judge.failure(live, error)


def perform_here_traced(tracing: Tracing, judge: Judge, live: Live) -> Outcome:
    """The same within a span."""
    with tracing.running(live.taken) as attempt:
        live.trace = attempt.trace
        outcome = perform_here(judge, live)
        attempt.ended(outcome)
    return outcome
