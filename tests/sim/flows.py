"""Flows under faults: real builders, placement, executors, built-in tasks and the leader's duty on virtual
time.

Clients die between any two calls, executors are killed and replaced, calls get lost before or after their
effect, arrive twice or late, messages between jobs are delivered twice, tasks die until they are replayed,
and operators replay dead nodes from anywhere. Then the faults stop, dead flows are retried, and the reckoning
asks: every flow that exists is whole, has ended, and has the right result; nothing waits; no accepted
completion came twice without a replay; no document is left.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from dray import App, Reject, chain, chord, group
from dray.broker.actions import Ids, Query, Retry
from dray.broker.memory import MemoryBroker
from dray.broker.memory.audit import problems
from dray.broker.memory.store import JobStore
from dray.client.client import Client
from dray.errors import BrokerAway, BrokerError, DrayError
from dray.flows.graph import FLOW_TASK
from dray.flows.handle import FlowHandle
from dray.flows.pages import HEADS, JOBS
from dray.flows.reading import read_flow
from dray.job import FINISHED, Outcome, Settled, State, Taken, Verdict
from dray.policy import Retention
from dray.settings import Loaded, Settings
from dray.worker.duties.placing import place_flows
from dray.worker.executor.accounting import Accounts
from dray.worker.executor.executor import Executor
from dray.worker.run.outcome import Judge
from dray.worker.run.perform import OnLoop, Runners
from sim.loop import Process, VirtualLoop

EPOCH = 1_800_000_000_000
LEASE = 5000
JOBS_MAX = 3000
CHAOS = 60.0
"""Virtual seconds with faults."""
PATIENCE = 600.0
QUEUES = ("default", "b", "c")


class FlowViolation(AssertionError):
    """A promise that was not kept."""


class CountingBroker(MemoryBroker):
    """Counts accepted successes and replays of jobs."""

    def __init__(self, **options: Any) -> None:
        super().__init__("sim", **options)
        self.completions: Counter[str] = Counter()
        self.replays: Counter[str] = Counter()
        self.early = ""

    @property
    def store(self) -> JobStore:
        return self._store

    async def settle(
        self, session: str, outcomes: Sequence[Outcome], *, now: int | None = None
    ) -> list[Settled]:
        replies = await super().settle(session, outcomes, now=now)
        for outcome, reply in zip(outcomes, replies, strict=True):
            if reply.verdict is Verdict.ACCEPTED and reply.state is State.SUCCEEDED:
                self.completions[outcome.id] += 1
            if reply.verdict is Verdict.ACCEPTED and reply.state in FINISHED:
                self._check_nodes(outcome.id)
        return replies

    async def take(self, *args: Any, **options: Any) -> list[Taken]:
        found = await super().take(*args, **options)
        for taken in found:
            for id in taken.job.waits_for if taken.job.orphan == "cancel" and taken.run == 1 else ():
                entry = self._store.jobs.get(id)
                if entry is not None and entry.state is not State.SUCCEEDED and not self.replays[id]:
                    self.early = f"{taken.job.node} was taken before its input {entry.job.node} succeeded"
        return found

    async def put(self, jobs: Any, **options: Any) -> Any:
        if len(self._store.jobs) > JOBS_MAX:
            self.early = "jobs multiply"
            raise BrokerAway(self.early)
        return await super().put(jobs, **options)

    def _check_nodes(self, flow: str) -> None:
        """A flow ends after all its nodes, unless one is replayed just then."""
        nodes = [entry for entry in self._store.jobs.values() if entry.job.owner == flow]
        left = [entry.job.node for entry in nodes if entry.state not in FINISHED]
        if left and not any(self.replays[entry.job.id] for entry in nodes):
            self.early = f"flow {flow} ended before its nodes {left[:3]}"

    async def edit(self, selection: Any, action: Any, **options: Any) -> Any:
        edited = await super().edit(selection, action, **options)
        if isinstance(action, Retry):
            self.replays.update(edited.changed)
        return edited


class Network:
    """Whether calls are disturbed."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.faulty = dice, True


