"""`ctx.step`: a function that is called once, with tries of its own; and undos, which are steps too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from typing import Any, Final

import msgspec

from dray.codec.signature import annotations_of
from dray.context import Context
from dray.durable.calls import StepOptions
from dray.durable.entries import Entry, Failure, Intent, Try, UndoCall, Value
from dray.durable.identity import digest_of, name_of, show
from dray.durable.journal import VALUE_MAX
from dray.durable.references import pack_error, rebuild_error, reference_to, resolve
from dray.errors import CodecError, InvalidInput, StepUncertain
from dray.job import Error, Outcome, OutcomeKind
from dray.policy import Backoff, BackoffFunction
from dray.task import Task, is_async
from dray.worker.run.durable_run import Caller, DurableRun, Waiting
from dray.worker.run.operation import Operation, decode
from dray.worker.run.outcome import REASON_MAX, describe
from dray.worker.run.run_state import Interrupted, Suspended, bounded

TRACEBACK_KEPT: Final = 4096
RAISED_MAX: Final = 64 * 1024
_UNWINDING: Final = (asyncio.CancelledError, Interrupted, Suspended, GeneratorExit)


class StepOperation(Operation):
    at_most_once = False
    undo: UndoCall | None = None
    backoff: Backoff | BackoffFunction | None = None
    uses_reserve = False

    def __init__(
        self, durable: DurableRun, function: Callable[..., Any], args: tuple[Any, ...], options: StepOptions
    ) -> None:
        name = name_of(function, options.name)
        self.retries = _retries(durable, options.retries, options.at_most_once)
        if options.backoff is not None:
            given = options.backoff
            self.backoff = given if callable(given) else Backoff.parse(given)
        if options.undo is not None:
            self.undo = _undo_call(durable, options.undo, options)
        self.at_most_once = options.at_most_once
        self.function, self.args = function, args
        keywords = getattr(function, "keywords", {})
        given_first = getattr(function, "args", ()) if isinstance(function, partial) else ()
        self.digest = digest_of((*given_first, *args), keywords)
        self.shown = show((*given_first, *args), keywords)
        super().__init__(durable, name, options.key)

    async def act(self) -> Any:
        memory = self.memory
        if memory is None:
            await self.admit()
            return await self._tries(0)
        await self.compare(memory, self.digest, self.shown)
        if isinstance(memory.done, Value | Failure):
            return self.recall(memory.done, _returns(self.function))
        if memory.intent is not None and self.at_most_once:
            raise await self._failed(StepUncertain(self.durable.job.id, self.id))
        if memory.tried is None:
            return await self._tries(0)
        await self._pause(memory.tried.due, memory.tried.error)
        return await self._tries(memory.tried.tries)

    async def _tries(self, tries: int) -> Any:
        while True:
            await self.durable.flush()
            if self.at_most_once:
                await self._write(Intent(**self.common(), run=self._run))
            try:
                value = await self._invoke(tries + 1)
            except _UNWINDING:
                raise
            except BaseException as error:
                tries += 1
                due = self._next_try(tries, error)
                if due is None:
                    raise await self._failed(error) from None
                text = _short(error)
                failed = Try(**self.common(), run=self._run, tries=tries, due=due, error=text)
                await self._write(failed)
                await self._pause(due, text)
            else:
                return await self._keep(value)

    @property
    def _run(self) -> int:
        return self.durable.run.taken.run

    def common(self) -> dict[str, Any]:
        return super().common() | {"digest": self.digest, "shown": self.shown}

    async def _write(self, *entries: Entry, undo: bool | None = None) -> None:
        await self.durable.write(*entries, undo=undo, reserve=not self.uses_reserve)

    async def _invoke(self, number: int) -> Any:
        durable = self.durable
        durable.run.steps_run += 1
        with self._span(number):
            function = partial(self.function, *self.args)
            return await durable.call_function(function, is_async(self.function), self.here)

    def _span(self, number: int) -> AbstractContextManager[None]:
        tracing = self.durable.judge.tracing
        return nullcontext() if tracing is None else tracing.step(self.id, number)

    def _next_try(self, tries: int, error: BaseException) -> int | None:
        """When to try again; None: it has failed for good."""
        delay = self.durable.judge.step_delay(self.durable.run, error, tries, self.retries, self.backoff)
        return None if delay is None else self.durable.judge.now() + delay

    async def _pause(self, due: int, error: Error) -> None:
        await self.durable.wait(Waiting(until=due, error=error, direct=self.direct))

    async def _keep(self, value: Any) -> Any:
        """Remember the value; the task gets it as it will get it after a restart."""
        durable = self.durable
        try:
            data = durable.app.codecs.encode_value(value, limit=VALUE_MAX)
        except CodecError as error:
            text = f"the value of step {self.id!r} of job {durable.job.id} cannot be remembered: {error}"
            raise await self._failed(type(error)(text)) from None
        undo = None if self.undo is None else True
        await self._write(Value(**self.common(), value=data, undo=self.undo), undo=undo)
        return decode(durable, data, _returns(self.function))

    async def _failed(self, error: BaseException) -> Exception:
        """Remember a final error; the task gets it as it will get it after a restart."""
        durable, text = self.durable, _short(error)
        raised = pack_error(error)
        raised = raised if len(raised) <= RAISED_MAX else b""
        await self._write(Failure(**self.common(), run=self._run, error=text, raised=raised))
        rebuilt = rebuild_error(durable.job.id, self.id, text, raised)
        if type(rebuilt) is type(error):
            return durable.final(error)
        rebuilt.__cause__ = error
        return durable.final(rebuilt)


class UndoOperation(StepOperation):
    """The undo of one step, by the function that was stored with its value."""

    uses_reserve = True

    def __init__(self, durable: DurableRun, id: str, done: Value, undo: UndoCall) -> None:
        self.durable, self.id, self.call = durable, id, 0
        self.memory, self._name = durable.journal.memories.get(id), None
        self.retries, self.digest, self.shown = undo.retries, "", ""
        self.backoff = None if undo.backoff is None else Backoff.parse(undo.backoff)
        self._undo, self._value = undo, done.value
        self.function, self.args = self._call, ()

    async def act(self) -> Any:
        tried = None if self.memory is None else self.memory.tried
        if tried is not None:
            await self._pause(tried.due, tried.error)
        return await self._tries(0 if tried is None else tried.tries)

    async def _call(self) -> Any:
        durable, undo = self.durable, self._undo
        args: tuple[Any, ...] = (durable.app.codecs.decode_value(self._value, limit=VALUE_MAX),)
        kwargs: dict[str, Any] = {}
        function = _undo_function(durable, undo)
        hints = annotations_of(function)
        if isinstance(function, Task):
            args, kwargs = function.hints.convert(list(args), {})
            args, kwargs = function.place(args, kwargs, Context(durable.run))
            function = function.function
        else:
            first = next((hint for name, hint in hints.items() if name != "return"), Any)
            args = (decode(durable, self._value, first),)
        return await durable.call_function(partial(function, *args, **kwargs), is_async(function), self.here)


def _undo_function(durable: DurableRun, undo: UndoCall) -> Any:
    if not undo.is_task:
        return resolve(undo.function)
    task = durable.app.tasks.get(undo.function)
    if task is None:
        raise LookupError(f"no task is named {undo.function!r} here")
    return task


async def undo_all(durable: DurableRun, here: Caller | None) -> Outcome:
    """An undo run: the undos in reverse order. One that fails for good does not stop the rest."""
    for id, done in reversed(list(durable.journal.undos.items())):
        if done.undo is not None:
            operation = UndoOperation(durable, id, done, done.undo)
            operation.here, operation.direct = here, True
            try:
                await durable.perform(operation.act, None)
            except Exception:  # noqa: S112 (it is in the log)
                continue
    failed = [
        f"{id} failed: {memory.done.error.type}: {memory.done.error.message}"
        for id, memory in durable.journal.memories.items()
        if id.startswith("undo(") and isinstance(memory.done, Failure)
    ]
    taken = durable.run.taken
    kind = OutcomeKind.DEAD if failed else OutcomeKind.CANCELLED
    return Outcome(
        id=taken.job.id, run=taken.run, kind=kind, reason=bounded("; ".join(failed), REASON_MAX) or None
    )


def _retries(durable: DurableRun, given: int | None, at_most_once: bool) -> int:
    if given is None:
        return 0 if at_most_once else durable.job.retries
    if type(given) is not int or given < 0:
        raise InvalidInput("retries", given, "a whole number from 0 is allowed")
    return given


def _undo_call(durable: DurableRun, undo: Any, options: StepOptions) -> UndoCall:
    retries = _retries(durable, options.undo_retries, False)
    if isinstance(undo, Task):
        return UndoCall(undo.name, True, retries, durable.job.backoff)
    return UndoCall(reference_to(undo), False, retries, durable.job.backoff)


@lru_cache(maxsize=1024)
def _returns_of(function: Callable[..., Any]) -> Any:
    return annotations_of(function).get("return", Any)


def _returns(function: Any) -> Any:
    if isinstance(function, Task):
        return function.hints.returns
    try:
        return _returns_of(function.func if isinstance(function, partial) else function)
    except (TypeError, ValueError):  # not hashable, or without a signature
        return Any


def _short(error: BaseException) -> Error:
    text = describe(error)
    return msgspec.structs.replace(text, traceback=bounded(text.traceback, TRACEBACK_KEPT))
