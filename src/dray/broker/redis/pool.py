"""Connections to one server that threads share; each is lent to one thread for one exchange.

A thread holds at most one connection and waits for nothing else meanwhile, so there is no deadlock.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from dray.broker.redis.connection import BlockingConnection
from dray.broker.redis.errors import all_lent
from dray.broker.redis.options import Address

_Connect = Callable[[Address], Coroutine[Any, Any, BlockingConnection]]


class Pool:
    """At most `size` connections, opened on demand and kept until `close`."""

    def __init__(self, address: Address, size: int, patience: float) -> None:
        self._address, self._size, self._patience = address, size, patience
        self._idle: list[BlockingConnection] = []
        self._lent: dict[int, BlockingConnection | None] = {}
        """By thread id. None: the thread is connecting."""
        self._returned = threading.Condition(threading.Lock())
        self._closed = False

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
        with self._returned:
            # An asynchronous exception kept this thread from giving it back.
            lost = self._lent.pop(me, None)
            if lost is not None:
                lost.close()
            while True:
                connection = self._open_idle()
                if connection is not None or len(self._lent) + len(self._idle) < self._size:
                    self._lent[me] = connection
                    return connection
                if not self._returned.wait(self._patience):
                    raise all_lent(self._address, self._size, self._patience)

    def _open_idle(self) -> BlockingConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
        return None

    def give_back(self, connection: BlockingConnection | None) -> None:
        with self._returned:
            self._lent.pop(threading.get_ident(), None)
            self._keep(connection)
            self._returned.notify()

    def spare(self) -> BlockingConnection | None:
        """An idle open connection, which then belongs to the caller, or None. Does not wait."""
        with self._returned:
            return self._open_idle()

    def add(self, connection: BlockingConnection) -> None:
        """Keep a connection that was opened elsewhere, or close it if there is no room."""
        with self._returned:
            if len(self._lent) + len(self._idle) < self._size:
                self._keep(connection)
                self._returned.notify()
            else:
                connection.close()

    def _keep(self, connection: BlockingConnection | None) -> None:
        if connection is None or connection.closed:
            return
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Lent connections are closed when they come back. Takes no lock, so a forked child may call it."""
        self._closed = True
        self.clear()

    def clear(self) -> None:
        """Close the idle ones."""
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()
