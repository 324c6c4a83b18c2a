"""A worker in a test: the real executor on one event loop, and a way to tell when it cannot do any more.

Runs start one after the other, so that a test sees the same order every time: the next one starts when the
one before has ended, waits for another job, or has had its `HEAD_START`. So jobs that need each other meet.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from dray.app import App
from dray.broker.verbs import Filter, Ref
from dray.duration import MAX_DURATION
from dray.errors import DrayError, InvalidInput
from dray.job import Outcome
from dray.settings import Settings
from dray.testing.store import Clock, Store
from dray.worker.channel import Message, Stuck
from dray.worker.children import Children
from dray.worker.executor import Executor
from dray.worker.live import Ended, Live
from dray.worker.run import Judge
from dray.worker.runners import OnLoop, Runner, Runners
from dray.worker.threads import Threads

TICK: Final = 0.02
HEAD_START: Final = 5
"""Ticks that a run gets before the next one starts beside it. Several short ones, not one of their length: on
a busy machine a single wait may be over before the run had any time at all."""
QUIET_TURNS: Final = 25
"""Turns of the event loop in which nothing happens before that counts as stillness: more than it takes from
the end of a job to the next step of whoever awaits it."""

_numbers = count(1)


class Crew:
    """One executor with what it needs, in one task of the event loop it was started on."""

    def __init__(self, app: App, store: Store, clock: Clock, *, isolate: bool, live: bool = False) -> None:
        self.app, self._store, self._clock = app, store, clock
        self._isolate, self._live = isolate, live
        self.name = f"test-{next(_numbers)}"
        self.tasks, self.middleware = dict(app.tasks), app.run_middleware
        self.filter = Filter(tasks=frozenset(app.tasks))
        self.lives: dict[Ref, Live] = {}
        self.stuck: list[Outcome] = []
        self.executor: PacedExecutor | None = None
        self._children: Children | None = None
        self._main: asyncio.Task[None] | None = None

    @property
    def current(self) -> bool:
        """Whether it knows all that the app knows by now."""
        app = self.app
        return not self.stuck and self.tasks == app.tasks and self.middleware == app.run_middleware

    # life

    async def start(self) -> None:
        """Enter the app's lifespan and begin to work, as far as the gate lets it."""
        self._loop = asyncio.get_running_loop()
        self._calm, self._looking = asyncio.Event(), False
        ready: asyncio.Future[None] = self._loop.create_future()
        # Enter and leave the lifespan in one task: cancel scopes and task groups insist on that.
        self._main = self._loop.create_task(self._work(ready), name=f"dray {self.name}")
        await asyncio.wait([ready, self._main], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            self._main.result()

    async def _work(self, ready: asyncio.Future[None]) -> None:
        async with self.app.open_lifespan() as state:
            executor = self.executor = self._executor(state)
            ready.set_result(None)
            await executor.run()

    def enter(self) -> None:
        """The loop may run in another thread than before."""
        if self.executor is not None:
            self.executor.thread = threading.get_ident()

    def take_no_more(self) -> None:
        """Finish what runs, however long that takes, and end."""
        if self.executor is not None:
            self.executor.stop(MAX_DURATION)

    async def stop(self, grace: int = 0) -> None:
        """Give back what still runs, and leave the lifespan."""
        if self._main is None:
            return
        self.enter()
        if self.executor is not None:
            self.executor.stop(grace)
        try:
            await self._main
        finally:
            await self._store.end_sessions(self.name, self.stuck)
            if self._children is not None:
                await _until_gone(self._children)

    def _executor(self, state: Any) -> PacedExecutor:
        return PacedExecutor(
            self.app,
            self._store.view(blocking=False),
            settings=self._settings(),
            session_name=self.name,
            runners=self._runners,
            clock=self._clock,
            random=lambda: 0.5,  # the middle: backoffs are exactly what they say
            state=state,
            say=self._hear,
            most=1 if self._live else self.app.settings.concurrency,
            changed=self._changed,
        )

    def _settings(self) -> Settings:
        settings = self.app.settings
        return msgspec.structs.replace(
            settings,
            broker_url="memory://",
            priorities=None,
            tasks=None,
            concurrency=settings.concurrency if self._live else 1,
            # Nobody else is there to take over: a lease that ends when the clock is moved would only confuse.
            lease=MAX_DURATION,
            heartbeat=MAX_DURATION,
            max_jobs_per_process=None,
            max_memory=None,
        )

    def _runners(self, judge: Judge) -> Runners:
        witness = Witness(judge, self._store.gate.raised)
        threads = Threads(witness)
        on_loop = OnLoop(witness, threads.call, threads)
        children: Runner = InProcess(on_loop, threads, bool(judge.middleware))
        if self._isolate:
            children = self._children = Children(witness, path_of(self.app), self._settings(), Path.cwd())
        return Runners(*(Noted(runner, self) for runner in (on_loop, threads, children)))

    def _hear(self, message: Message) -> None:
        if isinstance(message, Stuck):
            self.stuck = message.outcomes
            self._calm.set()

    # stillness

    async def until_still(self) -> None:
        """Until nothing runs and nothing more can start; runs that wait for other jobs do not count."""
        main, listeners = self._main, self._store.gate.listeners
        assert main is not None
        main.add_done_callback(self._ended)
        listeners.append(self._changed)
        try:
            while True:
                self._calm.clear()
                self._look()
                await self._calm.wait()
                if main.done():
                    main.result()
                    raise DrayError("the worker of this test ended by itself")
                self._check_stuck()
                if await self._stays_still():
                    return
        finally:
            listeners.remove(self._changed)
            main.remove_done_callback(self._ended)

    async def _stays_still(self) -> bool:
        for _ in range(QUIET_TURNS):
            await asyncio.sleep(0)
            if not self._is_still():
                return False
        return True

    def _ended(self, _: object) -> None:
        self._calm.set()

    def _changed(self) -> None:
        """In any thread: something happened, so look whether it was the last."""
        if self._looking:
            return
        self._looking = True
        if self.executor is not None and threading.get_ident() == self.executor.thread:
            self._loop.call_soon(self._look)
        else:
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._looking = False
        for ref in list(self._store.gate.blocked):  # what it waits for must get a slot, whoever has them
            if self.executor is not None and (live := self.lives.get(ref)) is not None:
                self.executor.is_slow(live)
        if self._is_still():
            self._calm.set()

    def _is_still(self) -> bool:
        return self._all_wait() and not self._store.has_work(self.filter)

    def _all_wait(self) -> bool:
        for ref in self._store.held(self.name):
            live = self.lives.get(ref)
            if live is None:
                return False
            # A thread that was woken is away until it gets its turn: only the store knows that it goes on.
            if not (self._store.is_blocked(ref) if live.work is not None else live.away):
                return False
        return True

    def _check_stuck(self) -> None:
        if self.stuck:
            names = ", ".join(f"{outcome.id} ({_task_of(self.lives, outcome)})" for outcome in self.stuck)
            raise DrayError(
                f"past its timeout in a thread that cannot be stopped: {names}. A real worker would be "
                "killed and replaced here"
            )


async def _until_gone(children: Children) -> None:
    """Its processes were killed; a loop that is closed before that is noticed leaks their sockets."""
    for _ in range(200):
        if not children._idle and not children._busy:
            return
        await asyncio.sleep(0.01)


def _task_of(lives: dict[Ref, Live], outcome: Outcome) -> str:
    live = lives.get((outcome.id, outcome.run))
    return "its task is unknown" if live is None else live.task.name


def path_of(app: App) -> str:
    """Where a child process finds the app."""
    for name, module in list(sys.modules.items()):
        if name == "__main__":
            continue
        for attribute, value in list(vars(module).items()):
            if value is app:
                return f"{name}:{attribute}"
    raise InvalidInput(
        "isolate", True, f"app {app.name!r} must be a variable of a module: child processes import it"
    )


class PacedExecutor(Executor):
    """An executor with one slot that lends more of them, up to `most`, to let others run beside slow runs."""

    def __init__(self, *args: Any, most: int, changed: Callable[[], None], **options: Any) -> None:
        super().__init__(*args, **options)
        self._most, self._changed = most, changed
        self._reasons: dict[Live, set[str]] = {}
        self._lock = threading.Lock()

    def waits(self, live: Live, begins: bool) -> None:
        self._excuse(live, "away", begins)
        self._changed()

    def is_slow(self, live: Live) -> None:
        lent = sum(1 for reasons in list(self._reasons.values()) if "away" not in reasons)
        if lent < self._most - 1:
            self._excuse(live, "slow", True)

    def has_ended(self, live: Live) -> None:
        for reason in list(self._reasons.get(live, ())):
            self._excuse(live, reason, False)

    def _excuse(self, live: Live, reason: str, begins: bool) -> None:
        """A run with any excuse uses no slot."""
        with self._lock:
            reasons = self._reasons.setdefault(live, set())
            before = bool(reasons)
            (reasons.add if begins else reasons.discard)(reason)
            after = bool(reasons)
            if not after:
                del self._reasons[live]
        if before is not after:
            super().waits(live, after)


class Witness(Judge):
    """A judge that remembers what was raised, to raise it again in the test."""

    def __init__(self, judge: Judge, raised: dict[Ref, BaseException]) -> None:
        self.__dict__.update(judge.__dict__)
        self._raised = raised

    def failure(self, live: Live, error: BaseException) -> Outcome:
        self._raised[live.ref] = error
        return super().failure(live, error)

    def undecodable(self, live: Live, error: BaseException) -> Outcome:
        self._raised[live.ref] = error
        return super().undecodable(live, error)


class InProcess:
    """Runs jobs that want a process of their own like all others: on the loop or in a thread."""

    def __init__(self, on_loop: Runner, in_threads: Runner, middleware: bool) -> None:
        self._on_loop, self._in_threads, self._middleware = on_loop, in_threads, middleware

    def start(self, live: Live, ended: Ended) -> None:
        self._place(live).start(live, ended)

    def stop(self, live: Live) -> None:
        self._place(live).stop(live)

    def close(self) -> None:
        """They are closed by themselves."""

    def _place(self, live: Live) -> Runner:
        return self._on_loop if live.task.is_async or self._middleware else self._in_threads


class HeadStart:
    """Calls `over` after so many ticks, unless it is ended before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop, self._over, self._left = loop, over, HEAD_START
        self._timer = loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(TICK, self._tick)
        else:
            self._over()

    def end(self) -> None:
        self._timer.cancel()


class Noted:
    """A runner, and a note of each run while it lives."""

    def __init__(self, runner: Runner, crew: Crew) -> None:
        self._runner, self._crew = runner, crew
        self._loop = asyncio.get_running_loop()

    def start(self, live: Live, ended: Ended) -> None:
        crew = self._crew
        crew.lives[live.ref] = live
        executor = crew.executor
        assert executor is not None
        head_start = HeadStart(self._loop, lambda: executor.is_slow(live))

        def note_end(live: Live, outcome: Outcome) -> None:
            head_start.end()
            crew.lives.pop(live.ref, None)
            ended(live, outcome)
            executor.has_ended(live)

        self._runner.start(live, note_end)

    def stop(self, live: Live) -> None:
        self._runner.stop(live)

    def close(self) -> None:
        self._runner.close()
