"""How fast a worker may start jobs, all its executors together (setting `rate`).

The executors of a worker share one number, the GCRA time of `dray.policy.Rate`, in a page of memory. Nothing
is asked of the broker: a worker that is to go slower simply asks for less. What was reserved and not handed
out is given back, so tries that found nothing cost nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator

from dray.policy import Rate
from dray.worker import pulse as clock

_TAT = struct.Struct("=q")
_SIZE = 4096


class Pace:
    """One worker's rate. The supervisor makes it, the executors inherit its file descriptor."""

    def __init__(self, rate: str, fd: int) -> None:
        self.fd, self._rate = fd, Rate.parse(rate)
        self._page = mmap.mmap(fd, _SIZE)

    @classmethod
    def make(cls, rate: str) -> Pace:
        with tempfile.TemporaryFile(prefix="dray-pace-") as file:
            file.truncate(_SIZE)
            return cls(rate, os.dup(file.fileno()))

    def available(self) -> int:
        """How many may start now."""
        return self._rate.available(self._tat, _now())

    def reserve(self, want: int) -> int:
        """Of `want` starts as many as are allowed now; they count from now on."""
        with self._alone() as alone:
            if not alone:
                return 0
            tat, now = self._tat, _now()
            allowed = min(want, self._rate.available(tat, now))
            if allowed > 0:
                self._tat = self._rate.spend(tat, now, allowed)
            return max(0, allowed)

    def give_back(self, count: int) -> None:
        """So many of what was reserved did not start after all."""
        if count > 0:
            with self._alone() as alone:
                # Not alone, in the same microseconds as another executor: a few starts come a little later.
                if alone:
                    self._tat -= count * self._rate.interval

    def wait(self) -> float:
        """Seconds until one more may start; infinite if one may now, since then nobody waits for that."""
        tat, now = self._tat, _now()
        if self._rate.available(tat, now):
            return math.inf
        return (self._rate.free_at(tat, now) - now) / 1000

    def close(self) -> None:
        self._page.close()
        os.close(self.fd)

    @property
    def _tat(self) -> int:
        tat: int = _TAT.unpack_from(self._page)[0]
        return tat

    @_tat.setter
    def _tat(self, tat: int) -> None:
        _TAT.pack_into(self._page, 0, tat)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other executor is in here. It never waits for one, which may be frozen; the lock of a
        process that dies is free at once."""
        try:
            fcntl.lockf(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self.fd, fcntl.LOCK_UN)


def _now() -> int:
    return clock.now() // 1_000_000
