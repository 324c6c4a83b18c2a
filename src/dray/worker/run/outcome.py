"""The outcome of a run: what a returned value, an error or a stop makes of its job; errors as text.

Nothing here touches a broker, a clock or a source of randomness that it was not given.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

import msgspec

from dray.app import App
from dray.broker.rules import OVERDUE
from dray.codec.inputs import RESULT_MAX
from dray.codec.payload import Call
from dray.context import Context, EndRun, Reject, Retry
from dray.errors import CodecError, DecodeError, JobStopped, MissingLibrary, TaskExit
from dray.job import Error, Job, Outcome, OutcomeKind
from dray.policy import Backoff, BackoffFunction, retry_delay
from dray.settings import Settings
from dray.worker.run.run_state import Interrupted, RunState, StopReason, Suspended, bounded

if TYPE_CHECKING:
    from dray.worker.run.durable_run import DurableRun

REASON_MAX: Final = 500
MESSAGE_MAX: Final = 2000
TRACEBACK_MAX: Final = 16 * 1024
TIMEOUT: Final = "Timeout"
_CHAIN_MAX: Final = 30
_OWN: Final = str(Path(__file__).parent)
_STOPS: Final = (asyncio.CancelledError, JobStopped, Interrupted, Suspended)
_SUCCEEDED: Final = OutcomeKind.SUCCEEDED

log = logging.getLogger("dray.worker")


class Timeout(TimeoutError):
    """The error of a run that was stopped for its timeout, for `retry_on`, `give_up_on` and backoffs."""


class Judge:
    """Reads the arguments of runs and decides their outcomes, by the rules of task and job."""

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

    def arguments(self, run: RunState) -> Call | Outcome:
        """The call as the task's annotations want it, or the outcome if it cannot be read."""
        task = run.task
        try:
            args, kwargs = self._decode(run.taken.job.payload, task.hints, limit=self._max_payload)
            return task.place(args, kwargs, Context(run)) if task.context_parameters else (args, kwargs)
        except CodecError as error:
            return self.undecodable(run, error)
        except BaseException as error:
            return self.failure(run, error)

    def success(self, run: RunState, value: object) -> Outcome:
        """The outcome of a run that returned `value`."""
        taken = run.taken
        if run.durable is not None and run.durable.unwinding:
            return self._swallowed(run, run.durable)
        job = taken.job
        ttl = job.result_ttl
        if (self._result_ttl if ttl is None else ttl) == 0 and job.owner is None:
            return Outcome(id=job.id, run=taken.run, kind=_SUCCEEDED)
        if value is None:
            return Outcome(id=job.id, run=taken.run, kind=_SUCCEEDED, result=self._none)
        codec = run.task.options.codec or self._codec
        if codec == "protobuf" and not hasattr(type(value), "SerializeToString"):
            codec = "msgpack"  # protobuf holds messages only; the payload names its codec to the reader
        limit = RESULT_MAX if run.task.built_in else self._max_result
        try:
            result = self._encode(value, codec=codec, limit=limit)
        except CodecError as error:
            # Another run would return the same value, and do its work twice.
            return self._dead(run, describe(error), f"its result cannot be kept: {message_of(error)}")
        return Outcome(id=job.id, run=taken.run, kind=_SUCCEEDED, result=result)

    def undecodable(self, run: RunState, error: CodecError) -> Outcome:
        if isinstance(error, MissingLibrary):
            return self._later(run, error, describe(error))
        if isinstance(error, DecodeError) and error.argument is not None:
            return self._unfitting(run, error)
        return self._dead(run, describe(error), f"undecodable: {message_of(error)}")

    def _unfitting(self, run: RunState, error: BaseException) -> Outcome:
        """The call does not fit the function: a retry may reach a worker with other code."""
        return self._again(run, error, describe(error), f"undecodable: {message_of(error)}")

    def _misfit(self, run: RunState) -> TypeError | None:
        """The error of calling the function like this; None if the call fits."""
        args, kwargs = self._decode(run.taken.job.payload, limit=self._max_payload)
        try:
            run.task.hints.check(args, kwargs)
        except TypeError as error:
            return error
        return None

    def stopped(self, run: RunState) -> Outcome:
        """The outcome of a run that was stopped before it returned or raised."""
        match run.stop_reason:
            case StopReason.CANCELLED:
                return self._outcome(run, OutcomeKind.CANCELLED)
            case StopReason.TIMEOUT:
                return self._timed_out(run)
            case StopReason.DEADLINE:
                return self._missed_deadline(run)
        return self.given_back(run)

    def _timed_out(self, run: RunState, error: BaseException | None = None) -> Outcome:
        late = Timeout(f"it ran longer than its timeout of {run.timeout:g} s")
        return self.by_the_rules(run, late, describe(error or late, type=TIMEOUT, message=str(late)))

    def _missed_deadline(self, run: RunState, error: BaseException | None = None) -> Outcome:
        late = Timeout(
            f"it was not finished within its deadline of {(run.taken.job.deadline or 0) / 1000:g} s"
        )
        return self._dead(run, describe(error or late, type=TIMEOUT, message=str(late)), OVERDUE)

    def failure(self, run: RunState, error: BaseException) -> Outcome:
        """The outcome of a run that raised `error`."""
        why, halted = run.stop_reason, isinstance(error, _STOPS)
        if isinstance(error, EndRun) and why is None:
            return self.ended_by(run, error)
        if why is StopReason.CANCELLED:
            return self._outcome(run, OutcomeKind.CANCELLED, error=None if halted else describe(error))
        if why is StopReason.LOST:
            return self.given_back(run)
        if why is not StopReason.DEADLINE and run.durable is not None and run.durable.unwinding:
            return run.durable.outcome()
        if why is StopReason.LEAVING:
            return self.given_back(run)
        if why is StopReason.TIMEOUT and halted:
            return self._timed_out(run, error)
        if why is StopReason.DEADLINE and halted:
            return self._missed_deadline(run, error)
        if run.durable is not None and any(leaf in run.durable.finals for leaf in _leaves(error)):
            text = describe(error)
            return self._dead(run, text, f"failed: {text.type}: {text.message} (not retried)")
        if isinstance(error, BaseExceptionGroup):
            error = _exit_among(error)
        if isinstance(error, Reject):
            return self._dead(run, describe(error, type="Reject"), f"rejected: {message_of(error)}")
        if type(error) is TypeError and (misfit := self._misfit(run)) is not None:
            return self._unfitting(run, misfit)
        return self.by_the_rules(run, error, None)

    def _swallowed(self, run: RunState, durable: DurableRun) -> Outcome:
        """The task went on after it was unwound: what it did then would be done again after the wait."""
        if durable.lost:
            return self.given_back(run)
        caught = "dray.worker.run.run_state.Suspended" if durable.plain else "asyncio.CancelledError"
        text = f"it caught {caught}, by which dray ends a run that sleeps or waits, and went on: let it pass"
        return self._dead(run, Error("Swallowed", text), f"failed: {text}")

    def step_delay(
        self,
        run: RunState,
        error: BaseException,
        tries: int,
        retries: int,
        backoff: Backoff | BackoffFunction | None,
    ) -> int | None:
        """Milliseconds until the next try of a step; None if it has failed for good."""
        if isinstance(error, Reject) or tries > retries:
            return None
        if not isinstance(error, Retry):
            options = run.task.options
            if _any_is(error, options.give_up_on):
                return None
            if options.retry_on and not _all_are(error, options.retry_on):
                return None
        return self._delay(run, error, tries, backoff)

    def ended_by(self, run: RunState, end: EndRun) -> Outcome:
        """The outcome that one of dray's own tasks has decided."""
        reason = None if end.reason is None else bounded(end.reason, REASON_MAX)
        outcome = self._outcome(run, end.kind, end.error, reason)
        return outcome if end.suspend is None else msgspec.structs.replace(outcome, suspend=end.suspend)

    def by_the_rules(self, run: RunState, error: BaseException, text: Error | None) -> Outcome:
        """Retry or dead, as task and job say about this error; `text` describes it, if given."""
        options = run.task.options
        text = text or describe(error, type="Retry" if isinstance(error, Retry) else None)
        short = f"{text.type}: {text.message}"
        if not isinstance(error, Retry):
            if _any_is(error, options.give_up_on):
                return self._dead(run, text, f"failed: {short} (give_up_on)")
            if options.retry_on and not _all_are(error, options.retry_on):
                return self._dead(run, text, f"failed: {short} (not in retry_on)")
        return self._again(run, error, text, f"failed: {short}")

    def _again(self, run: RunState, error: BaseException, text: Error, reason: str) -> Outcome:
        """A retry, while there are any left and the deadline is not over."""
        taken = run.taken
        if run.stop_reason is StopReason.DEADLINE:
            return self._dead(run, text, OVERDUE)
        if taken.attempt > taken.job.retries:
            times = "1 attempt" if taken.attempt == 1 else f"{taken.attempt} attempts"
            return self._dead(run, text, f"{reason} ({times})")
        return self._later(run, error, text)

    def _later(self, run: RunState, error: BaseException, text: Error) -> Outcome:
        """A retry, whatever is left: another worker may be able to run it."""
        taken, at = run.taken, self.now() + self._delay(run, error, run.taken.attempt)
        return Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.RETRY, at=at, error=text)

    def crashed(self, run: RunState, message: str, together: int = 1) -> Outcome:
        """The outcome of a run whose child process died with so many jobs in it."""
        error = Error("Crashed", bounded(message, REASON_MAX))
        outcome = self._outcome(run, OutcomeKind.CRASHED, error=error)
        return outcome if together == 1 else msgspec.structs.replace(outcome, together=together)

    def given_back(self, run: RunState) -> Outcome:
        """The outcome of a run that must be repeated through no fault of its own."""
        return self._outcome(run, OutcomeKind.GIVE_BACK)

    def _delay(
        self,
        run: RunState,
        error: BaseException,
        attempt: int,
        own: Backoff | BackoffFunction | None = None,
    ) -> int:
        if isinstance(error, Retry) and error.delay is not None:
            return error.delay
        job = run.taken.job
        backoff: Backoff | BackoffFunction = own or self._backoff_of(job) or run.task.backoff or self._backoff
        try:
            return retry_delay(backoff, attempt, error, self._random)
        except Exception:
            log.exception("the backoff of %s failed for %s: the usual one is used", job.task, job.id)
            return self._backoff.delay(attempt, self._random)

    @staticmethod
    def _backoff_of(job: Job) -> Backoff | None:
        return None if job.backoff is None else Backoff.parse(job.backoff)

    def _dead(self, run: RunState, error: Error, reason: str) -> Outcome:
        return self._outcome(run, OutcomeKind.DEAD, error=error, reason=bounded(reason, REASON_MAX))

    @staticmethod
    def _outcome(
        run: RunState, kind: OutcomeKind, error: Error | None = None, reason: str | None = None
    ) -> Outcome:
        return Outcome(id=run.taken.job.id, run=run.taken.run, kind=kind, error=error, reason=reason)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _exit_among(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The `Reject` (first) or `Retry` raised below a task group, which decides the outcome."""
    exits = [leaf for leaf in _leaves(group) if isinstance(leaf, TaskExit)]
    return next((leaf for leaf in exits if isinstance(leaf, Reject)), exits[0] if exits else group)


def _any_is(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    return bool(kinds) and (
        isinstance(error, kinds) or any(isinstance(leaf, kinds) for leaf in _leaves(error))
    )


def _all_are(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    return isinstance(error, kinds) or all(isinstance(leaf, kinds) for leaf in _leaves(error))


# errors as text


def describe(error: BaseException, *, type: str | None = None, message: str | None = None) -> Error:
    """The error as it is stored; `type` and `message` replace those of the exception."""
    return Error(type or type_name(error), message or message_of(error), traceback_of(error))


def type_name(error: BaseException) -> str:
    kind = error.__class__
    module, name = str(getattr(kind, "__module__", "")), str(getattr(kind, "__qualname__", kind))
    return bounded(name if module in ("builtins", "") else f"{module}.{name}", 200)


def message_of(error: BaseException) -> str:
    try:
        return bounded(str(error), MESSAGE_MAX)
    except BaseException as worse:  # an exception whose __str__ fails is still a failure of the job
        return f"<its message cannot be shown: {worse.__class__.__name__}>"


def traceback_of(error: BaseException) -> str:
    """As Python prints it, without dray's own frames at the top."""
    try:
        formatted = traceback.TracebackException(
            error.__class__, error, _trimmed(error.__traceback__), compact=True, limit=-100
        )
        text = "".join(formatted.format(chain=_chain_length(error) <= _CHAIN_MAX))
    except BaseException as worse:
        text = f"<its traceback cannot be shown: {worse.__class__.__name__}>"
    return bounded(text, TRACEBACK_MAX)


def _trimmed(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OWN):
        trace = trace.tb_next
    return trace


def _chain_length(error: BaseException) -> int:
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen and len(seen) <= _CHAIN_MAX:
        seen.add(id(following))
        following = following.__cause__ or following.__context__
    return len(seen)
