"""Stores with jobs in every place, to be damaged by hand; and what must hold once they were swept."""

from __future__ import annotations

from collections import Counter
from typing import Final

from dray.broker import Broker
from dray.broker.actions import Ids, Query, Speculate
from dray.broker.durable import MemoWrite
from dray.broker.verbs import PAGE_MAX, Beat, Filter
from dray.job import Error, Job, Outcome, OutcomeKind, Record, State, Suspension

HOUR: Final = 3_600_000
QUEUE: Final = "shop"
MANY: Final = 6


def job(id: str, task: str = "work", **fields: object) -> Job:
    return Job(id=id, task=task, queue=QUEUE, **fields)  # type: ignore[arg-type]


async def furnish(broker: Broker, now: int) -> None:
    """One job or more in every state, with groups, keys, limits and dependencies. Ids are their names."""
    await broker.renew([Beat("ann", HOUR), Beat("bob", HOUR)], now=now)
    begun = [job("done"), job("once", key="once", once=HOUR), job("dead"), job("retried"), job("held")]
    begun += [job("held-limited", group="g", running_key="k", max_running=3, key="held-key")]
    begun += [job("twice", speculate=True)]
    await broker.put(begun, now=now)
    taken = {one.job.id: one for one in await broker.take("ann", 1, [QUEUE], Filter(), 99, now=now)}
    kinds = {"done": "succeeded", "once": "succeeded", "dead": "dead", "retried": "retry"}
    outcomes = [
        Outcome(id=id, run=taken[id].run, kind=OutcomeKind(kind), error=Error("E", "no"), at=now + HOUR)
        for id, kind in kinds.items()
    ]
    await broker.settle("ann", outcomes, now=now)
    await broker.edit(Ids(("twice",)), Speculate(), now=now)
    waiting = [job("waits", waits_for=("held",)), job("waits-more", waits_for=("held", "later"))]
    ready = [job(f"ready-{n}", priority=n % 3) for n in range(MANY)]
    ready += [job("grouped", group="g", running_key="k", max_running=3, key="key", ttl=24 * HOUR)]
    ready += [job("limited-in-time", deadline=24 * HOUR)]
    ready += [job("rated", rate="5/s", rate_key="r"), job("node", owner="ready-0", node="n")]
    await broker.put([job("later", due=now + HOUR), *ready], now=now)
    await _sleepers(broker, now)
    await broker.put(waiting, now=now)
    assert await broker.audit() == []


async def _sleepers(broker: Broker, now: int) -> None:
    """Durable jobs with log and mail: one sleeps, one waits for an event, one for another job."""
    await broker.put([job(id, "durable") for id in ("sleeps", "awaits", "parent")], now=now)
    only = Filter(tasks=frozenset({"durable"}))
    taken = {one.job.id: one for one in await broker.take("bob", 1, [QUEUE], only, 9, now=now)}
    writes = [
        MemoWrite(id=id, run=one.run, position=0, entries=(b"step",), children=("done",))
        for id, one in taken.items()
    ]
    await broker.memo("bob", writes, now=now)
    await broker.send("awaits", "other", "m1", b"news", now=now)
    waits = {
        "sleeps": Suspension(until=now + HOUR),
        "awaits": Suspension(events={"go": 0}, until=now + HOUR),
        "parent": Suspension(jobs=("held",)),
    }
    outcomes = [
        Outcome(id=id, run=taken[id].run, kind=OutcomeKind.SUSPENDED, suspend=suspend)
        for id, suspend in waits.items()
    ]
    await broker.settle("bob", outcomes, now=now)


async def records(broker: Broker, now: int) -> dict[str, Record]:
    page = await broker.find(Query(), limit=PAGE_MAX, now=now)
    return {record.id: record for record in page.records}


async def swept(broker: Broker, now: int) -> Counter[str]:
    """Sweep until nothing is left to repair; what was repaired."""
    repairs: Counter[str] = Counter()
    for n in range(6):
        step = await broker.sweep(now=now + n * 20_000)
        repairs.update(step.repairs)
        repairs.update({f"{kind} finished": count for kind, count in step.finished.items()})
        if not (step.repairs or step.finished) and n > 2:
            return repairs
    raise AssertionError(f"it is never sound again: {repairs}")


async def work_off(broker: Broker, now: int) -> Counter[str]:
    """Two workers, one new, run whatever can run; how often each job was run."""
    for session in ("ann", "bob", "ann2"):
        await broker.release(session, now=now)
    await broker.renew([Beat("carl", HOUR)], now=now)
    ran: Counter[str] = Counter()
    for request in range(1, 50):
        batch = await broker.take("carl", request, [QUEUE], Filter(), 99, now=now)
        if not batch:
            return ran
        ran.update(one.job.id for one in batch)
        outcomes = [Outcome(id=one.job.id, run=one.run, kind=OutcomeKind.SUCCEEDED) for one in batch]
        await broker.settle("carl", outcomes, now=now)
    raise AssertionError("there is always more to run")


UNFINISHED: Final = {
    *(f"ready-{n}" for n in range(MANY)),
    *(
        "grouped",
        "limited-in-time",
        "rated",
        "later",
        "retried",
        "held",
        "held-limited",
        "twice",
        "waits",
        "waits-more",
        "sleeps",
        "awaits",
        "parent",
        "node",
    ),
}


async def check_sound(broker: Broker, now: int, lost: set[str]) -> None:
    """Nothing is inconsistent, and every job that was not finished runs once, except for what is lost."""
    assert await broker.audit() == []
    ran = await work_off(broker, now + 2 * HOUR)
    assert ran == Counter(UNFINISHED - lost)
    assert await broker.audit() == []
    found = await records(broker, now + 2 * HOUR)
    assert {id for id, one in found.items() if one.state is State.SUCCEEDED} >= UNFINISHED - lost
