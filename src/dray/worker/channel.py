"""Messages between the processes of a worker: MessagePack, each with its length in front, over a socket pair.

Here are the messages of supervisor and executor; those of executor and child are in `run/child_main.py`. The
end of the connection is a message too: an executor whose supervisor died stops by itself.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from dray.broker.verbs import Ref
from dray.job import Outcome
from dray.stats.tallies import Tallies

if TYPE_CHECKING:
    from dray.task import Task

_LENGTH: Final = 4
_LONGEST: Final = 64 * 1024 * 1024
NOTABLE_LAG: Final = 0.1
"""Seconds by which an event loop may be late without a report."""


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages."""


_encode = msgspec.msgpack.Encoder().encode


def frame(message: Message) -> bytes:
    """The message as bytes, with its length in front."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH, "big") + body


class FrameTooLong(Exception):
    """The peer announced a message of more bytes than are allowed."""


class Frames:
    """Cuts a stream of bytes into the bodies of messages."""

    def __init__(self, longest: float = math.inf) -> None:
        self._received, self._longest = bytearray(), longest

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The bodies that are complete with this data; those before a message that is too long, too."""
        self._received += data
        while len(self._received) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._received[:_LENGTH], "big")
            if end > self._longest:
                raise FrameTooLong(f"a message of {end} bytes")
            if len(self._received) < end:
                return
            body = bytes(self._received[_LENGTH:end])
            del self._received[:end]
            yield body


# executor → supervisor


class Started(Message, frozen=True):
    """The app is imported and a session is open. Sent again with each new session."""

    session: str
    epoch: int
    tasks: dict[str, tuple[str, int]]
    """Task name → file and first line of its function, to recognise it in a stack."""


class Serves(Message, frozen=True):
    """The queues it serves, as names and patterns, and the dedicated ones it leaves alone."""

    queues: tuple[str, ...]
    dedicated: tuple[str, ...]


class Broken(Message, frozen=True):
    """The executor cannot start, and another try will not help until its cause is removed."""

    reason: str


class Retiring(Message, frozen=True):
    """It takes no more jobs, ends with its last run, and should be replaced now."""

    reason: str


class Stuck(Message, frozen=True):
    """Only runs are left that are past their time in threads, which cannot be stopped.

    The supervisor kills the executor and settles them afterwards: before that, a job could start elsewhere
    while it still runs here.
    """

    outcomes: list[Outcome]


class RunCounts(Message, frozen=True):
    """Runs of this process: how many succeeded and failed so far, how many run now."""

    succeeded: int
    failed: int
    running: int


class RunStatistics(Message, frozen=True):
    """New statistics of its runs, by task; at most once a second."""

    tasks: Tallies
    lag: float
    """Seconds by which its event loop was late at most."""


# supervisor → executor


class Stop(Message, frozen=True):
    """Take no more jobs; let runs finish for `grace` milliseconds, then give the rest back."""

    grace: int


class SessionNews(Message, frozen=True):
    """The broker's answer when the supervisor renewed this session."""

    session: str
    lost: tuple[Ref, ...]
    cancelled: tuple[Ref, ...]
    forced: tuple[Ref, ...] = ()


class SessionLapsed(Message, frozen=True):
    """The broker does not know the session any more: drop its runs and open a new one."""

    session: str


class Redeclare(Message, frozen=True):
    """The broker has lost its data: write the schedules that the code declares again."""


FromExecutor = Started | Serves | Broken | Retiring | Stuck | RunCounts | RunStatistics
FromSupervisor = Stop | SessionNews | SessionLapsed | Redeclare


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
        self._frames = Frames(_LONGEST)
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are, without saying so

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self._heard(self._decode(body))
        except FrameTooLong:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._ended()

    def send(self, message: Message) -> None:
        """Send it, if the peer is still there."""
        if self._transport is not None:
            self._transport.write(frame(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class SupervisorReports:
    """What an executor sends to its supervisor: each fact once, and again when it has changed."""

    def __init__(self, send: Callable[[Message], None] | None) -> None:
        self._send: Callable[[Message], None] = send or (lambda message: None)
        self.supervised = send is not None
        self._last: dict[type[Message], Message] = {RunCounts: RunCounts(0, 0, 0)}
        self._stuck = False

    def _send_changed(self, message: Message) -> None:
        if self._last.get(type(message)) != message:
            self._last[type(message)] = message
            self._send(message)

    def started(self, session: str, epoch: int, tasks: Mapping[str, Task[..., Any]]) -> None:
        places = {name: source_location(task.function) for name, task in tasks.items()}
        self._send(Started(session, epoch, places))

    def serves(self, queues: tuple[str, ...], dedicated: Iterable[str]) -> None:
        self._send_changed(Serves(queues, tuple(sorted(dedicated))))

    def retiring(self, reason: str) -> None:
        self._send(Retiring(reason))

    def stuck(self, outcomes: Callable[[], list[Outcome]]) -> None:
        if not self._stuck:
            self._stuck = True
            self._send(Stuck(outcomes()))

    def counts(self, succeeded: int, failed: int, running: int) -> None:
        self._send_changed(RunCounts(succeeded, failed, running))

    def statistics(self, tallies: Tallies, lag: float) -> None:
        if tallies or lag > NOTABLE_LAG:
            self._send(RunStatistics(tallies, lag))


def source_location(function: Any) -> tuple[str, int]:
    """File and first line of a task's function; empty if there is no Python behind it."""
    target = inspect.unwrap(function)
    while isinstance(target, functools.partial):
        target = inspect.unwrap(target.func)
    if not hasattr(target, "__code__"):
        target = type(target).__call__
    code = getattr(target, "__code__", None)
    return ("", 0) if code is None else (code.co_filename, code.co_firstlineno)
