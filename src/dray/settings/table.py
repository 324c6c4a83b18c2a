"""Every setting: its form, default and purpose; docs/settings.md and `dray doctor --settings` show it."""

from __future__ import annotations

from typing import Final

import msgspec

from dray.duration import DAY, HOUR
from dray.options import RETRIES_MAX
from dray.settings import forms
from dray.settings.forms import Form
from dray.settings.model import AUTO_MOST, AUTO_START, Settings

BROKER_SCHEMES: Final = (
    *("memory", "sqlite", "redis", "rediss", "redis+unix", "redis+cluster", "rediss+cluster"),
    *("valkey", "valkeys", "valkey+unix", "valkey+cluster"),
    *("redis+sentinel", "rediss+sentinel", "valkey+sentinel"),
)
THIN_CONCURRENCY: Final = 4


class Setting(msgspec.Struct, frozen=True):
    form: Form
    help: str
    default: str = ""
    """The description of a default that is not a plain value."""


TABLE: Final[dict[str, Setting]] = {
    "broker_url": Setting(
        forms.url(*BROKER_SCHEMES),
        "Where jobs live. A relative sqlite path in a file counts from that file's folder.",
        "sqlite:///.dray/dray.db in the project's folder",
    ),
    "namespace": Setting(
        forms.name,
        "Apps of different namespaces on one broker never see each other's jobs.",
        "the App's name, else dray",
    ),
    "queues": Setting(
        forms.queues,
        "The queues a worker serves, strictly in this order; those that a pattern (tenant-*) or `all` matches"
        " take turns.",
        "those that the app's tasks name, and default, taking turns",
    ),
    "priorities": Setting(
        forms.optional(forms.priorities, "all"), "The only priorities a worker takes; a name means its band."
    ),
    "tasks": Setting(
        forms.optional(forms.names, "all"), "The only tasks a worker takes.", "all that the app registers"
    ),
    "imports": Setting(
        forms.modules,
        "Modules that commands and workers import beside the app's own, so that their tasks are known.",
        "none",
    ),
    "mode": Setting(
        forms.choice("thin", "default", "specialized", "job-specialized", "scheduler-only"),
        "What a worker is for: thin (one process, few jobs at a time), default, specialized (chosen"
        " priorities, no scheduling), job-specialized (chosen tasks, no scheduling), scheduler-only"
        " (runs no jobs).",
    ),
    "scheduler": Setting(
        forms.switch,
        "Whether a worker makes the jobs of schedules; auto: unless its mode is specialized or"
        " job-specialized.",
    ),
    "processes": Setting(
        forms.whole(1, 1024), "Executor processes of a worker.", "the processors it may use; 1 in mode thin"
    ),
    "concurrency": Setting(
        forms.or_auto(forms.whole(1, 1000)),
        f"Jobs that one executor runs at a time; auto: it starts with {AUTO_START} and finds the number that"
        f" suits the jobs, up to {AUTO_MOST}.",
        f"auto; {THIN_CONCURRENCY} in mode thin",
    ),
    "rate": Setting(
        forms.optional(forms.rate), "Jobs that a worker starts at most per time, all its processes together."
    ),
    "lease": Setting(
        forms.duration(100, DAY), "How long a worker may be out of contact before its jobs go to others."
    ),
    "heartbeat": Setting(
        forms.duration(10, DAY),
        "How often a worker renews its lease; at most half of it.",
        "a third of lease",
    ),
    "sweep_interval": Setting(
        forms.duration(10, HOUR), "How often upkeep runs: due jobs, lapsed leases, pruning."
    ),
    "stall_limit": Setting(
        forms.duration(100, DAY), "An executor whose event loop is blocked for longer is killed and replaced."
    ),
    "shutdown_grace": Setting(
        forms.duration(0, DAY),
        "How long running jobs may finish after a stop signal before they are handed back.",
    ),
    "timeout": Setting(
        forms.timeout(), "How long a job may run, unless its task says otherwise; 0: as long as it likes."
    ),
    "retries": Setting(
        forms.whole(0, RETRIES_MAX), "Attempts after the first, unless the task says otherwise."
    ),
    "backoff": Setting(forms.backoff, "The wait between attempts, unless the task says otherwise."),
    "max_crashes": Setting(
        forms.whole(1, 1_000_000), "A job that crashes its process this often is dead as poison."
    ),
    "result_ttl": Setting(forms.duration(0), "How long results are kept; 0 turns them off."),
    "error_ttl": Setting(forms.duration(0), "How long the last error of a job that did not die is kept."),
    "done_ttl": Setting(forms.duration(0), "How long succeeded and cancelled jobs are kept."),
    "dead_ttl": Setting(
        forms.optional(forms.duration(0)), "How long dead jobs are kept; none keeps them until purged."
    ),
    "max_payload": Setting(
        forms.size(1024, 1 << 30), "The largest call that may be enqueued, before compression."
    ),
    "max_result": Setting(forms.size(1024, 1 << 30), "The largest result that is kept, before compression."),
    "max_jobs_per_process": Setting(
        forms.optional(forms.whole(1, 1_000_000_000)), "An executor is replaced after this many jobs."
    ),
    "max_memory": Setting(
        forms.optional(forms.size(16 << 20, 1 << 50)),
        "An executor that uses more is replaced once its jobs are done.",
    ),
    "pool_size": Setting(
        forms.whole(1, 10_000),
        "Connections that the threads of a process share, to each server of the broker; waiting for results"
        " takes one more, whatever number of threads wait.",
    ),
    "connect_timeout": Setting(forms.duration(10, HOUR), "How long connecting to a server may take."),
    "read_timeout": Setting(forms.duration(10, HOUR), "How long the broker may take to answer a call."),
    "durability": Setting(
        forms.choice("normal", "full"),
        "normal: the last moments before a power cut may be lost; full: nothing acknowledged is.",
    ),
    "allow_pickle": Setting(
        forms.flag, "Read and write pickled payloads: whoever writes to the broker can run code."
    ),
    "codec": Setting(
        msgspec.structs.replace(
            forms.name, allowed="msgpack, json, protobuf, pickle, or the name of a codec the app registers,"
        ),
        "How arguments and results are encoded.",
    ),
    "history_url": Setting(
        forms.optional(forms.url("sqlite", "postgresql", "postgres")),
        "The database in which workers record what happened to jobs, for `dray history`; not the broker's.",
    ),
    "history_payloads": Setting(
        forms.flag, "The history records arguments, results and progress, less what history_redact hides."
    ),
    "history_redact": Setting(
        forms.patterns,
        "Fields of arguments and results that the history hides: patterns of names, for some tasks as"
        " TASK:FIELD, for everything of a task as TASK:*.",
    ),
    "history_ttl": Setting(
        forms.duration(60_000), "How long the history keeps jobs, attempts, events and errors."
    ),
    "history_max_size": Setting(
        forms.optional(forms.size(1 << 20, 1 << 50)),
        "The history deletes the oldest jobs when the values of all take more bytes.",
    ),
    "http": Setting(forms.address, "Where the server listens for HTTP."),
    "grpc": Setting(forms.optional(forms.address), "Where the server listens for gRPC; none: nowhere."),
    "api_keys": Setting(
        forms.secrets,
        "Keys of the server beside those of `dray keys`: role+role:secret or role:sha256=hex; without a role,"
        " all are meant.",
        "none",
    ),
    "accept_unknown_tasks": Setting(
        forms.flag, "The server accepts jobs of tasks that its app does not have; workers may."
    ),
    "key_rate": Setting(
        forms.optional(forms.rate), "Requests that the server accepts per key (without keys: per address)."
    ),
    "max_requests": Setting(forms.whole(1, 100_000), "Requests that the server works on at a time."),
    "max_waiting": Setting(
        forms.whole(1, 100_000), "Clients that may wait for results and follow events at a time."
    ),
    "max_request_size": Setting(forms.size(1024, 1 << 30), "The largest request that the server reads."),
    "allowed_hosts": Setting(
        forms.hosts,
        "Names under which the server may be called, beside localhost and its address.",
        "any; on loopback none",
    ),
    "cors_origins": Setting(
        forms.origins, "Web pages of other origins that may use the server from a browser.", "none"
    ),
    "tls_cert": Setting(forms.optional(forms.path), "File with the server's certificate chain (PEM)."),
    "tls_key": Setting(forms.optional(forms.path), "File with the key of that certificate (PEM)."),
    "metrics": Setting(
        forms.optional(forms.address),
        "Where a worker answers /metrics, /healthz and /readyz over HTTP; none: nowhere.",
    ),
    "log_level": Setting(
        forms.choice("debug", "info", "warning", "error", "critical"), "What is logged at least."
    ),
    "log_format": Setting(forms.choice("console", "json"), "How log lines look."),
    "log_output": Setting(
        forms.optional(forms.choice("stderr", "stdout", "file"), "auto"),
        "Where log lines go.",
        "stderr; file where log_file is set",
    ),
    "log_file": Setting(
        forms.optional(forms.path),
        "The file that log lines are added to. It may be moved away or rotated at any time: the next line"
        " opens a new one.",
    ),
    "otel": Setting(forms.flag, "Trace with OpenTelemetry, where it is installed."),
}


class SettingInfo(msgspec.Struct, frozen=True):
    """One setting, as docs and `dray doctor --settings` show it."""

    name: str
    default: str
    allowed: str
    env: str
    help: str


def describe() -> list[SettingInfo]:
    """Every setting in the order of `Settings`."""
    plain = Settings(broker_url="", namespace="")
    return [
        SettingInfo(
            name=name,
            default=setting.default or setting.form.show(getattr(plain, name)),
            allowed=setting.form.allowed.removesuffix(","),
            env=variable(name),
            help=setting.help,
        )
        for name, setting in TABLE.items()
    ]


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"DRAY_{name.upper()}"


def show(name: str, value: object) -> str:
    """A setting's value as text: durations and sizes with units, secrets hidden."""
    return TABLE[name].form.show(value)