class Transport:
    """A broker behind a faulty network: a call fails before or after its effect, comes twice, or late."""

    def __init__(self, broker: MemoryBroker, network: Network) -> None:
        self._broker, self._network = broker, network
        self.namespace, self.retention, self.clock = broker.namespace, broker.retention, broker.clock
        self.wait, self.close = broker.wait, broker.close

    def __getattr__(self, verb: str) -> Any:
        method, network = getattr(self._broker, verb), self._network

        async def call(*args: Any, **options: Any) -> Any:
            dice = network.dice
            await asyncio.sleep(dice.random() * 0.02)
            if not network.faulty:
                return await method(*args, **options)
            chance = dice.random()
            if chance < 0.03:
                raise BrokerAway("lost on the way")
            reply = await method(*args, **options)
            if chance < 0.05 and verb != "take":
                await method(*args, **options)
            if chance > 0.96:
                raise BrokerAway("the reply was lost")
            if chance > 0.9:
                await asyncio.sleep(dice.random() * 2)
            return reply

        return call


def make_app(broker: Any, clock: Any, fragile: dict[str, int]) -> App:
    """The app of one process. `fragile` counts how often the tasks of a name have died."""
    app = App("sim", broker="memory://")
    settings = Settings(broker_url="memory://", namespace="sim", retries=2, backoff="fixed:1s", lease=LEASE)
    app.use(Loaded(settings, {"broker_url": "keyword"}, Path()))

    async def open(blocking: bool) -> Any:
        return broker

    app.client, app.clock = Client(open), clock
    dice = random.Random(7)

    @app.task
    async def one(value: int) -> int:
        await asyncio.sleep(dice.random())
        return value

    @app.task(result_ttl=0)
    async def inc(value: int, by: int = 1) -> int:
        await asyncio.sleep(dice.random())
        return value + by

    @app.task(queue="b")
    async def total(values: list[int]) -> int:
        return sum(values)

    @app.task(queue="c", result_ttl=0)
    async def pages(count: int) -> list[int]:
        return list(range(count))

    @app.task(retries=0)
    async def brittle(value: Any, name: str) -> Any:
        """Dies once, and works when it is replayed."""
        await asyncio.sleep(dice.random())
        if not fragile.get(name):
            fragile[name] = fragile.get(name, 0) + 1
            raise Reject(f"{name} is not ready")
        return value

    @app.task
    async def seen(*values: Any) -> list[str]:
        return [type(value).__name__ for value in values]

    return app


def shapes(app: App, name: str) -> list[tuple[Any, Any]]:
    """Flows of every form, and their results when all is well."""
    one, inc, total, pages = (app.tasks[task] for task in ("one", "inc", "total", "pages"))
    brittle, seen = app.tasks["brittle"], app.tasks["seen"]
    diamond = app.flow("diamond")
    top = diamond.add(one, 1)
    sides = [diamond.add(brittle, diamond.add(inc, top, n), f"{name}-{n}") for n in range(3)]
    diamond.add(total, [*sides, top])
    mapped = app.flow("map")
    mapped.add(total, mapped.map(chain(inc.call(), inc.call(10)), mapped.add(pages, 5)))
    inner = app.flow("inner")
    inner.map(brittle.call(f"{name}-inner"), inner.add(pages.call()))
    nested = app.flow("nested", key=f"{name}-nested")
    nested.map(inner, nested.add(pages, 4))
    whens = app.flow("when")
    a, b = whens.add(one, 1), whens.add(inc, 1)
    late = whens.add(inc.using(delay=20), 5)
    whens.add(seen.call(), after=[a, b], when="failed", name="never")
    whens.add(seen.using(queue="b"), a, late, when="any")
    whens.add(seen, a, b, when="done")
    tolerant = app.flow("tolerant")
    tolerant.add(seen, tolerant.add(brittle, 1, f"{name}-tolerant"), when="done")
    keyed = [one.using(key=f"{name}-key").call(7) for _ in range(3)]
    return [
        (chain(one.call(1), *(inc.call() for _ in range(6))), 7),
        (group(inc.call(n) for n in range(8)), [n + 1 for n in range(8)]),
        (chord(group(one.using(queue=QUEUES[n % 3]).call(n) for n in range(12)), total.call()), 66),
        (chain(one.call(1), brittle.call(f"{name}-chain"), group(inc.call(1), inc.call(2))), [2, 3]),
        (diamond, 7),
        (mapped, sum(n + 11 for n in range(5))),
        (nested, [[], [0], [0, 1], [0, 1, 2]]),
        (whens, None),
        (tolerant, None),
        (chord(group(keyed), total.call()), 21),
        (group([]), []),
    ]


