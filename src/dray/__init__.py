"""dray: a distributed task queue for Python.

`import dray` loads the errors alone; everything else is loaded at first use.

The rooms, from the ground up. Each imports only from rooms above it in this list:

    errors passwords early_signals   every error as one tree; logins hidden in URLs; signals while importing
    retry_pauses                     the pauses between tries of something that failed
    duration job policy options      lengths of time; a job; its backoff and rate; the table of its options
    codec/                           calls, values and results as bytes
    settings/                        the settings, their sources and allowed values
    broker/                          where jobs live: the verbs, in memory, on SQLite, on Redis
    documents/ stats/                documents of the broker: workers, queues, repairs; counts, durations
    durable/ context task info       durable steps and their log; a running job; a task; a job described
    client/ why/                     from an app to its broker, blocking and awaited; why a job does not run
    handle                           the handle of a job: result, state, cancel, retry
    history/                         what happened to jobs, in a SQL database; its search
    admin/                           the parts of an app for operators: jobs, queues, workers, API keys
    schedules/                       cron and interval rules, and the jobs they make
    flows/                           jobs that wait for each other and pass on their results
    discovery app loading            modules that hold tasks; the app; the app that a command names
    observe/                         metrics in the format of Prometheus
    worker/                          the supervisor, its executors, their runs, the duties
    serve/                           HTTP and gRPC
    testing/                         `app.testing()`, the pytest plugin, the conformance suite
    cli/ demo/                       the command `dray`, and its tour
    contrib/                         dray inside other frameworks
"""

from __future__ import annotations

from dray import early_signals as _early_signals  # noqa: F401 (first: later imports take a while)

# isort: split
from importlib import import_module
from typing import TYPE_CHECKING

from dray.errors import (
    AppNotFound,
    BrokerAway,
    BrokerBusy,
    BrokerError,
    BrokerFull,
    BrokerGone,
    BrokerReadOnly,
    BrokerWarning,
    CodecError,
    DecodeError,
    DrayError,
    DuplicateJob,
    EncodeError,
    EnqueueLimited,
    EventTimeout,
    ForeignStore,
    HistoryError,
    HistoryOff,
    InvalidInput,
    InvalidSettings,
    JobCancelled,
    JobError,
    JobFailed,
    JobFinished,
    JobNotFound,
    JobStopped,
    JobTimeout,
    LastAdminKey,
    LeaseLost,
    MailboxFull,
    MissingLibrary,
    NewerLayout,
    NewerVersion,
    NoResult,
    QueueFull,
    ResultGone,
    ScheduleExists,
    ScheduleNotFound,
    SessionLost,
    SettingsWarning,
    StepFailed,
    StepUncertain,
    TaskExit,
    TooLarge,
    UnknownDependency,
    UnknownTask,
    UnknownTaskWarning,
    WorkerSilent,
    WouldBlock,
)

if TYPE_CHECKING:
    from dray.app import App
    from dray.broker import Broker, connect
    from dray.codec.payload import Codecs
    from dray.context import Context, Reject, Retry, current
    from dray.flows.builders import Flow, Node, chain, chord, group
    from dray.flows.handle import FlowHandle
    from dray.flows.reading import FlowInfo, FlowState, FlowStatus
    from dray.handle import JobHandle, aas_completed, agather, as_completed, gather
    from dray.info import JobInfo
    from dray.job import State
    from dray.schedules.api import ScheduleInfo
    from dray.task import Call, Task
    from dray.why import Why

__version__ = "0.1.0.dev0"

__all__ = [
    "App",
    "AppNotFound",
    "Broker",
    "BrokerAway",
    "BrokerBusy",
    "BrokerError",
    "BrokerFull",
    "BrokerGone",
    "BrokerReadOnly",
    "BrokerWarning",
    "Call",
    "CodecError",
    "Codecs",
    "Context",
    "DecodeError",
    "DrayError",
    "DuplicateJob",
    "EncodeError",
    "EnqueueLimited",
    "EventTimeout",
    "Flow",
    "FlowHandle",
    "FlowInfo",
    "FlowState",
    "FlowStatus",
    "ForeignStore",
    "HistoryError",
    "HistoryOff",
    "InvalidInput",
    "InvalidSettings",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobFinished",
    "JobHandle",
    "JobInfo",
    "JobNotFound",
    "JobStopped",
    "JobTimeout",
    "LastAdminKey",
    "LeaseLost",
    "MailboxFull",
    "MissingLibrary",
    "NewerLayout",
    "NewerVersion",
    "NoResult",
    "Node",
    "QueueFull",
    "Reject",
    "ResultGone",
    "Retry",
    "ScheduleExists",
    "ScheduleInfo",
    "ScheduleNotFound",
    "SessionLost",
    "SettingsWarning",
    "State",
    "StepFailed",
    "StepUncertain",
    "Task",
    "TaskExit",
    "TooLarge",
    "UnknownDependency",
    "UnknownTask",
    "UnknownTaskWarning",
    "Why",
    "WorkerSilent",
    "WouldBlock",
    "__version__",
    "aas_completed",
    "agather",
    "as_completed",
    "chain",
    "chord",
    "connect",
    "current",
    "gather",
    "group",
]

_LAZY = {
    "App": "dray.app",
    "Broker": "dray.broker",
    "connect": "dray.broker",
    "Call": "dray.task",
    "Codecs": "dray.codec.payload",
    **dict.fromkeys(("Context", "Reject", "Retry", "current"), "dray.context"),
    **dict.fromkeys(("JobHandle", "aas_completed", "agather", "as_completed", "gather"), "dray.handle"),
    **dict.fromkeys(("Flow", "Node", "chain", "chord", "group"), "dray.flows.builders"),
    "FlowHandle": "dray.flows.handle",
    **dict.fromkeys(("FlowInfo", "FlowState", "FlowStatus"), "dray.flows.reading"),
    "JobInfo": "dray.info",
    "ScheduleInfo": "dray.schedules.api",
    "State": "dray.job",
    "Task": "dray.task",
    "Why": "dray.why",
}
"""Names that are loaded at first use."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
