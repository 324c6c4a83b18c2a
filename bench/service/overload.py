"""A server with more than it can do: it refuses quickly, keeps what it accepted, stays small, recovers.

Jobs that were accepted are looked for in the broker from outside, one by one.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import percentile
from bench.peers import servers
from bench.service.plan import Plan
from bench.service.stage import Client, Served, ending, valkey
from dray import App

TIMES = 4
"""So many times more connections than the server works on at a time."""
REQUEST_SIZE = 1 << 20
HUGE = 64
"""Times the largest request that is read."""


@dataclass(frozen=True)
class Ordeal:
    """One of them, and how it went."""

    name: str
    broker: str
    accepted: int
    lost: int
    """Accepted, and not in the broker afterwards."""
    statuses: dict[str, int]
    refused: int
    without_hint: int
    """Refused without being told when to come back."""
    refusal_p50: float
    refusal_p99: float
    before: int
    """Bytes of memory of the server at rest, after some requests."""
    peak: int
    after: int
    recovery: float
    """Seconds until a submit was accepted again; for a kill, by the next server."""


def measure(plan: Plan, folder: Path, tell: Callable[[str], None]) -> list[Ordeal]:
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    with servers.running(valkey()) as server:
        pid = _pid(server)
        for name, broker in (("SQLite", f"sqlite:///{folder}/jobs.db"), ("Valkey", server.url)):
            runs = [_crowd("http"), _crowd("rpc"), _huge, _readers]
            if name == "Valkey":
                runs += [_standstill(pid, "http"), _standstill(pid, "rpc")]
            with _scene(plan, broker) as scene:
                for run in (*runs, _kill("http"), _kill("rpc")):
                    tell(f"{name}, {run[0]}")
                    found.append(_ordeal(scene, name, run))
    return found


def _pid(server: servers.Server) -> int:
    lines = server.ask("INFO", "server").split()
    return int(next(line for line in lines if line.startswith("process_id:")).partition(":")[2])


class Scene:
    """A server whose room is small, and a client."""

    def __init__(self, plan: Plan, broker: str) -> None:
        self.plan, self.broker, self.client = plan, broker, Client()
        self.served = self.start()

    def start(self) -> Served:
        size = {"DRAY_MAX_REQUESTS": str(self.plan.room), "DRAY_MAX_REQUEST_SIZE": str(REQUEST_SIZE)}
        return Served(self.broker, **size, DRAY_ACCEPT_UNKNOWN_TASKS="true")

    @property
    def connections(self) -> int:
        return self.plan.room * TIMES

    def load(self, kind: str, seconds: float) -> dict[str, Any]:
        by = "crowd" if kind == "http" else "rpc crowd"
        port = getattr(self.served, kind)
        return {"by": by, "port": port, "connections": self.connections, "seconds": seconds}


Told = dict[str, Any]
Run = tuple[str, Callable[[Scene], Told]]


@contextlib.contextmanager
def _scene(plan: Plan, broker: str) -> Iterator[Scene]:
    scene = Scene(plan, broker)
    with ending(scene.client):
        try:
            warm = {"by": "http", "kind": "submit", "port": scene.served.http, "count": 10 * plan.room}
            scene.client.run(**warm, connections=min(4, plan.room))
            yield scene
        finally:
            scene.served.end()


def _ordeal(scene: Scene, broker: str, run: Run) -> Ordeal:
    name, play = run
    before = scene.served.forget_peak()
    told = play(scene)
    recovery = _recovery(scene.served)
    peak = told.get("peak") or scene.served.peak()
    return Ordeal(
        name,
        broker,
        len(told["accepted"]),
        len(missing(scene.served.app(), told["accepted"])),
        told["statuses"],
        len(told["refusals"]),
        told["without_hint"],
        percentile(told["refusals"], 50) if told["refusals"] else 0.0,
        percentile(told["refusals"], 99) if told["refusals"] else 0.0,
        before,
        peak,
        scene.served.memory(),
        told.get("restart", 0.0) + recovery,
    )


def _recovery(served: Served) -> float:
    """Seconds until one submit is accepted."""
    began = time.perf_counter()
    while True:
        link = http.client.HTTPConnection("127.0.0.1", served.http, timeout=30)
        link.request("POST", "/api/jobs", b'{"task": "noop"}', {"Content-Type": "application/json"})
        status = link.getresponse().status
        link.close()
        if status == 201:
            return time.perf_counter() - began
        time.sleep(0.001)


def missing(app: App, ids: Sequence[str]) -> list[str]:
    """Those that the broker does not know."""
    try:
        return list(_missing(app, ids))
    finally:
        app.close()


def _missing(app: App, ids: Sequence[str]) -> Iterator[str]:
    known = {info.id for info in app.jobs.find(limit=None)}
    yield from (id for id in ids if id not in known)


def _crowd(kind: str) -> Run:
    def play(scene: Scene) -> Told:
        return scene.client.run(**scene.load(kind, scene.plan.seconds))

    return f"{TIMES} × the connections, {_SHOWN[kind]}", play


_SHOWN = {"http": "HTTP", "rpc": "gRPC"}


def _standstill(pid: int, kind: str) -> Run:
    def play(scene: Scene) -> Told:
        scene.client.start(**scene.load(kind, 2 * scene.plan.pause))
        time.sleep(scene.plan.pause / 2)
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(scene.plan.pause)
        finally:
            os.kill(pid, signal.SIGCONT)
        return scene.client.finish()

    return f"the broker stands still meanwhile, {_SHOWN[kind]}", play


def _play_huge(scene: Scene) -> Told:
    return scene.client.run(
        by="huge", port=scene.served.http, connections=scene.connections, bytes=HUGE * REQUEST_SIZE
    )


_huge: Run = ("bodies without end", _play_huge)


def _play_readers(scene: Scene) -> Told:
    load = scene.load("http", scene.plan.seconds)
    return scene.client.run(**load | {"by": "readers", "readers": scene.plan.readers})


_readers: Run = ("readers of events that do not read", _play_readers)


def _kill(kind: str) -> Run:
    def play(scene: Scene) -> Told:
        scene.client.start(**scene.load(kind, 600))
        time.sleep(scene.plan.seconds)
        peak = scene.served.peak()
        scene.served.end(signal.SIGKILL)
        told = scene.client.finish()
        began = time.perf_counter()
        scene.served = scene.start()
        return told | {"peak": peak, "restart": time.perf_counter() - began}

    return f"SIGKILL, {_SHOWN[kind]}", play
