"""The main program of an executor process, which a supervisor starts.

It obeys the channel, not signals: Ctrl-C reaches every process of a terminal, and only the supervisor acts on
it. It ends with `os._exit`, because threads may still run code that cannot be stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import random
import signal
import socket
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from dray.app import App
from dray.broker.verbs import Broker
from dray.errors import AppNotFound, BrokerAway, BrokerError, DrayError
from dray.loading import load_app
from dray.schedules.store import reconcile
from dray.worker import logs
from dray.worker.channel import Broken, Channel, FromSupervisor, Message, Redeclare, Stop, frame
from dray.worker.config import ExecutorConfig
from dray.worker.executor.executor import Executor
from dray.worker.executor.sampler import start_sampler
from dray.worker.logs import OutageLog
from dray.worker.process import new_event_loop, run_to_end, watch_peer
from dray.worker.run.child_pool import HANDFUL, ChildPool
from dray.worker.run.child_process import spawner
from dray.worker.run.outcome import Judge
from dray.worker.run.perform import OnLoop, Runners, forget_fork
from dray.worker.run.threads import Threads
from dray.worker.shared_memory import SharedHeartbeat, SleepSign, WorkerRate

ENDED: Final = 0
FAILED: Final = 1
BROKEN: Final = 2
ORPHANED: Final = 3
LAST_WORDS: Final = 1.5
"""Seconds to settle finished runs after the supervisor is gone."""
CLOSING: Final = 10.0
"""Seconds that the app's lifespan may take to end."""

T = TypeVar("T")
log = logging.getLogger("dray.worker")


class _Broken(Exception):
    """It cannot start, and another try will not help."""


