"""What limits cost where they are set, and how long a flood of one tenant delays another.

The brokers are drained by one loop (take 32, settle 32) in this process: nothing but the broker is measured,
so that what a limit costs cannot hide behind what a worker costs. CPU time is that of this process and of the
server, if there is one: it tells what a busy machine's clock does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import Measurement, Row, Sample, interleave
from bench.peers import servers
from bench.report import count, table
from dray.broker import connect
from dray.broker.actions import Scope, SetLimits
from dray.broker.verbs import Beat, Broker, Filter, run_blocking
from dray.job import Error, Job, Outcome, OutcomeKind, Taken

BATCH = 32
LONG_AGO = 1_000_000
"""When delayed jobs are put: a little before their time."""
PLENTY = "1000000/s+1000000"
"""A rate that holds nothing back: what is measured is the counting."""
KINDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "no limit": lambda n: {},
    "rate of the task": lambda n: {"rate": PLENTY},
    "max_running of the task": lambda n: {"max_running": 1000},
    "rate per key, 100 keys": lambda n: {"rate": PLENTY, "rate_key": f"k{n % 100}"},
    "max_running per key, 100 keys": lambda n: {"max_running": 1000, "running_key": f"k{n % 100}"},
    "100 groups": lambda n: {"group": f"g{n % 100}"},
    "delayed": lambda n: {"due": LONG_AGO + 1},
    "retried once, per run": lambda n: {},
}
BY_OPERATOR = {
    "rate of the queue": SetLimits(rate=PLENTY),
    "max_running of the queue": SetLimits(max_running=1000),
}


def run(quick: bool, folder: Path) -> tuple[str, dict[str, Any]]:
    jobs, rounds, flood = (3000, 3, 20_000) if quick else (20_000, 7, 1_000_000)
    text: list[str] = []
    figures: dict[str, Any] = {}
    for name, opened in (("SQLite", _sqlite(folder)), ("Valkey", _valkey())):
        with opened as place:
            rows = interleave(list(_measurements(place, jobs)), rounds)
            delay = _flood(place.url, flood)
        text.append(_markdown(name, rows, delay, flood))
        figures[name] = {"drain": [_figures(row) for row in rows], "flood": {"jobs": flood, **delay}}
    return "\n".join(text), figures


class Place(NamedTuple):
    """A broker, and the CPU seconds that its server has used."""

    url: str
    cpu: Callable[[], float]


@contextmanager
def _sqlite(folder: Path) -> Iterator[Place]:
    yield Place(f"sqlite:///{folder}/flow.db", lambda: 0.0)


@contextmanager
def _valkey() -> Iterator[Place]:
    with servers.running(servers.find("valkey")) as server:
        yield Place(server.url, lambda: _cpu_of(server))


def _cpu_of(server: servers.Server) -> float:
    words = (word.partition(":") for word in server.ask("INFO", "cpu").split())
    return sum(float(value) for name, _, value in words if name in ("used_cpu_user", "used_cpu_sys"))


def _measurements(place: Place, jobs: int) -> Iterator[Measurement]:
    for kind, fields in KINDS.items():
        yield _measurement(place, kind, [Job(id=_id(n), task="t", **fields(n)) for n in range(jobs)], None)
    for kind, limits in BY_OPERATOR.items():
        yield _measurement(place, kind, [Job(id=_id(n), task="t") for n in range(jobs)], limits)


def _measurement(place: Place, kind: str, jobs: list[Job], limits: SetLimits | None) -> Measurement:
    def measure(round: int) -> Sample:
        namespace = f"{kind}-{round}".replace(" ", "-").replace(",", "")
        broker = run_blocking(connect(place.url, namespace, blocking=True))
        try:
            if limits is not None:
                run_blocking(broker.edit(Scope("default"), limits))
            run_blocking(broker.put(jobs, now=LONG_AGO if kind == "delayed" else None))
            return _drain(broker, len(jobs), place.cpu, 2 if kind.startswith("retried") else 1)
        finally:
            run_blocking(broker.close())

    return Measurement("drain", {"kind": kind}, "dray", measure)


def _id(number: int) -> str:
    """As the API makes them: an id tells its queue."""
    return f"default:{number:032x}"


def _drain(broker: Broker, jobs: int, server: Callable[[], float], runs: int = 1) -> Sample:
    """All jobs succeed in their last run of so many; the others fail, and are due a millisecond later."""
    run_blocking(broker.renew([Beat("s", 3_600_000)]))
    done = request = 0
    began, used = time.perf_counter(), time.process_time() + server()
    while done < runs * jobs:
        request += 1
        taken = run_blocking(broker.take("s", request, ["default"], Filter(), BATCH))
        run_blocking(broker.settle("s", [_outcome(one, runs, broker.clock()) for one in taken]))
        done += len(taken)
    return Sample(time.perf_counter() - began, runs * jobs, time.process_time() + server() - used)


def _outcome(taken: Taken, runs: int, now: int) -> Outcome:
    if taken.run == runs:
        return Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.SUCCEEDED)
    error = Error("ValueError", "not this time")
    return Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.RETRY, at=now + 1, error=error)


def _flood(url: str, size: int) -> dict[str, Any]:
    """A tenant with many jobs, then one job of another: how many are handed out before it, and how fast."""
    broker = run_blocking(connect(url, "flood", blocking=True))
    try:
        for first in range(0, size, 1000):
            run_blocking(
                broker.put([Job(id=_id(n), task="t", group="big") for n in range(first, first + 1000)])
            )
        run_blocking(broker.renew([Beat("s", 3_600_000)]))
        run_blocking(broker.take("s", 1, ["default"], Filter(), 1))
        began = time.perf_counter()
        run_blocking(broker.put([Job(id=_id(size), task="t", group="small")]))
        before, request = 0, 1
        while True:
            request += 1
            (one,) = run_blocking(broker.take("s", request, ["default"], Filter(), 1))
            if one.job.id == _id(size):
                return {"before": before, "milliseconds": round((time.perf_counter() - began) * 1000, 2)}
            before += 1
    finally:
        run_blocking(broker.close())


def _figures(row: Row) -> dict[str, Any]:
    rate = row.rate("dray")
    cpu = row.cpu("dray").median
    return {
        "kind": row.parameters["kind"],
        "rate": rate.median,
        "low": rate.low,
        "high": rate.high,
        "cpu": cpu,
    }


def _markdown(name: str, rows: list[Row], delay: dict[str, Any], flood: int) -> str:
    plain = rows[0].cpu("dray").median
    lines = [
        (
            row.parameters["kind"],
            count(row.rate("dray").median),
            f"{row.cpu('dray').median:.1f}",
            f"{row.cpu('dray').median / plain:.2f} ×",
        )
        for row in rows
    ]
    said = (
        f"One job of another tenant, put behind {count(flood)}: {delay['before']} of these are handed out "
        f"before it ({delay['milliseconds']} ms).\n"
    )
    return f"### {name}\n\n{table(('limit', 'jobs/s', 'CPU µs/job', 'of no limit'), lines)}\n{said}"
