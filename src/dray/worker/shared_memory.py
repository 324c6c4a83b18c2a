"""Pages of memory that a supervisor shares with its executors: signs of life and of sleep, the worker's rate.

The supervisor makes a page, its executors inherit the file descriptor. Nothing is sent, so that an event loop
that hangs cannot be mistaken for a quiet one. Times are of the monotonic clock that all processes share.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import struct
import time
from collections.abc import Iterator
from typing import Final

from dray.policy import Rate

_FIELDS: Final = {
    "beat": 0,
    "deadline": 8,
    "tried": 16,
    "running": 24,
    "profile": 32,
    "profile_ms": 40,
    "slots": 48,
}
_SIZE: Final = 4096
SLEEPS: Final = 600_000_000
"""Nanoseconds for which a sign of sleep holds: it is renewed at least every 250 ms."""
_NUMBER = struct.Struct("=q")


def now() -> int:
    """Nanoseconds of the monotonic clock that all processes of a machine share."""
    return time.monotonic_ns()


class _Page:
    """4 KiB of shared memory that hold whole numbers."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, _SIZE)

    def _read(self, offset: int) -> int:
        value: int = _NUMBER.unpack_from(self._page, offset)[0]
        return value

    def _write(self, offset: int, value: int) -> None:
        _NUMBER.pack_into(self._page, offset, value)

    def close(self) -> None:
        self._page.close()
        os.close(self.fd)


def unnamed_file(name: str) -> int:
    """The descriptor of an empty file that only processes that inherit it can see; in memory on Linux."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    from tempfile import TemporaryFile

    with TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


def _new_page() -> int:
    page = unnamed_file("dray-page")
    os.ftruncate(page, _SIZE)
    return page


class SharedHeartbeat(_Page):
    """Signs of life of one executor.

    `beat`: when its event loop last turned. `deadline`: when its first run is past all patience; 0 if none
    runs. `tried`: when the broker last answered it. `running`: how many runs. `profile`, `profile_ms`: the
    profile that the supervisor asks for, and its length. `slots`: how many runs it allows at a time.
    """

    @classmethod
    def make(cls) -> SharedHeartbeat:
        return cls(_new_page())

    def write(self, field: str, value: int) -> None:
        self._write(_FIELDS[field], value)

    def read(self, field: str) -> int:
        return self._read(_FIELDS[field])


class SleepSign(_Page):
    """Shows all executors of a worker when one of them last had free slots and no work."""

    @classmethod
    def make(cls) -> SleepSign:
        return cls(_new_page())

    def show(self) -> None:
        self._write(0, now())

    @property
    def shown(self) -> bool:
        """One of them slept lately."""
        return now() - self._read(0) < SLEEPS


class WorkerRate(_Page):
    """How fast all executors of a worker together may start jobs (setting `rate`).

    They share one number, the GCRA time (TAT) of `dray.policy.Rate`; the broker is not asked. A reservation
    that got no job is given back, so a take that finds nothing costs nothing.
    """

    def __init__(self, rate: str, fd: int) -> None:
        super().__init__(fd)
        self._rate = Rate.parse(rate)

    @classmethod
    def make(cls, rate: str) -> WorkerRate:
        return cls(rate, _new_page())

    def available(self) -> int:
        """How many jobs may start now."""
        return self._rate.available(self._read(0), _milliseconds())

    def reserve(self, want: int) -> int:
        """Count up to `want` starts, as many as are allowed now."""
        with self._locked() as locked:
            if not locked:
                return 0
            tat, now = self._read(0), _milliseconds()
            allowed = min(want, self._rate.available(tat, now))
            if allowed > 0:
                self._write(0, self._rate.spend(tat, now, allowed))
            return max(0, allowed)

    def give_back(self, count: int) -> None:
        """So many reserved starts did not happen."""
        if count > 0:
            with self._locked() as locked:
                # Without the lock they stay counted: a few later jobs start a little later.
                if locked:
                    self._write(0, self._read(0) - count * self._rate.interval)

    def wait(self) -> float:
        """Seconds until one more job may start; infinite if one may start now."""
        tat, now = self._read(0), _milliseconds()
        if self._rate.available(tat, now):
            return math.inf
        return (self._rate.free_at(tat, now) - now) / 1000

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Try to lock the page against other executors; never wait for one, which may be frozen."""
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)


def _milliseconds() -> int:
    return now() // 1_000_000
