"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from datetime import UTC, datetime
from pathlib import Path

QUIET = 0.3
"""Up to this much of the machine's cores may be busy before its figures are called doubtful."""


def describe() -> dict[str, object]:
    """Date, versions, processor and load."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "sqlite": sqlite3.sqlite_version,
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _processor(),
        "cores": cores,
        "load": round(load, 2),
        "quiet": is_quiet(load, cores),
    }


def is_quiet(load: float, cores: int) -> bool:
    return load <= cores * QUIET


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
