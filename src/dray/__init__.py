"""dray: a distributed task queue for Python.

`import dray` stays light: what needs an event loop or a database is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from dray.errors import (
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
    ForeignStore,
    InvalidInput,
    JobCancelled,
    JobError,
    JobFailed,
    JobNotFound,
    JobTimeout,
    NewerLayout,
    NewerVersion,
    QueueFull,
    SessionLost,
    TooLarge,
    UnknownDependency,
)
from dray.job import State

if TYPE_CHECKING:
    from dray.broker import Broker, connect

__version__ = "0.1.0.dev0"

__all__ = [
    "Broker",
    "BrokerAway",
    "BrokerBusy",
    "BrokerError",
    "BrokerFull",
    "BrokerGone",
    "BrokerReadOnly",
    "BrokerWarning",
    "CodecError",
    "DecodeError",
    "DrayError",
    "DuplicateJob",
    "EncodeError",
    "ForeignStore",
    "InvalidInput",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "JobTimeout",
    "NewerLayout",
    "NewerVersion",
    "QueueFull",
    "SessionLost",
    "State",
    "TooLarge",
    "UnknownDependency",
    "__version__",
    "connect",
]

_LAZY = {"Broker": "dray.broker", "connect": "dray.broker"}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
