"""Every metric: its kind, its labels and what it means. Docs and dashboards are checked against it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PREFIX: Final = "dray_"


class Metric(msgspec.Struct, frozen=True):
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    of_worker: bool = False
    """Whether a worker tells it of itself, too."""


_SAMPLED: Final = (
    " Beyond 256 runs per second, task and executor it is a sample: shares hold, counts are low."
)

TABLE: Final[dict[str, Metric]] = {
    "build_info": Metric("gauge", "Always 1; the version of dray that tells this.", ("version",), True),
    "runs": Metric(
        "counter",
        "Runs of jobs that ended, by what they came to: succeeded, retry (failed, and to be tried again),"
        " dead, cancelled, crashed (killed the child process it ran in), give_back (not run after all), lost"
        " (its lease was over before it ended).",
        ("task", "queue", "outcome"),
        True,
    ),
    "runs_started": Metric("counter", "Runs of jobs that were started.", ("task",), True),
    "run_seconds": Metric("histogram", "How long runs that succeeded took." + _SAMPLED, ("task",), True),
    "wait_seconds": Metric(
        "histogram",
        "From when a job was enqueued, or due, to its first start." + _SAMPLED,
        ("task",),
        True,
    ),
    "stalls": Metric(
        "counter", "How often a task kept an event loop from turning for over a second.", ("task",), True
    ),
    "stalled_seconds": Metric(
        "counter", "For how long tasks kept an event loop from turning.", ("task",), True
    ),
    "second_runs": Metric(
        "counter",
        "Second runs of slow jobs (speculate=True): launched, won (completed first), wasted.",
        ("task", "result"),
    ),
    "executor_deaths": Metric(
        "counter",
        "Executor processes that ended out of order: died (by themselves, or by the system), killed (by their"
        " supervisor: they hung).",
        ("cause",),
        True,
    ),
    "lease_losses": Metric(
        "counter", "Sessions that were out of contact for longer than their lease.", (), True
    ),
    "runs_freed": Metric("counter", "Runs of such sessions, which others were given.", (), True),
    "repairs": Metric("counter", "What sweeps found inconsistent in the store and put right.", ("kind",)),
    "queue_jobs": Metric("gauge", "Jobs of a queue by state, as far as they are kept.", ("queue", "state")),
    "queue_ready": Metric(
        "gauge",
        "Jobs that could start now. On Redis, of a queue with more than a thousand groups, the share of each"
        " priority is an estimate.",
        ("queue", "priority"),
    ),
    "queue_oldest_ready_seconds": Metric(
        "gauge",
        "How long ago the oldest job that could start now was enqueued. On Redis, in a long queue, of those"
        " at the head of the line.",
        ("queue", "priority"),
    ),
    "queue_due_late_seconds": Metric(
        "gauge", "By how much a job is overdue that waits to be made ready; 0 if none is.", ("queue",)
    ),
    "queue_paused": Metric("gauge", "1 while the queue is paused.", ("queue",)),
    "queue_paused_tasks": Metric("gauge", "How many tasks are paused in the queue.", ("queue",)),
    "queue_workers": Metric("gauge", "Workers that take jobs of the queue.", ("queue",)),
    "limit_reached": Metric(
        "gauge",
        "1 while a limit (max_running or rate) keeps ready jobs from starting: of a task, or of the whole"
        " queue where task is empty. Limits by key or group are not told.",
        ("queue", "task", "limit"),
    ),
    "schedules": Metric("gauge", "Schedules: active, paused, or ended (no further run).", ("state",)),
    "schedules_late": Metric("gauge", "Schedules whose next run is over a minute late."),
    "schedules_latest_seconds": Metric("gauge", "By how much the schedule that is latest is late."),
    "leader_present": Metric("gauge", "1 if somebody does the duties: upkeep, schedules, recovery."),
    "broker_round_trip_seconds": Metric(
        "gauge", "How long the broker took to answer whoever tells this, for a small document."
    ),
    "workers": Metric("gauge", "Workers by state.", ("state",)),
    "worker_info": Metric(
        "gauge", "Always 1; what is known of a worker.", ("worker", "host", "version", "mode"), True
    ),
    "worker_leader": Metric("gauge", "1 for the worker that does the duties.", ("worker",), True),
    "worker_executors": Metric("gauge", "Executor processes that are at work.", ("worker",), True),
    "worker_slots": Metric(
        "gauge", "Jobs that a worker runs now, and could run beside.", ("worker", "state"), True
    ),
    "worker_loop_lag_seconds": Metric(
        "gauge", "By how much an event loop was late at most, within a minute.", ("worker",), True
    ),
    "worker_silence_seconds": Metric("gauge", "How long ago a worker was last heard of.", ("worker",), True),
    "worker_clock_skew_seconds": Metric(
        "gauge", "By how much the clock of a worker's machine is ahead of the broker's.", ("worker",), True
    ),
    "worker_round_trip_seconds": Metric(
        "gauge", "What the slowest heartbeat to the broker took, within a minute.", ("worker",), True
    ),
}
"""By name, without the prefix and the `_total` of counters."""


def full_name(name: str) -> str:
    """As queries call it; a histogram has `_bucket`, `_sum` and `_count` to follow."""
    return PREFIX + name + ("_total" if TABLE[name].kind == "counter" else "")
