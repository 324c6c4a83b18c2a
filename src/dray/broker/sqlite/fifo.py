"""Wake-up calls between processes on one machine: a named pipe per listener.

A ring is a hint, never the only way to learn of work: a listener that cannot have a pipe (`hearing` is
False), or whose pipe was deleted, sleeps until its timeout and then looks for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
import select
import stat
import time
import weakref
from pathlib import Path
from typing import Final

SETTLING: Final = 60.0
"""Seconds after which a pipe that was made but never put up under its name is an accident's remains."""

_NAME: Final = re.compile(r"[0-9]+-[0-9a-f]+")
_fifos: weakref.WeakSet[Fifo] = weakref.WeakSet()


class Fifo:
    """The pipe one broker object listens on. Make it with `Fifo.open`.

    One event loop (several waiters, all woken) or one blocking thread waits on it.
    """

    def __init__(self, folder: Path, *, blocking: bool = False) -> None:
        self._folder, self._blocking = folder, blocking
        self._name, self._handle, self._inode = "", -1, 0
        self._waiters: set[asyncio.Future[bool]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._undelivered = self._closed = False
        self._heard = 0

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, blocking: bool = False) -> Fifo:
        """Put up a new pipe in `folder`, which is made if its parent exists. Never fails: see `hearing`."""
        bell = cls(Path(folder), blocking=blocking)
        bell._put_up()
        _fifos.add(bell)
        return bell

    @property
    def name(self) -> str:
        """The name for `ring`. Another one after a fork; empty if rings cannot arrive."""
        if self._handle < 0 and not self._closed:
            self._put_up()
        return self._name

    @property
    def hearing(self) -> bool:
        """Rings arrive. If not, `wait` only sleeps."""
        return bool(self.name)

    @property
    def heard(self) -> int:
        """Counts wake-ups: read it before looking for work, give it to `wait` afterwards."""
        return self._heard

    async def wait(self, seconds: float, *, since: int | None = None) -> bool:
        """Sleep until a ring (True), or for `seconds` (False). A ring before the call counts.

        Several waiters share the rings: one that looked for work while another was woken passes the
        `heard` it saw before looking as `since`, and so misses nothing.
        """
        if self._undelivered or (since is not None and since != self._heard):
            self._undelivered = False
            return True
        self._restore()
        if self._blocking:
            return self._wait_here(seconds)
        if self._handle < 0:
            await asyncio.sleep(seconds)
            return False
        return await self._wait_on_loop(seconds)

    def close(self) -> None:
        """Take the pipe down; waiters return as if nothing had rung."""
        self._closed = True
        for waiter in self._waiters:
            _finish(waiter, False)
        self._stop_listening()
        if self._handle >= 0 and self._name:
            with contextlib.suppress(OSError):
                (self._folder / self._name).unlink()
        self._let_go()

    def _wait_here(self, seconds: float) -> bool:
        if self._handle < 0:
            time.sleep(seconds)
            return False
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        # Python itself goes on with the rest of the time after a signal.
        if not poll.poll(max(0.0, seconds) * 1000):
            return False
        self._drain()
        return True

    async def _wait_on_loop(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        if self._loop is None:
            loop.add_reader(self._handle, self._on_ring)
            self._loop = loop
        self._waiters.add(waiter)
        timer = loop.call_later(max(0.0, seconds), _finish, waiter, False)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.result():
                # The ring was taken from the pipe but reached no waiter: the next to wait gets it.
                self._undelivered = True
            raise
        finally:
            timer.cancel()
            self._waiters.discard(waiter)
            if not self._waiters:
                self._stop_listening()

    def _stop_listening(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.remove_reader(self._handle)

    def _on_ring(self) -> None:
        self._drain()
        woken = [_finish(waiter, True) for waiter in self._waiters]
        # All may have timed out or been cancelled in this very turn of the loop.
        self._undelivered = not any(woken)

    def _drain(self) -> None:
        self._heard += 1
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._handle, 4096)) == 4096:
                pass

    def _restore(self) -> None:
        """Put the pipe up again if it was deleted, under the name that others know."""
        if self._closed or self._waiters:
            return
        with contextlib.suppress(OSError):
            if self._handle >= 0 and (self._folder / self._name).stat().st_ino == self._inode:
                return
        name = self._name if self._handle >= 0 else ""
        self._let_go()
        self._put_up(name)

    def _put_up(self, name: str = "") -> None:
        """Open first, then give it its name: a pipe by that name is never without a reader while alive."""
        name = name or f"{os.getpid()}-{secrets.token_hex(6)}"
        hidden = self._folder / f".{name}"
        try:
            self._folder.mkdir(0o700, exist_ok=True)
            os.mkfifo(hidden, 0o600)
            # Reading and writing: with a writer of its own it never sees the end of the pipe.
            self._handle = os.open(hidden, os.O_RDWR | os.O_NONBLOCK)
            self._inode = os.fstat(self._handle).st_ino
            hidden.rename(self._folder / name)
            self._name = name
        except OSError:
            self._let_go()
            with contextlib.suppress(OSError):
                hidden.unlink()

    def _let_go(self) -> None:
        handle, self._handle, self._name = self._handle, -1, ""
        if handle >= 0:
            os.close(handle)


def _finish(waiter: asyncio.Future[bool], rung: bool) -> bool:
    if waiter.done():
        return False
    waiter.set_result(rung)
    return True


def _forked() -> None:
    # A child that kept the pipe open would swallow the parent's rings and make it look alive for ever.
    for bell in list(_fifos):
        bell._waiters, bell._loop, bell._undelivered = set(), None, False
        bell._let_go()


os.register_at_fork(after_in_child=_forked)


def ring(folder: str | os.PathLike[str], name: str) -> bool:
    """Wake a listener. False: there is no listener any more (its pipe is removed). Never blocks."""
    if not _NAME.fullmatch(str(name)):  # it comes from a file, which may be damaged
        return False
    pipe = f"{os.fspath(folder)}/{name}"  # a Path would cost as much as the ring
    try:
        handle = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ENXIO:
            _remove(pipe)
        # Anything else (permission, too many open files) says nothing about the listener.
        return error.errno not in (errno.ENXIO, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
    try:
        if not stat.S_ISFIFO(os.fstat(handle).st_mode):
            return False
        os.write(handle, b"!")
    except BlockingIOError:
        pass  # full of rings that are not heard yet: one more would change nothing
    except BrokenPipeError:
        return False  # it went between our two calls
    finally:
        os.close(handle)
    return True


def remove_stale(folder: str | os.PathLike[str], limit: int = 100) -> int:
    """Delete up to `limit` pipes without a listener; returns how many."""
    removed = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if removed >= limit:
                    break
                removed += _is_stale(entry) and _remove(entry.path)
    except OSError:
        pass  # no folder, no pipes
    return removed


def _is_stale(entry: os.DirEntry[str]) -> bool:
    if not _NAME.fullmatch(entry.name.removeprefix(".")):
        return False
    try:
        seen = entry.stat(follow_symlinks=False)
        if not stat.S_ISFIFO(seen.st_mode):
            return False
        if entry.name.startswith(".") and time.time() - seen.st_mtime < SETTLING:
            return False  # it may be on its way to being put up
        os.close(os.open(entry.path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
    except OSError as error:
        return error.errno == errno.ENXIO
    return False


def _remove(pipe: str) -> bool:
    try:
        Path(pipe).unlink()
    except OSError:
        return False
    return True
