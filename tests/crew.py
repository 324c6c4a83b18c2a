"""The processes that use and abuse a broker in the tests: `python crew.py ROLE '{"url": ...}'`.

Each role is a plain function; `Crew.start` runs it in a fresh interpreter. A role speaks with its test in
lines: `say` there is `heard` here, `tell` here is `hear` there. What must survive a SIGKILL goes into files.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

from dray.broker import Broker, connect
from dray.broker.sqlite import SqliteBroker
from dray.broker.sqlite.fifo import Fifo
from dray.broker.verbs import Beat, Filter, Interest, run_blocking
from dray.errors import BrokerAway, BrokerFull, BrokerReadOnly, DrayError, SessionLost
from dray.job import Job, Outcome, OutcomeKind, Taken, Verdict

T = TypeVar("T")
P = ParamSpec("P")
ANY = Filter()
PATIENCE = 60.0
"""How long anything may take at the very most, on the busiest machine."""


class Crew:
    """The processes of one test. None outlives it."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []

    def start(self, role: Callable[..., None], **given: object) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, role.__name__, json.dumps(given)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.all.append(process)
        return process

    def dismiss(self) -> None:
        for process in self.all:
            process.kill()
        for process in self.all:
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Wait for a process that was killed, and close its pipes."""
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def tell(process: subprocess.Popen[str], word: str = "go") -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"{process.args!r} ended with {process.wait()} and said nothing"
    return line.strip()


def until(condition: Callable[[], T], what: str | Callable[[], str], patience: float = PATIENCE) -> T:
    """Wait for a condition to hold; its value. A function tells what failed when it has failed (logs)."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited for {what if isinstance(what, str) else what()} in vain")
        time.sleep(0.005)
    return value


def freeze(pid: int, database: Path | None = None) -> None:
    """Stop a process; if a `database` is given, outside a write transaction on it.

    A process that is stopped inside of one keeps all others from writing, which is another story.
    """

    def frozen() -> bool:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: is_stopped(pid), "it to stop")
        if database is None or _can_write(database):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    until(frozen, "it to be outside a transaction")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _can_write(database: Path) -> bool:
    """The write lock can be had; a process at work keeps it for milliseconds only."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None, timeout=2)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
    return True


def opened(url: str) -> Broker:
    return run_blocking(connect(url, blocking=True))


@contextlib.contextmanager
def looking_into(path: str | os.PathLike[str]) -> Iterator[sqlite3.Connection]:
    """The file as the `sqlite3` shell sees it."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE)
    try:
        yield connection
    finally:
        connection.close()


def lines(file: Path) -> list[str]:
    """The whole lines of a file; one that a SIGKILL cut short does not count."""
    return file.read_text().split("\n")[:-1] if file.exists() else []


# In the processes


def say(word: object) -> None:
    print(word, flush=True)


def hear() -> str:
    line = sys.stdin.readline()
    assert line
    return line.strip()


def append(file: Path, text: Sequence[str], *, sync: bool = False) -> None:
    """Add lines with one write, so that a SIGKILL leaves all of them or none."""
    if not text:
        return
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, "".join(f"{line}\n" for line in text).encode())
        if sync:
            os.fsync(handle)
    finally:
        os.close(handle)


def persist(verb: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **given: P.kwargs) -> T:
    """Repeat a call until the broker answers: what a lost reply or a busy file asks of every client."""
    while True:
        try:
            return run_blocking(verb(*args, **given))
        except BrokerAway:
            time.sleep(0.01)


# Chaos


def kind_of(id: str) -> int:
    """What an id is destined for: the same in every process, and after every restart."""
    return zlib.crc32(id.encode()) % 20


def key_of(id: str) -> str | None:
    return f"key-{zlib.crc32(id.encode()) % 3}" if kind_of(id) == 7 else None