class FlowSim:
    """One seed."""

    def __init__(self, seed: int, loop: VirtualLoop, clients: int = 3) -> None:
        self.loop, self.dice, self.clients = loop, random.Random(f"flows {seed}"), clients
        retention = Retention(done_ttl=900_000)
        self.broker = CountingBroker(clock=self.clock, retention=retention)
        self.network = Network(self.dice)
        self.fragile: dict[str, int] = {}
        self.expected: dict[str, Any] = {}
        """Results by flow, of flows whose client lived to see the handle."""
        self.processes: list[Process] = []
        self.number = 0
        self.checks = 0

    def clock(self) -> int:
        return EPOCH + int(self.loop.time() * 1000)

    def _app(self) -> App:
        return make_app(Transport(self.broker, self.network), self.clock, self.fragile)

    # actors

    async def _work(self, name: str) -> None:
        app = self._app()
        await Executor(
            app,
            cast(Any, Transport(self.broker, self.network)),
            settings=app.settings,
            session_name=name,
            runners=self._runners,
            clock=self.clock,
            random=self.dice.random,
            accounts=Accounts(self.loop.time, lambda: self.loop.time() / 2, self.clock),
        ).run()

    @staticmethod
    def _runners(judge: Judge) -> Runners:
        async def call_plain(*_: object) -> None:
            raise AssertionError("all tasks are coroutines")

        on_loop = OnLoop(judge, call_plain)
        return Runners(on_loop, on_loop, on_loop)

    def _start(self, name: str, main: Any) -> Process:
        process = Process(name, self.loop)
        process.start(main)
        self.processes.append(process)
        return process

    async def _killer(self) -> None:
        workers = [self._start(f"worker{n}", self._work(f"worker{n}")) for n in range(3)]
        while self.network.faulty:
            await asyncio.sleep(self.dice.random() * 6)
            victim = self.dice.randrange(3)
            workers[victim].kill()
            self.number += 1
            name = f"worker{victim}.{self.number}"
            await asyncio.sleep(self.dice.random())
            workers[victim] = self._start(name, self._work(name))

    async def _lead(self) -> None:
        broker: Any = Transport(self.broker, self.network)
        while True:
            await asyncio.sleep(1)
            try:
                await broker.sweep()
                await place_flows(broker)
            except BrokerError:
                continue

    async def _client(self, name: str) -> None:
        for flow, result in shapes(self._app(), name):
            await asyncio.sleep(self.dice.random() * 3)
            handle = await self._enqueue(flow)
            if handle is not None and result is not None:
                id = handle.id if isinstance(handle, FlowHandle) else handle.flow.id
                if id:
                    self.expected[id] = result

    async def _enqueue(self, flow: Any) -> Any:
        while True:
            try:
                return await flow.aenqueue()
            except BrokerError:  # it may have been accepted; half of the clients try again
                if self.dice.random() < 0.5:
                    return None

    async def _operator(self) -> None:
        """Replays dead jobs from the dead list, and flows as a whole, at any moment."""
        broker: Any = Transport(self.broker, self.network)
        app = self._app()
        while self.network.faulty:
            await asyncio.sleep(self.dice.random() * 8)
            try:
                dead = (await broker.find(Query(state=State.DEAD))).records
                if not dead:
                    continue
                chosen = self.dice.choice(dead)
                if chosen.job.task == FLOW_TASK:
                    await app.flows.get(chosen.id).aretry()
                elif not chosen.job.task.startswith("dray."):
                    await broker.edit(Ids((chosen.id,)), Retry())
            except DrayError:
                continue

    # the play

    async def play(self) -> None:
        self._start("leader", self._lead())
        self._start("operator", self._operator())
        killer = self.loop.create_task(self._killer())
        for n in range(self.clients):
            client = self._start(f"client{n}", self._client(f"c{n}"))
            if n:  # dies in the middle of it, and another one comes
                client.call(client.kill, delay=self.dice.random() * 15)
                self._start(f"again{n}", self._client(f"a{n}"))
        await asyncio.sleep(CHAOS)
        self.network.faulty = False
        await killer
        await self._settle_down()
        await self._reckon()

    async def _settle_down(self) -> None:
        """Wait until all jobs have ended; retry flows that failed, until none does."""
        end, app = self.loop.time() + PATIENCE, self._app()
        while True:
            await asyncio.sleep(5)
            if self.broker.early:
                raise FlowViolation(self.broker.early)
            unfinished = [entry for entry in self.broker.store.jobs.values() if entry.state not in FINISHED]
            if self.loop.time() > end:
                waiting = [(entry.job.id, entry.job.node, entry.state, entry.waiting) for entry in unfinished]
                raise FlowViolation(f"these never end: {waiting[:5]}")
            if unfinished:
                continue
            failed = [entry.job.id for entry in self._flows() if entry.state is not State.SUCCEEDED]
            if not failed:
                return
            for id in failed:
                if not await app.flows.get(id).aretry():
                    raise FlowViolation(f"{id} failed, and there is nothing to retry: {self._reason(id)}")

    def _flows(self) -> list[Any]:
        return [entry for entry in self.broker.store.jobs.values() if entry.job.task == FLOW_TASK]

    def _reason(self, id: str) -> str | None:
        return self.broker.store.jobs[id].reason

    async def _reckon(self) -> None:
        jobs, app = self.broker.store.jobs, self._app()
        for entry in self._flows():
            _, graph = await read_flow(self.broker, entry.job.id)
            missing = [id for id in graph.ids(entry.job.id) if id not in jobs]
            if missing and not self.broker.completions[entry.job.id]:
                raise FlowViolation(f"flow {entry.job.id} is not whole: {len(missing)} nodes are missing")
        owners = {entry.job.owner for entry in jobs.values() if entry.job.node}
        if orphans := owners - jobs.keys() - set(self.broker.completions):
            raise FlowViolation(f"nodes of flows that do not exist: {orphans}")
        for id, result in self.expected.items():
            if id not in jobs and not self.broker.completions[id]:
                raise FlowViolation(f"flow {id} was accepted, and is gone")
            if id in jobs and jobs[id].result is not None:
                self.checks += 1
                found = app.codecs.decode_value(jobs[id].result)  # type: ignore[arg-type]
                if found != result:
                    raise FlowViolation(f"flow {id} gave {found!r} instead of {result!r}")
        for id, count in self.broker.completions.items():
            allowed = (
                1 + sum(self.broker.replays.values()) if self._follows(id) else 1 + self.broker.replays[id]
            )
            if count > allowed:
                raise FlowViolation(f"{id} succeeded {count} times, with {self.broker.replays[id]} replays")
        if self.broker.early:
            raise FlowViolation(self.broker.early)
        if found := problems(self.broker.store):
            raise FlowViolation(f"audit: {found[:3]}")
        await asyncio.sleep(3700)
        kinds = Counter(kind for kind, _ in self.broker.store.docs)
        if kinds[HEADS] or kinds[JOBS]:
            raise FlowViolation(f"documents are left: {kinds}")

    def _follows(self, id: str) -> bool:
        """Jobs that run again whenever one of their dependencies is replayed, or have gone since."""
        entry = self.broker.store.jobs.get(id)
        return entry is None or entry.job.orphan == "follow" or entry.job.task.startswith("dray.")


def simulate_flows(seed: int, clients: int = 3) -> FlowSim:
    """Play one seed; FlowViolation says what went wrong."""
    loop = VirtualLoop(seed)
    sim = FlowSim(seed, loop, clients)
    try:
        loop.run_until_complete(sim.play())
    finally:
        loop.bury()
    return sim


def first_violation(seeds: Sequence[int]) -> str:
    """What the first of these seeds finds; empty if none does."""
    for seed in seeds:
        try:
            simulate_flows(seed)
        except FlowViolation as violation:
            return str(violation)
    return ""
