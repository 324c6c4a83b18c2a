"""A client that speaks just enough HTTP/2 to begin gRPC calls and hold back the end of each."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, WINDOW = 0, 1, 3, 4, 6, 8
FRAME = 16_384


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


def header(name: str, value: str) -> bytes:
    """A literal without compression."""
    parts = b"".join(bytes((len(text),)) + text.encode() for text in (name, value))
    return b"\x00" + parts


class HalfSent:
    """Calls on one connection. `send` goes on until the server takes no more."""

    def __init__(self, port: int, calls: int, size: int, path: str, key: str | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._inbox = b""
        self._initial = 65_535
        self._window = 65_535
        self._streams = {2 * number + 1: 0 for number in range(calls)}
        self._windows = dict.fromkeys(self._streams, 0)
        self._size = size
        self.answered: set[int] = set()
        """Calls that the server has ended, or begun to answer."""
        self._socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        fields |= {"content-type": "application/grpc", "te": "trailers"}
        if key is not None:
            fields["authorization"] = f"Bearer {key}"
        block = b"".join(header(name, value) for name, value in fields.items())
        self._hear(0.2)
        for stream in self._streams:
            self._socket.sendall(frame(HEADERS, 4, stream, block))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    @property
    def sent(self) -> int:
        return sum(self._streams.values())

    def send(self, seconds: float) -> None:
        """All but the last kB of each message, as far as windows allow and the server goes on reading."""
        end = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                if not self._send_some():
                    self._hear(0.05)

    def _send_some(self) -> bool:
        some = False
        for stream, sent in self._streams.items():
            room = min(
                self._window, self._initial + self._windows[stream] - sent, FRAME, self._size - 1024 - sent
            )
            if room <= 0 or stream in self.answered:
                continue
            data = (b"\0" + struct.pack(">I", self._size) if sent == 0 else b"") + b"x" * room
            self._socket.sendall(frame(DATA, 0, stream, data[:room]))
            self._window -= room
            self._streams[stream] += room
            some = True
        self._hear(0)
        return some

    def _hear(self, seconds: float) -> None:
        while select.select([self._socket], [], [], seconds)[0]:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("closed")
            self._inbox += data
            while len(self._inbox) >= 9:
                length = int.from_bytes(self._inbox[:3], "big")
                if len(self._inbox) < 9 + length:
                    break
                kind, flags = self._inbox[3], self._inbox[4]
                stream = int.from_bytes(self._inbox[5:9], "big")
                self._take(kind, flags, stream, self._inbox[9 : 9 + length])
                self._inbox = self._inbox[9 + length :]
            seconds = 0

    def _take(self, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == WINDOW and stream == 0:
            self._window += int.from_bytes(body, "big")
        elif kind == WINDOW:
            self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(body, "big")
        elif kind == SETTINGS and not flags & 1:
            for place in range(0, len(body), 6):
                name, value = struct.unpack(">HI", body[place : place + 6])
                if name == 4:
                    self._initial = value
            self._socket.sendall(frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self._socket.sendall(frame(PING, 1, 0, body))
        elif kind in (HEADERS, RESET):
            self.answered.add(stream)
