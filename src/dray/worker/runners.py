"""Where a run takes place: on the event loop, in a thread, in a child process. An executor uses all three."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, NamedTuple, Protocol

from dray.worker.accounting import Steps
from dray.worker.live import Ended, Live
from dray.worker.run import CallFunction, Judge, leave_if_forked, perform, perform_traced


class Runner(Protocol):
    """Starts runs and asks them to stop. For each run `ended` is called once, on the event loop."""

    def start(self, live: Live, ended: Ended) -> None: ...

    def stop(self, live: Live) -> None:
        """Ask it to stop, as `live.why` and `live.overdue` say. Called again every second until it ends."""
        ...

    def close(self) -> None: ...


class OnLoop:
    """Runs jobs on the event loop; plain functions, if it gets any, go where `call_plain` calls them."""

    def __init__(self, judge: Judge, call_plain: CallFunction, threads: Runner | None = None) -> None:
        self._judge, self._call_plain, self._threads = judge, call_plain, threads
        self._perform = perform if judge.tracing is None else partial(perform_traced, judge.tracing)
        self._create_task = asyncio.get_running_loop().create_task

    def start(self, live: Live, ended: Ended) -> None:
        live.ended = ended
        run = self._run(live, ended)
        live.handle = self._create_task(run if live.meter is None else Steps(run, live.meter))

    async def _run(self, live: Live, ended: Ended) -> None:
        outcome = await self._perform(self._judge, live, self._call_plain)
        leave_if_forked()
        ended(live, outcome)

    def stop(self, live: Live) -> None:
        if live.work is not None and self._threads is not None:
            self._threads.stop(live)
        elif live.handle is not None and live.handle.cancel():
            live.handle.add_done_callback(partial(self._never_began, live))

    def _never_began(self, live: Live, handle: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step never gets to say so itself."""
        if handle.cancelled() and live.ended is not None:
            ended, live.ended = live.ended, None
            ended(live, self._judge.stopped(live))

    def close(self) -> None:
        """What still runs is the caller's."""


async def call_here(live: Live, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a plain function on the loop: for simulations and tests, where there are no threads."""
    return live.task.function(*args, **kwargs)


class Runners(NamedTuple):
    """Where an executor's jobs run."""

    on_loop: Runner
    in_threads: Runner
    in_children: Runner


def on_loop_only(judge: Judge) -> Runners:
    """Everything on the event loop, also plain functions: for simulations and tests."""
    runner = OnLoop(judge, call_here)
    return Runners(runner, runner, runner)
