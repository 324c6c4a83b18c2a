"""An app with a history: jobs run in process, the duty of the leader is stepped by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from dray import App, Reject
from dray.broker.verbs import Broker
from dray.history.database import open_database
from dray.history.parameters import write_parameters
from dray.history.store import Store
from dray.worker.duties.history import HistoryWriter
from dray.worker.retrying_broker import RetryingBroker


class Recorded:
    """The app, its jobs, and the reader of its feed."""

    def __init__(self, url: str, broker: str = "memory://", **settings: Any) -> None:
        self.app = App("shop", broker=broker, history_url=url, **settings)
        self.tasks()
        self.harness = self.app.testing().__enter__()
        self.writer = HistoryWriter(self.app.settings)

    def tasks(self) -> None:
        @self.app.task(name="email.send", queue="email", retries=1, backoff="fixed:1s,jitter=0")
        def send(to: str, password: str = "", user_id: int = 0) -> dict[str, str]:
            if "@" not in to:
                raise ConnectionError(f"ReadTimeout: no server for {to!r} after 30 s")
            return {"sent": to, "api_token": "abc"}

        @self.app.task(retries=0)
        def refuse(amount: int) -> None:
            raise Reject(f"no {amount}")

        @self.app.task
        def add(a: int, b: int = 0) -> int:
            return a + b

    def run(self) -> None:
        """Run all jobs, retries too."""
        self.harness.drain()
        self.harness.advance(5)
        self.harness.drain()

    def record(self, steps: int = 30) -> None:
        """Let the duty do its work until nothing is new."""
        asyncio.run(self._record(steps))

    async def _record(self, steps: int) -> None:
        async with self.broker() as broker:
            await write_parameters(broker, self.app.tasks)
            retrying = RetryingBroker(broker, 30.0)
            for _ in range(steps):
                if not await self.writer._step(retrying):
                    return
        raise AssertionError("the duty does not come to an end")

    @contextlib.asynccontextmanager
    async def broker(self) -> Any:
        broker: Broker = await self.app.connect()
        try:
            yield broker
        finally:
            await broker.close()

    def ids(self, q: str, **more: Any) -> list[str]:
        return [job.id for job in self.app.history.search(q, **more)]

    @contextlib.contextmanager
    def store(self) -> Iterator[Store]:
        database = open_database(self.app.settings.history_url or "")
        try:
            yield Store(database, "shop")
        finally:
            database.close()

    def close(self) -> None:
        self.harness.__exit__(None, None, None)
        self.app.close()
        self.writer._thread.close()