def chaos_job(id: str, acknowledged: Sequence[str]) -> Job:
    kind, queue = kind_of(id), "main"
    task = "narrow" if kind < 4 else "plain"
    due = time.time_ns() // 1_000_000 + 150 if kind in (4, 5) else None
    waits_for = (acknowledged[-1],) if kind in (6, 8) and acknowledged else ()
    return Job(
        id=id,
        task=task,
        queue="side" if kind == 9 else queue,
        max_running=2 if task == "narrow" else None,
        due=due,
        waits_for=waits_for,
        key=key_of(id),
        group=f"group-{kind}" if kind > 15 else None,
        payload=b"x" * (kind * 10),
    )


def producer(url: str, log: str, name: str, count: int) -> None:
    """Put `count` jobs, singly and in batches, each until it is acknowledged, as far as no past life did."""
    file = Path(log)
    broker = opened(url)
    chance = random.Random(f"{name} {os.getpid()}")
    acknowledged = lines(file)
    done = set(acknowledged)
    missing = [id for id in (f"{name}-{n}" for n in range(count)) if id not in done]
    while missing:
        ids = missing[: chance.choice((1, 1, 1, 7, 20))]
        jobs = [chaos_job(id, acknowledged) for id in ids]
        replies = persist(broker.put, jobs)
        mine = [job.id for job, reply in zip(jobs, replies, strict=True) if reply.id == job.id]
        append(file, mine, sync=True)
        acknowledged += mine
        missing = [id for id in missing if id not in set(mine)]
        if len(mine) < len(ids):  # a key is taken: another time
            time.sleep(0.02)
    say("done")


def worker(url: str, log: str, name: str, lease: int, queues: list[str]) -> None:
    """Take, run, settle, for ever. Each accepted success is logged with when the run surely was valid."""
    session = f"{name}-{uuid.uuid4()}"
    threading.Thread(target=keep_alive, args=(url, session, lease), daemon=True).start()
    broker, file = opened(url), Path(log)
    interest = Interest(queues=tuple(queues), session=session)
    for request in itertools.count(1):
        try:
            taken = persist(broker.take, session, request, queues, ANY, 4)
        except SessionLost:  # not open yet, or this machine is too slow for so short a lease
            persist(broker.renew, [Beat(session, lease)])
            continue
        if taken:
            run_and_settle(broker, session, taken, file)
        else:
            persist(broker.wait, interest, 0.5)


def run_and_settle(broker: Broker, session: str, taken: list[Taken], file: Path) -> None:
    began = time.monotonic()
    time.sleep(0.002)  # the work
    ended = time.monotonic()
    outcomes = [outcome_of(one) for one in taken]
    settled = persist(broker.settle, session, outcomes)
    append(
        file,
        [
            f"{outcome.id} {outcome.run} {one.job.task} {began} {ended}"
            for one, outcome, reply in zip(taken, outcomes, settled, strict=True)
            if reply.verdict is Verdict.ACCEPTED and outcome.kind is OutcomeKind.SUCCEEDED
        ],
    )


def outcome_of(taken: Taken) -> Outcome:
    kind = OutcomeKind.SUCCEEDED
    if taken.run == 1 and kind_of(taken.job.id) in (10, 11):
        kind = OutcomeKind.RETRY
    if taken.run == 1 and kind_of(taken.job.id) == 12:
        kind = OutcomeKind.GIVE_BACK
    return Outcome(id=taken.job.id, run=taken.run, kind=kind, result=b"done")


def keep_alive(url: str, session: str, lease: int) -> None:
    broker = opened(url)
    while True:
        persist(broker.renew, [Beat(session, lease)])
        time.sleep(lease / 3000)


def sweeper(url: str) -> None:
    broker = opened(url)
    while True:
        persist(broker.sweep)
        time.sleep(0.05)


# Sessions


def holder(url: str, session: str, request: int, lease: int) -> None:
    """Take one job; settle it when told to."""
    broker = opened(url)
    run_blocking(broker.renew([Beat(session, lease)]))
    say("open")
    hear()
    (taken,) = run_blocking(broker.take(session, request, ["default"], ANY, 1))
    say(f"{taken.job.id} {taken.run}")
    hear()
    done = Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.SUCCEEDED, result=session.encode())
    (settled,) = run_blocking(broker.settle(session, [done]))
    say(settled.verdict)


