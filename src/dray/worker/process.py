"""The main program of an executor process: `python -m dray.worker.process`, started by a supervisor.

It obeys the channel, not signals: a Ctrl-C reaches every process of a terminal, and only the supervisor
decides what it means. It leaves with `os._exit`, because threads may still run code that cannot be stopped.
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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec

from dray.app import App
from dray.broker.verbs import Broker
from dray.errors import AppNotFound, BrokerAway, BrokerError
from dray.loading import load_app
from dray.reconciling import reconcile
from dray.worker import logs
from dray.worker.channel import Broken, Channel, FromSupervisor, Message, Stop, frame
from dray.worker.children import Children
from dray.worker.config import ExecutorConfig
from dray.worker.contact import Contact
from dray.worker.executor import Executor
from dray.worker.guard import watch_peer
from dray.worker.loops import new_event_loop, run_to_end
from dray.worker.pace import Pace
from dray.worker.pulse import Pulse
from dray.worker.run import Judge
from dray.worker.runners import OnLoop, Runners
from dray.worker.threads import Threads

ENDED: Final = 0
FAILED: Final = 1
BROKEN: Final = 2
ORPHANED: Final = 3
LAST_WORDS: Final = 1.5
"""Seconds to send what is finished after the supervisor is gone."""
CLOSING: Final = 10.0
"""Seconds that the app's lifespan may take to end."""

log = logging.getLogger("dray.worker")


class _Broken(Exception):
    """It cannot start, and trying again will not help."""


class Process:
    """One executor process from start to end."""

    def __init__(self, config: ExecutorConfig, app: App) -> None:
        self._config, self._app = config, app
        self._executor: Executor | None = None
        self._told: list[Message] = []
        self._orphaned = False
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
        dice = random.Random()  # noqa: S311 (jitter)
        broker = await self._connect(dice)
        await self._declare(broker, dice)
        pulse = Pulse(config.pulse)
        self._executor = Executor(
            self._app,
            broker,
            settings=settings,
            session_name=f"{config.worker}/{config.number}",
            runners=self._runners,
            clock=broker.clock,
            random=dice.random,
            state=state,
            renews=False,
            burst=config.burst,
            pulse=pulse,
            pace=None if config.pace is None or settings.rate is None else Pace(settings.rate, config.pace),
            say=self._channel.send,
        )
        told, self._told = self._told, []
        for message in told:
            self._hear(message)
        if self._orphaned:
            self._executor.abandon()
        await self._executor.run()
        with contextlib.suppress(BrokerError):
            await broker.close()

    async def _connect(self, dice: random.Random) -> Broker:
        contact = Contact("executor", time.monotonic, dice.random)
        while True:
            try:
                broker = await self._app.connect()
            except BrokerAway as error:
                await asyncio.sleep(contact.lost(error))
            except BrokerError as error:
                raise _Broken(f"{type(error).__name__}: {error}") from error
            else:
                contact.held()
                return broker

    async def _declare(self, broker: Broker, dice: random.Random) -> None:
        """Write down the schedules that the code declares. One that does not fit is no reason not to work."""
        contact = Contact("executor", time.monotonic, dice.random)
        while True:
            try:
                await reconcile(broker, self._app.declared_schedules(), started=self._config.started)
            except BrokerAway as error:
                await asyncio.sleep(contact.lost(error))
                continue
            except Exception:
                log.exception("the schedules that the code declares could not be written")
            contact.held()
            return

    def _runners(self, judge: Judge) -> Runners:
        config = self._config
        threads = Threads(judge)
        children = Children(judge, config.app, config.settings, Path(config.folder))
        return Runners(OnLoop(judge, threads.call, threads), threads, children)

    def _hear(self, message: Message) -> None:
        if isinstance(message, Stop):
            # Whatever hangs by then (a broker, a lifespan) does not keep the process from ending.
            seconds = message.grace / 1000 + CLOSING + LAST_WORDS
            asyncio.get_running_loop().call_later(seconds, leave, ENDED)
        if self._executor is None:
            self._told.append(message)
        else:
            self._executor.hear(message)

    def _lose_supervisor(self) -> None:
        self._orphaned = True
        if self._executor is not None:
            self._executor.abandon()


def last_lines(error: BaseException, most: int = 12) -> str:
    """The end of an error's traceback, which is where people look first."""
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    return "\n".join(lines[-most:])


def leave(code: int) -> None:
    """End now, whatever threads there are."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _heed_no_signals(stacks: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _deaf)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)


def _deaf(signum: int, at: FrameType | None) -> None:
    """Not SIG_IGN: what a task starts would inherit that, and could not be terminated any more."""


def main() -> None:
    config = ExecutorConfig.from_environ()
    _heed_no_signals(config.stacks)
    connection = socket.socket(fileno=config.channel)
    for fd in config.fds:
        os.set_inheritable(fd, False)
    code, app = FAILED, None
    try:
        app = load_app(config.app, Path(config.folder))
        _heed_no_signals(config.stacks)  # whatever the app has set up for itself
        app.use(msgspec.structs.replace(app.loaded, settings=config.settings))
        logs.set_up(config.settings.log_level, config.settings.log_format)
        connection.setblocking(False)
        code = run_to_end(new_event_loop(), Process(config, app).main(connection))
    except AppNotFound as error:
        cause = f"\n{last_lines(error.__cause__)}" if error.__cause__ is not None else ""
        connection.setblocking(True)
        connection.sendall(frame(Broken(f"{error}{cause}")))
        code = BROKEN
    except BaseException:
        logs.set_up(config.settings.log_level, config.settings.log_format)
        log.exception("the executor failed")
    if app is not None and app.tracing is not None:
        app.tracing.flush(LAST_WORDS)
    leave(code)


if __name__ == "__main__":
    main()
