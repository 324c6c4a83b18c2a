"""`Settings`: the values a program runs with, checked and in the units of dray."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final, Literal

import msgspec

from dray.duration import DAY, HOUR, MINUTE, SECOND
from dray.options import Durability
from dray.policy import ConnectionSettings, Retention

Mode = Literal["thin", "default", "specialized", "job-specialized", "scheduler-only"]
SCHEDULING_MODES: Final[tuple[Mode, ...]] = ("thin", "default", "scheduler-only")
LogFormat = Literal["console", "json"]
LogOutput = Literal["stderr", "stdout", "file"]

MEBIBYTE: Final = 1024 * 1024
AUTO_START: Final = 32
AUTO_MOST: Final = 1000
"""Jobs that an executor runs at a time at first and at most, if it adapts that."""


SECRET_FIELDS: Final = ("*password*", "*passwd*", "*secret*", "*token*", "*api_key*", "authorization")
"""Fields of arguments and results that the history hides by default."""
HISTORY_MARGIN: Final = 10 * MINUTE
"""With a history, finished jobs are kept at least so long: it reads them from the broker."""


def cores() -> int:
    """The processors this process may use: its affinity and, in a container, its share of time."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        share = math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no such file, or "max": no limit
        return usable
    return max(1, min(usable, share))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that `load` found. Lengths of time are milliseconds, sizes are bytes.

    `dray.settings.describe()` and docs/settings.md say what each one does and what it may be.
    """

    broker_url: str
    namespace: str
    queues: tuple[str, ...] = ()
    """Empty: those that the app's tasks name, and `default`."""
    priorities: frozenset[int] | None = None
    tasks: tuple[str, ...] | None = None
    imports: tuple[str, ...] = ()
    mode: Mode = "default"
    scheduler: bool | None = None
    """None: the mode decides."""
    processes: int = msgspec.field(default_factory=cores)
    concurrency: int | None = None
    """None: each executor adapts it, from `AUTO_START` to `AUTO_MOST`."""
    rate: str | None = None
    lease: int = 30 * SECOND
    heartbeat: int = 0
    """A third of the lease unless it is given."""
    sweep_interval: int = SECOND
    stall_limit: int = 120 * SECOND
    shutdown_grace: int = 30 * SECOND
    timeout: int = 5 * MINUTE
    retries: int = 3
    backoff: str = "exponential"
    max_crashes: int = 3
    result_ttl: int = HOUR
    error_ttl: int = DAY
    done_ttl: int = DAY
    dead_ttl: int | None = None
    max_payload: int = MEBIBYTE
    max_result: int = MEBIBYTE
    max_jobs_per_process: int | None = None
    max_memory: int | None = None
    pool_size: int = 10
    connect_timeout: int = 5 * SECOND
    read_timeout: int = 10 * SECOND
    durability: Durability = "normal"
    allow_pickle: bool = False
    codec: str = "msgpack"
    history_url: str | None = None
    history_payloads: bool = True
    history_redact: tuple[str, ...] = SECRET_FIELDS
    history_ttl: int = 30 * DAY
    history_max_size: int | None = None
    http: str = "127.0.0.1:8000"
    grpc: str | None = "127.0.0.1:9090"
    api_keys: tuple[str, ...] = ()
    accept_unknown_tasks: bool = False
    key_rate: str | None = None
    max_requests: int = 256
    max_waiting: int = 1000
    max_request_size: int = 8 * MEBIBYTE
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    metrics: str | None = None
    log_level: str = "info"
    log_format: LogFormat = "console"
    log_output: LogOutput | None = None
    log_file: str | None = None
    otel: bool = False

    def __post_init__(self) -> None:
        if self.heartbeat == 0:
            msgspec.structs.force_setattr(self, "heartbeat", max(1, self.lease // 3))

    @property
    def retention(self) -> Retention:
        """How long a broker keeps finished jobs."""
        kept = self.done_ttl if self.history_url is None else max(self.done_ttl, HISTORY_MARGIN)
        return Retention(self.result_ttl, self.error_ttl, kept, self.dead_ttl)

    @property
    def access(self) -> ConnectionSettings:
        """Timeouts and connections for the broker."""
        return ConnectionSettings(
            connect_timeout=self.connect_timeout, read_timeout=self.read_timeout, pool_size=self.pool_size
        )

    @property
    def slots(self) -> int:
        """Jobs that an executor runs at a time, at first if it adapts that."""
        return self.concurrency or AUTO_START

    @property
    def runs_jobs(self) -> bool:
        """A worker of this mode has executors."""
        return self.mode != "scheduler-only"

    @property
    def schedules(self) -> bool:
        """The worker makes the jobs of schedules."""
        if self.scheduler is None or self.mode == "scheduler-only":
            return self.mode in SCHEDULING_MODES
        return self.scheduler
