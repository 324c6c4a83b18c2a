"""Several processes on one file, each putting, taking and settling on its own session for a while.

Beside dray, bare loops that do as little as a queue can: one table, one index, three statements. One waits
for the lock as dray does, the other leaves it to SQLite's busy handler.
"""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypeVar

from bench.measure import Measurement, Row, Sample, Spread, compare, interleave, percentile
from bench.sqlite.cases import ANY, LEASE, succeed
from bench.sqlite.plan import Plan
from bench.sqlite.store import QUEUE, Supply, close_broker, fill, open_bare, open_broker, remove
from dray.broker.sqlite.connection import connect, prepare
from dray.broker.sqlite.database import Patience
from dray.broker.verbs import Beat, run_blocking

BATCH = 10
PENDING = 1000
TIMEOUT = 10.0
DRAY, JITTER, HANDLER = "dray", "bare, jittered retry", "bare, busy_timeout"

Call = Callable[[], object]
T = TypeVar("T")

SIMPLE = """
CREATE TABLE jobs (id INTEGER PRIMARY KEY, state INTEGER NOT NULL, holder INTEGER, payload BLOB NOT NULL);
CREATE INDEX ready ON jobs (state, id);
"""
PUT = "INSERT INTO jobs (state, payload) VALUES (0, ?)"
TAKE = """
UPDATE jobs SET state = 1, holder = ?
WHERE id IN (SELECT id FROM jobs WHERE state = 0 ORDER BY id LIMIT ?) RETURNING id, payload
"""
SETTLE = "UPDATE jobs SET state = 2 WHERE id = ? AND holder = ?"


@dataclass(frozen=True)
class Told:
    """What one process came to."""

    jobs: int
    seconds: float
    p50: float
    p99: float
    longest: float
    """The longest single call."""


@dataclass(frozen=True)
class Crowd:
    """All rounds of one subject with so many processes."""

    subject: str
    processes: int
    rate: Spread
    scaling: Spread
    """Of all processes together, relative to one alone."""
    evenness: Spread
    """What the slowest process did, relative to the fastest."""
    p50: float
    p99: float
    longest: float


def measure_processes(folder: Path, plan: Plan, tell: Callable[[str], None]) -> list[Crowd]:
    """Every subject with one process and with several, in interleaved rounds."""
    told: dict[tuple[str, int], list[list[Told]]] = {}

    def measurement(subject: str, processes: int) -> Measurement:
        def run(round: int) -> Sample:
            workers = run_together(folder / f"{round}.db", subject, processes, plan.seconds)
            told.setdefault((subject, processes), []).append(workers)
            return Sample(max(one.seconds for one in workers), sum(one.jobs for one in workers))

        return Measurement(subject, {"processes": processes}, subject, run)

    folder.mkdir()
    subjects = (DRAY, JITTER, HANDLER)
    counts = (1, plan.processes)
    rows = interleave([measurement(one, count) for one in subjects for count in counts], plan.rounds, tell)
    folder.rmdir()
    return [_crowd(row, rows, told) for row in rows]


def _crowd(row: Row, rows: Sequence[Row], told: dict[tuple[str, int], list[list[Told]]]) -> Crowd:
    subject, processes = row.name, int(row.parameters["processes"])
    alone = next(other for other in rows if other.name == subject and other.parameters["processes"] == 1)
    rounds = told[subject, processes]
    workers = [one for round in rounds for one in round]
    return Crowd(
        subject,
        processes,
        row.rate(subject),
        compare(row.samples[subject], alone.samples[subject]),
        Spread.of([evenness(round) for round in rounds]),
        percentile([one.p50 for one in workers], 50),
        max(one.p99 for one in workers),
        max(one.longest for one in workers),
    )


def evenness(workers: Sequence[Told]) -> float:
    return min(one.jobs for one in workers) / max(1, max(one.jobs for one in workers))


