"""The supervisor: a worker's first process. It runs no user code, so no job can stop it.

It renews the sessions of its executors, kills those that hang, replaces those that die, passes signals on,
takes part in the duties, and keeps its document in the registry.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final

from dray.broker import Broker, connect
from dray.broker.verbs import Filter
from dray.documents.data_loss import DataLossDetector
from dray.errors import BrokerError, DrayError, InvalidInput
from dray.settings import Settings
from dray.task import BUILT_IN
from dray.worker.channel import Message, Redeclare, RunStatistics, Serves, Started
from dray.worker.duties.duties import Duties, duties_of
from dray.worker.retrying_broker import RetryingBroker
from dray.worker.supervisor import watchers
from dray.worker.supervisor.executor_pool import ExecutorPool
from dray.worker.supervisor.executor_process import (
    ExecutorProcess,
    Plan,
    launch_declarer,
    plan_executors,
)
from dray.worker.supervisor.heartbeats import ClockSkew, Heartbeats
from dray.worker.supervisor.probes import Probes
from dray.worker.supervisor.reaper import Reaper
from dray.worker.supervisor.report import Parts, Render, WorkerReport, new_worker_id, stop_notice
from dray.worker.supervisor.stalls import Stalls
from dray.worker.supervisor.statistics import WorkerStatistics
from dray.worker.supervisor.template import Template

MARGIN: Final = 5.0
"""Seconds beyond their grace for executors to end, and for the last writes to the broker."""
CLOSING: Final = 7.0
"""More seconds for an executor that runs nothing any more: the app's lifespan may take a while to end."""
RELOAD_GRACE: Final = 2_000
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
STOPS: Final = (
    "the worker takes no more jobs, lets running ones finish and ends",
    "running jobs are handed back now",
    "what has not ended is killed",
)

log = logging.getLogger("dray.worker")


def print_now(text: str) -> None:
    """Print without delay, also into a file or a pipe."""
    print(text, flush=True)


def run_worker(
    app_path: str,
    settings: Settings,
    *,
    burst: bool = False,
    reload: bool = False,
    announce: Callable[[str], None] = print_now,
    render: Render | None = None,
    template: Template | None = None,
) -> int:
    """Run a worker until a signal stops it (or, with `burst`, until nothing is left); its exit code.

    0 is an orderly end; 1 means that it could not work, and the reason was logged. For the main thread only.
    `render` makes the text of `/metrics`, which is served where the setting `metrics` says. `template` starts
    the executors, where there is one.
    """
    supervisor = Supervisor(
        app_path,
        settings,
        burst=burst,
        reload=reload,
        announce=announce,
        render=render,
        template=template,
    )
    return asyncio.run(supervisor.run())


def executors_of(settings: Settings) -> int:
    """The number of executor processes of a worker of this mode."""
    if not settings.runs_jobs:
        return 0
    return 1 if settings.mode == "thin" else settings.processes


