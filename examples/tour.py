"""A tour of what the brokers promise, on the embedded one, with real processes.

    python examples/tour.py

Three workers serve one SQLite file in a temporary folder. They get quick jobs, urgent ones, delayed ones,
some that fail twice before they succeed, some that never do, a chain, a duplicate and a cancelled one; and
one of the workers is killed with SIGKILL while it holds jobs. At the end every job is accounted for.

The worker below is what the seam alone makes possible: about forty lines that lose nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from dray.broker import Broker, connect
from dray.broker.verbs import Beat, Cancel, Filter, Ids, Interest, Query
from dray.job import Error, Job, Outcome, OutcomeKind, Record, State, Taken

LEASE = 1500
TASKS = frozenset({"quick", "slow", "flaky", "hopeless", "step"})


async def work(url: str, name: str) -> None:
    """A worker: keep the lease, take what there is, run it, settle it, sleep while there is nothing."""
    broker = await connect(url, "tour")
    await broker.renew([Beat(name, LEASE)])
    beating = asyncio.create_task(keep_alive(broker, name))
    request = 0
    while os.getppid() != 1 and not beating.done():
        await broker.sweep()
        request += 1
        for taken in await broker.take(name, request, ["default"], Filter(TASKS), want=2):
            await broker.settle(name, [await run(taken)])
        await broker.wait(Interest(queues=("default",), filter=Filter(TASKS), session=name), timeout=0.5)


async def keep_alive(broker: Broker, name: str) -> None:
    while True:
        await broker.renew([Beat(name, LEASE)])
        await asyncio.sleep(LEASE / 3000)


async def run(taken: Taken) -> Outcome:
    job = taken.job
    await asyncio.sleep({"quick": 0.005, "slow": 0.4}.get(job.task, 0.02))
    if job.task == "hopeless" or (job.task == "flaky" and taken.attempt <= 2):
        error = Error("ConnectionError", f"attempt {taken.attempt} found nobody at home")
        if taken.attempt > job.retries:
            return Outcome(
                id=job.id, run=taken.run, kind=OutcomeKind.DEAD, error=error, reason="retries used up"
            )
        due = int(time.time() * 1000) + 100 * taken.attempt
        return Outcome(id=job.id, run=taken.run, kind=OutcomeKind.RETRY, error=error, at=due)
    return Outcome(id=job.id, run=taken.run, kind=OutcomeKind.SUCCEEDED, result=f"by {os.getpid()}".encode())


def jobs() -> list[Job]:
    soon = int(time.time() * 1000) + 1200
    return [
        *(Job(id=f"quick-{n}", task="quick") for n in range(200)),
        *(Job(id=f"urgent-{n}", task="quick", priority=0) for n in range(5)),
        *(Job(id=f"delayed-{n}", task="quick", due=soon) for n in range(10)),
        *(Job(id=f"flaky-{n}", task="flaky") for n in range(5)),
        *(Job(id=f"hopeless-{n}", task="hopeless", retries=2) for n in range(3)),
        *(Job(id=f"slow-{n}", task="slow") for n in range(8)),
        *(Job(id=f"chain-{n}", task="step", waits_for=(f"chain-{n - 1}",) if n else ()) for n in range(5)),
        Job(id="unwanted", task="slow", priority=9),
        Job(id="welcome", task="quick", key="welcome:42"),
        Job(id="welcome-again", task="quick", key="welcome:42"),
    ]


async def tour(folder: Path) -> int:
    url = f"sqlite:///{folder / 'tour.db'}"
    broker = await connect(url, "tour")
    print(f"The broker is one file: {folder / 'tour.db'}")
    accepted = await broker.put(jobs())
    verdicts = Counter(reply.verdict for reply in accepted)
    print(f"Put {verdicts['created']} jobs; {verdicts['duplicate']} was refused as a duplicate by its key.")
    await broker.edit(Ids(("unwanted",)), Cancel("nobody wants it"))
    workers = {name: start(url, name) for name in ("ann", "bob", "cy")}
    print("Started three workers. One of them will be killed while it runs something.\n")
    victim = await somebody_busy(broker)
    workers[victim].send_signal(signal.SIGKILL)
    print(f"  kill -9 {victim} (pid {workers[victim].pid}), which held a job")
    workers["dee"] = start(url, "dee")
    await watch(broker)
    for worker in workers.values():
        worker.kill()
        worker.wait()
    lost = await summary(broker, verdicts["created"])
    await broker.close()
    return lost


def start(url: str, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, url, name])


async def somebody_busy(broker: Broker) -> str:
    """The session that runs a slow job."""
    while True:
        page = await broker.find(Query(state=State.RUNNING, task="slow"))
        holders = [run.session for record in page.records for run in record.runs]
        if holders:
            return holders[0]
        await asyncio.sleep(0.02)


async def watch(broker: Broker) -> None:
    """One line per second, or a line that rewrites itself on a terminal, until nothing is left to do."""
    shown = ""
    while True:
        (info,) = await broker.queues()
        counts = {state: count for state, count in info.counts.items() if count}
        line = "  " + ", ".join(f"{count} {state}" for state, count in counts.items())
        if line != shown:
            print(f"\r\x1b[K{line}" if sys.stdout.isatty() else line, end="" if sys.stdout.isatty() else "\n")
            sys.stdout.flush()
            shown = line
        if all(state.finished for state in counts):
            print()
            return
        await asyncio.sleep(0.2 if sys.stdout.isatty() else 1)


async def summary(broker: Broker, expected: int) -> int:
    records: list[Record] = []
    cursor: str | None = None
    while True:
        page = await broker.find(Query(), cursor=cursor, limit=500)
        records, cursor = records + page.records, page.cursor
        if cursor is None:
            break
    print("What became of them:")
    for kind in ("quick", "urgent", "delayed", "flaky", "hopeless", "slow", "chain", "welcome", "unwanted"):
        mine = [record for record in records if record.id.split("-")[0] == kind]
        states = Counter(str(record.state) for record in mine)
        runs = sum(record.run for record in mine)
        said = ", ".join(f"{count} {state}" for state, count in states.items())
        reasons = {record.reason for record in mine if record.reason}
        print(f"  {kind:<9} {said:<28} {runs:>4} runs   {'; '.join(sorted(reasons))}")
    again = [record for record in records if record.suspect]
    print(f"  {len(again)} of them were held by the killed worker and ran again elsewhere.")
    problems = await broker.audit()
    lost = expected - len(records) + sum(not record.state.finished for record in records) + len(problems)
    print("Nothing was lost, nothing finished twice." if not lost else f"{lost} lost: {problems}")
    print("\nNext: docs/design.md says how, `make test` shows it, `make sim` tries to break it.")
    return lost


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(work(*sys.argv[1:]))
    else:
        with tempfile.TemporaryDirectory(prefix="dray-tour-") as where:
            sys.exit(asyncio.run(tour(Path(where))))
