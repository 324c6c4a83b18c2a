"""Everyone who is not a worker: producers, watchers, readers, sweepers, operators, leaders, tickers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

from dray.broker.verbs import (
    Broker,
    Cancel,
    Delete,
    DocWrite,
    Entry,
    Ids,
    Interest,
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
from dray.errors import BrokerAway, InvalidInput
from dray.job import Job, State
from dray.testing.sim.lives import Violation
from dray.testing.sim.orders import QUEUES, TASKS, Author
from dray.testing.sim.plan import Plan

FOREVER: Final = 100_000.0


class Board:
    """What the actors of one simulation share: which ids were used, what is being watched, who leads."""

    def __init__(self, plan: Plan, clock: Callable[[], int]) -> None:
        self.plan = plan
        self.clock = clock
        self.left = plan.jobs
        self.closing = False
        self.ids: list[str] = []
        self.unheard: dict[str, str] = {}
        """Watcher → the job whose end it has not heard of yet."""
        self.read: dict[str, list[Entry]] = {}
        self.leader: tuple[str, int, float] = ("", 0, 0.0)
        self.ticks: dict[int, str] = {}


async def produce(board: Board, name: str, broker: Broker, dice: random.Random, author: Author) -> None:
    """Puts what the author makes up, each order until it is answered."""
    while board.left > 0:
        order = author.order(board.left)
        board.left -= len(order)
        board.ids += [job.id for job in order]
        await _put(broker, order, dice)
        await asyncio.sleep(dice.uniform(0, board.plan.horizon / max(board.plan.jobs, 1)))


async def _put(broker: Broker, order: list[Job], dice: random.Random) -> None:
    while True:
        try:
            await broker.put(order)
            return
        except BrokerAway:
            await asyncio.sleep(dice.uniform(0.01, 1))
        except InvalidInput:
            return


async def watch(board: Board, name: str, broker: Broker, dice: random.Random) -> None:
    """Waits for the end of one job after the other; it must always hear it."""
    board.unheard.pop(name, None)
    while not board.closing:
        await asyncio.sleep(dice.uniform(0.1, 3))
        if board.ids:
            id = dice.choice(board.ids)
            board.unheard[name] = id
            heard = False
            while not heard:
                heard = await _hear(broker, name, id)
                await asyncio.sleep(dice.uniform(0, 0.5))
            del board.unheard[name]


async def _hear(broker: Broker, name: str, id: str) -> bool:
    """Whether the end is known. Whoever missed a message reads again; whoever did not never polls."""
    try:
        (record,) = await broker.get([id], watch=name)
        if record is None or record.state.finished:
            return True
        while True:
            wake = await broker.wait(Interest(watcher=name), FOREVER)
            if id in wake.finished:
                return True
    except BrokerAway:
        return False


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
    """After being out of contact for a lease it must not judge others for as long."""
    loop = asyncio.get_running_loop()
    contact, judge = loop.time(), loop.time()
    while True:
        if loop.time() - contact > board.plan.lease:
            judge = loop.time() + board.plan.lease
        try:
            swept = await broker.sweep(dice.choice([2, 1000]), lapse=loop.time() >= judge)
            contact = loop.time()
        except BrokerAway:
            swept = None
        await asyncio.sleep(0.05 if swept is not None and swept.more else dice.uniform(0.5, 1.5))


async def operate(board: Board, name: str, broker: Broker, dice: random.Random) -> None:
    """Changes jobs and queues by hand. Does not insist."""
    while True:
        await asyncio.sleep(dice.uniform(0.1, 2.5))
        try:
            if board.plan.has("scopes") and dice.random() < 0.3:
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
    elif chance < 0.5:
        running = (await broker.find(Query(state=State.RUNNING), limit=10)).records
        if running:
            await broker.edit(Ids((dice.choice(running).id,)), dice.choice([action, Cancel(), Speculate()]))
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
        Cancel(),
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
    """A lock with a term: no two hold it at a time, whatever they believe about replies they did not get."""
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
    """A schedule with several schedulers: one job per tick, whoever makes it."""
    while True:
        try:
            now = await broker.doc("schedule", "tick")
            number = int(now.doc.value) if now.doc is not None else 0
            version = now.doc.version if now.doc is not None else 0
            job = Job(id=f"tick-{number}-by-{name}", task="plain", queue="a")
            when = DocWrite(kind="schedule", name="tick", value=b"%d" % (number + 1), expect_version=version)
            accepted = await broker.put([job], when=when)
        except BrokerAway:
            accepted = []
        if accepted and board.ticks.setdefault(number, accepted[0].id) != accepted[0].id:
            raise Violation("documents", f"two jobs for tick {number}", accepted[0].id)
        await asyncio.sleep(dice.uniform(2, 6))
