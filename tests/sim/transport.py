"""The way to the broker, with everything that can go wrong on it.

Each delivery of a call is a task of the network, not of the caller: it goes on when the caller is killed or
frozen. The broker's steps are reported to the ledger, by the call they belong to.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Context, ContextVar
from typing import Any, Literal, Protocol

from msgspec import UNSET, UnsetType

from dray.broker.actions import Edited, Ids, JobAction, Query, Scope, ScopeAction
from dray.broker.durable import MemoWrite, Message, Sent
from dray.broker.verbs import (
    PAGE_MAX,
    Accepted,
    Beat,
    Broker,
    Doc,
    DocReply,
    DocWrite,
    Feed,
    Filter,
    Heard,
    Interest,
    Page,
    QueueInfo,
    Ref,
    Swept,
    Usage,
    Wake,
)
from dray.errors import BrokerAway
from dray.job import Job, Outcome, Record, Settled, State, Taken, Verdict
from dray.policy import Retention
from sim.lives import Violation
from sim.loop import Process
from sim.plan import Plan

GIVES_UP = 3.0
"""Seconds after which a caller stops waiting for a reply that is late."""


class Call:
    """One call of a verb, and what its deliveries did."""

    def __init__(
        self, number: int, process: Process, verb: str, args: tuple[Any, ...], named: dict[str, Any]
    ):
        self.number = number
        self.process = process
        self.verb = verb
        self.args = args
        self.named = named
        self.delivery = 0
        self.forwarding = False
        """The current step delivers the outbox; it is not the verb's own."""
        self.effects: list[tuple[str, str, int]] = []
        """The effects of the verb's own step in this delivery: (kind, id, run)."""
        self.notes: dict[str, Any] = {}
        """What the ledger wants to remember until the reply."""


class CutShort(Exception):
    """The verb ended between two of its steps: its caller is gone, and so is the reply."""


CALL: ContextVar[Call | None] = ContextVar("CALL", default=None)


class Watch(Protocol):
    """Sees the calls and replies of the broker: the ledger."""

    def arrived(self, call: Call) -> None: ...
    def replied(self, call: Call, reply: Any) -> None: ...
    def refused(self, call: Call, error: Exception) -> None: ...
    def failed(self, violation: Violation) -> None: ...


class Witness(Protocol):
    """Sees the calls of one process: the overseer."""

    def asks(self, call: Call) -> None: ...
    def hears(self, call: Call, reply: object) -> None: ...
    def misses(self, call: Call, error: Exception) -> None: ...


class Network:
    """Carries calls to the one broker of the simulation."""

    def __init__(self, plan: Plan, loop: asyncio.AbstractEventLoop, broker: Broker, watch: Watch) -> None:
        self.plan = plan
        self.loop = loop
        self.broker = broker
        self.watch = watch
        self.calm = False
        """No more faults: the time of the final reckoning."""
        self.astray = 0
        """Calls that will be delivered, or delivered again, at some odd time."""
        self.calls = 0

    def carry(self, call: Call, faults: Faults) -> asyncio.Future[Any]:
        reply = self.loop.create_future()
        self.astray += faults.astray
        if faults.stale:
            self._later(GIVES_UP, _fail, reply)
        self._later(faults.before, self._arrive, call, faults, reply)
        return reply

    def _later(self, seconds: float, act: Callable[..., object], *args: object) -> None:
        # Outside of any process: a call on its way goes on whatever happens to its sender.
        self.loop.call_later(seconds, act, *args, context=Context())

    def _arrive(self, call: Call, faults: Faults, reply: asyncio.Future[Any]) -> None:
        if call.verb == "wait" and (reply.done() or not call.process.alive):
            return
        task = self.loop.create_task(self._serve(call, faults, reply), context=Context())
        if call.verb == "wait":
            # A blocking read ends with its connection, and takes no news from others.
            reply.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)
            call.process.on_kill.append(task.cancel)

    async def _serve(self, call: Call, faults: Faults, reply: asyncio.Future[Any]) -> None:
        CALL.set(call)
        try:
            answer = await self._knock(call)
            if faults.twice:
                second = await self._knock(call)
                answer = second if faults.second else answer
        except Violation as violation:
            _fail(reply)
            self.watch.failed(violation)
            return
        self._later(faults.after, self._answer, call, faults, reply, answer)
        if faults.late:
            self._later(faults.after + faults.late, self._come_again, call)
        else:
            self.astray -= faults.astray

    def _answer(self, call: Call, faults: Faults, reply: asyncio.Future[Any], answer: Any) -> None:
        if faults.unheard or faults.stale or self.loop.time() < call.process.cut_until:
            call.process.trouble()
            _fail(reply)
        else:
            _answer(reply, answer)

    def _come_again(self, call: Call) -> None:
        self.loop.create_task(self._serve_again(call), context=Context())

    async def _serve_again(self, call: Call) -> None:
        CALL.set(call)
        try:
            await self._knock(call)
        except Violation as violation:
            self.watch.failed(violation)
        self.astray -= 1

    async def _knock(self, call: Call) -> Any:
        """One delivery; an error of the broker is an answer like any other."""
        call.delivery += 1
        call.effects, call.notes = [], {}
        self.watch.arrived(call)
        try:
            answer = await getattr(self.broker, call.verb)(*call.args, **call.named)
        except CutShort:
            call.process.trouble()
            return BrokerAway("the connection broke")
        except Exception as error:
            self.watch.refused(call, error)
            return error
        self.watch.replied(call, answer)
        return answer


