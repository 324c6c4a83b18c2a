"""Who a worker is, and what it says when it comes and when it goes."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Collection
from importlib import metadata
from typing import Final

from dray.duration import format_duration
from dray.settings import Settings, hide_password

TASKS_SHOWN: Final = 20


def new_worker_id() -> str:
    """Host, process and a random part: printable, and never the same twice."""
    host = re.sub(r"[^A-Za-z0-9_.-]+", "-", socket.gethostname())[:60] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


def version() -> str:
    try:
        return metadata.version("dray")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "(not installed)"


def greeting(worker: str, settings: Settings, executors: int, tasks: Collection[str]) -> str:
    """One short block: what runs here, for whom, and how to stop it."""
    lines = [
        f"dray {version()} worker {worker}",
        f"  broker   {hide_password(settings.broker_url)} (namespace {settings.namespace})",
    ]
    if executors:
        lines += [
            f"  queues   {', '.join(settings.queues)}",
            f"  running  {executors} process{'es' if executors > 1 else ''} × {settings.concurrency} jobs"
            + ("" if settings.rate is None else f", at most {settings.rate}"),
            f"  tasks    {_listed(sorted(tasks))}",
        ]
    else:
        lines.append("  running  no jobs: schedules and recovery only")
    lines.append("  stop with Ctrl-C or SIGTERM; a second time hands running jobs back at once")
    return "\n".join(lines)


def farewell(running: int, grace: int) -> str:
    """What is said when it is told to stop."""
    if not running:
        return "stopping"
    if not grace:
        return f"stopping; jobs that are handed back: {running}"
    return f"stopping; jobs that run have {format_duration(grace)} to finish: {running}"


def _listed(names: list[str]) -> str:
    if not names:
        return "none: the app registers no task that this worker may run"
    more = len(names) - TASKS_SHOWN
    return ", ".join(names[:TASKS_SHOWN]) + (f" and {more} more" if more > 0 else "")