def starter(url: str, id: str) -> None:
    """Open the broker at the moment it is told to, and put one job."""
    say("up")
    hear()
    broker = opened(url)
    run_blocking(broker.put([Job(id=id, task="t")]))
    say(run_blocking(broker.audit()))


def lapse_finder(url: str) -> None:
    """Sweep until there is nothing to do; say how many runs it freed."""
    broker = opened(url)
    say("up")
    hear()
    freed, more = 0, True
    while more:
        swept = run_blocking(broker.sweep(limit=3))
        freed, more = freed + swept.freed, swept.more or bool(swept.lapsed)
    say(freed)


def forker(url: str, count: int) -> None:
    """Use a broker, fork, and go on using it in both."""
    broker = opened(url)
    run_blocking(broker.put([Job(id="before", task="t")]))
    run_blocking(broker.wait(Interest(queues=("nothing",)), 0.01))  # now it has a bell
    (bell,) = Path(f"{url.removeprefix('sqlite:///')}-bells").iterdir()
    if not (child := os.fork()):
        for n in range(count):
            run_blocking(broker.put([Job(id=f"child-{n}", task="t")]))
        run_blocking(broker.wait(Interest(queues=("nothing",)), 0.01))
        shared = bell.stat().st_ino in open_inodes()
        run_blocking(broker.close())
        os._exit(3 if shared else 0)
    for n in range(count):
        run_blocking(broker.put([Job(id=f"parent-{n}", task="t")]))
    _, status = os.waitpid(child, 0)
    say(os.waitstatus_to_exitcode(status))
    say(bell.exists())  # the child took down its own, not its parent's
    hear()
    woke = run_blocking(broker.wait(Interest(queues=("later",)), PATIENCE))
    say(woke.work)


def open_inodes() -> set[int]:
    inodes = set()
    for handle in range(256):
        with contextlib.suppress(OSError):
            inodes.add(os.fstat(handle).st_ino)
    return inodes


# Waking


def waiter(url: str, rounds: int = 1, session: str | None = None) -> None:
    """Sleep until there is work, start it, and say when that was; `rounds` times."""
    broker = opened(url)
    session = session or str(uuid.uuid4())
    run_blocking(broker.renew([Beat(session, 3_600_000)]))
    say("up")
    request = 0
    for _ in range(rounds):
        taken: list[Taken] = []
        while not taken:
            woke = run_blocking(broker.wait(Interest(queues=("default",)), PATIENCE))
            request += 1
            taken = run_blocking(broker.take(session, request, ["default"], ANY, 1)) if woke.work else []
        say(f"{taken[0].job.id} {time.monotonic()} {time.time()}")
        hear()


def echo(folder: str, rounds: int) -> None:
    """Sleep on a bare bell and say when it rang."""
    bell = Fifo.open(folder, blocking=True)
    say(bell.name)
    for _ in range(rounds):
        assert run_blocking(bell.wait(PATIENCE))
        say(time.monotonic())
        hear()
    bell.close()


