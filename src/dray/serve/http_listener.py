"""Accepts connections, and ends those whose clients keep the server waiting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from dray.serve.connections import ConnectionLimit, origin
from dray.serve.http_protocol import HttpProtocol

HEADER_SECONDS: Final = 20.0
"""Time in which a client must send the headers of a request, or finish the TLS handshake."""
STALL_SECONDS: Final = 30.0
"""Time that a client may read nothing of what was sent to it."""
CHECK_EVERY: Final = 1.0
LOG_EVERY: Final = 10.0
ACCEPT_STEP: Final = 16
"""Connections accepted in one turn of the loop."""
PAUSE: Final = 0.5
"""Seconds without accepting after the system had no descriptor left."""
_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
)

log = logging.getLogger("dray.serve")


class HttpConnection:
    """An accepted connection, from its TLS handshake on."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.protocol: HttpProtocol | None = None
        self.opening: asyncio.Task[None] | None = None
        self._since = self._read_at = time.monotonic()
        self._unread = 0

    @property
    def busy(self) -> bool:
        """A request is in progress."""
        cycle = None if self.protocol is None else self.protocol.cycle
        return cycle is not None and not cycle.response_complete

    def is_stuck(self, now: float) -> bool:
        """The client takes too long to send its headers, or to read its reply."""
        protocol = self.protocol
        if protocol is None or protocol.transport is None:  # the TLS handshake has a timeout of its own
            return False
        unread = protocol.transport.get_write_buffer_size()
        if not unread or unread < self._unread:
            self._read_at = now
        self._unread = unread
        # Between two requests uvicorn has a timer of its own.
        if self.busy or protocol.timeout_keep_alive_task is not None:
            self._since = now
        return now - self._read_at > STALL_SECONDS or now - self._since > HEADER_SECONDS

    def end(self) -> None:
        if self.protocol is not None and self.protocol.transport is not None:
            self.protocol.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


class HttpListener:
    """Accepts the connections of a listening socket until it is closed."""

    def __init__(
        self,
        listening: socket.socket,
        tls: ssl.SSLContext | None,
        make: Callable[[], HttpProtocol],
        most: int,
    ) -> None:
        self._listening, self._tls, self._make = listening, tls, make
        self.connections: ConnectionLimit[HttpConnection] = ConnectionLimit(most)
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._counts: dict[str, int] = {}
        listening.setblocking(False)
        self._resume()
        self._end_stuck()

    def close(self) -> None:
        """Accept no more."""
        self._loop.remove_reader(self._listening)
        for timer in self._timers.values():
            timer.cancel()
        for connection in self.connections.all():
            if connection.protocol is None:
                connection.end()

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPT_STEP):
            try:
                sock, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, or no memory, for one more
                self._count(f"accepting failed ({error.strerror})")
                self._loop.remove_reader(self._listening)
                self._timers["resume"] = self._loop.call_later(PAUSE, self._resume)
                return
            sock.setblocking(False)
            self._admit(sock, HttpConnection(origin(address[0])))

    def _admit(self, sock: socket.socket, connection: HttpConnection) -> None:
        if self.connections.add(connection):
            connection.opening = self._loop.create_task(self._open(sock, connection))
            return
        self._count("refused, as all places are taken")
        if self._tls is None:
            with contextlib.suppress(OSError):
                sock.send(_BUSY)
        sock.close()

    async def _open(self, sock: socket.socket, connection: HttpConnection) -> None:
        protocol = self._make()
        protocol.ended = lambda: self.connections.remove(connection)
        connection.protocol = protocol
        timeout = None if self._tls is None else HEADER_SECONDS
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except (OSError, asyncio.CancelledError):
            self.connections.remove(connection)
            sock.close()

    def _end_stuck(self) -> None:
        """End the connections whose clients keep the server waiting."""
        now = time.monotonic()
        for connection in self.connections.all():
            if connection.is_stuck(now):
                self._count("ended, as their clients kept the server waiting")
                connection.end()
        self._timers["check"] = self._loop.call_later(CHECK_EVERY, self._end_stuck)

    def _count(self, what: str) -> None:
        """Logged as one line for many connections: any client could fill the log otherwise."""
        self._counts[what] = self._counts.get(what, 0) + 1
        if "log" not in self._timers:
            self._timers["log"] = self._loop.call_later(LOG_EVERY, self._log_counts)

    def _log_counts(self) -> None:
        del self._timers["log"]
        counted = "; ".join(f"{what}: {count}" for what, count in self._counts.items())
        log.warning("connections (%d of %d): %s", self.connections.taken, self.connections.most, counted)
        self._counts.clear()
