"""Rates and percentiles of each kind of request, beside the same number of requests that do nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import Measurement, Row, Sample, interleave
from bench.service import node
from bench.service.client import CREDITS
from bench.service.plan import Plan
from bench.service.stage import Client, Floor, Served, Worker, brokers, ending

FLOOR = "floor"
DIRECT = "direct"
Times = dict[tuple[str, int, str], list[float]]


@dataclass
class Requests:
    """What was measured."""

    rows: list[Row] = field(default_factory=list)
    times: Times = field(default_factory=dict)
    """Seconds of each single request, by name, connections and subject; all rounds together."""


def measure(plan: Plan, folder: Path, tell: Callable[[str], None]) -> Requests:
    with contextlib.ExitStack() as stack:
        urls = stack.enter_context(brokers(folder))
        client, floor = Client(), Floor()
        stack.enter_context(ending(client, floor))
        places = {}
        for name, url in urls.items():
            served, worker = Served(url), Worker(url)
            stack.enter_context(ending(worker, served))
            places[name] = served
        bench = _Bench(plan, client, floor, places)
        rows = interleave(list(bench.measurements()), plan.rounds, tell)
        return Requests(rows, bench.times)


class _Bench:
    def __init__(self, plan: Plan, client: Client, floor: Floor, places: dict[str, Served]) -> None:
        self._plan, self._client, self._floor, self._places = plan, client, floor, places
        self.times: Times = {}

    def measurements(self) -> Iterator[Measurement]:
        plan, most = self._plan, self._plan.connections[-1]
        for connections in plan.connections:
            yield from self._both("HTTP: submit", connections, "http", "submit")
            for name, served in self._places.items():
                spec = {"by": "direct", "broker": served.broker}
                # Its CPU time is the client's own, which is not what a request costs the server.
                yield self._one("HTTP: submit", connections, f"{name} {DIRECT}", spec, None)
        yield from self._both(f"HTTP: batch of {plan.batch}", 8, "http", "batch", batch=plan.batch)
        yield from self._both("HTTP: get a job", most, "http", "get", empty=True)
        yield from self._both("HTTP: submit, wait for the result", 8, "http", "trip", times=2)
        for connections in plan.connections:
            yield from self._both("gRPC: Enqueue", connections, "rpc", "enqueue")
        yield from self._both(f"gRPC: EnqueueBatch of {plan.batch}", 8, "rpc", "batch", batch=plan.batch)
        yield from self._both("gRPC: FetchAndHold and Ack", 8, "rpc", "cycle", times=2)
        yield from self._streams()

    def _streams(self) -> Iterator[Measurement]:
        """Jobs drained over streams; the floor sends as many bytes there and back."""
        floor = {"by": "work", "kind": "floor", "port": self._floor.rpc}
        for name, connections in (("gRPC: Work", 1), ("gRPC: Work", 8), ("gRPC: Work, from Node", 1)):
            yield self._one(name, connections, FLOOR, floor, self._floor)
            for place, served in self._places.items():
                by = "node" if name.endswith("Node") else "work"
                yield self._one(
                    name, connections, place, {"by": by, "kind": "cycle", "port": served.rpc}, served
                )

    def _both(self, name: str, connections: int, by: str, kind: str, **more: object) -> Iterator[Measurement]:
        floor = {"by": by, "kind": "floor", "port": getattr(self._floor, by), **more}
        yield self._one(name, connections, FLOOR, floor, self._floor)
        for place, served in self._places.items():
            spec = {"by": by, "kind": kind, "port": getattr(served, by), **more}
            yield self._one(name, connections, place, spec, served)

    def _one(
        self,
        name: str,
        connections: int,
        subject: str,
        spec: dict[str, Any],
        server: Floor | Served | None,
    ) -> Measurement:
        times = self.times.setdefault((name, connections, subject), [])
        count = self._plan.requests if connections > 1 else max(8, self._plan.requests // 4)
        if "batch" in spec:
            count = max(8, count // 10)
        elif spec["by"] in ("work", "node"):
            count = 8 * self._plan.requests

        def run(number: int) -> Sample:
            self._prepare(spec, server, count + connections)
            before = 0.0 if server is None else server.cpu()
            if spec["by"] == "node":
                told = node.drain(node.install(), spec["port"], count, CREDITS)
            else:
                told = self._client.run(**spec, connections=connections, count=count)
            cpu = 0.0 if server is None else server.cpu() - before
            times.extend(told["times"])
            return Sample(told["seconds"], count * int(spec.get("batch", 1)), cpu)

        return Measurement(name, {"connections": connections}, subject, run)

    def _prepare(self, spec: dict[str, Any], server: Floor | Served | None, count: int) -> None:
        if not isinstance(server, Served) or spec["kind"] not in ("get", "cycle"):
            return
        app = server.app()
        try:
            if spec["kind"] == "get":
                spec["id"] = app.enqueue("noop", 1).id
            else:
                held = app.using(queue="held")
                app.enqueue_many([held.call("noop", 1) for _ in range(count)])
        finally:
            app.close()
