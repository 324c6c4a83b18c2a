"""Where jobs live: `connect` opens what a URL names, `verbs` says what every broker can do."""

from __future__ import annotations

from collections.abc import Callable

from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Broker
from dray.errors import InvalidInput
from dray.job import check_name
from dray.policy import Retention

__all__ = ["Broker", "connect"]

SCHEMES = ("memory", "sqlite", "redis", "rediss", "redis+unix", "redis+cluster", "valkey")


async def connect(
    url: str,
    namespace: str = "dray",
    *,
    retention: Retention | None = None,
    blocking: bool = False,
    clock: Callable[[], int] | None = None,
) -> Broker:
    """Open a broker: `memory://`, `sqlite:///path` or `redis://host`; docs/brokers.md has their options.

    Jobs of different namespaces never see each other. With `blocking`, no verb ever suspends: run it with
    `verbs.run_blocking`. `clock` (milliseconds since the epoch) is for tests.
    """
    check_name("namespace", namespace)
    scheme = str(url).partition(":")[0]
    if scheme == "memory":
        if url != "memory://":
            raise InvalidInput("broker_url", url, "memory:// takes no path and no options")
        return MemoryBroker(namespace, retention=retention, clock=clock, blocking=blocking)
    if scheme == "sqlite":
        from dray.broker.sqlite import SqliteBroker

        return await SqliteBroker.open(url, namespace, retention=retention, blocking=blocking, clock=clock)
    if scheme.startswith(("redis", "valkey")):
        return await _connect_redis(url, namespace, retention, blocking, clock)
    raise InvalidInput(
        "broker_url", url, f"it must start with one of {', '.join(s + '://' for s in SCHEMES)}"
    )


async def _connect_redis(
    url: str, namespace: str, retention: Retention | None, blocking: bool, clock: Callable[[], int] | None
) -> Broker:
    try:
        from dray.broker.redis import RedisBroker
    except ModuleNotFoundError as error:
        if error.name != "hiredis":
            raise
        raise InvalidInput("broker_url", url, "it needs hiredis: pip install 'dray[redis]'") from None
    return await RedisBroker.open(url, namespace, retention=retention, blocking=blocking, clock=clock)
