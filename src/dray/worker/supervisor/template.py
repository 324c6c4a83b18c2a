"""The template: a process that has imported dray and nothing else, from which executors are forked.

They start in a few milliseconds and share the memory of what is imported. It is forked from `dray worker`
before that has an event loop, threads, log handlers or a broker, and it never runs user code, so that nothing
unsafe is copied. Without it (not Linux, or it was killed), executors are started as new Python processes.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import traceback
from importlib import import_module
from types import FrameType
from typing import Final, NoReturn, Self

import msgspec

from dray.settings import Settings
from dray.worker.config import ExecutorConfig
from dray.worker.executor import executor_main
from dray.worker.process import STOP_SIGNALS, can_fork, fork, look_like, reap

_PATIENCE: Final = 2.0
"""Seconds to wait for its answer, which takes milliseconds; then it counts as gone."""
_REQUEST_MAX: Final = 1 << 17
_FDS_MAX: Final = len(ExecutorConfig.DESCRIPTORS)

log = logging.getLogger("dray.worker")


class _Fork(msgspec.Struct, tag=True):
    """Start an executor; its descriptors come with the message, in the order of `ExecutorConfig.fds`."""

    config: ExecutorConfig


class _Reap(msgspec.Struct, tag=True):
    """An executor has ended: reply with its exit code."""

    pid: int


_decode_request = msgspec.msgpack.Decoder(_Fork | _Reap).decode


class Template:
    """The supervisor's side of it: one request and one reply at a time."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self._pid, self._control = pid, control

    @classmethod
    def fork(cls, settings: Settings) -> Self | None:
        """Import what executors need with these settings, and fork; None where that is not safe."""
        if not can_fork():
            return None
        _preload(settings)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = fork()
        if pid == 0:
            ours.close()
            _serve(theirs)
        theirs.close()
        ours.settimeout(_PATIENCE)
        return cls(pid, ours)

    def start(self, config: ExecutorConfig) -> ForkedExecutor | None:
        """Fork an executor; None if the template has been gone before.

        `OSError` if it fails now. It may have forked all the same: closing the channel ends such an executor.
        """
        if self._gone:
            return None
        pid = self._ask(_Fork(config), config.fds)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return ForkedExecutor(pid, self)

    def reap(self, pid: int) -> int:
        """The exit code of an executor that has ended; 1 if it cannot be known any more."""
        if not self._gone:
            with contextlib.suppress(OSError):
                return self._ask(_Reap(pid))
        try:
            return reap(pid)  # without its parent it may have become ours
        except ChildProcessError:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # as `reap` does with processes of its jobs
            return 1

    def _ask(self, request: _Fork | _Reap, fds: tuple[int, ...] = ()) -> int:
        try:
            socket.send_fds(self._control, [msgspec.msgpack.encode(request)], fds)
            reply = self._control.recv(64)
            if not reply:
                raise ConnectionError("it has ended")
        except OSError as error:
            log.warning("the template of executors is gone, they start as new processes: %s", error)
            self.close()
            raise
        return msgspec.msgpack.decode(reply, type=int)

    @property
    def _gone(self) -> bool:
        return self._control.fileno() < 0

    def close(self) -> None:
        """End it. Executors live on. Once only: its number may belong to another process later."""
        if self._control.fileno() < 0:
            return
        self._control.close()
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


class ForkedExecutor:
    """An executor process whose parent is the template."""

    def __init__(self, pid: int, template: Template) -> None:
        self.pid, self._template = pid, template

    def reap(self) -> int:
        """The exit code, once it has ended."""
        return self._template.reap(self.pid)


def _preload(settings: Settings) -> None:
    """Import what every executor would, so that its memory is shared."""
    kind = "sqlite" if settings.broker_url.startswith("sqlite:") else "redis"
    for name in (f"dray.broker.{kind}", "uvloop"):
        with contextlib.suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()  # later collections leave these objects, and the pages they are in, alone


def _serve(control: socket.socket) -> NoReturn:
    """Answer requests until the supervisor is gone."""
    try:
        look_like(executor_main)
        usual = {number: signal.signal(number, _do_nothing) for number in STOP_SIGNALS}
        while (received := socket.recv_fds(control, _REQUEST_MAX, _FDS_MAX))[0]:
            request, fds = _decode_request(received[0]), received[1]
            if isinstance(request, _Reap):
                reply = reap(request.pid)
            elif (reply := _try_fork()) == 0:
                control.close()
                for number, handler in usual.items():
                    signal.signal(number, handler)
                _become_executor(request.config, fds)
            for fd in fds:
                os.close(fd)
            control.send(msgspec.msgpack.encode(reply))
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _do_nothing(signum: int, at: FrameType | None) -> None:
    """A terminal and a service manager send signals to all processes; only the supervisor acts on them."""


def _try_fork() -> int:
    """As `os.fork`; a negative error number if it fails."""
    try:
        pid = os.fork()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # in both processes: it has its own group when either goes on
    return pid


def _become_executor(config: ExecutorConfig, fds: list[int]) -> NoReturn:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    executor_main.run(config.with_fds(fds))
