"""dray: a distributed task queue for Python.

`import dray` stays light: what needs an event loop or a database is loaded when it is first asked for.
"""

from __future__ import annotations

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
    ForeignStore,
    InvalidInput,
    InvalidSettings,
    JobCancelled,
    JobError,
    JobFailed,
    JobNotFound,
    JobStopped,
    JobTimeout,
    LeaseLost,
    NewerLayout,
    NewerVersion,
    QueueFull,
    ResultGone,
    ScheduleExists,
    ScheduleNotFound,
    SessionLost,
    SettingsWarning,
    TaskExit,
    TooLarge,
    UnknownDependency,
    UnknownTask,
    UnknownTaskWarning,
    WouldBlock,
)
from dray.job import State

if TYPE_CHECKING:
    from dray.app import App
    from dray.broker import Broker, connect
    from dray.call import Call
    from dray.codec import Codecs
    from dray.context import Context, Reject, Retry, current
    from dray.handle import JobHandle, aas_completed, agather, as_completed, gather
    from dray.info import JobInfo
    from dray.schedules import ScheduleInfo
    from dray.task import Task
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
    "ForeignStore",
    "InvalidInput",
    "InvalidSettings",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobHandle",
    "JobInfo",
    "JobNotFound",
    "JobStopped",
    "JobTimeout",
    "LeaseLost",
    "NewerLayout",
    "NewerVersion",
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
    "Task",
    "TaskExit",
    "TooLarge",
    "UnknownDependency",
    "UnknownTask",
    "UnknownTaskWarning",
    "Why",
    "WouldBlock",
    "__version__",
    "aas_completed",
    "agather",
    "as_completed",
    "connect",
    "current",
    "gather",
]

_LAZY = {
    "App": "dray.app",
    "Broker": "dray.broker",
    "connect": "dray.broker",
    "Call": "dray.call",
    "Codecs": "dray.codec",
    **dict.fromkeys(("Context", "Reject", "Retry", "current"), "dray.context"),
    **dict.fromkeys(("JobHandle", "aas_completed", "agather", "as_completed", "gather"), "dray.handle"),
    "JobInfo": "dray.info",
    "ScheduleInfo": "dray.schedules",
    "Task": "dray.task",
    "Why": "dray.why",
}
"""What needs an event loop, or more than the facts: loaded when it is first asked for."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
