"""An app over gRPC: `serve_grpc` starts a server inside the running event loop."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from dray.app import App
from dray.errors import DrayError, InvalidInput
from dray.serve.auth import Access
from dray.serve.browser_security import is_loopback
from dray.serve.connections import allowed_connections
from dray.serve.rpc.call_context import CallState
from dray.serve.rpc.request_reader import PUBLIC_MAX, PublicServices
from dray.serve.rpc.service import NAME, GrpcService
from dray.serve.rpc.sweeper import ServerSweeper

_add_reflection: Any = reflection_pb2_grpc.add_ServerReflectionServicer_to_server
_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # a second server on the same port is a mistake
    ("grpc.max_send_message_length", -1),
    # A client that vanished silently is noticed, and what it waited for is freed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    # Memory for callers before their key was checked: a window of 64 KiB each, which does not grow.
    ("grpc.http2.bdp_probe", 0),
    # Idle connections end: their number is limited.
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 60_000),
)

log = logging.getLogger("dray.serve")


class GrpcServer:
    """A running server. `stop` ends it."""

    def __init__(self, app: App, access: Access) -> None:
        settings = app.settings
        self.port, self.address = 0, ""
        self._state = CallState(app)
        self._health = health.aio.HealthServicer()
        self._sweeper = ServerSweeper(app, self._broker_answers)
        self._serving: bool | None = None
        calls = settings.max_requests + settings.max_waiting + PUBLIC_MAX
        _, connections = allowed_connections()
        self._server = grpc.aio.server(
            options=(
                *_OPTIONS,
                ("grpc.max_receive_message_length", settings.max_request_size),
                ("grpc.max_concurrent_streams", calls),
                ("grpc.max_allowed_incoming_connections", connections),
            ),
            maximum_concurrent_rpcs=calls,
        )
        self._server.add_generic_rpc_handlers((GrpcService(self._state, access).handler(),))
        public: Any = PublicServices(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, public)
        names = (NAME, health.SERVICE_NAME, reflection.SERVICE_NAME)
        _add_reflection(reflection.aio.ReflectionServicer(names), public)

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
        await self._set_health(False)
        await self._server.start()
        self._sweeper.start()

    async def stop(self, grace: float = 5.0) -> None:
        """Take no more calls, answer those that wait, let the others end for `grace` seconds."""
        await self._health.enter_graceful_shutdown()
        self._state.stopping.set()
        self._state.events.close()
        await self._server.stop(grace)
        await self._state.finish()
        await self._sweeper.stop()

    async def wait(self) -> None:
        """Until it has stopped."""
        await self._server.wait_for_termination()

    def _broker_answers(self, serving: bool) -> None:
        if serving is not self._serving:
            self._serving = serving
            self._state.run_in_background(self._set_health(serving))

    async def _set_health(self, serving: bool) -> None:
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
    if there are keys, or if `insecure` says that everybody who can reach it may do everything. Once there
    was a key, no caller is answered without one.
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
    server = GrpcServer(app, "keyless" if local or insecure else "closed")
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
