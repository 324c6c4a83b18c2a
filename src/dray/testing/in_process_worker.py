"""The worker of a test: the real executor on one event loop, which knows when it has nothing left to do.

Runs start one after the other, so that a test sees the same order every time. The next one starts when the
one before has ended, waits for another job, or has run for `SLOW_AFTER` ticks: so jobs can await each other.
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
from dray.errors import CodecError, DrayError, InvalidInput
from dray.job import Outcome
from dray.settings import Settings
from dray.settings.queue_choice import DEFAULT, is_pattern
from dray.testing.listener import InProcessListener
from dray.testing.loops import call_soon
from dray.testing.memory_store import Clock, HarnessStore
from dray.worker.channel import Message, Stuck
from dray.worker.executor.executor import Executor
from dray.worker.run.child_pool import ChildPool
from dray.worker.run.child_process import spawner
from dray.worker.run.outcome import Judge
from dray.worker.run.perform import OnLoop, Runner, Runners
from dray.worker.run.run_state import Ended, RunState
from dray.worker.run.threads import Threads

TICK: Final = 0.02
SLOW_AFTER: Final = 5
"""Ticks before the next run starts beside a slow one. Several short waits: on a busy machine a single long
one may be over before the run had any time at all."""
QUIET_TURNS: Final = 25
"""Turns of the event loop without work that mean idle: more than from the end of a job to the next step of
the code that awaits it."""

_numbers = count(1)


class InProcessWorker:
    """One executor, in one task of the event loop it was started on."""

    def __init__(
        self, app: App, store: HarnessStore, clock: Clock, *, isolate: bool, live: bool = False
    ) -> None:
        self.app, self._store, self._clock = app, store, clock
        self._isolate, self._live = isolate, live
        self.name = f"test-{next(_numbers)}"
        self.tasks, self.middleware = dict(app.tasks), app.run_middleware
        self.filter = Filter(tasks=frozenset(app.all_tasks()))
        self.lives: dict[Ref, RunState] = {}
        self.stuck: list[Outcome] = []
        self.executor: SequentialExecutor | None = None
        self._children: ChildPool | None = None
        self._main: asyncio.Task[None] | None = None

    @property
    def current(self) -> bool:
        """It knows all tasks and middleware that the app has now."""
        app = self.app
        return not self.stuck and self.tasks == app.tasks and self.middleware == app.run_middleware

    # life

    async def start(self) -> None:
        """Enter the app's lifespan and run jobs while the store allows it."""
        self._loop = asyncio.get_running_loop()
        self._calm, self._looking = asyncio.Event(), False
        ready: asyncio.Future[None] = self._loop.create_future()
        # One task enters and leaves the lifespan: cancel scopes and task groups require that.
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
        """Note the current thread: the loop may run in another one than before."""
        if self.executor is not None:
            self.executor.thread = threading.get_ident()

    def take_no_more(self) -> None:
        """Finish the running jobs, however long that takes, and end."""
        if self.executor is not None:
            self.executor.stop(MAX_DURATION)

    async def stop(self, grace: int = 0) -> None:
        """Give back the running jobs, and leave the lifespan."""
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

    def _executor(self, state: Any) -> SequentialExecutor:
        return SequentialExecutor(
            self.app,
            self._store.view(blocking=False),
            settings=self._settings(),
            session_name=self.name,
            runners=self._runners,
            clock=self._clock,
            random=lambda: 0.5,  # the middle: backoffs are exactly what they say
            state=state,
            send=self._hear,
            most=1 if self._live else self.app.settings.slots,
            changed=self._changed,
            hears=None if self._live else self._store,
        )

    def _settings(self) -> Settings:
        settings = self.app.settings
        return msgspec.structs.replace(
            settings,
            broker_url="memory://",
            # The one worker of a test serves every queue; the listed ones come first.
            queues=tuple(name for name in settings.queues if not is_pattern(name)) or (DEFAULT,),
            priorities=None,
            tasks=None,
            concurrency=settings.concurrency if self._live else 1,
            # No other worker could take over: a lease must not end because the test moves the clock.
            lease=MAX_DURATION,
            heartbeat=MAX_DURATION,
            max_jobs_per_process=None,
            max_memory=None,
        )

    def _runners(self, judge: Judge) -> Runners:
        witness = RecordingJudge(judge, self._store.control.raised)
        threads = Threads(witness)
        on_loop = OnLoop(witness, threads.call, threads)
        children: Runner = InProcessRunner(on_loop, threads, bool(judge.middleware))
        if self._isolate:
            spawn = spawner(import_path(self.app), self._settings(), Path.cwd())
            children = self._children = ChildPool(witness, spawn)
        return Runners(*(TrackedRunner(runner, self) for runner in (on_loop, threads, children)))

    def _hear(self, message: Message) -> None:
        if isinstance(message, Stuck):
            self.stuck = message.outcomes
            self._calm.set()

    # idle

    async def until_idle(self) -> None:
        """Wait until nothing runs and nothing can start; runs that wait for other jobs do not count."""
        main, listeners = self._main, self._store.control.listeners
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
                if await self._stays_idle():
                    return
        finally:
            listeners.remove(self._changed)
            main.remove_done_callback(self._ended)

    async def _stays_idle(self) -> bool:
        for _ in range(QUIET_TURNS if self._others_may_act() else 0):
            await asyncio.sleep(0)
            if not self._is_idle():
                return False
        return self._is_idle()

    def _others_may_act(self) -> bool:
        """Runs that wait, or tasks of the test, may go on by themselves."""
        return bool(self.lives) or bool(asyncio.all_tasks() - {asyncio.current_task(), self._main})

    def _ended(self, _: object) -> None:
        self._calm.set()

    def _changed(self) -> None:
        """Called in any thread: something happened, so check for idleness."""
        if self._looking:
            return
        self._looking = True
        call_soon(self._loop, self._look)

    def _look(self) -> None:
        self._looking = False
        for ref in list(self._store.control.blocked):  # the job it waits for needs a slot
            if self.executor is not None and (live := self.lives.get(ref)) is not None:
                self.executor.is_slow(live)
        if self._is_idle():
            self._calm.set()

    def _is_idle(self) -> bool:
        return self._all_wait() and not self._store.has_work(self.filter)

    def _all_wait(self) -> bool:
        for ref in self._store.held_by(self.name):
            live = self.lives.get(ref)
            if live is None:
                return False
            # A woken thread counts as away until it gets its turn: only the store knows that it goes on.
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


