"""One process that runs other people's code: its event loop, its memory, and the death of its parent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

T = TypeVar("T")
log = logging.getLogger("dray.worker")

_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_PEAK = re.compile(rb"VmHWM:\s*(\d+) kB")
_PR_SET_PDEATHSIG: Final = 1
STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_HANG_UP: Final = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


# the event loop


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed."""
    try:
        made: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    except ImportError:
        made = asyncio.new_event_loop()
    return made


def run_to_end(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end, whatever jobs do to the loop.

    A `SystemExit` in a task that a job started makes asyncio leave the loop: it is entered again.
    """
    asyncio.set_event_loop(loop)
    task = loop.create_task(main)
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt) as error:
            if task.done():
                raise
            log.warning("something that a job started raised %s on the event loop", type(error).__name__)


# memory


def memory_used() -> int:
    """Bytes in RAM; the lifetime peak on systems without /proc."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return _lifetime_peak()


def peak_memory() -> int:
    """The most bytes in RAM since `forget_peak`; since the start on systems without /proc."""
    try:
        found = _PEAK.search(_STATUS.read_bytes())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else _lifetime_peak()


def forget_peak() -> None:
    """Reset the kernel's peak counter, where that is possible."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")


def _lifetime_peak() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


# parent and child


def can_fork() -> bool:
    """Forking is safe here, and the end of a process that is no child can be noticed."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def fork() -> int:
    """As `os.fork`, with empty buffers, which both processes would print.

    Signals wait meanwhile: what a handler raises inside of a fork is lost.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        return os.fork()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def look_like(program: ModuleType) -> None:
    """Make a forked process look as if Python had been started with `-m` and this module."""
    sys.argv = [str(program.__file__)]
    sys.modules["__main__"] = program
    for number in STOP_SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)


def reap(child: int) -> int:
    """The exit code of a child that has ended, or ends now.

    If it failed, its process group is killed: processes of its jobs must not go on while the jobs run again
    elsewhere. This is done before it is reaped, while the number of the group is surely its own.
    """
    seen = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    if seen is not None and (seen.si_code != os.CLD_EXITED or seen.si_status != 0):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends (Linux)."""
    if sys.platform == "linux":
        import ctypes  # large, and only for processes that end soon

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os._exit(1)


def watch_peer(fd: int, gone: Callable[[], object], patience: float, exit_code: int) -> None:
    """Call `gone` when the other end of a socket is closed, and end the process `patience` seconds later.

    In a thread, because the event loop may be blocked by then.
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
