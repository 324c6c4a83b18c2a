"""One simulation: starts the actors, causes faults, then stops the faults and checks that everything ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from dray.app import App
from dray.broker.actions import Cancel, Ids, Resume, Scope, SetLimits
from dray.broker.verbs import Beat, Filter, Limits
from dray.errors import BrokerAway
from dray.job import Job, Outcome, OutcomeKind, State
from dray.options import TaskSettings
from dray.policy import Retention
from dray.settings import Settings
from dray.stats.sketch import Sketch
from dray.stats.tallies import NAME, PAST, ArchivedTallies, Tally, write_archive
from sim import clients
from sim.callers import Producer, Watcher
from sim.clients import Wait
from sim.ledger import Ledger
from sim.lives import Life, Violation
from sim.loop import Process, VirtualLoop
from sim.orders import QUEUES, Author
from sim.overseer import Overseer
from sim.parts import Parts
from sim.plan import EPOCH, Plan
from sim.script import BOUND, CAPPED, KEYED, TASKS, Script, make_app
from sim.trace import Trace
from sim.transport import Network, Transport
from sim.watched import Watched, watched
from sim.worker import SimulatedWorker

PATIENCE = 900.0
"""Virtual seconds that everything may take to end once the faults have stopped."""
HAS_ENDED = 0.25
HEARS_WITHIN = 5.0
"""Seconds in which an undisturbed waiter hears of an end; by itself it would look after 30."""
CANCEL_WITHIN = 1.0
FILL = 40.0
"""Duration in seconds of the jobs that fill all slots."""
FILLS_WITHIN = 8.0
RUN_BEFORE = 20
"""Earlier runs, before the simulation, of the task whose jobs get second runs."""

Role = Callable[[Process, Transport], Coroutine[Any, Any, None]]


@dataclass
class Member:
    """One actor. Its process may die and be started anew."""

    name: str
    role: Role
    lasting: bool
    """Needed until everything has ended; the others leave when the faults stop."""
    process: Process | None = None
    incarnation: int = 0
    hire: Callable[[str], SimulatedWorker] | None = None
    worker: SimulatedWorker | None = None
    """Of a worker."""

    @property
    def processes(self) -> list[Process]:
        every = self.worker.processes if self.worker is not None else [self.process]
        return [process for process in every if process is not None and process.alive]


class Inside:
    """The broker's state, for comparison with the ledger."""

    def __init__(self, broker: Watched) -> None:
        self._world = broker.world
        self._broker = broker

    def facts(self, id: str) -> tuple[State, int, dict[int, str]] | None:
        kept = self._world.jobs.get(id)
        if kept is None:
            return None
        return kept.state, kept.run, {number: run.session for number, run in kept.runs.items()}

    def handed(self, id: str, run: int) -> tuple[str, int] | None:
        for name, session in self._world.sessions.items():
            if (id, run) in session.handed:
                return name, session.advance[self._world.jobs[id].job.queue][0]
        return None

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
    def __init__(self, plan: Plan, loop: VirtualLoop, parts: Parts, audit_every: int) -> None:
        self.plan, self.loop, self.parts = plan, loop, parts
        self.dice = plan.dice("stage")
        done = self.dice.choice([5000, 30_000]) if plan.has("prune") else 86_400_000
        retention = Retention(done_ttl=done, dead_ttl=done * 2 if plan.has("prune") else None)
        self.broker = watched(parts.broker, self.clock, retention)
        self.trace = Trace(loop.time)
        self.done: asyncio.Future[None] = loop.create_future()
        self.ledger = Ledger(Inside(self.broker), retention, self.trace, self.clock, audit_every, self.fail)
        self.broker.look_in(self.ledger, plan.skip, plan.slow, plan.dice("outbox"))
        self.network = Network(plan, loop, self.broker, self.ledger)
        self.board = clients.Board(plan, self.clock, self.ledger.lives, self.ledger.ever, parts.speculation)
        self.members: list[Member] = []
        self.calm = False
        self.warden = self.transport(Process("warden", loop))
        self._over: dict[str, tuple[object, float]] = {}
        """Each wait whose jobs are all over: a fingerprint of their ends, and when it was seen."""

    def transport(self, process: Process, overseer: Overseer | None = None) -> Transport:
        return Transport(self.network, process, overseer)

    def clock(self) -> int:
        return EPOCH + int(self.loop.time() * 1000)

    def fail(self, violation: Violation) -> None:
        if not self.done.done():
            self.trace.say("ledger", f"VIOLATION {violation}", [violation.job] if violation.job else [])
            self.done.set_exception(violation)

    async def play(self) -> None:
        try:
            await self._remember()
            self._cast()
            await self._chaos()
            await self._calm_down()
            await self._drain()
            await self._fill()
            await self._drain()
            await asyncio.sleep(HEARS_WITHIN)
            self._complain()
            await self._strike()
            await self._reckon()
            if not self.done.done():
                self.done.set_result(None)
        except Violation as violation:
            self.fail(violation)

    async def _remember(self) -> None:
        """Write statistics of earlier runs: a simulation is too short to learn what is usual."""
        if self.plan.has("stragglers"):
            took = Sketch()
            took.add([0.3] * RUN_BEFORE)
            tally = Tally(runs=RUN_BEFORE, took=took, speculate=True)
            self.ledger.runs["twin"] = RUN_BEFORE
            while self.ledger.papers.version(PAST, NAME, self.clock()) == 0:
                with contextlib.suppress(BrokerAway):
                    await write_archive(self.warden, ArchivedTallies(tasks={"twin": tally}), 0)

    # Actors

    def _cast(self) -> None:
        plan = self.plan
        parts: list[tuple[str, int, Any, bool]] = [
            ("reader", plan.readers, clients.read, True),
            ("sweeper", plan.sweepers, clients.sweep, True),
            ("operator", plan.operators, clients.operate, False),
            ("leader", plan.leaders, clients.lead, False),
            ("ticker", plan.tickers, clients.tick, False),
        ]
        for n in range(plan.producers):
            self._add(f"producer{n}", self._producer(Author(plan, f"p{n}")), lasting=False)
        for n in range(plan.workers):
            self._add_worker(n)
        for n in range(plan.watchers):
            self._add(f"watcher{n}", self._watcher, lasting=True)
        for name, count, part, lasting in parts:
            for n in range(count):
                self._add(f"{name}{n}", self._client(part), lasting=lasting)

    def _client(self, part: Callable[..., Coroutine[Any, Any, None]]) -> Role:
        def role(process: Process, broker: Transport) -> Coroutine[Any, Any, None]:
            return part(self.board, process.name, broker, self.plan.dice(process.name))

        return role

    def _app(self, broker: Transport, **more: Any) -> App:
        async def open(blocking: bool) -> Transport:
            return broker

        return make_app(self.plan, open, self.clock, self.parts.client, **more)

    def _producer(self, author: Author) -> Role:
        def role(process: Process, broker: Transport) -> Coroutine[Any, Any, None]:
            dice = self.plan.dice(process.name)
            crashes = dice.choice([1, 2])
            bound: TaskSettings = {"max_ready": BOUND, "overflow": author.overflow}
            plain = self._app(broker, max_crashes=crashes)
            bounded = self._app(broker, max_crashes=crashes, more=bound)
            return Producer(self.board, plain, bounded, dice, author).run()

        return role

    def _watcher(self, process: Process, broker: Transport) -> Coroutine[Any, Any, None]:
        return Watcher(self.board, process, self._app(broker), self.plan.dice(process.name)).run()

    def _add(self, name: str, role: Role, *, lasting: bool) -> Member:
        member = Member(name, role, lasting)
        self.members.append(member)
        self._launch(member)
        return member

    def _add_worker(self, n: int) -> None:
        dice = self.plan.dice(f"worker{n}")
        tasks = None if n == 0 or dice.random() < 0.6 else tuple(dice.sample(TASKS, 4))
        bands = None if n == 0 or dice.random() < 0.8 else frozenset(range(7))
        queues = tuple(dice.sample(QUEUES, len(QUEUES)))
        other = self.plan.dice(f"queues{n}")
        if other.random() < 0.4:
            queues = other.choice((("all",), (queues[0], "*"), (f"{queues[0]}*", *queues[1:])))
        member = Member(f"worker{n}", self._nothing, lasting=True)

        def hire(name: str) -> SimulatedWorker:
            fixed = dice.randint(1, 9 if self.plan.has("poison") else 4)
            settings = Settings(
                broker_url="memory://",
                namespace="sim",
                queues=queues,
                tasks=tasks,
                priorities=bands,
                concurrency=None if other.random() < 0.15 else fixed,
                lease=int(self.plan.lease * 1000),
                timeout=dice.choice([300_000, 12_000]),
                max_jobs_per_process=dice.choice([None, None, 20]),
            )
            return SimulatedWorker(self, name, settings, dice, lambda: self._relaunch(member))

        member.hire = hire
        self.members.append(member)
        self._launch(member)

    async def _nothing(self, process: Process, broker: Transport) -> None:
        """A worker starts its own processes."""

    def _launch(self, member: Member) -> None:
        if self.calm and not member.lasting:
            return
        member.incarnation += 1
        name = f"{member.name}.{member.incarnation}"
        if member.hire is not None:
            member.worker = member.hire(name)
            member.worker.start()
            return
        process = member.process = Process(name, self.loop)
        process.on_kill.append(lambda: self._killed(member, process))
        process.start(self.guard(process, member.role(process, self.transport(process))))

    async def guard(self, process: Process, main: Coroutine[Any, Any, None]) -> None:
        try:
            await main
        except Violation as violation:
            self.fail(violation)
        except Exception as error:
            self.fail(Violation("actor", f"{process.name} failed: {type(error).__name__}: {error}"))

    def _killed(self, member: Member, process: Process) -> None:
        self.trace.say(process.name, "killed")
        waits = self.board.waits
        for key in [key for key, wait in waits.items() if wait.process is process]:
            del waits[key]
        self._relaunch(member)

    def _relaunch(self, member: Member) -> None:
        self._later(self.dice.uniform(0.1, 5), self._launch, member)

    def _later(self, seconds: float, act: Callable[..., None], *args: object) -> None:
        """Run outside of any process, or it would die with the current one."""
        self.loop.call_later(seconds, act, *args, context=Context())

    # Faults

    async def _chaos(self) -> None:
        plan, beat = self.plan, 0.5
        while self.loop.time() < plan.horizon and not self.done.done():
            await asyncio.sleep(self.dice.uniform(0, 2 * beat))
            self._check_waits()
            for member in self.members:
                for process in member.processes:
                    self._befall(process, beat * self._weight(member.worker, process))
                if member.worker is not None and self.dice.random() < 2 * plan.cut * beat:
                    self._cut_off(*member.processes)  # the whole machine
                if member.worker is not None and self.dice.random() < 0.005:
                    member.worker.stop()

    @staticmethod
    def _weight(worker: SimulatedWorker | None, process: Process) -> int:
        """Cut off the supervisor of a busy executor, which costs it the session."""
        if worker is None or process is worker.process:
            return 1
        return 2 + 4 * len(worker.overseer.active)

    def _befall(self, process: Process, beat: float) -> None:
        plan = self.plan
        if self.dice.random() < plan.crash * beat:
            process.kill()
        elif self.dice.random() < plan.freeze * beat:
            seconds = plan.lease * self.dice.choice([0.2, 1.2, 2.5])
            self.trace.say(process.name, f"frozen for {seconds:.1f} s")
            process.freeze(seconds)
        elif self.dice.random() < plan.cut * beat:
            self._cut_off(process)

    def _cut_off(self, *processes: Process) -> None:
        seconds = self.plan.lease * self.dice.choice([0.2, 1.2, 2.5])
        for process in processes:
            self.trace.say(process.name, f"out of contact for {seconds:.1f} s")
            process.cut_until = self.loop.time() + seconds

    # The reckoning

    async def _calm_down(self) -> None:
        self.calm = self.network.calm = self.broker.calm = self.board.closing = True
        self.trace.say("stage", "the faults stop")
        for member in self.members:
            for process in member.processes:
                process.cut_until = 0.0
                if not member.lasting:
                    process.kill()
        # The network is not written for being waited for; this is the only place that does.
        while self.network.astray:
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
            self._check_waits()
            open_jobs = [life for life in self.ledger.lives.values() if not _at_rest(life)]
            unheard = [wait for wait in self.board.waits.values() if self._all_over(wait) is not None]
            if not open_jobs and not unheard:
                return
            if self.loop.time() > deadline:
                break
            await asyncio.sleep(HAS_ENDED)
        self._complain()
        if open_jobs:
            life = open_jobs[0]
            raise Violation(
                "stuck", f"{life.id} is {life.state} and stays so ({len(open_jobs)} such)", life.id
            )
        for wait in unheard:
            raise Violation("watch", f"{wait.process.name} never heard of the end of {wait.ids}", wait.ids[0])

    def _complain(self) -> None:
        for worker in self._workers():
            if (complaint := worker.overseer.complaint()) is not None:
                raise complaint

    def _workers(self) -> list[SimulatedWorker]:
        workers = [member.worker for member in self.members if member.worker is not None]
        return [worker for worker in workers if worker.process.alive]

    def _all_over(self, wait: Wait) -> object:
        """A fingerprint of these jobs' ends, if all are over; else None."""
        lives = [self.ledger.lives.get(id) for id in wait.ids]
        if all(life is None or life.finished is not None for life in lives):
            return [(None, 0) if life is None else (life.finished, life.replays) for life in lives]
        return None

    def _check_waits(self) -> None:
        """Each waiter hears of the end soon, not only when it looks by itself."""
        now, limit = self.loop.time(), HEARS_WITHIN + 12 * self.plan.slow
        for key, wait in self.board.waits.items():
            ends, process = self._all_over(wait), wait.process
            if ends is None or process.frozen:
                self._over.pop(key, None)
                continue
            before, since = self._over.get(key, (None, now))
            if before != ends:
                self._over[key] = (ends, now)
            elif now > max(since, wait.since, process.troubled, process.cut_until) + limit:
                raise Violation(
                    "watch", f"{process.name} has not heard of the end of {wait.ids}", wait.ids[0]
                )

    async def _strike(self) -> None:
        """Workers leave in good order; then nothing changes any more."""
        for member in self.members:
            member.lasting = member.lasting and member.hire is None
        for worker in self._workers():
            worker.stop()
        await asyncio.sleep(self.plan.lease * 3 + 35)
        for member in self.members:
            member.lasting = False
            for process in member.processes:
                process.kill()
        await asyncio.sleep(1)

    # Executors

    async def _fill(self) -> None:
        """Each executor can fill all its slots, and all runs stop when asked."""
        while any(process.frozen for member in self.members for process in member.processes):
            await asyncio.sleep(HAS_ENDED)
        workers = self._workers()
        payload = Script(seconds=FILL).payload()
        most = sum(worker.settings.slots for worker in workers) * 2
        ids = [f"fill-{n}" for n in range(most)]
        jobs = [Job(id=id, task="plain", queue="a", payload=payload, timeout=300_000) for id in ids]
        await self.warden.put(jobs)
        await asyncio.sleep(FILLS_WITHIN + 8 * self.plan.slow)
        for worker in workers:
            overseer, known = worker.overseer, worker.settings.tasks
            if (
                not worker.process.alive
                or worker.settings.max_jobs_per_process
                or worker.settings.concurrency is None
                or (known and "plain" not in known)
            ):
                continue
            if len(overseer.active) < overseer.concurrency:
                text = f"{len(overseer.active)} jobs in {overseer.concurrency} slots, and more are ready"
                raise Violation("slots", f"{worker.process.name}: {text}")
        await self.warden.edit(Ids(tuple(ids)), Cancel())
        await asyncio.sleep(CANCEL_WITHIN + 8 * self.plan.slow)
        for worker in self._workers():
            for live in worker.overseer.active:
                if live.ref[0] in ids and not live.cancelled:
                    raise Violation("told", f"{worker.process.name} has not heard of a cancel", live.ref[0])

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
    """Finished, or waiting for a job that will never end."""
    waits_for_good = not life.may_start() and not life.must_be_cancelled()
    return life.state.finished or (life.state is State.WAITING and waits_for_good)
