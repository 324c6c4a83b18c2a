"""The report: Markdown for people, JSON for whoever computes with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from bench.measure import Row, percentile
from bench.report import count, micro, spread, table
from bench.service.cases import DIRECT, FLOOR, Requests
from bench.service.overload import Ordeal
from bench.service.plan import Plan

MEBIBYTE = 1 << 20


@dataclass
class Results:
    facts: dict[str, object]
    plan: Plan
    requests: Requests = field(default_factory=Requests)
    ordeals: list[Ordeal] = field(default_factory=list)


def markdown(results: Results) -> str:
    facts = results.facts
    noise = "" if facts["quiet"] else " **The machine was not quiet: only ratios mean something.**"
    return "\n".join(
        (
            f"{facts['date']}, {facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, "
            f"SQLite {facts['sqlite']}, {facts['valkey']}, {facts['versions']}; {results.plan.name} run, "
            f"medians of {results.plan.rounds} rounds, load {facts['load']} at the start.{noise}\n",
            "Requests per second (of batches: jobs). The floor is an empty handler that is sent as much:\n",
            table(
                (
                    "what",
                    "connections",
                    "broker",
                    "floor",
                    "dray",
                    "dray / floor",
                    "p50",
                    "p95",
                    "p99",
                    "CPU µs",
                ),
                _requests(results.requests),
            ),
            "A submit beside `await app.aenqueue()` by as many callers in one process, without a server:\n",
            table(("broker", "at a time", "aenqueue", "HTTP", "HTTP / aenqueue"), _direct(results.requests)),
            f"Too much, with `max_requests` {results.plan.room}:\n",
            table(
                (
                    "what",
                    "broker",
                    "accepted",
                    "of them lost",
                    "refused",
                    "p50",
                    "p99",
                    "MB before",
                    "peak",
                    "after",
                    "next accepted after",
                ),
                _ordeals(results.ordeals),
            ),
        )
    )


def _brokers(row: Row) -> list[str]:
    return [subject for subject in row.samples if subject != FLOOR and not subject.endswith(DIRECT)]


def _requests(requests: Requests) -> Iterator[list[object]]:
    for row in requests.rows:
        connections = int(row.parameters["connections"])
        for broker in _brokers(row):
            times = requests.times[row.name, connections, broker]
            yield [
                row.name,
                connections,
                broker,
                count(row.rate(FLOOR).median),
                count(row.rate(broker).median),
                spread(row.ratio(broker, FLOOR)),
                *(micro(percentile(times, percent)) for percent in (50, 95, 99)),
                count(row.cpu(broker).median),
            ]


def _direct(requests: Requests) -> Iterator[list[object]]:
    for row in requests.rows:
        for broker in _brokers(row):
            direct = f"{broker} {DIRECT}"
            if direct in row.samples:
                yield [
                    broker,
                    row.parameters["connections"],
                    count(row.rate(direct).median),
                    count(row.rate(broker).median),
                    spread(row.ratio(broker, direct)),
                ]


def _ordeals(ordeals: list[Ordeal]) -> Iterator[list[object]]:
    for one in ordeals:
        yield [
            one.name,
            one.broker,
            count(one.accepted),
            one.lost,
            count(one.refused),
            micro(one.refusal_p50) if one.refused else "–",
            micro(one.refusal_p99) if one.refused else "–",
            *(round(size / MEBIBYTE) for size in (one.before, one.peak, one.after)),
            micro(one.recovery),
        ]


def data(results: Results) -> dict[str, object]:
    return {
        "facts": results.facts,
        "plan": asdict(results.plan),
        "requests": [_row(results.requests, row) for row in results.requests.rows],
        "overload": [asdict(one) for one in results.ordeals],
    }


def _row(requests: Requests, row: Row) -> dict[str, object]:
    connections = int(row.parameters["connections"])
    return {
        "name": row.name,
        **row.parameters,
        "rates": {subject: asdict(row.rate(subject)) for subject in row.samples},
        "ratios": {subject: asdict(row.ratio(subject, FLOOR)) for subject in row.samples},
        "seconds": {
            subject: {
                f"p{percent}": percentile(requests.times[row.name, connections, subject], percent)
                for percent in (50, 95, 99)
            }
            for subject in row.samples
        },
        "cpu_microseconds": {subject: asdict(row.cpu(subject)) for subject in row.samples},
        "samples": {subject: [asdict(sample) for sample in row.samples[subject]] for subject in row.samples},
    }