def idler(url: str, seconds: float) -> None:
    """Wait in vain; say what part of the time the processor was used."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    broker = opened(url)
    interest = Interest(queues=("default",), session="idler", watcher="idler")
    run_blocking(broker.renew([Beat("idler", 3_600_000)]))
    run_blocking(broker.wait(interest, 0.1))
    before, began = used(), time.monotonic()
    woke = run_blocking(broker.wait(interest, seconds))
    assert not woke.work
    say((used() - before) / (time.monotonic() - began))


def mute(url: str, id: str) -> NoReturn:
    """Die between the commit of a job and the ring for it."""

    def die(*_: object) -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    SqliteBroker._ring = die  # type: ignore[method-assign, assignment]
    run_blocking(opened(url).put([Job(id=id, task="t")]))
    raise AssertionError("there was nobody to ring for")


def undertaker(url: str, session: str, id: str, run: int) -> NoReturn:
    """Die between the end of a job and the word of it to the jobs that wait for it."""

    async def die(*_: object) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    SqliteBroker._forward = die  # type: ignore[method-assign, assignment]
    dead = Outcome(id=id, run=run, kind=OutcomeKind.DEAD, reason="dead")
    run_blocking(opened(url).settle(session, [dead]))
    raise AssertionError("nobody waits for it")


# The file


def filler(url: str) -> None:
    """Fill a file up to the size that the system allows, then go on with the same broker."""
    broker = opened(url)
    path = Path(url.removeprefix("sqlite:///"))
    most = path.stat().st_size + (600 << 10)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    accepted = 0
    while True:
        batch = [Job(id=f"{accepted}-{n}", task="t", payload=os.urandom(2000)) for n in range(20)]
        try:
            run_blocking(broker.put(batch))
        except BrokerFull:
            break
        accepted += 1
    for _ in range(3):
        with contextlib.suppress(BrokerFull):
            run_blocking(broker.put(batch))
            accepted += 1  # not reached unless it was kept, and then all of it must be there
            break
    say(accepted)
    say(sum(record is not None for record in run_blocking(broker.get([job.id for job in batch]))))
    say(run_blocking(broker.audit()))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    say(len(run_blocking(broker.put(batch))))
    say(run_blocking(broker.audit()))


def locker(path: str) -> None:
    """Hold the file until told to let go."""
    with looking_into(path) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        say("locked")
        hear()
        connection.execute("ROLLBACK")
    say("free")


def steady(url: str, log: str) -> None:
    """A worker that repeats what failed, as a lost reply asks for, and writes down what the trouble was."""
    broker, file = opened(url), Path(log)

    def insist(verb: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **given: P.kwargs) -> T:
        while True:
            try:
                return run_blocking(verb(*args, **given))
            except SessionLost:
                raise
            except DrayError as error:
                append(file, [f"error {type(error).__name__}"])
                time.sleep(0.01)

    say("up")
    for request in itertools.count(1):
        try:
            taken = insist(broker.take, "steady", request, ["default"], ANY, 3)
        except SessionLost:
            insist(broker.renew, [Beat("steady", 3_600_000)])
            continue
        done = [Outcome(id=one.job.id, run=one.run, kind=OutcomeKind.SUCCEEDED) for one in taken]
        replies = insist(broker.settle, "steady", done)
        append(file, [f"{reply.verdict} {one.id}" for one, reply in zip(done, replies, strict=True)])
        insist(broker.wait, Interest(queues=("default",)), 0.05)


def stream(url: str, log: str) -> None:
    """Put one job after another for ever, each acknowledged one on record."""
    broker, file = opened(url), Path(log)
    for n in range(1_000_000):
        run_blocking(broker.put([Job(id=f"job-{n}", task="t", payload=os.urandom(n % 3000))]))
        append(file, [f"job-{n}"])


def stranger(url: str, folder: str, spoil: str) -> None:
    """As a user who is not root, meet a file or folder that may not be written."""
    if os.getuid() == 0:
        os.chown(folder, 65534, 65534)
        os.setgid(65534)
        os.setuid(65534)
    path = Path(url.removeprefix("sqlite:///"))
    broker = opened(url)
    run_blocking(broker.put([Job(id="kept", task="t")]))
    run_blocking(broker.close())
    target = path if spoil == "file" else path.parent
    mode = target.stat().st_mode
    target.chmod(0o555)
    for _ in range(2):
        try:
            run_blocking(opened(url).put([Job(id="refused", task="t")]))
            say("accepted")
        except BrokerReadOnly:
            say("refused")
    target.chmod(mode)
    say([record is not None for record in run_blocking(opened(url).get(["kept", "refused"]))])


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role
    for role in (
        echo,
        filler,
        forker,
        holder,
        idler,
        lapse_finder,
        locker,
        mute,
        producer,
        starter,
        steady,
        stranger,
        stream,
        sweeper,
        undertaker,
        waiter,
        worker,
    )
}


def main(role: str, given: str) -> None:
    arguments: dict[str, Any] = json.loads(given)
    ROLES[role](**arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
