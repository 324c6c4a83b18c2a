"""Runs the call of a stored job in this process: remembered steps return what was recorded."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any, Final, Literal, NamedTuple

import msgspec

from dray.app import App
from dray.broker.verbs import Broker
from dray.context import CURRENT
from dray.durable.copying import entries_before
from dray.durable.entries import Entry, pack_entry, unpack_entry
from dray.durable.identity import name_of
from dray.durable.journal import Journal
from dray.errors import CodecError, UnknownTask
from dray.job import Outcome, Progress, Record, Taken
from dray.worker.run.durable_run import Caller, DurableRun
from dray.worker.run.operations import RunSteps
from dray.worker.run.outcome import Judge
from dray.worker.run.requests import Again, Remember, Request, Spawn, carry_out
from dray.worker.run.run_state import RunState, Suspended

Kind = Literal["returned", "raised", "new", "waits", "differs"]
FITS: Final[frozenset[Kind]] = frozenset({"returned", "raised", "new", "waits"})
"""Ends of a replay that show no difference between the code and the log."""


class Replayed(NamedTuple):
    """How far the call came."""

    kind: Kind
    text: str
    steps: int
    """Remembered steps that it used."""
    value: Any = None
    error: BaseException | None = None


class _Stop(Suspended):
    """The replay ends here; no code of the task catches it."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _ReplayRun(DurableRun):
    """A run that writes nothing, and runs new steps only if that was asked for."""

    live = False
    stopped: _Stop | None = None

    def _end(self, kind: Kind, text: str) -> _Stop:
        self.stopped = self.stopped or _Stop(kind, text)
        return self.stopped

    async def write(self, *entries: Entry, **_: Any) -> None:
        for entry in entries:
            self.journal.add(entry, 0)

    async def ask(self, request: Request) -> Any:
        if isinstance(request, Remember | Spawn | Again):
            raise self._end("new", "it would call a job that the log does not have")
        return await self._ask(self.run, request)

    async def call_function(self, function: Any, is_async: bool, here: Caller | None) -> Any:
        if not self.live:
            raise self._end("new", f"the next step is new: {name_of(function, None)}")
        return await super().call_function(function, is_async, here)

    def park(self, difference: str) -> None:
        raise self._end("differs", difference)

    def _suspend(self, turn: int) -> None:
        super()._suspend(turn)
        if self.suspension is not None:
            self._end("waits", "it sleeps or waits here")


class _Host:
    """Stands where an executor stands."""

    def __init__(self, app: App, broker: Broker, live: bool) -> None:
        self.app, self.state, self.thread = app, None, threading.get_ident()
        self._broker, self._live, self._loop = broker, live, asyncio.get_running_loop()
        dice = random.Random()  # noqa: S311 (jitter)
        self.judge = Judge(app, app.settings, broker.clock, dice.random)

    def reported(self, run: RunState, progress: Progress) -> None:
        """No one reads its progress."""

    def beaten(self, run: RunState) -> None:
        """It has no timeout."""

    def waits(self, run: RunState, begins: bool) -> None:
        """It has no slot."""

    def open_steps(self, run: RunState) -> RunSteps:
        durable = _ReplayRun(run, self.judge, self.ask, self._loop)
        durable.live = self._live
        return RunSteps(durable)

    async def ask(self, run: RunState, request: Request) -> Any:
        return await carry_out(self._broker, run.taken, request)


async def replay(
    app: App,
    broker: Broker,
    record: Record,
    *,
    live: bool = False,
    step: str | None = None,
    payload: bytes | None = None,
) -> Replayed:
    """`step`: forget the log from there on. `payload`: other arguments. Nothing is written to the broker."""
    job = record.job if payload is None else msgspec.structs.replace(record.job, payload=payload)
    task = app.tasks.get(job.task)
    if task is None:
        raise UnknownTask(job.task, (), tuple(app.tasks))
    host = _Host(app, broker, live)
    taken = Taken(job, record.run, max(1, record.attempt), memos=record.memos, replayed=record.replayed)
    run = RunState(host, task, taken, (job.id, record.run), 0.0)
    durable = run.steps().durable
    await _read_log(durable, broker, step)
    async with app.open_lifespan() as state:
        run.state = state
        return await _call(run, durable, host.judge)


async def _read_log(durable: DurableRun, broker: Broker, step: str | None) -> None:
    entries: list[bytes] = []
    while page := await broker.recall(durable.job.id, len(entries)):
        entries += page
    if step is not None:
        chosen = entries_before([unpack_entry(data) for data in entries], step)
        entries = [pack_entry(entry) for entry in chosen]
    durable.journal = Journal(durable.job.id, entries, durable.run.taken.replayed)


async def _call(run: RunState, durable: DurableRun, judge: Judge) -> Replayed:
    CURRENT.set(run)
    call = judge.arguments(run)
    if isinstance(call, Outcome):
        raise CodecError(call.reason or "its arguments cannot be read")
    args, kwargs = call
    try:
        value = await _in_its_place(run, args, kwargs)
    except BaseException as error:
        stop = getattr(durable, "stopped", None)
        if stop is not None:
            return Replayed(stop.kind, str(stop), durable.run.steps_replayed)
        return Replayed("raised", f"{type(error).__name__}: {error}", durable.run.steps_replayed, error=error)
    return Replayed("returned", repr(value), durable.run.steps_replayed, value)


async def _in_its_place(run: RunState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if run.task.is_async:
        run.handle = asyncio.ensure_future(run.task.function(*args, **kwargs))
        return await run.handle
    return await asyncio.to_thread(run.task.function, *args, **kwargs)
