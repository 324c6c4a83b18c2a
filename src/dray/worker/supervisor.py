"""The supervisor: a worker's first process. It runs no user code, so nothing that a job does can stop it.

It keeps its executors' sessions alive, kills those that hang, replaces those that die, passes signals on,
does its share of the duties, and keeps its line on the roster.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, Literal

from dray.broker import Broker, connect
from dray.broker.verbs import Filter
from dray.errors import BrokerError, DrayError, InvalidInput
from dray.fitness import unfit
from dray.roster import WorkerInfo
from dray.settings import Settings
from dray.stats import WorkerTallies
from dray.worker import pulse as clock
from dray.worker.burst import nothing_left
from dray.worker.channel import Measured, Message, Started
from dray.worker.duties import Duties, Duty, Happened, Sweep, unnoted
from dray.worker.endings import Endings
from dray.worker.executors import Executor, Plan
from dray.worker.greeting import farewell, greeting, new_worker_id, version
from dray.worker.heartbeats import Heartbeats
from dray.worker.launch import declarer_for, plan_for
from dray.worker.lifeline import Lifeline
from dray.worker.posts import Posts, Rules
from dray.worker.probes import Answer, Page, Probes
from dray.worker.reload import Watch
from dray.worker.schedules import Schedules, Undeclared
from dray.worker.skew import Skew
from dray.worker.speculation import Speculation
from dray.worker.stalls import Stalls
from dray.worker.stats import Archive, Books

TICK: Final = 0.5
"""Seconds between looks at the pulses."""
LATE: Final = 2_500_000_000
"""Nanoseconds: a look that comes so late means that we were stopped ourselves."""
MARGIN: Final = 5.0
"""Seconds that executors get to end beyond their grace, and the broker to hear of it."""
CLOSING: Final = 7.0
"""More seconds for one that runs nothing any more: the app's own end (its lifespan) may take a while."""
RELOAD_EVERY: Final = 1.0
RELOAD_GRACE: Final = 2_000
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

Render = Callable[[WorkerInfo, WorkerTallies], tuple[str, str]]
"""The text of a worker's metrics, and its media type."""

log = logging.getLogger("dray.worker")


def announced(text: str) -> None:
    """Said at once, also into a file or a pipe."""
    print(text, flush=True)


def run_worker(
    app_path: str,
    settings: Settings,
    *,
    burst: bool = False,
    reload: bool = False,
    announce: Callable[[str], None] = announced,
    render: Render | None = None,
) -> int:
    """Run a worker until it is told to stop (or, with `burst`, until nothing is left); its exit code.

    0 is an orderly end; 1 means that it could not work, and the reason was logged. For the main thread only.
    `render` makes the text of `/metrics`, where the setting `metrics` says that there is one.
    """
    supervisor = Supervisor(app_path, settings, burst=burst, reload=reload, announce=announce, render=render)
    return asyncio.run(supervisor.run())


def executors_of(settings: Settings) -> int:
    """How many executor processes a worker of this mode has."""
    if not settings.runs_jobs:
        return 0
    return 1 if settings.mode == "thin" else settings.processes


def duties_of(settings: Settings, happened: Happened = unnoted) -> list[Duty]:
    """What a worker of this mode does for all while it leads."""
    duties: list[Duty] = [Sweep(settings.sweep_interval, happened), Archive(settings.lease), Speculation()]
    if settings.schedules:
        duties += [Schedules(settings.lease, settings.durability), Undeclared()]
    return duties