def _fail(reply: asyncio.Future[Any]) -> None:
    if not reply.done():
        reply.set_exception(BrokerAway("no reply"))
        # Retrieved, because a killed caller never does.
        reply.exception()


def _answer(reply: asyncio.Future[Any], answer: Any) -> None:
    if reply.done():
        return
    if isinstance(answer, Exception):
        reply.set_exception(answer)
        reply.exception()
    else:
        reply.set_result(answer)


class Faults:
    """The faults of one call."""

    def __init__(self, plan: Plan, dice: random.Random, verb: str, calm: bool) -> None:
        self.before, self.after = dice.uniform(0.0002, plan.slow), dice.uniform(0.0002, plan.slow)
        self.lost = self.unheard = self.twice = self.second = self.stale = self.dies = False
        self.late = 0.0
        if calm:
            return
        self.lost, self.unheard = dice.random() < plan.lost, dice.random() < plan.unheard
        # As likely here as by the clock: between two steps of a protocol is where a crash hurts.
        self.dies = dice.random() < plan.crash / 20
        if verb == "wait":
            return
        self.twice, self.second = dice.random() < plan.twice, dice.random() < 0.5
        if dice.random() < plan.late:
            self.late = dice.choice([0.1, 1.0, 5.0]) * dice.uniform(0.5, 5)
        if dice.random() < plan.stale:
            self.stale, self.before = True, dice.uniform(GIVES_UP, 5 * GIVES_UP)

    @property
    def astray(self) -> bool:
        return self.stale or bool(self.late)


