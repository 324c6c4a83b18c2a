"""Where jobs live. `connect` opens the broker that a URL names.

blocking           runs a verb without an event loop
actions            changes by hand, and the jobs or queues they select
durable            the log and the mailbox of a durable job
interest           the interest of a waiter, and the reply of `wait`
verbs              the documented verbs of every broker, their arguments and replies
servers            memory and CPU use of the servers behind a broker
repairs            the kinds of damage that `sweep` repairs
checks             checks of arguments, and how stored values are read and shown
rules              decisions about jobs, as pure functions
base               the base class of brokers: signatures and checks of all verbs
memory/            the reference broker, for tests
sqlite/            the embedded broker: one file, many processes
redis/             the broker for many machines
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dray.broker.verbs import Broker
from dray.errors import InvalidInput
from dray.job import check_name
from dray.policy import ConnectionSettings, Retention

__all__ = ["Broker", "connect"]

SCHEMES: Final = (
    *("memory", "sqlite", "redis", "rediss", "redis+unix", "redis+cluster", "rediss+cluster"),
    *("valkey", "valkeys", "valkey+unix", "valkey+cluster"),
    *("redis+sentinel", "rediss+sentinel", "valkey+sentinel"),
)


async def connect(
    url: str,
    namespace: str = "dray",
    *,
    retention: Retention | None = None,
    access: ConnectionSettings | None = None,
    blocking: bool = False,
    clock: Callable[[], int] | None = None,
) -> Broker:
    """Open a broker: `memory://`, `sqlite:///path` or `redis://host`; docs/brokers.md has their options.

    Jobs of different namespaces never see each other. `access` says how long it may take to connect and to
    answer, unless the URL does. With `blocking`, no verb ever suspends: run it with `verbs.run_blocking`.
    `clock` (milliseconds since the epoch) is for tests.
    """
    check_name("namespace", namespace)
    scheme = str(url).partition(":")[0]
    if scheme == "memory":
        if url != "memory://":
            raise InvalidInput("broker_url", url, "memory:// takes no path and no options")
        from dray.broker.memory import MemoryBroker

        return MemoryBroker(namespace, retention=retention, clock=clock, blocking=blocking)
    if scheme == "sqlite":
        from dray.broker.sqlite import SqliteBroker

        return await SqliteBroker.open(
            url, namespace, retention=retention, access=access, blocking=blocking, clock=clock
        )
    if scheme.startswith(("redis", "valkey")):
        return await _connect_redis(url, namespace, retention, access, blocking, clock)
    raise InvalidInput(
        "broker_url", url, f"it must start with one of {', '.join(s + '://' for s in SCHEMES)}"
    )


async def _connect_redis(
    url: str,
    namespace: str,
    retention: Retention | None,
    access: ConnectionSettings | None,
    blocking: bool,
    clock: Callable[[], int] | None,
) -> Broker:
    try:
        from dray.broker.redis import RedisBroker
    except ModuleNotFoundError as error:
        if error.name != "hiredis":
            raise
        raise InvalidInput("broker_url", url, "it needs hiredis: pip install 'dray[redis]'") from None
    return await RedisBroker.open(
        url, namespace, retention=retention, access=access, blocking=blocking, clock=clock
    )
