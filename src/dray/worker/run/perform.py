"""Runs one job: arguments in, outcome out. On the event loop, or in the thread that calls `perform_here`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from dray.context import CURRENT, Context
from dray.errors import CodecError, NewerVersion
from dray.job import Outcome
from dray.worker.run.meter import MeteredSteps
from dray.worker.run.outcome import Judge, describe
from dray.worker.run.run_state import Ended, RunState
from dray.worker.run.step_operation import undo_all

if TYPE_CHECKING:
    from dray.client.tracing import Tracing
    from dray.worker.run.durable_run import Caller

NEWER_PAUSE: Final = 60_000
"""Milliseconds until a job whose log was written by a newer dray is tried again."""
_forked = False


def _note_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_note_fork)


def forget_fork() -> None:
    """This process was forked to run jobs; from now on only tasks fork."""
    global _forked
    _forked = False


def leave_if_forked() -> None:
    """A task that forks and lets its child process return must not make it a second executor."""
    if _forked:
        os._exit(1)


CallFunction = Callable[[RunState, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]
"""Calls a plain function from the event loop, for runs with middleware."""


async def perform(judge: Judge, run: RunState, call_plain: CallFunction) -> Outcome:
    """Run a job on the event loop. Whatever the task raises ends the job, never the loop."""
    CURRENT.set(run)
    try:
        outcome = await _perform(judge, run, call_plain)
    except asyncio.CancelledError as error:  # while it waited for steps
        outcome = judge.failure(run, error)
    return outcome


async def _perform(judge: Judge, run: RunState, call_plain: CallFunction) -> Outcome:
    if run.has_log:
        begun = await begin(judge, run)
        if begun is not None:
            return begun
    call = judge.arguments(run)
    if isinstance(call, Outcome):
        return call
    outcome = await _call(judge, run, *call, call_plain)
    if run.durable is not None:
        await run.durable.finish()
    return outcome


async def _call(
    judge: Judge, run: RunState, args: tuple[Any, ...], kwargs: dict[str, Any], call_plain: CallFunction
) -> Outcome:
    try:
        if judge.middleware and not run.task.built_in:
            value = await _through(judge, run, args, kwargs, call_plain)
        elif run.task.is_async:
            value = await run.task.function(*args, **kwargs)
        else:
            value = await call_plain(run, args, kwargs)
        return judge.success(run, value)
    except GeneratorExit as error:
        if asyncio.current_task() is not run.handle:
            raise  # not raised by the task: the loop is gone and this coroutine with it
        return judge.failure(run, error)
    except BaseException as error:
        return judge.failure(run, error)


async def perform_traced(tracing: Tracing, judge: Judge, run: RunState, call_plain: CallFunction) -> Outcome:
    """The same within a span."""
    with tracing.running(run.taken) as attempt:
        run.trace = attempt.trace
        outcome = await perform(judge, run, call_plain)
        attempt.ended(outcome)
    return outcome


async def _through(
    judge: Judge, run: RunState, args: tuple[Any, ...], kwargs: dict[str, Any], call_plain: CallFunction
) -> Any:
    if run.task.is_async:
        call_next: Callable[[], Awaitable[Any]] = partial(run.task.function, *args, **kwargs)
    else:
        call_next = partial(call_plain, run, args, kwargs)
    context = Context(run)
    for middleware in reversed(judge.middleware):
        call_next = partial(middleware, context, call_next)
    return await call_next()


async def begin(judge: Judge, run: RunState, here: Caller | None = None) -> Outcome | None:
    """Read the log of a durable job. The outcome, if the task itself does not run."""
    durable = run.steps().durable
    try:
        await durable.load()
        return None if run.taken.undo is None else await undo_all(durable, here)
    except NewerVersion as error:
        durable.postpone(judge.now() + NEWER_PAUSE, describe(error))
        return durable.outcome()
    except CodecError as error:
        return judge.undecodable(run, error)
    except BaseException as error:
        return judge.failure(run, error)


def begin_here(judge: Judge, run: RunState) -> Outcome | None:
    """The same, in a thread."""
    try:
        begun: Outcome | None = run.steps().durable.block(lambda here: begin(judge, run, here))
        return begun
    except BaseException as error:
        return judge.failure(run, error)


def perform_here(judge: Judge, run: RunState) -> Outcome:
    """Run a job with a plain function, in the thread that calls this."""
    if run.stop_reason is not None:
        return judge.stopped(run)  # it never started
    CURRENT.set(run)
    if run.has_log:
        begun = begin_here(judge, run)
        if begun is not None:
            return begun
    call = judge.arguments(run)
    if isinstance(call, Outcome):
        return call
    args, kwargs = call
    try:
        return judge.success(run, run.task.function(*args, **kwargs))
    except BaseException as error:
        return judge.failure(run, error)


def perform_here_traced(tracing: Tracing, judge: Judge, run: RunState) -> Outcome:
    """The same within a span."""
    with tracing.running(run.taken) as attempt:
        run.trace = attempt.trace
        outcome = perform_here(judge, run)
        attempt.ended(outcome)
    return outcome


class Runner(Protocol):
    """A place where runs happen. For each run `ended` is called once, on the event loop."""

    def start(self, run: RunState, ended: Ended) -> None: ...

    def stop(self, run: RunState) -> None:
        """Ask it to stop, as `stop_reason` and `overdue` say. Called again every second until it ends."""
        ...

    def close(self) -> None: ...


class OnLoop:
    """Runs jobs on the event loop; a plain function is called by `call_plain`."""

    def __init__(self, judge: Judge, call_plain: CallFunction, threads: Runner | None = None) -> None:
        self._judge, self._call_plain, self._threads = judge, call_plain, threads
        self._perform = perform if judge.tracing is None else partial(perform_traced, judge.tracing)
        self._create_task = asyncio.get_running_loop().create_task

    def start(self, run: RunState, ended: Ended) -> None:
        run.ended = ended
        steps = self._run(run, ended)
        run.handle = self._create_task(steps if run.meter is None else MeteredSteps(steps, run.meter))

    async def _run(self, run: RunState, ended: Ended) -> None:
        outcome = await self._perform(self._judge, run, self._call_plain)
        leave_if_forked()
        ended(run, outcome)

    def stop(self, run: RunState) -> None:
        if run.work is not None and self._threads is not None:
            self._threads.stop(run)
        elif run.handle is not None and run.handle.cancel():
            run.handle.add_done_callback(partial(self._never_began, run))

    def _never_began(self, run: RunState, handle: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step cannot report its end itself."""
        if handle.cancelled() and run.ended is not None:
            ended, run.ended = run.ended, None
            ended(run, self._judge.stopped(run))

    def close(self) -> None:
        """Runs that have not ended are left to the caller."""


class Runners(NamedTuple):
    """The three runners of an executor."""

    on_loop: Runner
    in_threads: Runner
    in_children: Runner
