"""One simulation: sets the scene, starts the actors, lets faults loose, then reckons up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Beat, Filter, Limits, Resume, Scope, SetLimits
from dray.errors import BrokerAway
from dray.job import Job, Outcome, OutcomeKind, State
from dray.policy import Retention
from dray.testing.sim import clients
from dray.testing.sim.ledger import Ledger
from dray.testing.sim.lives import Life, Violation
from dray.testing.sim.loop import Process, VirtualLoop
from dray.testing.sim.orders import CAPPED, KEYED, QUEUES, TASKS, Author
from dray.testing.sim.plan import EPOCH, Plan
from dray.testing.sim.trace import Trace
from dray.testing.sim.transport import Network, Transport
from dray.testing.sim.watched import Watched, watched
from dray.testing.sim.workers import Worker

PATIENCE = 900.0
"""Virtual seconds that everything may take to end once the faults have stopped."""
HAS_ENDED = 0.25

Role = Callable[[Process, Transport], Coroutine[Any, Any, None]]


@dataclass
class Member:
    """A part in the play. Its process may die and be started anew; the part remains."""

    name: str
    role: Role
    lasting: bool
    """Needed until everything has ended; the others leave when the faults stop."""
    process: Process | None = None
    incarnation: int = 0
    session: str = ""
    worker: Worker | None = None


class Inside:
    """The few facts that the ledger compares with its own."""

    def __init__(self, broker: Watched) -> None:
        self._world = broker.world
        self._broker = broker

    def facts(self, id: str) -> tuple[State, int, dict[int, str]] | None:
        kept = self._world.jobs.get(id)
        if kept is None:
            return None
        return kept.state, kept.run, {number: run.session for number, run in kept.runs.items()}

    def ids(self) -> Iterable[str]:
        return self._world.jobs

    def has_session(self, name: str) -> bool:
        return name in self._world.sessions

    def version(self, kind: str, name: str) -> int | None:
        doc = self._world.docs.get((kind, name))
        return None if doc is None else doc.version

    def problems(self) -> list[str]:
        return self._broker.problems()


class Stage:
    def __init__(
        self, plan: Plan, loop: VirtualLoop, broker_factory: type[MemoryBroker], audit_every: int
    ) -> None:
        self.plan, self.loop = plan, loop
        self.dice = plan.dice("stage")
        done = self.dice.choice([5000, 30_000]) if plan.has("prune") else 86_400_000
        retention = Retention(done_ttl=done, dead_ttl=done * 2 if plan.has("prune") else None)
        self.broker = watched(broker_factory, self.clock, retention)
        self.trace = Trace(loop.time)
        self.done: asyncio.Future[None] = loop.create_future()
        self.ledger = Ledger(Inside(self.broker), retention, self.trace, self.clock, audit_every, self.fail)
        self.broker.look_in(self.ledger, plan.skip, plan.slow, plan.dice("outbox"))
        self.network = Network(plan, loop, self.broker, self.ledger)
        self.board = clients.Board(plan, self.clock)
        self.members: list[Member] = []
        self.calm = False
        warden = Process("warden", loop)
        self.warden = Transport(self.network, warden)

    def clock(self) -> int:
        return EPOCH + int(self.loop.time() * 1000)

    def fail(self, violation: Violation) -> None:
        if not self.done.done():
            self.trace.say("ledger", f"VIOLATION {violation}", [violation.job] if violation.job else [])
            self.done.set_exception(violation)

    async def play(self) -> None:
        try:
            self._cast()
            await self._chaos()
            await self._calm_down()
            await self._drain()
            await self._strike()
            await self._reckon()
            if not self.done.done():
                self.done.set_result(None)
        except Violation as violation:
            self.fail(violation)

    # Actors

    def _cast(self) -> None:
        plan = self.plan
        parts: list[tuple[str, int, Any, bool]] = [
            ("watcher", plan.watchers, clients.watch, True),
            ("reader", plan.readers, clients.read, True),
            ("sweeper", plan.sweepers, clients.sweep, True),
            ("operator", plan.operators, clients.operate, False),
            ("leader", plan.leaders, clients.lead, False),
            ("ticker", plan.tickers, clients.tick, False),
        ]
        for n in range(plan.producers):
            author = Author(plan, f"p{n}")
            self._add(f"producer{n}", self._client(clients.produce, author), lasting=False)
        for n in range(plan.workers):
            self._add_worker(n)
        for name, count, part, lasting in parts:
            for n in range(count):
                self._add(f"{name}{n}", self._client(part), lasting=lasting)

    def _client(self, part: Callable[..., Coroutine[Any, Any, None]], *more: object) -> Role:
        def role(process: Process, broker: Transport) -> Coroutine[Any, Any, None]:
            return part(self.board, process.name, broker, self.plan.dice(process.name), *more)

        return role

    def _add(self, name: str, role: Role, *, lasting: bool) -> Member:
        member = Member(name, role, lasting)
        self.members.append(member)
        self._launch(member)
        return member

    def _add_worker(self, n: int) -> None:
        dice = self.plan.dice(f"worker{n}")
        tasks = None if n == 0 or dice.random() < 0.6 else frozenset(dice.sample(TASKS, 4))
        bands = None if n == 0 or dice.random() < 0.8 else frozenset(range(7))
        queues = tuple(dice.sample(QUEUES, len(QUEUES)))
        member = Member(f"worker{n}", self._nothing, lasting=True)

        def role(process: Process, broker: Transport) -> Coroutine[Any, Any, None]:
            worker = member.worker = Worker(
                process.name,
                broker,
                queues=queues,
                filter=Filter(tasks, bands),
                slots=dice.randint(1, 4),
                lease=self.plan.lease,
                dice=self.plan.dice(process.name),
                clock=self.clock,
                die=process.kill,
                session_opened=lambda session: setattr(member, "session", session),
            )
            return worker.run()

        member.role = role
        self.members.append(member)
        self._launch(member)

    async def _nothing(self, process: Process, broker: Transport) -> None:
        """Until the real role is known."""

    def _launch(self, member: Member) -> None:
        if self.calm and not member.lasting:
            return
        member.incarnation += 1
        process = member.process = Process(f"{member.name}.{member.incarnation}", self.loop)
        broker = Transport(self.network, process)
        process.on_kill.append(lambda: self._killed(member, process))
        process.start(self._guard(member, process, broker))

    async def _guard(self, member: Member, process: Process, broker: Transport) -> None:
        try:
            await member.role(process, broker)
        except Violation as violation:
            self.fail(violation)
        except Exception as error:
            self.fail(Violation("actor", f"{process.name} failed: {type(error).__name__}: {error}"))

    def _killed(self, member: Member, process: Process) -> None:
        self.trace.say(process.name, "killed")
        self.board.unheard.pop(process.name, None)
        if member.worker is not None and self.dice.random() < 0.5:
            session = member.session
            self._later(self.dice.uniform(0, 2), self._release, session)
        self._later(self.dice.uniform(0.1, 5), self._launch, member)

    def _later(self, seconds: float, act: Callable[..., None], *args: object) -> None:
        """In no process, or it would die with the one that happens to be running."""
        self.loop.call_later(seconds, act, *args, context=Context())

    def _release(self, session: str) -> None:
        async def call() -> None:
            with suppress(BrokerAway):
                await self.warden.release(session)

        self.loop.create_task(call(), context=Context())

    # Faults

    async def _chaos(self) -> None:
        plan, beat = self.plan, 0.5
        while self.loop.time() < plan.horizon and not self.done.done():
            await asyncio.sleep(self.dice.uniform(0, 2 * beat))
            for member in self.members:
                process = member.process
                if process is None or not process.alive:
                    continue
                if self.dice.random() < plan.crash * beat:
                    process.kill()
                elif self.dice.random() < plan.freeze * beat:
                    seconds = plan.lease * self.dice.choice([0.2, 1.2, 2.5])
                    self.trace.say(process.name, f"frozen for {seconds:.1f} s")
                    process.freeze(seconds)
                elif self.dice.random() < plan.cut * beat:
                    seconds = plan.lease * self.dice.choice([0.2, 1.2, 2.5])
                    self.trace.say(process.name, f"out of contact for {seconds:.1f} s")
                    process.cut_until = self.loop.time() + seconds
                elif member.worker is not None and self.dice.random() < 0.005:
                    self._restart(member, member.worker)

    def _restart(self, member: Member, worker: Worker) -> None:
        """In good order: it gives back what it has and goes."""
        worker.stop()
        self.trace.say(member.name, "asked to stop")
        self._later(self.dice.uniform(5, 20), self._ended, member, member.incarnation)

    def _ended(self, member: Member, incarnation: int) -> None:
        if member.process is not None and member.process.alive and member.incarnation == incarnation:
            member.process.kill()

    # The reckoning

    async def _calm_down(self) -> None:
        self.calm = self.network.calm = self.broker.calm = self.board.closing = True
        self.trace.say("stage", "the faults stop")
        for member in self.members:
            process = member.process
            if process is None or not process.alive:
                continue
            process.cut_until = 0.0
            if not member.lasting:
                process.kill()
        # The network is not written for being waited for; this is the only place that does.
        while self.network.astray:  # noqa: ASYNC110
            await asyncio.sleep(HAS_ENDED)
        nothing = SetLimits(rate=None, max_running=None)
        for queue in QUEUES:
            await self.warden.edit(Scope(queue), Resume())
            await self.warden.edit(Scope(queue), SetLimits(rate=None, max_running=None, group_running=None))
            for task in TASKS:
                if self.ledger.bounds.paused(Job(id="x", task=task, queue=queue)):
                    await self.warden.edit(Scope(queue, task), Resume())
                if self.ledger.bounds.limits(Scope(queue, task)) != Limits():
                    await self.warden.edit(Scope(queue, task), nothing)

    async def _drain(self) -> None:
        deadline = self.loop.time() + PATIENCE
        while True:
            open_jobs = [life for life in self.ledger.lives.values() if not _at_rest(life)]
            unheard = self._unheard()
            if not open_jobs and not unheard:
                return
            if self.loop.time() > deadline:
                break
            await asyncio.sleep(HAS_ENDED)
        if open_jobs:
            life = open_jobs[0]
            raise Violation(
                "stuck", f"{life.id} is {life.state} and stays so ({len(open_jobs)} such)", life.id
            )
        for name, id in unheard.items():
            raise Violation("watch", f"{name} never heard of the end of {id}", id)

    def _unheard(self) -> dict[str, str]:
        """Watchers of jobs that have ended or are gone."""
        lives = self.ledger.lives
        return {
            name: id for name, id in self.board.unheard.items() if id not in lives or lives[id].state.finished
        }

    async def _strike(self) -> None:
        """Workers leave in good order; then nothing changes any more."""
        for member in self.members:
            if member.worker is not None and member.process is not None and member.process.alive:
                member.worker.stop()
        await asyncio.sleep(self.plan.lease * 3)
        for member in self.members:
            if member.process is not None:
                member.lasting = False
                member.process.kill()

    async def _reckon(self) -> None:
        await self._probe()
        ledger = self.ledger
        ledger.audit()
        feed = await self.warden.events({}, limit=1_000_000)
        if feed.entries != [entry for queue in sorted(ledger.feed) for entry in ledger.feed[queue]]:
            raise Violation("feed", "what it says at the end is not what it said at the time")
        for name, entries in self.board.read.items():
            for queue, kept in ledger.feed.items():
                mine = [entry for entry in entries if entry.queue == queue]
                if mine != kept[: len(mine)]:
                    raise Violation("feed", f"{name} read something else in {queue}")
        for record in await self.warden.get(list(ledger.lives)):
            if record is not None and record.state in (State.DEAD, State.CANCELLED) and not record.reason:
                raise Violation("reasons", f"{record.id} is {record.state} for no reason", record.id)

    async def _probe(self) -> None:
        """All slots and keys are free again: as many jobs as the limits allow can start at once."""
        jobs = [Job(id=f"probe-c{n}", task="capped", queue="a", max_running=CAPPED) for n in range(CAPPED)]
        jobs += [
            Job(id=f"probe-{key}", task="keyed", queue="a", max_running=KEYED, running_key=key)
            for key in ("x", "y")
        ]
        jobs += [
            Job(id=f"probe-{queue}-{n}", task="plain", queue=queue, key=f"k{n}")
            for queue in QUEUES
            for n in range(1, 5)
        ]
        accepted = await self.warden.put(jobs)
        created = [reply.id for reply in accepted if reply.verdict == "created"]
        await self.warden.renew([Beat("prober", 60_000)])
        taken = await self.warden.take("prober", 1, QUEUES, Filter(), 1000)
        idle = [id for id in created if id not in [job.job.id for job in taken]]
        if idle:
            raise Violation("slots", f"{idle} could not start although nothing else runs", idle[0])
        await self.warden.settle(
            "prober", [Outcome(id=job.job.id, run=job.run, kind=OutcomeKind.SUCCEEDED) for job in taken]
        )


def _at_rest(life: Life) -> bool:
    """Finished, or waiting for what will never be."""
    waits_for_good = not life.may_start() and not life.must_be_cancelled()
    return life.state.finished or (life.state is State.WAITING and waits_for_good)
