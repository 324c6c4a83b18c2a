"""A proxy between a broker and its server: it passes bytes on until a test cuts the connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from redis_server import free_port


class Proxy:
    """Listens on `port` and passes everything on to a server."""

    def __init__(self, target: int) -> None:
        self.port, self._target = free_port(), target
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._cut_after: int | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_replies_after(self, count: int) -> None:
        """Pass on so many bytes of what the server says next, then cut that connection."""
        self._cut_after = count

    def lead_to(self, target: int) -> None:
        """From now on connect to another server, as a name does that moves with the primary."""
        self._target = target

    def cut(self) -> None:
        """Cut every connection now."""
        with self._lock:
            for sock in self._open:
                _hang_up(sock)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if replies and self._cut_after is not None:
                    data, self._cut_after = data[: self._cut_after], None
                    sink.sendall(data)
                    break
                sink.sendall(data)
        _hang_up(source)
        _hang_up(sink)
        with self._lock:
            self._open -= {source, sink}


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


@contextlib.contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    made = Proxy(target)
    try:
        yield made
    finally:
        made.close()
