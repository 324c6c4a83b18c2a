"""What is put to the test: the program's own classes, or ones with a bug in them."""

from __future__ import annotations

from dataclasses import dataclass

from dray.broker.memory import MemoryBroker
from dray.client import Client
from dray.worker.executor import Executor
from dray.worker.runners import OnLoop
from dray.worker.speculation import Speculation


@dataclass(frozen=True)
class Parts:
    broker: type[MemoryBroker] = MemoryBroker
    executor: type[Executor] = Executor
    on_loop: type[OnLoop] = OnLoop
    client: type[Client] = Client
    speculation: type[Speculation] = Speculation


REAL = Parts()
