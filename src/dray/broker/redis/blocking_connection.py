"""Connections without an event loop: their coroutines never suspend, and threads share those to one server.

Each is lent to one thread for one exchange. A thread holds at most one and waits for nothing else meanwhile,
so there is no deadlock.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import hiredis

from dray.broker.redis.connection import SILENCE, Reply, greet
from dray.broker.redis.errors import all_lent, cut, replaced, silent, unreachable
from dray.broker.redis.options import Address, Options


class BlockingConnection:
    """A connection without an event loop: its coroutines never suspend."""

    def __init__(self, address: Address, sock: socket.socket, timeout: float) -> None:
        self.address, self.mode = address, ""
        self._socket: socket.socket | None = sock
        self.closed = False
        self._reader = hiredis.Reader()
        self._timeout = self._waits = timeout
        sock.settimeout(timeout)
        self.on_silence: Callable[[Address], bool] | None = None
        """Called while a call goes unanswered: true if the cluster replaced the node."""
        self._buffer = bytearray(65_536)  # reused: a new one costs more than reading a reply
        self._watch = select.poll()
        self._watch.register(sock, select.POLLIN)

    @classmethod
    async def connect(
        cls,
        address: Address,
        options: Options,
        on_silence: Callable[[Address], bool] | None = None,
        within: float | None = None,
    ) -> BlockingConnection:
        seconds = options.connect_timeout if within is None else within
        connection = cls(address, _socket(address, options, seconds, on_silence), seconds)
        connection.on_silence = on_silence
        try:
            await greet(connection, options)
        except BaseException:
            connection.close()
            raise
        connection._timeout = options.timeout
        return connection

    @property
    def open(self) -> bool:
        """False also if the server closed the connection."""
        if self._socket is not None and self._watch.poll(0):
            self.close()
        return self._socket is not None

    async def exchange(self, data: bytes, count: int, within: float | None = None) -> list[Reply]:
        seconds = self._timeout if within is None else within
        try:
            self.send(data)
            if count == 1:
                return [self.receive(seconds)]
            return [self.receive(seconds) for _ in range(count)]
        except BaseException:  # also a signal: the next call must not read this reply
            self.close()
            raise

    def _wait_for(self, seconds: float, sock: socket.socket) -> None:
        """Set the timeout only when it changes: each change is a system call."""
        if seconds != self._waits:
            sock.settimeout(seconds)
            self._waits = seconds

    def send(self, data: bytes) -> None:
        if self._socket is None:
            raise cut(self.address)
        try:
            if self._timeout != self._waits:
                self._wait_for(self._timeout, self._socket)
            self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise unreachable(self.address, error) from error

    def receive(self, seconds: float) -> Reply:
        """The next reply. A reply that stops halfway closes the connection."""
        while (reply := self._reader.gets()) is False:
            sock = self._socket
            if sock is None:
                raise cut(self.address)
            try:
                if self.on_silence is None and seconds == self._waits:
                    size = sock.recv_into(self._buffer)
                else:
                    size = self._read(sock, seconds)
            except TimeoutError:
                self.close()
                raise silent(self.address, seconds) from None
            except OSError as error:
                self.close()
                raise cut(self.address) from error
            if not size:
                self.close()
                raise cut(self.address)
            self._reader.feed(self._buffer, 0, size)  # type: ignore[arg-type]  # its stubs know bytes only
        return reply

    def _read(self, sock: socket.socket, seconds: float) -> int:
        """Read into the buffer. On a cluster, `on_silence` is called while nothing comes."""
        on_silence = self.on_silence
        end = time.monotonic() + (seconds if on_silence else 0)
        self._wait_for(min(seconds, SILENCE) if on_silence else seconds, sock)
        while True:
            try:
                return sock.recv_into(self._buffer)
            except TimeoutError:
                if on_silence is None or time.monotonic() >= end:
                    raise
                if on_silence(self.address):
                    self.close()
                    raise replaced(self.address) from None

    def readable(self, seconds: float) -> bool:
        """True if data arrives within so many seconds. Safe while another thread sends."""
        if self._socket is None:
            return True
        pending = getattr(self._socket, "pending", None)  # bytes that TLS has decrypted already
        return bool(pending and pending()) or _ready(self._socket, select.POLLIN, seconds)

    def next_message(self) -> Reply | None:
        """The next published message that has arrived, or None."""
        reply = self._reader.gets()
        if reply is not False:
            return reply
        if self._socket is None:
            raise cut(self.address)
        return self.receive(self._timeout) if self.readable(0) else None

    def close(self) -> None:
        self.closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


class Pool:
    """At most `size` connections, opened on demand and kept until `close`."""

    def __init__(self, address: Address, size: int, patience: float) -> None:
        self._address, self._size, self._patience = address, size, patience
        self._idle: list[BlockingConnection] = []
        self._lent: dict[int, BlockingConnection | None] = {}
        """By thread id. None: the thread is connecting."""
        self._lock = threading.Lock()
        self._returned = threading.Condition(self._lock)
        self._waiting = 0
        self._closed = False

    def lend(self) -> BlockingConnection | None:
        """An idle connection for the calling thread, which must `give_back` it, or None: see `borrow`."""
        me = threading.get_ident()
        with self._lock:
            connection = None if me in self._lent else self._open_idle()
            if connection is not None:
                self._lent[me] = connection
            return connection

    async def borrow(
        self, connect: Callable[[Address], Coroutine[Any, Any, BlockingConnection]]
    ) -> BlockingConnection:
        """A connection for the calling thread, once one is free. The caller must `give_back` it."""
        connection = self._wait_for_one()
        if connection is None:
            try:
                connection = await connect(self._address)
            except BaseException:
                self.give_back(None)
                raise
            self._lent[threading.get_ident()] = connection
        return connection

    def _wait_for_one(self) -> BlockingConnection | None:
        me = threading.get_ident()
        with self._lock:
            # An asynchronous exception kept this thread from giving it back.
            lost = self._lent.pop(me, None)
            if lost is not None:
                lost.close()
            while True:
                connection = self._open_idle()
                if connection is not None or len(self._lent) + len(self._idle) < self._size:
                    self._lent[me] = connection
                    return connection
                self._waiting += 1
                try:
                    if not self._returned.wait(self._patience):
                        raise all_lent(self._address, self._size, self._patience)
                finally:
                    self._waiting -= 1

    def _open_idle(self) -> BlockingConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        return None

    def give_back(self, connection: BlockingConnection | None) -> None:
        with self._lock:
            self._lent.pop(threading.get_ident(), None)
            self._keep(connection)

    def spare(self) -> BlockingConnection | None:
        """An idle open connection, which then belongs to the caller, or None. Does not wait."""
        with self._lock:
            return self._open_idle()

    def add(self, connection: BlockingConnection) -> None:
        """Keep a connection that was opened elsewhere, or close it if there is no room."""
        with self._lock:
            if len(self._lent) + len(self._idle) < self._size:
                self._keep(connection)
            else:
                connection.close()

    def _keep(self, connection: BlockingConnection | None) -> None:
        if connection is not None and not connection.closed:
            if self._closed:
                connection.close()
            else:
                self._idle.append(connection)
        if self._waiting:
            self._returned.notify()

    def close(self) -> None:
        """Lent connections are closed when they come back. Takes no lock, so a forked child may call it."""
        self._closed = True
        self.clear()

    def clear(self) -> None:
        """Close the idle ones."""
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


def _socket(
    address: Address, options: Options, seconds: float, on_silence: Callable[[Address], bool] | None
) -> socket.socket:
    try:
        unix = address.path is not None
        sock = socket.socket(socket.AF_UNIX) if unix else _dial(address, seconds, on_silence)
    except OSError as error:
        raise unreachable(address, error) from error
    try:
        sock.settimeout(seconds)
        if address.path is not None:
            sock.connect(address.path)
            return sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = options.context()
        return sock if context is None else context.wrap_socket(sock, server_hostname=address.host)
    except OSError as error:
        sock.close()
        raise unreachable(address, error, options.tls) from error


def _dial(address: Address, seconds: float, on_silence: Callable[[Address], bool] | None) -> socket.socket:
    if on_silence is None:
        return socket.create_connection((address.host, address.port), seconds)
    end = time.monotonic() + seconds
    failure: OSError | None = None
    for family, kind, protocol, _, place in socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            code = sock.connect_ex(place)
            while code == errno.EINPROGRESS and not _ready(sock, select.POLLOUT, SILENCE):
                if time.monotonic() >= end:
                    raise TimeoutError
                if on_silence(address):
                    raise replaced(address)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if code == errno.EINPROGRESS else code
            if not code:
                return sock
            failure = OSError(code, os.strerror(code))
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise failure or OSError(f"{address.host} has no address")


def _ready(sock: socket.socket, event: int, seconds: float) -> bool:
    """True if the socket becomes readable or writable in time. Unlike `select`, takes any file number."""
    watch = select.poll()
    try:
        watch.register(sock, event)
        return bool(watch.poll(math.ceil(max(0.0, seconds) * 1000)))
    except (OSError, ValueError):  # closed by another thread: the next read fails
        return True