class Supervisor:
    """One worker. `run` is its whole life."""

    def __init__(
        self,
        app_path: str,
        settings: Settings,
        *,
        burst: bool = False,
        reload: bool = False,
        announce: Callable[[str], None] = announced,
        plan: Plan | None = None,
        render: Render | None = None,
    ) -> None:
        self.id = new_worker_id()
        self._settings, self._announce, self._render = settings, announce, render
        self._line: Lifeline | None = None
        """Once it is described."""
        self._burst, self._reload = burst, reload
        self._app_path, self._began = app_path, 0
        self._plan = plan or plan_for(app_path, settings, self.id, burst=burst, started=lambda: self._began)
        self._size = executors_of(settings)
        self._books = Books(self.id)
        self._state: Literal["running", "stopping"] = "running"
        self._reason: str | None = None
        """Why it cannot work."""
        self._asked = 0
        """How many times it was told to stop."""
        self._stop = asyncio.Event()
        self._deadline = 0.0
        self._greeted = self._complained = False
        self._tasks: frozenset[str] = frozenset()
        self._work: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        self._listen()
        probes = Probes(self._pages())
        try:
            return await self._run(probes)
        finally:
            await probes.close()

    async def _run(self, probes: Probes) -> int:
        try:
            if self._settings.metrics is not None:
                self._say(f"metrics and probes: {await probes.open(self._settings.metrics)}")
            line = await self._open()
        except DrayError as error:
            log.error("the worker cannot start: %s", error)
            return 1
        if line is None:
            return 0
        try:
            await self._live(line)
        finally:
            await line.broker.close()
        if self._reason is not None:
            log.error("the worker cannot go on: %s", self._reason)
        return 0 if self._reason is None else 1

    def _pages(self) -> dict[str, Page]:
        pages: dict[str, Page] = {"/healthz": lambda: Answer(200, "ok\n"), "/readyz": self._readiness}
        if self._render is not None:
            pages["/metrics"] = self._metrics
        return pages

    def _readiness(self) -> Answer:
        if self._line is None:
            return Answer(503, "it has not reached the broker yet\n")
        if not self._line.answers.is_set():
            return Answer(503, "the broker does not answer\n")
        info = self._describe()
        reason = unfit(info, info.seen)
        return Answer(200, "ok\n") if reason is None else Answer(503, f"{reason}\n")

    def _metrics(self) -> Answer:
        if self._line is None or self._render is None:
            return Answer(503, "it has not reached the broker yet\n")
        text, kind = self._render(self._describe(), self._books.told)
        return Answer(200, text, kind)

    async def _open(self) -> Lifeline | None:
        """The broker, whenever it answers; None if we are told to stop before."""
        url = self._settings.broker_url
        if url.startswith("memory:"):
            raise InvalidInput(
                "broker_url", url, "a worker's processes share a broker: sqlite:// or redis://"
            )
        opening = asyncio.create_task(Lifeline.open(self._connect, self._settings.lease / 1000))
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait((opening, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if opening.done():
            return opening.result()
        opening.cancel()
        await asyncio.wait((opening,))
        return None

    async def _connect(self) -> Broker:
        settings = self._settings
        return await connect(settings.broker_url, settings.namespace, retention=settings.retention)

    async def _live(self, line: Lifeline) -> None:
        settings = self._settings
        self._began, self._skew = line.broker.clock(), Skew(line.broker)
        self._posts = posts = Posts(
            self._size,
            self._plan,
            line,
            Endings(line, settings.queues),
            Rules(grace=settings.shutdown_grace, patient=self._reload),
            heard=self._hear,
            happened=self._books.happened,
            broken=self._bear_broken,
        )
        self._duties = Duties(
            line,
            self.id,
            duties_of(settings, self._books.happened),
            lease=settings.lease,
            interval=settings.sweep_interval,
            stands_in=not settings.schedules,
        )
        self._beats = beats = Heartbeats(
            line,
            lease=settings.lease,
            heartbeat=settings.heartbeat,
            executors=posts.executors,
            describe=self._describe,
        )
        self._line = line
        # Sent by a terminal that is closed; where there is none, the usual word for "use the new code".
        attended = sys.stdin is not None and sys.stdin.isatty()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.stop if attended else self.restart)
        # Before anybody reads the code, or a change in between would never be noticed.
        code = await asyncio.to_thread(Watch, Path.cwd()) if self._reload else None
        posts.fill()
        for work in (beats.renew_for_ever, beats.tell_for_ever, self._duties.run, self._watch):
            self._begin(work)
        self._begin(lambda: self._books.tell_for_ever(line, settings.heartbeat))
        if self._burst:
            self._begin(lambda: self._watch_burst(line))
        if code is not None:
            self._begin(lambda: self._watch_code(code))
        if not self._size:
            self._greet()
            self._begin(self._declare)
        await self._stop.wait()
        await self._wind_down(posts)
        await self._end_work()
        await self._say_goodbye(line, beats)

    # stopping

    async def _wind_down(self, posts: Posts) -> None:
        """Let all end: who has not started gets a moment, who runs jobs the grace, the rest a little more."""
        self._state = "stopping"
        self._beats.tell_soon()
        self._begin(self._duties.give_up)  # whoever takes over need not wait until the last job has ended
        grace = self._settings.shutdown_grace if self._reason is None and self._asked < 2 else 0
        now = time.monotonic()
        self._deadline = now + grace / 1000 + MARGIN
        posts.stop(grace)
        if self._asked:
            self._say(farewell(sum(executor.running for executor in posts.executors), grace))
        await self._see_off(posts, lambda: min(now + MARGIN, self._deadline))
        posts.kill(lambda executor: not executor.started.is_set())
        await self._see_off(posts, lambda: self._deadline)
        posts.kill(lambda executor: executor.counted.running > 0)
        await self._see_off(posts, lambda: self._deadline + (CLOSING if self._asked < 2 else 0))
        posts.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MARGIN):
                await posts.rest()
        await posts.close()

    async def _see_off(self, posts: Posts, deadline: Callable[[], float]) -> None:
        """Wait until all executors have ended, or until a time that a second signal may change."""
        while posts.alive and (left := deadline() - time.monotonic()) > 0:
            posts.news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await posts.news.wait()

    async def _say_goodbye(self, line: Lifeline, beats: Heartbeats) -> None:
        with contextlib.suppress(BrokerError, OSError):  # then it all runs out by itself
            async with asyncio.timeout(MARGIN):
                await self._books.tell(line)
                await self._duties.give_up()
                await beats.leave(self.id)

    async def _end_work(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.stop)

    def stop(self) -> None:
        """The first time: in good order. The second: now. The third: at any price."""
        self._asked += 1
        self._stop.set()
        if self._state != "stopping":
            return
        self._deadline = time.monotonic() + (MARGIN if self._asked == 2 else 0)
        self._posts.stop(0)
        self._posts.news.set()

    def restart(self) -> None:
        """Replace the executors one by one."""
        if self._state == "running":
            self._begin(self._posts.roll if self._size else self._declare)

    async def _declare(self) -> None:
        """Executors write down the schedules of the code they import; where there are none, this does."""
        launch = declarer_for(self._app_path, self._settings, self._began)
        declarer = await asyncio.create_subprocess_exec(
            *launch.command, env=launch.environment, stdin=subprocess.DEVNULL
        )
        try:
            if await declarer.wait():
                log.error("the schedules that the code declares were not written down")
        finally:
            if declarer.returncode is None:
                declarer.kill()
                await declarer.wait()

    def _bear_broken(self, reason: str) -> None:
        if self._reload:
            if not self._complained:
                self._say(f"the code does not load; it is tried again when it changes\n{reason}")
            self._complained = True
            return
        self._reason = reason
        self._stop.set()

    # watching

    async def _watch(self) -> None:
        """Kill executors that hang. After we were stopped ourselves, they get time to show that they live."""
        stalls = Stalls(self._books, self._begin)
        last = since = 0
        while True:
            await asyncio.sleep(TICK)
            now = clock.now()
            if now - last > LATE:
                since = now
            last = now
            for executor in self._posts.executors:
                why = executor.trouble(now, self._settings.stall_limit * 1_000_000, since)
                if why is not None:
                    self._posts.put_down(executor, why)
                stalls.look(executor, executor.silence(now, since))
            stalls.forget(self._posts.executors)

    async def _watch_burst(self, line: Lifeline) -> None:
        pause = TICK
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            if self._idle() and await line.ask(self._nothing_left) and self._idle():
                self._stop.set()
                return
            pause = max(TICK, 10 * (time.monotonic() - began))

    async def _nothing_left(self, broker: Broker) -> bool:
        wanted = Filter(self._tasks if self._size else None, self._settings.priorities)
        return await nothing_left(broker, self._settings.queues, wanted)

    def _idle(self) -> bool:
        """Whether somebody is at work here, and nobody runs anything: then it is worth asking the broker."""
        at_work = [one for one in self._posts.executors if one.started.is_set()]
        return not any(one.running for one in at_work) and (bool(at_work) or not self._size)

    async def _watch_code(self, watch: Watch) -> None:
        while True:
            await asyncio.sleep(RELOAD_EVERY)
            changed = await asyncio.to_thread(watch.changed)
            if changed:
                names = ", ".join(path.name for path in changed[:5])
                self._say(f"{names} changed: starting anew")
                self._complained = False
                self._posts.again(RELOAD_GRACE)

    # telling

    def _hear(self, executor: Executor, message: Message) -> None:
        if isinstance(message, Started):
            allowed = self._settings.tasks
            self._tasks = frozenset(name for name in message.tasks if allowed is None or name in allowed)
            self._greet()
            self._beats.tell_soon()
        elif isinstance(message, Measured):
            self._books.hear(message)

    def _greet(self) -> None:
        if not self._greeted:
            self._greeted = True
            self._say(greeting(self.id, self._settings, self._size, self._tasks))

    def _say(self, words: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it: no reason to stop
            self._announce(words)

    def _describe(self) -> WorkerInfo:
        settings, now = self._settings, clock.now()
        return WorkerInfo(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=self._began,
            seen=self._skew.now(),
            queues=settings.queues if self._size else (),
            priorities=None if settings.priorities is None else tuple(sorted(settings.priorities)),
            tasks=tuple(sorted(self._tasks)),
            processes=self._size,
            concurrency=settings.concurrency,
            rate=settings.rate,
            mode=settings.mode,
            version=version(),
            state=self._state,
            executors=tuple(executor.info(now) for executor in self._posts.executors),
            leader=self._duties.leader,
            skew=self._skew.look(),
            average=self._books.average,
            lag=self._books.lag,
            stalls=self._books.stalls,
            round_trip=self._beats.round_trip,
        )

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.create_task(_guarded(work))
        self._work.add(task)
        task.add_done_callback(self._work.discard)


async def _guarded(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Begin again what failed: a worker that has lost one of its loops would be worse than none."""
    while True:
        try:
            return await work()
        except (BrokerError, OSError):  # the line has logged it
            pass
        except Exception:
            log.exception("a part of the supervisor failed, it is begun again")
        await asyncio.sleep(1)
