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

from dray.app import App
from dray.errors import DrayError
from dray.keys import keys_in_settings
from dray.serve.beside import Beside
from dray.serve.http import Service
from dray.serve.shields import LOOPBACK, is_loopback
from dray.settings import Settings
from dray.worker.loops import new_event_loop

BACKLOG: Final = 1024
KEEP_ALIVE: Final = 75
Announce = Callable[[str], None]

log = logging.getLogger("dray.serve")


def check_safe(app: App, host: str, *, insecure: bool) -> bool:
    """Whether the server is open to all who reach it; refused where that may be more than this machine."""
    configured = keys_in_settings(app.settings.api_keys)  # wrong ones are refused here, whatever the address
    if insecure or is_loopback(host):
        return True
    if not configured and not app.keys.list():
        raise DrayError(
            f"{host} can be reached from other machines, and there are no keys: everybody could do all.\n"
            "  `dray keys create NAME --role admin` makes a key, DRAY_API_KEYS names some;\n"
            "  --http 127.0.0.1:8000 is for this machine alone; --insecure starts it all the same"
        )
    return False


def serve(app: App, *, insecure: bool = False, announce: Announce = log.info) -> int:
    """Serve until SIGTERM or SIGINT; a second signal does not wait for requests that are being worked on."""
    settings = app.settings
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # what it says of itself we say in our own words
    host, _, port = settings.http.rpartition(":")
    open = check_safe(app, host, insecure=insecure)
    listening = _bind(host.strip("[]"), int(port))
    try:
        service = Service(app, open=open, hosts=_hosts(settings, host))
        beside = Beside(app, insecure=insecure)
        server = _Server(_config(service, settings), service, beside)
        scheme = "https" if settings.tls_cert else "http"
        shown = f"[{host.strip('[]')}]" if ":" in host.strip("[]") else host
        address = f"{scheme}://{shown}:{listening.getsockname()[1]}"
        hello = f"dray server: {address}/api, for {app.name}; stop it with Ctrl-C"
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_run(server, beside, listening, [hello], announce))
    finally:
        listening.close()
    announce("dray server: stopped")
    return 0


async def _run(
    server: _Server, beside: Beside, listening: socket.socket, lines: list[str], announce: Announce
) -> None:
    await beside.start()
    try:
        for line in (*lines, *beside.lines):
            announce(line)
        await server.serve(sockets=[listening])
    finally:
        await beside.stop()


def _hosts(settings: Settings, host: str) -> frozenset[str] | None:
    """The names it answers to; None: any."""
    if is_loopback(host):
        return frozenset({*LOOPBACK, host.lower(), *settings.allowed_hosts})
    return frozenset({host.lower(), *LOOPBACK, *settings.allowed_hosts}) if settings.allowed_hosts else None


def _bind(host: str, port: int) -> socket.socket:
    """Listen here, so that an address in use is an error of ours, and the port is known when it is said."""
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


def _config(service: Service, settings: Settings) -> uvicorn.Config:
    try:
        config = uvicorn.Config(
            service,
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
    """uvicorn, with streams that end when it stops and an exit that is no failure."""

    def __init__(self, config: uvicorn.Config, service: Service, beside: Beside) -> None:
        super().__init__(config)
        self._service, self._beside = service, beside

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
        self._beside.stop_soon()
