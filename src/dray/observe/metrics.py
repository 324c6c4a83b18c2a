"""The text of the metrics, in the format of Prometheus.

    text = dray.observe.metrics(app)          # or await dray.observe.ametrics(app)

Workers count, and the broker keeps the counts: every server shows the same, and the counts of a worker stay
when it is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from prometheus_client import Metric, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from dray.app import App
from dray.client.link import Link
from dray.documents.worker_registry import WorkerInfo
from dray.observe.samples import families
from dray.observe.snapshot import Snapshot, gather
from dray.stats.tallies import WorkerTallies

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class SnapshotCollector(Collector):
    """A snapshot as Prometheus' registries take it."""

    def __init__(self, seen: Snapshot) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        return families(self._seen)


def render(seen: Snapshot) -> str:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(seen))
    return generate_latest(registry).decode()


def metrics(app: App) -> str:
    """The metrics of the whole system, as Prometheus reads them (docs/metrics.md)."""
    return render(app.client.block(_gather, app))


async def ametrics(app: App) -> str:
    """The same, awaited. A thread makes the text: with a thousand queues that takes a while."""
    return await asyncio.to_thread(render, await app.client.run(_gather, app))


async def _gather(link: Link, app: App) -> Snapshot:
    await app.client.arrivals.write(link.broker)
    return await gather(link.broker, app.tasks)


def of_worker(info: WorkerInfo, tallies: WorkerTallies) -> tuple[str, str]:
    """The metrics of one worker and its executors, and their media type."""
    seen = Snapshot(now=info.seen, tasks=tallies.tasks, events=tallies.events, workers=[info])
    return render(seen), CONTENT_TYPE
