"""Signs of life of an executor, in memory that its supervisor sees.

The executor writes, the supervisor reads; nothing is sent, so that a loop that hangs cannot be mistaken for
one that is quiet. Times are of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from typing import Final

_FIELDS: Final = {"beat": 0, "deadline": 8, "tried": 16, "running": 24, "ended": 32}
_SIZE: Final = 4096
_NUMBER = struct.Struct("=q")


class Pulse:
    """A page of numbers. The supervisor makes it, the executor inherits its file descriptor.

    `beat`: when the event loop last turned. `deadline`: when the first of its runs is past all patience; 0 if
    none runs. `tried`: when it last asked for work and got an answer. `running`, `ended`: how many runs.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, _SIZE)

    @classmethod
    def make(cls) -> Pulse:
        with tempfile.TemporaryFile(prefix="dray-pulse-") as file:
            file.truncate(_SIZE)
            return cls(os.dup(file.fileno()))

    def write(self, field: str, value: int) -> None:
        _NUMBER.pack_into(self._page, _FIELDS[field], value)

    def read(self, field: str) -> int:
        value: int = _NUMBER.unpack_from(self._page, _FIELDS[field])[0]
        return value

    def close(self) -> None:
        self._page.close()
        os.close(self.fd)


def now() -> int:
    """Nanoseconds of the clock that all processes of a machine share."""
    return time.monotonic_ns()
