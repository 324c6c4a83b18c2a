"""What `dray top` shows: snapshots of the broker as lines of text, for any size of terminal from 80 by 24."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from dray.broker.verbs import QueueInfo
from dray.cli.formatting import job_fields, queue_row, seconds
from dray.cli.history import sparkline
from dray.cli.output import age, harmless, one_line
from dray.documents.worker_registry import WorkerInfo
from dray.history.broker_view import ErrorGroup
from dray.info import JobInfo
from dray.job import State

View = Literal["queues", "workers", "jobs", "errors", "job"]
VIEWS: Final[tuple[View, ...]] = ("queues", "workers", "jobs", "errors")
STATES: Final = (State.READY, State.RUNNING, State.RETRYING, State.SCHEDULED, State.DEAD)
QUEUE_TITLES: Final = (
    *("QUEUE", "READY", "RUN", "RETRY", "SCHED", "DEAD"),
    *("OLDEST", "WORKERS", "STATE", "LIMITS"),
)
WORKER_TITLES: Final = ("WORKER", "RUNNING", "AVG", "SEEN", "ROLE", "QUEUES")
ERROR_TITLES: Final = ("COUNT", "24 HOURS", "LAST", "TASK", "ERROR")
JOB_TITLES: Final = ("TASK", "STATUS", "TRY", "CREATED", "QUEUE", "ID")
KEYS: Final = {
    "queues": "p pause or resume · Enter its jobs",
    "workers": "Enter all running jobs",
    "jobs": "Enter open · c cancel · r retry · f state",
    "errors": "Enter the last job",
    "job": "c cancel · r retry · Esc back",
}
LAST_COLUMN: Final = 20
"""Characters that the last column of a table has at least, if it needs them."""
NARROWEST: Final = 6
HEAD, FOOT = 3, 2
"""Lines above and below the rows of a view: the sums, the tabs, the titles; a message and the keys."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What was read from the broker at one moment."""

    at: float = 0.0
    """Seconds of a clock that only goes on."""
    queues: list[QueueInfo] = []
    workers: list[WorkerInfo] = []
    jobs: list[JobInfo] = []
    errors: list[ErrorGroup] = []
    runs: int = 0
    failed: int = 0
    job: JobInfo | None = None
    why: str = ""
    away: str = ""
    """Why the broker did not answer; the rest is then older."""


class Screen(msgspec.Struct):
    """Where the person at the terminal is."""

    view: View = "queues"
    row: int = 0
    queue: str | None = None
    """Only jobs of this queue."""
    state: State | None = None
    """Only jobs in this state."""
    job: str | None = None
    """The id of the job that is open."""
    message: str = ""
    asking: str = ""
    """An action that waits for `y`."""


def rates(now: Snapshot, before: Snapshot | None) -> tuple[float, float]:
    """Runs started and failed per second between two snapshots."""
    if before is None or now.at <= before.at:
        return 0.0, 0.0
    passed = now.at - before.at
    return max(0, now.runs - before.runs) / passed, max(0, now.failed - before.failed) / passed


def lines(
    screen: Screen, now: Snapshot, before: Snapshot | None, title: str, width: int, height: int
) -> list[str]:
    """The whole screen: exactly `height` lines of at most `width` characters."""
    body = _body(screen, now, width)
    titles, rows = body[0], body[1:]
    room = max(1, height - HEAD - FOOT)
    first = max(0, min(screen.row - room + 1, len(rows) - room)) if screen.view != "job" else screen.row
    shown = rows[first : first + room]
    if screen.view != "job":
        shown = [_marked(line, first + place == screen.row) for place, line in enumerate(shown)]
    shown += [""] * (room - len(shown))
    found = [_sums(now, before, title), _tabs(screen), titles, *shown, _message(screen, now), _help(screen)]
    return [_cut(line, width) for line in found[:height]]


def _marked(line: str, selected: bool) -> str:
    return f"{'>' if selected else ' '} {line}"


def _cut(line: str, width: int) -> str:
    line = harmless(line)
    return line if len(line) <= width else line[: width - 1] + "…"


def _sums(now: Snapshot, before: Snapshot | None, title: str) -> str:
    ready = sum(queue.counts.get(State.READY, 0) for queue in now.queues)
    running = sum(worker.running for worker in now.workers)
    slots = sum(worker.slots for worker in now.workers)
    runs, failed = rates(now, before)
    return (
        f"dray {title}  ready {ready:,}  running {running}/{slots}  workers {len(now.workers)}"
        f"  {runs:.1f} runs/s  {failed:.1f} failed/s"
    )


def _tabs(screen: Screen) -> str:
    tabs = [f"[{name}]" if name == screen.view else f" {name} " for name in VIEWS]
    where = [f"queue {screen.queue}" if screen.queue else "", str(screen.state or "")]
    return " ".join([*tabs, *filter(None, where)])


def _message(screen: Screen, now: Snapshot) -> str:
    if screen.asking:
        return f"{screen.asking}? y: yes, any other key: no"
    return f"the broker does not answer: {now.away}" if now.away else screen.message


def _help(screen: Screen) -> str:
    return f"Tab view · ↑ ↓ row · {KEYS[screen.view]} · q quit"


def _body(screen: Screen, now: Snapshot, width: int) -> list[str]:
    """The titles and the rows of a view."""
    if screen.view == "queues":
        return _table(QUEUE_TITLES, [queue_row(queue, now.workers, STATES) for queue in now.queues], width)
    if screen.view == "workers":
        return _table(WORKER_TITLES, [_worker(worker) for worker in now.workers], width)
    if screen.view == "errors":
        return _table(ERROR_TITLES, [_error(group) for group in now.errors], width)
    if screen.view == "jobs":
        return _table(JOB_TITLES, [_job(job) for job in now.jobs], width)
    return _job_lines(screen, now)


def _worker(worker: WorkerInfo) -> list[str]:
    average = "-" if worker.average is None else seconds(worker.average)
    role = "leader" if worker.leader else worker.state
    queues = ",".join(worker.queues)
    return [worker.id, f"{worker.running}/{worker.slots}", average, age(worker.seen), role, queues]


def _error(group: ErrorGroup) -> list[str]:
    error = one_line(f"{group.type}: {group.message}", 200)
    return [f"{group.count:,}", sparkline(group.hours), age(group.last_seen), group.task, error]


def _job(job: JobInfo) -> list[str]:
    status = "stopping" if job.cancelling else str(job.status)
    return [job.task, status, str(job.attempt), age(job.created_at), job.queue, job.id]


def _job_lines(screen: Screen, now: Snapshot) -> list[str]:
    if now.job is None or now.job.id != screen.job:
        return [f"job {screen.job}", "…"]
    found = [f"job {screen.job}"]
    for name, value in [*job_fields(now.job), ("why", now.why)]:
        first, *rest = value.splitlines() or [""]
        if first or rest:
            found += [f"{name + ':':<12} {first}", *(f"    {line}" for line in rest)]
    return found


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Columns as wide as what is in them; where that is too wide, the widest but the last are cut."""
    cells = [[harmless(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    others = widths[:-1]
    room = width - min(widths[-1], LAST_COLUMN) - 2 * len(widths)
    while sum(others) > room and max(others) > NARROWEST:
        others[others.index(max(others))] -= 1
    table = ["  ".join([*map(_fit, row, others), row[-1]]).rstrip() for row in [titles, *cells]]
    return [f"  {table[0]}", *table[1:]]


def _fit(cell: str, size: int) -> str:
    return cell.ljust(size) if len(cell) <= size else cell[: size - 1] + "…"