class ExecutorProgram:
    """One executor process from start to end."""

    def __init__(self, config: ExecutorConfig, app: App) -> None:
        self._config, self._app = config, app
        self._executor: Executor | None = None
        self._early: list[Message] = []
        """Messages that came before there was an executor."""
        self._broker: Broker | None = None
        self._redeclaring: set[asyncio.Task[None]] = set()
        self._orphaned = False
        self._random = random.Random().random  # noqa: S311 (its own: an app may seed the shared one)
        self._channel = Channel(FromSupervisor, self._hear, self._lose_supervisor)  # type: ignore[arg-type]

    async def main(self, connection: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self._channel, sock=connection)
        watch_peer(
            connection.fileno(),
            lambda: loop.call_soon_threadsafe(self._lose_supervisor),
            LAST_WORDS,
            ORPHANED,
        )
        try:
            async with self._lifespan() as state:
                await self._work(state)
        except _Broken as error:
            self._channel.send(Broken(str(error)))
            self._channel.close()
            await asyncio.sleep(0.2)
            return BROKEN
        return ORPHANED if self._orphaned else ENDED

    @asynccontextmanager
    async def _lifespan(self) -> AsyncIterator[Any]:
        manager = self._app.open_lifespan()
        try:
            state = await manager.__aenter__()
        except BaseException as error:
            raise _Broken(f"the app's lifespan failed: {last_lines(error)}") from error
        yield state
        try:
            async with asyncio.timeout(CLOSING):
                await manager.__aexit__(None, None, None)
        except BaseException:
            log.exception("the app's lifespan failed at its end")

    async def _work(self, state: Any) -> None:
        config, settings = self._config, self._config.settings
        self._broker = broker = await self._connect()
        await self._declare(broker)
        heartbeat = SharedHeartbeat(config.heartbeat)
        rate = WorkerRate(settings.rate, config.rate) if settings.rate and config.rate is not None else None
        start_sampler(heartbeat, config.worker, config.number, self._app.connect)
        self._executor = Executor(
            self._app,
            broker,
            settings=settings,
            session_name=f"{config.worker}/{config.number}",
            runners=self._runners,
            clock=broker.clock,
            random=self._random,
            state=state,
            renews=False,
            burst=config.burst,
            heartbeat=heartbeat,
            rate=rate,
            sleep=None if config.sleep is None else SleepSign(config.sleep),
            send=self._channel.send,
        )
        early, self._early = self._early, []
        for message in early:
            self._hear(message)
        if self._orphaned:
            self._executor.abandon()
        await self._executor.run()
        with contextlib.suppress(DrayError):
            await self._app.client.arrivals.write(broker)
        with contextlib.suppress(BrokerError):
            await broker.close()

    async def _connect(self) -> Broker:
        try:
            return await self._until_reached(self._app.connect)
        except BrokerError as error:
            raise _Broken(f"{type(error).__name__}: {error}") from error

    async def _until_reached(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call while the broker is away."""
        outage = OutageLog("executor", time.monotonic, self._random)
        while True:
            try:
                answer = await call()
            except BrokerAway as error:
                await asyncio.sleep(outage.failed(error))
            else:
                outage.answered()
                return answer

    async def _declare(self, broker: Broker) -> None:
        """Write the schedules, and for a history the parameter names, that the code declares.

        A failure is logged, and does not stop the executor.
        """
        started = self._config.started
        try:
            declared = self._app.declared_schedules()
            await self._until_reached(lambda: reconcile(broker, declared, started=started))
        except Exception:
            log.exception("the schedules that the code declares could not be written")
        if self._app.settings.history_url is not None:
            write_parameters = import_module("dray.history.parameters").write_parameters
            await self._until_reached(lambda: write_parameters(broker, self._app.tasks))

    def _redeclare(self) -> None:
        if self._broker is None:  # it declares them as soon as it is connected
            return
        task = asyncio.create_task(self._declare(self._broker))
        self._redeclaring.add(task)
        task.add_done_callback(self._redeclaring.discard)

    def _runners(self, judge: Judge) -> Runners:
        config = self._config
        threads = Threads(judge)
        settings = config.settings
        children = ChildPool(
            judge,
            spawner(config.app, settings, Path(config.folder)),
            recycle=settings.max_jobs_per_process,
            handful=max(2, HANDFUL // settings.processes),
        )
        return Runners(OnLoop(judge, threads.call, threads), threads, children)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Stop):
            # The process ends by then, whatever hangs (a broker, a lifespan).
            seconds = message.grace / 1000 + CLOSING + LAST_WORDS
            asyncio.get_running_loop().call_later(seconds, leave, ENDED)
        if isinstance(message, Redeclare):
            self._redeclare()
        elif self._executor is None:
            self._early.append(message)
        else:
            self._executor.hear(message)

    def _lose_supervisor(self) -> None:
        self._orphaned = True
        if self._executor is not None:
            self._executor.abandon()


def last_lines(error: BaseException, most: int = 12) -> str:
    """The end of an error's traceback, where people look first."""
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    return "\n".join(lines[-most:])


def leave(code: int) -> NoReturn:
    """End the process now, whatever threads there are."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _ignore_signals(stacks: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _do_nothing)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)


def _do_nothing(signum: int, at: FrameType | None) -> None:
    """Not SIG_IGN, which programs started by tasks would inherit: they could not be terminated."""


def main() -> None:
    run(ExecutorConfig.from_environ())


def run(config: ExecutorConfig) -> NoReturn:
    """Run an executor in this process, to the end of both."""
    forget_fork()
    _ignore_signals(config.stacks)
    connection = socket.socket(fileno=config.channel)
    for fd in config.fds:
        os.set_inheritable(fd, False)
    code, app = FAILED, None
    try:
        app = load_app(config.app, Path(config.folder))
        _ignore_signals(config.stacks)  # again: the app may have set its own handlers
        app.use(msgspec.structs.replace(app.loaded, settings=config.settings))
        logs.set_up(config.settings)
        connection.setblocking(False)
        code = run_to_end(new_event_loop(), ExecutorProgram(config, app).main(connection))
    except AppNotFound as error:
        cause = f"\n{last_lines(error.__cause__)}" if error.__cause__ is not None else ""
        connection.setblocking(True)
        connection.sendall(frame(Broken(f"{error}{cause}")))
        code = BROKEN
    except BaseException:
        logs.set_up(config.settings)
        log.exception("the executor failed")
    if app is not None and app.tracing is not None:
        app.tracing.flush(LAST_WORDS)
    leave(code)


if __name__ == "__main__":
    main()