class Supervisor:
    """One worker. `run` is its whole life."""

    def __init__(
        self,
        app_path: str,
        settings: Settings,
        *,
        burst: bool = False,
        reload: bool = False,
        announce: Callable[[str], None] = print_now,
        plan: Plan | None = None,
        render: Render | None = None,
        template: Template | None = None,
    ) -> None:
        self.id = new_worker_id()
        self._app_path, self._settings = app_path, settings
        self._burst, self._reload = burst, reload
        self._size = executors_of(settings)
        self._statistics = WorkerStatistics(self.id)
        self._report = WorkerReport(settings, self._size, self._statistics, announce, render)
        self._plan = plan or plan_executors(
            app_path,
            settings,
            self.id,
            burst=burst,
            started=lambda: self._report.started,
            template=template,
        )
        self._parts: Parts | None = None
        self._failure: str | None = None
        """The reason for which the worker cannot go on."""
        self._stop_requests = 0
        self._stop = asyncio.Event()
        self._deadline = 0.0
        """When executors that run jobs are killed; a second signal moves it."""
        self._complained = False
        self._background: set[asyncio.Task[None]] = set()

    # start

    async def run(self) -> int:
        self._handle_signals()
        probes = Probes(self._report.pages())
        try:
            return await self._run(probes)
        finally:
            await probes.close()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in STOP_SIGNALS:
            loop.add_signal_handler(number, self.stop, number)
        # A closed terminal sends SIGHUP; without a terminal it usually means "use the new code".
        attended = sys.stdin is not None and sys.stdin.isatty()
        hang_up = partial(self.stop, signal.SIGHUP) if attended else self.restart
        loop.add_signal_handler(signal.SIGHUP, hang_up)

    async def _run(self, probes: Probes) -> int:
        try:
            if self._settings.metrics is not None:
                self._report.say(f"metrics and probes: {await probes.open(self._settings.metrics)}")
            retrying = await self._open_broker()
        except DrayError as error:
            log.error("the worker cannot start: %s", error)
            return 1
        if retrying is None:
            return 0
        try:
            await self._live(retrying)
        finally:
            await retrying.broker.close()
        if self._failure is not None:
            log.error("the worker cannot go on: %s", self._failure)
        return 0 if self._failure is None else 1

    async def _open_broker(self) -> RetryingBroker | None:
        """The broker, however long it takes to answer; None if the worker is stopped before."""
        url = self._settings.broker_url
        if url.startswith("memory:"):
            raise InvalidInput(
                "broker_url", url, "a worker's processes share a broker: sqlite:// or redis://"
            )
        opening = asyncio.create_task(RetryingBroker.open(self._connect, self._settings.lease / 1000))
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
        return await connect(
            settings.broker_url, settings.namespace, retention=settings.retention, access=settings.access
        )

    def _assemble(self, retrying: RetryingBroker) -> Parts:
        settings, count_event = self._settings, self._statistics.count_event
        pool = ExecutorPool(
            self._size,
            self._plan,
            retrying,
            Reaper(retrying),
            grace=settings.shutdown_grace,
            waits_for_new_code=self._reload,
            heard=self._hear,
            count_event=count_event,
            broken=self._bear_broken,
        )
        duties = Duties(
            retrying,
            self.id,
            duties_of(settings, count_event, self._statistics.arrivals),
            lease=settings.lease,
            interval=settings.sweep_interval,
            stands_in=not settings.schedules,
        )
        heartbeats = Heartbeats(
            retrying,
            lease=settings.lease,
            heartbeat=settings.heartbeat,
            executors=pool.executors,
            describe=self._report.info,
        )
        return Parts(retrying, pool, duties, heartbeats, ClockSkew(retrying.broker))

    async def _live(self, retrying: RetryingBroker) -> None:
        self._report.started = retrying.broker.clock()
        self._parts = self._report.parts = parts = self._assemble(retrying)
        # Before any executor imports the code, or a change in between would never be noticed.
        code = await asyncio.to_thread(watchers.CodeChanges, Path.cwd()) if self._reload else None
        parts.pool.fill()
        for work in self._background_loops(parts):
            self._begin(work)
        if code is not None:
            self._begin(lambda: watchers.reload_changed(code, self._load_new_code))
        if not self._size:
            self._greet()
            self._begin(self._declare)
        await self._stop.wait()
        await self._wind_down(parts)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._leave(parts)

    def _background_loops(self, parts: Parts) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        retrying, pool, duties, heartbeats, _ = parts
        settings, statistics = self._settings, self._statistics
        stalls, detector = Stalls(statistics, self._begin), DataLossDetector()

        async def register() -> None:
            await heartbeats.write(self._report.info())

        loops: list[Callable[[], Coroutine[Any, Any, None]]] = [
            heartbeats.renew_forever,
            heartbeats.write_forever,
            duties.run,
            lambda: watchers.kill_hanging(pool, stalls, settings.stall_limit),
            lambda: statistics.write_forever(retrying, settings.heartbeat),
            lambda: watchers.pass_profile_requests(retrying, self.id, pool.executors),
            lambda: watchers.notice_data_loss(retrying, detector, register, self._declare_again),
        ]
        if self._burst:
            loops.append(lambda: self._end_burst(retrying, pool))
        return loops

    # stop and restart

    def stop(self, number: signal.Signals | None = None) -> None:
        """The first time: in good order. The second: hand jobs back now. The third: kill."""
        self._stop_requests += 1
        if number is not None:
            log.info("%s: %s", number.name, STOPS[min(self._stop_requests, len(STOPS)) - 1])
        self._stop.set()
        if self._parts is None or self._report.state != "stopping":
            return
        self._deadline = time.monotonic() + (MARGIN if self._stop_requests == 2 else 0)
        self._parts.pool.stop(0)
        self._parts.pool.changed.set()

    async def _wind_down(self, parts: Parts) -> None:
        """End all executors: those that have not started get a moment, those with jobs the grace."""
        pool = parts.pool
        self._report.state = "stopping"
        parts.heartbeats.write_soon()
        self._begin(parts.duties.give_up)  # the next leader need not wait until the last job has ended
        orderly = self._failure is None and self._stop_requests < 2
        grace = self._settings.shutdown_grace if orderly else 0
        now = time.monotonic()
        self._deadline = now + grace / 1000 + MARGIN
        pool.stop(grace)
        if self._stop_requests:
            self._report.say(stop_notice(sum(executor.running for executor in pool.executors), grace))
        await pool.wait_ended(lambda: min(now + MARGIN, self._deadline))
        pool.kill(lambda executor: not executor.started.is_set())
        await pool.wait_ended(lambda: self._deadline)
        pool.kill(lambda executor: executor.counted.running > 0)
        await pool.wait_ended(lambda: self._deadline + (CLOSING if self._stop_requests < 2 else 0))
        pool.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(MARGIN):
                await pool.finish_cleanup()
        await pool.close()

    async def _leave(self, parts: Parts) -> None:
        with contextlib.suppress(BrokerError, OSError):  # without it, all documents expire by themselves
            async with asyncio.timeout(MARGIN):
                await self._statistics.write(parts.broker)
                await parts.duties.give_up()
                await parts.heartbeats.remove(self.id)

    def restart(self) -> None:
        """Replace the executors one by one; those that are not started yet will have the new code anyway."""
        if self._report.state != "running" or self._parts is None:
            return
        log.info("SIGHUP: %s", "executors are replaced one by one" if self._size else "the code is read anew")
        self._begin(partial(self._roll, self._parts.pool) if self._size else self._declare)

    async def _roll(self, pool: ExecutorPool) -> None:
        await pool.roll()
        if self._report.state == "running":
            log.info("all executors are replaced")

    def _load_new_code(self) -> None:
        self._complained = False
        if self._parts is not None:
            self._parts.pool.restart(RELOAD_GRACE)

    async def _declare(self) -> None:
        """Write the schedules of the code in a process of its own, where no executor does it."""
        launch = launch_declarer(self._app_path, self._settings, self._report.started)
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

    def _declare_again(self) -> None:
        if not self._size:
            self._begin(self._declare)
        for executor in [] if self._parts is None else self._parts.pool.executors:
            executor.send(Redeclare())

    async def _end_burst(self, retrying: RetryingBroker, pool: ExecutorPool) -> None:
        def idle() -> bool:
            """An executor is at work, and none runs anything: then it is worth asking the broker."""
            at_work = [one for one in pool.executors if one.started.is_set()]
            return not any(one.running for one in at_work) and (bool(at_work) or not self._size)

        async def done(broker: Broker) -> bool:
            wanted = Filter(self._report.tasks if self._size else None, self._settings.priorities)
            return await watchers.nothing_left(broker, self._report.info().serves_queue, wanted)

        await watchers.wait_for_end_of_burst(retrying, idle, done)
        self._stop.set()

    # messages of executors

    def _hear(self, executor: ExecutorProcess, message: Message) -> None:
        if isinstance(message, RunStatistics):
            self._statistics.add(message)
            return
        if isinstance(message, Serves):
            self._report.serves = message
        elif isinstance(message, Started):
            allowed = self._settings.tasks
            self._report.tasks = frozenset(
                name
                for name in message.tasks
                if allowed is None or name in allowed or name.startswith(BUILT_IN)
            )
            self._greet()
        else:
            return
        if self._parts is not None:
            self._parts.heartbeats.write_soon()

    def _greet(self) -> None:
        if self._parts is not None and self._report.show_banner():
            self._begin(partial(self._report.note_unserved, self._parts.broker))

    def _bear_broken(self, reason: str) -> None:
        if self._reload:
            if not self._complained:
                self._report.say(f"the code does not load; it is tried again when it changes\n{reason}")
            self._complained = True
            return
        self._failure = reason
        self._stop.set()

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.create_task(_keep_running(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _keep_running(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Begin failed work again: a worker that has lost one of its loops would be worse than none."""
    while True:
        try:
            return await work()
        except (BrokerError, OSError):  # logged by `RetryingBroker`
            pass
        except Exception:
            log.exception("a part of the supervisor failed, it is begun again")
        await asyncio.sleep(1)
