"""How much memory this process uses, and the most it ever did."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
from pathlib import Path

_STATM = Path("/proc/self/statm")
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_PEAK = re.compile(rb"VmHWM:\s*(\d+) kB")


def memory_used() -> int:
    """Bytes in RAM. Where the kernel does not tell, the most it ever was."""
    try:
        return int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return _lifetime_peak()


def peak_memory() -> int:
    """The most bytes in RAM since `forget_peak`; where the kernel cannot tell, since it was started."""
    try:
        found = _PEAK.search(_STATUS.read_bytes())
    except OSError:
        found = None
    return int(found[1]) * 1024 if found else _lifetime_peak()


def forget_peak() -> None:
    """Let the peak count from now on, where the kernel can do that."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")


def _lifetime_peak() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
