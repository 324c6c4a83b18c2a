"""Every metric: its kind, its labels and its meaning. Docs and dashboards are checked against it."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PREFIX: Final = "dray_"


class MetricSpec(msgspec.Struct, frozen=True):
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    of_worker: bool = False
    """A worker shows it on its own `/metrics`, too."""


_SAMPLED: Final = (
    " Beyond 256 runs per second, task and executor it is a sample: shares hold, counts are low."
)

TABLE: Final[dict[str, MetricSpec]] = {
    "build_info": MetricSpec("gauge", "Always 1; the version of dray that shows this.", ("version",), True),
    "jobs_accepted": MetricSpec(
        "counter",
        "Jobs that were enqueued, by source: python, http, grpc, cli or schedule. Duplicates and refused ones"
        " are not counted.",
        ("task", "queue", "source"),
    ),
    "runs": MetricSpec(
        "counter",
        "Runs of jobs that ended, by what they came to: succeeded, retry (failed, and to be tried again),"
        " dead, cancelled, crashed (killed the child process it ran in), give_back (not run after all), lost"
        " (its lease was over before it ended), suspended (the job sleeps or waits).",
        ("task", "queue", "outcome"),
        True,
    ),
    "flows": MetricSpec(
        "counter",
        "Flows that were enqueued (accepted), and that ended: succeeded, failed, or cancelled because a node"
        " was.",
        ("state",),
    ),
    "runs_started": MetricSpec("counter", "Runs of jobs that were started.", ("task",), True),
    "steps": MetricSpec(
        "counter",
        "Steps of durable jobs: run (each try), replayed (their value was remembered).",
        ("task", "result"),
        True,
    ),
    "run_seconds": MetricSpec("histogram", "How long runs that succeeded took." + _SAMPLED, ("task",), True),
    "wait_seconds": MetricSpec(
        "histogram",
        "From when a job was enqueued, or due, to its first start." + _SAMPLED,
        ("task",),
        True,
    ),
    "stalls": MetricSpec(
        "counter", "How often a task kept an event loop from turning for over a second.", ("task",), True
    ),
    "stalled_seconds": MetricSpec(
        "counter", "For how long tasks kept an event loop from turning.", ("task",), True
    ),
    "second_runs": MetricSpec(
        "counter",
        "Second runs of slow jobs (speculate=True): launched, won (completed first), wasted.",
        ("task", "result"),
    ),
    "executor_deaths": MetricSpec(
        "counter",
        "Executor processes that ended out of order: died (by themselves, or by the system), killed (by their"
        " supervisor: they hung).",
        ("cause",),
        True,
    ),
    "lease_losses": MetricSpec(
        "counter", "Sessions that were out of contact for longer than their lease.", (), True
    ),
    "runs_freed": MetricSpec("counter", "Runs of such sessions, which others were given.", (), True),
    "repairs": MetricSpec("counter", "What sweeps found inconsistent in the store and put right.", ("kind",)),
    "interrupted_steps": MetricSpec(
        "counter", "Steps that a killed process had begun and a sweep finished: no damage.", ("kind",)
    ),
    "data_losses": MetricSpec("counter", "How often workers found that the broker had lost all its data."),
    "queue_jobs": MetricSpec(
        "gauge", "Jobs of a queue by state, as far as they are kept.", ("queue", "state")
    ),
    "queue_ready": MetricSpec(
        "gauge",
        "Jobs that could start now. On Redis, of a queue with more than a thousand groups, the share of each"
        " priority is an estimate.",
        ("queue", "priority"),
    ),
    "queue_oldest_ready_seconds": MetricSpec(
        "gauge",
        "How long ago the oldest job that could start now was enqueued. On Redis, in a long queue, of those"
        " at the head of the line.",
        ("queue", "priority"),
    ),
    "queue_due_late_seconds": MetricSpec(
        "gauge", "By how much a job is overdue that waits to be made ready; 0 if none is.", ("queue",)
    ),
    "queue_paused": MetricSpec("gauge", "1 while the queue is paused.", ("queue",)),
    "queue_paused_tasks": MetricSpec("gauge", "How many tasks are paused in the queue.", ("queue",)),
    "queue_workers": MetricSpec("gauge", "Workers that take jobs of the queue.", ("queue",)),
    "limit_reached": MetricSpec(
        "gauge",
        "1 while a limit (max_running or rate) keeps ready jobs from starting: of a task, or of the whole"
        " queue where task is empty. Limits by key or group are left out.",
        ("queue", "task", "limit"),
    ),
    "schedules": MetricSpec("gauge", "Schedules: active, paused, or ended (no further run).", ("state",)),
    "schedules_late": MetricSpec("gauge", "Schedules whose next run is over a minute late."),
    "schedules_latest_seconds": MetricSpec("gauge", "By how much the schedule that is latest is late."),
    "leader_present": MetricSpec("gauge", "1 if a worker does the duties: upkeep, schedules, recovery."),
    "broker_round_trip_seconds": MetricSpec(
        "gauge", "How long the broker took to answer with a small document, on this server."
    ),
    "broker_cpu_seconds": MetricSpec(
        "counter", "CPU time that a Redis or Valkey server has used since it started.", ("server",)
    ),
    "broker_memory_bytes": MetricSpec("gauge", "Memory that a Redis or Valkey server uses.", ("server",)),
    "broker_memory_limit_bytes": MetricSpec(
        "gauge", "Memory that it may use at most (maxmemory); absent if there is no bound.", ("server",)
    ),
    "broker_clients": MetricSpec("gauge", "Connections that a Redis or Valkey server has open.", ("server",)),
    "workers": MetricSpec("gauge", "Workers by state.", ("state",)),
    "worker_info": MetricSpec(
        "gauge", "Always 1; what is known of a worker.", ("worker", "host", "version", "mode"), True
    ),
    "worker_leader": MetricSpec("gauge", "1 for the worker that does the duties.", ("worker",), True),
    "worker_executors": MetricSpec("gauge", "Executor processes that are at work.", ("worker",), True),
    "worker_slots": MetricSpec(
        "gauge", "Jobs that a worker runs now, and could run beside.", ("worker", "state"), True
    ),
    "worker_concurrency": MetricSpec(
        "gauge",
        "Jobs that a worker runs at a time at present, all its executors together.",
        ("worker",),
        True,
    ),
    "worker_loop_lag_seconds": MetricSpec(
        "gauge", "By how much an event loop was late at most, within a minute.", ("worker",), True
    ),
    "worker_silence_seconds": MetricSpec(
        "gauge", "How long ago a worker was last heard of.", ("worker",), True
    ),
    "worker_clock_skew_seconds": MetricSpec(
        "gauge", "By how much the clock of a worker's machine is ahead of the broker's.", ("worker",), True
    ),
    "worker_round_trip_seconds": MetricSpec(
        "gauge", "What the slowest heartbeat to the broker took, within a minute.", ("worker",), True
    ),
}
"""By name, without the prefix and the `_total` of counters."""


def full_name(name: str) -> str:
    """The name in queries; those of a histogram end with `_bucket`, `_sum` and `_count`."""
    return PREFIX + name + ("_total" if TABLE[name].kind == "counter" else "")