def run_together(path: Path, subject: str, processes: int, seconds: float) -> list[Told]:
    """Start the processes, let them begin at the same moment, and collect what they tell."""
    if subject == DRAY:
        fill(path, Supply(), PENDING)
    else:
        _fill_simple(path)
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(processes)
    pipes = [spawn.Pipe(duplex=False) for _ in range(processes)]
    children = [
        spawn.Process(target=_child, args=(subject, path, number, seconds, barrier, sender), daemon=True)
        for number, (_, sender) in enumerate(pipes)
    ]
    for child, (_, sender) in zip(children, pipes, strict=True):
        child.start()
        sender.close()
    try:
        told: list[Told] = [receiver.recv() for receiver, _ in pipes]
    except EOFError:
        barrier.abort()
        raise RuntimeError(f"a process of {subject!r} died: see its traceback above") from None
    finally:
        for child in children:
            child.join()
    remove(path)
    return told


def _child(
    subject: str, path: Path, number: int, seconds: float, barrier: Barrier, sender: Connection
) -> None:
    loop = {DRAY: dray_loop, JITTER: jitter_loop, HANDLER: handler_loop}[subject]
    with loop(path, number) as cycle:
        for call in cycle:
            call()
        barrier.wait()
        sender.send(_work(cycle, seconds))


def _work(cycle: Sequence[Call], seconds: float) -> Told:
    calls: list[float] = []
    cycles = 0
    start = before = time.perf_counter()
    while before - start < seconds:
        for call in cycle:
            call()
            after = time.perf_counter()
            calls.append(after - before)
            before = after
        cycles += 1
    return Told(
        cycles * BATCH, before - start, percentile(calls, 50), percentile(calls, 99), max(calls, default=0.0)
    )


@contextmanager
def dray_loop(path: Path, number: int) -> Iterator[Sequence[Call]]:
    broker = open_broker(path)
    supply = Supply(number + 1)
    session = f"worker-{number}"
    run_blocking(broker.renew([Beat(session, LEASE)]))
    taken: list[Any] = []

    def put() -> None:
        run_blocking(broker.put([supply.job(id=f"{session}-{supply.request()}") for _ in range(BATCH)]))

    def take() -> None:
        taken[:] = run_blocking(broker.take(session, supply.request(), (QUEUE,), ANY, BATCH))

    def settle() -> None:
        run_blocking(broker.settle(session, [succeed(one, supply) for one in taken]))

    try:
        yield put, take, settle
    finally:
        close_broker(broker)


def patiently(work: Callable[[], T]) -> T:
    """Try again after short random pauses while others have the lock, with dray's own `Patience`."""
    patience = Patience(time.monotonic, TIMEOUT)
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or not patience.left():
                raise
        time.sleep(patience.next())


@contextmanager
def jitter_loop(path: Path, number: int) -> Iterator[Sequence[Call]]:
    """Waits for the lock as dray does."""
    connection = patiently(lambda: open_bare(path))

    def transact(work: Call) -> None:
        patiently(lambda: _transact(connection, work))

    with _simple_loop(connection, number, transact) as cycle:
        yield cycle


@contextmanager
def handler_loop(path: Path, number: int) -> Iterator[Sequence[Call]]:
    """Lets SQLite wait."""
    connection = patiently(lambda: open_bare(path))
    connection.execute(f"PRAGMA busy_timeout={int(TIMEOUT * 1000)}")
    with _simple_loop(connection, number, lambda work: _transact(connection, work)) as cycle:
        yield cycle


def _transact(connection: sqlite3.Connection, work: Call) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
        work()
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


@contextmanager
def _simple_loop(
    connection: sqlite3.Connection, number: int, transact: Callable[[Call], None]
) -> Iterator[Sequence[Call]]:
    payloads = [(bytes(100),)] * BATCH
    taken: list[tuple[int, bytes]] = []

    def take() -> None:
        taken[:] = connection.execute(TAKE, (number, BATCH)).fetchall()

    def settle() -> None:
        connection.executemany(SETTLE, [(id, number) for id, _ in taken])

    try:
        yield (
            lambda: transact(lambda: connection.executemany(PUT, payloads)),
            lambda: transact(take),
            lambda: transact(settle),
        )
    finally:
        connection.close()


def _fill_simple(path: Path) -> None:
    remove(path)
    connection = connect(path, "mode=rwc")
    prepare(connection, path)
    connection.executescript(SIMPLE)
    connection.execute("BEGIN")
    connection.executemany(PUT, [(bytes(100),)] * PENDING)
    connection.execute("COMMIT")
    connection.close()
