"""Signals that reach `dray worker` while Python still imports it end the process with exit code 0.

`dray/__init__.py` imports this first; in any other program it does nothing. There are no jobs to hand back
yet. Later the supervisor installs its own handlers.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Final

_SIGNALS: Final = {
    "worker": ("SIGTERM", "SIGINT", "SIGHUP"),
    "scheduler": ("SIGTERM", "SIGINT", "SIGHUP"),
    "server": ("SIGTERM",),
}


def signals_of(argv: Sequence[str], original: Sequence[str]) -> tuple[str, ...]:
    """The signals that the command of this process handles.

    `original` is the command line with the interpreter's options: only it shows `python -m dray`.
    """
    if not argv:
        return ()
    program = argv[0].replace("\\", "/").rpartition("/")[2]
    if program != "dray" and not (program in ("-m", "__main__.py") and "dray" in original):
        return ()
    return next((_SIGNALS[word] for word in argv[1:] if word in _SIGNALS), ())


def _exit(number: int, frame: FrameType | None) -> None:
    # Without a terminal, SIGHUP asks for new code: the imports that follow are new.
    on_terminal = sys.stdin is not None and sys.stdin.isatty()
    if signal.Signals(number).name != "SIGHUP" or on_terminal:
        raise SystemExit(0)


def install_handlers() -> None:
    for name in signals_of(getattr(sys, "argv", ()), getattr(sys, "orig_argv", ())):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            try:
                signal.signal(number, _exit)
            except ValueError:  # only the main thread can set handlers
                return


install_handlers()
