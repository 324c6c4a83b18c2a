"""What is put to the test: the program's own classes, or ones with a bug in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dray.broker.memory import MemoryBroker
from dray.client import Client
from dray.worker.duties import Duty
from dray.worker.executor import Executor
from dray.worker.runners import OnLoop
from dray.worker.speculation import Speculation

SHARE: Final = 0.25
"""Second runs for each run: there are few jobs in a simulation, so more than usual."""


def speculation() -> Duty:
    return Speculation(share=SHARE)


@dataclass(frozen=True)
class Parts:
    broker: type[MemoryBroker] = MemoryBroker
    executor: type[Executor] = Executor
    on_loop: type[OnLoop] = OnLoop
    client: type[Client] = Client
    speculation: Callable[[], Duty] = speculation


REAL = Parts()
