"""An app over gRPC: `serve_grpc` starts a server inside the running event loop."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dray.app import App
from dray.errors import DrayError, InvalidInput
from dray.serve.callers import Gate
from dray.serve.rpc.calling import Shared
from dray.serve.rpc.service import NAME, Service
from dray.serve.rpc.upkeep import Upkeep
from dray.serve.shields import is_loopback

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake
    ("grpc.max_send_message_length", -1),
    # A client that vanished without a word is noticed, and what it waited for is freed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
)

log = logging.getLogger("dray.serve")


class GrpcServer:
    """A server that runs. `stop` ends it."""

    def __init__(self, app: App, *, open: bool) -> None:
        settings = app.settings
        self.port, self.address = 0, ""
        self._shared = Shared(app)
        self._health = health.aio.HealthServicer()
        self._upkeep = Upkeep(app, self._answers)
        self._serving: bool | None = None
        self._server = grpc.aio.server(
            options=(*_OPTIONS, ("grpc.max_receive_message_length", settings.max_request_size)),
            maximum_concurrent_rpcs=settings.max_requests + settings.max_waiting + 100,
        )
        service = Service(self._shared, Gate(app, open=open))
        self._server.add_generic_rpc_handlers((service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, bind: str, credentials: grpc.ServerCredentials | None) -> None:
        try:
            if credentials is None:
                self.port = self._server.add_insecure_port(bind)
            else:
                self.port = self._server.add_secure_port(bind, credentials)
        except RuntimeError:
            self.port = 0
        if self.port == 0:
            raise DrayError(f"cannot listen on {bind} for gRPC: the address is in use, or not ours")
        scheme, host = "grpc" if credentials is None else "grpcs", bind.rpartition(":")[0]
        self.address = f"{scheme}://{host}:{self.port}"
        await self._tell(False)
        await self._server.start()
        self._upkeep.start()

    async def stop(self, grace: float = 5.0) -> None:
        """Take no more calls, answer those that wait, let the others end for `grace` seconds."""
        await self._health.enter_graceful_shutdown()
        self._shared.leaving.set()
        self._shared.hub.close()
        await self._server.stop(grace)
        await self._shared.finish()
        await self._upkeep.stop()

    async def wait(self) -> None:
        """Until it has stopped."""
        await self._server.wait_for_termination()

    def _answers(self, serving: bool) -> None:
        if serving is not self._serving:
            self._serving = serving
            self._shared.afterwards(self._tell(serving))

    async def _tell(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in ("", NAME):
            await self._health.set(name, status.SERVING if serving else status.NOT_SERVING)


async def serve_grpc(
    app: App,
    bind: str | None = None,
    *,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    insecure: bool = False,
) -> GrpcServer:
    """Start the gRPC server of an app on `bind` (`host:port`; port 0: any) and return at once.

        server = await serve_grpc(app, "127.0.0.1:9090")
        ...
        await server.stop(grace=5)

    What is not given is taken from the settings `grpc`, `tls_cert`, `tls_key`. Beyond loopback it starts only
    if there are keys, or if `insecure` says that everybody who can reach it may do everything.
    """
    where = bind or app.settings.grpc or ""
    host = where.rpartition(":")[0]
    if not host:
        raise InvalidInput("grpc", where, "host:port is allowed")
    local = is_loopback(host)
    if not local and not insecure and not await _has_keys(app):
        raise InvalidInput(
            "grpc",
            where,
            "it can be reached from other machines, and there are no keys:"
            " `dray keys create NAME --role admin` makes one; --insecure starts it all the same",
        )
    server = GrpcServer(app, open=local or insecure)
    await server.start(where, _credentials(app, tls_cert, tls_key))
    return server


async def _has_keys(app: App) -> bool:
    return bool(app.settings.api_keys) or bool(await app.keys.alist())


def _credentials(
    app: App, tls_cert: str | Path | None, tls_key: str | Path | None
) -> grpc.ServerCredentials | None:
    cert, key = tls_cert or app.settings.tls_cert, tls_key or app.settings.tls_key
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise InvalidInput("tls_key" if key is None else "tls_cert", None, "both are needed, or none")
    try:
        return grpc.ssl_server_credentials([(Path(key).read_bytes(), Path(cert).read_bytes())])
    except OSError as error:
        raise DrayError(f"the server's certificate cannot be read: {error}") from error
