"""gRPC beside HTTP in one process, where it is installed."""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import Protocol

from dray.app import App
from dray.errors import DrayError

log = logging.getLogger("dray.serve")


class Running(Protocol):
    """A server of `dray.serve.grpc`, which not everybody has installed."""

    @property
    def address(self) -> str: ...

    async def stop(self, grace: float = 5.0) -> None: ...


class Beside:
    """The other server: starts before HTTP is served, and stops with it."""

    def __init__(self, app: App, *, insecure: bool) -> None:
        self._app, self._insecure = app, insecure
        self.lines: list[str] = []
        """What there is to announce."""
        self._running: Running | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """An address that was asked for must be served; without being asked, what cannot be is let alone."""
        if self._app.settings.grpc is None:
            return
        try:
            self._running = await self._serve()
        except DrayError as error:
            if self._app.loaded.origins.get("grpc") != "default":
                raise
            log.warning("gRPC is not served: %s", error)
            return
        self.lines.append(f"dray server: {self._running.address}, gRPC (dray.v1)")

    async def _serve(self) -> Running:
        try:
            module = import_module("dray.serve.grpc")
        except ModuleNotFoundError as error:
            raise DrayError(f"{error}: `pip install 'dray[grpc]'` installs what it needs") from error
        running: Running = await module.serve_grpc(self._app, insecure=self._insecure)
        return running

    def stop_soon(self) -> None:
        """Begin to stop; the second time, do not wait for calls that are being worked on."""
        if self._running is not None:
            grace = self._app.settings.shutdown_grace / 1000 if self._stopping is None else 0.0
            self._stopping = asyncio.get_running_loop().create_task(self._running.stop(grace))

    async def stop(self) -> None:
        if self._stopping is None:
            self.stop_soon()
        if self._stopping is not None:
            await self._stopping
