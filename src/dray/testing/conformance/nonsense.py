"""Wrong values: every verb refuses them by the name of the field, and nothing has changed."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

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
from dray.broker.verbs import Beat, Broker, DocWrite, Filter, Interest, NextTake, ProgressReport
from dray.errors import InvalidInput
from dray.job import Outcome, OutcomeKind, Progress
from dray.testing.conformance.bench import LEASE, Bench, Theme, job

Call = Callable[[Broker], Awaitable[object]]
LONG = "x" * 257
GENERATED = "other:0123456789abcdef0123456789abcdef"
OK = OutcomeKind.SUCCEEDED

JOBS: list[tuple[str, dict[str, Any]]] = [
    ("id", {"id": ""}),
    ("id", {"id": LONG}),
    ("id", {"id": "line\nbreak"}),
    ("id", {"id": 7}),
    ("id", {"id": GENERATED}),
    ("task", {"task": ""}),
    ("task", {"task": "no spaces"}),
    ("queue", {"queue": "x" * 129}),
    ("queue", {"queue": "a:b"}),
    ("queue", {"queue": None}),
    ("payload", {"payload": "text"}),
    ("version", {"version": 0}),
    ("priority", {"priority": -1}),
    ("priority", {"priority": 10}),
    ("priority", {"priority": "high"}),
    ("priority", {"priority": True}),
    ("created", {"created": -1}),
    ("due", {"due": -1}),
    ("due", {"due": 1.5}),
    ("due", {"due": 1 << 60}),
    ("ttl", {"ttl": 0}),
    ("deadline", {"deadline": 0}),
    ("deadline", {"deadline": "1h"}),
    ("key", {"key": ""}),
    ("key_ttl", {"key": "k", "key_ttl": 0}),
    ("key_ttl", {"key_ttl": 1}),
    ("once", {"once": 0}),
    ("on_duplicate", {"on_duplicate": "ignore"}),
    ("group", {"group": ""}),
    ("rate", {"rate": "fast"}),
    ("rate", {"rate": "0/s"}),
    ("rate_key", {"rate_key": "", "rate": "1/s"}),
    ("max_running", {"max_running": 0}),
    ("running_key", {"running_key": LONG, "max_running": 1}),
    ("max_ready", {"max_ready": 0}),
    ("overflow", {"overflow": "explode"}),
    ("waits_for", {"waits_for": ("wrong",)}),
    ("waits_for", {"waits_for": ["known"]}),
    ("waits_for", {"waits_for": ("known", "known")}),
    ("orphan", {"orphan": "adopt"}),
    ("parent", {"parent": ""}),
    ("tags", {"tags": ("",)}),
    ("tags", {"tags": "xyz"}),
    ("description", {"description": None}),
    ("retries", {"retries": -1}),
    ("backoff", {"backoff": "never"}),
    ("timeout", {"timeout": 0}),
    ("max_crashes", {"max_crashes": 0}),
    ("result_ttl", {"result_ttl": -1}),
    ("isolate", {"isolate": ""}),
    ("speculate", {"speculate": 1}),
    ("headers", {"headers": {"a": 1}}),
]


def take(
    session: Any = "ann", request: Any = 9, queue: Any = "default", want: Any = 1, share: Any = None
) -> Call:
    return lambda broker: broker.take(session, request, [queue], Filter(), want, share=share)


def take_filter(**fields: Any) -> Call:
    return lambda broker: broker.take("ann", 9, ["default"], Filter(**fields), 1)


def settle(session: Any = "ann", **fields: Any) -> Call:
    given: dict[str, Any] = {"id": "held", "run": 1, "kind": OK, **fields}
    return lambda broker: broker.settle(session, [Outcome(**given)])


def renew(session: Any = "ann", lease: Any = LEASE, *progress: Any) -> Call:
    return lambda broker: broker.renew([Beat("new", LEASE), Beat(session, lease, progress)])


def edit(selection: Any, action: Any, **options: Any) -> Call:
    return lambda broker: broker.edit(selection, action, **options)


def limits(scope: Scope, **fields: Any) -> Call:
    return edit(scope, SetLimits(**fields))


def doc(kind: Any = "note", name: Any = "n", value: Any = b"1", **options: Any) -> Call:
    return lambda broker: broker.doc(kind, name, value, **options)


def when(**fields: Any) -> Call:
    given: dict[str, Any] = {"kind": "note", "name": "n", "value": b"1", **fields}
    return lambda broker: broker.put([job("new")], when=DocWrite(**given))


def next_take(session: str | None, request: int, *queues: str) -> Call:
    interest = Interest(queues=("default",), session=session, next_take=NextTake(request, queues))
    return lambda broker: broker.wait(interest, 0)


def loose(call: Callable[[Any], Awaitable[object]]) -> Call:
    """A call that the types would not allow."""
    return call


KNOWN, DEFAULT = Ids(("known",)), Scope("default")

CALLS: list[tuple[str, Call]] = [
    ("durability", loose(lambda broker: broker.put([job("new")], durability="eternal"))),
    ("kind", when(kind="no spaces")),
    ("value", when(value="text")),
    ("ttl", when(ttl=0)),
    ("session", take(session="")),
    ("session", take(session=None)),
    ("request", take(request=0)),
    ("request", take(request=True)),
    ("queue", take(queue="a b")),
    ("want", take(want=-1)),
    ("want", take(want=1 << 40)),
    ("want", take(want="many")),
    ("share", take(share=0)),
    ("share", take(share="fair")),
    ("priority", take_filter(priorities=frozenset({10}))),
    ("priority", take_filter(priorities=frozenset({"high"}))),
    ("tasks", take_filter(tasks="work")),
    ("version", take_filter(version=None)),
    ("session", settle(session="")),
    ("id", settle(id=None)),
    ("run", settle(run=0)),
    ("run", settle(run="1")),
    ("kind", settle(kind="exploded")),
    ("at", settle(kind=OutcomeKind.RETRY, at="soon")),
    ("at", settle(kind=OutcomeKind.RETRY, at=-1)),
    ("result", settle(result="text")),
    ("reason", settle(kind=OutcomeKind.DEAD, reason=7)),
    ("error", settle(kind=OutcomeKind.DEAD, error="boom")),
    ("session", renew(session="")),
    ("session", renew(session="line\nbreak")),
    ("lease", renew("ann", 0)),
    ("lease", renew("ann", 1.5)),
    ("progress", renew("ann", LEASE, ProgressReport("held", 1, Progress("half")))),  # type: ignore[arg-type]
    ("session", loose(lambda broker: broker.release(""))),
    ("limit", loose(lambda broker: broker.sweep(0))),
    ("limit", loose(lambda broker: broker.sweep("all"))),
    ("selection", edit(Scope("default"), Cancel())),
    ("selection", edit(KNOWN, Pause())),
    ("limit", edit(KNOWN, Delete(), limit=0)),
    ("limit", edit(KNOWN, Delete(), limit=1001)),
    ("cursor", edit(KNOWN, Delete(), cursor="nonsense")),
    ("cursor", edit(KNOWN, Delete(), cursor="-1")),
    ("cursor", edit(Query(), Delete(), cursor="nonsense")),
    ("ids", edit(Ids("known"), Delete())),  # type: ignore[arg-type]
    ("state", edit(Query(state="lost"), Delete())),  # type: ignore[arg-type]
    ("queue", edit(Query(queue=""), Delete())),
    ("tag", edit(Query(tag=7), Delete())),  # type: ignore[arg-type]
    ("due", edit(KNOWN, Reschedule(-1))),
    ("due", edit(KNOWN, Reschedule(None))),  # type: ignore[arg-type]
    ("priority", edit(KNOWN, Reprioritise(10))),
    ("run", edit(KNOWN, Speculate(0))),
    ("reason", edit(KNOWN, Cancel("x" * 5000))),
    ("reason", edit(KNOWN, Cancel(None))),  # type: ignore[arg-type]
    ("queue", edit(Scope("a b"), Pause())),
    ("task", edit(Scope("default", "a b"), Resume())),
    ("rate", limits(DEFAULT, rate="fast")),
    ("rate", limits(DEFAULT, rate=5)),
    ("max_running", limits(DEFAULT, max_running=0)),
    ("max_ready", limits(DEFAULT, max_ready="1")),
    ("enqueue_rate", limits(DEFAULT, enqueue_rate="often")),
    ("enqueue_rate", limits(Scope("default", "work"), enqueue_rate="1/s")),
    ("group_running", limits(DEFAULT, group_running=-1)),
    ("overflow", limits(DEFAULT, overflow="explode")),
    ("max_ready", limits(Scope("default", "work"), max_ready=1)),
    ("overflow", limits(Scope("default", "work"), overflow="wait")),
    ("group_running", limits(Scope("default", "work"), group_running=1)),
    ("ids", loose(lambda broker: broker.get("known"))),
    ("ids", loose(lambda broker: broker.get([None]))),
    ("watch", loose(lambda broker: broker.get(["known"], watch=""))),
    ("limit", loose(lambda broker: broker.find(Query(), limit=0))),
    ("limit", loose(lambda broker: broker.find(Query(), limit=1001))),
    ("state", loose(lambda broker: broker.find(Query(state="lost")))),  # type: ignore[arg-type]
    ("kind", doc(kind="")),
    ("name", doc(name="")),
    ("value", doc(value="text")),
    ("value", doc(value=b"x" * ((1 << 20) + 1))),
    ("expect_version", doc(expect_version=-1)),
    ("ttl", doc(ttl=0)),
    ("kind", loose(lambda broker: broker.docs(""))),
    ("cursor", loose(lambda broker: broker.events({"a b": 1}))),
    ("cursor", loose(lambda broker: broker.events({"default": -1}))),
    ("limit", loose(lambda broker: broker.events({}, limit=0))),
    ("queue", loose(lambda broker: broker.wait(Interest(queues=("a b",)), 0))),
    # There is work, so that a broker that overlooks the timeout still answers.
    ("timeout", loose(lambda broker: broker.wait(Interest(queues=("default",)), -1))),
    ("session", next_take(None, 1, "default")),
    ("request", next_take("ann", 0, "default")),
    ("next_take", next_take("ann", 1)),
    ("next_take", next_take("ann", 1, "default", "other")),
    ("timeout", loose(lambda broker: broker.wait(Interest(queues=("default",)), math.nan))),
]


def named(cases: list[tuple[str, Any]]) -> list[Any]:
    return [pytest.param(field, wrong, id=f"{n}-{field}") for n, (field, wrong) in enumerate(cases)]


async def furnish(bench: Bench) -> None:
    """Something of every kind that a wrong call could damage."""
    await bench.put(job("held", priority=0), job("known"), job("later", due=bench.clock.after(1)))
    await bench.broker.doc("note", "n", b"0", now=bench.clock.now)
    await (await bench.worker("ann", lease=1 << 50)).take_one()


class TestNonsense(Theme):
    @pytest.mark.parametrize(("field", "wrong"), named(JOBS))
    async def test_a_job_with_a_wrong_value_is_not_accepted(
        self, bench: Bench, field: str, wrong: dict[str, Any]
    ) -> None:
        await furnish(bench)
        before = await bench.everything()
        with pytest.raises(InvalidInput) as refused:
            await bench.put(job("fine"), job(**{"id": "new", **wrong}))
        assert refused.value.field == field
        assert await bench.everything() == before

    @pytest.mark.parametrize(("field", "call"), named(CALLS))
    async def test_a_call_with_a_wrong_value_changes_nothing(
        self, bench: Bench, field: str, call: Call
    ) -> None:
        await furnish(bench)
        before = await bench.everything()
        with pytest.raises(InvalidInput) as refused:
            await call(bench.broker)
        assert refused.value.field == field
        assert await bench.everything() == before

    async def test_a_wrong_value_of_one_outcome_refuses_all_of_them(self, bench: Bench) -> None:
        await furnish(bench)
        wrong: Any = "exploded"
        outcomes = [Outcome(id="held", run=1, kind=OK), Outcome(id="known", run=1, kind=wrong)]
        before = await bench.everything()
        with pytest.raises(InvalidInput):
            await bench.broker.settle("ann", outcomes, now=bench.clock.now)
        assert await bench.everything() == before

    async def test_a_refused_beat_opens_no_session(self, bench: Bench) -> None:
        with pytest.raises(InvalidInput):
            await bench.broker.renew([Beat("new", LEASE), Beat("", LEASE)], now=bench.clock.now)
        [heard] = await bench.broker.renew([Beat("new", LEASE)], now=bench.clock.now)
        assert heard.opened

    async def test_a_bulk_retry_of_nothing_is_fine(self, bench: Bench) -> None:
        edited = await bench.edit(Ids(()), Retry())
        assert (edited.changed, edited.refused, edited.cursor) == ((), (), None)
