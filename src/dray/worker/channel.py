"""What supervisor and executor say to each other: small messages, each with its length in front.

They travel over a socket pair that the executor inherits. Its end (the peer is gone) is a message too: an
executor whose supervisor died stops by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import msgspec

from dray.broker.verbs import Ref
from dray.job import Outcome
from dray.stats import Tallies

_LENGTH: Final = 4
_MOST: Final = 64 * 1024 * 1024


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages."""


# executor → supervisor


class Started(Message, frozen=True, tag=True, array_like=True):
    """The app is imported and a session is open. Sent again whenever the session changes."""

    session: str
    epoch: int
    tasks: dict[str, tuple[str, int]]
    """Task name → file and first line of its function, to recognise it in a stack."""


class Broken(Message, frozen=True, tag=True, array_like=True):
    """The executor cannot start, and trying again will not help until somebody mends it."""

    reason: str


class Retiring(Message, frozen=True, tag=True, array_like=True):
    """It takes no more jobs, ends when the ones it has are done, and wants to be replaced now."""

    reason: str


class Stuck(Message, frozen=True, tag=True, array_like=True):
    """Everything else is done; these runs are past their time in threads that nobody can stop.

    The supervisor kills the executor and then settles them in its name: not before, or a job could
    start elsewhere while it still runs here.
    """

    outcomes: list[Outcome]


class Idle(Message, frozen=True, tag=True, array_like=True):
    """For `--burst`: whether there was nothing to take and nothing runs."""

    idle: bool


class Counted(Message, frozen=True, tag=True, array_like=True):
    """How many runs ended so far in this process, by what they came to."""

    succeeded: int
    failed: int
    running: int


class Measured(Message, frozen=True, tag=True, array_like=True):
    """What is new about its runs, by task; sent every second in which there is something."""

    tasks: Tallies
    lag: float
    """Seconds by which its event loop was late at most."""


# supervisor → executor


class Stop(Message, frozen=True, tag=True, array_like=True):
    """Take nothing more; let what runs finish for `grace` milliseconds, then give the rest back."""

    grace: int


class Told(Message, frozen=True, tag=True, array_like=True):
    """What the supervisor heard for this session while it renewed it."""

    session: str
    lost: tuple[Ref, ...]
    cancelled: tuple[Ref, ...]


class Lapsed(Message, frozen=True, tag=True, array_like=True):
    """The session is gone from the broker (lease over): drop what it held, go on under a new name."""

    session: str


FromExecutor = Started | Broken | Retiring | Stuck | Idle | Counted | Measured
FromSupervisor = Stop | Told | Lapsed

_encode = msgspec.msgpack.Encoder().encode


def frame(message: Message) -> bytes:
    body = _encode(message)
    return len(body).to_bytes(_LENGTH, "big") + body


class Channel(asyncio.Protocol):
    """One end of the pair, on an event loop. `heard` gets each message, `ended` is called once at the end."""

    def __init__(
        self,
        speaks: type[FromExecutor] | type[FromSupervisor],
        heard: Callable[[Message], None],
        ended: Callable[[], None],
    ) -> None:
        self._decode: Callable[[bytes], Message] = msgspec.msgpack.Decoder(speaks).decode
        self._heard, self._ended = heard, ended
        self._received = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are, without saying so

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._received[:_LENGTH], "big")
            if end > _MOST:
                self.close()
                return
            if len(self._received) < end:
                return
            body = bytes(self._received[_LENGTH:end])
            del self._received[:end]
            self._heard(self._decode(body))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._ended()

    def send(self, message: Message) -> None:
        """Say it, if anybody is there to hear it."""
        if self._transport is not None:
            self._transport.write(frame(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