async def _until_gone(children: ChildPool) -> None:
    """Wait for killed child processes: a loop closed earlier would leak their sockets."""
    for _ in range(200):
        if not children.children:
            return
        await asyncio.sleep(0.01)


def _task_of(lives: dict[Ref, RunState], outcome: Outcome) -> str:
    live = lives.get((outcome.id, outcome.run))
    return "its task is unknown" if live is None else live.task.name


def import_path(app: App) -> str:
    """`module:attribute` of the app, for child processes."""
    for name, module in list(sys.modules.items()):
        if name == "__main__":
            continue
        for attribute, value in list(vars(module).items()):
            if value is app:
                return f"{name}:{attribute}"
    raise InvalidInput(
        "isolate", True, f"app {app.name!r} must be a variable of a module: child processes import it"
    )


class SequentialExecutor(Executor):
    """An executor with one slot. It lends up to `most` slots, so that jobs run beside slow ones."""

    def __init__(
        self, *args: Any, most: int, changed: Callable[[], None], hears: HarnessStore | None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._most, self._changed = most, changed
        if hears is not None:
            self._listener = InProcessListener(hears, self._settings.queues, self._filter, self._news)
        self._reasons: dict[RunState, set[str]] = {}
        self._lock = threading.Lock()

    def waits(self, live: RunState, begins: bool) -> None:
        self._lend(live, "away", begins)
        self._changed()

    def is_slow(self, live: RunState) -> None:
        lent = sum(1 for reasons in list(self._reasons.values()) if "away" not in reasons)
        if lent < self._most - 1:
            self._lend(live, "slow", True)

    def has_ended(self, live: RunState) -> None:
        for reason in list(self._reasons.get(live, ())):
            self._lend(live, reason, False)

    def _lend(self, live: RunState, reason: str, begins: bool) -> None:
        """Start or end one reason of a run to use no slot."""
        with self._lock:
            reasons = self._reasons.setdefault(live, set())
            before = bool(reasons)
            (reasons.add if begins else reasons.discard)(reason)
            after = bool(reasons)
            if not after:
                del self._reasons[live]
        if before is not after:
            super().waits(live, after)


class RecordingJudge(Judge):
    """Keeps the exceptions of runs, so that the test can raise them again."""

    def __init__(self, judge: Judge, raised: dict[Ref, BaseException]) -> None:
        self.__dict__.update(judge.__dict__)
        self._raised = raised

    def failure(self, live: RunState, error: BaseException) -> Outcome:
        self._raised[live.ref] = error
        return super().failure(live, error)

    def undecodable(self, live: RunState, error: CodecError) -> Outcome:
        self._raised[live.ref] = error
        return super().undecodable(live, error)


class InProcessRunner:
    """Runs isolated jobs like all others: on the loop or in a thread."""

    def __init__(self, on_loop: Runner, in_threads: Runner, middleware: bool) -> None:
        self._on_loop, self._in_threads, self._middleware = on_loop, in_threads, middleware

    def start(self, live: RunState, ended: Ended) -> None:
        self._place(live).start(live, ended)

    def stop(self, live: RunState) -> None:
        self._place(live).stop(live)

    def close(self) -> None:
        """Both runners are closed by their owner."""

    def _place(self, live: RunState) -> Runner:
        return self._on_loop if live.task.is_async or self._middleware else self._in_threads


class SlowRunTimer:
    """Calls `over` after `SLOW_AFTER` ticks, unless cancelled before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop, self._over, self._left = loop, over, SLOW_AFTER
        self._timer = loop.call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(TICK, self._tick)
        else:
            self._over()

    def cancel(self) -> None:
        self._timer.cancel()


class TrackedRunner:
    """A runner that lists each run in the worker while it lasts."""

    def __init__(self, runner: Runner, worker: InProcessWorker) -> None:
        self._runner, self._crew = runner, worker
        self._loop = asyncio.get_running_loop()

    def start(self, live: RunState, ended: Ended) -> None:
        worker = self._crew
        worker.lives[live.ref] = live
        executor = worker.executor
        assert executor is not None
        timer = SlowRunTimer(self._loop, lambda: executor.is_slow(live))

        def note_end(live: RunState, outcome: Outcome) -> None:
            timer.cancel()
            worker.lives.pop(live.ref, None)
            ended(live, outcome)
            executor.has_ended(live)
            live.handle = None  # breaks a reference cycle with the context of its task

        self._runner.start(live, note_end)

    def stop(self, live: RunState) -> None:
        self._runner.stop(live)

    def close(self) -> None:
        self._runner.close()
