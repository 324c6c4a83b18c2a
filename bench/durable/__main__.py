"""`python -m bench.durable`: Markdown on stdout, JSON in bench/out."""

from __future__ import annotations

import statistics
from dataclasses import asdict

from bench import machine
from bench.command import choose, command
from bench.durable.cases import FULL, QUICK, TINY, Bench, Costs, Plan, worker
from bench.peers import servers
from bench.report import table, write_json


def run(plan: Plan, kind: str) -> Costs:
    with servers.running(servers.find(kind)) as server, worker(server.url):
        bench = Bench(server)
        try:
            return bench.measure(plan)
        finally:
            bench.app.close()


def markdown(costs: Costs) -> str:
    plain, durable = statistics.median(costs.plain), statistics.median(costs.durable)
    ratio = statistics.median(d / p for d, p in zip(costs.durable, costs.plain, strict=True))
    rows = [
        ("server CPU of ten plain jobs", f"{plain:,.0f} µs"),
        ("server CPU of a durable job of ten steps", f"{durable:,.0f} µs"),
        ("ratio (goal: at most 3)", f"{ratio:.2f}"),
        ("commands a second, no job", f"{costs.base_commands:.1f}"),
        (f"commands a second, {costs.sleepers:,} jobs sleep", f"{costs.idle_commands:.1f}"),
    ]
    return table(("what", "measured"), rows)


def main() -> None:
    parser = command("durable", __doc__)
    parser.add_argument("--broker", choices=["valkey", "redis"], default="valkey")
    options = parser.parse_args()
    costs = run(choose(options, FULL, QUICK, TINY), options.broker)
    write_json(options.out, {"machine": machine.describe(), "durable": asdict(costs)})
    print(markdown(costs))


if __name__ == "__main__":
    main()
