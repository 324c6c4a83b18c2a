"""The classes under test: the program's own, or ones with a planted bug."""

from __future__ import annotations

from dataclasses import dataclass

from dray.broker.memory import MemoryBroker
from dray.client.client import Client
from dray.worker.duties.speculation import Speculation
from dray.worker.executor.executor import Executor
from dray.worker.run.child_pool import ChildPool
from dray.worker.run.perform import OnLoop


@dataclass(frozen=True)
class Parts:
    broker: type[MemoryBroker] = MemoryBroker
    executor: type[Executor] = Executor
    on_loop: type[OnLoop] = OnLoop
    children: type[ChildPool] = ChildPool
    client: type[Client] = Client
    speculation: type[Speculation] = Speculation


REAL = Parts()
