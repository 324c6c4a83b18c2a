"""The gRPC server beside HTTP in one process, if it is installed."""

from __future__ import annotations

import asyncio
import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING

from dray.app import App
from dray.errors import DrayError

if TYPE_CHECKING:
    from dray.serve.grpc import GrpcServer

log = logging.getLogger("dray.serve")


class GrpcSidecar:
    """Starts the gRPC server before HTTP is served, and stops it with it."""

    def __init__(self, app: App, *, insecure: bool) -> None:
        self._app, self._insecure = app, insecure
        self.lines: list[str] = []
        """Lines to announce."""
        self._server: GrpcServer | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """An address from the settings must be served; the default one is left out if it cannot be."""
        if self._app.settings.grpc is None:
            return
        try:
            self._server = await self._serve()
        except DrayError as error:
            if self._app.loaded.origins.get("grpc") != "default":
                raise
            log.warning("gRPC is not served: %s", error)
            return
        self.lines.append(f"dray server: {self._server.address}, gRPC (dray.v1)")

    async def _serve(self) -> GrpcServer:
        # Its C core reads this when it is loaded; what it writes to stderr our own errors say better.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            module = import_module("dray.serve.grpc")
        except ModuleNotFoundError as error:
            raise DrayError(f"{error}: `pip install 'dray[grpc]'` installs what it needs") from error
        server: GrpcServer = await module.serve_grpc(self._app, insecure=self._insecure)
        return server

    def stop_soon(self) -> None:
        """Begin to stop; the second time, do not wait for calls in progress."""
        if self._server is not None:
            grace = self._app.settings.shutdown_grace / 1000 if self._stopping is None else 0.0
            self._stopping = asyncio.get_running_loop().create_task(self._server.stop(grace))

    async def stop(self) -> None:
        if self._stopping is None:
            self.stop_soon()
        if self._stopping is not None:
            await self._stopping
