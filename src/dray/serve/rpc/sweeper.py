"""Sweeps while no Python worker does, so that leases of workers in other languages run out too."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Callable

from dray.app import App
from dray.errors import BrokerError, DrayError
from dray.worker.duties.duties import Duties, Sweep
from dray.worker.retrying_broker import RetryingBroker
from dray.worker.supervisor.statistics import WorkerStatistics

log = logging.getLogger("dray.serve")


class ServerSweeper:
    """Leads and sweeps only while no worker leads, and makes way for any worker."""

    def __init__(self, app: App, answers: Callable[[bool], None]) -> None:
        """`answers` is called every second with whether the broker answers."""
        self._app, self._answers = app, answers
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(self._run()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        settings = self._app.settings
        try:
            line = await RetryingBroker.open(self._app.connect, settings.lease / 1000)
        except DrayError as error:  # a mistake, not an outage: waiting does not help
            log.error("the broker cannot be used: %s", error)
            return
        name = f"server-{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(3)}"
        statistics = WorkerStatistics(name)
        duties = Duties(
            line,
            name,
            [Sweep(settings.sweep_interval, statistics.count_event)],
            lease=settings.lease,
            interval=settings.sweep_interval,
            stands_in=True,
        )
        sweeping = asyncio.get_running_loop().create_task(duties.run())
        try:
            while True:
                self._answers(line.answers.is_set())
                await asyncio.sleep(1)
                with contextlib.suppress(BrokerError, OSError):  # the line has logged it
                    await statistics.write(line)
        finally:
            sweeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweeping
            await duties.give_up()
            await line.broker.close()
