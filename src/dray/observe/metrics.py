"""The text of the metrics, as Prometheus and whoever else speaks its format reads it.

    text = dray.observe.metrics(app)          # or await dray.observe.ametrics(app)

What is counted is counted by workers and kept in the broker: every server tells the same, and a worker that
is gone, in whatever way, takes nothing of what it had told with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from dray.app import App
from dray.client import Link
from dray.observe.families import families
from dray.observe.gathering import Snapshot, gather
from dray.roster import WorkerInfo
from dray.stats import WorkerTallies

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Told(Collector):
    """What was seen, for a registry."""

    def __init__(self, seen: Snapshot) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        return families(self._seen)


def render(seen: Snapshot) -> str:
    """The text of what was seen."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Told(seen))
    return generate_latest(registry).decode()


def metrics(app: App) -> str:
    """How everything stands, as Prometheus reads it (docs/metrics.md)."""
    return render(app.client.block(_gather, app))


async def ametrics(app: App) -> str:
    """The same, awaited. The text is made in a thread: with a thousand queues that takes a while."""
    return await asyncio.to_thread(render, await app.client.run(_gather, app))


async def _gather(link: Link, app: App) -> Snapshot:
    return await gather(link.broker, app.tasks)


def of_worker(info: WorkerInfo, told: WorkerTallies) -> tuple[str, str]:
    """What one worker tells of itself and all its executors, and the media type of it."""
    seen = Snapshot(now=info.seen, tasks=told.tasks, events=told.events, workers=[info])
    return render(seen), CONTENT_TYPE
