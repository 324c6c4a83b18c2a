"""Actors that call the broker directly: readers, sweepers, operators, leaders, tickers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from dray.broker.actions import (
    Cancel,
    Delete,
    Ids,
    JobAction,
    Pause,
    Query,
    Reprioritise,
    Reschedule,
    Resume,
    Retry,
    Scope,
    ScopeAction,
    SetLimits,
    Speculate,
)
from dray.broker.verbs import Broker, DocWrite, Entry
from dray.errors import BrokerAway
from dray.job import Job, State
from dray.worker.duties.duties import Duties, Duty, Sweep
from dray.worker.retrying_broker import RetryingBroker
from sim.lives import Life, Violation
from sim.loop import Process
from sim.orders import QUEUES
from sim.plan import Plan
from sim.script import TASKS, Script


class Wait:
    """A watcher waits for the end of these jobs."""

    def __init__(self, process: Process, ids: list[str], since: float) -> None:
        self.process, self.ids, self.since = process, ids, since


class Board:
    """State shared by the actors of one simulation: used ids, waits, the leader."""

    def __init__(
        self,
        plan: Plan,
        clock: Callable[[], int],
        lives: dict[str, Life],
        ever: set[str],
        speculation: Callable[[], Duty],
    ) -> None:
        self.plan, self.clock, self.speculation = plan, clock, speculation
        self.lives, self.ever = lives, ever
        self.left = plan.jobs
        self.closing = False
        self.ids: list[str] = []
        self.waits: dict[str, Wait] = {}
        """The waits that are under way."""
        self.read: dict[str, list[Entry]] = {}
        self.leader: tuple[str, int, float] = ("", 0, 0.0)
        self.ticks: dict[int, str] = {}


async def read(board: Board, name: str, broker: Broker, dice: random.Random) -> None:
    """Follows the feed from its beginning."""
    cursor: dict[str, int] = {}
    entries = board.read.setdefault(name, [])
    entries.clear()
    while True:
        try:
            feed = await broker.events(cursor, limit=dice.choice([1, 5, 1000]))
        except BrokerAway:
            continue
        finally:
            await asyncio.sleep(dice.uniform(0.5, 4))
        if feed.gaps:
            raise Violation("feed", f"a gap in {feed.gaps} though nothing was dropped")
        entries += feed.entries
        cursor = feed.cursor


async def sweep(board: Board, name: str, broker: Broker, dice: random.Random) -> None:
    """Does the duties of a worker while it leads."""
    time, lease = asyncio.get_running_loop().time, board.plan.lease
    line = RetryingBroker(broker, lease, wall=time, monotonic=time, random=dice.random)
    interval = dice.choice([500, 1000])
    duties: list[Duty] = [Sweep(interval)]
    if board.plan.has("stragglers"):
        duties.append(board.speculation())
    await Duties(line, name, duties, lease=int(lease * 1000), interval=interval).run()


async def operate(board: Board, name: str, broker: Broker, dice: random.Random) -> None:
    """Changes jobs and queues by hand, and sweeps in small steps; repeats nothing."""
    while True:
        await asyncio.sleep(dice.uniform(0.1, 2.5))
        try:
            if dice.random() < 0.1:
                await broker.sweep(2, lapse=dice.random() < 0.5)
            elif board.plan.has("scopes") and dice.random() < 0.3:
                await broker.edit(*_scope_edit(dice))
            elif board.plan.has("edits") and board.ids:
                await _edit_jobs(board, broker, dice)
        except BrokerAway:
            continue


async def _edit_jobs(board: Board, broker: Broker, dice: random.Random) -> None:
    action = _job_edit(dice, board.clock())
    chance = dice.random()
    if chance < 0.1 and isinstance(action, Cancel | Retry | Delete):
        query = Query(queue=dice.choice(QUEUES), state=dice.choice([State.DEAD, State.CANCELLED]))
        await broker.edit(query, action, limit=2)
    elif chance < 0.6:
        running = (await broker.find(Query(state=State.RUNNING), limit=10)).records
        if running:
            await broker.edit(
                Ids((dice.choice(running).id,)), dice.choice([action, *[Cancel()] * 3, Speculate()])
            )
    else:
        await broker.edit(Ids(tuple(_some(board.ids, dice))), action)


def _some(ids: list[str], dice: random.Random) -> list[str]:
    """The newest are the likeliest to be unfinished."""
    pool = ids[-8:] if dice.random() < 0.6 else ids
    return list(dict.fromkeys(dice.choice(pool) for _ in range(dice.randint(1, 3))))


def _job_edit(dice: random.Random, now: int) -> JobAction:
    actions: list[JobAction] = [
        Cancel(),
        Cancel(),
        Cancel(force=True),
        Retry(),
        Delete(),
        Reschedule(now + dice.randint(-2000, 8000)),
        Reprioritise(dice.choice([0, 1, 5, 9])),
        Speculate(),
        Speculate(),
    ]
    return dice.choice(actions)


def _scope_edit(dice: random.Random) -> tuple[Scope, ScopeAction]:
    queue = Scope(dice.choice(QUEUES))
    task = Scope(queue.queue, dice.choice(TASKS))
    limits = [
        (queue, SetLimits(max_running=dice.choice([1, 2, None]))),
        (queue, SetLimits(group_running=dice.choice([1, None]))),
        (queue, SetLimits(rate=dice.choice(["120/m+3", None]))),
        (task, SetLimits(max_running=dice.choice([1, 2, None]))),
        (task, SetLimits(rate=dice.choice(["60/m+1", None]))),
    ]
    pauses: list[tuple[Scope, ScopeAction]] = [
        (queue, Pause()),
        (task, Pause()),
        (queue, Resume()),
        (queue, Resume()),
        (task, Resume()),
    ]
    return dice.choice([*limits, *pauses])


async def lead(board: Board, name: str, broker: Broker, dice: random.Random) -> None:
    """Takes a lock with a term: no two actors hold it at a time, whatever replies are lost."""
    loop, ttl, version = asyncio.get_running_loop(), 3.0, 0
    while True:
        since = loop.time()
        try:
            reply = await broker.doc(
                "lock", "leader", name.encode(), expect_version=version, ttl=int(ttl * 1000)
            )
        except BrokerAway:
            reply, version = None, 0
        if reply is not None and reply.written and reply.doc is not None:
            version = reply.doc.version
            _leads(board, name, version, since + ttl, loop.time())
        else:
            version = 0
        await asyncio.sleep(dice.uniform(0.5, 2))


def _leads(board: Board, name: str, term: int, until: float, now: float) -> None:
    other, its_term, its_end = board.leader
    if other != name and its_end > now and until > now:
        raise Violation("documents", f"{name} leads at term {term} while {other} leads at {its_term}")
    if until > now:
        board.leader = (name, term, until)


async def tick(board: Board, name: str, broker: Broker, dice: random.Random) -> None:
    """One of several schedulers of a schedule, which makes one job per tick."""
    while True:
        try:
            now = await broker.doc("schedule", "tick")
            number = int(now.doc.value) if now.doc is not None else 0
            version = now.doc.version if now.doc is not None else 0
            job = Job(id=f"tick-{number}-by-{name}", task="plain", queue="a", payload=Script().payload())
            when = DocWrite(kind="schedule", name="tick", value=b"%d" % (number + 1), expect_version=version)
            accepted = await broker.put([job], when=when)
        except BrokerAway:
            accepted = []
        if accepted and board.ticks.setdefault(number, accepted[0].id) != accepted[0].id:
            raise Violation("documents", f"two jobs for tick {number}", accepted[0].id)
        await asyncio.sleep(dice.uniform(2, 6))
