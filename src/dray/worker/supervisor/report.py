"""A worker's account of itself: its id, banner, document in the registry, readiness and metrics."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Final, Literal, NamedTuple

from dray.documents.queue_state import describe_unserved, read_queues, unserved
from dray.documents.worker_registry import WorkerInfo, not_ready, read_workers
from dray.duration import format_duration
from dray.settings import AUTO_MOST, AUTO_START, Settings, hide_password
from dray.stats.tallies import WorkerTallies
from dray.task import BUILT_IN
from dray.worker import shared_memory as clock
from dray.worker.channel import Serves
from dray.worker.duties.duties import Duties
from dray.worker.retrying_broker import RetryingBroker
from dray.worker.supervisor.executor_pool import ExecutorPool
from dray.worker.supervisor.heartbeats import ClockSkew, Heartbeats
from dray.worker.supervisor.probes import Answer, Page
from dray.worker.supervisor.statistics import WorkerStatistics

TASKS_SHOWN: Final = 20

Render = Callable[[WorkerInfo, WorkerTallies], tuple[str, str]]
"""The text of a worker's metrics, and its media type."""


class Parts(NamedTuple):
    """The parts of a worker that a report reads. They exist once the broker is open."""

    broker: RetryingBroker
    pool: ExecutorPool
    duties: Duties
    heartbeats: Heartbeats
    skew: ClockSkew


class WorkerReport:
    """The facts about one worker, and every form in which they are shown."""

    def __init__(
        self,
        settings: Settings,
        executors: int,
        statistics: WorkerStatistics,
        announce: Callable[[str], None],
        render: Render | None,
    ) -> None:
        self.worker = statistics.worker
        self._settings, self._executors, self._statistics = settings, executors, statistics
        self._announce, self._render = announce, render
        self.parts: Parts | None = None
        self.started = 0
        self.state: Literal["running", "stopping"] = "running"
        self.tasks: frozenset[str] = frozenset()
        self.serves = Serves(settings.queues, ())
        self._banner_shown = False

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal or pipe is no reason to stop
            self._announce(text)

    def show_banner(self) -> bool:
        """Show the banner, once; whether this was the time."""
        if self._banner_shown:
            return False
        self._banner_shown = True
        self.say(banner(self.worker, self._settings, self._executors, self.tasks, self.serves))
        return True

    async def note_unserved(self, retrying: RetryingBroker) -> None:
        """Name the queues with waiting jobs that no worker serves, this one included."""
        queues = await retrying.ask(read_queues)
        workers = [*await retrying.ask(read_workers), self.info()]
        for info in unserved(queues, workers):
            self.say(f"note: {describe_unserved(info, workers)}")

    def pages(self) -> dict[str, Page]:
        """The pages of the worker's own HTTP server."""
        pages: dict[str, Page] = {"/healthz": lambda: Answer(200, "ok\n"), "/readyz": self._readiness}
        if self._render is not None:
            pages["/metrics"] = self._metrics
        return pages

    def _readiness(self) -> Answer:
        if self.parts is None:
            return Answer(503, "it has not reached the broker yet\n")
        if not self.parts.broker.answers.is_set():
            return Answer(503, "the broker does not answer\n")
        info = self.info()
        reason = not_ready(info, info.seen)
        return Answer(200, "ok\n") if reason is None else Answer(503, f"{reason}\n")

    def _metrics(self) -> Answer:
        if self.parts is None or self._render is None:
            return Answer(503, "it has not reached the broker yet\n")
        text, kind = self._render(self.info(), self._statistics.document(seen=0))
        return Answer(200, text, kind)

    def info(self) -> WorkerInfo:
        """The worker's document in the registry."""
        assert self.parts is not None  # noqa: S101 (for the type checker)
        settings, statistics, now = self._settings, self._statistics, clock.now()
        return WorkerInfo(
            id=self.worker,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=self.started,
            seen=self.parts.broker.broker.clock(),
            queues=self.serves.queues if self._executors else (),
            dedicated=self.serves.dedicated if self._executors else (),
            priorities=None if settings.priorities is None else tuple(sorted(settings.priorities)),
            tasks=tuple(sorted(self.tasks)),
            processes=self._executors,
            concurrency=settings.concurrency,
            rate=settings.rate,
            mode=settings.mode,
            version=version(),
            state=self.state,
            executors=tuple(executor.info(now) for executor in self.parts.pool.executors),
            leader=self.parts.duties.leader,
            skew=self.parts.skew.measure(),
            average=statistics.average,
            p95=statistics.p95,
            lag=statistics.lag,
            stalls=statistics.stalls,
            round_trip=self.parts.heartbeats.round_trip,
        )


def new_worker_id() -> str:
    """Host, process and a random part: printable, and never the same twice."""
    host = re.sub(r"[^A-Za-z0-9_.-]+", "-", socket.gethostname())[:60] or "host"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


def version() -> str:
    return str(import_module("dray").__version__)


def banner(worker: str, settings: Settings, executors: int, tasks: Collection[str], serves: Serves) -> str:
    """One short block: broker, queues, processes and tasks, and how to stop it."""
    lines = [
        f"dray {version()} worker {worker}",
        f"  broker   {hide_password(settings.broker_url)} (namespace {settings.namespace})",
    ]
    if executors:
        lines += [
            f"  queues   {_queues(settings, serves)}",
            f"  running  {_counted(executors, 'process', 'processes')} × "
            + _jobs(settings)
            + ("" if settings.rate is None else f", at most {settings.rate}"),
            f"  tasks    {_listed(sorted(name for name in tasks if not name.startswith(BUILT_IN)))}",
        ]
    else:
        lines.append("  running  no jobs: schedules and recovery only")
    lines.append("  stop with Ctrl-C or SIGTERM; a second time hands running jobs back at once")
    return "\n".join(lines)


def _jobs(settings: Settings) -> str:
    if settings.concurrency is None:
        return f"auto ({AUTO_START} to {AUTO_MOST} jobs)"
    return _counted(settings.concurrency, "job", "jobs")


def _queues(settings: Settings, serves: Serves) -> str:
    text = ", ".join(serves.queues)
    notes = [] if settings.queues or len(serves.queues) == 1 else ["taking turns"]
    left = [queue for queue in serves.dedicated if queue not in settings.queues]
    notes += [f"not {', '.join(left)}: dedicated, serve it with -Q"] if left else []
    return f"{text} ({'; '.join(notes)})" if notes else text


def stop_notice(running: int, grace: int) -> str:
    if not running:
        return "stopping"
    if not grace:
        return f"stopping; jobs that are handed back: {running}"
    return f"stopping; jobs that run have {format_duration(grace)} to finish: {running}"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _listed(names: list[str]) -> str:
    if not names:
        return "none: the app registers no task that this worker may run"
    more = len(names) - TASKS_SHOWN
    return ", ".join(names[:TASKS_SHOWN]) + (f" and {more} more" if more > 0 else "")
