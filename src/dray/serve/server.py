"""`dray server`: an app's service on an address of its own, until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn

from dray.admin.api_keys import keys_in_settings
from dray.app import App
from dray.errors import BrokerError, DrayError
from dray.serve.auth import Access
from dray.serve.browser_security import LOOPBACK, is_loopback
from dray.serve.connections import allowed_connections
from dray.serve.grpc_sidecar import GrpcSidecar
from dray.serve.http import HttpService
from dray.serve.http_listener import HttpListener
from dray.serve.http_protocol import PROTOCOL, HttpProtocol
from dray.settings import Settings
from dray.worker.process import new_event_loop

BACKLOG: Final = 1024
KEEP_ALIVE: Final = 75
Announce = Callable[[str], None]

log = logging.getLogger("dray.serve")


def check_safe(app: App, host: str, *, insecure: bool) -> Access:
    """Whether callers need a key. Without any keys, an address that other machines reach is refused."""
    configured = keys_in_settings(app.settings.api_keys)  # invalid ones are refused at any address
    if insecure or is_loopback(host):
        return "keyless"
    if not configured and not app.keys.list():
        raise DrayError(
            f"{host} can be reached from other machines, and there are no keys: everybody could do all.\n"
            "  `dray keys create NAME --role admin` makes a key, DRAY_API_KEYS names some;\n"
            "  --http 127.0.0.1:8000 is for this machine alone; --insecure starts it all the same"
        )
    return "closed"


async def _check_keys(app: App) -> None:
    """Learn early that there are keys, as the broker may lose its data; log if no caller can be answered."""
    with contextlib.suppress(BrokerError):
        stored = await app.keys.alist()
        if app.keys.ever and not stored and not app.settings.api_keys:
            log.warning(
                "there were keys and now there are none: the server answers nobody until"
                " `dray keys create NAME --role admin` makes one"
            )


def serve(app: App, *, insecure: bool = False, announce: Announce = log.info) -> int:
    """Serve until SIGTERM or SIGINT; a second signal does not wait for requests in progress."""
    settings = app.settings
    # We announce ourselves; and its line for each malformed request could fill the log.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    host, _, port = settings.http.rpartition(":")
    access = check_safe(app, host, insecure=insecure)
    listening = _bind(host.strip("[]"), int(port))
    try:
        service = HttpService(app, access=access, hosts=_hosts(settings, host))
        sidecar = GrpcSidecar(app, insecure=insecure)
        server = _Server(_config(service, settings), service, sidecar)
        scheme = "https" if settings.tls_cert else "http"
        shown = f"[{host.strip('[]')}]" if ":" in host.strip("[]") else host
        address = f"{scheme}://{shown}:{listening.getsockname()[1]}"
        hello = f"dray server: {address}/api, for {app.name}; stop it with Ctrl-C"
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_run(app, server, sidecar, listening, [hello], announce))
    finally:
        listening.close()
    announce("dray server: stopped")
    return 0


async def _run(
    app: App,
    server: _Server,
    sidecar: GrpcSidecar,
    listening: socket.socket,
    lines: list[str],
    announce: Announce,
) -> None:
    await sidecar.start()
    checking = asyncio.ensure_future(_check_keys(app))
    try:
        for line in (*lines, *sidecar.lines):
            announce(line)
        await server.serve(sockets=[listening])
    finally:
        checking.cancel()
        await sidecar.stop()


def _hosts(settings: Settings, host: str) -> frozenset[str] | None:
    """The host names it answers to; None: any."""
    if is_loopback(host):
        return frozenset({*LOOPBACK, host.lower(), *settings.allowed_hosts})
    return frozenset({host.lower(), *LOOPBACK, *settings.allowed_hosts}) if settings.allowed_hosts else None


def _bind(host: str, port: int) -> socket.socket:
    """Listen before uvicorn does, so that an address in use is our error, and the port can be announced."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise DrayError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listening


def _config(service: HttpService, settings: Settings) -> uvicorn.Config:
    try:
        config = uvicorn.Config(
            service,
            http=PROTOCOL,
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=max(1, settings.shutdown_grace // 1000),
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        config.load()
    except (OSError, ValueError) as error:
        raise DrayError(f"tls_cert={settings.tls_cert}, tls_key={settings.tls_key}: {error}") from error
    return config


class _Server(uvicorn.Server):
    """uvicorn with our listener, which ends streams when it stops and does not exit with a failure."""

    def __init__(self, config: uvicorn.Config, service: HttpService, sidecar: GrpcSidecar) -> None:
        super().__init__(config)
        self._service, self._sidecar = service, sidecar
        self._listeners: list[HttpListener] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve with our own listeners: those of uvicorn and asyncio accept without a limit."""
        await super().startup(sockets=[])
        most, _ = allowed_connections()
        self._listeners = [HttpListener(one, self.config.ssl, self._protocol, most) for one in sockets or ()]

    def _protocol(self) -> HttpProtocol:
        return PROTOCOL(self.config, self.server_state, self.lifespan.state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in self._listeners:
            listener.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        self._service.close()
        self._sidecar.stop_soon()