class Transport:
    """The broker as one process sees it."""

    def __init__(self, network: Network, process: Process, witness: Witness | None = None) -> None:
        self.namespace: str = network.broker.namespace
        self.retention: Retention = network.broker.retention
        self.hands_over: bool = network.broker.hands_over
        self._network = network
        self._process = process
        self._witness = witness
        self._dice = network.plan.dice(f"transport:{process.name}:{witness is not None}")

    def clock(self) -> int:
        return self._network.broker.clock()

    async def _call(self, verb: str, *args: Any, **named: Any) -> Any:
        self._network.calls += 1
        call = Call(self._network.calls, self._process, verb, args, named)
        witness = self._witness
        if witness is None:
            return await self._send(call)
        witness.asks(call)
        try:
            reply = await self._send(call)
        except Exception as error:
            witness.misses(call, error)
            raise
        witness.hears(call, reply)
        return reply

    async def _send(self, call: Call) -> Any:
        network, process = self._network, self._process
        faults = Faults(network.plan, self._dice, call.verb, network.calm)
        if faults.dies:
            network.loop.call_later(
                self._dice.uniform(0, faults.before + faults.after), process.kill, context=Context()
            )
        if faults.lost or network.loop.time() < process.cut_until:
            process.trouble(faults.before + faults.after)
            await asyncio.sleep(faults.before + faults.after)
            raise BrokerAway("the request was lost")
        return await network.carry(call, faults)

    async def put(
        self,
        jobs: Sequence[Job],
        *,
        when: DocWrite | None = None,
        durability: Literal["normal", "full"] | None = None,
        now: int | None = None,
    ) -> list[Accepted]:
        reply: list[Accepted] = await self._call("put", tuple(jobs), when=when, durability=durability)
        return reply

    async def take(
        self,
        session: str,
        request: int,
        queues: Sequence[str],
        filter: Filter,
        want: int,
        *,
        share: int | None = None,
        now: int | None = None,
    ) -> list[Taken]:
        args = (session, request, tuple(queues), filter, want)
        reply: list[Taken] = await self._call("take", *args, share=share)
        return reply

    async def settle(
        self, session: str, outcomes: Sequence[Outcome], *, now: int | None = None
    ) -> list[Settled]:
        reply: list[Settled] = await self._call("settle", session, tuple(outcomes))
        return reply

    async def renew(self, beats: Sequence[Beat], *, now: int | None = None) -> list[Heard]:
        reply: list[Heard] = await self._call("renew", tuple(beats))
        return reply

    async def release(
        self, session: str, *, suspect: bool = True, blamed: Collection[Ref] = (), now: int | None = None
    ) -> int:
        reply: int = await self._call("release", session, suspect=suspect, blamed=tuple(blamed))
        return reply

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        reply: Swept = await self._call("sweep", limit, lapse=lapse)
        return reply

    async def edit(
        self,
        selection: Ids | Query | Scope,
        action: JobAction | ScopeAction,
        *,
        cursor: str | None = None,
        limit: int = PAGE_MAX,
        dry_run: bool = False,
        now: int | None = None,
    ) -> Edited:
        reply: Edited = await self._call(
            "edit", selection, action, cursor=cursor, limit=limit, dry_run=dry_run
        )
        return reply

    async def get(
        self, ids: Sequence[str], *, watch: str | None = None, now: int | None = None
    ) -> list[Record | None]:
        reply: list[Record | None] = await self._call("get", tuple(ids), watch=watch)
        return reply

    async def find(
        self,
        query: Query,
        *,
        cursor: str | None = None,
        limit: int = 100,
        newest: bool = False,
        now: int | None = None,
    ) -> Page:
        reply: Page = await self._call("find", query, cursor=cursor, limit=limit, newest=newest)
        return reply

    async def queues(self, *, now: int | None = None) -> list[QueueInfo]:
        reply: list[QueueInfo] = await self._call("queues")
        return reply

    async def queue_names(self) -> list[str]:
        reply: list[str] = await self._call("queue_names")
        return reply

    async def usage(self, job: Job, *, now: int | None = None) -> Usage:
        reply: Usage = await self._call("usage", job)
        return reply

    async def memo(
        self, session: str, writes: Sequence[MemoWrite], *, now: int | None = None
    ) -> list[Verdict]:
        reply: list[Verdict] = await self._call("memo", session, writes)
        return reply

    async def recall(self, id: str, position: int = 0, *, limit: int = 1000) -> list[bytes]:
        reply: list[bytes] = await self._call("recall", id, position, limit=limit)
        return reply

    async def send(self, id: str, name: str, message: str, body: bytes, *, now: int | None = None) -> Sent:
        reply: Sent = await self._call("send", id, name, message, body)
        return reply

    async def mailbox(self, id: str, name: str, after: int = 0, *, limit: int = 100) -> list[Message]:
        reply: list[Message] = await self._call("mailbox", id, name, after, limit=limit)
        return reply

    async def tally(self, owner: str, queues: Sequence[str]) -> dict[State, int]:
        reply: dict[State, int] = await self._call("tally", owner, queues)
        return reply

    async def doc(
        self,
        kind: str,
        name: str,
        value: bytes | UnsetType | None = UNSET,
        *,
        expect_version: int | None = None,
        ttl: int | None = None,
        now: int | None = None,
    ) -> DocReply:
        reply: DocReply = await self._call("doc", kind, name, value, expect_version=expect_version, ttl=ttl)
        return reply

    async def docs(self, kind: str, *, now: int | None = None) -> list[Doc]:
        reply: list[Doc] = await self._call("docs", kind)
        return reply

    async def events(self, cursor: Mapping[str, int] | None = None, *, limit: int = 1000) -> Feed:
        reply: Feed = await self._call("events", None if cursor is None else dict(cursor), limit=limit)
        return reply

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        reply: Wake = await self._call("wait", interest, timeout)
        return reply

    async def audit(self) -> list[str]:
        reply: list[str] = await self._call("audit")
        return reply

    async def close(self) -> None:
        """The network stays."""
