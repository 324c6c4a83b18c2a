"""A process that must not outlive whoever started it."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_HANG_UP: Final = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, where the kernel can."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


def watch_peer(fd: int, gone: Callable[[], object], patience: float, exit_code: int) -> None:
    """Call `gone` when the other end of a socket is closed, and end the process `patience` seconds later.

    A thread does that, because the event loop may be blocked by then.
    """

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, _HANG_UP)
        while not any(event & (_HANG_UP | select.POLLNVAL) for _, event in poll.poll()):
            pass
        gone()
        time.sleep(patience)
        os._exit(exit_code)

    threading.Thread(target=watch, name="dray guard", daemon=True).start()
