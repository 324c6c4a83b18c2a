"""`python -m bench.service`: Markdown on stdout, JSON in bench/out, progress on stderr."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from bench import machine
from bench.command import choose, command, workplace
from bench.peers import servers
from bench.progress import Progress
from bench.report import write_json
from bench.service import cases, overload
from bench.service.plan import FULL, QUICK, TINY, Plan
from bench.service.stage import valkey
from bench.service.tables import Results, data, markdown


def run(plan: Plan, folder: Path, shown: Progress) -> Results:
    results = Results(describe(), plan)
    shown.step("requests of each kind")
    results.requests = cases.measure(plan, folder / "requests", shown.tell)
    shown.step("too much")
    results.ordeals = overload.measure(plan, folder / "overload", shown.tell)
    shown.end()
    return results


def describe() -> dict[str, object]:
    packages = ", ".join(f"{name} {version(name)}" for name in ("starlette", "uvicorn", "grpcio"))
    return {**machine.describe(), "valkey": servers.version(valkey()), "versions": packages}


def main() -> None:
    options = command("service", __doc__).parse_args()
    plan = choose(options, FULL, QUICK, TINY)
    with workplace(options.dir) as folder:
        results = run(plan, folder, Progress(2))
    write_json(options.out, data(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
