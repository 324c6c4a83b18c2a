"""Random changes by hand, and calls that must be refused."""

from __future__ import annotations

from random import Random
from typing import Any

from dray.broker.actions import (
    Cancel,
    Continue,
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
from dray.broker.durable import MemoWrite
from dray.broker.verbs import Beat, DocWrite, Filter
from dray.job import Job, Outcome, OutcomeKind, State
from walk.jobs import GROUPS, HOUR, IDS, KEYS, MINUTE, RATES, TAGS, Jobs

STATES = tuple(state for state in State if state is not State.NOT_FOUND)


def edit(rng: Random, jobs: Jobs, known: list[str], now: int) -> dict[str, Any]:
    if rng.random() < (0.03 if jobs.woven else 0.25):
        task = rng.choice(jobs.tasks) if rng.random() < 0.4 else None
        return {
            "selection": Scope(rng.choice(jobs.queues), task),
            "action": _scope_action(rng, task is not None),
            "dry_run": rng.random() < 0.05,
        }
    args: dict[str, Any] = {
        "action": _job_action(rng, now, "durable" in jobs.features),
        "dry_run": rng.random() < 0.08,
    }
    if rng.random() < 0.25:
        return args | {"selection": query(rng, jobs, known, now), "limit": rng.choice((2, 1000, 1000))}
    ids = tuple(rng.sample(known, min(len(known), rng.randint(1, 4))))
    if rng.random() < 0.05:
        ids += ids[:1]
    return args | {"selection": Ids(ids), "limit": rng.choice((1, 2, 1000, 1000))}


def _job_action(rng: Random, now: int, durable: bool) -> JobAction:
    due = max(0, now + rng.choice((-MINUTE, 0, 1, 700, MINUTE, 3 * HOUR)))
    actions = (
        Cancel("by hand", force=rng.random() < 0.3) if rng.random() < 0.5 else Cancel(),
        Retry(),
        Delete(),
        Reschedule(due),
        Reprioritise(rng.choice((0, 5, 9))),
        Speculate(rng.choice((None, 1, 1, 2))),
        Continue(),
    )
    return rng.choices(actions, (3, 3, 2, 4, 2, 1, int(durable)))[0]


def _scope_action(rng: Random, of_task: bool) -> ScopeAction:
    roll = rng.random()
    if roll < 0.2:
        return Pause("ann", "it's late")
    if roll < 0.5:
        return Resume()
    fields: dict[str, Any] = {"rate": (*RATES, None), "max_running": (1, 2, None)}
    if not of_task:
        fields |= {
            "enqueue_rate": (*RATES, None, None),
            "max_ready": (1, 3, None),
            "overflow": ("raise", "drop-oldest", None),
            "group_running": (1, 2, None),
        }
    names = rng.sample(sorted(fields), rng.randint(1, 2))
    return SetLimits(**{name: rng.choice(fields[name]) for name in names})


def query(rng: Random, jobs: Jobs, known: list[str], now: int) -> Query:
    choices: dict[str, Any] = {
        "state": rng.choice(STATES),
        "queue": rng.choice(jobs.queues),
        "task": rng.choice(jobs.tasks),
        "priorities": frozenset({5, rng.randint(0, 9)}),
        "tag": rng.choice(TAGS),
        "group": rng.choice(GROUPS),
        "key": rng.choice(KEYS),
        "parent": rng.choice(IDS),
        "since": now - rng.choice((0, 1, 10_000, 3_600_000)),
    }
    odds = {"state": 0.4, "queue": 0.3, "task": 0.15}
    return Query(**{name: value for name, value in choices.items() if rng.random() < odds.get(name, 0.06)})


def refused(rng: Random, known: list[str]) -> dict[str, Any]:
    """A verb and arguments that no broker may accept."""
    good = Job(id="fine", task="t1", queue="q1")
    bad_jobs = (
        Job(id="", task="t1"),
        Job(id="i", task="no spaces"),
        Job(id="q2:" + "0" * 32, task="t1", queue="q1"),
        Job(id="i", task="t1", queue="q1", priority=10),
        Job(id="i", task="t1", queue="q1", key_ttl=5),
        Job(id="i", task="t1", queue="q1", rate="often"),
        Job(id="i", task="t1", queue="q1", waits_for=("i",)),
        Job(id="i", task="t1", queue="q1", waits_for=("nobody", "fine")),
        Job(id="i", task="t1", queue="q1", max_ready=0),
        Job(id="i", task="t1", queue="q1", due=-1),
        Job(id="i", task="t1", queue="q1", node="n"),
        Job(id="i", task="t1", queue="q1", owner="i"),
    )
    circle = (Job(id="i", task="t1", waits_for=("j",)), Job(id="j", task="t1", waits_for=("i",)))
    doc = DocWrite(kind="schedule", name="n1", value=b"")
    take = {"session": "s1", "request": 0, "queues": ("q1",), "filter": Filter(), "want": 1}
    some = Ids((rng.choice(known),)) if known else Ids(())
    calls: tuple[tuple[str, dict[str, Any]], ...] = (
        ("put", {"jobs": (good, rng.choice(bad_jobs))}),
        ("put", {"jobs": (good, rng.choice(bad_jobs))}),
        ("put", {"jobs": circle}),
        ("put", {"jobs": (good, Job(id="g", task="t1", queue="q2")), "when": doc}),
        ("take", take | {"want": -1}),
        ("take", take | {"queues": ("q1", "no spaces")}),
        ("take", take | {"filter": Filter(priorities=frozenset({11}))}),
        ("take", take | {"session": ""}),
        ("renew", {"beats": (Beat("s1", 1000), Beat("s2", 0))}),
        ("sweep", {"limit": 0}),
        ("edit", {"selection": Scope("q1"), "action": Cancel()}),
        ("edit", {"selection": some, "action": Pause()}),
        ("edit", {"selection": some, "action": Reprioritise(10)}),
        ("edit", {"selection": some, "action": Reschedule(-1)}),
        ("edit", {"selection": some, "action": Cancel(), "limit": 0}),
        ("edit", {"selection": some, "action": Cancel(), "cursor": "nonsense"}),
        ("edit", {"selection": Query(), "action": Cancel(), "cursor": "nonsense"}),
        ("edit", {"selection": Scope("q1", "t1"), "action": SetLimits(max_ready=1)}),
        ("edit", {"selection": Scope("q1"), "action": SetLimits(rate="often")}),
        ("edit", {"selection": Scope("q1", "t1"), "action": SetLimits(enqueue_rate="1/s")}),
        ("edit", {"selection": Scope("no spaces"), "action": Resume()}),
        ("find", {"query": Query(), "limit": 1001}),
        ("find", {"query": Query(), "cursor": "nonsense"}),
        ("doc", {"kind": "no spaces", "name": "n1"}),
        ("doc", {"kind": "schedule", "name": "n1", "value": b"", "ttl": 0}),
        ("events", {"cursor": {"no spaces": 1}}),
        ("events", {"cursor": {}, "limit": 0}),
        ("memo", {"session": "s1", "writes": (MemoWrite(id="i", run=0, position=0),)}),
        ("memo", {"session": "s1", "writes": (MemoWrite(id="i", run=1, position=0),) * 2}),
        ("send", {"id": "", "name": "go", "message": "m", "body": b""}),
        ("recall", {"id": "i", "position": -1}),
        ("mailbox", {"id": "i", "name": "go", "limit": 0}),
        ("tally", {"owner": "", "queues": ("q1",)}),
        ("settle", {"session": "s1", "outcomes": (Outcome(id="i", run=1, kind=OutcomeKind.SUSPENDED),)}),
    )
    verb, args = rng.choice(calls)
    return {"call": verb, **args}
