"""The embedded broker under attack: processes that die, files that break, bytes that lie, clocks that jump.

Everything is real: real processes (their programs are in crew.py), real signals, real files.
`DRAY_CHAOS_JOBS` and `DRAY_CHAOS_SEED` make the kill test longer or another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import statistics
import string
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import crew as program
import msgspec
import pytest
from crew import (
    ANY,
    PATIENCE,
    Crew,
    end,
    freeze,
    heard,
    is_stopped,
    key_of,
    kind_of,
    lines,
    looking_into,
    opened,
    tell,
    until,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dray.broker import Broker, connect
from dray.broker.actions import (
    Cancel,
    Delete,
    Ids,
    Pause,
    Query,
    Reprioritise,
    Reschedule,
    Resume,
    Retry,
    Scope,
    SetLimits,
    Speculate,
)
from dray.broker.sqlite.fifo import ring
from dray.broker.verbs import Beat, Entry, Interest, ProgressReport, run_blocking
from dray.errors import (
    BrokerBusy,
    BrokerError,
    BrokerGone,
    DrayError,
    ForeignStore,
    InvalidInput,
    NewerLayout,
)
from dray.job import GROUP_MAX, Error, Job, Outcome, OutcomeKind, Progress, Record, State, Verdict

JOBS = int(os.environ.get("DRAY_CHAOS_JOBS", "1500"))
SEED = int(os.environ.get("DRAY_CHAOS_SEED", "0"))
SUCCEEDED = OutcomeKind.SUCCEEDED
DAY = 86_400_000


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.dismiss()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    broker = opened(url)
    yield broker
    run_blocking(broker.close())


def job(id: str, **given: Any) -> Job:
    return Job(id=id, task=given.pop("task", "t"), **given)


def put(broker: Broker, *ids: str) -> None:
    run_blocking(broker.put([job(id) for id in ids]))


def records(broker: Broker, ids: Sequence[str]) -> list[Record]:
    found = run_blocking(broker.get(ids))
    assert None not in found
    return [record for record in found if record is not None]


def states(broker: Broker, ids: Sequence[str]) -> set[State]:
    return {record.state for record in records(broker, ids)}


def sound(path: Path) -> bool:
    with looking_into(path) as connection:
        return bool(connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)])


def count(path: Path, table: str) -> int:
    with looking_into(path) as connection:
        number: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        return number


def change(path: Path, statement: str, *values: object) -> None:
    with looking_into(path) as connection:
        connection.execute(statement, values)


# 1. Processes that die


class Chaos:
    """Posts that are filled again whenever whoever held one was killed."""

    def __init__(self, crew: Crew, folder: Path, url: str) -> None:
        self.crew, self.chance, self.kills = crew, random.Random(SEED), 0
        self.each = JOBS // 3
        self.acknowledged = {f"producer-{n}": folder / f"producer-{n}.log" for n in range(3)}
        self.accepted = {f"worker-{n}": folder / f"worker-{n}.log" for n in range(4)}
        self.posts: dict[str, Callable[[], Any]] = {}
        for name, log in self.acknowledged.items():
            self._post(name, program.producer, url=url, log=str(log), name=name, count=self.each)
        for name, log in self.accepted.items():
            queues = ["main", "side"] if name != "worker-3" else ["side", "main"]
            self._post(name, program.worker, url=url, log=str(log), name=name, lease=600, queues=queues)
        for name in ("sweeper-0", "sweeper-1"):
            self._post(name, program.sweeper, url=url)
        self.live = {name: post() for name, post in self.posts.items()}

    def _post(self, post: str, role: Callable[..., None], **given: object) -> None:
        self.posts[post] = lambda: self.crew.start(role, **given)

    def strike(self) -> None:
        """Kill somebody, or stop a worker for longer than its lease."""
        for name, process in self.live.items():
            assert process.poll() in (None, 0), f"{name} ended with {process.returncode}"
        name = self.chance.choice([n for n in [*self.live, *self.accepted] if self.live[n].poll() is None])
        victim = self.live[name]
        self.kills += 1
        if name in self.accepted and self.chance.random() < 0.2:
            victim.send_signal(signal.SIGSTOP)
            time.sleep(0.8)
            victim.send_signal(signal.SIGCONT)
            return
        victim.kill()
        end(victim)
        self.live[name] = self.posts[name]()

    def dismiss(self) -> None:
        for process in self.live.values():
            process.kill()
            end(process)


def test_nothing_is_lost_and_nothing_is_done_twice_while_processes_are_killed(
    tmp_path: Path, path: Path, crew: Crew
) -> None:
    url = f"sqlite:///{path}?poll=200ms"
    broker = opened(url)
    chaos = Chaos(crew, tmp_path, url)
    feed: list[Entry] = []
    cursor: dict[str, int] = {}
    deadline = time.monotonic() + PATIENCE * (2 + JOBS / 1000)
    while (finished := count_in(broker, State.SUCCEEDED)) < 3 * chaos.each:
        assert time.monotonic() < deadline, run_blocking(broker.queues())
        for _ in range(5):
            cursor = read_on(broker, cursor, feed)
            time.sleep(chaos.chance.uniform(0.0, 0.05))
        if finished < 2.8 * chaos.each:
            chaos.strike()
    chaos.dismiss()
    read_on(broker, cursor, feed)

    ids = [id for log in chaos.acknowledged.values() for id in lines(log)]
    assert len(ids) == len(set(ids)) == 3 * chaos.each
    for first in range(0, len(ids), 500):
        assert states(broker, ids[first : first + 500]) == {State.SUCCEEDED}
    assert chaos.kills >= 5

    # Seen by the broker itself, also where whoever completed it died before it could say so …
    completions = Counter(event.id for entry in feed for event in entry.events if event.kind == "succeeded")
    assert completions == Counter(ids)
    # … and by the workers, who say it only after the commit.
    accepted = [line.split() for log in chaos.accepted.values() for line in lines(log)]
    assert max(Counter(id for id, *_ in accepted).values()) == 1
    assert set(ids) >= {id for id, *_ in accepted}
    assert len(accepted) >= len(ids) - 4 * chaos.kills

    assert most_at_once([(float(a), float(b)) for _, _, task, a, b in accepted if task == "narrow"]) <= 2
    assert narrow_at_once(feed) <= 2
    check_keys(feed)

    later = time.time_ns() // 1_000_000 + 3_600_000
    while run_blocking(broker.sweep(now=later)).more:
        pass
    assert [count(path, table) for table in ("sessions", "runs", "sleepers", "outbox")] == [0, 0, 0, 0]
    assert run_blocking(broker.audit()) == []
    assert list(Path(f"{path}-bells").iterdir()) == []
    run_blocking(broker.close())
    assert sound(path)


def count_in(broker: Broker, state: State) -> int:
    return sum(queue.counts.get(state, 0) for queue in run_blocking(broker.queues()))


def read_on(broker: Broker, cursor: dict[str, int], feed: list[Entry]) -> dict[str, int]:
    found = run_blocking(broker.events(cursor, limit=10_000))
    assert not found.gaps
    feed += found.entries
    return found.cursor


def most_at_once(spans: list[tuple[float, float]]) -> int:
    moments = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    now = most = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


def narrow_at_once(feed: list[Entry]) -> int:
    running: set[str] = set()
    most = 0
    for event in (event for entry in feed if entry.queue == "main" for event in entry.events):
        if event.kind == "taken" and kind_of(event.id) < 4:
            running.add(event.id)
            most = max(most, len(running))
        elif event.kind != "progress":
            running.discard(event.id)
    return most


def check_keys(feed: list[Entry]) -> None:
    """One unfinished job per key: it is put only after the one before has succeeded."""
    holders: dict[str, str] = {}
    for event in (event for entry in feed if entry.queue == "main" for event in entry.events):
        key = key_of(event.id)
        if key is not None and event.kind == "put":
            assert key not in holders, f"{event.id} was accepted while {holders[key]} had {key}"
            holders[key] = event.id
        if key is not None and event.kind == "succeeded":
            assert holders.pop(key) == event.id


def test_a_worker_stopped_past_its_lease_cannot_settle(url: str, broker: Broker, crew: Crew) -> None:
    put(broker, "a")
    holder = crew.start(program.holder, url=url, session="stopped", request=1, lease=400)
    assert heard(holder) == "open"
    tell(holder)
    assert heard(holder) == "a 1"
    holder.send_signal(signal.SIGSTOP)
    until(lambda: run_blocking(broker.sweep()).freed, "the lease to run out")
    run_blocking(broker.renew([Beat("other", 60_000)]))
    (taken,) = run_blocking(broker.take("other", 1, ["default"], ANY, 1))
    assert (taken.run, taken.suspect) == (2, GROUP_MAX)
    holder.send_signal(signal.SIGCONT)
    tell(holder)
    assert heard(holder) == Verdict.REFUSED
    done = Outcome(id="a", run=2, kind=SUCCEEDED, result=b"other")
    assert run_blocking(broker.settle("other", [done]))[0].verdict is Verdict.ACCEPTED
    (record,) = records(broker, ["a"])
    assert (record.state, record.result) == (State.SUCCEEDED, b"other")
    assert run_blocking(broker.audit()) == []


# 2. Waking


def asleep(path: Path, waiters: int) -> set[tuple[int, int]]:
    """Wait until so many sleep; who they are (whoever gets up and lies down again is somebody else)."""

    def sleepers() -> set[tuple[int, int]]:
        with looking_into(path) as connection:
            found = set(connection.execute("SELECT id, until FROM sleepers"))
        return found if len(found) == waiters else set()

    return until(sleepers, f"{waiters} to fall asleep")


def test_a_job_starts_in_another_process_about_as_soon_as_a_bell_rings(
    url: str, path: Path, crew: Crew, broker: Broker, tmp_path: Path
) -> None:
    rounds = 25
    waiter = crew.start(program.waiter, url=f"{url}?poll=1m", rounds=rounds)
    echo = crew.start(program.echo, folder=str(tmp_path / "bells"), rounds=rounds)
    bell = heard(echo)
    assert heard(waiter) == "up"
    bare, full = [], []
    for n in range(rounds):
        began = time.monotonic()
        assert ring(tmp_path / "bells", bell)
        bare.append(float(heard(echo)) - began)
        tell(echo)
        asleep(path, 1)
        began = time.monotonic()
        put(broker, f"job-{n}")
        full.append(float(heard(waiter).split()[1]) - began)
        tell(waiter)
    # A start is a commit, a ring, a look and another commit: measured at 10 to 20 rings.
    assert statistics.median(full) < 100 * statistics.median(bare), (full, bare)
    assert min(full) < 1


def test_waiting_for_work_costs_no_processor_time(url: str, crew: Crew) -> None:
    assert float(heard(crew.start(program.idler, url=url, seconds=3))) <= 0.01


def test_a_job_whose_ring_was_lost_is_found_within_the_poll_interval(
    url: str, path: Path, crew: Crew, broker: Broker
) -> None:
    waiter = crew.start(program.waiter, url=f"{url}?poll=300ms", rounds=3)
    assert heard(waiter) == "up"

    asleep(path, 1)
    Path(f"{path}-bells").rename(f"{path}-elsewhere")
    began = time.monotonic()
    put(broker, "folder moved")
    assert heard(waiter).startswith("folder moved")
    assert time.monotonic() - began < 10
    tell(waiter)

    asleep(path, 1)
    mute = crew.start(program.mute, url=url, id="ringer-died")
    assert mute.wait() == -signal.SIGKILL
    began = time.monotonic()
    assert heard(waiter).startswith("ringer-died")
    assert time.monotonic() - began < 10
    tell(waiter)

    asleep(path, 1)
    for pipe in Path(f"{path}-bells").iterdir():
        pipe.unlink()
    put(broker, "pipe-deleted")
    assert heard(waiter).startswith("pipe-deleted")
    tell(waiter)


@pytest.mark.parametrize("loss", ["deleted", "never had one"])
def test_a_ring_lost_between_two_tasks_of_one_broker_is_made_up_for_too(
    loss: str, url: str, path: Path
) -> None:
    bells = Path(f"{path}-bells")

    async def main() -> float:
        if loss == "never had one":
            bells.touch()
        broker = await connect(f"{url}?poll=100ms")
        waiting = asyncio.create_task(broker.wait(Interest(queues=("default",)), 5))
        while not count(path, "sleepers"):
            await asyncio.sleep(0.005)
        if loss == "deleted":
            shutil.rmtree(bells)
        began = time.monotonic()
        await broker.put([job("a")])
        assert (await waiting).work
        await broker.close()
        return time.monotonic() - began

    assert asyncio.run(main()) < 3, "it slept on to the end of its time"


def test_a_delayed_job_wakes_a_sleeper_at_its_time_though_nothing_rings(
    url: str, path: Path, crew: Crew, broker: Broker
) -> None:
    due = time.time_ns() // 1_000_000 + 1500
    run_blocking(broker.put([job("later", due=due)]))
    waiter = crew.start(program.waiter, url=f"{url}?poll=1m")
    assert heard(waiter) == "up"
    id, _, at = heard(waiter).split()
    assert id == "later"
    assert due / 1000 <= float(at) < due / 1000 + 10


def test_a_job_due_sooner_wakes_a_sleeper_that_meant_to_sleep_longer(
    url: str, path: Path, crew: Crew, broker: Broker
) -> None:
    waiter = crew.start(program.waiter, url=f"{url}?poll=1m")
    assert heard(waiter) == "up"
    asleep(path, 1)
    due = time.time_ns() // 1_000_000 + 500
    run_blocking(broker.put([job("soon", due=due)]))
    assert due / 1000 <= float(heard(waiter).split()[2]) < due / 1000 + 10


def test_one_job_wakes_one_of_many(url: str, path: Path, crew: Crew, broker: Broker) -> None:
    waiters = [crew.start(program.waiter, url=f"{url}?poll=1m") for _ in range(4)]
    for waiter in waiters:
        assert heard(waiter) == "up"
    sleepers = asleep(path, 4)
    for n in range(4):
        put(broker, f"job-{n}")
        until(lambda n=n: states(broker, [f"job-{n}"]) == {State.RUNNING}, "the job to start")  # type: ignore[misc]
        left = asleep(path, 3 - n) if n < 3 else set()
        assert left < sleepers
        sleepers = left
    assert {heard(waiter).split()[0] for waiter in waiters} == {f"job-{n}" for n in range(4)}


def test_sleepers_that_were_killed_keep_no_job_from_the_others(
    url: str, path: Path, crew: Crew, broker: Broker
) -> None:
    victims = [crew.start(program.waiter, url=url) for _ in range(2)]
    asleep(path, 2)
    survivor = crew.start(program.waiter, url=f"{url}?poll=300ms", rounds=3)
    asleep(path, 3)
    for victim in victims:
        victim.kill()
        end(victim)
    assert heard(survivor) == "up"
    for n in range(3):
        began = time.monotonic()
        put(broker, f"job-{n}")
        assert heard(survivor).startswith(f"job-{n} ")
        assert time.monotonic() - began < 10
        tell(survivor)


# 3. The file


def test_a_full_disk_accepts_a_whole_batch_or_nothing_and_work_goes_on_with_space(
    url: str, path: Path, crew: Crew, broker: Broker
) -> None:
    put(broker, *(f"early-{n}" for n in range(100)))
    filler = crew.start(program.filler, url=url)
    accepted = int(heard(filler))
    assert accepted > 0
    assert heard(filler) == "0"  # of the batch that was refused
    assert heard(filler) == "[]"
    assert heard(filler) == "20"
    assert heard(filler) == "[]"
    assert filler.wait() == 0
    assert count_in(broker, State.READY) == 100 + 20 * (accepted + 1)
    assert run_blocking(broker.audit()) == []
    assert sound(path)


def test_a_locked_file_is_busy_after_the_timeout_and_works_when_it_is_free(
    url: str, path: Path, crew: Crew, broker: Broker
) -> None:
    put(broker, "before")
    impatient = opened(f"{url}?timeout=300ms")
    locker = crew.start(program.locker, path=str(path))
    assert heard(locker) == "locked"
    for _ in range(2):
        began = time.monotonic()
        with pytest.raises(BrokerBusy, match=r"locked by others for 0\.\d s"):
            put(impatient, "refused")
        assert 0.3 <= time.monotonic() - began < 5
    assert states(impatient, ["before"]) == {State.READY}  # reading needs no lock
    tell(locker)
    assert heard(locker) == "free"
    put(impatient, "after")
    assert run_blocking(impatient.get(["refused"])) == [None]
    run_blocking(impatient.close())


def settled_by(log: Path) -> Counter[str]:
    return Counter(line.split()[1] for line in lines(log) if line.startswith("accepted"))


def test_a_file_moved_away_and_back_loses_nothing_acknowledged(
    url: str, path: Path, crew: Crew, broker: Broker, tmp_path: Path
) -> None:
    log = tmp_path / "steady.log"
    steady = crew.start(program.steady, url=url, log=str(log))
    assert heard(steady) == "up"
    ids: list[str] = []
    for trip in range(3):
        put(broker, *(mine := [f"job-{trip}-{n}" for n in range(60)]))
        ids += mine
        until(lambda: settled_by(log), "the worker to begin")
        path.rename(tmp_path / "away.db")
        with pytest.raises(BrokerGone, match=r"jobs\.db"):
            put(broker, f"refused-{trip}")
        errors = 1 + lines(log).count("error BrokerGone")
        until(lambda errors=errors: lines(log).count("error BrokerGone") > errors, "the worker to notice")  # type: ignore[misc]
        assert not path.exists(), "somebody began an empty file in its place"
        (tmp_path / "away.db").rename(path)
        put(broker, f"after-{trip}")
        ids.append(f"after-{trip}")
    until(lambda: states(broker, ids) == {State.SUCCEEDED}, "all to be done")
    steady.kill()
    end(steady)
    assert max(settled_by(log).values()) == 1
    assert {line for line in lines(log) if line.startswith("error")} == {"error BrokerGone"}
    assert run_blocking(broker.get([f"refused-{trip}" for trip in range(3)])) == [None] * 3
    assert run_blocking(broker.audit()) == []
    assert sound(path)


def test_another_file_in_its_place_is_used_from_then_on_and_neither_is_damaged(
    url: str, path: Path, crew: Crew, broker: Broker, tmp_path: Path
) -> None:
    other = opened(f"sqlite:///{tmp_path / 'other.db'}")
    put(other, "theirs-1", "theirs-2")
    run_blocking(other.close())
    log = tmp_path / "steady.log"
    steady = crew.start(program.steady, url=url, log=str(log))
    put(broker, "mine")
    until(lambda: states(broker, ["mine"]) == {State.SUCCEEDED}, "the worker to begin")
    stop_outside_a_transaction(steady, path)
    put(broker, "kept")
    path.rename(tmp_path / "old.db")
    (tmp_path / "other.db").rename(path)
    with pytest.raises(BrokerGone, match="replaced"):
        put(broker, "refused")
    steady.send_signal(signal.SIGCONT)
    put(broker, "theirs-3")
    ids = ["theirs-1", "theirs-2", "theirs-3"]
    until(lambda: states(broker, ids) == {State.SUCCEEDED}, "the worker to go on with the other file")
    old = opened(f"sqlite:///{tmp_path / 'old.db'}")
    assert [record and record.state for record in run_blocking(old.get(["mine", "refused"]))] == [
        State.SUCCEEDED,
        None,
    ]
    assert run_blocking(old.get(["kept"])) != [None]
    for each, file in ((old, tmp_path / "old.db"), (broker, path)):
        assert run_blocking(each.audit()) == []
        assert sound(file)
    run_blocking(old.close())


def stop_outside_a_transaction(process: subprocess.Popen[str], path: Path) -> None:
    def stopped_idle() -> bool:
        process.send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(process.pid), "it to stop")
        with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
            if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0:
                return True
        process.send_signal(signal.SIGCONT)
        return False

    until(stopped_idle, "it to be outside a transaction")


def test_a_deleted_wal_costs_nothing_that_was_acknowledged(
    url: str, path: Path, crew: Crew, broker: Broker, tmp_path: Path
) -> None:
    log = tmp_path / "steady.log"
    steady = crew.start(program.steady, url=url, log=str(log))
    assert heard(steady) == "up"
    ids = []
    for trip in range(6):
        for n in range(20):
            program.persist(broker.put, [job(f"job-{trip}-{n}")])
            ids.append(f"job-{trip}-{n}")
            if n == 10:
                Path(f"{path}-wal").unlink()
            if n == 10 and trip % 2:
                Path(f"{path}-shm").unlink()
        until(lambda: finished(program.persist(broker.get, ids)), "all to be done", 15)
    steady.kill()
    end(steady)
    run_blocking(broker.close())
    with_fresh_eyes = opened(url)
    assert states(with_fresh_eyes, ids) == {State.SUCCEEDED}
    assert run_blocking(with_fresh_eyes.audit()) == []
    run_blocking(with_fresh_eyes.close())
    assert sound(path)


def finished(found: Sequence[Record | None]) -> bool:
    return all(record is not None and record.state is State.SUCCEEDED for record in found)


@pytest.mark.parametrize("spoil", ["file", "folder"])
def test_without_permission_it_is_read_only(spoil: str, crew: Crew) -> None:
    # pytest's own folders are closed to the ordinary user who tries this when root runs the tests.
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        folder = Path(top) / "data"
        folder.mkdir()
        url = f"sqlite:///{folder / 'jobs.db'}"
        stranger = crew.start(program.stranger, url=url, folder=str(folder), spoil=spoil)
        assert [heard(stranger) for _ in range(3)] == ["refused", "refused", "[True, False]"]


def test_what_is_not_drays_or_too_new_is_refused_in_words(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.db"
    change(theirs, "CREATE TABLE precious(x)")
    (tmp_path / "diary.txt").write_text("dear diary\n" * 100)
    for name in ("theirs.db", "diary.txt"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(ForeignStore, match="choose another path"):
            opened(f"sqlite:///{tmp_path / name}")
        assert (tmp_path / name).read_bytes() == before
    newer = tmp_path / "newer.db"
    run_blocking(opened(f"sqlite:///{newer}").close())
    change(newer, "PRAGMA user_version=999")
    with pytest.raises(NewerLayout, match="has layout 999"):
        opened(f"sqlite:///{newer}")


def test_what_a_power_cut_leaves_holds_all_that_was_acknowledged(tmp_path: Path, crew: Crew) -> None:
    chance = random.Random(SEED)
    for trip in range(4):
        folder = tmp_path / f"trip-{trip}"
        folder.mkdir()
        log = folder / "stream.log"
        url = f"sqlite:///{folder / 'jobs.db'}?synchronous=full"
        stream = crew.start(program.stream, url=url, log=str(log))
        enough = chance.randrange(1, 400)
        until(lambda log=log, enough=enough: len(lines(log)) >= enough, "some jobs")  # type: ignore[misc]
        freeze(stream.pid)
        acknowledged = lines(log)
        copy = folder / "copy.db"
        shutil.copy(folder / "jobs.db", copy)
        shutil.copy(folder / "jobs.db-wal", f"{copy}-wal")
        stream.kill()
        end(stream)
        broker = opened(f"sqlite:///{copy}")
        assert states(broker, acknowledged) == {State.READY}
        assert count_in(broker, State.READY) - len(acknowledged) in (0, 1)
        assert run_blocking(broker.audit()) == []
        run_blocking(broker.close())
        assert sound(copy)


# 4. Bytes that lie

BROKEN = {
    "random": random.Random(SEED).randbytes(60),
    "not msgpack": b"\xc1",
    "truncated": None,
    "empty": b"",
    "of another type": b"\x93\xa1x\xa1y\xa1z",
    "row removed": None,
}


def spoil_body(path: Path, how: str, *ids: str) -> None:
    of_job = "job = (SELECT seq FROM jobs WHERE id = ?)"
    for id in ids:
        if how == "row removed":
            change(path, f"DELETE FROM bodies WHERE {of_job}", id)
        elif how == "truncated":
            change(path, f"UPDATE bodies SET envelope = substr(envelope, 1, 20) WHERE {of_job}", id)
        else:
            change(path, f"UPDATE bodies SET envelope = ? WHERE {of_job}", BROKEN[how], id)


def body(path: Path, id: str) -> bytes:
    with looking_into(path) as connection:
        query = "SELECT envelope FROM bodies WHERE job = (SELECT seq FROM jobs WHERE id = ?)"
        row = connection.execute(query, (id,)).fetchone()
        return row[0] if row else b""


class Hand:
    """A worker in this process."""

    def __init__(self, broker: Broker, session: str = "hand") -> None:
        self.broker, self.session, self.request = broker, session, 0
        run_blocking(broker.renew([Beat(session, DAY)]))

    def take(self, want: int = 100, now: int | None = None) -> dict[str, int]:
        self.request += 1
        taken = run_blocking(self.broker.take(self.session, self.request, ["default"], ANY, want, now=now))
        return {one.job.id: one.run for one in taken}

    def settle(self, kind: OutcomeKind = SUCCEEDED, **runs: int) -> set[Verdict]:
        outcomes = [
            Outcome(id=id.replace("_", "-"), run=run, kind=kind, error=Error("E", "m"), reason="r")
            for id, run in runs.items()
        ]
        return {reply.verdict for reply in run_blocking(self.broker.settle(self.session, outcomes))}


@pytest.mark.parametrize("how", BROKEN)
def test_a_job_whose_bytes_cannot_be_read_is_buried_with_them_and_its_neighbours_run(
    how: str, broker: Broker, path: Path
) -> None:
    later = time.time_ns() // 1_000_000 + 10_000
    hand = Hand(broker)
    put(broker, "running", "again", "buried", "done")
    assert hand.take() == {"running": 1, "again": 1, "buried": 1, "done": 1}
    hand.settle(OutcomeKind.DEAD, buried=1)
    hand.settle(done=1)
    put(broker, "first", "ready", "dependency")
    run_blocking(broker.put([job("scheduled", due=later), job("waiting", waits_for=("dependency",))]))
    put(broker, "last")
    broken = ["running", "again", "buried", "done", "ready", "scheduled", "waiting"]
    spoil_body(path, how, *broken)
    kept = {id: body(path, id) for id in broken}

    assert {record.job.payload for record in records(broker, broken)} == set(kept.values())
    assert len(run_blocking(broker.find(Query())).records) == 10
    assert len(run_blocking(broker.find(Query(tag="x"))).records) == 0
    run_blocking(broker.queues())
    for action in (Cancel(), Retry(), Delete(), Reschedule(later), Reprioritise(3), Speculate()):
        run_blocking(broker.edit(Query(), action, dry_run=True))
        run_blocking(broker.edit(Query(tag="x"), action))
    run_blocking(broker.edit(Ids(("ready", "scheduled", "waiting")), Reprioritise(4)))
    run_blocking(broker.edit(Ids(("buried",)), Retry()))
    run_blocking(broker.sweep())

    assert hand.settle(running=1) == {Verdict.ACCEPTED}
    assert hand.settle(OutcomeKind.RETRY, again=1) == {Verdict.ACCEPTED}
    assert set(hand.take()) == {"first", "dependency", "last"}
    assert hand.settle(first=1, dependency=1, last=1) == {Verdict.ACCEPTED}
    assert hand.take(now=later) == {}
    for id in ("again", "buried", "ready", "scheduled", "waiting"):
        (record,) = records(broker, [id])
        assert record.state is State.DEAD
        assert (record.reason or "").startswith("undecodable")
        assert record.job.payload == kept[id]
        assert record.job.task == "t"
    assert states(broker, ["running", "done", "first", "dependency", "last"]) == {State.SUCCEEDED}
    assert run_blocking(broker.audit()) == []


def test_bytes_of_another_job_are_as_bad_as_none(broker: Broker, path: Path) -> None:
    put(broker, "a", "b")
    change(path, "UPDATE bodies SET envelope = (SELECT envelope FROM bodies WHERE job = 2) WHERE job = 1")
    hand = Hand(broker)
    assert hand.take() == {"b": 1}
    hand.settle(b=1)
    (record,) = records(broker, ["a"])
    assert (record.id, record.state) == ("a", State.DEAD)


def test_a_repeated_take_hands_out_the_rest_when_one_cannot_be_read_any_more(
    broker: Broker, path: Path
) -> None:
    put(broker, "a", "b")
    hand = Hand(broker)
    assert hand.take() == {"a": 1, "b": 1}
    spoil_body(path, "random", "a")
    hand.request -= 1
    assert hand.take() == {"b": 1}
    assert hand.settle(b=1) == {Verdict.ACCEPTED}


def test_an_offer_that_cannot_be_read_keeps_nobody_awake(broker: Broker, path: Path) -> None:
    run_blocking(broker.put([job("a", speculate=True)]))
    first, second = Hand(broker, "first"), Hand(broker, "second")
    assert first.take() == {"a": 1}
    run_blocking(broker.edit(Ids(("a",)), Speculate()))
    spoil_body(path, "random", "a")
    assert second.take() == {}
    assert not run_blocking(broker.wait(Interest(queues=("default",), session="second"), 0)).work
    assert first.settle(a=1) == {Verdict.ACCEPTED}


SPOILED = (
    "ends.error",
    "ends.reason",
    "runs.progress",
    "queues.limits",
    "queues.paused",
    "task_settings.limits",
    "task_settings.paused",
    "sessions.reply",
    "events.body",
    "sleepers.filter",
    "sleepers.bell",
)
MUST_WORK = frozenset({"put", "renew", "take", "settle", "wait", "sweep", "resume"})
"""Whatever was spoiled, a worker goes on: these may not even refuse in good words."""


@pytest.mark.parametrize("what", SPOILED)
def test_small_values_that_cannot_be_read_stop_nobody(what: str, tmp_path: Path) -> None:
    table, column = what.split(".")
    failures = []
    values = (b"", b"\xc1", b"\x91\x07", b"\xa4text", random.Random(SEED).randbytes(30), "\xff", 7)
    for n, value in enumerate(values):
        path = tmp_path / f"{n}.db"
        broker = opened(f"sqlite:///{path}")
        have_everything(broker, path)
        # A BLOB as TEXT is text that is no UTF-8.
        change(
            path, f"UPDATE {table} SET {column} = {'CAST(? AS TEXT)' if column == 'reason' else '?'}", value
        )
        for name, call in every_verb(broker):
            try:
                run_blocking(call())
            except DrayError as error:
                failures += [f"{name} with {value!r}: {error!r}"] if name in MUST_WORK else []
            except Exception as error:
                failures.append(f"{name} with {value!r}: {error!r}")
        if not failures:
            assert states(broker, ["new"]) == {State.SUCCEEDED}
        run_blocking(broker.close())
    assert not failures, "\n".join(failures[:20])


def have_everything(broker: Broker, path: Path) -> None:
    """Something in every column: a running job with progress, a dead one, limits, pauses, a sleeper."""
    hand = Hand(broker)
    put(broker, "running", "dead")
    assert hand.take() == {"running": 1, "dead": 1}
    hand.settle(OutcomeKind.DEAD, dead=1)
    put(broker, "ready")
    run_blocking(broker.renew([Beat("hand", DAY, (ProgressReport("running", 1, Progress(1.0)),))]))
    for scope in (Scope("default"), Scope("default", "t")):
        run_blocking(broker.edit(scope, SetLimits(max_running=1000)))
    run_blocking(broker.edit(Scope("default", "nobody"), Pause()))
    with looking_into(path) as connection:
        sleeper = "INSERT INTO sleepers (ns, bell, until, filter) VALUES (1, '1-ab', 1 << 50, ?)"
        connection.execute(sleeper, (msgspec.msgpack.encode(ANY),))
        connection.execute("INSERT INTO sleeper_queues (ns, queue, sleeper) VALUES (1, 'default', 1)")


def every_verb(broker: Broker) -> Iterator[tuple[str, Callable[[], Coroutine[Any, Any, object]]]]:
    scope = Scope("default")
    yield "get", lambda: broker.get(["running", "dead", "ready"])
    yield "find", lambda: broker.find(Query())
    yield "queues", broker.queues
    yield "events", lambda: broker.events({})
    yield "audit", broker.audit
    yield "edit", lambda: broker.edit(Query(tag="x"), Cancel())
    yield "retake", lambda: broker.take("hand", 1, ["default"], ANY, 9)
    yield "put", lambda: broker.put([job("new")])
    yield "renew", lambda: broker.renew([Beat("hand", DAY)])
    yield "wait", lambda: broker.wait(Interest(queues=("default",), session="hand", watcher="w"), 0)
    yield "resume", lambda: broker.edit(scope, Resume())
    yield "resume", lambda: broker.edit(Scope("default", "t"), Resume())
    yield "take", lambda: broker.take("hand", 2, ["default"], ANY, 9)
    done = [Outcome(id=id, run=1, kind=SUCCEEDED) for id in ("new", "ready", "running")]
    yield "settle", lambda: broker.settle("hand", done)
    yield "sweep", broker.sweep
    for where in (scope, Scope("default", "t"), Scope("default", "nobody")):
        yield f"limit {where.task}", lambda where=where: broker.edit(where, SetLimits(max_running=9))  # type: ignore[misc]
        yield f"pause {where.task}", lambda where=where: broker.edit(where, Pause())  # type: ignore[misc]


# 5. Fork


def test_a_forked_child_shares_neither_connection_nor_bell(
    url: str, path: Path, crew: Crew, broker: Broker
) -> None:
    forker = crew.start(program.forker, url=url, count=200)
    assert heard(forker) == "0", "the child kept its parent's bell open"
    assert heard(forker) == "True"
    assert count_in(broker, State.READY) == 401
    assert run_blocking(broker.audit()) == []
    tell(forker)
    asleep(path, 1)
    run_blocking(broker.put([job("later", queue="later")]))
    assert heard(forker) == "True"
    assert sound(path)


# 6. Two of everything


def test_processes_that_open_a_new_file_at_once_all_use_the_same(
    url: str, path: Path, crew: Crew, tmp_path: Path
) -> None:
    starters = [crew.start(program.starter, url=url, id=f"job-{n}") for n in range(8)]
    for starter in starters:
        assert heard(starter) == "up"
    for starter in starters:
        tell(starter)
    assert [heard(starter) for starter in starters] == ["[]"] * 8
    broker = opened(url)
    assert states(broker, [f"job-{n}" for n in range(8)]) == {State.READY}
    assert count(path, "namespaces") == count(path, "queues") == 1
    run_blocking(broker.close())
    assert sound(path)


def test_sweepers_at_once_free_each_run_once(url: str, crew: Crew, broker: Broker) -> None:
    finders = [crew.start(program.lapse_finder, url=url) for _ in range(4)]
    for finder in finders:
        assert heard(finder) == "up"
    put(broker, *(ids := [f"job-{n}" for n in range(60)]))
    past = time.time_ns() // 1_000_000 - 60_000
    for n in range(30):
        run_blocking(broker.renew([Beat(f"dead-{n}", 30_000)], now=past))
        assert len(run_blocking(broker.take(f"dead-{n}", 1, ["default"], ANY, 2, now=past))) == 2
    for finder in finders:
        tell(finder)
    assert sum(int(heard(finder)) for finder in finders) == 60
    assert [(record.state, record.run, record.crashes) for record in records(broker, ids)] == [
        (State.READY, 1, 0)
    ] * 60
    assert run_blocking(broker.audit()) == []


def test_two_processes_of_one_session_complete_a_job_once(url: str, crew: Crew, broker: Broker) -> None:
    put(broker, "a", "b")
    twins = [crew.start(program.holder, url=url, session="twin", request=7, lease=60_000) for _ in range(2)]
    for twin in twins:
        assert heard(twin) == "open"
        tell(twin)
    # The same request is the same call: both get the same run, as after a lost reply.
    assert [heard(twin) for twin in twins] == ["a 1", "a 1"]
    with pytest.raises(InvalidInput, match="it only counts up"):
        run_blocking(broker.take("twin", 6, ["default"], ANY, 1))
    for twin in twins:
        tell(twin)
    assert sorted(heard(twin) for twin in twins) == [Verdict.ACCEPTED, Verdict.ALREADY]
    assert states(broker, ["a"]) == {State.SUCCEEDED}
    assert states(broker, ["b"]) == {State.READY}
    assert run_blocking(broker.audit()) == []


def test_word_of_the_dead_does_not_reach_another_job_that_got_its_number(
    url: str, broker: Broker, crew: Crew
) -> None:
    hand = Hand(broker)
    put(broker, "a", "x")
    run_blocking(broker.put([job("b", waits_for=("a",))]))
    assert hand.take(want=1) == {"a": 1}
    # The process that ends `a` dies before it delivers the word of that to `b`.
    undertaker = crew.start(program.undertaker, url=url, session="hand", id="a", run=1)
    assert undertaker.wait() == -signal.SIGKILL
    assert states(broker, ["a"]) == {State.DEAD}
    run_blocking(broker.edit(Ids(("b",)), Delete()))
    run_blocking(broker.put([job("c", waits_for=("x",))]))
    run_blocking(broker.sweep())
    assert states(broker, ["c"]) == {State.WAITING}


# 7. Clocks that jump


class Clock:
    def __init__(self) -> None:
        self.time = 1_700_000_000_000

    def __call__(self) -> int:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def jumpy(url: str, clock: Clock) -> Iterator[Broker]:
    broker = run_blocking(connect(url, blocking=True, clock=clock))
    yield broker
    assert run_blocking(broker.audit()) == []
    run_blocking(broker.close())


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_while_the_clock_jumps(seed: int, jumpy: Broker, clock: Clock) -> None:
    chance = random.Random(seed)
    ids: list[str] = []
    for turn in range(150):
        clock.time += chance.choice((0, 1, 40, 900, 31_000))
        if chance.random() < 0.1:
            clock.time += chance.choice((DAY, -DAY, 3_600_000, -3_600_000))
        session = f"session-{chance.randrange(3)}"
        run_blocking(jumpy.renew([Beat(session, 30_000)]))
        kinds: dict[str, Any] = {
            "plain": {},
            "delayed": {"due": clock.time + 5_000},
            "rated": {"task": "rated", "rate": "10/s"},
            "keyed": {"rate": "5/s", "rate_key": "k", "group": "g"},
            "narrow": {"task": "narrow", "max_running": 2},
            "mortal": {"ttl": 60_000},
        }
        kind = chance.choice(list(kinds))
        ids.append(f"{kind}-{turn}")
        run_blocking(jumpy.put([job(ids[-1], **kinds[kind])]))
        taken = run_blocking(jumpy.take(session, turn + 1, ["default"], ANY, 3))
        kept = [one for one in taken if chance.random() < 0.8]
        outcome = chance.choice((SUCCEEDED, OutcomeKind.RETRY, OutcomeKind.GIVE_BACK))
        at = clock.time + 2_000
        done = [Outcome(id=one.job.id, run=one.run, kind=outcome, at=at) for one in kept]
        assert {reply.verdict for reply in run_blocking(jumpy.settle(session, done))} <= {Verdict.ACCEPTED}
        if turn % 5 == 0:
            run_blocking(jumpy.sweep())
            run_blocking(jumpy.wait(Interest(queues=("default",), session=session), 0))
        assert run_blocking(jumpy.audit()) == []
    clock.time = 1_700_000_000_000 + 9 * DAY
    hand = Hand(jumpy)
    for _ in range(100):
        clock.time += 10_000
        run_blocking(jumpy.sweep())
        run_blocking(jumpy.renew([Beat("hand", DAY)]))
        hand.request += 1
        taken = run_blocking(jumpy.take("hand", hand.request, ["default"], ANY, 100))
        run_blocking(
            jumpy.settle("hand", [Outcome(id=one.job.id, run=one.run, kind=SUCCEEDED) for one in taken])
        )
    left = [record for record in run_blocking(jumpy.get(ids)) if record is not None]
    assert {record.state for record in left} <= {State.SUCCEEDED, State.DEAD}
    for record in left:
        assert record.state is State.SUCCEEDED or (record.reason or "").startswith("expired")


@pytest.mark.parametrize("limits", [{"rate": "10/s"}, {"rate": "10/s", "rate_key": "k"}], ids=["task", "key"])
def test_a_clock_that_goes_back_a_day_holds_no_rate_up_for_a_day(
    limits: dict[str, str], jumpy: Broker, clock: Clock
) -> None:
    hand = Hand(jumpy)
    run_blocking(jumpy.put([job(f"job-{n}", **limits) for n in range(5)]))
    run_blocking(jumpy.sweep())
    assert len(hand.take()) == 1
    assert hand.take() == {}
    clock.time -= DAY
    assert within_two_minutes(jumpy, clock, hand.take)


def test_a_clock_that_goes_back_a_day_hides_no_dead_session_for_a_day(jumpy: Broker, clock: Clock) -> None:
    put(jumpy, "a")
    run_blocking(jumpy.sweep())
    run_blocking(jumpy.renew([Beat("dead", 30_000)]))
    assert len(run_blocking(jumpy.take("dead", 1, ["default"], ANY, 1))) == 1
    clock.time -= DAY
    assert within_two_minutes(jumpy, clock, lambda: states(jumpy, ["a"]) == {State.READY})


def within_two_minutes(broker: Broker, clock: Clock, condition: Callable[[], object]) -> bool:
    for _ in range(120):
        clock.time += 1_000
        run_blocking(broker.sweep())
        if condition():
            return True
    return False


# 8. Nonsense

ALPHABET = string.ascii_letters + string.digits + "/:?&=%#@[]\\ .\0\n+~²٣é€℀\ud800\udfff💥"
URLS = st.one_of(
    st.text(ALPHABET, max_size=60),
    st.builds("sqlite:{}".format, st.text(ALPHABET, max_size=40)),
    st.builds("sqlite://{}".format, st.text(ALPHABET, max_size=40)),
    st.builds("sqlite:///{}".format, st.text(ALPHABET, max_size=40)),
    st.builds(
        "sqlite:///x.db?{}".format,
        st.lists(
            st.builds(
                "{}={}".format,
                st.sampled_from(("timeout", "poll", "synchronous", "mode", "", "%00")),
                st.one_of(
                    st.sampled_from(("full", "normal", "5", "5s", "1e9", "nan", "-1", "²", "٣", "9" * 400)),
                    st.text(ALPHABET, max_size=10),
                ),
            ),
            max_size=4,
        ).map("&".join),
    ),
)


def test_a_nonsense_url_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @settings(max_examples=400, deadline=None, database=None, derandomize=True)
    @given(URLS)
    def check(url: str) -> None:
        place = unquote(url.partition("?")[0].removeprefix("sqlite:///"))
        assume(not place.startswith("/") and ".." not in place)  # stay in this folder
        try:
            broker = run_blocking(connect(url, blocking=True))
        except (InvalidInput, BrokerError):
            return
        run_blocking(broker.close())

    check()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://host/jobs.db",
        "sqlite://[/jobs.db",
        "sqlite://℀/jobs.db",
        "sqlite:///a%00b",
        "sqlite:///\ud800",
        "sqlite:///jobs.db?timeout=²",
        "sqlite:///jobs.db?timeout=" + "9" * 5000,
        "sqlite:///jobs.db?timeout=5s&timeout=never",
        "sqlite:///jobs.db?mode=memory",
        "sqlite:///jobs.db?synchronous=off",
        "sqlite:///" + "x" * 5000,
        "sqlite:///" + "x/" * 3000,
        5,
        b"sqlite:///jobs.db",
        None,
    ],
)
def test_these_urls_are_refused(url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput):
        run_blocking(connect(url, blocking=True))
    assert list(tmp_path.iterdir()) == []
